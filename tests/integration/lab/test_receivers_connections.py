"""
What stays on a connection between two callbacks: nothing that a receiver could confuse the next one with.

Each receiver is a lane of its own at an address of its own; the messages come one after another, soon enough
for a connection to be used again where it may be.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence

import pytest
from attrs import frozen

from tests.support.daemon import PATIENCE
from tests.support.gateway import Gateway
from tests.support.hostile import HOSTILE, InTurn, Shut, head, pause, says, subscribe_apart
from tests.support.http_server import response
from tests.support.oracle import Oracle
from tests.support.receiver import Conduct

MESSAGES = 4
OK = response(200, b"ok")
REFUSAL = response(404, b"no")
"""Taken for the answer to the next callback, it would bury it."""
TRAP = "/trap"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Belated:
    """Answers; and while nothing is asked of it, says more, and then perhaps leaves."""

    def __init__(self, words: bytes, leaves: bool = False) -> None:
        self._words = words
        self._leaves = leaves
        self.said = threading.Semaphore(0)

    def __call__(self, wire: socket.socket) -> bool:
        wire.sendall(OK)
        try:
            if pause(wire, 0.05):
                return False
            wire.sendall(self._words)
            return not self._leaves
        finally:
            self.said.release()


@frozen
class Habit:
    """How a receiver treats its connections, and what the daemon makes of it."""

    name: str
    script: Sequence[int | bytes | Conduct]
    shared: bool = False
    """A connection serves more than one message; otherwise each has its own."""
    repeats: int = 0
    dead: int = 0


LARGE = b"x" * 100_000
HABITS = [
    Habit("keeps it", [OK], shared=True),
    Habit(
        "keeps it, with chunks",
        [head(b"200 OK", b"Transfer-Encoding: chunked") + b"2\r\nok\r\n0\r\n\r\n"],
        shared=True,
    ),
    Habit("keeps it, with a 100 before", [head(b"100 Continue") + OK], shared=True),
    Habit("redirects once", [response(302, b"there", f"Location: {TRAP}"), OK], shared=True, dead=1),
    Habit("sets cookies", [response(200, b"", "Set-Cookie: a=b; Path=/", "Set-Cookie: c=d")], shared=True),
    Habit("says that it closes, and stays", [response(200, b"", "Connection: close")]),
    Habit("keeps it for a second", [response(200, b"", "Keep-Alive: timeout=1")]),
    Habit("speaks HTTP 1.0", [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"]),
    Habit("closes", [says(OK, then="closes")]),
    Habit("resets", [says(OK, then="resets")]),
    Habit("closes when asked again", [OK, says(then="closes"), OK], shared=True, repeats=1),
    Habit("resets when asked again", [OK, says(then="resets"), OK], shared=True, repeats=1),
    Habit("answers twice", [OK + REFUSAL]),
    Habit("answers, then says 100", [OK + head(b"100 Continue")]),
    Habit("says more than its length", [OK + b"junk"]),
    Habit("says more than a 204 can", [head(b"204 No Content") + REFUSAL]),
    Habit("answers again later", [Belated(REFUSAL)]),
    Habit("says 408 later, and leaves", [Belated(response(408, b"", "Connection: close"), leaves=True)]),
    Habit(
        "two equal lengths", [head(b"200 OK", b"Content-Length: 2", b"Content-Length: 2") + b"ok" + REFUSAL]
    ),
    Habit("two lengths", [head(b"200 OK", b"Content-Length: 2", b"Content-Length: 40") + b"ok" + REFUSAL]),
    Habit(
        "length and chunks",
        [head(b"200 OK", b"Content-Length: 2", b"Transfer-Encoding: chunked") + b"0\r\n\r\n" + REFUSAL],
    ),
    Habit("a body beyond the limit", [response(200, LARGE)]),
    Habit("a body that goes on", [head(b"200 OK") + LARGE + REFUSAL]),
]


@pytest.fixture
def closed() -> Iterator[Shut]:
    with Shut() as shut:
        yield shut


@pytest.mark.report("B6")
@pytest.mark.report("H1")
def test_what_a_receiver_leaves_on_its_connection(gateway: Gateway, closed: Shut) -> None:
    """It is never taken for the next answer, and nothing of it is sent back or followed."""
    habits = {f"/hostile/{number}": habit for number, habit in enumerate(HABITS)}
    belated = [answer for habit in HABITS for answer in habit.script if isinstance(answer, Belated)]
    gateway.daemon.arguments = ("--retry-schedule", "1s", "--delivery-workers", "64")
    gateway.receiver.policy = InTurn({path: habit.script for path, habit in habits.items()})
    # No proxy that the environment may name is asked, for there is none.
    gateway.daemon.environment = dict.fromkeys(PROXIES, f"http://127.0.0.1:{closed.port}")
    gateway.start()
    oracle = Oracle(gateway)
    lanes = {subscribe_apart(oracle, path): habit.name for path, habit in habits.items()}
    repeats: list[str] = []
    for number in range(MESSAGES):
        oracle.message(f"message {number}", HOSTILE)
        repeats = oracle.settle()
        for receiver in belated:
            assert receiver.said.acquire(timeout=PATIENCE)

    came = {habit.name: gateway.receiver.on(path) for path, habit in habits.items()}
    connections = {name: {callback.connection for callback in arrived} for name, arrived in came.items()}
    assert {name: len(arrived) for name, arrived in came.items()} == {
        habit.name: MESSAGES + habit.repeats for habit in HABITS
    }
    assert {name: len(ports) < len(came[name]) for name, ports in connections.items()} == {
        habit.name: habit.shared for habit in HABITS
    }
    assert sorted(lanes[int(each.split("-")[1])] for each in repeats) == [
        habit.name for habit in HABITS if habit.repeats
    ]
    assert [lanes[lane] for lane, _ in oracle.dead()] == [habit.name for habit in HABITS if habit.dead]
    for callback in gateway.receiver.on(None):
        assert sorted(callback.request.headers) == [
            "content-length",
            "content-type",
            "host",
            "user-agent",
            "x-telegrammer-delivery-id",
        ]
