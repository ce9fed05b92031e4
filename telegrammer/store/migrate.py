"""Numbered migrations: a backup first, each in one transaction, its number last (contract 4)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from telegrammer.core.problems import StartRefused
from telegrammer.store import legacy
from telegrammer.store.engine import immediate
from telegrammer.store.files import create_private
from telegrammer.store.migrations import MIGRATIONS


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

    :raises StartRefused: it cannot be made; nothing is left of it.
    """
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S")
    base = f"{db.name}.backup-v{version}-{stamp}"
    number = 1
    while True:
        path = db.with_name(base if number == 1 else f"{base}-{number}")
        try:
            descriptor = create_private(path)
            break
        except FileExistsError:
            number += 1
        except OSError as error:
            raise StartRefused(f"the backup {path} cannot be made: {error.strerror}") from None
    try:
        with closing(sqlite3.connect(path)) as target:
            connection.backup(target)
        os.fsync(descriptor)
    except (sqlite3.Error, OSError):
        path.unlink(missing_ok=True)
        raise StartRefused(f"the backup {path} cannot be written") from None
    finally:
        os.close(descriptor)
    return path
