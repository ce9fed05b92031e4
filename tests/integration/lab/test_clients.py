"""
Clients that are many, slow, or gone: what the contract grants them, and not more; everybody else is served.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from attrs import define, field

from tests.support.daemon import PATIENCE
from tests.support.gateway import Gateway
from tests.support.held import Held, check_workers
from tests.support.lab import full_only, repetitions
from tests.support.oracle import Footprint, Oracle
from tests.support.wire import (
    WireAnswer,
    chunked,
    connect,
    first_answered,
    head,
    many,
    post,
    read_answers,
    read_to_end,
    send_body,
    warm_up,
)

WORKERS, QUEUE, CONNECTIONS = 8, 64, 256
"""The defaults of contract 1.2."""
WAIT = 5.0
"""Seconds: contract 2 gives them to a head, to a body without progress, and to the wait for a turn."""
EARLY = 0.2
"""Seconds that two clocks, or two ends of a connection, may differ."""


@pytest.fixture
def oracle(running: Gateway) -> Oracle:
    """Of a daemon that has done some of everything."""
    oracle = Oracle(running)
    oracle.subscribe()
    oracle.messages(3)
    assert running.daemon.request("POST", "/send", {"chat_id": 5, "text": "warm"}).status == 200
    with many(running.daemon, WORKERS) as peers:
        for peer in peers:
            peer.sendall(post(b"/send", running.daemon.key, send_body("warm"), b"Connection: close"))
        for peer in peers:
            assert [answer.status for answer in read_answers(read_to_end(peer))] == [200]
    assert oracle.settle() == []
    warm_up(running.daemon)
    running.api.calls.clear()
    return oracle


@pytest.fixture
def held(running: Gateway) -> Iterator[Held]:
    held = Held(running)
    yield held
    held.let_go()


# -- as many as there are ----------------------------------------------------------------------------------


def sends(gateway: Gateway, peers: Sequence[socket.socket]) -> None:
    for number, peer in enumerate(peers):
        body = send_body(f"caller {number}")
        peer.sendall(post(b"/send", gateway.daemon.key, body, b"Connection: close"))


def answers(peers: Sequence[socket.socket]) -> list[tuple[WireAnswer, float]]:
    """The one answer of each, and when it came."""

    def read(peer: socket.socket) -> tuple[WireAnswer, float]:
        (answer,) = read_answers(read_to_end(peer))
        return answer, time.monotonic()

    with ThreadPoolExecutor(len(peers)) as pool:
        return list(pool.map(read, peers))


def test_eighty_callers_at_once(running: Gateway, oracle: Oracle, held: Held) -> None:
    """Eight work, 64 wait and are served when there is room; the rest are told at once to come again."""
    oracle.base_line()
    running.api.fallback["sendMessage"] = held
    with many(running.daemon, 80) as peers:
        began = time.monotonic()
        sends(running, peers)
        refused = first_answered(peers, 80 - WORKERS - QUEUE)
        assert time.monotonic() - began < WAIT - EARLY, "who is refused has waited first"
        running.api.wait_until(lambda: held.under_way == WORKERS)
        assert running.daemon.ask_health().status == 200, "it takes no turn"
        held.let_go()
        came = [answer for answer, _ in answers(peers)]
        nobody_waited_too_long = time.monotonic() - began < WAIT - EARLY
    statuses = Counter((answer.status, answer.code if answer.status != 200 else None) for answer in came)
    print(f"80 callers: {dict(statuses)}; {len(refused)} refused at first; {held.most} at once upstream")
    # 64 more have 5 s for their turns; a machine that takes longer over them turns some of them away, too.
    assert statuses.keys() <= {(200, None), (503, "OVERLOADED")}
    assert statuses[(503, "OVERLOADED")] >= 80 - WORKERS - QUEUE
    assert statuses[(200, None)] >= (WORKERS + QUEUE if nobody_waited_too_long else WORKERS)
    assert held.most == WORKERS
    texts = Counter(call.arguments["text"] for call in running.api.of("sendMessage"))
    served = Counter(f"caller {number}" for number, each in enumerate(came) if each.status == 200)
    assert texts == served, "sent is what was answered 200, once"
    oracle.check_base_line()
    check_workers(running)
    assert oracle.settle() == []


def test_who_waits_too_long_is_turned_away(running: Gateway, oracle: Oracle, held: Held) -> None:
    """After 5 s, with nothing done; those who work are not disturbed."""
    oracle.base_line()
    running.api.fallback["sendMessage"] = held
    with many(running.daemon, WORKERS + QUEUE) as peers:
        sends(running, peers[:WORKERS])
        running.api.wait_until(lambda: held.under_way == WORKERS)
        began = time.monotonic()
        sends(running, peers[WORKERS:])
        turned_away = answers(peers[WORKERS:])
        held.let_go()
        worked = [answer.status for answer, _ in answers(peers[:WORKERS])]
    assert {answer.code for answer, _ in turned_away} == {"OVERLOADED"}
    waited = [came - began for _, came in turned_away]
    print(f"turned away after {min(waited):.2f} to {max(waited):.2f} s")
    assert min(waited) > WAIT - EARLY
    assert worked == [200] * WORKERS
    assert len(running.api.of("sendMessage")) == WORKERS
    oracle.check_base_line()
    check_workers(running)
    assert oracle.settle() == []


# -- slow ones ---------------------------------------------------------------------------------------------


@define(eq=False)
class Slow:
    """A client that begins, and then sends a byte again and again, or nothing at all."""

    begins: bytes
    goes_on: bytes
    statuses: list[int]
    """What it is told in the end."""
    at_least: float = WAIT
    peer: socket.socket = field(init=False)
    began: float = field(default=0.0, init=False)
    ended: float = field(default=0.0, init=False)
    received: bytearray = field(factory=bytearray, init=False)


def kinds(key: str) -> list[Callable[[], Slow]]:
    body = send_body("slow")
    plain = head(b"POST", b"/send", key, b"Content-Type: application/json", b"Content-Length: 60000")
    in_chunks = chunked(b"/send", key, b"")
    return [
        lambda: Slow(b"", b"", []),
        lambda: Slow(b"G", b"", [408]),
        lambda: Slow(b"GET /health HTTP/1.1\r\nHost: x\r\n", b"X: y\r\n", [408]),
        lambda: Slow(b"POST /send HTTP/1.1\r\nX: ", b"y", [408]),
        lambda: Slow(plain, b"", [408]),
        lambda: Slow(plain + body, b"", [408]),
        lambda: Slow(in_chunks, b"", [408]),
        lambda: Slow(in_chunks + b"5\r\nhel", b"", [408]),
        lambda: Slow(head(b"GET", b"/subscriptions", key), b"", [200]),
    ]


def drip(slow: Sequence[Slow], seconds: float) -> None:
    """Run them all until each is ended by the daemon; a byte a second, where they go on."""
    left = {each.peer.fileno(): each for each in slow}
    poll = select.poll()
    for number in left:
        poll.register(number, select.POLLIN)
    until, next_drop = time.monotonic() + seconds, time.monotonic() + 1
    while left:
        now = time.monotonic()
        assert now < until, (
            f"{len(left)} are not ended: {[bytes(each.begins[:40]) for each in left.values()][:5]}"
        )
        for number, _ in poll.poll(50):
            each = left[number]
            try:
                piece = each.peer.recv(65536)
            except ConnectionError:
                piece = b""
            each.received += piece
            if not piece:
                each.ended = time.monotonic()
                poll.unregister(number)
                del left[number]
        if now >= next_drop:
            next_drop = now + 1
            for each in left.values():
                with contextlib.suppress(OSError):
                    each.peer.send(each.goes_on)


def begin(gateway: Gateway, slow: Sequence[Slow]) -> None:
    for each in slow:
        each.peer = connect(gateway.daemon)
        each.began = time.monotonic()
        each.peer.sendall(each.begins)


def finish(slow: Sequence[Slow]) -> None:
    for each in slow:
        each.peer.close()
        found = [answer.status for answer in read_answers(bytes(each.received))]
        assert found == each.statuses, (each.begins, bytes(each.received))
        assert each.ended - each.began > each.at_least - EARLY, each.begins


def test_many_slow_clients(running: Gateway, oracle: Oracle) -> None:
    """
    225 slow clients of every kind at once: each stage ends when the contract says, and others are served.

    Their service is watched all the while: sends go through and messages are delivered.
    """
    makers = kinds(running.daemon.key)
    slow = [maker() for maker in makers for _ in range(225 // len(makers))]
    oracle.base_line()
    begin(running, slow)
    with ThreadPoolExecutor(1) as pool:
        dripping = pool.submit(drip, slow, PATIENCE)
        served = 0
        while not dripping.done():
            sent = running.daemon.request("POST", "/send", {"chat_id": 5, "text": "quick"})
            assert sent.status == 200
            assert running.daemon.ask_health().json["status"] == "ok"
            oracle.message("meanwhile")
            assert oracle.settle() == []
            served += 1
        dripping.result()
    finish(slow)
    longest = max(each.ended - each.began for each in slow)
    print(f"{len(slow)} slow clients: the last was gone after {longest:.2f} s; {served} rounds were served")
    assert len(running.api.of("sendMessage")) == served, "nothing slow was sent"
    oracle.check_base_line()
    assert oracle.settle() == []


@full_only
def test_slow_bodies_end_after_thirty_seconds(running: Gateway, oracle: Oracle) -> None:
    """A byte a second is progress, so only the end of all holds."""
    key = running.daemon.key
    plain = head(b"POST", b"/send", key, b"Content-Type: application/json", b"Content-Length: 60000")
    slow = [Slow(plain, b"x", [408], 30.0) for _ in range(40)]
    slow += [Slow(chunked(b"/send", key, b""), b"1\r\nx\r\n", [408], 30.0) for _ in range(40)]
    oracle.base_line()
    begin(running, slow)
    drip(slow, 30 + PATIENCE)
    finish(slow)
    assert running.api.of("sendMessage") == []
    oracle.check_base_line()
    assert oracle.settle() == []


# -- beyond the limit of connections -----------------------------------------------------------------------


def attempt(gateway: Gateway, count: int) -> Counter[str]:
    """Connect so often, one after the other, with a whole request each; how each of them ended."""
    ends: Counter[str] = Counter()
    for _ in range(count):
        try:
            with contextlib.closing(connect(gateway.daemon)) as peer:
                peer.sendall(head(b"GET", b"/subscriptions", "", b"Connection: close"))
                found = read_answers(read_to_end(peer))
        except ConnectionError:
            found = []
        ends[str(found[0].status) if found else "closed"] += 1
    return ends


def test_attempts_against_the_limit_of_connections(running: Gateway, oracle: Oracle) -> None:
    """
    As many connections as may be are held open, and thousands more are tried.

    Each of those is closed, at the cost of neither memory nor descriptors, and nothing is left of it.
    """
    pid = running.daemon.process.pid
    attempts = repetitions(10_000, 100_000)
    base = oracle.base_line()
    with many(running.daemon, CONNECTIONS) as holders, ThreadPoolExecutor(8) as pool:
        stop = threading.Event()

        def say_something() -> None:
            for peer in holders:
                peer.sendall(head(b"GET", b"/nowhere", ""))
            for peer in holders:
                assert peer.recv(65536).startswith(b"HTTP/1.1 404")

        def hold() -> None:
            """Before they have been idle for 5 s."""
            while not stop.wait(1):
                say_something()

        say_something()
        holding = pool.submit(hold)
        try:
            began, most = time.monotonic(), 0
            tries = [pool.submit(attempt, running, attempts // 5) for _ in range(5)]
            while not all(each.done() for each in tries):
                most = max(most, Footprint.of(pid).sockets)
                stop.wait(0.05)
            took = time.monotonic() - began
        finally:
            stop.set()
        holding.result()
        ends = sum((each.result() for each in tries), Counter[str]())
    print(f"{attempts} attempts in {took:.1f} s: {dict(ends)}; at most {most} sockets of the daemon")
    assert ends == {"closed": attempts}
    # One is accepted before it is closed; those of a whole turn of the reactor are open for a moment.
    assert most <= base.sockets + CONNECTIONS + 64
    assert len([line for line in running.daemon.output.lines if "connections are open" in line]) == 1
    running.daemon.output.wait_for("there is room for connections again")
    assert running.daemon.health()["status"] == "ok"
    oracle.check_base_line()
    oracle.message("after")
    assert oracle.settle() == []


def test_a_burst_of_connections_while_the_daemon_is_busy(running: Gateway, oracle: Oracle) -> None:
    """As many as it serves at once find room in the kernel's queue: none of them has to knock twice."""
    oracle.base_line()
    running.daemon.send(signal.SIGSTOP)
    try:
        with many(running.daemon, WORKERS + QUEUE) as peers:
            running.daemon.send(signal.SIGCONT)
            for peer in peers:
                peer.sendall(head(b"GET", b"/subscriptions", running.daemon.key, b"Connection: close"))
            assert [answer.status for answer, _ in answers(peers)] == [200] * len(peers)
    finally:
        running.daemon.send(signal.SIGCONT)
    oracle.check_base_line()
    assert oracle.settle() == []
