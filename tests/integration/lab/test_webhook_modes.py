"""From polling to pushing and back, at random, killed on the way: nothing lost, doubled, or out of order."""

from __future__ import annotations

import random

import pytest

from tests.support.barrier_daemon import barrier
from tests.support.gateway import CHAT, WEBHOOK, Gateway, in_flight
from tests.support.lab import full_only, repetitions
from tests.support.oracle import Oracle

CHATS = 5
POINTS = {
    "poll": ("ingest", "claim", "completion"),
    "webhook": ("accept", "fold", "ingest", "claim", "completion"),
}


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)


def start(gateway: Gateway, mode: str) -> None:
    """In this mode; to poll, the operator deletes the webhook first."""
    if mode == "webhook":
        gateway.daemon.arguments = WEBHOOK
    else:
        gateway.daemon.arguments = ()
        # What the last one asked for, setWebhook perhaps, is done.
        gateway.api.wait_until(lambda: gateway.api.connections == 0)
        gateway.api.webhook = ""
    gateway.start()


def write(oracle: Oracle, chance: random.Random, life: int) -> None:
    for number in range(chance.randint(1, 60)):
        oracle.message(f"life {life}, message {number}", CHAT + chance.randrange(CHATS))


@full_only
@pytest.mark.parametrize("seed", range(repetitions(1, 30)))
def test_the_mode_changes_at_random(gateway: Gateway, oracle: Oracle, seed: int) -> None:
    """
    Twelve lives, most of which end at a barrier.

    Messages come while the daemon is dead, while it starts, and while it runs; a callback comes twice only if
    it was under way at a kill.
    """
    chance = random.Random(seed)
    start(gateway, "webhook" if chance.random() < 0.5 else "poll")
    for number in range(CHATS):
        oracle.subscribe(f"/{number}", CHAT + number)
    assert gateway.daemon.stop() == 0
    under_way: set[str] = set()
    for life in range(12):
        mode = chance.choice(sorted(POINTS))
        if chance.random() < 0.7:
            write(oracle, chance, life)
        if chance.random() < 0.75:
            point = f"{chance.choice(('before', 'after'))} the commit of: {chance.choice(POINTS[mode])}"
            print(f"life {life}: {mode}, killed {point}")
            with barrier(gateway.daemon, point) as stand:
                start(gateway, mode)
                write(oracle, chance, life)
                stand.wait()
                gateway.daemon.kill()
            under_way |= in_flight(gateway)
        else:
            print(f"life {life}: {mode}, stopped")
            start(gateway, mode)
            write(oracle, chance, life)
            gateway.receiver.wait_for(len(gateway.receiver.on(None)) + 1)
            assert gateway.daemon.stop() == 0
        oracle.check()
    start(gateway, "poll" if chance.random() < 0.5 else "webhook")
    assert set(oracle.settle()) <= under_way
    assert gateway.query("SELECT count(*) FROM journal WHERE parse_status <> 'folded'") == [(0,)]
