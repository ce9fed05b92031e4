"""
Hostile receivers of every kind at once, on one daemon, with healthy ones beside them.

Each is hostile at the first attempt and well behaved from then on, so that what it did is seen by whether it
is asked again, and with which reason; and each is a lane of its own.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from itertools import cycle

import pytest
from attrs import frozen

from tests.support.daemon import PATIENCE
from tests.support.gateway import CHAT, Gateway, eventually
from tests.support.hostile import Blurts, InTurn, bomb, drips, floods, late, says, unheard
from tests.support.http_server import response
from tests.support.lab import FULL, repetitions
from tests.support.oracle import Oracle
from tests.support.receiver import Conduct
from tests.support.vital_signs import forget_peak, peak, use_every_thread, vital_signs

HOSTILE = CHAT + 1
"""The chat whose messages they get."""
OK = response(200, b"ok")
TIMEOUT = "timeout after 10 s"
TOO_LARGE = "response head too large"
MALFORMED = "malformed response"
MEMORY = 2 * 2**20
"""Bytes by which a hostile connection may have the daemon grow."""


@frozen
class Kind:
    """A hostile answer, and what must come of it."""

    name: str
    conduct: Conduct
    again: str | None = None
    """The reason, when it is to be tried again."""
    dead: str | None = None
    """The reason, when it is final."""


def head(status: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, *fields]) + b"\r\n\r\n"


def framed(name: str, *fields: bytes, body: bytes = b"ok") -> Kind:
    """A 200 whose framing is in doubt, which its status is not."""
    return Kind(name, says(head(b"200 OK", *fields) + body, then="hangs"))


CHUNKED = b"Transfer-Encoding: chunked"
ENDLESS = b"Content-Length: 999999999999"

SLOW = [
    Kind("never answers", says(then="hangs"), TIMEOUT),
    Kind("stops within the head", says(b"HTTP/1.1 200 OK\r\nContent-", then="hangs"), TIMEOUT),
    Kind("drips a status line", drips(b"HTTP/1.1 200 ", b"O"), TIMEOUT),
    Kind("drips a field", drips(b"HTTP/1.1 200 OK\r\nX: ", b"y"), TIMEOUT),
    Kind("drips fields", drips(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), TIMEOUT),
    Kind("drips 100s", drips(b"", head(b"100 Continue")), TIMEOUT),
    Kind("drips blank lines", drips(b"", b"\r\n"), TIMEOUT),
    Kind("drips the body of a 200", drips(head(b"200 OK", ENDLESS), b"x")),
    Kind("drips a chunk of a 200", drips(head(b"200 OK", CHUNKED) + b"ff\r\n", b"x")),
    Kind("drips the body of a 503", drips(head(b"503 x", ENDLESS), b"x"), "HTTP 503"),
    Kind("stops within the body of a 404", says(head(b"404 x", ENDLESS), then="hangs"), dead="HTTP 404"),
    Kind("answers late, but in time", late(9.9 if FULL else 9.5, OK)),
    Kind("answers too late", late(11, OK), TIMEOUT),
]

FLOODS = [
    Kind("flood in the status line", floods(b"HTTP/1.1 200 ", b"O" * 1024), TOO_LARGE),
    Kind("flood of digits for a status", floods(b"HTTP/1.1 ", b"2" * 1024), MALFORMED),
    Kind("flood in a field", floods(b"HTTP/1.1 200 OK\r\nX: ", b"y" * 1024), TOO_LARGE),
    Kind("flood of fields", floods(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), TOO_LARGE),
    Kind("flood of 100s", floods(b"", head(b"100 Continue")), TOO_LARGE),
    Kind("flood of 103s", floods(b"", head(b"103 x", b"Link: </a>; rel=preload")), TOO_LARGE),
    Kind("flood of blank lines", floods(b"", b"\r\n"), TOO_LARGE),
    Kind("flood of zeros", floods(b"", b"\0"), MALFORMED),
    Kind("flood of a 200 without a length", floods(head(b"200 OK"), b"x" * 1024)),
    Kind("flood of a 200 with a length", floods(head(b"200 OK", ENDLESS), b"x" * 1024)),
    Kind("flood of chunks", floods(head(b"200 OK", CHUNKED), b"1\r\nx\r\n")),
    Kind("flood in a chunk's extension", floods(head(b"503 x", CHUNKED) + b"1;", b"e"), "HTTP 503"),
    Kind("flood of trailers", floods(head(b"200 OK", CHUNKED) + b"0\r\n", b"X: y\r\n")),
    Kind("flood of a 404", floods(head(b"404 x"), b"x" * 1024), dead="HTTP 404"),
    Kind("flood of answers", floods(b"", OK)),
    Kind("gzip bomb", says(bomb())),
    Kind("gzip bomb at 503", says(bomb().replace(b"200 OK", b"503 OK")), "HTTP 503"),
]

FRAMING = [
    framed("two equal lengths", b"Content-Length: 2", b"Content-Length: 2"),
    framed("two lengths", b"Content-Length: 2", b"Content-Length: 3"),
    framed("a list of lengths", b"Content-Length: 2, 2"),
    framed("length and chunks", b"Content-Length: 2", CHUNKED, body=b"2\r\nok\r\n0\r\n\r\n"),
    framed("chunks and length", CHUNKED, b"Content-Length: 2", body=b"2\r\nok\r\n0\r\n\r\n"),
    framed("a negative length", b"Content-Length: -1"),
    framed("a length with a sign", b"Content-Length: +2"),
    framed("a length of 5000 digits", b"Content-Length: " + b"9" * 5000),
    framed("a chunk of 2^64", CHUNKED, body=b"10000000000000000\r\nok\r\n"),
    framed("a negative chunk", CHUNKED, body=b"-2\r\nok\r\n"),
    framed("an unknown coding", b"Transfer-Encoding: x, chunked", body=b"2\r\nok\r\n0\r\n\r\n"),
    framed("a space before the colon", b"Content-Length : 2"),
    framed("a zero byte", b"X: \0", b"Content-Length: 2"),
    framed("a folded line", b"X: y", b" z", b"Content-Length: 2"),
    Kind("bare line feeds", says(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", then="hangs")),
]

KINDS: Sequence[Kind] = (*SLOW, *FLOODS, *FRAMING)
HALF_A_HANDSHAKE = b"\x16\x03\x03\x40\x00\x02"
HEALTHY = ("/healthy/1", "/healthy/2", "/healthy/3")


def subscribe_apart(oracle: Oracle, path: str) -> int:
    """At an address of its own, for connections to one address are shared by whoever is behind it."""
    receiver = oracle.gateway.receiver
    address = f"127.0.1.{len(oracle.subscribed)}"
    receiver.listen_at(address)
    subscription_id = oracle.gateway.daemon.subscribe(HOSTILE, f"http://{address}:{receiver.port}{path}")
    oracle.answered(subscription_id, path, HOSTILE)
    return subscription_id


def ready(gateway: Gateway, *arguments: str) -> Oracle:
    """Up, with healthy receivers that were sent something; what it holds then is the base line."""
    gateway.daemon.arguments = arguments
    gateway.start()
    oracle = Oracle(gateway)
    for path in HEALTHY:
        oracle.subscribe(path)
    oracle.messages(50, "before")
    oracle.settle()
    use_every_thread(gateway)
    gateway.receiver.wait_until(lambda: gateway.receiver.connections == 0)
    oracle.base_line()
    forget_peak(gateway.daemon.process.pid)
    return oracle


@pytest.mark.report("B2")
@pytest.mark.report("H2")
@pytest.mark.report("H10")
@pytest.mark.report("H16")
def test_every_kind_at_once(gateway: Gateway) -> None:
    """Each costs its own lane an attempt, and nobody else anything; when they are gone nothing is left."""
    kinds = {f"/hostile/{number}": kind for number, kind in enumerate(KINDS)}
    gateway.receiver.policy = InTurn({path: [kind.conduct, OK] for path, kind in kinds.items()})
    oracle = ready(gateway, "--retry-schedule", "2s", "--delivery-workers", "64")
    before = peak(gateway.daemon.process.pid)
    seen: dict[int, str] = {}

    with unheard() as silent, Blurts() as mute, Blurts(HALF_A_HANDSHAKE) as half:
        lanes = {subscribe_apart(oracle, path): (path, kind) for path, kind in kinds.items()}
        elsewhere = {
            gateway.daemon.subscribe(HOSTILE, f"http://127.0.0.1:{silent}/"): "connect timeout",
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


MOST_OF_A_HEAD = 65_000
MOST = (
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * MOST_OF_A_HEAD,
    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (MOST_OF_A_HEAD // 6),
    b"HTTP/1.1 200 OK\r\n" + b"Retry-After: 1\r\n" * (MOST_OF_A_HEAD // 16),
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\nX: " + b"y" * MOST_OF_A_HEAD,
    head(b"503 x", ENDLESS) + b"x" * 2 * MOST_OF_A_HEAD,
)
"""The most that is listened to."""
TWENTY = 20


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
    most = {path: all_together(words) for path, words in zip(paths, cycle(MOST), strict=False)}
    times = repetitions(1, 20)
    gateway.receiver.policy = InTurn({path: [conduct, OK] * times for path, conduct in most.items()})
    oracle = ready(gateway, "--retry-schedule", "1s", "--delivery-workers", "64")
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
