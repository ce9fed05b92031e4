"""A handle with its real thread: what it waits for, and how that ends (contract 7.2)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from telegrammer.messaging import (
    AdmissionTimeout,
    Message,
    Outbox,
    SQLiteMessagingConfig,
)
from tests.integration.conftest import bounded

HELLO = Message("subject", "body", ["operator@example.org"])

Operation = Callable[[Outbox, str, str], Deferred[Any]]
OPERATIONS: dict[str, Operation] = {
    "send": lambda outbox, message_id, lease: outbox.send(HELLO),
    "claim": lambda outbox, message_id, lease: outbox.claim(),
    "acknowledge": lambda outbox, message_id, lease: outbox.acknowledge(message_id, lease),
    "release": lambda outbox, message_id, lease: outbox.release(message_id, lease),
    "check_ready": lambda outbox, message_id, lease: outbox.check_ready(),
}


@contextmanager
def reader(path: Path) -> Iterator[sqlite3.Connection]:
    """An independent reader in the middle of a transaction."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT COUNT(*) FROM messages").fetchone()
        yield connection
        connection.execute("ROLLBACK")


@contextmanager
def writer(path: Path) -> Iterator[sqlite3.Connection]:
    """An independent writer in the middle of a transaction."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("ROLLBACK")


def config(path: Path, timeout: float = 0.25) -> SQLiteMessagingConfig:
    return SQLiteMessagingConfig("alerts", path, timeout)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "outbox.db"


@pytest.mark.parametrize("holder", [reader, writer])
@pytest.mark.parametrize("name", OPERATIONS)
@bounded(20)
async def test_a_held_file(path: Path, reactor: Any, holder: Any, name: str) -> None:
    """Timed out, and cancelled: before anything changed; the handle works afterwards."""
    outbox = await Outbox.open(config(path))
    await outbox.send(HELLO)
    await outbox.send(HELLO)
    leased = await outbox.claim()
    assert leased.lease is not None
    before = path.read_bytes()
    with holder(path):
        began = time.monotonic()
        with pytest.raises(AdmissionTimeout):
            await OPERATIONS[name](outbox, leased.id, leased.lease)
        assert time.monotonic() - began < 0.45, "in its time, though not its lock"
        waiting = OPERATIONS[name](outbox, leased.id, leased.lease)
        began = time.monotonic()
        reactor.callLater(0.1, waiting.cancel)
        with pytest.raises(CancelledError):
            await waiting
        assert time.monotonic() - began < 0.24
        with closing(sqlite3.connect(path, timeout=1)) as another:
            assert another.execute("SELECT COUNT(*) FROM messages").fetchone() == (2,), "readers get in"
    # Not before: who closes a descriptor of the file gives up the locks that this process holds on it.
    assert path.read_bytes() == before
    await OPERATIONS[name](outbox, leased.id, leased.lease)
    if name in ("send", "claim", "check_ready"):
        await outbox.acknowledge(leased.id, leased.lease)
    await outbox.close()
