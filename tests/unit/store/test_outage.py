"""What an outage of a receiver costs, by the real queue and the real rules, on a clock that is set."""

from __future__ import annotations

import pytest
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import Again, Answered, Dead, Done, Unanswered, settle
from telegrammer.core.retry import PATIENT, Schedule
from telegrammer.store.turns import QueueRules
from tests.support.delivery_queue import DeliveryQueue


class OutageTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.queue = DeliveryQueue()
        self.addCleanup(self.queue.close)

    def survivors(self, schedule: Schedule, messages: int, outage: int, jitter: float) -> list[int]:
        """The updates delivered, in order, of a lane whose receiver refuses connections for so long."""
        queue = self.queue
        queue.rules = QueueRules(attempts=schedule.attempts)
        lane = queue.subscribe()
        queue.ingest(count=messages)
        works_at = queue.now + outage
        delivered: list[int] = []
        posts = 0
        while True:
            claimed = queue.claim()
            if not claimed:
                (_, due, _, _) = queue.lane(lane)
                if not isinstance(due, int):
                    break
                self.assertGreater(due, queue.now)
                queue.now = due
                continue
            (job,) = claimed
            posts += 1
            result = Unanswered("connection refused") if queue.now < works_at else Answered(200)
            verdict = settle(job, result, took=0.0, now=queue.now, jitter=jitter, schedule=schedule)
            self.assertIsInstance(verdict, Done if queue.now >= works_at else Again | Dead)
            if queue.now >= works_at:
                delivered.append(int(job.delivery_id.rpartition("-")[2]))
            queue.finish(job, verdict)
            self.assertEqual(queue.violations(), [])
        dead = queue.number("SELECT count(*) FROM deliveries WHERE state = 'DEAD'")
        self.assertEqual(dead + len(delivered), messages, "one is neither delivered nor listed")
        self.assertLess(posts, messages + schedule.attempts * (dead + 1) + 1)
        return delivered

    @pytest.mark.report("H9")
    def test_ten_minutes_cost_one_message_by_the_default_schedule(self) -> None:
        """The first spends its budget; the back-off that it leaves behind outlasts the rest."""
        self.assertEqual(self.survivors(Schedule(), 10, 600, 0.125), list(range(2, 11)))

    @pytest.mark.report("H9")
    def test_an_hour_costs_two(self) -> None:
        self.assertEqual(self.survivors(Schedule(), 60, 3600, 0.125), list(range(3, 61)))

    @pytest.mark.report("H9")
    def test_a_night_costs_none_by_the_patient_schedule(self) -> None:
        self.assertEqual(self.survivors(PATIENT, 10, 12 * 3600, 0.125), list(range(1, 11)))
