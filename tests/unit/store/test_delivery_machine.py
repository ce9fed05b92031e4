"""The queue under any sequence of events: order, one POST a lane, budgets, waits, and nothing forgotten."""

from __future__ import annotations

from random import Random

from attrs import define, evolve
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import (
    Answered,
    AttemptResult,
    Claimed,
    Done,
    Finished,
    Slots,
    Unanswered,
    Undeliverable,
    settle,
)
from telegrammer.core.problems import DeliveriesRefused
from telegrammer.core.retry import Schedule
from telegrammer.store import deliveries, lanes, recovery
from telegrammer.store.turns import QueueRules, take_turn
from tests.support.delivery_queue import DeliveryQueue

SETTINGS = settings(max_examples=100, stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow])
SCHEDULE = Schedule((1, 4))
RULES = QueueRules(attempts=SCHEDULE.attempts, max_jobs=60, max_dead_per_key=5)

RESULTS = st.sampled_from(
    [
        Answered(200),
        Answered(200),
        Answered(503),
        Answered(503, (b"7",)),
        Answered(404),
        Answered(503, (b"999999",)),
        Unanswered("connection refused"),
        Undeliverable("the URL does not parse"),
    ]
)


@define
class Flight:
    """An attempt under way, and whether an operator has removed its job since."""

    job: Claimed
    removed: bool = False
    holds: bool = True
    """Its lane, which has not been empty since."""


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = DeliveryQueue(rules=RULES)
        self.flights: list[Flight] = []
        self.overtaken: list[int] = []
        """Updates that others have overtaken and that are still to come."""
        self.tries: dict[int, int] = {}
        """Attempts by job since its budget was last made fresh."""
        self.subscriptions = [self.queue.subscribe(chat, key) for chat, key in ((1, 1), (1, 2), (2, 1))]
        self.queue.ingest(1, 3)
        self.queue.ingest(2, 3)

    def teardown(self) -> None:
        try:
            self.everything_is_delivered_in_the_end()
        finally:
            self.queue.close()

    # -- what others do

    @rule(chat=st.integers(1, 2), count=st.integers(1, 3))
    def ingest(self, chat: int, count: int) -> None:
        self.queue.ingest(chat, count)

    @rule(chat=st.integers(1, 2), late=st.integers(1, 2), count=st.integers(0, 2))
    def updates_overtake_others(self, chat: int, late: int, count: int) -> None:
        """As pushed ones do: some come only later."""
        self.overtaken += [self.queue.pass_over() for _ in range(late)]
        self.queue.ingest(chat, count)

    @precondition(lambda self: self.overtaken)
    @rule(chat=st.integers(1, 2), order=st.randoms(use_true_random=False))
    def an_overtaken_one_comes(self, chat: int, order: Random) -> None:
        """Whatever its lanes are doing: waiting, in flight, backing off, empty, retired."""
        before = self.lanes()
        self.queue.fold_late(self.overtaken.pop(order.randrange(len(self.overtaken))), chat)
        for lane, (_, due, fails) in self.lanes().items():
            had_head, had_due, had_fails = before[lane]
            assert fails == had_fails
            if had_head is not None:
                assert due == had_due, "whoever comes in between changes no wait"

    @rule(chat=st.integers(1, 2), key=st.integers(1, 2), which=st.integers(0, 20))
    def subscriptions_change(self, chat: int, key: int, which: int) -> None:
        """One comes; now and then one is removed, or absorbed by another."""
        self.subscriptions.append(self.queue.subscribe(chat, key))
        if which < len(self.subscriptions):
            gone = self.subscriptions.pop(which)
            self.queue.execute("DELETE FROM subscriptions WHERE id = ?", gone)
            for flight in self.flights:
                flight.removed = flight.removed or flight.job.subscription_id == gone
        elif which >= 15:
            self.queue.execute("UPDATE subscriptions SET retired = 1 WHERE id = ?", self.subscriptions[0])
            lanes.drop_drained(self.queue.cursor)

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        self.queue.now += seconds

    @rule(seconds=st.integers(-5000, 5000).filter(lambda seconds: abs(seconds) > 100))
    def the_clock_is_set(self, seconds: int) -> None:
        waits = {row[0]: row[1] for row in self.waits()}
        self.queue.now += seconds
        deliveries.shift_times(self.queue.cursor, seconds, self.queue.now)
        for lane, due in self.waits():
            assert due == waits[lane], "a wait has changed its length"
        for flight in self.flights:
            flight.job = moved_job(flight.job, seconds)

    def waits(self) -> list[tuple[object, ...]]:
        return self.queue.execute(
            "SELECT subscription_id, next_due - ? FROM lanes WHERE next_due IS NOT NULL", self.queue.now
        )

    @precondition(lambda self: self.jobs())
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        # The dead foremost: the others are mostly refused, or have what they are given.
        ids = data.draw(st.lists(st.sampled_from(self.jobs("DEAD") or self.jobs()), min_size=1, max_size=3))
        flying = {flight.job.id for flight in self.flights if not flight.removed}
        try:
            deliveries.retry(self.queue.cursor, ids, self.queue.now)
        except DeliveriesRefused:
            assert flying & set(ids)
        else:
            assert not flying & set(ids)
            self.tries.update(dict.fromkeys(ids, 0))

    @precondition(lambda self: self.jobs())
    @rule(data=st.data(), flying=st.booleans())
    def delete(self, data: st.DataObject, flying: bool) -> None:
        ids = data.draw(
            st.lists(
                st.sampled_from(flying and self.jobs("IN_FLIGHT") or self.jobs()), min_size=1, max_size=2
            )
        )
        deliveries.delete(self.queue.cursor, ids, self.queue.now)
        for flight in self.flights:
            flight.removed = flight.removed or flight.job.id in ids
            if self.heads().get(flight.job.subscription_id) is None:
                flight.holds = False

    @rule()
    def purge(self) -> None:
        deliveries.purge_portion(self.queue.cursor, self.queue.now - 60)
        while deliveries.evict_portion(self.queue.cursor, RULES):
            pass
        lanes.drop_drained(self.queue.cursor)

    # -- what the daemon does

    @rule(
        results=st.lists(st.tuples(RESULTS, st.sampled_from([0.1, 3.0])), max_size=8),
        free=st.sampled_from([8, 4, 1, 0]),
        free_sick=st.sampled_from([4, 2, 0]),
        order=st.randoms(use_true_random=False),
    )
    def turn(
        self, results: list[tuple[AttemptResult, float]], free: int, free_sick: int, order: Random
    ) -> None:
        """Some attempts end, and what they brought is written."""
        finished = []
        for result, took in results[: len(self.flights)]:
            flight = self.flights.pop(order.randrange(len(self.flights)))
            now = float(self.queue.now)
            verdict = settle(flight.job, result, took=took, now=now, jitter=0.0, schedule=SCHEDULE)
            finished.append(Finished(flight.job, verdict))
        self.write(finished, free, free_sick)

    def write(self, finished: list[Finished], free: int, free_sick: int) -> None:
        # A lane that was emptied under a POST may be claimed: there the dispatcher lets no second one begin.
        posting = {flight.job.subscription_id for flight in self.flights if flight.holds}
        turn = take_turn(self.queue.cursor, finished, Slots(free, free_sick), self.queue.now, RULES)
        # Nothing is claimed after the claims, so the oldest that is not dead is what was claimed.
        oldest = self.heads()
        assert len(turn.claimed) <= free
        assert sum(job.sick for job in turn.claimed) <= free_sick
        for job in turn.claimed:
            assert job.subscription_id not in posting, "two at once in a lane"
            assert job.id == oldest[job.subscription_id], "out of order"
            self.tries[job.id] = self.tries.get(job.id, 0) + 1
            assert self.tries[job.id] == job.attempt <= SCHEDULE.attempts
            self.flights.append(Flight(job))
        if turn.next_due is not None and free > len(turn.claimed):
            assert turn.next_due > self.queue.now

    @rule()
    def crash(self) -> None:
        self.flights.clear()
        recovery.recover(self.queue.cursor, float(self.queue.now))
        assert self.queue.execute("SELECT 1 FROM lanes WHERE (head_id IS NULL) <> (next_due IS NULL)") == []

    # -- what must hold

    @invariant()
    def sound(self) -> None:
        assert self.queue.violations() == []

    @invariant()
    def what_is_in_flight_is_known(self) -> None:
        assert set(self.jobs("IN_FLIGHT")) == {flight.job.id for flight in self.flights if not flight.removed}

    def jobs(self, state: str | None = None) -> list[int]:
        rows = self.queue.execute(
            "SELECT id FROM deliveries WHERE state = IFNULL(?, state) ORDER BY id", state
        )
        return [row[0] for row in rows if isinstance(row[0], int)]

    def lanes(self) -> dict[object, tuple[object, ...]]:
        """Subscription → head, when it is due, failures."""
        rows = self.queue.execute("SELECT subscription_id, head_id, next_due, fails FROM lanes")
        return {row[0]: row[1:] for row in rows}

    def heads(self) -> dict[object, object]:
        """Subscription → its oldest job that is not dead."""
        rows = self.queue.execute(
            """
            SELECT l.subscription_id, (
                SELECT id FROM deliveries d WHERE d.subscription_id = l.subscription_id
                    AND d.state <> 'DEAD' ORDER BY epoch, update_id LIMIT 1)
            FROM lanes l
            """
        )
        return {row[0]: row[1] for row in rows}

    def everything_is_delivered_in_the_end(self) -> None:
        """When all attempts end well, every job that is not dead leaves, in the order of its lane."""
        finished = [Finished(flight.job, Done(slow=False)) for flight in self.flights]
        last: dict[int, list[int]] = {}
        for _ in range(1000):
            turn = take_turn(self.queue.cursor, finished, Slots(8, 4), self.queue.now, RULES)
            finished = [Finished(job, Done(slow=False)) for job in turn.claimed]
            for job in turn.claimed:
                position = [int(part) for part in job.delivery_id.split("-")[2:]]
                assert last.get(job.subscription_id, [-1, -1]) < position
                last[job.subscription_id] = position
            if not turn.claimed:
                if turn.next_due is None:
                    break
                self.queue.now = max(self.queue.now, turn.next_due)
        assert self.jobs("PENDING") == [] and self.jobs("IN_FLIGHT") == []
        assert self.queue.violations() == []


def moved_job(job: Claimed, seconds: int) -> Claimed:
    return evolve(job, first_attempt_at=job.first_attempt_at + seconds)


class QueueMachineTests(SynchronousTestCase):
    def test_any_sequence(self) -> None:
        run_state_machine_as_test(QueueMachine, settings=SETTINGS)
