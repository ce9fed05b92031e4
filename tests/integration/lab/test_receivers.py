"""
Hostile receivers of every kind at once, on one daemon, with healthy ones beside them.

Each is hostile at the first attempt and well behaved from then on, so that what it did is seen by whether it
is asked again, and with which reason; and each is a lane of its own.
"""

from __future__ import annotations

import socket
import threading
from itertools import cycle

import pytest

from tests.support.daemon import PATIENCE
from tests.support.gateway import Gateway, eventually
from tests.support.hostile import HALF_A_HANDSHAKE, HOSTILE, Blurts, InTurn, Shut, subscribe_apart
from tests.support.hostile_kinds import KINDS, MOST, OK, TIMEOUT
from tests.support.lab import full_only, repetitions
from tests.support.receiver import Conduct
from tests.support.vital_signs import peak, prepared, vital_signs

MEMORY = 2 * 2**20
"""Bytes by which a hostile connection may have the daemon grow."""


@pytest.mark.report("B2")
@pytest.mark.report("H2")
@pytest.mark.report("H10")
@pytest.mark.report("H16")
def test_every_kind_at_once(gateway: Gateway) -> None:
    """Each costs its own lane an attempt, and nobody else anything; when they are gone nothing is left."""
    kinds = {f"/hostile/{number}": kind for number, kind in enumerate(KINDS)}
    gateway.receiver.policy = InTurn({path: [kind.conduct, OK] for path, kind in kinds.items()})
    oracle = prepared(gateway, "--retry-schedule", "2s", "--delivery-workers", "64")
    before = peak(gateway.daemon.process.pid)
    seen: dict[int, str] = {}

    with Shut().fall_silent() as silent, Blurts() as mute, Blurts(HALF_A_HANDSHAKE) as half:
        lanes = {subscribe_apart(oracle, path): (path, kind) for path, kind in kinds.items()}
        elsewhere = {
            gateway.daemon.subscribe(HOSTILE, f"http://127.0.0.1:{silent.port}/"): "connect timeout",
            gateway.daemon.subscribe(HOSTILE, f"https://127.0.0.1:{mute.port}/"): TIMEOUT,
            gateway.daemon.subscribe(HOSTILE, f"https://127.0.0.1:{half.port}/"): TIMEOUT,
        }

        def over() -> bool:
            """Each has done its worst; notes the first reason that is told of each."""
            jobs = gateway.query("SELECT subscription_id, state, last_error FROM deliveries")
            for lane, _, reason in jobs:
                if reason is not None:
                    seen.setdefault(lane, reason)
            waiting = {lane for lane, state, _ in jobs if state != "DEAD"}
            return not waiting & lanes.keys() and elsewhere.keys() <= seen.keys()

        oracle.message("hello", HOSTILE)
        with vital_signs(oracle) as signs:
            eventually(over)
    oracle.settle()

    dead = {lane for lane, _ in oracle.dead()}
    assert {
        kind.name: (seen.get(lane), len(gateway.receiver.on(path))) for lane, (path, kind) in lanes.items()
    } == {kind.name: (kind.again or kind.dead, 2 if kind.again else 1) for kind in KINDS}
    assert dead - elsewhere.keys() == {lane for lane, (_, kind) in lanes.items() if kind.dead}
    assert {lane: seen[lane] for lane in elsewhere} == elsewhere
    signs.check()
    grown = peak(gateway.daemon.process.pid) - before
    print(f"{len(KINDS) + len(elsewhere)} hostile connections: grown by {grown / 2**20:.1f} MiB at the peak")
    assert grown < MEMORY * len(KINDS)
    oracle.check_base_line()


TWENTY = 20


@full_only
def test_twenty_at_once_cost_little_memory(gateway: Gateway) -> None:
    """All of them have said the most that is listened to before the first of them leaves."""
    everybody = threading.Barrier(TWENTY)

    def all_together(words: bytes) -> Conduct:
        def conduct(wire: socket.socket) -> bool:
            try:
                wire.sendall(words)
            finally:
                everybody.wait(PATIENCE)
            return False

        return conduct

    paths = [f"/hostile/{number}" for number in range(TWENTY)]
    most = {path: all_together(words) for path, (_, words) in zip(paths, cycle(MOST), strict=False)}
    times = repetitions(1, 10)
    gateway.receiver.policy = InTurn({path: [conduct, OK] * times for path, conduct in most.items()})
    oracle = prepared(gateway, "--retry-schedule", "1s", "--delivery-workers", "64")
    before = peak(gateway.daemon.process.pid)
    for path in paths:
        subscribe_apart(oracle, path)
    for _ in range(times):
        oracle.message("hello", HOSTILE)
        oracle.settle()
    assert [len(gateway.receiver.on(path)) for path in paths] == [2 * times] * TWENTY
    grown = peak(gateway.daemon.process.pid) - before
    print(f"{TWENTY} hostile connections at once: grown by {grown / 2**20:.1f} MiB at the peak")
    assert grown < MEMORY * TWENTY
    oracle.check_base_line()
