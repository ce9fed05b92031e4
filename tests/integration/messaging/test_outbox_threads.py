"""A handle with its real thread: what it waits for, and how that ends (contract 7.2)."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater

from telegrammer.messaging import (
    AdmissionTimeout,
    InsecurePath,
    Message,
    Outbox,
    OutboxClosed,
    SQLiteMessagingConfig,
)
from tests.integration.conftest import bounded
from tests.support.directories import quick_directory

HELLO = Message("subject", "body", ["operator@example.org"])

Operation = Callable[[Outbox, str, str], Deferred[Any]]
OPERATIONS: dict[str, Operation] = {
    "send": lambda outbox, message_id, lease: outbox.send(HELLO),
    "claim": lambda outbox, message_id, lease: outbox.claim(),
    "acknowledge": lambda outbox, message_id, lease: outbox.acknowledge(message_id, lease),
    "release": lambda outbox, message_id, lease: outbox.release(message_id, lease),
    "check_ready": lambda outbox, message_id, lease: outbox.check_ready(),
}


_HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(sys.argv[2])
connection.execute("SELECT COUNT(*) FROM messages").fetchone()
print("held", flush=True)
sys.stdin.read()
connection.execute("ROLLBACK")
"""


@contextmanager
def held(path: Path, begin: str) -> Iterator[None]:
    """Another program in the middle of a transaction."""
    argv = [sys.executable, "-c", _HOLDER, str(path), begin]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield
    assert holder.returncode == 0


READER, WRITER, EXCLUSIVE = "BEGIN", "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"


def config(path: Path, timeout: float = 0.2) -> SQLiteMessagingConfig:
    return SQLiteMessagingConfig("alerts", path, timeout)


@pytest.fixture
def path() -> Iterator[Path]:
    with quick_directory() as directory:
        yield directory / "outbox.db"


@pytest.mark.parametrize("holder", [READER, WRITER])
@pytest.mark.parametrize("name", OPERATIONS)
@bounded(20)
async def test_a_held_file(path: Path, reactor: Any, holder: str, name: str) -> None:
    """Timed out, and cancelled: before anything changed; the handle works afterwards."""
    outbox = await Outbox.open(config(path))
    await outbox.send(HELLO)
    await outbox.send(HELLO)
    leased = await outbox.claim()
    assert leased.lease is not None
    before = path.read_bytes()
    with held(path, holder):
        began = time.monotonic()
        with pytest.raises(AdmissionTimeout):
            await OPERATIONS[name](outbox, leased.id, leased.lease)
        assert time.monotonic() - began < 0.4, "in its time, though not its lock"
        waiting = OPERATIONS[name](outbox, leased.id, leased.lease)
        began = time.monotonic()
        reactor.callLater(0.05, waiting.cancel)
        with pytest.raises(CancelledError):
            await waiting
        assert time.monotonic() - began < 0.19
        with closing(sqlite3.connect(path, timeout=1)) as another:
            assert another.execute("SELECT COUNT(*) FROM messages").fetchone() == (2,), "readers get in"
    # Not before: to close a descriptor is to give up this process's locks on the file.
    assert path.read_bytes() == before
    await OPERATIONS[name](outbox, leased.id, leased.lease)
    if name in ("send", "claim", "check_ready"):
        await outbox.acknowledge(leased.id, leased.lease)
    await outbox.close()


@bounded(20)
async def test_opening_waits_for_no_lock(path: Path, reactor: Any) -> None:
    await (await Outbox.open(config(path))).close()
    with held(path, EXCLUSIVE):
        outbox = await Outbox.open(config(path))
        with pytest.raises(AdmissionTimeout):
            await outbox.check_ready()
    await outbox.check_ready()
    await outbox.close()


@bounded(20)
async def test_a_lock_that_is_given_up_in_time(path: Path, reactor: Any) -> None:
    """Who waits gets the file, in the order of asking."""
    outbox = await Outbox.open(config(path, timeout=10))
    with held(path, READER):
        sending = [outbox.send(HELLO) for _ in range(3)]
        counting = outbox.outstanding()
        await deferLater(reactor, 0.1)
        assert not any(each.called for each in sending)
    ids = [await each for each in sending]
    assert await counting == 3
    assert [(await outbox.claim()).id for _ in ids] == ids
    await outbox.close()


@bounded(20)
async def test_a_timeout_of_a_millisecond(path: Path, reactor: Any) -> None:
    """Whatever is said of an operation is true."""
    outbox = await Outbox.open(config(path, timeout=5))
    hasty = await Outbox.open(config(path))
    # Opening has its time, too; this handle's operations have none.
    object.__setattr__(hasty, "config", config(path, timeout=0.001))
    stored = 0
    for _ in range(50):
        try:
            await hasty.send(HELLO)
            stored += 1
        except AdmissionTimeout:
            pass
    assert await outbox.outstanding() == stored
    await hasty.close()
    await outbox.close()


@bounded(60)
async def test_cancels_at_any_moment(path: Path, reactor: Any) -> None:
    """Two threads decide, and they always agree: cancelled is not stored, and what was stored is said so."""
    outbox = await Outbox.open(config(path, timeout=30))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    chance = random.Random(1)
    began = time.monotonic()
    stored = [await outbox.send(HELLO) for _ in range(20)]
    usual = (time.monotonic() - began) / 20
    cancelled = 0
    try:
        for _ in range(150):
            sending = outbox.send(HELLO)
            end = reactor.callLater(chance.uniform(0, usual), sending.cancel)
            try:
                stored.append(await sending)
            except CancelledError:
                cancelled += 1
            if end.active():
                end.cancel()
    finally:
        sys.setswitchinterval(before)
    with closing(sqlite3.connect(path)) as connection:
        found = [row[0] for row in connection.execute("SELECT id FROM messages ORDER BY seq")]
    assert found == stored
    assert cancelled > 0
    print(f"{len(stored)} stored, {cancelled} cancelled")
    await outbox.close()


@bounded(20)
async def test_handles_of_one_process(path: Path, reactor: Any) -> None:
    """They wait for each other, too; opening and closing others takes no lock away."""
    handles = [await Outbox.open(config(path, timeout=10)) for _ in range(4)]

    async def work(outbox: Outbox) -> list[str]:
        done = []
        for _ in range(10):
            await outbox.send(HELLO)
            leased = await outbox.claim()
            await (await Outbox.open(config(path, timeout=10))).close()
            await outbox.acknowledge(leased.id, leased.lease)
            done.append(leased.id)
        return done

    working = [Deferred.fromCoroutine(work(each)) for each in handles]
    done = [message_id for each in working for message_id in await each]
    assert len(set(done)) == 40
    assert await handles[0].outstanding() == 0
    for outbox in handles:
        await outbox.close()


@bounded(20)
async def test_nothing_is_left_behind(path: Path, reactor: Any) -> None:
    before = set(threading.enumerate())
    outbox = await Outbox.open(config(path))
    sending = outbox.send(HELLO)
    await outbox.close()
    assert sending.called
    assert set(threading.enumerate()) == before
    with pytest.raises(OutboxClosed):
        await outbox.send(HELLO)
    with pytest.raises(InsecurePath):
        await Outbox.open(SQLiteMessagingConfig("alerts", Path("/tmp/outbox.db")))
    # Its thread is given back when it has nothing more to do, and nobody waits for that.
    while set(threading.enumerate()) != before:
        await deferLater(reactor, 0.01)


def test_a_forgotten_handle_keeps_no_process(path: Path) -> None:
    """Neither does one that waits for the lock."""
    program = """
import sys
from twisted.internet import reactor
from telegrammer.messaging import *
async def main():
    outbox = await Outbox.open(SQLiteMessagingConfig("alerts", sys.argv[1], 30))
    await outbox.outstanding()
    print("opened", flush=True)
    sys.stdin.readline()
    outbox.send(Message("s", "b", ["a@example.org"]))
    reactor.callLater(0.05, reactor.stop)
from twisted.internet.defer import Deferred
reactor.callWhenRunning(lambda: Deferred.fromCoroutine(main()))
reactor.run()
"""
    argv = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"opened\n"
        with held(path, READER):
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.wait(10) == 0
