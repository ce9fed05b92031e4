"""The health document (contract 2.3)."""

from __future__ import annotations

import json

import pytest
from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import QueueCounts
from telegrammer.core.health import (
    DeliveryStatus,
    FoldingStatus,
    HealthReport,
    IngestionStatus,
    OutboxStatus,
    report,
)
from telegrammer.core.journal import JournalCounts
from telegrammer.core.problems import DatabaseState
from telegrammer.core.telegram import Identity

POLLING = IngestionStatus(state="polling", last_success_at=1_793_000_000)
WORKING = DeliveryStatus(workers=4)
EMPTY = QueueCounts()
FOLDING = FoldingStatus()
FOLDED = JournalCounts()


def judged(
    ingestion: IngestionStatus = POLLING,
    delivery: DeliveryStatus = WORKING,
    database: DatabaseState = "ok",
    counts: QueueCounts = EMPTY,
    bot: Identity | None = None,
    outbox: OutboxStatus | None = None,
    folding: FoldingStatus = FOLDING,
    journal: JournalCounts = FOLDED,
) -> HealthReport:
    return report(
        bot=bot,
        ingestion=ingestion,
        delivery=delivery,
        database=database,
        counts=counts,
        capacity=100_000,
        now=1_793_000_100.9,
        outbox=outbox,
        folding=folding,
        journal=journal,
    )


class DocumentTests(SynchronousTestCase):
    def test_the_notices_make_nothing_worse(self) -> None:
        failing = OutboxStatus("failing", 3, 1, 1_793_000_040, "delivery_failed")
        found = judged(outbox=failing)
        self.assertEqual((found.ok, found.status), (True, "ok"))
        self.assertEqual(
            found.document["outbox"],
            {"outstanding": 3, "dropped": 1, "oldest_age_s": 60, "last_failure": "delivery_failed"},
        )
        components = found.document["components"]
        assert isinstance(components, dict)
        self.assertEqual(components["outbox"], {"state": "failing"})

    def test_without_notices_nothing_is_said_of_them(self) -> None:
        self.assertNotIn("outbox", json.dumps(judged().document))

    def test_the_whole_of_it(self) -> None:
        seen = judged(
            counts=QueueCounts(pending=3, in_flight=2, dead=1, oldest_pending_at=1_793_000_090),
            delivery=DeliveryStatus(workers=4, busy=2),
            bot=Identity(123456789, "a_bot", False),
            journal=JournalCounts(pending=4, failed=1, oldest_pending_at=1_793_000_080, newest_failed=9),
        )
        self.assertEqual(
            seen,
            HealthReport(
                ok=True,
                status="ok",
                document={
                    "ok": True,
                    "status": "ok",
                    "bot_id": 123456789,
                    "bot_username": "a_bot",
                    "can_read_all_group_messages": False,
                    "components": {
                        "database": {"state": "ok"},
                        "ingestion": {
                            "mode": "poll",
                            "state": "polling",
                            "reason": None,
                            "consecutive_failures": 0,
                            "last_success_at": 1_793_000_000,
                        },
                        "delivery": {"state": "ok", "workers": 4, "busy": 2},
                        "journal": {"state": "ok"},
                    },
                    "queue": {
                        "pending": 3,
                        "in_flight": 2,
                        "dead": 1,
                        "capacity": 100_000,
                        "oldest_pending_age_s": 10,
                    },
                    "journal": {"pending": 4, "failed": 1, "oldest_pending_age_s": 20},
                },
            ),
        )
        json.dumps(seen.document)

    def test_what_is_not_known_is_null(self) -> None:
        document = judged().document
        for name in ("bot_id", "bot_username", "can_read_all_group_messages"):
            self.assertIsNone(document[name])
        queue = document["queue"]
        assert isinstance(queue, dict)
        self.assertIsNone(queue["oldest_pending_age_s"])
        self.assertEqual(document["journal"], {"pending": 0, "failed": 0, "oldest_pending_age_s": None})

    def test_no_age_below_zero_when_the_clock_was_set_back(self) -> None:
        queue = judged(counts=QueueCounts(pending=1, oldest_pending_at=1_793_009_999)).document["queue"]
        assert isinstance(queue, dict)
        self.assertEqual(queue["oldest_pending_age_s"], 0)


class StatusTests(SynchronousTestCase):
    def check(self, status: str, seen: HealthReport) -> None:
        self.assertEqual(seen.status, status)
        self.assertEqual(seen.ok, status != "unavailable")
        self.assertEqual((seen.document["status"], seen.document["ok"]), (seen.status, seen.ok))

    def test_ok(self) -> None:
        self.check("ok", judged())
        self.check("ok", judged(IngestionStatus()))
        self.check("ok", judged(evolve(POLLING, quiet_seconds=299.9)))
        self.check("ok", judged(evolve(POLLING, state="listening", mode="webhook")))

    def test_the_mode_is_shown(self) -> None:
        components = judged(IngestionStatus(state="listening", mode="webhook")).document["components"]
        assert isinstance(components, dict)
        self.assertEqual(
            components["ingestion"],
            {
                "mode": "webhook",
                "state": "listening",
                "reason": None,
                "consecutive_failures": 0,
                "last_success_at": None,
            },
        )

    def test_degraded_while_anything_is_retried(self) -> None:
        self.check("degraded", judged(evolve(POLLING, state="backing_off", reason="network")))
        self.check("degraded", judged(evolve(POLLING, consecutive_failures=4)))
        self.check("degraded", judged(evolve(POLLING, reason="capacity")))
        self.check("degraded", judged(delivery=DeliveryStatus(state="backing_off")))
        troubles: tuple[DatabaseState, ...] = ("busy", "full", "readonly", "failing")
        for database in troubles:
            self.check("degraded", judged(database=database))

    def test_degraded_while_updates_wait_to_be_folded_or_cannot_be(self) -> None:
        def waiting(seconds: int) -> JournalCounts:
            return JournalCounts(pending=1, oldest_pending_at=1_793_000_100 - seconds)

        self.check("ok", judged(journal=waiting(300)))
        self.check("degraded", judged(journal=waiting(301)))
        self.check("degraded", judged(folding=FoldingStatus("backing_off")))
        # They wait for the operator, and nothing waits for them.
        self.check("ok", judged(journal=JournalCounts(failed=5, newest_failed=7)))

    @pytest.mark.report("B11")
    def test_unavailable_when_it_does_not_pass_by_itself(self) -> None:
        self.check("unavailable", judged(evolve(POLLING, state="suspended", reason="credentials")))
        self.check("unavailable", judged(evolve(POLLING, state="stopped")))
        self.check("unavailable", judged(evolve(POLLING, state="backing_off", consecutive_failures=5)))
        self.check("unavailable", judged(evolve(POLLING, quiet_seconds=300.0)))
        self.check("unavailable", judged(delivery=DeliveryStatus(state="stopped")))
        self.check("unavailable", judged(folding=FoldingStatus(state="stopped")))
