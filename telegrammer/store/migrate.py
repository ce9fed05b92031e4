"""Numbered migrations: a backup first, each in one transaction, its number last (contract 4)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

from telegrammer.core.problems import StartRefused
from telegrammer.store import legacy
from telegrammer.store.engine import immediate
from telegrammer.store.files import create_private, sync_directory
from telegrammer.store.migrations import MIGRATIONS

_BACKUP = ".backup-v"
"""In the name of a backup, between the database's name and the version before the migration."""


def create(connection: sqlite3.Connection) -> None:
    """The latest layout in an empty database."""
    _steps(connection, 0, MIGRATIONS)


def migrate_legacy(connection: sqlite3.Connection, now: float) -> None:
    """
    From the C++ program's layout to the latest; the keys are taken over in the first step's transaction.

    :raises MigrationRefused: some keys cannot be; nothing was changed.
    """
    with immediate(connection) as cursor:
        # Read here, under the lock: an old daemon may have written until now.
        old = legacy.read(cursor, now)
        _step(cursor, 1, MIGRATIONS[0])
        legacy.take_over(cursor, old)
    _steps(connection, 1, MIGRATIONS)


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """From an older version of ours to the latest."""
    _steps(connection, version, MIGRATIONS)


def _steps(connection: sqlite3.Connection, version: int, migrations: Sequence[Sequence[str]]) -> None:
    for number, statements in enumerate(migrations[version:], version + 1):
        with immediate(connection) as cursor:
            _step(cursor, number, statements)


def _step(cursor: sqlite3.Cursor, number: int, statements: Sequence[str]) -> None:
    # One by one: executescript would commit first.
    for statement in statements:
        cursor.execute(statement)
    cursor.execute(f"PRAGMA user_version={number:d}")


def back_up(connection: sqlite3.Connection, db: Path, version: int, now: float) -> Path:
    """
    A complete copy beside the database, 0600, on the disk; where it is.

    It gets its name when it is complete, so that whoever dies on the way leaves nothing that is called a
    backup; the next one, also under the process lock, begins anew.

    :raises StartRefused: it cannot be made; nothing is left of it.
    """
    unfinished = db.with_name(f"{db.name}.unfinished-backup")
    try:
        _discard(unfinished)
        descriptor = create_private(unfinished)
    except OSError as error:
        raise StartRefused(f"the backup {unfinished} cannot be made: {error.strerror}") from None
    try:
        with closing(sqlite3.connect(unfinished)) as target:
            connection.backup(target)
        os.fsync(descriptor)
        path = _free_name(db, version, now)
        unfinished.rename(path)
    except (sqlite3.Error, OSError):
        _discard(unfinished)
        raise StartRefused(f"the backup {unfinished} cannot be written") from None
    finally:
        os.close(descriptor)
    sync_directory(db)
    return path


def backups(db: Path) -> list[Path]:
    """Those beside the database, whoever made them; none when its directory cannot be read."""
    try:
        return sorted(path for path in db.parent.iterdir() if path.name.startswith(f"{db.name}{_BACKUP}"))
    except OSError:
        return []


def _discard(unfinished: Path) -> None:
    # The journal as well: SQLite would roll it back into the next file of the name.
    for suffix in ("", "-journal"):
        unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)


def _free_name(db: Path, version: int, now: float) -> Path:
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S")
    base = f"{db.name}{_BACKUP}{version}-{stamp}"
    names = chain((base,), (f"{base}-{number}" for number in count(2)))
    return next(path for path in map(db.with_name, names) if not os.path.lexists(path))
