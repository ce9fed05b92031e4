"""What an outbox promises, on a clock of the test's and a real file (contract 7.2)."""

from __future__ import annotations

import stat
from typing import Any
from unittest import mock

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from telegrammer import ports
from telegrammer.core.leases import CAPACITY, LEASE_SECONDS, Leased
from telegrammer.core.messages import Credentials, Mark, Message
from telegrammer.core.problems import (
    AdmissionTimeout,
    CredentialsRefused,
    LeaseLost,
    MessageRefused,
    OutboxClosed,
    OutboxFailing,
    QueueEmpty,
    QueueFull,
)
from telegrammer.messaging.outbox import Outbox
from tests.support.outbox import Desk, SteppedLane

HELLO = Message("subject", "body", ["a@example.org", "b@example.org"])


class OutboxTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.desk = Desk(self)
        self.desk.clock.advance(1_000_000)
        self.outbox = self.desk.open()

    def send(self, outbox: Outbox | None = None, message: Message = HELLO) -> str:
        return self.successResultOf((outbox or self.outbox).send(message))

    def claim(self, outbox: Outbox | None = None) -> Leased:
        return self.successResultOf((outbox or self.outbox).claim())

    def test_it_is_the_port(self) -> None:
        port: ports.Outbox = self.outbox
        self.assertIs(port, self.outbox)
        self.assertEqual((self.outbox.kind, self.outbox.name), ("sqlite", "alerts"))

    def test_a_private_file(self) -> None:
        self.assertEqual(stat.S_IMODE(self.desk.path.stat().st_mode), 0o600)
        self.assertEqual(
            sorted(each.name for each in self.desk.path.parent.iterdir()), ["mountinfo", "outbox.db"]
        )
        self.assertEqual(self.desk.rows("PRAGMA journal_mode"), [("delete",)])
        self.assertEqual(self.desk.rows("PRAGMA integrity_check"), [("ok",)])

    def test_send_claim_acknowledge(self) -> None:
        message_id = self.send()
        self.assertRegex(message_id, r"\A[0-9a-f]{32}\Z")
        self.desk.clock.advance(10.5)
        leased = self.claim()
        self.assertEqual((leased.id, leased.message, leased.created_at), (message_id, HELLO, 1_000_000))
        self.assertEqual(leased.lease_expires_at, 1_000_010 + LEASE_SECONDS)
        self.assertEqual(
            self.desk.rows("SELECT id, lease, lease_expires_at FROM messages"),
            [(message_id, leased.lease, leased.lease_expires_at)],
        )
        self.failureResultOf(self.outbox.claim(), QueueEmpty)
        self.successResultOf(self.outbox.acknowledge(message_id, leased.lease))
        self.assertEqual(self.successResultOf(self.outbox.outstanding()), 0)
        self.failureResultOf(self.outbox.acknowledge(message_id, leased.lease), LeaseLost)

    def test_the_oldest_first(self) -> None:
        ids = [self.send() for _ in range(3)]
        first = self.claim()
        self.assertEqual(first.id, ids[0])
        self.assertEqual(self.claim().id, ids[1])
        self.successResultOf(self.outbox.release(first.id, first.lease))
        again = self.claim()
        self.assertEqual(again.id, ids[0], "released: in its old place")
        self.assertNotEqual(again.lease, first.lease)
        self.failureResultOf(self.outbox.release(first.id, first.lease), LeaseLost)
        self.failureResultOf(self.outbox.acknowledge(first.id, first.lease), LeaseLost)

    def test_a_lease_expires(self) -> None:
        message_id = self.send()
        first = self.claim()
        self.desk.clock.advance(LEASE_SECONDS - 0.001)
        self.failureResultOf(self.outbox.claim(), QueueEmpty)
        self.desk.clock.advance(0.001)
        for verb in (self.outbox.acknowledge, self.outbox.release):
            self.failureResultOf(verb(message_id, first.lease), LeaseLost)
        second = self.claim()
        self.assertEqual(second.id, message_id)
        self.failureResultOf(self.outbox.acknowledge(message_id, first.lease), LeaseLost)
        self.successResultOf(self.outbox.acknowledge(message_id, second.lease))

    def test_a_clock_set_back_holds_nothing_up(self) -> None:
        self.send()
        self.claim()
        with mock.patch.object(self.desk.clock, "rightNow", 1000.0):
            self.assertEqual(self.claim().lease_expires_at, 1000 + LEASE_SECONDS)

    def test_leases_outlive_the_handle(self) -> None:
        message_id = self.send()
        lease = self.claim().lease
        self.successResultOf(self.outbox.close())
        other = self.desk.open()
        self.failureResultOf(other.claim(), QueueEmpty)
        self.successResultOf(other.acknowledge(message_id, lease))

    def test_queues_are_isolated_and_the_room_is_shared(self) -> None:
        other = self.desk.open("reports")
        message_id = self.send()
        self.failureResultOf(other.claim(), QueueEmpty)
        leased = self.claim()
        self.failureResultOf(other.acknowledge(message_id, leased.lease), LeaseLost)
        self.failureResultOf(other.release(message_id, leased.lease), LeaseLost)
        self.assertEqual(self.successResultOf(other.outstanding()), 1)
        self.successResultOf(self.outbox.acknowledge(message_id, leased.lease))

    def test_the_oldest_of_all_queues(self) -> None:
        other = self.desk.open("reports")
        self.assertEqual(self.successResultOf(other.oldest_at()), None)
        message_id = self.send()
        accepted = self.claim()
        self.assertEqual(self.successResultOf(other.oldest_at()), accepted.created_at)
        self.successResultOf(self.outbox.acknowledge(message_id, accepted.lease))
        self.assertEqual(self.successResultOf(other.oldest_at()), None)

    def test_capacity(self) -> None:
        other = self.desk.open("reports")
        with mock.patch("telegrammer.messaging.outbox_rows.CAPACITY", 3):
            self.send()
            self.send()
            self.send(other)
            mark = Mark("s", "down", 1)
            for full in (self.outbox, other):
                self.failureResultOf(full.send(HELLO, marks=[mark]), QueueFull)
                self.assertEqual(self.successResultOf(full.marks()), {})
            leased = self.claim()
            self.failureResultOf(other.send(HELLO), QueueFull)
            self.successResultOf(self.outbox.acknowledge(leased.id, leased.lease))
            self.send(other)
        self.assertEqual(CAPACITY, 1000)

    def test_marks(self) -> None:
        other = self.desk.open("reports")
        self.successResultOf(self.outbox.send(HELLO, marks=[Mark("a", "down", 1), Mark("b", "down", 1)]))
        self.successResultOf(self.outbox.send(HELLO, marks=iter([Mark("a", "up", 2)])))  # type: ignore[arg-type]
        self.assertEqual(
            self.successResultOf(self.outbox.marks()), {"a": Mark("a", "up", 2), "b": Mark("b", "down", 1)}
        )
        self.assertEqual(self.successResultOf(other.marks()), {})

    def test_what_is_no_lease(self) -> None:
        self.send()
        leased = self.claim()
        for message_id, lease in (
            (leased.id, None),
            (leased.id, ""),
            (leased.id, "\ud800"),
            (leased.id, leased.id),
            (leased.id, f"{leased.lease}\n"),
            (leased.id.upper() + " ", leased.lease),
            ("0" * 32, leased.lease),
            (None, leased.lease),
            (7, leased.lease),
        ):
            self.failureResultOf(self.outbox.acknowledge(message_id, lease), LeaseLost)  # type: ignore[arg-type]
            self.failureResultOf(self.outbox.release(message_id, lease), LeaseLost)  # type: ignore[arg-type]
        self.successResultOf(self.outbox.acknowledge(leased.id, leased.lease))

    def test_credentials_are_refused(self) -> None:
        credentials = Credentials("user", "secret")
        self.failureResultOf(self.outbox.send(HELLO, credentials=credentials), CredentialsRefused)
        self.assertEqual(self.successResultOf(self.outbox.outstanding()), 0)
        self.assertNotIn(b"secret", self.desk.path.read_bytes())

    def test_only_messages(self) -> None:
        refused = self.failureResultOf(self.outbox.send({"subject": "s"}), MessageRefused)  # type: ignore[arg-type]
        self.assertEqual(refused.value.limit, "record")

    def test_ready(self) -> None:
        self.send()
        before = self.desk.path.read_bytes()
        self.successResultOf(self.outbox.check_ready())
        self.assertEqual(self.desk.path.read_bytes(), before)

    def test_what_cannot_be_read_holds_up_nothing(self) -> None:
        bad, good = self.send(), self.send()
        self.desk.rows(f"UPDATE messages SET record = x'00' WHERE id = '{bad}'")
        self.assertEqual(self.claim().id, good)
        failure = self.failureResultOf(self.outbox.claim(), OutboxFailing)
        self.assertIn(bad, str(failure.value))
        self.assertEqual(self.successResultOf(self.outbox.outstanding()), 2)

    def test_nothing_secret_is_shown(self) -> None:
        self.assertEqual(
            repr(self.outbox),
            f"Outbox(config=SQLiteMessagingConfig(name='alerts', path={self.desk.path!r}, timeout=1.0))",
        )

    def test_what_is_no_mark(self) -> None:
        marks: Any = "up"
        found = self.failureResultOf(self.outbox.send(HELLO, marks=marks), MessageRefused)
        self.assertEqual(found.value.limit, "mark")


class CloseTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.desk = Desk(self)
        self.lane = SteppedLane()
        self.outbox = self.desk.open(lane=self.lane)
        self.lane.stepped = True

    def test_what_was_asked_for_before_is_done(self) -> None:
        sending = self.outbox.send(HELLO)
        closing = self.outbox.close()
        again = self.outbox.close()
        closing.cancel()
        self.failureResultOf(self.outbox.send(HELLO), OutboxClosed)
        self.lane.step()
        self.successResultOf(sending)
        self.successResultOf(closing)
        self.successResultOf(again)
        self.successResultOf(self.outbox.close())
        self.assertEqual(self.lane.stopped, 1)
        self.assertTrue(self.outbox.is_closed)
        self.assertEqual(self.desk.clock.getDelayedCalls(), [])

    def test_without_a_thread(self) -> None:
        self.lane.trouble = RuntimeError("can't start new thread")
        self.successResultOf(self.outbox.close())
        self.assertEqual(self.lane.stopped, 1)


class AdmissionTests(SynchronousTestCase):
    """An operation ends before the lock, without a trace, or is finished."""

    def setUp(self) -> None:
        self.desk = Desk(self)
        self.lane = SteppedLane()
        self.outbox = self.desk.open(lane=self.lane)
        self.lane.stepped = True

    def outstanding(self) -> int:
        counting = self.outbox.outstanding()
        self.lane.step()
        return self.successResultOf(counting)

    def test_time_in_the_queue_counts(self) -> None:
        sending = self.outbox.send(HELLO)
        self.desk.clock.advance(0.999)
        self.assertNoResult(sending)
        self.desk.clock.advance(0.001)
        self.failureResultOf(sending, AdmissionTimeout)
        self.assertEqual(self.outstanding(), 0)
        self.assertEqual(self.desk.clock.getDelayedCalls(), [])

    def test_a_cancel_in_the_queue(self) -> None:
        sending = self.outbox.send(HELLO)
        sending.cancel()
        self.failureResultOf(sending, CancelledError)
        self.assertEqual(self.outstanding(), 0)
        self.assertEqual(self.desk.clock.getDelayedCalls(), [])

    def test_a_cancel_after_admission_changes_nothing(self) -> None:
        sending = self.outbox.send(HELLO)
        tell = self.lane.halfway()
        sending.cancel()
        sending.cancel()
        self.desk.clock.advance(5)
        self.assertNoResult(sending)
        tell()
        self.successResultOf(sending)
        sending.cancel()
        self.assertEqual(self.outstanding(), 1)

    def test_nor_does_one_of_a_coroutine(self) -> None:
        async def send() -> str:
            return await self.outbox.send(HELLO)

        sending = Deferred.fromCoroutine(send())
        tell = self.lane.halfway()
        sending.cancel()
        self.assertNoResult(sending)
        tell()
        self.successResultOf(sending)

    def test_nor_does_one_of_a_chain(self) -> None:
        sending = succeed(None).addCallback(lambda _: self.outbox.send(HELLO))
        tell = self.lane.halfway()
        sending.cancel()
        tell()
        self.successResultOf(sending)

    def test_nor_does_a_timeout_of_the_caller(self) -> None:
        sending = self.outbox.send(HELLO).addTimeout(0.5, self.desk.clock)
        tell = self.lane.halfway()
        self.desk.clock.advance(0.5)
        tell()
        self.successResultOf(sending)

    def test_the_true_failure_after_a_cancel(self) -> None:
        claiming = self.outbox.claim()
        tell = self.lane.halfway()
        claiming.cancel()
        tell()
        self.failureResultOf(claiming, QueueEmpty)

    def test_a_cancel_reaches_what_a_callback_waits_for(self) -> None:
        never: Deferred[None] = Deferred()
        sending = self.outbox.send(HELLO).addCallback(lambda _: never)
        self.lane.step()
        sending.cancel()
        self.failureResultOf(sending, CancelledError)

    def test_an_opening_that_is_abandoned(self) -> None:
        lane = SteppedLane(stepped=True)
        opening = Outbox.open(
            self.desk.config("other"), reactor=self.desk.clock, mounts=self.desk.mounts, lane=lane
        )
        self.desk.clock.advance(1)
        self.failureResultOf(opening, AdmissionTimeout)
        lane.step()
        self.assertEqual(lane.stopped, 1)

    def test_no_thread(self) -> None:
        self.lane.trouble = RuntimeError("can't start new thread")
        self.failureResultOf(self.outbox.send(HELLO), OutboxFailing)
        opening = Outbox.open(
            self.desk.config(), reactor=self.desk.clock, mounts=self.desk.mounts, lane=self.lane
        )
        self.failureResultOf(opening, OutboxFailing)
        self.assertEqual(self.desk.clock.getDelayedCalls(), [])
