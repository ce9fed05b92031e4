"""
Hostile receivers of every kind at once, on one daemon, with healthy ones beside them.

Each is hostile at the first attempt and well behaved from then on, so that what it did is seen by whether it
is asked again, and with which reason; and each is a lane of its own.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections import Counter
from itertools import cycle
from pathlib import Path

import pytest
import trustme

from tests.support.daemon import PATIENCE
from tests.support.gateway import Gateway, eventually
from tests.support.hostile import (
    HALF_A_HANDSHAKE,
    HELLO_REQUEST,
    HOSTILE,
    TAKES_LEAVE,
    Blurts,
    Floods,
    InTurn,
    Shut,
    subscribe_apart,
)
from tests.support.hostile_kinds import KINDS, MOST, OK, OVER_TLS, TIMEOUT
from tests.support.lab import full_only, repetitions
from tests.support.receiver import CallbackReceiver, Conduct
from tests.support.vital_signs import peak, prepared, vital_signs

MEMORY = 2 * 2**20
"""Bytes by which a hostile connection may have the daemon grow."""
LISTENED_TO = 32 * 2**20
"""Bytes: what the kernel holds for a connection is far less, and what a flood says in 10 s far more."""


@pytest.mark.report("B2")
@pytest.mark.report("H2")
@pytest.mark.report("H10")
@pytest.mark.report("H16")
def test_every_kind_at_once(gateway: Gateway, tmp_path: Path) -> None:
    """Each costs its own lane an attempt, and nobody else anything; when they are gone nothing is left."""
    kinds = {f"/hostile/{number}": kind for number, kind in enumerate(KINDS)}
    gateway.receiver.policy = InTurn({path: [kind.conduct, OK] for path, kind in kinds.items()})
    by_tls = {f"127.0.2.{number}": kind for number, kind in enumerate(OVER_TLS, 1)}
    policy = InTurn({f"/{address}": [kind.conduct, OK] for address, kind in by_tls.items()})
    trusted, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trusted.issue_cert(*by_tls).configure_cert(tls)
    trusted.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    oracle = prepared(
        *(gateway, "--ca-file", str(tmp_path / "ca.pem")),
        *("--retry-schedule", "2s", "--delivery-workers", "128"),
    )
    before = peak(gateway.daemon.process.pid)
    seen: dict[int, str] = {}

    with (
        CallbackReceiver(policy, tls=tls) as secure,
        Shut().fall_silent() as silent,
        Blurts() as mute,
        Blurts(HALF_A_HANDSHAKE) as half,
        Blurts(TAKES_LEAVE) as leaves,
        Blurts(piece=TAKES_LEAVE) as leaves_often,
        Blurts(piece=HELLO_REQUEST) as flood,
    ):
        lanes = {subscribe_apart(oracle, path): (path, kind) for path, kind in kinds.items()}
        for address, kind in by_tls.items():
            secure.listen_at(address)
            url = f"https://{address}:{secure.port}/{address}"
            lanes[gateway.daemon.subscribe(HOSTILE, url)] = (f"/{address}", kind)
        elsewhere = {
            gateway.daemon.subscribe(HOSTILE, f"http://127.0.0.1:{silent.port}/"): "connect timeout",
            gateway.daemon.subscribe(HOSTILE, f"https://127.0.0.1:{mute.port}/"): TIMEOUT,
            gateway.daemon.subscribe(HOSTILE, f"https://127.0.0.1:{half.port}/"): TIMEOUT,
        } | {
            gateway.daemon.subscribe(HOSTILE, f"https://127.0.0.1:{each.port}/"): "TLS handshake failed"
            for each in (leaves, leaves_often, flood)
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
    attempts = Counter(callback.path for callback in (*gateway.receiver.on(None), *secure.on(None)))
    assert {path: (kind.name, seen.get(lane), attempts[path]) for lane, (path, kind) in lanes.items()} == {
        path: (kind.name, kind.again or kind.dead, 2 if kind.again else 1) for path, kind in lanes.values()
    }
    assert dead - elsewhere.keys() == {lane for lane, (_, kind) in lanes.items() if kind.dead}
    assert {lane: seen[lane] for lane in elsewhere} == elsewhere
    signs.check()
    grown = peak(gateway.daemon.process.pid) - before
    hostile = len(lanes) + len(elsewhere)
    print(f"{hostile} hostile connections: grown by {grown / 2**20:.1f} MiB at the peak")
    assert grown < MEMORY * hostile
    for kind in KINDS:
        if isinstance(kind.conduct, Floods):
            assert 0 < kind.conduct.said < LISTENED_TO, f"{kind.name}: {kind.conduct.said} bytes"
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
