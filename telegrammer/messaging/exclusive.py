"""
One connection, and its operations one by one: ``BEGIN EXCLUSIVE``, the work, ``COMMIT`` (contract 7.2).

In ``journal_mode=DELETE`` an exclusive lock waits for readers too, so that no COMMIT ever does: whoever is
admitted can finish.  All of this runs in the handle's thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from attrs import define, field

from telegrammer.core.problems import CommitUncertain, MessagingError, OutboxClosed, OutboxFailing
from telegrammer.messaging import outbox_file
from telegrammer.messaging.admission import Admission
from telegrammer.messaging.local_disk import MOUNTS
from telegrammer.messaging.outbox_file import SQLITE_SAYS, check_place, create, failing, recognise
from telegrammer.store.engine import ROUND_MS
from telegrammer.store.files import KnownFile

T = TypeVar("T")
Work = Callable[[sqlite3.Cursor], T]

PAUSE = 0.002
"""Seconds between two rounds of asking for the lock.  A failed one leaves no lock behind: readers get in."""


class Abandoned(Exception):
    """The operation was abandoned; nobody waits for this."""


@define(eq=False)
class ExclusiveFile:
    """
    The file of one handle.

    :param connect: makes a connection to a file that was checked.
    """

    path: Path
    mounts: Path = MOUNTS
    connect: Callable[[Path], sqlite3.Connection] = outbox_file.connect
    closed: bool = field(default=False, init=False)
    """Closed for good, by ``close`` or by a COMMIT that failed."""
    _connection: sqlite3.Connection | None = field(default=None, init=False)
    _known: KnownFile | None = field(default=None, init=False)
    _settled: bool = field(default=False, init=False)
    """The connection has its settings, and the file had its journal mode."""

    def open(self, admission: Admission) -> None:
        """
        Check the file, make it if it is not there, and connect; no lock is needed for that.

        :raises InsecurePath: it is not private, or not local.
        :raises NotAnOutbox: it is something else.
        :raises OutboxFailing: it cannot be opened.
        """
        if admission.is_abandoned():
            raise Abandoned
        if not check_place(self.path, self.mounts):
            create(self.path)
        self._open_connection()
        if not admission.admit():
            self.close()
            raise Abandoned

    def run(self, admission: Admission, work: Work[T]) -> T:
        """
        The result of the work, committed.

        :raises Abandoned: it was, before the lock was there; nothing was changed.
        :raises CommitUncertain: the COMMIT failed; the connection is closed.
        :raises OutboxFailing: SQLite could not do it; it was rolled back.
        """
        connection = self._begin(admission)
        cursor = connection.cursor()
        try:
            if self._known is None or not self._known.is_there():
                raise OutboxFailing("the outbox's file was removed, or another was put in its place")
            result = work(cursor)
        except BaseException as error:
            cursor.close()
            self._undo(
                connection, keep=isinstance(error, MessagingError) and type(error) is not OutboxFailing
            )
            if isinstance(error, SQLITE_SAYS):
                raise failing(error) from None
            raise
        cursor.close()
        try:
            connection.execute("COMMIT")
        except BaseException:
            self.close()
            raise CommitUncertain(
                "a COMMIT failed: it may have happened, or not; open the outbox anew, and look"
            ) from None
        return result

    def close(self) -> None:
        """For good; what is open in a transaction is undone by whoever opens the file next."""
        self.closed = True
        self._disconnect()

    def _open_connection(self) -> sqlite3.Connection:
        try:
            if not check_place(self.path, self.mounts):
                raise OutboxFailing("the outbox's file was removed")
            recognise(self.path)
            self._known = KnownFile.of(self.path)
            self._connection = self.connect(self.path)
        except SQLITE_SAYS as error:
            raise failing(error) from None
        except OSError:
            raise OutboxFailing("the outbox's file cannot be opened") from None
        self._settled = False
        return self._connection

    def _begin(self, admission: Admission) -> sqlite3.Connection:
        while not admission.is_abandoned():
            if self.closed:
                raise OutboxClosed("the outbox is closed")
            # One that met an error was given up: its cause may outlive it there.
            connection = self._connection or self._open_connection()
            try:
                locked = self._lock(connection)
            except SQLITE_SAYS as error:
                self._disconnect()
                raise failing(error) from None
            if not locked:
                admission.is_abandoned(within=PAUSE)
            elif admission.admit():
                return connection
            else:
                self._undo(connection, keep=True)
        raise Abandoned

    def _lock(self, connection: sqlite3.Connection) -> bool:
        """Ask for the lock once, for ``ROUND_MS``."""
        try:
            connection.execute(f"PRAGMA busy_timeout={ROUND_MS:d}")
            if not self._settled:
                for setting in outbox_file.SETTINGS:
                    connection.execute(setting)
                if self._journal_mode(connection, "=DELETE") != "delete":
                    return False
                self._settled = True
            connection.execute("BEGIN EXCLUSIVE")
            if self._journal_mode(connection) != "delete":
                # Somebody has set another one in the file, in which readers are not waited for.
                connection.execute("ROLLBACK")
                self._settled = False
            return self._settled
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return False
            raise

    @staticmethod
    def _journal_mode(connection: sqlite3.Connection, change: str = "") -> str:
        (mode,) = connection.execute(f"PRAGMA journal_mode{change}").fetchone()
        return str(mode)

    def _undo(self, connection: sqlite3.Connection, *, keep: bool) -> None:
        """Roll back, and keep the connection if it is known to be sound."""
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error:
            keep = False
        if not keep:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()
