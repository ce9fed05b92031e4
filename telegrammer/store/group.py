"""
One group of writes as one transaction, in the writer's thread (contract 4).

Each operation runs in its own SAVEPOINT: one that raises is undone alone.  BEGIN and COMMIT are shared: when
either fails, or SQLite gives up the whole transaction, all of the group fail the same way.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from attrs import define, field, frozen
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from telegrammer.core.problems import StorageUnavailable, StoreBusy, StoreFailing
from telegrammer.store.engine import Handle, begin_immediate, mark, problem, translate, undo

log = Logger()


@define(eq=False)
class Operation:
    """One write and who waits for it."""

    work: Callable[[sqlite3.Cursor], object]
    deadline: float
    urgent: bool
    caller: Deferred[object]
    abandoned: bool = False
    """The caller has cancelled: drop it when it has not begun, else let it finish unheard."""
    late: IDelayedCall | None = None
    """The end of the time in which it has to begin."""
    _unbegun: list[None] = field(factory=lambda: [None], init=False)

    def claim(self) -> bool:
        """True for the first who asks: the thread, to begin it, or the reactor, to withdraw it."""
        try:
            # One step, in whichever thread.
            self._unbegun.pop()
        except IndexError:
            return False
        return True

    def answer(self, outcome: object) -> None:
        """Tell the caller; a Failure is an errback."""
        if self.late is not None and self.late.active():
            self.late.cancel()
        if not self.abandoned:
            self.caller.callback(outcome)


@frozen
class Committed:
    """The group was committed; one outcome each, None for an abandoned one."""

    outcomes: Sequence[object | Failure]
    changed: bool
    """Rows were really written."""


@frozen
class Locked:
    """Nothing has begun: another process held the lock for the whole slice."""


@frozen
class Lost:
    """The transaction was rolled back whole."""

    kind: type[StorageUnavailable]


Report = Committed | Locked | Lost


class _GroupLost(Exception):
    """SQLite rolled the whole transaction back by itself; the cause is the error it said so with."""


def perform(connection: Handle, group: Sequence[Operation], wait: float, begun: Callable[[], None]) -> Report:
    """One transaction, in the writer's thread.  Never raises for what the database does."""
    try:
        try:
            begin_immediate(connection, max(1, round(wait * 1000)))
        except sqlite3.Error as error:
            trouble = translate(error)
            if isinstance(trouble, StoreBusy):
                return Locked()
            raise
        begun()
        outcomes: list[object | Failure] = []
        changed = False
        for operation in group:
            before = connection.total_changes
            outcome = _perform_one(connection, operation)
            outcomes.append(outcome)
            changed = changed or (not isinstance(outcome, Failure) and connection.total_changes > before)
        connection.execute("COMMIT")
        return Committed(outcomes, changed)
    except (sqlite3.Error, _GroupLost) as error:
        cause = error.__cause__ if isinstance(error, _GroupLost) else error
        trouble = translate(cause)
        if trouble is None:
            # Not SQLite: an operation ended the transaction it was lent.
            log.error(
                "a transaction was lost to a fault in one of its operations: {kind}",
                kind=type(cause).__name__,
            )
            trouble = problem(StoreFailing)
        mark(connection, trouble)
        return Lost(type(trouble))
    finally:
        undo(connection)


def _perform_one(connection: Handle, operation: Operation) -> object | Failure:
    if operation.abandoned or not operation.claim():
        return None
    connection.execute("SAVEPOINT operation")
    cursor = connection.cursor()
    outcome: object | Failure
    try:
        outcome = operation.work(cursor)
    except Exception as error:
        if not connection.in_transaction:
            # SQLITE_FULL, IOERR and NOMEM may end everything, the work of the others included.
            raise _GroupLost from error
        connection.execute("ROLLBACK TO operation")
        trouble = translate(error)
        if trouble is None:
            outcome = Failure()
        else:
            mark(connection, trouble)
            outcome = Failure(trouble)
    finally:
        cursor.close()
    connection.execute("RELEASE operation")
    return outcome
