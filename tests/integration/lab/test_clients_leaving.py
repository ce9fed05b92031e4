"""
Clients that leave, at every byte of what they send and at every stage of what they wait for.

What they asked for is done whole or not at all, what is upstream is never torn, and nothing is left of them.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.gateway import Gateway
from tests.support.held import Held, check_workers
from tests.support.lab import repetitions
from tests.support.oracle import Oracle
from tests.support.wire import (
    chunked,
    connect,
    first_answered,
    many,
    post,
    read_answers,
    read_to_end,
    reset,
    send_body,
    warm_up,
)

WORKERS, QUEUE = 8, 64


@pytest.fixture
def oracle(running: Gateway) -> Oracle:
    """Of a daemon that has done some of everything, and is at its base line."""
    oracle = Oracle(running)
    oracle.subscribe()
    oracle.messages(3)
    warm_up(running.daemon)
    with many(running.daemon, WORKERS) as peers:
        for peer in peers:
            peer.sendall(post(b"/send", running.daemon.key, send_body("warm"), b"Connection: close"))
        for peer in peers:
            assert [answer.status for answer in read_answers(read_to_end(peer))] == [200]
    assert oracle.settle() == []
    running.api.calls.clear()
    oracle.base_line()
    return oracle


@pytest.fixture
def held(running: Gateway) -> Iterator[Held]:
    held = Held(running)
    running.api.fallback["sendMessage"] = held
    yield held
    held.let_go()


def request(path: str, coding: str, key: str, number: int) -> bytes:
    """One that is unlike any other, and whose length is always the same."""
    if path == "/send":
        body = send_body(f"caller {number:06d}")
    else:
        body = json.dumps({"chat_id": 5, "callback_url": f"http://127.0.0.1:9/{number:06d}"}).encode()
    if coding == "declared":
        return post(path.encode(), key, body)
    half = len(body) // 2
    pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:half], body[half:])]
    return chunked(path.encode(), key, b"".join(pieces) + b"0\r\n\r\n")


@pytest.mark.parametrize("path", ["/send", "/subscribe"])
def test_leaving_at_every_byte(running: Gateway, oracle: Oracle, path: str) -> None:
    """With a reset or with an end; only of a request that was whole may anything be done, and then all."""
    daemon = running.daemon
    whole: set[int] = set()
    number = 0
    for coding in ("declared", "chunked"):
        length = len(request(path, coding, daemon.key, 0))
        for cut in [*range(length), *[length] * 50] * repetitions(1, 10):
            for leave in (reset, lambda peer: peer.close()):
                number += 1
                if cut == length:
                    whole.add(number)
                with contextlib.closing(connect(daemon)) as peer:
                    peer.sendall(request(path, coding, daemon.key, number)[:cut])
                    leave(peer)
    oracle.check_base_line()
    assert daemon.health()["status"] == "ok"
    if path == "/send":
        done = Counter(call.arguments["text"] for call in running.api.of("sendMessage"))
        may_be = {f"caller {each:06d}" for each in whole}
    else:
        there = daemon.request("GET", "/subscriptions").json["subscriptions"]
        mine = [each["callback_url"] for each in there if each["chat_id"] == 5]
        done = Counter(url.rpartition("/")[2] for url in mine)
        may_be = {f"{each:06d}" for each in whole}
    print(f"{number} left {path}, {len(whole)} of them after all of it; done: {done.total()}")
    assert done.keys() <= may_be
    assert set(done.values()) <= {1}
    assert running.api.torn == []
    check_workers(running)
    assert oracle.settle() == []


def test_leaving_while_telegram_holds_the_message(running: Gateway, oracle: Oracle, held: Held) -> None:
    """Those at work leave, and their messages are sent all the same; those who wait are never begun."""
    daemon = running.daemon
    with many(daemon, WORKERS + QUEUE + 1) as peers:
        for number, peer in enumerate(peers[:WORKERS]):
            peer.sendall(request("/send", "declared", daemon.key, number))
        running.api.wait_until(lambda: held.under_way == WORKERS)
        for peer in peers[WORKERS:]:
            peer.sendall(request("/send", "declared", daemon.key, 999_999))
        first_answered(peers, 1)  # it is told that the queue is full: all the others wait
        for number, peer in enumerate(peers):
            reset(peer) if number % 2 else peer.close()
        assert daemon.ask_health().status == 200
        assert held.under_way == WORKERS
    held.let_go()
    for _ in range(WORKERS):
        daemon.output.wait_for("send: the caller left, it ended all the same: Sent")
    running.api.wait_until(lambda: held.under_way == 0)
    oracle.check_base_line()
    sent = Counter(call.arguments["text"] for call in running.api.of("sendMessage"))
    assert sent == Counter(f"caller {number:06d}" for number in range(WORKERS))
    assert (held.torn, running.api.torn) == (0, [])
    check_workers(running)
    assert oracle.settle() == []
