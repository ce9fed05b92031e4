"""
Killed at the commits of an acceptance and of a fold: Telegram repeats what it was not answered, and no more.

In the quick form one cycle each; in the full form a hundred, and two hundred kills at random under load.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from attrs import frozen

from tests.support.barrier_daemon import barrier
from tests.support.gateway import CHAT, Gateway, eventually, in_flight
from tests.support.lab import full_only, repetitions
from tests.support.oracle import Oracle

cycles = pytest.mark.parametrize("cycle", range(repetitions(1, 100)))


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)


def statuses(gateway: Gateway) -> list[str]:
    """Of the journal's entries, in its order."""
    return [status for (status,) in gateway.query("SELECT parse_status FROM journal ORDER BY id")]


def heard(port: int) -> int:
    """Connections to a port of this machine of which its owner has read all that has come (proc(5))."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # Local address, state (1: established), and the bytes in both queues.
    return sum(
        int(row[1].rpartition(":")[2], 16) == port and row[3] == "01" and int(row[4].split(":")[1], 16) == 0
        for row in rows
    )


@frozen
class Then:
    """How things stand at a boundary, with three messages of one chat."""

    point: str
    journal: list[str]
    jobs: int
    calls: int
    """Of the webhook for the first message, in the end."""


BOUNDARIES = (
    Then("before the commit of: accept", journal=[], jobs=0, calls=2),
    Then("after the commit of: accept", journal=["pending"], jobs=0, calls=2),
    Then("before the commit of: fold", journal=["pending"], jobs=0, calls=1),
    Then("after the commit of: fold", journal=["folded"], jobs=1, calls=1),
)


@cycles
@pytest.mark.parametrize("then", BOUNDARIES, ids=lambda then: then.point)
def test_killed_at_a_commit_of_the_journal(gateway: Gateway, oracle: Oracle, then: Then, cycle: int) -> None:
    """Nothing is lost, nothing reordered, nothing doubled: no callback had begun."""
    pusher = gateway.api.pusher
    with barrier(gateway.daemon, then.point) as stand:
        gateway.start_with_webhook()
        oracle.subscribe()
        oracle.messages(3)
        stand.wait()
        # The second may have come into the journal beside the fold of the first.
        assert statuses(gateway)[: max(1, len(then.journal))] == then.journal
        assert gateway.query("SELECT count(*) FROM deliveries") == [(then.jobs,)]
        assert gateway.receiver.on(None) == []
        # Once the reactor has had its turns, whatever it would answer is answered.
        gateway.daemon.health()
        first = oracle.sent[0].update_id
        assert (first in pusher.confirmed) == (then.calls == 1)
        gateway.daemon.kill()
    assert oracle.check() == []

    gateway.start_with_webhook()
    assert oracle.settle() == []
    assert statuses(gateway) == ["folded"] * 3
    assert [push.status for push in pusher.of(first)][-1] == 200
    # While it was dead, calls were refused.
    heard = [push for push in pusher.of(first) if push.error != "Connection refused"]
    assert len(heard) == then.calls


@cycles
def test_killed_amid_the_delivery_of_what_was_folded(gateway: Gateway, oracle: Oracle, cycle: int) -> None:
    gateway.receiver.policy = lambda callback: None
    gateway.start_with_webhook()
    oracle.subscribe()
    oracle.messages(3)
    (held,) = gateway.receiver.wait_for(1)
    gateway.api.pusher.wait_for(*(sent.update_id for sent in oracle.sent))
    gateway.daemon.kill()
    assert oracle.check() == []

    gateway.receiver.policy = lambda callback: 200
    gateway.start_with_webhook()
    assert oracle.settle() == [held.delivery_id]


def test_repeats_of_what_is_under_way(gateway: Gateway, oracle: Oracle) -> None:
    """As when Telegram's connection broke: each call is answered, and one of them was the first."""
    pusher = gateway.api.pusher
    with barrier(gateway.daemon, "before the commit of: accept") as stand:
        gateway.start_with_webhook()
        oracle.subscribe()
        body = b'{"update_id":%d,"message":%b}' % (gateway.api.queue.next_id, oracle.message("Hello"))
        stand.wait()
        port = urlsplit(pusher.route()).port
        assert port is not None
        with ThreadPoolExecutor(6) as pool:
            calls = [pool.submit(pusher.call, body) for _ in range(4)]
            others = [pool.submit(pusher.call, b'{"update_id":%d}' % number) for number in (7000, 7001)]
            eventually(lambda: heard(port) >= 1 + 6)
            stand.release()
            replies = [call.result() for call in calls + others]
    assert [(reply.status, reply.json) for reply in replies] == [(200, {"ok": True})] * 6
    assert oracle.settle() == []
    assert gateway.query("SELECT count(*) FROM journal") == [(3,)]
    assert pusher.call(body).status == 200, "after it was delivered"
    eventually(lambda: set(statuses(gateway)) == {"folded"})
    assert oracle.settle() == []


@full_only
@pytest.mark.parametrize("seed", range(repetitions(1, 20)))
def test_killed_at_random_while_pushed_to(gateway: Gateway, oracle: Oracle, seed: int) -> None:
    """Ten kills each: repeated is what was in flight at one, and no more."""
    chance = random.Random(seed)
    gateway.start_with_webhook()
    for number in range(5):
        oracle.subscribe(f"/{number}", CHAT + number)
    under_way: set[str] = set()
    pusher = gateway.api.pusher
    for life in range(10):
        for number in range(100):
            oracle.message(f"life {life}, message {number}", CHAT + number % 5)
        if chance.random() < 0.5:
            pusher.wait_for_count(len(pusher.confirmed) + chance.randint(1, 90))
        else:
            gateway.receiver.wait_for(len(gateway.receiver.on(None)) + chance.randint(1, 90))
        gateway.daemon.kill()
        under_way |= in_flight(gateway)
        oracle.check()
        gateway.start_with_webhook()
    assert set(oracle.settle()) <= under_way
    assert set(statuses(gateway)) == {"folded"}
