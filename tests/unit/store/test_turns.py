"""Turns: what is written for a result, who is claimed next, and that no one else may hold it up."""

from __future__ import annotations

import pytest
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import Again, Claimed, Dead, Done, Verdict
from telegrammer.store import deliveries
from telegrammer.store.turns import QueueRules
from tests.support.delivery_queue import DeliveryQueue

OK = Done(slow=False)
REFUSED = Dead("HTTP 404", spent=False)


class TurnCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.queue = DeliveryQueue()
        self.addCleanup(self.queue.close)
        self.addCleanup(self.check_invariants)

    def check_invariants(self) -> None:
        self.assertEqual(self.queue.violations(), [])


class ClaimTests(TurnCase):
    def test_a_claim_has_all_a_post_needs(self) -> None:
        lane = self.queue.subscribe(url="http://h/x?secret")
        self.queue.ingest()
        (job,) = self.queue.claim()
        self.assertEqual(
            job,
            Claimed(
                id=job.id,
                subscription_id=lane,
                url="http://h/x?secret",
                body=b'{"n":1}',
                delivery_id=f"123456789-{lane}-0-1",
                attempt=1,
                first_attempt_at=1_000_000,
                carried=0,
                sick=False,
            ),
        )
        self.assertEqual(self.queue.states(lane), {1: "IN_FLIGHT"})

    def test_one_in_flight_a_lane_in_order(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=3)
        bodies = []
        while claimed := self.queue.claim():
            self.assertEqual(len(claimed), 1)
            self.assertEqual(self.queue.claim(), [])
            bodies.append(claimed[0].body)
            self.queue.finish(claimed[0], OK)
        self.assertEqual(bodies, [b'{"n":1}', b'{"n":2}', b'{"n":3}'])
        self.assertEqual(self.queue.lane(lane), (None, None, 0, 0))

    def test_the_epoch_comes_before_the_update_id(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        self.queue.execute("UPDATE deliveries SET epoch = 1 WHERE update_id = 1")
        self.queue.recover()
        claims = []
        while claimed := self.queue.claim():
            claims.append(claimed[0].delivery_id)
            self.queue.finish(claimed[0], OK)
        self.assertEqual(claims, [f"123456789-{lane}-0-2", f"123456789-{lane}-1-1"])

    def test_lanes_are_served_round_robin(self) -> None:
        lanes = [self.queue.subscribe() for _ in range(5)]
        self.queue.ingest(count=4)
        claims: list[int] = []
        finished: list[tuple[Claimed, Done]] = []
        while turn := self.queue.turn(finished, free=2).claimed:
            claims += [job.subscription_id for job in turn]
            finished = [(job, OK) for job in turn]
        self.assertEqual(claims, lanes * 4)

    def test_a_burst_into_one_lane_does_not_push_the_others_back(self) -> None:
        busy, quiet = self.queue.subscribe(chat_id=1), self.queue.subscribe(chat_id=2)
        self.queue.ingest(1, count=100)
        (job,) = self.queue.claim()
        self.queue.now += 1
        self.queue.ingest(2)
        turn = self.queue.turn([(job, OK)], free=1)
        self.assertEqual([each.subscription_id for each in turn.claimed], [quiet])
        self.assertEqual(self.queue.lane(busy)[0], 2)

    def test_without_a_bot_nothing_is_claimed(self) -> None:
        self.queue.subscribe()
        self.queue.ingest()
        self.queue.execute("UPDATE gateway SET bot_id = NULL")
        self.assertEqual(self.queue.claim(), [])

    def test_without_slots_nothing_is_claimed(self) -> None:
        self.queue.subscribe()
        self.queue.ingest()
        self.assertEqual(self.queue.claim(0), [])

    def test_the_budget_is_checked_before_an_attempt(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        self.queue.execute(
            "UPDATE deliveries SET attempt_count = 3, last_error = 'HTTP 503' WHERE update_id = 1"
        )
        turn = self.queue.turn()
        self.assertEqual([job.body for job in turn.claimed], [b'{"n":2}'])
        self.assertEqual(turn.buried, 1)
        self.assertEqual(self.queue.states(lane), {1: "DEAD", 2: "IN_FLIGHT"})
        self.assertEqual(
            [job.reason for job in deliveries.dead_jobs(self.queue.cursor)], ["no attempts left (HTTP 503)"]
        )

    def test_a_budget_spent_before_a_crash_leaves_its_wait_to_the_successor(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        self.queue.execute("UPDATE deliveries SET attempt_count = 3 WHERE update_id = 1")
        self.queue.execute("UPDATE lanes SET fails = 4, sick = 1")
        turn = self.queue.turn()
        self.assertEqual((turn.claimed, turn.next_due), ((), self.queue.now + 16))
        self.assertEqual(self.queue.lane(lane), (2, self.queue.now + 16, 1, 4))

    def test_so_does_the_last_of_a_lane_to_what_comes_later(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest()
        self.queue.execute("UPDATE deliveries SET attempt_count = 3")
        self.queue.execute("UPDATE lanes SET fails = 4, sick = 1")
        self.assertEqual(self.queue.turn().buried, 1)
        self.queue.now += 6
        self.queue.ingest()
        self.assertEqual(self.queue.lane(lane), (2, self.queue.now + 10, 1, 4))

    def test_damage_costs_one_job_and_not_the_lane(self) -> None:
        for damage, reason in [
            ("UPDATE payloads SET body = x'7B22FF7D' WHERE update_id = 1", "payload is damaged"),
            ("UPDATE payloads SET body = x'' WHERE update_id = 1", "payload is damaged"),
            ("UPDATE payloads SET body = 'rubbish' WHERE update_id = 1", "payload is damaged"),
            ("UPDATE payloads SET body = CAST(x'FF' AS TEXT) WHERE update_id = 1", "payload is damaged"),
            ("UPDATE deliveries SET payload_id = 99 WHERE update_id = 1", "payload is damaged"),
        ]:
            queue = DeliveryQueue()
            self.addCleanup(queue.close)
            lane = queue.subscribe()
            queue.ingest(count=2)
            queue.execute(damage)
            self.assertEqual([job.body for job in queue.claim()], [b'{"n":2}'], damage)
            self.assertEqual(queue.states(lane), {1: "DEAD", 2: "IN_FLIGHT"}, damage)
            self.assertEqual([job.reason for job in deliveries.dead_jobs(queue.cursor)], [reason], damage)

    def test_a_url_that_is_no_text_kills_its_jobs_only(self) -> None:
        lane, other = self.queue.subscribe(), self.queue.subscribe()
        self.queue.ingest(count=2)
        self.queue.execute("UPDATE subscriptions SET callback_url = CAST(x'68FF' AS TEXT) WHERE id = ?", lane)
        turn = self.queue.turn()
        self.assertEqual([job.subscription_id for job in turn.claimed], [other])
        self.assertEqual(turn.buried, 2)
        self.assertEqual(self.queue.states(lane), {1: "DEAD", 2: "DEAD"})

    def test_a_thousand_unfit_jobs_are_buried_in_portions(self) -> None:
        self.queue.subscribe()
        self.queue.ingest(count=1200)
        self.queue.execute("UPDATE payloads SET body = x'00'")
        turns = [self.queue.turn(), self.queue.turn(), self.queue.turn()]
        self.assertEqual([turn.buried for turn in turns], [500, 500, 200])
        self.assertEqual([turn.next_due for turn in turns], [self.queue.now, self.queue.now, None])

    def test_a_lane_that_points_nowhere_is_mended(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        self.queue.execute("UPDATE lanes SET head_id = 999")
        self.assertEqual([job.body for job in self.queue.claim()], [b'{"n":1}'])
        self.queue.execute("UPDATE lanes SET next_due = 1")
        self.assertEqual(self.queue.claim(), [])
        self.assertEqual(self.queue.lane(lane), (1, None, 0, 0))
        self.queue.execute("DELETE FROM deliveries")
        self.queue.execute("UPDATE lanes SET next_due = 1, head_id = 999")
        self.assertEqual(self.queue.claim(), [])
        self.assertEqual(self.queue.lane(lane), (None, None, 0, 0))

    def test_when_to_come_again(self) -> None:
        first, second = self.queue.subscribe(), self.queue.subscribe()
        self.queue.ingest()
        claimed = self.queue.claim()
        turn = self.queue.turn(
            [(job, Again(self.queue.now + 5 * job.subscription_id, "x")) for job in claimed]
        )
        self.assertEqual(turn.next_due, self.queue.now + 5 * first)
        # Both are sick: of no interest to slots that no sick lane may have, or when all are taken.
        self.assertIsNone(self.queue.turn(free_sick=0).next_due)
        self.assertIsNone(self.queue.turn(free=0).next_due)
        self.queue.now += 5 * first
        turn = self.queue.turn()
        self.assertEqual([job.subscription_id for job in turn.claimed], [first])
        self.assertEqual(turn.next_due, 1_000_000 + 5 * second)


class HealthTests(TurnCase):
    @pytest.mark.report("H2")
    def test_sick_lanes_keep_to_their_share(self) -> None:
        sick = [self.queue.subscribe(chat_id=1) for _ in range(6)]
        self.queue.execute("UPDATE lanes SET sick = 1")
        healthy = [self.queue.subscribe(chat_id=2) for _ in range(3)]
        self.queue.ingest(1)
        self.queue.ingest(2)
        turn = self.queue.turn(free=8, free_sick=2)
        self.assertEqual([job.subscription_id for job in turn.claimed], healthy + sick[:2])
        self.assertEqual([job.sick for job in turn.claimed], [False] * 3 + [True] * 2)
        self.assertEqual(self.queue.turn(free=3, free_sick=0).claimed, ())

    def test_one_claim_in_eight_is_sick(self) -> None:
        sick = self.queue.subscribe(chat_id=1)
        self.queue.execute("UPDATE lanes SET sick = 1")
        for _ in range(20):
            self.queue.subscribe(chat_id=2)
        self.queue.ingest(1)
        self.queue.ingest(2)
        turn = self.queue.turn(free=4)
        self.assertEqual(turn.healthy_run, 4)
        turn = self.queue.turn(free=4, run=turn.healthy_run)
        self.assertEqual(turn.claimed[3].subscription_id, sick)

    def test_classes(self) -> None:
        table: list[tuple[Verdict, int, int]] = [
            (OK, 0, 0),
            (Done(slow=True), 1, 0),
            (Dead("HTTP 404", spent=False), 0, 0),
            (Dead("HTTP 404", spent=False, slow=True), 1, 0),
            (Dead("HTTP 503", spent=True, due=0), 1, 6),
            (Again(2_000_000, "HTTP 503"), 1, 6),
        ]
        for verdict, sick, fails in table:
            lane = self.queue.subscribe(chat_id=7)
            self.queue.execute("UPDATE lanes SET fails = 5, sick = 1 WHERE subscription_id = ?", lane)
            self.queue.ingest(7)
            (job,) = self.queue.claim()
            self.assertEqual(job.carried, 5)
            self.queue.finish(job, verdict)
            self.assertEqual(self.queue.lane(lane)[2:], (sick, fails), str(verdict))
            self.queue.execute("DELETE FROM subscriptions")

    def test_what_a_job_carries_is_fixed_at_its_first_attempt(self) -> None:
        self.queue.subscribe()
        self.queue.execute("UPDATE lanes SET fails = 5")
        self.queue.ingest()
        (job,) = self.queue.claim()
        self.queue.finish(job, Again(self.queue.now, "x"))
        (again,) = self.queue.claim()
        self.assertEqual((again.attempt, again.carried, again.first_attempt_at), (2, 5, 1_000_000))


class ResultTests(TurnCase):
    def test_done_frees_the_payload_with_the_last_job(self) -> None:
        self.queue.subscribe()
        self.queue.subscribe()
        self.queue.ingest()
        first, second = self.queue.claim()
        turn = self.queue.finish(first, OK)
        self.assertEqual(turn.left, 1)
        self.assertEqual(self.queue.number("SELECT refs FROM payloads"), 1)
        self.queue.finish(second, OK)
        self.assertEqual(self.queue.execute("SELECT * FROM payloads"), [])

    def test_a_retry_blocks_its_lane_and_no_other(self) -> None:
        failing, fine = self.queue.subscribe(), self.queue.subscribe()
        self.queue.ingest(count=2)
        bad, good = self.queue.claim()
        turn = self.queue.turn([(bad, Again(self.queue.now + 2, "HTTP 503")), (good, OK)])
        self.assertEqual([job.subscription_id for job in turn.claimed], [fine])
        self.assertEqual(self.queue.lane(failing), (1, self.queue.now + 2, 1, 1))
        self.queue.now += 1
        self.assertEqual(self.queue.claim(), [])
        self.queue.now += 1
        (job,) = self.queue.claim()
        self.assertEqual((job.body, job.attempt), (b'{"n":1}', 2))

    def test_after_a_refusal_the_lane_goes_on_at_once(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        (job,) = self.queue.claim()
        turn = self.queue.turn([(job, REFUSED)])
        self.assertEqual((turn.buried, turn.left), (1, 0))
        self.assertEqual([each.body for each in turn.claimed], [b'{"n":2}'])
        (dead,) = deliveries.dead_jobs(self.queue.cursor)
        self.assertEqual((dead.reason, dead.attempts, dead.died_at), ("HTTP 404", 1, self.queue.now))
        self.assertEqual((dead.subscription_id, dead.chat_id, dead.update_id), (lane, 1, 1))

    def test_after_a_spent_budget_the_successor_waits(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        (job,) = self.queue.claim()
        turn = self.queue.turn([(job, Dead("HTTP 503", spent=True, due=self.queue.now + 8))])
        self.assertEqual((turn.claimed, turn.next_due), ((), self.queue.now + 8))
        self.assertEqual(self.queue.lane(lane), (2, self.queue.now + 8, 1, 1))

    def test_a_stale_result_changes_nothing(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest()
        (first,) = self.queue.claim()
        self.queue.finish(first, Again(self.queue.now, "x"))
        (second,) = self.queue.claim()
        for verdict in (OK, REFUSED, Again(self.queue.now + 9, "y")):
            turn = self.queue.finish(first, verdict)
            self.assertEqual((turn.left, turn.buried), (0, 0))
            self.assertEqual(self.queue.states(lane), {1: "IN_FLIGHT"})
            self.assertEqual(self.queue.lane(lane), (1, None, 1, 1))
        self.assertEqual(self.queue.finish(second, OK).left, 1)

    def test_a_result_for_a_removed_subscription_is_dropped(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest()
        (job,) = self.queue.claim()
        self.queue.execute("DELETE FROM subscriptions WHERE id = ?", lane)
        self.assertEqual(self.queue.finish(job, OK).left, 0)

    def test_a_retired_subscription_goes_when_its_lane_is_empty(self) -> None:
        lane = self.queue.subscribe()
        self.queue.ingest(count=2)
        self.queue.execute("UPDATE subscriptions SET retired = 1")
        (job,) = self.queue.claim()
        (job,) = self.queue.turn([(job, OK)]).claimed
        self.assertEqual(self.queue.states(lane), {2: "IN_FLIGHT"})
        self.queue.finish(job, OK)
        self.assertEqual(self.queue.execute("SELECT * FROM subscriptions"), [])
        self.assertEqual(self.queue.execute("SELECT * FROM lanes"), [])

    def test_a_turn_of_nothing_writes_nothing(self) -> None:
        before = self.queue.database.connection.total_changes
        self.queue.subscribe()
        changes = self.queue.database.connection.total_changes
        self.queue.turn()
        self.assertGreater(changes, before)
        self.assertEqual(self.queue.database.connection.total_changes, changes)


class DeadShareTests(TurnCase):
    def bury(self, key_id: int, count: int, chat_id: int) -> list[int]:
        self.queue.subscribe(chat_id=chat_id, key_id=key_id)
        self.queue.ingest(chat_id, count)
        evicted = []
        while claimed := self.queue.claim():
            self.queue.now += 1
            evicted.append(self.queue.turn([(job, REFUSED) for job in claimed], free=0).evicted)
        return evicted

    def dead(self) -> list[tuple[int, int]]:
        return [(job.subscription_id, job.update_id) for job in deliveries.dead_jobs(self.queue.cursor)]

    @pytest.mark.report("H8")
    def test_the_oldest_of_a_key_go_first(self) -> None:
        self.queue.rules = QueueRules(attempts=3, max_dead_per_key=3)
        self.bury(2, 2, chat_id=2)
        self.assertEqual(self.bury(1, 5, chat_id=1), [0, 0, 0, 1, 1])
        self.assertEqual(self.dead(), [(1, 1), (1, 2), (2, 5), (2, 6), (2, 7)])

    @pytest.mark.report("H8")
    def test_a_quarter_of_the_queue_in_all(self) -> None:
        self.queue.rules = QueueRules(attempts=3, max_jobs=19)
        self.bury(2, 3, chat_id=2)
        self.assertEqual(self.bury(1, 3, chat_id=1), [0, 1, 1])
        self.assertEqual(self.dead(), [(1, 3), (2, 4), (2, 5), (2, 6)])

    def test_their_room_is_told(self) -> None:
        self.queue.rules = QueueRules(attempts=3, max_dead_per_key=0)
        self.queue.subscribe()
        self.queue.ingest()
        (job,) = self.queue.claim()
        turn = self.queue.finish(job, REFUSED)
        self.assertEqual((turn.buried, turn.left, turn.evicted), (1, 1, 1))
        self.assertEqual(self.queue.execute("SELECT * FROM payloads"), [])

    def test_a_lowered_limit_is_reached_in_portions(self) -> None:
        self.queue.subscribe()
        self.queue.ingest(count=1300)
        self.queue.execute("UPDATE deliveries SET state = 'DEAD', died_at = 1 WHERE update_id < 1300")
        self.queue.recover()
        self.queue.rules = QueueRules(attempts=3, max_dead_per_key=10)
        (job,) = self.queue.claim()
        self.assertEqual(self.queue.finish(job, REFUSED).evicted, 501)
        portions = []
        while count := deliveries.evict_portion(self.queue.cursor, self.queue.rules):
            portions.append(count)
        self.assertEqual(portions, [500, 289])
        self.queue.rules = QueueRules(attempts=3, max_jobs=8)
        self.assertEqual(deliveries.evict_portion(self.queue.cursor, self.queue.rules), 8)
        self.assertEqual(deliveries.evict_portion(self.queue.cursor, self.queue.rules), 0)
