"""Carrying the outbox: claim, send within the lease, acknowledge; what fails waits for its lease."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.messages import Credentials, Message
from telegrammer.core.problems import (
    AdmissionTimeout,
    CommitUncertain,
    CredentialsRefused,
    DeliveryFailed,
    InsecurePath,
    MaybeDelivered,
    OutboxFailing,
)
from telegrammer.notices.carrier import AGAIN, IDLE, RESERVE, Carrier
from telegrammer.notices.handle import LONG_PAUSE, PAUSE, Handle
from tests.support.notices import HeldMailer, MemoryFile, MemoryOutbox, Sending

START = 1_793_000_000


class Case(SynchronousTestCase):
    timeout = 30.0

    def setUp(self) -> None:
        self.clock = Clock()
        self.skew = 0.0
        self.file = MemoryFile(self.now)
        self.mailer = HeldMailer()
        self.credentials = Credentials("op", "secret")
        self.handle = Handle(self.file.open)
        self.carrier = Carrier(self.handle, self.mailer, self.credentials, self.timeout, self.clock, self.now)
        self.events = self.enterContext(capturedLogs())

    def now(self) -> float:
        return START + self.clock.seconds() + self.skew

    def put(self, subject: str = "News") -> str:
        message = Message(subject, "body", ("op@example.org",))
        return self.successResultOf(MemoryOutbox(self.file).send(message))

    def carry(self) -> Deferred[float]:
        return Deferred.fromCoroutine(self.carrier.carry())

    def sending(self) -> Sending:
        return self.mailer.sendings[-1]

    def lines(self) -> list[str]:
        return [event["log_format"] for event in self.events]


class CarryTests(Case):
    def test_nothing_to_carry(self) -> None:
        self.assertEqual(self.successResultOf(self.carry()), IDLE)
        self.assertEqual(self.mailer.sendings, [])

    def test_one(self) -> None:
        number = self.put()
        step = self.carry()
        sending = self.sending()
        self.assertEqual((sending.message_id, sending.seconds), (number, 30.0))
        self.assertEqual((sending.message.subject, sending.credentials), ("News", self.credentials))
        sending.done.callback(None)
        self.assertEqual(self.successResultOf(step), 0.0)
        self.assertEqual((self.file.rows, self.events), ([], []))

    def test_what_fails_waits_for_its_lease(self) -> None:
        number = self.put()
        step = self.carry()
        self.sending().done.errback(DeliveryFailed("no connection"))
        self.assertEqual(self.successResultOf(step), PAUSE)
        self.assertEqual(self.successResultOf(self.carry()), IDLE)
        self.clock.advance(59)
        self.assertEqual(self.successResultOf(self.carry()), IDLE)
        self.clock.advance(1)
        step = self.carry()
        self.assertEqual([each.message_id for each in self.mailer.sendings], [number, number])
        self.sending().done.callback(None)
        self.assertEqual(self.successResultOf(step), 0.0)

    def test_one_line_when_it_begins_to_fail_and_one_when_it_works(self) -> None:
        for number in range(4):
            self.put(str(number))
        failures = (DeliveryFailed("x\ny"), MaybeDelivered("z"), CredentialsRefused("none"))
        kinds = ("delivery_failed", "maybe_delivered", "credentials_refused")
        for failure, kind in zip(failures, kinds, strict=True):
            step = self.carry()
            self.sending().done.errback(failure)
            self.successResultOf(step)
            self.assertEqual(self.carrier.failure, kind)
        self.assertEqual(self.lines(), ["notices cannot be carried, and wait: {why}"])
        self.assertEqual(self.events[0]["why"], "x\\ny")
        step = self.carry()
        self.sending().done.callback(None)
        self.successResultOf(step)
        self.assertEqual(self.carrier.failure, None)
        self.assertEqual(self.lines()[1:], ["notices are carried again"])

    def test_a_mailer_that_crashes(self) -> None:
        self.put()
        step = self.carry()
        self.sending().done.errback(ZeroDivisionError("secret"))
        self.assertEqual(self.successResultOf(step), PAUSE)
        self.assertEqual(self.carrier.failure, "unexpected")
        self.assertNotIn("secret", str(self.events))

    def test_one_that_fails_keeps_no_other_back(self) -> None:
        self.put("first")
        self.put("second")
        step = self.carry()
        self.sending().done.errback(DeliveryFailed("refused", permanent=True))
        self.successResultOf(step)
        self.carry()
        self.assertEqual(self.sending().message.subject, "second")

    def test_older_than_a_day(self) -> None:
        self.put()
        self.clock.advance(86_400)
        self.carry()
        self.assertEqual(len(self.mailer.sendings), 1)
        self.clock.advance(61)
        self.assertEqual(self.successResultOf(self.carry()), 0.0)
        self.assertEqual((len(self.mailer.sendings), self.file.rows), (1, []))
        self.assertEqual(self.lines(), ["a notice older than 24 h was dropped, undelivered: {id}"])


class LeaseTests(Case):
    timeout = 50.0

    def test_the_deadline_leaves_a_reserve(self) -> None:
        self.put()
        self.clock.advance(0.5)
        self.carry()
        self.assertEqual(self.sending().seconds, 50.0)
        self.carrier.timeout = 60.0
        self.put("other")
        self.carry()
        self.assertEqual(self.sending().seconds, 60 - 0.5 - RESERVE)

    def test_a_claim_that_left_no_time(self) -> None:
        self.put()
        claim = MemoryOutbox.claim

        def slow(outbox: MemoryOutbox) -> object:
            claimed = claim(outbox)
            self.clock.advance(55)
            return claimed

        self.patch(MemoryOutbox, "claim", slow)
        self.assertEqual(self.successResultOf(self.carry()), IDLE)
        self.assertEqual(self.mailer.sendings, [])

    def test_a_clock_set_back_makes_no_lease_longer(self) -> None:
        self.put()
        claim = MemoryOutbox.claim

        def disturbed(outbox: MemoryOutbox) -> object:
            claimed = claim(outbox)
            self.skew = -7200.0
            return claimed

        self.patch(MemoryOutbox, "claim", disturbed)
        self.carrier.timeout = 100.0
        self.carry()
        self.assertEqual(self.sending().seconds, 60 - RESERVE)


class AcknowledgementTests(Case):
    def delivered(self, *failures: Exception | None) -> Deferred[float]:
        self.put()
        step = self.carry()
        self.file.failures.extend(failures)
        self.sending().done.callback(None)
        return step

    def test_it_is_tried_again(self) -> None:
        step = self.delivered(AdmissionTimeout("held"), OutboxFailing("full"))
        self.clock.advance(AGAIN)
        self.assertNoResult(step)
        self.clock.advance(AGAIN)
        self.assertEqual(self.successResultOf(step), 0.0)
        self.assertEqual((self.file.rows, len(self.mailer.sendings)), ([], 1))

    def test_until_the_lease_expires(self) -> None:
        step = self.delivered(*[AdmissionTimeout("held")] * 100)
        self.clock.pump([1.0] * 59)
        self.assertEqual(self.successResultOf(step), 0.0)
        self.assertEqual(
            self.lines()[-1], "a notice could not be acknowledged; it may be carried twice: {id}"
        )
        self.file.failures.clear()
        self.clock.advance(1)
        self.carry()
        self.assertEqual(self.mailer.sendings[0].message_id, self.mailer.sendings[1].message_id)

    def test_uncertain_and_done(self) -> None:
        self.file.uncertain_but_done = True
        step = self.delivered(CommitUncertain("?"))
        self.clock.advance(AGAIN)
        self.assertEqual(self.successResultOf(step), 0.0)
        self.assertEqual((self.file.rows, self.file.opened), ([], 2))
        self.assertNotIn("twice", str(self.lines()))

    def test_uncertain_and_not_done(self) -> None:
        step = self.delivered(CommitUncertain("?"))
        self.clock.advance(AGAIN)
        self.assertEqual(self.successResultOf(step), 0.0)
        self.assertEqual((self.file.rows, self.file.opened), ([], 2))

    def test_the_lease_was_lost(self) -> None:
        self.put()
        step = self.carry()
        self.clock.advance(60)
        self.sending().done.callback(None)
        self.assertEqual(self.successResultOf(step), 0.0)
        self.assertEqual(self.lines(), ["the lease of a notice was lost; it may be carried twice: {id}"])


class StopTests(Case):
    def test_the_delivery_in_hand_is_cut_off_and_waits(self) -> None:
        self.put()
        step = self.carry()
        self.carrier.stop()
        self.assertEqual(self.successResultOf(step), PAUSE)
        self.assertEqual((self.mailer.cancelled, len(self.file.rows), self.events), (1, 1, []))
        self.assertEqual(self.carrier.failure, None)

    def test_the_acknowledgement_is_tried_no_more(self) -> None:
        self.put()
        step = self.carry()
        self.file.failures.extend([AdmissionTimeout("held")] * 9)
        self.sending().done.callback(None)
        self.assertNoResult(step)
        self.carrier.stop()
        self.assertEqual(self.successResultOf(step), 0.0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_what_was_being_claimed_is_not_sent(self) -> None:
        self.put()
        self.carrier.stop()
        self.successResultOf(self.carry())
        self.assertEqual(self.mailer.sendings, [])
        self.carrier.resume()
        self.clock.advance(60)
        self.carry()
        self.assertEqual(len(self.mailer.sendings), 1)


class OutboxTroubleTests(Case):
    def test_it_waits(self) -> None:
        self.put()
        self.file.failures.extend([AdmissionTimeout("held"), InsecurePath("mode")])
        self.assertEqual(self.successResultOf(self.carry()), PAUSE)
        self.assertEqual(self.successResultOf(self.carry()), LONG_PAUSE)
        self.carry()
        self.assertEqual(len(self.mailer.sendings), 1)
