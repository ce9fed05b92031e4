"""A start after anything: in flight again, clock set back, lanes that contradict the jobs."""

from __future__ import annotations

import pytest
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import Again, Done
from telegrammer.store import deliveries
from telegrammer.store.recovery import Recovered, violations
from tests.support.delivery_queue import DeliveryQueue


class RecoveryTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.queue = DeliveryQueue()
        self.addCleanup(self.queue.close)

    def recover(self) -> Recovered:
        recovered = self.queue.recover()
        self.assertEqual(self.queue.violations(), [])
        return recovered

    def test_an_empty_queue(self) -> None:
        self.assertEqual(self.recover(), Recovered())

    @pytest.mark.report("H5")
    def test_jobs_in_flight_go_again_at_once_and_keep_their_attempts(self) -> None:
        self.queue.subscribe()
        self.queue.subscribe()
        self.queue.ingest(count=2)
        before = self.queue.claim()
        self.queue.now += 5
        self.assertEqual(self.recover(), Recovered(requeued=2))
        after = self.queue.claim()
        self.assertEqual([job.id for job in after], [job.id for job in before])
        self.assertEqual([job.delivery_id for job in after], [job.delivery_id for job in before])
        self.assertEqual([(job.attempt, job.first_attempt_at) for job in after], [(2, 1_000_000)] * 2)

    def test_a_lane_whose_attempt_was_cut_off_is_sick(self) -> None:
        suspect, other = self.queue.subscribe(), self.queue.subscribe()
        self.queue.ingest()
        (job, _) = self.queue.claim()
        self.assertEqual(job.subscription_id, suspect)
        self.queue.execute("UPDATE deliveries SET state = 'PENDING' WHERE subscription_id = ?", other)
        self.recover()
        self.assertEqual([self.queue.lane(lane)[2:] for lane in (suspect, other)], [(1, 0), (0, 0)])

    @pytest.mark.report("H2")
    def test_a_lane_that_was_well_goes_before_those_that_were_sick(self) -> None:
        """Cut off amid its attempt, beside one that hung as long and one that waits for a turn."""
        hung, waits, well = (self.queue.subscribe() for _ in range(3))
        self.queue.ingest()
        for job in self.queue.claim():
            self.queue.finish(job, Done(slow=job.subscription_id != well))
        self.queue.ingest()
        self.queue.now += 5
        self.queue.execute("UPDATE lanes SET next_due = next_due + 1 WHERE subscription_id = ?", waits)
        claimed = self.queue.turn(free=2, free_sick=1).claimed
        self.assertEqual([job.subscription_id for job in claimed], [well, hung])
        self.queue.now += 5
        self.assertEqual(self.recover(), Recovered(requeued=2))
        self.assertEqual([self.queue.lane(lane)[2] for lane in (hung, waits, well)], [1, 1, 1])
        claimed = self.queue.turn(free=4, free_sick=2).claimed
        self.assertEqual([job.subscription_id for job in claimed], [well, waits])

    @pytest.mark.report("H5")
    def test_attempts_are_never_exceeded(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        for attempt in (1, 2, 3):
            self.assertEqual([job.attempt for job in self.queue.claim()], [attempt])
            self.recover()
        self.assertEqual([job.body for job in self.queue.claim()], [b'{"n":2}'])
        self.assertEqual(self.queue.states(lane), {1: "DEAD", 2: "IN_FLIGHT"})

    def test_a_wait_and_health_survive(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest()
        (job,) = self.queue.claim()
        self.queue.finish(job, Again(self.queue.now + 60, "x"))
        self.queue.now += 10
        self.assertEqual(self.recover(), Recovered())
        self.assertEqual(self.queue.lane(lane), (1, 1_000_060, 1, 1))

    def test_a_lane_whose_job_was_removed_in_flight_goes_on(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        (job,) = self.queue.claim()
        deliveries.delete(self.queue.cursor, [job.id], self.queue.now)
        self.assertEqual(self.recover(), Recovered())
        self.assertEqual(self.queue.lane(lane)[:2], (2, self.queue.now))

    def test_one_put_back_before_a_job_in_flight_leads(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        (first,) = self.queue.claim()
        self.queue.execute("UPDATE deliveries SET state = 'DEAD', died_at = 1 WHERE id = ?", first.id)
        self.queue.recover()
        self.queue.claim()
        deliveries.retry(self.queue.cursor, [first.id], self.queue.now)
        self.assertEqual(self.recover(), Recovered(requeued=1))
        self.assertEqual(self.queue.lane(lane)[:2], (1, 0))
        self.assertEqual([job.id for job in self.queue.claim()], [first.id])

    def test_a_clock_set_back_lengthens_no_wait(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        (job,) = self.queue.claim()
        self.queue.finish(job, Again(self.queue.now + 60, "x"))
        self.queue.now -= 86_400
        self.assertEqual(self.recover(), Recovered(shifted=1))
        self.assertEqual(self.queue.lane(lane)[1], self.queue.now + 60)
        self.assertEqual(
            self.queue.execute(
                "SELECT first_attempt_at, next_attempt_at FROM deliveries WHERE id = ?", job.id
            ),
            [(self.queue.now, self.queue.now + 60)],
        )
        # The one behind it waits for its turn only.
        self.queue.now += 60
        (job,) = self.queue.claim()
        turn = self.queue.turn([(job, Done(slow=False))])
        self.assertEqual([job.body for job in turn.claimed], [b'{"n":2}'])

    def test_a_clock_set_back_lengthens_no_life_of_a_job_that_was_cut_off(self) -> None:
        self.queue.subscribe()
        self.queue.ingest()
        self.queue.claim()
        self.queue.now -= 86_400
        self.assertEqual(self.recover(), Recovered(requeued=1, shifted=1))
        self.assertEqual([job.first_attempt_at for job in self.queue.claim()], [self.queue.now])

    def test_a_retired_subscription_without_jobs_goes(self) -> None:
        self.queue.subscribe()
        self.queue.execute("UPDATE subscriptions SET retired = 1")
        self.recover()
        self.assertEqual(self.queue.execute("SELECT id FROM subscriptions"), [])

    def test_broken_lanes_are_rebuilt_from_the_jobs(self) -> None:
        for what, damage in [
            ("subscriptions without a lane: 1", "DELETE FROM lanes"),
            (
                "lanes whose head is not their oldest job: 1",
                "UPDATE lanes SET head_id = NULL, next_due = NULL",
            ),
            ("lanes whose head is not their oldest job: 1", "UPDATE lanes SET head_id = head_id + 1"),
            ("payloads with a wrong count of jobs: 2", "UPDATE payloads SET refs = 7"),
            (
                "payloads with a wrong count of jobs: 1",
                "INSERT INTO payloads(epoch, update_id, body, refs) VALUES (9, 9, x'', 1)",
            ),
        ]:
            queue = self.queue = DeliveryQueue()
            self.addCleanup(queue.close)
            lane = queue.subscribe()
            queue.ingest(count=2)
            (job,) = queue.claim()
            queue.finish(job, Again(queue.now + 60, "x"))
            queue.execute(damage)
            self.assertEqual(violations(queue.cursor), [what], damage)
            self.assertEqual(self.recover(), Recovered(rebuilt=True), damage)
            self.assertEqual(queue.lane(lane)[:2], (1, queue.now + 60))
            self.assertEqual(queue.execute("SELECT SUM(refs), COUNT(*) FROM payloads"), [(2, 2)])

    def test_what_only_a_running_queue_can_break(self) -> None:
        self.queue.subscribe()
        self.queue.ingest(count=2)
        self.queue.execute("UPDATE deliveries SET state = 'IN_FLIGHT'")
        self.assertEqual(
            self.queue.violations(),
            ["lanes that are due while a job is in flight: 1", "lanes with two jobs in flight: 1"],
        )
        self.queue.execute("DELETE FROM deliveries")
        self.assertEqual(
            self.queue.violations(),
            ["lanes whose head is not their oldest job: 1"],
        )
        self.queue.execute("UPDATE lanes SET head_id = NULL")
        self.assertEqual(self.queue.violations(), ["empty lanes that are due: 1"])
        self.recover()
