"""
The wall clock of the daemon is set, forward and back, while everything waits; or the daemon stands still.

What waits goes by the monotonic clock (contract 9): nothing sleeps beyond its schedule, nothing comes early,
so that there is no storm, and nobody dies of it.  In the full form each jump meets each kind of wait.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import define, field

from tests.support.bot_api import failure
from tests.support.clock_shift import HOUR, YEAR, ClockShift, needs_shifted_clock
from tests.support.daemon import PATIENCE
from tests.support.gateway import Gateway, eventually
from tests.support.http_server import response
from tests.support.lab import FULL, full_only
from tests.support.oracle import Oracle
from tests.support.receiver import Callback

WAIT = 2
"""Seconds between two attempts, before what is added to it."""
EARLY = 0.1
"""Seconds that a wait may be short, for two machines look at two clocks."""

JUMPS = {"3 h forward": 3 * HOUR, "3 h back": -3 * HOUR, "10 years back": -10 * YEAR}


def jumps(*quick: str) -> pytest.MarkDecorator:
    """All of them in the full form, else those named."""
    names = JUMPS if FULL else quick
    chosen = [pytest.param(JUMPS[name], id=name, marks=needs_shifted_clock) for name in names]
    return pytest.mark.parametrize("seconds", chosen)


@define(eq=False)
class Receiver:
    """What the receiver answers, by path: each attempt the next of these, then 200; and when it was asked."""

    answers: dict[str, Iterator[int | bytes | None]] = field(factory=dict)
    at: defaultdict[str, list[float]] = field(factory=lambda: defaultdict(list))

    def says(self, path: str, *answers: int | bytes | None) -> None:
        self.answers[path] = itertools.chain(answers, itertools.repeat(200))

    def __call__(self, callback: Callback) -> int | bytes | None:
        self.at[callback.path].append(time.monotonic())
        return next(self.answers[callback.path]) if callback.path in self.answers else 200

    def gaps(self, path: str) -> list[float]:
        """Seconds between one attempt and the next."""
        return [later - earlier for earlier, later in itertools.pairwise(self.at[path])]


@pytest.fixture
def clock(tmp_path: Path, gateway: Gateway) -> ClockShift:
    clock = ClockShift(tmp_path / "clock")
    gateway.daemon.environment = clock.environment
    gateway.daemon.arguments = ("--retry-schedule", f"{WAIT}s,{WAIT}s,{WAIT}s")
    return clock


@pytest.fixture
def receiver(gateway: Gateway) -> Receiver:
    policy = gateway.receiver.policy = Receiver()
    return policy


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)


def waiting(gateway: Gateway) -> int:
    """Jobs that wait for their next attempt."""
    ((count,),) = gateway.query(
        "SELECT count(*) FROM deliveries WHERE state = 'PENDING' AND attempt_count > 0"
    )
    return int(count)


def is_sane(gateway: Gateway) -> bool:
    """Health shows nothing that the clock made up; True when all is well."""
    reply = gateway.daemon.ask_health()
    age = reply.json["queue"]["oldest_pending_age_s"]
    assert age is None or age >= 0, reply
    assert reply.status == 200, reply
    return bool(reply.json["status"] == "ok")


def last_success(gateway: Gateway) -> int:
    return int(gateway.daemon.health()["components"]["ingestion"]["last_success_at"])


@jumps("3 h forward", "10 years back")
def test_set_while_everything_waits(
    gateway: Gateway, oracle: Oracle, receiver: Receiver, clock: ClockShift, seconds: int
) -> None:
    """Two lanes back off, one of them as it was asked to; two POSTs and a poll are held."""
    asked = WAIT + 1
    receiver.says("/failing", 503, 503)
    receiver.says("/asking", response(503, b"", f"Retry-After: {asked}"))
    receiver.says("/held", None)
    receiver.says("/held-longer", None)
    gateway.start()
    for path in ("/failing", "/asking", "/held", "/held-longer", "/well"):
        oracle.subscribe(path)
    oracle.message("before")
    gateway.receiver.wait_for(5)
    (held,), (longer,) = gateway.receiver.on("/held"), gateway.receiver.on("/held-longer")
    gateway.api.wait_until(lambda: waiting(gateway) == 2 and gateway.api.open_polls == 1)

    clock.set(seconds)
    held.answer(503)  # It may well be written before the jump is noticed, and the next certainly after.
    gateway.daemon.output.wait_for(f"the clock was set by {seconds} s")
    longer.answer(503)
    assert is_sane(gateway)
    oracle.message("after")
    gateway.receiver.wait_for(2, path="/well")
    oracle.settle()
    assert oracle.dead() == []
    attempts = {path: len(times) for path, times in receiver.at.items()}
    assert attempts == {"/failing": 4, "/asking": 3, "/held": 3, "/held-longer": 3, "/well": 2}
    for path in ("/failing", "/held", "/held-longer"):
        assert receiver.gaps(path)[0] >= WAIT - EARLY
    assert receiver.gaps("/failing")[1] >= WAIT - EARLY
    assert receiver.gaps("/asking")[0] >= asked - EARLY
    # The one that was held brought the second message, and there is no other.
    assert (len(gateway.api.of("getUpdates")), gateway.api.most_open_polls) == (3, 1)
    eventually(lambda: is_sane(gateway))
    assert abs(last_success(gateway) - clock.now()) < 60
    assert len([line for line in gateway.daemon.output.lines if "the clock was set" in line]) == 1


@jumps("10 years back")
def test_set_while_polling_backs_off(
    gateway: Gateway, oracle: Oracle, clock: ClockShift, seconds: int
) -> None:
    """The poll that is due in two seconds is due in two seconds, and only then."""
    gateway.api.fallback["getUpdates"] = failure(502, "Bad Gateway")
    gateway.start()
    oracle.subscribe()
    gateway.api.wait_for_calls("getUpdates", 2)
    began = time.monotonic()
    eventually(lambda: gateway.daemon.health()["components"]["ingestion"]["consecutive_failures"] == 2)
    clock.set(seconds)
    del gateway.api.fallback["getUpdates"]
    assert not is_sane(gateway)
    oracle.message("after")
    gateway.api.wait_for_calls("getUpdates", 3)
    assert time.monotonic() - began >= 2 - EARLY
    assert oracle.settle() == []
    eventually(lambda: is_sane(gateway))
    assert abs(last_success(gateway) - clock.now()) < 60
    assert gateway.api.most_open_polls == 1


@jumps("10 years back")
@pytest.mark.parametrize("end", ["killed", "stopped"] if FULL else ["killed"])
def test_set_while_it_is_down(
    gateway: Gateway, oracle: Oracle, receiver: Receiver, clock: ClockShift, seconds: int, end: str
) -> None:
    """What waits, waits no longer than its schedule when it is back; what was in flight goes at once."""
    receiver.says("/failing", 503)
    receiver.says("/held", None)
    gateway.start()
    oracle.subscribe("/failing")
    if end == "killed":
        oracle.subscribe("/held")
    oracle.message("before")
    gateway.receiver.wait_for(len(oracle.subscribed))
    eventually(lambda: waiting(gateway) == 1)
    if end == "killed":
        gateway.daemon.kill()
        clock.tidy(gateway.daemon.process.pid)
    else:
        assert gateway.daemon.stop() == 0
    clock.set(seconds)
    oracle.message("after")
    gateway.daemon.start()
    oracle.settle()
    assert oracle.dead() == []
    assert {path: len(times) for path, times in receiver.at.items()} == dict.fromkeys(receiver.at, 3)
    assert is_sane(gateway)


@full_only
@jumps("3 h back")
def test_set_while_nothing_waits(
    gateway: Gateway, oracle: Oracle, receiver: Receiver, clock: ClockShift, seconds: int
) -> None:
    """Nobody looks at the clock then; the message that comes next is none the worse for it."""
    receiver.says("/failing", 503)
    gateway.start()
    oracle.subscribe("/failing")
    oracle.subscribe("/well")
    gateway.api.wait_until(lambda: gateway.api.open_polls == 1)
    clock.set(seconds)
    oracle.message("after")
    gateway.receiver.wait_for(1, path="/failing")
    eventually(lambda: waiting(gateway) == 1)
    assert is_sane(gateway)
    clock.set(0)
    oracle.message("and again")
    oracle.settle()
    assert oracle.dead() == []
    assert {path: len(times) for path, times in receiver.at.items()} == {"/failing": 3, "/well": 2}
    assert receiver.gaps("/failing")[0] >= WAIT - EARLY
    assert is_sane(gateway)


STANDSTILL = 120 if FULL else 3
"""Seconds; the short one outlasts a wait, the long one every deadline."""


def test_standing_still(gateway: Gateway, oracle: Oracle, receiver: Receiver) -> None:
    """
    Stopped, and continued: what came meanwhile is read before anything is found too late.

    So an answer that was there in time is worth no second POST, nor a poll a failure; and nothing storms.
    """
    gateway.daemon.arguments = ("--retry-schedule", f"{WAIT}s,{WAIT}s,{WAIT}s")
    receiver.says("/failing", 503, 503)
    receiver.says("/held", None)
    gateway.start()
    for path in ("/failing", "/held", "/well"):
        oracle.subscribe(path)
    oracle.message("before")
    gateway.receiver.wait_for(3)
    gateway.api.wait_until(lambda: waiting(gateway) == 1 and gateway.api.open_polls == 1)
    polls = len(gateway.api.of("getUpdates"))

    gateway.daemon.send(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(gateway.daemon.request, "GET", "/subscriptions", seconds=STANDSTILL + PATIENCE)
        oracle.messages(5, "meanwhile")
        gateway.receiver.on("/held")[0].answer(200)
        time.sleep(STANDSTILL)
        gateway.daemon.send(signal.SIGCONT)
        assert caller.result().status == 200

    (failing,) = {callback.delivery_id for callback in gateway.receiver.on("/failing")[:3]}
    assert oracle.settle() == [failing, failing]
    assert oracle.dead() == []
    assert {path: len(times) for path, times in receiver.at.items()} == {
        "/failing": 8,
        "/held": 6,
        "/well": 6,
    }
    assert receiver.gaps("/failing")[1] >= WAIT - EARLY
    eventually(lambda: is_sane(gateway))
    assert len(gateway.api.of("getUpdates")) - polls <= 6
    assert gateway.api.most_open_polls == 1
    assert "backs off" not in gateway.daemon.output.text
