"""
Subscriptions come and go while messages flow: those that stay notice nothing, those that went leave nothing.

The oracle does not serve removed subscriptions; here each guest is judged by itself.
"""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from attrs import define, field, frozen

from tests.support.gateway import CHAT, Gateway, eventually
from tests.support.lab import repetitions
from tests.support.queue_checks import broken
from tests.support.receiver import Callback

SECONDS = repetitions(4, 60)
KEEPERS = [f"/stays/{number}" for number in range(4)]
KINDS = ("well", "fails", "refuses", "hangs")
"""What a guest's receiver does; it is removed between messages, in a back-off, with dead jobs, in flight."""


def policy(callback: Callback) -> int | None:
    kind = callback.path.split("/")[1]
    return {"fails": 503, "refuses": 404, "hangs": None}.get(kind, 200)


@frozen
class Guest:
    """One that came and went."""

    id: int
    path: str
    passed: int
    """The messages that had arrived elsewhere before it asked: none of them is its own."""
    since: int
    """The messages that the Bot API had been given when it was answered: it is owed those that follow."""
    gone: float
    """When its removal was answered (monotonic)."""


@define(eq=False)
class House:
    """Messages, those that stay, and the guests."""

    gateway: Gateway
    bodies: list[bytes] = field(factory=list)
    """By number of the message."""
    numbers: dict[int, int] = field(factory=dict)
    """By update id: the number of the message."""
    guests: list[Guest] = field(factory=list)
    over: threading.Event = field(factory=threading.Event)

    def message(self) -> None:
        # Known before it can arrive.
        update_id = self.gateway.api.queue.next_id
        self.numbers[update_id] = len(self.bodies)
        given, body = self.gateway.api.message(CHAT, f"message {len(self.bodies)}")
        assert given == update_id
        self.bodies.append(body)

    def receptions(self, path: str, subscription_id: int) -> list[Callback]:
        mark = f"-{subscription_id}-"
        return [callback for callback in self.gateway.receiver.on(path) if mark in callback.delivery_id]

    def receive(self, kind: str, names: Iterator[int]) -> None:
        """Guests of a kind, one after the other, until it is over."""
        daemon = self.gateway.daemon
        path, held = f"/{kind}/{next(names)}", list[Callback]()
        while not self.over.is_set():
            passed = max(len(self.gateway.receiver.on(keeper)) for keeper in KEEPERS)
            subscription_id = self.gateway.subscribe(path)
            since = len(self.bodies)
            while held:
                held.pop().answer()
            arrived = self.wait_for(path, subscription_id, 3 if kind == "well" else 1)
            assert daemon.request("DELETE", f"/subscriptions/{subscription_id}").status == 204
            self.guests.append(Guest(subscription_id, path, passed, since, time.monotonic()))
            assert daemon.request("DELETE", f"/subscriptions/{subscription_id}").status == 404
            if kind == "hangs":
                held = arrived
            if len(self.guests) % 2:
                # Else the next guest has the address of this one, whose POST may be under way.
                path = f"/{kind}/{next(names)}"
                while held:
                    held.pop().answer()
        while held:
            held.pop().answer()

    def wait_for(self, path: str, subscription_id: int, count: int) -> list[Callback]:
        arrived: list[Callback] = []

        def enough() -> bool:
            arrived[:] = self.receptions(path, subscription_id)
            return len(arrived) >= count

        eventually(enough)
        return arrived

    def judge(self, guest: Guest) -> None:
        """In order, without a gap, from the first that it was owed, and nothing once it had gone."""
        arrived = self.receptions(guest.path, guest.id)
        for callback in arrived:
            assert callback.body == self.bodies[self.number(callback)], "other bytes"
        numbers = list(dict.fromkeys(self.number(callback) for callback in arrived))
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), f"{guest}: {numbers}"
        assert guest.passed <= numbers[0] <= guest.since, f"{guest}: {numbers}"
        late = [callback for callback in arrived if callback.at > guest.gone]
        assert len(late) <= 1, f"{guest}: more than was in flight came after its removal"

    def number(self, callback: Callback) -> int:
        return self.numbers[int(callback.delivery_id.rpartition("-")[2])]


@pytest.fixture
def house(gateway: Gateway) -> House:
    return House(gateway)


def test_guests_come_and_go(gateway: Gateway, house: House) -> None:
    receiver, daemon = gateway.receiver, gateway.daemon
    receiver.policy = policy
    gateway.start()
    keepers = [gateway.subscribe(path) for path in KEEPERS]
    names = itertools.count()
    with ThreadPoolExecutor(len(KINDS)) as pool:
        callers = [pool.submit(house.receive, kind, names) for kind in KINDS]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and not any(caller.done() for caller in callers):
            house.message()
            # A few in hand at most, so that guests come amid them.
            enough = len(house.bodies) - 5
            receiver.wait_until(lambda least=enough: len(receiver.on(KEEPERS[0])) >= least)  # type: ignore[misc]
        house.over.set()
        while not all(caller.done() for caller in callers):
            # The last guests have to be served before they leave.
            house.message()
            time.sleep(0.05)
        for caller in callers:
            caller.result()
    receiver.wait_until(lambda: all(len(receiver.on(path)) >= len(house.bodies) for path in KEEPERS))
    for path in KEEPERS:
        assert [callback.body for callback in receiver.on(path)] == house.bodies
    ids = [*keepers, *(guest.id for guest in house.guests)]
    assert len(set(ids)) == len(ids), "an id was used again"
    for guest in house.guests:
        house.judge(guest)
    kinds = {kind: sum(guest.path.startswith(f"/{kind}/") for guest in house.guests) for kind in KINDS}
    print(f"{len(house.bodies)} messages, guests: {kinds}")
    assert min(kinds.values()) > 0

    assert found_broken(gateway) == []
    assert {row[0] for row in gateway.query("SELECT id FROM subscriptions")} == set(keepers)
    for subscription_id in keepers:
        assert daemon.request("DELETE", f"/subscriptions/{subscription_id}").status == 204
    for table in ("subscriptions", "lanes", "deliveries", "payloads"):
        assert gateway.query(f"SELECT count(*) FROM {table}") == [(0,)], table
    eventually(lambda: daemon.health()["components"]["delivery"]["busy"] == 0)
    assert daemon.health()["status"] == "ok"
    assert found_broken(gateway) == []


def found_broken(gateway: Gateway) -> list[str]:
    uri = f"{gateway.daemon.db.as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=5, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        return broken(connection)
