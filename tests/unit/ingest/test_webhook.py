"""The acceptance of a pushed update: what its answer waits for, and what it does not (contract 8)."""

from __future__ import annotations

from typing import cast

from attrs import define, field
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.journal import Accepted
from telegrammer.core.problems import InvalidRequest, StorageUnavailable, StoreBusy, StoreClosed, StoreFull
from telegrammer.ingest.webhook import ANSWER_SECONDS, WARN_SECONDS, WebhookIntake
from telegrammer.ports import Journal

BODY = b'{"update_id":77,"message":"secret"}'
NEW = Accepted(1, 0)
REPEAT = Accepted(None, 0)


@define(eq=False)
class HeldJournal:
    """Keeps every acceptance until the test answers it; there is nothing else that one may ask for."""

    asked: list[tuple[int, bytes]] = field(factory=list)
    held: list[Deferred[Accepted]] = field(factory=list)

    def accept(self, update_id: int, body: bytes) -> Deferred[Accepted]:
        self.asked.append((update_id, body))
        self.held.append(Deferred())
        return self.held[-1]


class IntakeCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock, self.journal = Clock(), HeldJournal()
        self.rung = 0
        self.welcome = True
        self.intake = WebhookIntake(cast(Journal, self.journal), self.clock, self.ring, lambda: self.welcome)
        self.events = self.enterContext(capturedLogs())

    def ring(self) -> None:
        self.rung += 1

    def accept(self, body: bytes = BODY) -> Deferred[Accepted]:
        return Deferred.fromCoroutine(self.intake.accept(body))

    def lines(self, level: LogLevel = LogLevel.warn) -> list[str]:
        return [formatEvent(event) for event in self.events if event["log_level"] >= level]


class AcceptTests(IntakeCase):
    def test_returns_and_rings_once_it_is_committed(self) -> None:
        accepting = self.accept()
        self.assertEqual(self.journal.asked, [(77, BODY)])
        self.assertEqual((self.rung, accepting.called), (0, False))
        self.journal.held[0].callback(NEW)
        self.assertEqual((self.successResultOf(accepting), self.rung), (NEW, 1))
        self.assertEqual((self.clock.getDelayedCalls(), self.lines()), ([], []))

    def test_what_may_not_enter_is_left_to_telegram(self) -> None:
        self.welcome = False
        self.failureResultOf(self.accept(), StorageUnavailable)
        self.assertEqual((self.journal.asked, self.clock.getDelayedCalls()), ([], []))
        self.welcome = True
        self.assertNoResult(self.accept())
        self.assertEqual(self.journal.asked, [(77, BODY)])

    def test_a_repeat_rings_for_nobody(self) -> None:
        accepting = self.accept()
        self.journal.held[0].callback(REPEAT)
        self.assertEqual((self.successResultOf(accepting), self.rung), (REPEAT, 0))

    def test_who_is_rung_for_may_be_broken(self) -> None:
        def broken() -> None:
            raise ZeroDivisionError

        self.intake.on_accepted = broken
        accepting = self.accept()
        self.journal.held[0].callback(NEW)
        self.assertEqual(self.successResultOf(accepting), NEW)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_a_restart_of_the_ids_is_one_line(self) -> None:
        self.accept()
        self.journal.held[0].callback(Accepted(1, 3, restarted=True))
        self.assertEqual(self.lines(), ["Telegram restarted its update ids: update 77, epoch 3"])

    def test_while_nothing_may_be_taken_nothing_is_written(self) -> None:
        may = False
        self.intake.may_accept = lambda: may
        self.failureResultOf(self.accept(), StorageUnavailable)
        self.failureResultOf(self.accept(b"{}"), InvalidRequest)
        self.assertEqual((self.journal.asked, self.clock.getDelayedCalls()), ([], []))
        may = True
        self.accept()
        self.journal.held[0].callback(NEW)
        self.assertEqual(self.rung, 1)

    def test_what_the_database_says_is_passed_on(self) -> None:
        for kind in (StoreBusy, StoreFull, StoreClosed):
            accepting = self.accept()
            self.journal.held[-1].errback(kind("x"))
            self.failureResultOf(accepting, kind)
        self.assertEqual((self.rung, self.clock.getDelayedCalls(), self.lines()), (0, [], []))


class NoUpdateTests(IntakeCase):
    def test_what_is_no_update_comes_into_no_journal(self) -> None:
        for body in (
            b"",
            b"null",
            b"[]",
            b"{}",
            b'"update_id"',
            b'{"update_id":-1}',
            b'{"update_id":1.0}',
            b'{"update_id":1e3}',
            b'{"update_id":true}',
            b'{"update_id":"1"}',
            b'{"update_id":null}',
            b'{"update_id":9223372036854775808}',
            b'{"update_id":%b}' % (b"9" * 5000),
            b'{"message":{"update_id":1}}',
            b'[{"update_id":1}]',
            b'{"update_id":1',
            b'{"update_id":1}{"update_id":2}',
            b'{"update_id":1}x',
            b'{"update_id":1,"text":"\xff"}',
            b'\xef\xbb\xbf{"update_id":1}',
            '{"update_id":1}'.encode("utf-16"),
            b'{"update_id":NaN}',
            b'{"x":%b' % (b"[" * 100_000),
        ):
            refusal = self.failureResultOf(self.accept(body), InvalidRequest).value
            self.assertIn("update_id from 0 to 2^63 - 1", str(refusal), body[:40])
        self.assertEqual((self.journal.asked, self.rung, self.clock.getDelayedCalls()), ([], 0, []))

    def test_whatever_else_an_update_holds(self) -> None:
        for number, body in enumerate(
            (
                b'{"update_id":0}',
                b' \r\n{"update_id" : 9223372036854775807 }\t',
                b'{"message":7,"update_id":5}',
                b'{"update_id":5,"text":"\\ud83d","n":1e999,"big":%b}' % (b"9" * 5000),
            )
        ):
            self.accept(body)
            self.assertEqual(self.journal.asked[number][1], body)
        self.assertEqual([update_id for update_id, _ in self.journal.asked], [0, 2**63 - 1, 5, 5])
        for each in self.journal.held:
            each.callback(NEW)

    def test_is_told_once_a_minute_by_its_size(self) -> None:
        for _ in range(3):
            self.failureResultOf(self.accept(b"secret"), InvalidRequest)
        self.clock.advance(WARN_SECONDS - 0.1)
        self.failureResultOf(self.accept(b"secrets"), InvalidRequest)
        line = "a body of 6 bytes was pushed that is no update: refused"
        self.assertEqual(self.lines(), [line])
        self.clock.advance(0.1)
        self.failureResultOf(self.accept(b"secrets"), InvalidRequest)
        self.assertEqual(self.lines(), [line, line.replace("6", "7")])
        self.assertNotIn("secret", repr(self.events))


class DeadlineTests(IntakeCase):
    """Of an acceptance that has begun and does not end: the answer cannot wait for it."""

    def late(self) -> None:
        accepting = self.accept()
        self.clock.advance(ANSWER_SECONDS - 0.01)
        self.assertNoResult(accepting)
        self.clock.advance(0.01)
        self.failureResultOf(accepting, StorageUnavailable)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_the_answer_has_its_time(self) -> None:
        self.late()
        self.assertFalse(self.journal.held[0].called)  # it was not cancelled

    def test_one_that_ends_after_all_is_rung_for(self) -> None:
        self.late()
        self.journal.held[0].callback(NEW)
        self.assertEqual((self.rung, self.lines()), (1, []))

    def test_one_that_fails_after_all(self) -> None:
        self.late()
        self.journal.held[0].errback(StoreFull("x"))
        self.assertEqual((self.rung, self.lines()), (0, []))

    def test_one_that_fails_as_nobody_foresaw_is_a_line_without_its_text(self) -> None:
        self.late()
        self.journal.held[0].errback(KeyError("secret"))
        (line,) = self.lines()
        self.assertIn("KeyError", line)
        self.assertNotIn("secret", repr(self.events))

    def test_a_result_that_came_during_a_standstill_is_in_time(self) -> None:
        accepting = self.accept()
        # As from a thread, after timers have been looked at.
        self.clock.callLater(ANSWER_SECONDS + 1, self.journal.held[0].callback, NEW)
        self.clock.advance(60)
        self.assertEqual(self.successResultOf(accepting), NEW)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_cancelling_ends_the_waiting_alone(self) -> None:
        accepting = self.accept()
        accepting.cancel()
        self.failureResultOf(accepting, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.journal.held[0].callback(NEW)
        self.assertEqual((self.rung, self.lines()), (1, []))
