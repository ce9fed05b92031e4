"""
A program that fills the small file system it is given, and tells how the database service bears it.

Run by ``tests/integration/test_database.py`` as ``python -m tests.support.full_disk DIRECTORY``.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater, react

from telegrammer.core.problems import StoreFull
from telegrammer.store.database import Database
from telegrammer.store.opening import open_state


def fill(cursor: sqlite3.Cursor, number: int) -> None:
    cursor.execute(
        "INSERT INTO payloads(epoch, update_id, body, refs) VALUES (9, ?, zeroblob(20000), 1)", (number,)
    )


async def fill_the_disk(reactor: Any, directory: Path) -> None:
    path, ballast = directory / "a.db", directory / "ballast"
    service = Database(path, reactor, opening=lambda: open_state(path, bot_digits=None, now=time.time))
    service.startService()
    ballast.write_bytes(b"x" * 1_000_000)
    number = 0
    while service.state() == "ok":
        try:
            await service.write(fill, number)
            number += 1
        except StoreFull:
            print(service.state())
    # Two looks: a small write fits yet.
    await deferLater(reactor, 2.2)
    print(f"still-{service.state()}")
    assert await service.read(lambda cursor: cursor.execute("SELECT COUNT(*) FROM payloads").fetchone()) == (
        number,
    )
    print("read")
    try:
        await service.write(fill, number)
    except StoreFull:
        print("refused")
    ballast.unlink()
    while service.state() != "ok":
        await deferLater(reactor, 0.05)
    print("ok")
    await service.write(fill, number)
    print("written")
    await service.stopService()


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(fill_the_disk(reactor, Path(sys.argv[1]))))
