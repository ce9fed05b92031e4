"""Gathering the health report in bounded time (contract 2.3)."""

from __future__ import annotations

from typing import Any

from attrs import define
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import QueueCounts
from telegrammer.core.health import (
    DeliveryStatus,
    FoldingStatus,
    HealthReport,
    IngestionStatus,
    OutboxStatus,
)
from telegrammer.core.journal import JournalCounts
from telegrammer.core.problems import DatabaseState, StoreBusy, StoreFull
from telegrammer.core.telegram import Identity
from telegrammer.web.health import Health


@define
class FakeStorage:
    answer: DatabaseState = "ok"

    def state(self) -> DatabaseState:
        return self.answer


class HealthTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.storage = FakeStorage()
        self.look_ups: list[Deferred[QueueCounts]] = []
        self.folding = FoldingStatus()
        self.journal: Deferred[JournalCounts] = succeed(JournalCounts())
        self.health = Health(
            bot=lambda: Identity(7, "a_bot", True),
            ingestion=lambda: IngestionStatus(state="polling"),
            delivery=lambda: DeliveryStatus(workers=4, busy=1),
            storage=self.storage,
            counts=self.count,
            folding=lambda: self.folding,
            journal=lambda: self.journal,
            capacity=50,
            clock=self.clock,
            now=lambda: 1000.0,
        )

    def count(self) -> Deferred[QueueCounts]:
        self.look_ups.append(Deferred())
        return self.look_ups[-1]

    def ask(self) -> Deferred[HealthReport]:
        return Deferred.fromCoroutine(self.health.report())

    def document(self, asked: Deferred[HealthReport]) -> Any:
        return self.successResultOf(asked).document

    def test_so_do_the_notices(self) -> None:
        self.health.outbox = lambda: OutboxStatus(outstanding=2)
        asked = self.ask()
        self.look_ups[0].callback(QueueCounts())
        self.assertEqual(self.document(asked)["outbox"]["outstanding"], 2)

    def test_everything_finds_its_place(self) -> None:
        asked = self.ask()
        self.look_ups[0].callback(QueueCounts(pending=3, in_flight=2, dead=1, oldest_pending_at=990))
        document = self.document(asked)
        self.assertEqual(document["bot_id"], 7)
        self.assertEqual(document["components"]["delivery"], {"state": "ok", "workers": 4, "busy": 1})
        self.assertEqual(
            document["queue"],
            {"pending": 3, "in_flight": 2, "dead": 1, "capacity": 50, "oldest_pending_age_s": 10},
        )
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_counts_that_are_there_at_once(self) -> None:
        self.health.counts = self.counts_now
        self.assertEqual(self.document(self.ask())["queue"]["dead"], 5)
        self.assertEqual(self.document(self.ask())["queue"]["dead"], 5)

    async def counts_now(self) -> QueueCounts:
        return QueueCounts(dead=5)

    def test_a_stuck_database_is_waited_for_40_ms_then_the_last_counts_are_shown(self) -> None:
        asked = self.ask()
        self.look_ups[0].callback(QueueCounts(pending=3))
        self.document(asked)
        asked = self.ask()
        self.clock.advance(0.039)
        self.assertNoResult(asked)
        self.clock.advance(0.001)
        self.assertEqual(self.document(asked)["queue"]["pending"], 3)

    def test_many_who_ask_make_one_look_up(self) -> None:
        several = [self.ask() for _ in range(5)]
        self.clock.advance(0.04)
        late = self.ask()
        self.assertEqual(len(self.look_ups), 1)
        for asked in several:
            self.assertEqual(self.document(asked)["queue"]["pending"], 0)
        self.look_ups[0].callback(QueueCounts(pending=9))
        self.assertEqual(self.document(late)["queue"]["pending"], 9)

    def test_the_next_question_makes_a_new_look_up(self) -> None:
        for pending in (1, 2):
            asked = self.ask()
            self.look_ups[-1].callback(QueueCounts(pending=pending))
            self.assertEqual(self.document(asked)["queue"]["pending"], pending)

    def test_so_does_the_journal(self) -> None:
        self.folding, self.journal = FoldingStatus("backing_off"), Deferred()
        asked = self.ask()
        self.look_ups[0].callback(QueueCounts(pending=3))
        self.assertNoResult(asked)
        self.journal.callback(JournalCounts(pending=2, failed=1, oldest_pending_at=995))
        document = self.document(asked)
        self.assertEqual(document["components"]["journal"], {"state": "backing_off"})
        self.assertEqual(document["journal"], {"pending": 2, "failed": 1, "oldest_pending_age_s": 5})

    def test_a_journal_that_is_stuck_is_waited_for_no_longer(self) -> None:
        self.journal = Deferred()
        asked = self.ask()
        self.look_ups[0].callback(QueueCounts(pending=3))
        self.clock.advance(0.04)
        document = self.document(asked)
        self.assertEqual((document["queue"]["pending"], document["journal"]["pending"]), (3, 0))
        self.journal.errback(StoreFull())
        self.assertEqual(self.document(self.ask_again())["components"]["database"]["state"], "full")

    def ask_again(self) -> Deferred[HealthReport]:
        asked = self.ask()
        self.clock.advance(0.04)
        return asked

    def test_a_look_up_that_fails_shows_why_until_one_succeeds(self) -> None:
        asked = self.ask()
        self.look_ups[0].errback(StoreBusy())
        document = self.document(asked)
        self.assertEqual(document["components"]["database"]["state"], "busy")
        self.assertEqual(document["status"], "degraded")
        asked = self.ask()
        self.look_ups[1].callback(QueueCounts())
        self.assertEqual(self.document(asked)["components"]["database"]["state"], "ok")

    def test_what_the_storage_says_of_itself_goes_first(self) -> None:
        self.storage.answer = "full"
        asked = self.ask()
        self.look_ups[0].errback(StoreBusy())
        self.assertEqual(self.document(asked)["components"]["database"]["state"], "full")

    def test_a_failure_after_nobody_waits_is_quiet(self) -> None:
        asked = self.ask()
        self.clock.advance(0.04)
        self.document(asked)
        self.look_ups[0].errback(StoreFull())
        asked = self.ask()
        self.clock.advance(0.04)
        self.assertEqual(self.document(asked)["components"]["database"]["state"], "full")

    def test_an_unexpected_failure_is_no_failure_of_the_report(self) -> None:
        asked = self.ask()
        self.look_ups[0].errback(ZeroDivisionError())
        self.assertEqual(self.document(asked)["components"]["database"]["state"], "failing")

    def test_a_monitor_that_leaves_takes_nothing_with_it(self) -> None:
        leaving, staying = self.ask(), self.ask()
        leaving.cancel()
        self.failureResultOf(leaving, CancelledError)
        self.look_ups[0].callback(QueueCounts(pending=1))
        self.assertEqual(self.document(staying)["queue"]["pending"], 1)
        self.assertEqual(self.clock.getDelayedCalls(), [])
