"""
Another process holds the write lock, or reads on and on: circumstances, which are waited for within bounds.

No caller waits longer than his bound, none is told of locks, nothing is confirmed that is not committed, and
within 10 s of the lock's end everything goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.support.daemon import Reply
from tests.support.gateway import CHAT, Gateway
from tests.support.lab import FULL
from tests.support.oracle import Oracle
from tests.support.storage import RECOVERY, ask_to_subscribe, check_reads, shows, works_again

SLACK = 2.0
"""Seconds beyond a bound, for the turns of a busy machine."""


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)


@contextmanager
def asked(gateway: Gateway, count: int) -> Iterator[list[tuple[Reply, float]]]:
    """So many ask to subscribe from now on; at the end, what each was answered, after how many seconds."""
    answers: list[tuple[Reply, float]] = []

    def ask(number: int) -> tuple[Reply, float]:
        began = time.monotonic()
        return ask_to_subscribe(gateway, f"/asked/{number}", CHAT + 1), time.monotonic() - began

    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(ask, number) for number in range(count)]
        yield answers
        answers.extend(call.result() for call in calls)


def no_word_of_it(gateway: Gateway) -> None:
    """SQLite's own is in no line of the log."""
    assert "database is locked" not in gateway.daemon.output.text


@pytest.mark.report("I1")
@pytest.mark.parametrize("seconds", [1, 4] if FULL else [1])
def test_a_lock_that_is_held_for_a_moment(gateway: Gateway, oracle: Oracle, seconds: float) -> None:
    """Requests wait for it and are done; what works behind the scenes backs off and goes on."""
    gateway.start()
    oracle.subscribe()
    gateway.api.wait_until(lambda: gateway.api.open_polls == 1)
    with asked(gateway, 4) as answers:
        with gateway.write_lock():
            oracle.messages(5)
            check_reads(gateway)
            time.sleep(seconds)
    assert [reply.status for reply, _ in answers] == [200] * 4
    for number, (reply, _) in enumerate(answers):
        oracle.answered(reply.json["subscription_id"], f"/asked/{number}", CHAT + 1)
    oracle.message("news", CHAT + 1)
    assert oracle.settle(RECOVERY) == []
    works_again(gateway)
    no_word_of_it(gateway)


@pytest.mark.report("I1")
@pytest.mark.parametrize("seconds", [8, 60] if FULL else [6])
def test_a_lock_that_is_held_for_long(gateway: Gateway, oracle: Oracle, seconds: float) -> None:
    """Requests are refused after 5 s; no update is confirmed, no POST comes twice, and all of it goes on."""
    gateway.receiver.policy = lambda callback: None if callback.path == "/slow" else 200
    gateway.start()
    oracle.subscribe("/slow")
    oracle.subscribe("/hook")
    oracle.messages(3)
    (held,) = gateway.receiver.wait_for(1, path="/slow")
    gateway.receiver.wait_for(3, path="/hook")
    gateway.api.wait_for_offset(confirmed := oracle.sent[-1].update_id + 1)
    gateway.receiver.policy = lambda callback: 200
    with gateway.write_lock():
        until = time.monotonic() + seconds
        with asked(gateway, 4) as answers:
            held.answer()
            oracle.messages(20, "while it is held")
            shows(gateway, "busy")
            check_reads(gateway)
        for reply, took in answers:
            assert (reply.status, reply.json["error"]["code"]) == (503, "STORAGE_UNAVAILABLE")
            assert "lock" not in reply.json["error"]["message"]
            assert took < 5 + SLACK
        assert oracle.check() == []
        time.sleep(max(0, until - time.monotonic()))
        assert gateway.api.of("getUpdates")[-1].arguments["offset"] == confirmed
        assert len(gateway.receiver.on("/slow")) == 1
    assert oracle.settle(RECOVERY) == []
    works_again(gateway)
    no_word_of_it(gateway)


def test_a_reader_that_stays(gateway: Gateway, oracle: Oracle) -> None:
    """The ``-wal`` file grows while it reads and is given back when it has left; nothing fails meanwhile."""
    allowed = 64 * 2**20
    wal = gateway.daemon.db.with_name(gateway.daemon.db.name + "-wal")
    gateway.start()
    oracle.subscribe()
    heavy = "x" * 1_000_000
    with gateway.daemon.look() as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM deliveries").fetchone()
        while wal.stat().st_size < allowed + 8 * 2**20:
            assert len(oracle.sent) < 150
            for _ in range(8):
                oracle.message(heavy)
            gateway.receiver.wait_for(len(oracle.sent))
        assert works_again(gateway)["components"]["database"]["state"] == "ok"
        assert reader.execute("SELECT count(*) FROM deliveries").fetchone() == (0,)
    # The first commit without the reader folds the log into the database, the next begins it anew.
    oracle.messages(2, "after it")
    assert oracle.settle() == []
    gateway.api.wait_until(lambda: wal.stat().st_size <= allowed, RECOVERY)
    assert "not available" not in gateway.daemon.output.text
