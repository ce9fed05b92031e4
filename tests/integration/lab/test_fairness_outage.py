"""
A receiver that is down for an hour loses few messages: the back-off of its lane goes on from job to job.

The hour passes on a clock of the test, with the dispatcher and the real store; the process shows in seconds,
by a short schedule, that it keeps to the same rule, also over a kill.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Literal

import pytest
from attrs import define, field
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from telegrammer.core.delivery import Answered, AttemptResult, Claimed, Unanswered
from telegrammer.core.retry import Schedule
from telegrammer.core.telegram import Batch
from telegrammer.delivery.dispatcher import Dispatcher
from telegrammer.store.deliveries import SqlDeliveries
from telegrammer.store.ingestion import SqlIngestion, bind
from telegrammer.store.recovery import recover
from telegrammer.store.turns import QueueRules
from tests.support.daemon import BOT_ID, PYTHON
from tests.support.gateway import gateway
from tests.support.inline_database import InlineDatabase
from tests.support.lab import FULL, full_only, repetitions
from tests.support.oracle import Oracle
from tests.support.queue_checks import add_key, broken, subscribe, text
from tests.support.receiver import Callback

# -- an hour -----------------------------------------------------------------------------------------------

EPOCH = 1_793_000_000
FALLS, RISES = 600, 600 + 3600
"""Seconds from the start: the outage."""
Fault = Literal["refuses", "hangs", "fails"]


@define(eq=False)
class Receivers:
    """Implements ``ports.Callbacks``: a lane with a fault has it during the outage, the others have none."""

    clock: Clock
    faults: dict[int, Fault]
    arrived: defaultdict[int, list[tuple[int, float]]] = field(factory=lambda: defaultdict(list))
    """By lane: (update, when) of each success."""
    attempts: int = 0

    def post(self, job: Claimed) -> Deferred[AttemptResult]:
        down = FALLS <= self.clock.seconds() < RISES
        fault = self.faults.get(job.subscription_id) if down else None
        self.attempts += 1
        if fault == "refuses":
            return succeed(Unanswered("connection refused"))
        if fault == "fails":
            return succeed(Answered(503, (b"2",)))
        answer: Deferred[AttemptResult] = Deferred()
        if fault == "hangs":
            self.clock.callLater(10, answer.callback, Unanswered("timeout after 10 s"))
        else:
            update_id = int(job.delivery_id.rpartition("-")[2])
            self.arrived[job.subscription_id].append((update_id, self.clock.seconds()))
            self.clock.callLater(0.02, answer.callback, Answered(200))
        return answer


@define(eq=False)
class Town:
    """The dispatcher over the real store, on a clock; one message a minute for every lane."""

    seed: int
    faults: tuple[Fault, ...]
    workers: int = 4
    clock: Clock = field(factory=Clock)
    database: InlineDatabase = field(factory=InlineDatabase)
    lanes: list[int] = field(factory=list)
    sent: int = 0
    receivers: Receivers = field(init=False)
    dispatcher: Dispatcher = field(init=False)
    _jitter: random.Random = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._jitter = random.Random(self.seed)
        connection = self.database.connection
        bind(connection.cursor(), BOT_ID)
        owner = add_key(connection, "key")
        for number in range(len(self.faults) + 2):
            self.lanes.append(subscribe(connection, owner, 1, f"http://h/{number}"))
        self.receivers = Receivers(self.clock, dict(zip(self.lanes, self.faults, strict=False)))
        self.start()

    def now(self) -> float:
        return EPOCH + self.clock.seconds()

    def start(self) -> None:
        schedule = Schedule()
        self.dispatcher = Dispatcher(
            SqlDeliveries(self.database, self.now, QueueRules(schedule.attempts)),
            self.receivers,
            self.clock,
            self.now,
            self._jitter.random,
            schedule,
            self.workers,
        )
        self.dispatcher.startService()

    def kill(self) -> None:
        """Nothing that was under way comes to an end; and the next start."""
        for call in list(self.clock.getDelayedCalls()):
            call.cancel()
        recover(self.database.connection.cursor(), self.now())
        self.start()

    def message(self) -> None:
        self.sent += 1
        ingestion = SqlIngestion(self.database, 10**6, self.now)
        ingestion.accept(Batch((text(self.sent, 1, b'{"n":%d}' % self.sent),)))
        self.dispatcher.wake()

    def run(self, until: float) -> None:
        """Let the clock go to ``until``, from one event to the next."""
        while self.clock.seconds() < until:
            due = min((call.getTime() for call in self.clock.getDelayedCalls()), default=until)
            self.clock.advance(max(0.0, min(due, until) - self.clock.seconds()))

    def dead(self, lane: int) -> list[int]:
        rows = self.database.connection.execute(
            "SELECT update_id FROM deliveries WHERE subscription_id = ? AND state = 'DEAD'", (lane,)
        )
        return [row[0] for row in rows]


@pytest.mark.report("H9")
@pytest.mark.parametrize("seed", range(repetitions(3, 20)))
@pytest.mark.parametrize("killed_every", [None, 7, 1] if FULL else [None, 7])
def test_an_hour_buries_three_messages_a_lane_at_most(seed: int, killed_every: int | None) -> None:
    """However it is down, killed in between or not; the rest arrives in order, and the healthy never wait."""
    town = Town(seed, ("refuses", "hangs", "fails", "hangs", "hangs"))
    minutes = (RISES + 1800) // 60
    given: list[float] = []
    offset = random.Random(-seed).uniform(0, 60)
    for minute in range(minutes):
        town.run(minute * 60 + offset)
        if killed_every and minute % killed_every == 0 and FALLS < town.clock.seconds() < RISES:
            town.kill()
        given.append(town.clock.seconds())
        town.message()
    town.run(minutes * 60 + 1800)
    counts = []
    for lane in town.lanes:
        arrived = town.receivers.arrived[lane]
        dead = town.dead(lane)
        first = list(dict.fromkeys(update for update, _ in arrived))
        assert first == sorted(first)
        assert sorted({*first, *dead}) == list(range(1, minutes + 1)), "neither arrived nor dead"
        if lane in town.receivers.faults:
            counts.append(len(dead))
        else:
            assert dead == []
            assert max(when - given[update - 1] for update, when in arrived) < 1
    print(f"buried: {counts}, {town.receivers.attempts} attempts")
    assert max(counts) <= 3
    assert broken(town.database.connection) == []
    town.dispatcher.stopService()
    town.database.close()


# -- the process -------------------------------------------------------------------------------------------

FAILURES = 4 if FULL else 2
"""Attempts that fail; a job has two of them by the schedule."""
WAITS = (1, 4, 4, 16)[:FAILURES]
"""Seconds behind each of them, at least."""


@pytest.mark.report("H9")
def test_the_back_off_of_a_lane_outlives_its_messages_and_the_daemon(tmp_path: Path) -> None:
    """The wait after a message that died is the lane's, and a kill does not shorten it."""
    with gateway(tmp_path, "--retry-schedule", "1s") as three:
        oracle, receiver = Oracle(three), three.receiver

        def policy(callback: Callback) -> int:
            return 503 if len(receiver.arrived) <= FAILURES else 200

        receiver.policy = policy
        three.start()
        oracle.subscribe()
        oracle.messages(8)
        receiver.wait_for(2)
        receiver.wait_until(lambda: len(oracle.dead()) == 1)
        three.daemon.kill()
        three.daemon.start()
        oracle.settle(60)
        moments = [callback.at for callback in receiver.on(None)]
        gaps = [other - one for one, other in zip(moments, moments[1:], strict=False)][:FAILURES]
        print("waits:", [round(gap, 2) for gap in gaps])
        # The clock of the waits is the wall's, in whole seconds and never early; the receiver's is another.
        assert all(gap > wait - 0.1 for gap, wait in zip(gaps, WAITS, strict=True)), gaps
        assert len(oracle.dead()) == FAILURES // 2
        assert len(moments) == FAILURES + 8 - FAILURES // 2


RATE = 120
"""How much faster than ours time passes for the daemon of the next test."""
HASTY = f"""
import time
begun, wall, monotonic = (time.time(), time.monotonic()), time.time, time.monotonic
time.time = lambda: begun[0] + (wall() - begun[0]) * {RATE}
time.monotonic = lambda: begun[1] + (monotonic() - begun[1]) * {RATE}
from twisted.internet import reactor
timeout = reactor.timeout
reactor.timeout = lambda: None if (seconds := timeout()) is None else seconds / {RATE}
from telegrammer.cli import main
main()
"""
"""`telegrammer`, for whom both clocks run fast and the reactor waits as much less."""


@full_only
@pytest.mark.report("H9")
def test_an_hour_of_the_process(tmp_path: Path) -> None:
    """
    The default schedule, a message a minute, and a receiver that is down for an hour of the daemon's time.

    Its time limits are as much shorter, so that the healthy lane may get a message twice; none of its dies.
    """
    with gateway(tmp_path) as three:
        three.daemon.program = (*PYTHON, "-c", HASTY, "serve")
        oracle, receiver = Oracle(three), three.receiver
        down = True
        receiver.policy = lambda callback: 503 if down and callback.path == "/down" else 200
        for path, subscription_id in zip(("/well", "/down"), three.prepare(("/well", "/down")), strict=True):
            oracle.answered(subscription_id, path)
        three.start()
        oracle.message("the first")
        receiver.wait_for(1, path="/down")
        began = time.monotonic()
        while time.monotonic() < began + 3600 / RATE:
            oracle.message("another")
            time.sleep(60 / RATE)
        down = False
        oracle.settle()
        down_lane = oracle.subscribed[1].id
        dead = oracle.dead()
        print(f"{len(oracle.sent)} messages, {len(dead)} died")
        assert {lane for lane, _ in dead} <= {down_lane}
        assert 1 <= len(dead) <= 3
