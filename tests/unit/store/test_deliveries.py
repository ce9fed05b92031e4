"""The queue as operators and ``/health`` see it, and the port over it."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import Again, Dead, Done, QueueCounts, Slots
from telegrammer.core.notice_texts import Deaths
from telegrammer.core.notices import DeathsWanted
from telegrammer.core.problems import DeliveriesRefused, StoreBusy
from telegrammer.ports import Deliveries
from telegrammer.store import deliveries, lanes, turns
from telegrammer.store.deliveries import SqlDeliveries
from telegrammer.store.turns import QueueRules
from tests.support.delivery_queue import DeliveryQueue
from tests.support.inline_database import migrated_connection
from tests.support.plans import plan_of

OK = Done(slow=False)
REFUSED = Dead("HTTP 404", spent=False)


class QueueCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.queue = DeliveryQueue()
        self.addCleanup(self.queue.close)
        self.addCleanup(self.check_invariants)

    def check_invariants(self) -> None:
        self.assertEqual(self.queue.violations(), [])

    def bury(self, lane: int, count: int) -> list[int]:
        """The lane's next ``count`` jobs die: their ids."""
        ids = []
        for _ in range(count):
            (job,) = [job for job in self.queue.claim() if job.subscription_id == lane]
            self.queue.finish(job, REFUSED)
            ids.append(job.id)
        return ids

    def retry(self, *ids: int) -> int:
        return deliveries.retry(self.queue.cursor, ids, self.queue.now + 0.9)

    def delete(self, *ids: int) -> int:
        return deliveries.delete(self.queue.cursor, ids, self.queue.now + 0.9)

    def drain(self) -> list[bytes]:
        """Deliver all that may go now: the bodies in order."""
        bodies = []
        while claimed := self.queue.claim():
            for job in claimed:
                bodies.append(job.body)
                self.queue.finish(job, OK)
        return bodies


class RetryTests(QueueCase):
    def test_it_comes_back_in_its_place_with_a_fresh_budget(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=3)
        first, second = self.bury(lane, 2)
        self.queue.execute("UPDATE lanes SET fails = 7")
        self.assertEqual(self.retry(second, first), 2)
        self.assertEqual(self.queue.lane(lane), (1, self.queue.now, 0, 0))
        (job,) = self.queue.claim()
        self.assertEqual((job.id, job.attempt, job.carried), (first, 1, 0))
        self.queue.finish(job, OK)
        self.assertEqual(self.drain(), [b'{"n":2}', b'{"n":3}'])

    def test_ahead_of_a_job_that_waits(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        (dead,) = self.bury(lane, 1)
        (waiting,) = self.queue.claim()
        due = self.queue.now + 60
        self.queue.finish(waiting, Again(due, "HTTP 503"))
        self.retry(dead)
        self.assertEqual(self.queue.lane(lane), (1, self.queue.now, 1, 0))
        self.assertEqual(self.drain(), [b'{"n":1}'])
        # What waited still does.
        self.assertEqual(self.queue.lane(lane), (2, due, 0, 0))

    def test_not_ahead_of_a_job_in_flight(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=3)
        (dead,) = self.bury(lane, 1)
        (flying,) = self.queue.claim()
        self.retry(dead)
        self.assertEqual(self.queue.claim(), [])
        turn = self.queue.turn([(flying, OK)])
        self.assertEqual([job.body for job in turn.claimed], [b'{"n":1}'])
        self.queue.finish(turn.claimed[0], OK)
        self.assertEqual(self.drain(), [b'{"n":3}'])

    def test_what_the_job_in_flight_becomes_does_not_hold_it_up(self) -> None:
        for verdict in (Again(2_000_000, "x"), REFUSED, Dead("x", spent=True, due=1_000_000)):
            lane = self.queue.subscribe(chat_id=5)
            self.queue.ingest(5, count=2)
            (dead,) = self.bury(lane, 1)
            (flying,) = self.queue.claim()
            self.retry(dead)
            turn = self.queue.turn([(flying, verdict)])
            self.assertEqual([job.id for job in turn.claimed], [dead], str(verdict))
            self.check_invariants()
            self.queue.execute("DELETE FROM subscriptions")

    def test_a_spent_job_in_flight_makes_the_lane_wait_all_the_same(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        (dead,) = self.bury(lane, 1)
        (flying,) = self.queue.claim()
        self.retry(dead)
        self.queue.finish(flying, Dead("x", spent=True, due=self.queue.now + 2))
        self.assertEqual(self.queue.lane(lane), (1, self.queue.now + 2, 1, 1))

    def test_a_waiting_job_may_go_now(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        (job,) = self.queue.claim()
        self.queue.finish(job, Again(self.queue.now + 300, "HTTP 503"))
        self.retry(job.id)
        self.assertEqual(self.queue.lane(lane), (1, self.queue.now, 1, 0))
        (again,) = self.queue.claim()
        self.assertEqual((again.id, again.attempt), (job.id, 1))

    def test_one_behind_its_head_only_gets_its_budget(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        (job,) = self.queue.claim()
        self.queue.finish(job, Again(self.queue.now + 300, "HTTP 503"))
        self.retry(self.queue.id_of(lane, 2))
        self.assertEqual(self.queue.lane(lane), (1, self.queue.now + 300, 1, 0))

    def test_into_an_empty_lane(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest()
        (dead,) = self.bury(lane, 1)
        self.assertEqual(self.queue.lane(lane), (None, None, 0, 0))
        self.retry(dead)
        self.assertEqual(self.drain(), [b'{"n":1}'])

    def test_all_or_nothing(self) -> None:
        lane, other = self.queue.subscribe(), self.queue.subscribe()
        self.queue.ingest(count=2)
        claimed = self.queue.claim()
        dead, flying = [job for job in claimed if job.subscription_id == lane] + [
            job for job in claimed if job.subscription_id == other
        ]
        self.queue.finish(dead, REFUSED)
        with self.assertRaises(DeliveriesRefused) as caught:
            self.retry(dead.id, 77, flying.id, 2**70, -1)
        self.assertEqual(caught.exception.unknown, (-1, 77, 2**70))
        self.assertEqual(caught.exception.in_flight, (flying.id,))
        self.assertEqual(str(caught.exception), f"no such delivery: -1, 77, {2**70}; in flight: {flying.id}")
        self.assertEqual(self.queue.states(lane)[1], "DEAD")

    def test_many_offenders_are_not_all_named(self) -> None:
        with self.assertRaises(DeliveriesRefused) as caught:
            self.retry(*range(1, 30))
        self.assertTrue(str(caught.exception).endswith("19, 20, …"))

    def test_the_same_id_twice_counts_once(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest()
        (dead,) = self.bury(lane, 1)
        self.assertEqual(self.retry(dead, dead), 1)

    @pytest.mark.report("H9")
    def test_all(self) -> None:
        one, two = self.queue.subscribe(chat_id=1), self.queue.subscribe(chat_id=2)
        self.queue.ingest(1, 2)
        self.bury(one, 2)
        self.queue.ingest(2, 2)
        self.bury(two, 2)
        self.assertEqual(deliveries.retry_all(self.queue.cursor, self.queue.now, subscription=two), 2)
        self.assertEqual(set(self.queue.states(one).values()), {"DEAD"})
        self.assertEqual(set(self.queue.states(two).values()), {"PENDING"})
        self.assertEqual(deliveries.retry_all(self.queue.cursor, self.queue.now), 2)
        self.assertEqual(deliveries.dead_jobs(self.queue.cursor), [])
        self.assertEqual(deliveries.retry_all(self.queue.cursor, self.queue.now), 0)


class DeleteTests(QueueCase):
    def test_a_dead_one(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        (dead,) = self.bury(lane, 1)
        self.assertEqual(self.delete(dead), 1)
        self.assertEqual(self.queue.states(lane), {2: "PENDING"})
        self.assertEqual(self.queue.number("SELECT COUNT(*) FROM payloads"), 1)

    def test_a_waiting_head_makes_way(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        (job,) = self.queue.claim()
        self.queue.finish(job, Again(self.queue.now + 300, "HTTP 503"))
        self.delete(job.id)
        self.assertEqual(self.queue.lane(lane), (2, self.queue.now, 1, 1))

    def test_one_behind_the_head(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=3)
        self.delete(self.queue.id_of(lane, 2))
        self.assertEqual(self.drain(), [b'{"n":1}', b'{"n":3}'])

    def test_the_last_one(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest()
        self.delete(self.queue.id_of(lane, 1))
        self.assertEqual(self.queue.lane(lane), (None, None, 0, 0))

    def test_what_comes_after_the_last_one_waits_for_nothing(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest()
        (job,) = self.queue.claim()
        self.queue.finish(job, Again(self.queue.now + 300, "HTTP 503"))
        self.delete(job.id)
        self.queue.ingest()
        self.assertEqual(self.queue.lane(lane), (2, self.queue.now, 1, 1))

    def test_while_in_flight_the_lane_waits_for_its_post(self) -> None:
        for verdict in (OK, REFUSED, Again(2_000_000, "x")):
            lane = self.queue.subscribe(chat_id=5)
            first, second = self.queue.ingest(5, count=2)
            (job,) = self.queue.claim()
            self.delete(job.id)
            self.assertEqual(self.queue.lane(lane)[:2], (second, None))
            self.assertEqual(self.queue.claim(), [])
            turn = self.queue.turn([(job, verdict)])
            self.assertEqual([each.body for each in turn.claimed], [b'{"n":%d}' % second])
            self.queue.execute("DELETE FROM subscriptions")

    def test_while_in_flight_behind_one_that_was_put_back(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        (dead,) = self.bury(lane, 1)
        (flying,) = self.queue.claim()
        self.retry(dead)
        self.delete(flying.id)
        self.assertEqual(self.queue.lane(lane)[:2], (1, None))
        self.queue.finish(flying, OK)
        self.assertEqual(self.drain(), [b'{"n":1}'])

    def test_a_returning_post_does_not_disturb_another_in_flight(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest()
        (gone,) = self.queue.claim()
        self.delete(gone.id)
        self.queue.ingest(count=2)
        (flying,) = self.queue.claim()
        self.queue.finish(gone, OK)
        self.assertEqual(self.queue.claim(), [])
        self.queue.finish(flying, OK)
        self.assertEqual(self.queue.lane(lane)[0], 3)

    def test_all_or_nothing(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest()
        job_id = self.queue.id_of(lane, 1)
        with self.assertRaises(DeliveriesRefused) as caught:
            self.delete(job_id, 99)
        self.assertEqual(caught.exception.unknown, (99,))
        self.assertEqual(self.queue.states(lane), {1: "PENDING"})

    def test_a_retired_subscription_goes_with_its_last_job(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest()
        self.queue.execute("UPDATE subscriptions SET retired = 1")
        self.delete(self.queue.id_of(lane, 1))
        self.assertEqual(self.queue.execute("SELECT id FROM subscriptions"), [])


class ListingTests(QueueCase):
    def test_filters(self) -> None:
        one, two = self.queue.subscribe(chat_id=1, key_id=1), self.queue.subscribe(chat_id=2, key_id=2)
        self.queue.ingest(1, 2)
        self.bury(one, 2)
        self.queue.ingest(2)
        self.bury(two, 1)
        cursor = self.queue.cursor
        self.assertEqual([job.update_id for job in deliveries.dead_jobs(cursor)], [1, 2, 3])
        self.assertEqual([job.update_id for job in deliveries.dead_jobs(cursor, subscription=one)], [1, 2])
        self.assertEqual([job.update_id for job in deliveries.dead_jobs(cursor, key=2)], [3])
        self.assertEqual(deliveries.dead_jobs(cursor, subscription=one, key=2), [])


class CountTests(QueueCase):
    def counts(self) -> QueueCounts:
        return deliveries.counts(self.queue.cursor)

    def test_states(self) -> None:
        self.assertEqual(self.counts(), QueueCounts())
        lane = self.queue.subscribe()
        self.queue.ingest(count=4)
        self.bury(lane, 1)
        self.queue.claim()
        self.assertEqual(
            self.counts(), QueueCounts(pending=2, in_flight=1, dead=1, oldest_pending_at=1_000_000)
        )

    def test_the_oldest_pending(self) -> None:
        lane = self.queue.subscribe(chat_id=1)
        self.queue.ingest(1)
        self.queue.now += 10
        self.queue.ingest(1)
        self.queue.now += 10
        self.queue.subscribe(chat_id=2)
        self.queue.ingest(2)
        self.assertEqual(self.counts().oldest_pending_at, 1_000_000)
        (job, _) = self.queue.claim()
        self.assertEqual(job.subscription_id, lane)
        self.assertEqual(self.counts().oldest_pending_at, 1_000_010)
        self.queue.finish(job, OK)
        self.queue.claim()
        self.assertEqual(self.counts(), QueueCounts(in_flight=2))


class ClockTests(QueueCase):
    def setUp(self) -> None:
        super().setUp()
        self.waiting, self.other = self.queue.subscribe(chat_id=1), self.queue.subscribe(chat_id=2)
        self.queue.ingest(1)
        (job,) = self.queue.claim()
        self.queue.finish(job, Again(self.queue.now + 60, "x"))

    def shift(self, seconds: int) -> None:
        self.queue.now += seconds
        deliveries.shift_times(self.queue.cursor, seconds, self.queue.now)

    def times(self) -> tuple[object, ...]:
        return self.queue.execute("SELECT first_attempt_at, next_attempt_at FROM deliveries")[0]

    def test_set_back(self) -> None:
        self.shift(-3600)
        self.assertEqual(self.queue.lane(self.waiting)[1], self.queue.now + 60)
        self.assertEqual(self.times(), (self.queue.now, self.queue.now + 60))

    def test_set_forward(self) -> None:
        self.shift(86_400 * 2)
        self.assertEqual(self.queue.lane(self.waiting)[1], self.queue.now + 60)
        self.assertEqual(self.times(), (self.queue.now, self.queue.now + 60))
        self.assertEqual(self.queue.claim(), [])

    def test_the_back_off_of_an_empty_lane_moves_too(self) -> None:
        self.queue.now += 60
        (job,) = self.queue.claim()
        self.queue.finish(job, Dead("x", spent=True, due=self.queue.now + 4))
        self.shift(3600)
        self.queue.ingest(1)
        self.assertEqual(self.queue.lane(self.waiting)[1:], (self.queue.now + 4, 1, 2))

    def test_what_came_after_a_jump_forward_is_not_moved(self) -> None:
        self.queue.now += 3600
        self.queue.ingest(2)
        self.queue.now -= 3600
        self.shift(3600)
        self.assertEqual([job.subscription_id for job in self.queue.claim()], [self.other])

    def test_the_dead_keep_their_dates(self) -> None:
        self.queue.now += 60
        (dead,) = self.bury(self.waiting, 1)
        died_at = self.queue.now
        self.shift(500)
        self.assertEqual([job.died_at for job in deliveries.dead_jobs(self.queue.cursor)], [died_at])


class PortTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.queue = DeliveryQueue()
        self.addCleanup(self.queue.close)
        self.port = SqlDeliveries(
            self.queue.database, lambda: self.queue.now + 0.5, QueueRules(attempts=3), dead_retention=100
        )

    def test_a_turn(self) -> None:
        port: Deliveries = self.port
        self.queue.subscribe()
        self.queue.ingest()
        turn = self.successResultOf(Deferred.fromCoroutine(self.awaited(port)))
        self.assertEqual(turn, 1)
        self.assertEqual(self.queue.database.urgent, [False])
        self.assertEqual(self.successResultOf(self.port.counts()), QueueCounts(in_flight=1))
        self.assertEqual(self.queue.database.pools, ["requests"])

    async def awaited(self, port: Deliveries) -> int:
        return len((await port.turn((), Slots(4, 2), lambda: self.queue.now)).claimed)

    def test_a_turn_that_fails_changes_nothing(self) -> None:
        self.queue.subscribe()
        self.queue.ingest()
        self.queue.database.trouble = StoreBusy("locked")
        self.failureResultOf(self.port.turn((), Slots(4, 2), lambda: self.queue.now), StoreBusy)
        self.queue.database.trouble = None
        self.assertEqual(self.successResultOf(self.port.counts()).pending, 1)

    def test_deaths_that_are_news(self) -> None:
        lanes = [self.queue.subscribe() for _ in range(3)]
        self.queue.ingest(count=6)
        self.queue.execute(
            "UPDATE deliveries"
            " SET state = 'DEAD', died_at = update_id - ?, last_error = 'HTTP ' || (update_id & 1)",
            self.queue.number("SELECT MIN(update_id) FROM deliveries"),
        )
        self.queue.execute("UPDATE deliveries SET last_error = NULL WHERE died_at = 5")
        wanted = DeathsWanted(1, 5, {lanes[0]: 3, lanes[1]: 5, lanes[2]: -1, 9999: 0})
        self.assertEqual(
            [(each.subscription_id, each.count, each.last_at) for each in self.deaths(wanted)],
            [(lanes[0], 1, 4), (lanes[2], 2, 3), (lanes[2], 3, 4)],
        )
        self.assertEqual(sum(each.count for each in self.deaths(DeathsWanted(1, 5, {}))), 9)
        self.assertEqual(sum(each.count for each in self.deaths(DeathsWanted(-1, 6, {}))), 18)
        self.assertIn("", {each.reason for each in self.deaths(DeathsWanted(4, 6, {}))})
        self.assertEqual(set(self.queue.database.pools), {"requests"})

    def deaths(self, wanted: DeathsWanted) -> list[Deaths]:
        found: list[Deaths] = self.successResultOf(self.port.deaths(wanted))
        return sorted(found, key=lambda each: (each.subscription_id, each.last_at))

    def test_purge(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=1200)
        self.queue.execute(
            "UPDATE deliveries SET state = 'DEAD', died_at = ? WHERE update_id < 1100", 1_000_000
        )
        self.queue.execute(
            "UPDATE deliveries SET state = 'DEAD', died_at = ? WHERE update_id >= 1100", 1_000_001
        )
        self.queue.recover()
        self.queue.now += 99
        self.assertEqual(self.purged(), 0)
        self.queue.now += 1
        self.assertEqual(self.purged(), 1099)
        self.assertEqual(self.queue.number("SELECT COUNT(*) FROM payloads"), 101)
        self.queue.execute("UPDATE subscriptions SET retired = 1")
        self.queue.now += 1
        self.assertEqual(self.purged(), 101)
        self.assertEqual(self.queue.execute("SELECT * FROM subscriptions WHERE id = ?", lane), [])

    def test_purge_beyond_the_limits(self) -> None:
        self.port = SqlDeliveries(
            self.queue.database, lambda: self.queue.now + 0.5, QueueRules(attempts=3, max_dead_per_key=2)
        )
        self.queue.subscribe()
        self.queue.ingest(count=5)
        self.queue.execute("UPDATE deliveries SET state = 'DEAD', died_at = update_id")
        self.queue.now = 10
        self.assertEqual(self.purged(), 3)
        self.assertEqual([job.update_id for job in deliveries.dead_jobs(self.queue.cursor)], [4, 5])

    def purged(self) -> int:
        return self.successResultOf(Deferred.fromCoroutine(self.port.purge_dead()))

    def test_shift(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest()
        (job,) = self.queue.claim()
        self.queue.finish(job, Again(self.queue.now + 5, "x"))
        self.queue.now -= 3600
        self.successResultOf(self.port.shift_times(-3600))
        self.assertEqual(self.queue.lane(lane)[1], self.queue.now + 5)


class PlanTests(SynchronousTestCase):
    """No hot statement may walk a table, or sort: the planner has one way, whatever ANALYZE says."""

    def setUp(self) -> None:
        self.connection = migrated_connection()
        self.addCleanup(self.connection.close)

    def plan(self, sql: str) -> list[str]:
        rows = self.connection.execute(f"EXPLAIN QUERY PLAN {sql}", [1] * sql.count("?"))
        return [row[3] for row in rows.fetchall()]

    def test_deaths_are_searched_by_their_time(self) -> None:
        steps = plan_of(self.connection, deliveries.DEATHS)
        self.assertTrue(
            any("deliveries_dead (died_at>? AND died_at<?)" in step for step in steps), "\n".join(steps)
        )

    def test_hot_statements_search(self) -> None:
        by_id = "INTEGER PRIMARY KEY (rowid=?)"
        for sql, way in [
            (lanes.READY, "lanes_ready (sick=? AND next_due<?)"),
            (lanes.EARLIEST, "lanes_ready (sick=? AND next_due>?)"),
            (lanes.SUCCESSOR, "(subscription_id=? AND (epoch,update_id)>(?,?))"),
            (lanes.HEAD, by_id),
            (lanes.SETTLED, by_id),
            (lanes.SETTLED_BEHIND, by_id),
            (lanes.HOLD, by_id),
            (lanes.PLACE, by_id),
            (lanes.FORGIVE, by_id),
            (turns.COMPLETE, by_id),
            (turns.POSTPONE, by_id),
            (turns.BURY, by_id),
            (turns.BURY_UNSENT, by_id),
            (turns.CLAIM, by_id),
            (turns.PROSPECT, by_id),
            (turns.DEAD_OF_KEY, "COVERING INDEX deliveries_dead_key (key_id=?)"),
            (deliveries.JOB, by_id),
            (deliveries.REVIVE, by_id),
        ]:
            for analyzed in (False, True):
                if analyzed:
                    self.fill_and_analyze()
                plan = self.plan(sql)
                self.assertTrue(plan[0].startswith("SEARCH ") and plan[0].endswith(way), f"{plan} {sql}")
                for step in plan:
                    self.assertNotIn("SCAN", step, sql)
                    self.assertNotIn("TEMP B-TREE", step, sql)

    def test_walks_see_only_the_rows_of_a_partial_index(self) -> None:
        for sql, ways in [
            (lanes.IN_FLIGHT, ["deliveries_in_flight"]),
            (deliveries.IN_FLIGHT, ["deliveries_in_flight"]),
            (turns.DEAD_IN_ALL, ["COVERING INDEX deliveries_dead"]),
            (lanes.DROP_DRAINED, ["subscriptions_retired", "subscription_id=?"]),
            (turns.EVICT, ["rowid=?", "COVERING INDEX deliveries_dead"]),
            (turns.EVICT_OF_KEY, ["rowid=?", "COVERING INDEX deliveries_dead_key (key_id=?)"]),
            (deliveries.PURGE, ["rowid=?", "COVERING INDEX deliveries_dead (died_at<?)"]),
        ]:
            plan = " | ".join(self.plan(sql))
            for way in ways:
                self.assertIn(way, plan)
            self.assertNotIn("ORDER BY", plan)

    def test_the_oldest_pending_is_found_from_the_lanes(self) -> None:
        plan = " | ".join(self.plan(deliveries.OLDEST_PENDING))
        self.assertIn("SCAN l | SEARCH d USING INTEGER PRIMARY KEY (rowid=?)", plan)
        self.assertIn("SCAN f USING INDEX deliveries_in_flight", plan)
        self.assertIn("SEARCH n USING INDEX", plan)

    def fill_and_analyze(self) -> None:
        queue = DeliveryQueue()
        self.addCleanup(queue.close)
        for chat in range(5):
            queue.subscribe(chat_id=chat)
            queue.ingest(chat, 20)
        queue.execute("UPDATE deliveries SET state = 'DEAD', died_at = 1 WHERE update_id % 2")
        queue.execute("ANALYZE")
        self.connection = queue.database.connection
