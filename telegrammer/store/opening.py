"""
Opening the state: recognised, refused or migrated before anything else happens (contract 1.3, 4).

Synchronous, on a plain connection, before any thread exists.  The daemon calls ``open_state`` with the
process lock in its hand; commands call ``connect_for_command``, which takes that lock itself when there is
something to make or to migrate.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from attrs import field, frozen
from twisted.logger import Logger

from telegrammer.core.problems import LockHeld, StartRefused, StorageUnavailable
from telegrammer.ports import Now
from telegrammer.store import legacy
from telegrammer.store.engine import Durability, connect, immediate, snapshot, translate
from telegrammer.store.files import create_private, make_private, make_state_directory
from telegrammer.store.journal import enter_webhook_mode
from telegrammer.store.layout import Absent, Layout, Legacy, Ours, look, recognise
from telegrammer.store.lock import ProcessLock, held_by_another
from telegrammer.store.look import touch_tables
from telegrammer.store.migrate import back_up, create, migrate, migrate_legacy
from telegrammer.store.migrations import LATEST
from telegrammer.store.recovery import Recovered, recover

log = Logger()

START_BUSY_MS = 2500
"""A start gives up on a locked database after this: it has 5 s in all (contract 1.3)."""
COMMAND_BUSY_MS = 5000
"""A command waits this long for each transaction (contract 1.1)."""
COMMAND_TRIES = 20
COMMAND_PAUSE = 0.1
"""Seconds between the tries; with what `ProcessLock` waits itself, it is waited for about as long."""

# UnicodeDecodeError: of a damaged file SQLite may quote what is no text.
_TROUBLES = (StorageUnavailable, sqlite3.Error, OSError, UnicodeDecodeError)


@frozen
class Opened:
    """What opening did."""

    created: bool
    """There was no database."""
    migrated_from: int | None
    """The version before a migration, 0 for the C++ program's; None: there was none to do."""
    backup: Path | None
    """The copy made before the migration."""
    bot_id: int | None
    """The bot the database is bound to."""
    recovered: Recovered
    webhook_secret: str | None = field(default=None, repr=False)
    """What Telegram has to show when it pushes; None: it does not."""


def open_state(
    path: Path,
    *,
    bot_digits: int | None,
    durability: Durability = "normal",
    now: Now,
    fresh_secret: str | None = None,
) -> Opened:
    """
    Make the database ready for the daemon, whose process lock is held.

    :param bot_digits: the digits of the token; None skips the comparison.
    :param fresh_secret: updates are to be pushed, under this secret unless the database has one.
    :raises StartRefused: it belongs to another bot, is unknown (``UnknownSchema``), holds what cannot be
        migrated (``MigrationRefused``), or cannot be opened; nothing was written.
    """
    make_state_directory(path)
    layout = recognise(path)
    if isinstance(layout, Ours) and None not in (layout.bot_id, bot_digits) and layout.bot_id != bot_digits:
        raise StartRefused(
            f"the database {path} belongs to bot {layout.bot_id}, the token to bot {bot_digits};"
            " give that bot's token, or another --db"
        )
    created, migrated_from, backup = _bring_up(path, layout, durability, START_BUSY_MS, now)
    try:
        with closing(connect(path, durability=durability, busy_ms=START_BUSY_MS)) as connection:
            with immediate(connection) as cursor:
                recovered = recover(cursor, now())
                secret = None if fresh_secret is None else enter_webhook_mode(cursor, fresh_secret)
                touch_tables(cursor)
    except _TROUBLES as error:
        raise _unusable(path, error) from None
    bot_id = layout.bot_id if isinstance(layout, Ours) else None
    return Opened(created, migrated_from, backup, bot_id, recovered, secret)


def _wall_clock() -> float:
    return datetime.now(UTC).timestamp()


def connect_for_command(
    path: Path,
    *,
    create: bool,
    now: Now = _wall_clock,
    durability: Durability = "normal",
    migrated: Callable[[int, Path], None] = lambda version, backup: None,
    pause: Callable[[float], None] = time.sleep,
) -> sqlite3.Connection:
    """
    A connection for a command, beside a running daemon or without one; the caller closes it.

    While another process makes or migrates the database, it is waited for.

    Use ``engine.immediate`` and ``engine.snapshot`` for transactions on it.

    :param create: make the database when there is none (``add-key``).
    :param migrated: told, after a migration, of the version before it (0: the C++ program's) and the backup.
    :param pause: waits so many seconds before the next try.
    :raises LockHeld: it must be made or migrated first, and another process goes on holding the lock.
    :raises StartRefused: there is none, or as ``open_state``.
    """
    seen = ""
    for left in reversed(range(COMMAND_TRIES)):
        try:
            layout = recognise(path)
            if isinstance(layout, Absent) and not create:
                raise StartRefused(f"there is no database at {path}")
            if not _is_current(layout):
                with ProcessLock(path, pause):
                    # Again: what was seen without the lock may be out of date.
                    _, version, backup = _bring_up(path, recognise(path), durability, COMMAND_BUSY_MS, now)
                if version is not None and backup is not None:
                    migrated(version, backup)
            break
        except StartRefused as refused:
            # Whoever makes or migrates it will soon have done so; meanwhile it may look like anything, and
            # what was seen of it at its end as well: that counts when a second look sees the same.
            working = isinstance(refused, LockHeld) or held_by_another(path)
            if not left or (not working and str(refused) == seen):
                raise
            seen = str(refused)
        pause(COMMAND_PAUSE)
    try:
        return connect(path, durability=durability, busy_ms=COMMAND_BUSY_MS)
    except sqlite3.Error as error:
        raise _unusable(path, error) from None


def _is_current(layout: Layout) -> bool:
    return isinstance(layout, Ours) and layout.version == LATEST


def _bring_up(
    path: Path, layout: Layout, durability: Durability, busy_ms: int, now: Now
) -> tuple[bool, int | None, Path | None]:
    """Create or migrate as needed: was it created, the version before, the backup."""
    version, backup = None, None
    made = False
    if not (isinstance(layout, Absent) and not layout.exists):
        _must_be_ours_to_write(path)
    try:
        if isinstance(layout, Absent):
            if not layout.exists:
                _touch(path)
                made = True
        elif isinstance(layout, Legacy):
            version = 0
            with look(path) as untouched, snapshot(untouched) as cursor:
                # Refused before so much as a backup is made.
                legacy.read(cursor, now())
        elif layout.version < LATEST:
            version = layout.version
        with closing(connect(path, durability=durability, busy_ms=busy_ms)) as connection:
            if version is not None:
                backup = back_up(connection, path, version, now())
            make_private(path)
            if isinstance(layout, Absent):
                create(connection)
            elif isinstance(layout, Legacy):
                # Pages that become free are overwritten.  Backups, older free pages and the disk are not.
                connection.execute("PRAGMA secure_delete=ON")
                migrate_legacy(connection, now())
            elif version is not None:
                migrate(connection, version)
            _use_wal(connection)
    except BaseException as error:
        if made:
            _remove(path)
        if version is not None and backup is not None:
            _forget_backup(path, version, backup)
        if isinstance(error, _TROUBLES):
            raise _unusable(path, error) from None
        raise
    if version is not None:
        log.info(
            "the database was migrated from version {old} to {new}; backup: {backup}",
            old=version,
            new=LATEST,
            backup=str(backup),
        )
    return isinstance(layout, Absent), version, backup


def _must_be_ours_to_write(path: Path) -> None:
    """
    Found out before SQLite makes files beside a database that it cannot write.

    :raises StartRefused: it belongs to another user, or is for reading only.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise _unusable(path, error) from None
    if os.geteuid() not in (0, found.st_uid):
        raise StartRefused(f"the database {path} belongs to another user; give it to the one who runs this")
    if not os.access(path, os.W_OK, effective_ids=True):
        raise StartRefused(f"the database {path} cannot be written")


def _forget_backup(path: Path, version: int, backup: Path) -> None:
    """Remove the backup of a migration that was rolled back, lest each try leave one; else it stays."""
    with suppress(sqlite3.Error, OSError), look(path) as untouched:
        if untouched.execute("PRAGMA user_version").fetchone()[0] == version:
            backup.unlink(missing_ok=True)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Set once, kept in the file (contract 4)."""
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise StartRefused("the file system of the database does not support SQLite's WAL mode")


def _touch(path: Path) -> None:
    os.close(create_private(path))


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _unusable(path: Path, error: BaseException) -> StartRefused:
    trouble = error if isinstance(error, StorageUnavailable) else translate(error)
    if trouble is not None:
        reason = str(trouble)
    else:
        reason = (error.strerror if isinstance(error, OSError) else None) or "it cannot be opened"
    return StartRefused(f"the database {path} cannot be used: {reason}")
