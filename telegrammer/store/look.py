"""A look at the database: whether a trouble is over, and whether another process has committed."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from attrs import frozen

from telegrammer.core.problems import StorageUnavailable, StoreBusy, StoreDamaged, StoreFull
from telegrammer.store.engine import Handle, mark, problem, translate
from telegrammer.store.layout import TABLES

ROOM = 262_144
"""Free bytes from which a disk that was full counts as having room."""


@frozen
class Seen:
    """What one look saw: ``version`` (``PRAGMA data_version``) changes when another connection commits."""

    connection: int
    version: int
    roomy: bool


def look(
    cursor: sqlite3.Cursor, directory: Path, trouble: type[StorageUnavailable] | None, failing: bool
) -> Seen:
    """
    Look once, in a transaction of the writer.

    :param directory: of the database.
    :param trouble: what the last write met; the look proves by a write that it is over.
    :param failing: something last found the database failing; the look proves that its tables can be read.
    """
    if trouble is not None and trouble is not StoreBusy:
        # An empty transaction proves nothing of a disk.
        cursor.execute("UPDATE gateway SET turn = turn WHERE id = 1")
    if failing:
        touch_tables(cursor)
    roomy = True
    if trouble is StoreFull:
        # Small writes may still fit into the -wal file when an ordinary batch does not.
        space = os.statvfs(directory)
        roomy = space.f_bavail * space.f_frsize >= ROOM
    version: int = cursor.execute("PRAGMA data_version").fetchone()[0]
    connection = cursor.connection
    return Seen(connection.serial if isinstance(connection, Handle) else 0, version, roomy)


def touch_tables(cursor: sqlite3.Cursor) -> None:
    """Read a row of every table."""
    for table in sorted(TABLES):
        cursor.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()


def prove_sound(cursor: sqlite3.Cursor) -> None:
    """
    Look through the whole file, as it is on disk.

    :raises StoreDamaged: it is not sound.
    """
    # Pages in memory would hide what has become of theirs on disk.
    cursor.execute("PRAGMA shrink_memory")
    if cursor.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise problem(StoreDamaged)


def fold(connection: Handle) -> None:
    """
    Write what the -wal file holds into the database, as far as no reader needs it there.

    SQLite does so by itself after a commit, and keeps to itself when that fails.

    :raises StorageUnavailable: it could not be written.
    """
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    except sqlite3.Error as error:
        trouble = translate(error)
        if trouble is None:
            raise
        mark(connection, trouble)
        raise trouble from None
