"""The poller against a scripted Bot API, on a clock that the test winds."""

from typing import cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogEvent, LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.ingestion import Cursor
from telegrammer.core.journal import Pending, Place
from telegrammer.core.problems import CapacityReached, StoreBusy, WrongBot
from telegrammer.core.telegram import (
    BadCredentials,
    Batch,
    Conflict,
    Identity,
    Malformed,
    Message,
    NetworkFailure,
    PollOutcome,
    RateLimited,
    Update,
    UpstreamFailure,
    WebhookInfo,
)
from telegrammer.ingest.ingestor import Ingestor
from telegrammer.ingest.poller import Poller
from telegrammer.ports import Journal
from telegrammer.service import Wakeup
from tests.support.telegram import FakeApi, FakeIngestion, FakeJournal

BOT = 123456
WALL = 1_793_000_000
ME = Identity(BOT, "x_bot", False)
MESSAGE = Message(7, "private", b"{}")


class PollerTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.api, self.store, self.journal = FakeApi(), FakeIngestion(), FakeJournal()
        self.rings = 0
        wakeup = Wakeup(self.clock)
        self.poller = Poller(
            api=self.api,
            ingestion=self.store,
            ingestor=Ingestor(self.store, self.ring),
            journal=cast(Journal, self.journal),
            token_bot_id=BOT,
            clock=self.clock,
            now=lambda: WALL + self.clock.seconds(),
            jitter=lambda: 0.0,
            wakeup=wakeup,
        )
        self.service = self.poller.service()
        self.service.startService()
        self.clock.advance(0)
        self.addCleanup(self.check_stop)
        captured = capturedLogs()
        self.events = captured.__enter__()
        self.addCleanup(captured.__exit__, None, None, None)

    def check_stop(self) -> None:
        """Whatever a test left behind, stopping takes no time and leaves nothing."""
        if self.service.running:
            self.successResultOf(self.service.stopService())
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual((self.api.me, self.api.polls, self.api.webhooks), ([], [], []))
        self.assertEqual(self.poller.status().state, "stopped")

    def ring(self) -> None:
        self.rings += 1

    def identify(self) -> None:
        self.api.me.pop().callback(ME)

    def answer(self, outcome: PollOutcome, after: float = 10) -> None:
        self.clock.advance(after)
        self.api.polls.pop().callback(outcome)

    def check_rests(self, seconds: float) -> None:
        """Nothing is asked for so long, then something is."""
        self.assertEqual((self.api.polls, self.api.me), ([], []))
        self.clock.advance(seconds - 0.001)
        self.assertEqual((self.api.polls, self.api.me), ([], []))
        self.clock.advance(0.002)
        self.assertEqual(len(self.api.polls) + len(self.api.me), 1)

    def told(self, level: LogLevel | None = None) -> list[str]:
        """The lines in the log since the last look."""
        levels = [level] if level else [LogLevel.info, LogLevel.warn, LogLevel.error, LogLevel.critical]
        events = cast("list[LogEvent]", self.events)
        lines = [formatEvent(event) for event in events if event["log_level"] in levels]
        del events[:]
        return lines


class StartTests(PollerTestCase):
    def test_identity_then_poll(self) -> None:
        self.assertEqual((len(self.api.me), self.api.asked), (1, []))
        self.assertEqual(self.poller.status().state, "starting")
        self.assertIsNone(self.poller.identity())
        self.identify()
        self.assertEqual(self.api.asked, [(0, 100)])
        self.assertEqual((self.store.bot_id, self.poller.identity()), (BOT, ME))
        self.assertEqual(self.poller.status().state, "polling")
        self.assertIsNone(self.poller.status().last_success_at)
        self.assertEqual(self.told(), ["polling for bot 123456, @x_bot"])

    @pytest.mark.report("B3")
    def test_unreachable(self) -> None:
        for seconds in (1, 2, 4):
            self.api.me.pop().callback(NetworkFailure("name not found"))
            self.check_rests(seconds)
        self.assertEqual(self.poller.status().consecutive_failures, 3)
        self.identify()
        self.assertEqual(self.poller.status().state, "backing_off")
        self.answer(Batch())
        self.assertEqual(self.poller.status().state, "polling")
        self.assertEqual(
            self.told(),
            ["polling backs off (network): name not found", "polling again, after 3 failures in a row"],
        )

    def test_stored_cursor(self) -> None:
        self.store.stored = Cursor(727, 2)
        self.identify()
        self.assertEqual(self.api.asked, [(727, 100)])

    def test_token_of_another_bot_than_its_digits(self) -> None:
        self.api.me.pop().callback(Identity(99))
        status = self.poller.status()
        self.assertEqual((status.state, status.reason), ("suspended", "wrong_bot"))
        self.assertEqual((self.store.bot_id, self.poller.identity()), (None, None))
        self.check_rests(60)
        self.api.me.pop().callback(Identity(99))
        self.check_rests(120)
        self.identify()
        self.answer(Batch())
        (line, resumed) = self.told()
        self.assertIn("99", line)
        self.assertIn(str(BOT), line)
        self.assertIn("polling again", resumed)

    def test_database_of_another_bot(self) -> None:
        self.store.trouble.append(WrongBot(99, BOT))
        self.identify()
        self.assertEqual(self.poller.status().reason, "wrong_bot")
        self.assertIn("99", self.told()[0])

    def test_storage_at_start(self) -> None:
        self.store.trouble.append(StoreBusy())
        self.identify()
        self.assertEqual(
            (self.poller.status().state, self.poller.status().reason), ("backing_off", "storage")
        )
        self.check_rests(1)
        self.store.trouble.append(StoreBusy())
        self.identify()
        self.check_rests(2)
        self.store.trouble += []
        self.identify()
        self.assertEqual(len(self.api.polls), 1)

    def test_an_unreadable_cursor(self) -> None:
        async def cursor() -> Cursor:
            raise StoreBusy()

        self.patch(FakeIngestion, "cursor", lambda store: cursor())
        self.identify()
        self.assertEqual((self.api.asked, self.poller.status().reason), ([], "storage"))


class AfterWebhookTests(PollerTestCase):
    """What was pushed before the mode was changed, and what Telegram could not push (contract 8)."""

    def setUp(self) -> None:
        super().setUp()
        self.store.stored = Cursor(700, 0, from_head=True)

    def waiting(self) -> None:
        self.journal.waiting = [Pending(Place(1, 1), 1)]

    def test_nothing_is_polled_before_the_journal_is_drained(self) -> None:
        self.waiting()
        self.identify()
        for looks in range(1, 9):
            self.assertEqual((self.api.asked, self.journal.looks), ([], looks))
            self.clock.advance(1)
        status = self.poller.status()
        self.assertEqual((status.state, status.reason, status.consecutive_failures), ("starting", None, 0))
        self.assertEqual(status.quiet_seconds, 8)
        (line,) = self.told()
        self.assertIn("have been folded", line)
        self.journal.waiting = []
        self.clock.advance(1)
        self.assertEqual((self.api.asked, self.poller.status().state), ([(None, 100)], "polling"))
        self.assertEqual(self.told(), ["polling for bot 123456, @x_bot"])

    def test_a_journal_that_cannot_be_looked_at(self) -> None:
        self.journal.trouble.append(StoreBusy())
        self.identify()
        status = self.poller.status()
        self.assertEqual((status.state, status.reason), ("backing_off", "storage"))
        self.check_rests(1)
        self.assertEqual(len(self.api.polls), 1)

    def test_stop_while_it_waits(self) -> None:
        self.waiting()
        self.identify()
        self.successResultOf(self.service.stopService())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_no_offset_until_a_batch_is_committed(self) -> None:
        self.identify()
        self.store.trouble.append(CapacityReached())
        self.answer(Batch((Update(705),)))
        self.answer(Batch((Malformed(705, "x"),)))
        self.check_rests(1)
        self.store.trouble.append(StoreBusy())
        self.answer(Batch((Update(705),)))
        self.check_rests(2)
        self.answer(NetworkFailure("x"))
        self.check_rests(4)
        self.assertEqual(self.api.asked, [(None, 100), *[(None, 50)] * 4])
        self.answer(Batch((Update(705),)))
        self.assertEqual(self.api.asked[-1], (706, 100))

    def test_an_empty_batch_proves_that_telegram_has_nothing(self) -> None:
        self.identify()
        self.answer(Batch())
        self.assertEqual(self.api.asked, [(None, 100), (700, 100)])


class PollTests(PollerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.identify()
        self.told()

    def test_batches_follow_one_another(self) -> None:
        self.answer(Batch((Update(5, MESSAGE), Update(6))))
        self.answer(Batch((Update(7, MESSAGE),)), after=0)
        self.assertEqual(self.api.asked, [(0, 100), (7, 100), (8, 100)])
        self.assertEqual((self.store.committed, self.rings), ([5, 6, 7], 2))
        status = self.poller.status()
        self.assertEqual((status.state, status.last_success_at), ("polling", WALL + 10))
        self.assertEqual(self.told(), [])

    @pytest.mark.report("B11")
    def test_quiet_time_is_monotonic_and_since_the_last_batch(self) -> None:
        self.answer(Batch(), after=30)
        self.clock.advance(12)
        self.assertEqual(self.poller.status().quiet_seconds, 12)
        self.answer(NetworkFailure("x"), after=28)
        self.assertEqual(self.poller.status().quiet_seconds, 40)

    def test_an_empty_answer_at_once_is_not_stormed(self) -> None:
        self.answer(Batch(), after=0.25)
        self.check_rests(0.75)
        self.answer(Batch(), after=1)
        self.assertEqual(len(self.api.polls), 1)

    @pytest.mark.report("A1")
    def test_replays_at_once_are_not_stormed(self) -> None:
        self.store.stored = Cursor(10)
        self.answer(Batch((Update(10),)), after=0)
        for _ in range(3):
            self.answer(Batch((Update(10),)), after=0)
            self.check_rests(1)

    def test_the_slow_commit_counts_into_the_floor(self) -> None:
        self.store.gate = Deferred()
        self.answer(Batch(), after=0.25)
        self.clock.advance(1)
        self.store.gate.callback(None)
        self.assertEqual(len(self.api.polls), 1)

    def test_the_next_poll_waits_for_the_commit(self) -> None:
        self.store.gate = Deferred()
        self.answer(Batch((Update(5, MESSAGE),)))
        self.clock.advance(100)
        self.assertEqual((self.api.polls, self.rings), ([], 0))
        self.store.gate.callback(None)
        self.assertEqual((self.api.asked[-1], self.rings), ((6, 100), 1))

    @pytest.mark.report("B6", "B8")
    def test_an_outage(self) -> None:
        for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
            self.answer(UpstreamFailure("HTTP 502 without an envelope"), after=0)
            self.check_rests(seconds)
        self.answer(Batch())
        self.assertEqual(
            self.told(),
            [
                "polling backs off (upstream): HTTP 502 without an envelope",
                "polling again, after 8 failures in a row",
            ],
        )
        self.answer(NetworkFailure("connection lost"), after=0)
        self.check_rests(1)

    def test_rate_limit(self) -> None:
        self.answer(RateLimited(86_400))
        status = self.poller.status()
        self.assertEqual((status.state, status.reason), ("backing_off", "rate_limited"))
        self.poller.notify_commit()
        self.poller.notify_room()
        self.check_rests(86_400)
        self.assertEqual(self.told(), ["Telegram limits our polls: the next one in 86400 s"])

    @pytest.mark.report("C3")
    def test_credentials_are_asked_about_first(self) -> None:
        for seconds in (60, 120):
            self.answer(BadCredentials(401))
            self.assertEqual(self.poller.status().state, "suspended")
            self.check_rests(seconds)
            self.identify()
        self.answer(BadCredentials(401))
        self.check_rests(240)
        self.api.me.pop().callback(BadCredentials(401))
        self.check_rests(480)
        lines = self.told()
        self.assertEqual(len(lines), 1)
        self.assertIn("(401)", lines[0])
        self.identify()
        self.answer(Batch())
        self.assertEqual(self.told(), ["polling again, after 4 failures in a row"])

    @pytest.mark.report("C1")
    def test_another_poller(self) -> None:
        for seconds in (5, 15, 30, 60, 60):
            self.answer(Conflict(webhook=False))
            self.assertEqual(self.poller.status().reason, "conflict_poller")
            self.check_rests(seconds)
        self.assertEqual((len(self.told(LogLevel.error)), self.api.webhooks), (1, []))

    @pytest.mark.report("C2")
    def test_a_webhook(self) -> None:
        self.answer(Conflict(webhook=True))
        self.api.webhooks.pop().callback(WebhookInfo("hooks.example", 3))
        self.assertEqual(self.poller.status().reason, "conflict_webhook")
        self.check_rests(5)
        self.answer(Conflict(webhook=True))
        self.check_rests(15)
        (line,) = self.told()
        self.assertIn("hooks.example", line)
        self.assertIn("telegrammer delete-webhook", line)
        self.answer(Batch())
        self.assertEqual(self.poller.status().state, "polling")

    def test_a_webhook_nobody_tells_about(self) -> None:
        self.answer(Conflict(webhook=True))
        self.api.webhooks.pop().callback(NetworkFailure("x"))
        self.assertIn("unknown", self.told()[0])

    @pytest.mark.report("B4")
    def test_a_crash_of_the_api(self) -> None:
        self.clock.advance(10)
        self.api.polls.pop().errback(ValueError("SECRET"))
        self.assertEqual(
            (self.poller.status().state, self.poller.status().reason), ("backing_off", "upstream")
        )
        self.assertNotIn("SECRET", repr(self.events))
        self.check_rests(1)
        self.assertEqual(len(self.told()), 2)
        # Once: not at each try.
        self.api.polls.pop().errback(ValueError("SECRET"))
        self.check_rests(2)
        self.assertEqual(self.told(), [])
        self.answer(Batch((Update(5),)))
        self.told()
        self.api.polls.pop().errback(ValueError("SECRET"))
        self.assertEqual(len(self.told()), 2)

    def test_a_request_cancelled_by_somebody_else(self) -> None:
        self.api.polls[0].cancel()
        self.assertEqual(self.poller.status().reason, "upstream")
        self.check_rests(1)

    def test_a_crash_of_the_store(self) -> None:
        self.store.trouble.append(ValueError("SECRET"))
        self.answer(Batch((Update(5),)))
        self.assertEqual(self.poller.status().reason, "storage")
        self.assertNotIn("SECRET", repr(self.events))
        self.store.stored = Cursor(3)
        self.check_rests(1)
        # What was committed is read anew.
        self.assertEqual(self.api.asked[-1], (3, 100))

    def test_busy_storage(self) -> None:
        self.answer(Batch((Update(5),)))
        self.store.trouble.append(StoreBusy())
        self.answer(Batch((Update(6),)))
        self.assertEqual(self.poller.status().reason, "storage")
        self.poller.notify_commit()
        self.check_rests(1)
        self.assertEqual(self.api.asked[-1], (6, 100))
        self.answer(Batch((Update(6),)))
        self.assertEqual(self.store.committed, [5, 6])

    def test_an_identity_that_stays(self) -> None:
        self.answer(BadCredentials(401))
        self.check_rests(60)
        self.assertEqual(self.poller.identity(), ME)
        self.api.me.pop().callback(Identity(99))
        self.assertIsNone(self.poller.identity())


class CapacityTests(PollerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.identify()
        self.told()

    def fill(self) -> None:
        """Refuse until even one update does not fit."""
        while self.api.polls:
            self.store.trouble.append(CapacityReached())
            self.answer(Batch((Update(5),)), after=0)

    def test_at_once_with_half_the_limit(self) -> None:
        self.store.trouble.append(CapacityReached())
        self.answer(Batch((Update(5),)), after=0)
        self.assertEqual(self.api.asked, [(0, 100), (0, 50)])
        status = self.poller.status()
        self.assertEqual((status.state, status.reason), ("suspended", "capacity"))
        self.answer(Batch((Update(5),)))
        self.assertEqual(self.api.asked[-1], (6, 100))
        self.assertEqual(len(self.told()), 2)

    def test_waits_at_one(self) -> None:
        self.fill()
        self.assertEqual([limit for _, limit in self.api.asked], [100, 50, 25, 12, 6, 3, 1])
        self.check_rests(1)
        self.store.trouble.append(CapacityReached())
        self.answer(Batch((Update(5),)), after=0)
        self.check_rests(2)
        self.assertEqual(len(self.told()), 1)

    def test_a_queue_that_stays_full_is_told_once(self) -> None:
        for update_id in range(5, 9):
            self.fill()
            self.poller.notify_room()
            self.clock.advance(0.25)
            self.answer(Batch((Update(update_id),)), after=0)
            self.assertEqual(self.poller.status().state, "polling")
        self.assertEqual(len(self.told()), 1)
        self.answer(Batch((Update(9),)))
        self.assertEqual(self.told(), ["polling again, after 2 failures in a row"])

    def test_room_ends_the_wait(self) -> None:
        for notify in (self.poller.notify_room, self.poller.notify_commit):
            self.fill()
            self.clock.advance(0.5)
            notify()
            self.answer(Batch((Update(5),)))
            self.assertEqual(self.poller.status().state, "polling")

    def test_room_is_no_reason_for_a_storm(self) -> None:
        self.fill()
        before = len(self.api.asked)
        for _ in range(1000):
            self.poller.notify_room()
            self.clock.advance(0.001)
            if self.api.polls:
                self.store.trouble.append(CapacityReached())
                self.answer(Batch((Update(5),)), after=0)
        self.assertTrue(2 <= len(self.api.asked) - before <= 5)

    def test_room_made_while_a_refused_poll_was_in_hand_counts(self) -> None:
        self.fill()
        self.check_rests(1)
        self.store.trouble.append(CapacityReached())
        self.poller.notify_room()
        self.answer(Batch((Update(5),)), after=0)
        self.check_rests(0.25)

    def test_room_is_no_news_to_what_went_wrong_meanwhile(self) -> None:
        self.fill()
        self.check_rests(1)
        self.poller.notify_room()
        self.answer(NetworkFailure("x"), after=0)
        self.check_rests(1)

    def test_room_without_need(self) -> None:
        self.poller.notify_room()
        self.answer(NetworkFailure("x"), after=0)
        self.poller.notify_room()
        self.check_rests(1)


class MalformedTests(PollerTestCase):
    BAD = Batch((Update(4, MESSAGE), Malformed(5, "message is not an object"), Update(6, MESSAGE)))

    def setUp(self) -> None:
        super().setUp()
        self.identify()
        self.told()

    @pytest.mark.report("A5")
    def test_the_batch_is_held(self) -> None:
        for seconds in (1, 2, 4, 8, 16):
            self.answer(self.BAD, after=0)
            self.check_rests(seconds)
        status = self.poller.status()
        self.assertEqual((status.reason, status.consecutive_failures), ("malformed_update", 5))
        self.assertEqual((self.store.committed, self.api.asked[-1]), ([], (0, 100)))
        (line,) = self.told()
        self.assertIn("update 5", line)
        self.assertIn("skip-update 5", line)

    def test_another_one_is_news(self) -> None:
        self.answer(self.BAD)
        self.check_rests(1)
        self.answer(Batch((Malformed(8, "x"),)))
        self.check_rests(2)
        self.answer(Batch((Malformed(None, "x"),)))
        self.assertEqual(len(self.told(LogLevel.error)), 3)

    @pytest.mark.report("A5")
    def test_a_mark_ends_the_wait(self) -> None:
        for seconds in (1, 2, 4, 8, 16, 32):
            self.answer(self.BAD, after=0)
            self.check_rests(seconds)
        self.answer(self.BAD, after=0)
        self.poller.notify_room()
        self.clock.advance(1)
        self.assertEqual(self.api.polls, [])
        self.store.skips.add(5)
        self.poller.notify_commit()
        self.answer(self.BAD, after=0)
        self.assertEqual((self.store.committed, self.api.asked[-1]), ([4, 6], (7, 100)))
        self.assertEqual(self.poller.status().state, "polling")

    def test_other_commits_cause_one_try_each(self) -> None:
        self.answer(self.BAD)
        self.clock.advance(0.5)
        for _ in range(3):
            self.poller.notify_commit()
            self.answer(self.BAD, after=0)
            self.clock.advance(0.5)
            self.assertEqual(self.api.polls, [])
        self.assertEqual(len(self.api.asked), 5 - 1)


class StopTests(PollerTestCase):
    def test_while_asking_who_we_are(self) -> None:
        self.successResultOf(self.service.stopService())
        self.assertEqual((self.api.cancelled, self.told()), (1, []))

    @pytest.mark.report("B10")
    def test_while_a_poll_is_held(self) -> None:
        self.identify()
        self.told()
        self.successResultOf(self.service.stopService())
        self.assertEqual((self.api.cancelled, self.told()), (1, []))
        self.assertEqual(self.poller.status().consecutive_failures, 0)

    def test_while_asking_for_the_webhook(self) -> None:
        self.identify()
        self.answer(Conflict(webhook=True))
        self.successResultOf(self.service.stopService())
        self.assertEqual(self.api.cancelled, 1)

    @pytest.mark.report("B7")
    def test_while_backing_off(self) -> None:
        self.identify()
        self.answer(RateLimited(86_400))
        self.successResultOf(self.service.stopService())

    @pytest.mark.report("A4")
    def test_lets_a_commit_finish(self) -> None:
        self.identify()
        self.store.gate = Deferred()
        self.answer(Batch((Update(5, MESSAGE),)))
        stopped = self.service.stopService()
        self.assertNoResult(stopped)
        self.store.gate.callback(None)
        self.successResultOf(stopped)
        self.assertEqual((self.store.stored, self.api.polls), (Cursor(6), []))

    def test_an_answer_that_comes_of_being_cancelled(self) -> None:
        self.identify()
        question = self.api.polls.pop()
        # Some layer made an outcome of the cancellation.
        self.patch(question, "_canceller", lambda held: held.callback(NetworkFailure("x")))
        self.told()
        self.successResultOf(self.service.stopService())
        self.assertEqual((self.told(), self.poller.status().consecutive_failures), ([], 0))

    def test_while_the_cursor_is_read(self) -> None:
        reading: Deferred[Cursor] = Deferred()
        self.patch(FakeIngestion, "cursor", lambda store: reading)
        self.identify()
        stopped = self.service.stopService()
        self.assertNoResult(stopped)
        reading.callback(Cursor())
        self.successResultOf(stopped)
        self.assertEqual(self.api.asked, [])

    def test_a_crash_while_stopping_is_not_told(self) -> None:
        self.identify()
        self.told()
        self.patch(self.api.polls.pop(), "_canceller", lambda held: held.errback(ValueError("SECRET")))
        self.successResultOf(self.service.stopService())
        self.assertEqual((self.told(), self.poller.status().consecutive_failures), ([], 0))

    def test_takes_no_step_after_it(self) -> None:
        self.identify()
        self.successResultOf(self.service.stopService())
        self.assertGreater(self.successResultOf(Deferred.fromCoroutine(self.poller.poll_once())), 0)
        self.assertEqual(self.api.polls, [])

    @pytest.mark.report("B7")
    def test_start_again(self) -> None:
        self.identify()
        self.successResultOf(self.service.stopService())
        self.service.startService()
        self.clock.advance(0)
        self.assertEqual(len(self.api.polls), 1)
        self.assertEqual(self.poller.status().state, "polling")

    @pytest.mark.report("B7")
    def test_start_again_while_a_commit_is_under_way(self) -> None:
        self.identify()
        self.store.gate = Deferred()
        self.answer(Batch((Update(5, MESSAGE),)))
        stopped = self.service.stopService()
        self.service.startService()
        self.clock.advance(1)
        self.assertEqual(self.api.polls, [])
        gate, self.store.gate = self.store.gate, None
        gate.callback(None)
        self.successResultOf(stopped)
        self.clock.advance(1)
        self.assertEqual(self.api.asked[1:], [(6, 100)])
