"""
What is SQLite's own: connections and their PRAGMAs, transactions, and what its errors mean.

Every error of the database becomes one of ``core.problems`` here and nowhere else.  The new error has
neither SQL nor values in its text, and no cause: SQLite's messages may quote either.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, TypeVarTuple

from twisted.internet.defer import Deferred

from telegrammer.core.problems import (
    StorageUnavailable,
    StoreBusy,
    StoreDamaged,
    StoreFailing,
    StoreFull,
    StoreMoved,
    StoreReadOnly,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Durability = Literal["normal", "full"]
_serials = count(1)

ROUND_MS = 18
"""SQLite asks for a lock after 1, 2, 5 and 10 ms more; the waits after that are longer (sqlite3.c)."""

PoolRole = Literal["credentials", "requests", "workers"]
"""Who reads: each role has connections of its own, so that a slow report delays no credential look-up."""


class Transactions(Protocol):
    """
    The two verbs of the database: what every store of this package is built on.

    ``work`` is a function of a cursor.  It runs in a thread, inside a transaction, so it touches nothing
    but its cursor and its arguments, and returns rows already fetched.
    """

    def read(
        self, work: Callable[[sqlite3.Cursor, *Ts], T], *args: *Ts, pool: PoolRole = "requests"
    ) -> Deferred[T]:
        """The result of ``work`` on one consistent snapshot; it cannot write."""
        ...

    def write(
        self,
        work: Callable[[sqlite3.Cursor, *Ts], T],
        *args: *Ts,
        urgent: bool = False,
        begin_within: float | None = None,
    ) -> Deferred[T]:
        """
        The result of ``work``, committed.  When it fails, nothing of it was written.

        :param urgent: a request waits for it: first in its group, and up to 5 s for the lock (else 1 s).
        :param begin_within: seconds after which it fails as busy unless it has begun, whatever holds it up;
            one that has begun is waited for to its end.
        """
        ...


class Handle(sqlite3.Connection):
    """
    A connection that can be told apart from others, and be marked to be opened anew.

    One opened while the file could not be written stays read-only for good; one that met an I/O error may
    hold a descriptor of a file that is gone.  Recovery when the cause goes (contract 4) takes a new one.
    """

    stale: bool = False
    serial: int = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.serial = next(_serials)


_KINDS: dict[int, type[StorageUnavailable]] = {
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
    sqlite3.SQLITE_PROTOCOL: StoreBusy,
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_READONLY: StoreReadOnly,
    sqlite3.SQLITE_CANTOPEN: StoreReadOnly,
    sqlite3.SQLITE_PERM: StoreReadOnly,
    sqlite3.SQLITE_CORRUPT: StoreDamaged,
    sqlite3.SQLITE_NOTADB: StoreDamaged,
}

_EXTENDED_KINDS: dict[int, type[StorageUnavailable]] = {
    # The -shm file could not grow: "the volume is out of space" (sqlite.org/rescode.html#ioerr_shmsize).
    sqlite3.SQLITE_IOERR_SHMSIZE: StoreFull,
}

_TEXTS: dict[type[StorageUnavailable], str] = {
    StoreBusy: "another process has locked the database",
    StoreFull: "the disk of the database is full",
    StoreReadOnly: "the database or its directory cannot be written",
    StoreFailing: "the database reports an error",
    StoreDamaged: "the database is damaged",
    StoreMoved: "the file was removed, or another was put in its place",
}


def problem(kind: type[StorageUnavailable]) -> StorageUnavailable:
    """A new error of this kind, with the words for it."""
    return kind(_TEXTS.get(kind, "the database is closed"))


def translate(error: BaseException | None) -> StorageUnavailable | None:
    """
    What an error of SQLite means, or None for an error that is not the database's.

    A broken constraint or a misuse of the module is a fault of the operation, hence None.  Everything else
    SQLite can say (I/O, a table that is gone) is ``StoreFailing`` unless it has a kind of its own.
    """
    if not isinstance(error, sqlite3.DatabaseError) or isinstance(
        error,
        (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.NotSupportedError),
    ):
        return None
    # The low byte is the primary result code: sqlite.org/rescode.html.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return problem(_EXTENDED_KINDS.get(code) or _KINDS.get(code & 0xFF, StoreFailing))


def uri(path: Path | str) -> str:
    """The file as SQLite's URI that opens it for writing and never creates it (sqlite.org/uri.html)."""
    return f"{Path(path).absolute().as_uri()}?mode=rw"


def connect(path: Path | str, *, durability: Durability = "normal", busy_ms: int = 5000) -> Handle:
    """
    A connection for reading and writing that leaves every transaction to us.

    It creates no file.  Its journal mode is the file's (``opening`` sets it once).
    """
    target = path if path == ":memory:" else uri(path)
    connection = sqlite3.connect(
        target, uri=path != ":memory:", isolation_level=None, check_same_thread=False, factory=Handle
    )
    prepare(connection, durability=durability, busy_ms=busy_ms)
    return connection


def prepare(
    connection: sqlite3.Connection, *, durability: Durability, busy_ms: int = 5000, query_only: bool = False
) -> None:
    """Set what SQLite keeps per connection and not in the file.  None of it touches the file."""
    connection.execute(f"PRAGMA busy_timeout={busy_ms:d}")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute(f"PRAGMA synchronous={'FULL' if durability == 'full' else 'NORMAL'}")
    # After a burst the -wal file gives back what is beyond this.
    connection.execute("PRAGMA journal_size_limit=67108864")
    # What a savepoint may have to undo stays in memory, so that no payload gets into a temporary file.
    connection.execute("PRAGMA temp_store=MEMORY")
    if not query_only:
        # KiB.  The writer keeps a full queue's indexes at hand; it takes what it needs of this, no more.
        connection.execute("PRAGMA cache_size=-32768")
    connection.execute(f"PRAGMA query_only={'ON' if query_only else 'OFF'}")


def undo(connection: sqlite3.Connection) -> None:
    """Roll back what is open.  When even that fails the connection is closed, to the same effect."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        connection.close()
        if isinstance(connection, Handle):
            connection.stale = True


def mark(connection: sqlite3.Connection, trouble: StorageUnavailable) -> None:
    """Have the connection opened anew when this trouble may outlive its cause there."""
    if isinstance(connection, Handle) and isinstance(trouble, (StoreReadOnly, StoreFailing)):
        connection.stale = True


def begin_immediate(on: sqlite3.Connection | sqlite3.Cursor, patience: int) -> None:
    """
    BEGIN IMMEDIATE, waiting ``patience`` milliseconds for the write lock; it changes the busy_timeout.

    In many short rounds, for SQLite asks ever more rarely, in the end ten times a second: beside writers that
    are quick and many, that is to find the lock taken each time.
    """
    on.execute(f"PRAGMA busy_timeout={min(patience, ROUND_MS):d}")
    for left in reversed(range(max(1, ceil(patience / ROUND_MS)))):
        try:
            on.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not left or not isinstance(translate(error), StoreBusy):
                raise


def _begin_immediate(cursor: sqlite3.Cursor) -> None:
    """As long as the connection's busy_timeout says."""
    (patience,) = cursor.execute("PRAGMA busy_timeout").fetchone()
    try:
        begin_immediate(cursor, patience)
    finally:
        cursor.execute(f"PRAGMA busy_timeout={patience:d}")


@contextmanager
def _transaction(
    connection: sqlite3.Connection, begin: Callable[[sqlite3.Cursor], object]
) -> Iterator[sqlite3.Cursor]:
    cursor = connection.cursor()
    try:
        begin(cursor)
        yield cursor
        cursor.execute("COMMIT")
        cursor.close()
    except BaseException as error:
        cursor.close()
        undo(connection)
        known = translate(error)
        if known is not None:
            mark(connection, known)
            raise known from None
        raise


def immediate(connection: sqlite3.Connection) -> AbstractContextManager[sqlite3.Cursor]:
    """
    One write transaction, for synchronous callers (commands, start): committed at the end of the block.

    :raises StorageUnavailable: it was rolled back whole.
    """
    return _transaction(connection, _begin_immediate)


def snapshot(connection: sqlite3.Connection) -> AbstractContextManager[sqlite3.Cursor]:
    """One read transaction, for synchronous callers."""
    return _transaction(connection, lambda cursor: cursor.execute("BEGIN"))
