"""
Many lanes at once: each gets its turn, and those whose receiver is well do not wait for those that are not.

What is judged is what the receiver saw: in which order, and how long after the Bot API was given the message.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from attrs import define, field

from telegrammer.store.engine import connect, immediate
from tests.support.gateway import CHAT, Gateway, eventually, gateway
from tests.support.lab import FULL, full_only, repetitions
from tests.support.oracle import Oracle
from tests.support.receiver import Callback


def prepared(oracle: Oracle, paths: Sequence[str], chat_id: int = CHAT) -> None:
    """Subscriptions that the oracle knows, from before the start."""
    for path, subscription_id in zip(paths, oracle.gateway.prepare(paths, chat_id), strict=True):
        oracle.answered(subscription_id, path, chat_id)


# -- a turn for everybody ----------------------------------------------------------------------------------

LANES = 1000
ROUNDS = repetitions(6, 20)


@define(eq=False)
class Turns:
    """How often each lane was served so far."""

    lanes: set[str]
    workers: int
    served: Counter[str] = field(factory=Counter)
    at: Counter[int] = field(factory=Counter)
    """How many lanes were served so often."""

    def __attrs_post_init__(self) -> None:
        self.at[0] = len(self.lanes)

    def take(self, path: str) -> None:
        before = self.served[path]
        self.served[path] += 1
        self.at[before] -= 1
        self.at[before + 1] += 1
        self._judge(max(turns for turns, lanes in self.at.items() if lanes))

    def _judge(self, most: int) -> None:
        """
        All but a few are a turn behind at most, and from the twelfth turn on nobody by more than a fifth.

        A lane queues again when its POST has ended.  Who was under way when the leader queued comes after it,
        and who is under way now was served, and is not yet counted: these may look two turns behind.
        """
        late = sum(lanes for turns, lanes in self.at.items() if turns < most - 1)
        assert late <= 4 * self.workers, f"{late} lanes are two turns behind one that had {most}"
        least = min(turns for turns, lanes in self.at.items() if lanes)
        assert least >= most - 2, f"one lane had {most} turns, another {least}"
        assert most < 12 or most <= 1.2 * least


def note_the_sick(db: Path) -> None:
    """
    Have the database note which lanes become sick.

    On a machine that stands still an attempt may take over a second; its lane is rightly of another class
    then, and its turn another.
    """
    with closing(connect(db)) as connection, immediate(connection) as cursor:
        cursor.execute("CREATE TABLE noted(lane INTEGER)")
        cursor.execute(
            """
            CREATE TRIGGER note AFTER UPDATE OF sick ON lanes WHEN NEW.sick = 1
            BEGIN INSERT INTO noted VALUES (NEW.subscription_id); END
            """
        )


@pytest.mark.parametrize("workers", [4, 1, 64] if FULL else [4])
def test_a_thousand_lanes_take_turns(tmp_path: Path, workers: int) -> None:
    """Until they run dry hardly a lane is more than a turn ahead, and none is served a fifth oftener."""
    with gateway(tmp_path, "--delivery-workers", str(workers)) as three:
        oracle = Oracle(three)
        prepared(oracle, [f"/{number}" for number in range(LANES)])
        note_the_sick(three.daemon.db)
        oracle.messages(ROUNDS)  # One batch: all of the backlog is there at once.
        three.start()
        receiver = three.receiver
        receiver.wait_until(lambda: len(receiver.arrived) >= LANES * ROUNDS, 100)
        arrived = list(receiver.arrived)
        assert oracle.settle() == []
        sick = {lane for (lane,) in three.query("SELECT DISTINCT lane FROM noted")}
    well = {known.path for known in oracle.subscribed if known.id not in sick}
    assert len(well) > LANES * 0.9, "the machine stood still too often to tell"
    turns = Turns(well, workers)
    for callback in arrived:
        if callback.path in well:
            turns.take(callback.path)
    rate = len(arrived) / (arrived[-1].at - arrived[0].at)
    print(f"{workers} workers: {rate:.0f} callbacks a second, {len(sick)} lanes were sick")


# -- beside those that hang --------------------------------------------------------------------------------

HEALTHY = 100
HOLES = 50
PACE = 0.5
"""Seconds from one message to the next, whatever has arrived: who waits does not slow the load down."""


@define(eq=False)
class Load:
    """A stretch of messages for the healthy lanes, and how long each took to arrive."""

    oracle: Oracle
    waits: list[float] = field(factory=list)
    """Seconds that each message of the last stretch took to each healthy lane, ascending."""
    _seen: int = field(default=0, init=False)
    """How many of the receiver's callbacks were looked at."""

    def run(self, seconds: float) -> None:
        """Give messages at the pace, and wait until all of them have arrived at the healthy lanes."""
        given: dict[int, float] = {}
        began = time.monotonic()
        while (moment := time.monotonic()) < began + seconds:
            self.oracle.message(f"message {len(self.oracle.sent)}")
            given[self.oracle.sent[-1].update_id] = moment
            time.sleep(PACE)
        waits: dict[str, float] = {}
        seen = self._seen

        def all_here() -> bool:
            nonlocal seen
            arrived = self.oracle.gateway.receiver.arrived
            for callback in arrived[seen:]:
                number = int(callback.delivery_id.rpartition("-")[2])
                if number in given and callback.path.startswith("/well"):
                    waits.setdefault(callback.delivery_id, callback.at - given[number])
            seen = len(arrived)
            return len(waits) == HEALTHY * len(given)

        try:
            self.oracle.gateway.receiver.wait_until(all_here, 100)
        finally:
            print(f"{len(waits)} of {HEALTHY * len(given)} arrived")
        self._seen, self.waits = seen, sorted(waits.values())

    def p99(self, when: str) -> float:
        wait = self.waits[int(len(self.waits) * 0.99)]
        print(
            f"{when}: {len(self.waits)} receptions, p99 {wait * 1000:.0f} ms, "
            f"longest {self.waits[-1] * 1000:.0f} ms"
        )
        return wait


WELL = [f"/well/{number}" for number in range(HEALTHY)]


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)


@pytest.mark.report("H2")
@pytest.mark.parametrize("how", ["killed", "stopped"] if FULL else ["killed"])
def test_beside_fifty_that_never_answer(gateway: Gateway, oracle: Oracle, how: str) -> None:
    """Healthy lanes get their messages within a second, also right after a restart, whatever it cut off."""
    receiver, daemon = gateway.receiver, gateway.daemon
    hanging, cut_off = False, ""

    def policy(callback: Callback) -> int | None:
        if callback.path.startswith("/hole"):
            return None if hanging else 503
        return None if callback.path == cut_off else 200

    receiver.policy = policy
    prepared(oracle, WELL + [f"/hole/{number}" for number in range(HOLES)])
    gateway.start()
    oracle.message("the first, by which they show what they are")
    receiver.wait_for(HEALTHY + HOLES)
    hanging = True
    eventually(lambda: daemon.health()["components"]["delivery"]["busy"] == 2)
    load = Load(oracle)
    load.run(repetitions(2, 10))
    assert load.p99("beside fifty that hang") < 1

    if how == "killed":
        cut_off = WELL[HEALTHY // 2]
        oracle.message("its attempt does not end")
        receiver.wait_for(len(receiver.on(cut_off)) + 1, path=cut_off)
        daemon.kill()
    else:
        daemon.stop()
    oracle.check()
    cut_off = ""
    daemon.start()
    load.run(repetitions(2, 60 if how == "killed" else 15))
    assert load.p99("after the restart") < 1
    assert max(load.waits) < 5, "a healthy lane waited for one that hangs"
    daemon.kill()
    oracle.check()


@full_only
@pytest.mark.report("H2")
def test_fifty_that_hang_for_the_first_time(tmp_path: Path) -> None:
    """Nobody can know them before: each costs one attempt of one worker, and then never again."""
    with gateway(tmp_path, "--delivery-workers", "16", "--max-subscriptions-per-key", "1000") as three:
        oracle = Oracle(three)
        three.receiver.policy = lambda callback: None if callback.path.startswith("/hole") else 200
        prepared(oracle, WELL)
        three.start()
        load = Load(oracle)
        load.run(1)
        for number in range(HOLES):
            oracle.subscribe(f"/hole/{number}")
        load.run(1)
        load.p99("while fifty hang for the first time")
        assert max(load.waits) < (HOLES // 16 + 1) * 10 + 2
        load.run(10)
        assert load.p99("once they are known") < 1
        three.daemon.kill()
        oracle.check()


# -- beside those that are slow ----------------------------------------------------------------------------

SLOW = [f"/slow/{number}" for number in range(4)]
SLOW_CHAT = CHAT + 1


@pytest.mark.report("H2")
def test_beside_four_that_take_their_time(gateway: Gateway, oracle: Oracle) -> None:
    """They succeed, each message once and in order, and nobody else waits for them."""
    seconds = 9.5 if FULL else 1.2
    receiver = gateway.receiver

    def policy(callback: Callback) -> int:
        if callback.path in SLOW:
            with receiver.changed:
                receiver.changed.wait_for(lambda: receiver.closing, seconds)
        return 200

    receiver.policy = policy
    prepared(oracle, WELL)
    prepared(oracle, SLOW, SLOW_CHAT)
    gateway.start()
    oracle.message("the first, by which they show what they are", SLOW_CHAT)
    oracle.settle()
    oracle.messages(repetitions(1, 2), "for the slow", SLOW_CHAT)
    load = Load(oracle)
    load.run(repetitions(2, 20))
    assert load.p99("beside four that are slow") < 1
    assert oracle.settle() == [], "one was sent twice"
    assert oracle.dead() == []
