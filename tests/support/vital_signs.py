"""How a gateway bears what is done to it: how soon callbacks arrive, and how soon health answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import ceil
from pathlib import Path

from attrs import define, field

from tests.support.daemon import PATIENCE
from tests.support.gateway import CHAT, Gateway
from tests.support.http_server import response
from tests.support.oracle import Oracle

HEALTHY = ("/healthy/1", "/healthy/2", "/healthy/3")
PACE = 0.05
"""Seconds between two messages, and between two looks at health."""
PROMPT = 1.0
"""Seconds: 99 of a hundred callbacks to healthy receivers take less, from Telegram's hand to theirs."""
HEALTH = 0.1
"""Seconds in which health has to answer (contract 2.3)."""

TURNS = 6
"""So many processes and threads, one after another, take part in a callback or an answer."""


def percentile(values: Sequence[float], share: int) -> float:
    """The value that so many per cent do not exceed."""
    ranked = sorted(values)
    return ranked[ceil(len(ranked) * share / 100) - 1]


@define(eq=False)
class VitalSigns:
    """What was measured."""

    oracle: Oracle
    chat_id: int
    asked: list[float] = field(factory=list, init=False)
    """Seconds that health took, each time."""
    _given: dict[int, float] = field(factory=dict, init=False)
    """By update: when the Bot API was given it."""
    _late: list[float] = field(factory=list, init=False)
    """Seconds by which our own waits were too long."""
    _over: threading.Event = field(factory=threading.Event, init=False)

    @property
    def latencies(self) -> list[float]:
        """Of each first reception of each message that was sent meanwhile."""
        found: dict[str, float] = {}
        for callback in self.oracle.gateway.receiver.on(None):
            given = self._given.get(int(callback.delivery_id.rpartition("-")[2]))
            if given is not None:
                found.setdefault(callback.delivery_id, callback.at - given)
        return list(found.values())

    def check(self) -> None:
        """
        Once all is settled: the bounds hold.

        On a machine that is busy with other tests whoever takes part has to wait for turns; how long, our
        own waits tell.
        """
        latencies, late = self.latencies, TURNS * max(self._late)
        callbacks, health = percentile(latencies, 99), percentile(self.asked, 99)
        print(
            f"{len(latencies)} callbacks of {len(self._given)} messages: p99 {callbacks:.3f} s, "
            f"worst {max(latencies):.3f} s; {len(self.asked)} looks at health: p99 {health:.3f} s, "
            f"worst {max(self.asked):.3f} s; allowed for the machine {late:.3f} s"
        )
        assert self._given and self.arrived(), "nothing was measured"
        assert callbacks < PROMPT + late, f"healthy receivers wait {callbacks:.3f} s"
        assert health < HEALTH + late, f"health takes {health:.3f} s"

    def wait_for(self, messages: int) -> None:
        """Until so many were sent."""
        api = self.oracle.gateway.api
        api.wait_until(lambda: len(self._given) >= messages, PATIENCE + messages * PACE * TURNS)

    def arrived(self) -> bool:
        """Every healthy receiver has all that was sent meanwhile."""
        return len(self.latencies) == len(self._given) * len(HEALTHY)

    def end(self) -> None:
        self._over.set()

    def send(self) -> None:
        while not self._wait():
            began = time.monotonic()
            self.oracle.message("healthy", self.chat_id)
            self._given[self.oracle.sent[-1].update_id] = began

    def ask(self) -> None:
        while not self._wait():
            began = time.monotonic()
            reply = self.oracle.gateway.daemon.request("GET", "/health")
            self.asked.append(time.monotonic() - began)
            assert reply.status == 200 or reply.json["error"]["code"] == "AUTH_UNAVAILABLE", reply

    def _wait(self) -> bool:
        """Keep the pace; True at the end."""
        due = time.monotonic() + PACE
        over = self._over.wait(PACE)
        self._late.append(max(0.0, time.monotonic() - due))
        return over


@contextmanager
def vital_signs(oracle: Oracle, chat_id: int = CHAT) -> Iterator[VitalSigns]:
    """While inside, messages are sent to the chat and health is asked; only we use the oracle to send."""
    signs = VitalSigns(oracle, chat_id)
    with ThreadPoolExecutor(2) as pool:
        work = [pool.submit(signs.send), pool.submit(signs.ask)]
        try:
            yield signs
        finally:
            signs.end()
    for each in work:
        each.result()


def peak(pid: int) -> int:
    """The most memory the process has held since `forget_peak`, in bytes."""
    status = Path("/proc", str(pid), "status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def forget_peak(pid: int) -> int:
    """Have the peak begin anew, with what the process holds now; that many bytes."""
    Path("/proc", str(pid), "clear_refs").write_text("5")
    return peak(pid)


def prepared(gateway: Gateway, *arguments: str) -> Oracle:
    """Up, with healthy receivers that were sent something; what it holds then is the base line."""
    gateway.daemon.arguments = arguments
    gateway.start()
    oracle = Oracle(gateway)
    for path in HEALTHY:
        oracle.subscribe(path)
    # On connections that are not kept: these would count.
    policy = gateway.receiver.policy
    gateway.receiver.policy = lambda callback: response(200, b"", "Connection: close")
    oracle.messages(50, "before")
    oracle.settle()
    gateway.receiver.policy = policy
    # Some threads are there only once there was work for them.
    with ThreadPoolExecutor(16) as pool:
        for reply in pool.map(lambda _: gateway.daemon.request("GET", "/subscriptions"), range(64)):
            assert reply.status == 200, reply
    gateway.receiver.wait_until(lambda: gateway.receiver.connections == 0)
    oracle.base_line()
    forget_peak(gateway.daemon.process.pid)
    return oracle
