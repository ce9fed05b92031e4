"""
The one writer: everything that waits goes into one transaction (group commit; contract 4).

SQLite admits one writer at a time and its busy handler is unfair, so all writes of the process queue here,
urgent ones first, and one thread serves the queue.  A turn takes what waits *now*; no timer collects more.
Idle, a group is one operation; under load, groups grow by themselves.

Each operation runs in its own SAVEPOINT: one that raises is undone alone.  BEGIN and COMMIT are shared: when
either fails, or SQLite gives up the whole transaction, all of the group fail the same way.

Another process may hold the lock.  A turn therefore waits only a slice for it, then those whose patience has
ended are told ``StoreBusy`` and the others, with whatever has arrived meanwhile, try again: nobody waits
longer for having company.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, TypeVarTuple

from attrs import define, field, frozen
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from telegrammer.core.problems import StorageUnavailable, StoreBusy, StoreClosed, StoreFailing
from telegrammer.store.engine import Handle, mark, problem, translate, undo

log = Logger()

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

URGENT_PATIENCE = 5.0
"""Seconds a request waits for the lock (contract 4)."""
BACKGROUND_PATIENCE = 1.0
"""Seconds background work waits for it, before it backs off."""
SLICE = 0.5
"""Seconds one turn waits for it in the thread."""
SHORTEST_WAIT = 0.05
"""A turn whose time is over still gives SQLite this long: a short lock is no reason to fail."""
LARGEST_BACKGROUND = 256
"""Background operations in one group; more only make the transaction longer (delivery-notes: k = 256)."""


class Lender(Protocol):
    """Runs a function of the writing connection in its thread."""

    def run(self, work: Callable[[Handle], T]) -> Deferred[T]: ...


@define(eq=False)
class Operation:
    """One write and who waits for it."""

    work: Callable[[sqlite3.Cursor], object]
    deadline: float
    urgent: bool
    caller: Deferred[object]
    begun: bool = False
    abandoned: bool = False
    """The caller has cancelled: drop it when it has not begun, else let it finish unheard."""

    def answer(self, outcome: object) -> None:
        """Tell the caller; a Failure is an errback."""
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
            connection.execute(f"PRAGMA busy_timeout={max(1, round(wait * 1000)):d}")
            connection.execute("BEGIN IMMEDIATE")
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
    if operation.abandoned:
        return None
    operation.begun = True
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


@define(eq=False)
class Writer:
    """
    Queues operations and commits them in groups.

    :param lender: the pool with the one writing connection.
    :param noted: told of every group: the trouble it, or an operation in it, met (None: it met none), and
        whether rows were really written.
    """

    lender: Lender
    clock: IReactorTime
    noted: Callable[[type[StorageUnavailable] | None, bool], None] = lambda trouble, changed: None
    waiting_since: float | None = field(default=None, init=False)
    """When the operations in hand began to wait for the lock (by ``clock``); None: none waits for it."""
    _urgent: deque[Operation] = field(factory=deque, init=False)
    _background: deque[Operation] = field(factory=deque, init=False)
    _turning: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)
    _idle: Deferred[None] | None = field(default=None, init=False)

    def submit(
        self,
        work: Callable[[sqlite3.Cursor, *Ts], T],
        *args: *Ts,
        urgent: bool = False,
        patience: float | None = None,
    ) -> Deferred[T]:
        """
        The result of ``work``, committed.

        Cancelling it stops the waiting: an operation that has not begun is dropped, one that has begun is
        finished all the same.

        :param patience: seconds to wait for the lock, in place of what ``urgent`` says.
        """
        if patience is None:
            patience = URGENT_PATIENCE if urgent else BACKGROUND_PATIENCE

        def abandon(_: Deferred[object]) -> None:
            operation.abandoned = True

        caller: Deferred[object] = Deferred(abandon)
        operation = Operation(
            lambda cursor: work(cursor, *args), self.clock.seconds() + patience, urgent, caller
        )
        if self._closed:
            operation.answer(Failure(problem(StoreClosed)))
        else:
            (self._urgent if urgent else self._background).append(operation)
            self._turn()
        return caller  # type: ignore[return-value]  # answered with what ``work`` returned

    def close(self) -> Deferred[None]:
        """Refuse what comes from now on; fires when all that was accepted has been answered."""
        self._closed = True
        if not self._turning:
            return succeed(None)
        if self._idle is None:
            self._idle = Deferred()
        return self._idle

    def _take(self) -> list[Operation]:
        group = [operation for operation in self._urgent if not operation.abandoned]
        self._urgent.clear()
        taken = 0
        while self._background and taken < LARGEST_BACKGROUND:
            operation = self._background.popleft()
            if not operation.abandoned:
                group.append(operation)
                taken += 1
        return group

    def _turn(self) -> None:
        if self._turning:
            return
        group = self._take()
        if not group:
            idle, self._idle = self._idle, None
            if idle is not None:
                idle.callback(None)
            return
        self._turning = True
        now = self.clock.seconds()
        if self.waiting_since is None:
            self.waiting_since = now
        wait = min(SLICE, min(operation.deadline for operation in group) - now)
        wait = max(SHORTEST_WAIT, wait)
        running = self.lender.run(lambda connection: perform(connection, group, wait, self._begun))
        running.addCallbacks(
            lambda report: self._reported(report, group, now, wait),
            lambda failure: self._crashed(failure, group),
        )
        running.addErrback(self._survived)

    def _begun(self) -> None:
        # Called in the thread; one assignment.
        self.waiting_since = None

    def _next(self) -> None:
        self._turning = False
        self._turn()

    def _reported(self, report: Report, group: Sequence[Operation], began: float, wait: float) -> None:
        if isinstance(report, Locked):
            self._locked(group, began, wait)
            return
        self.waiting_since = None
        if isinstance(report, Lost):
            self.noted(report.kind, False)
            for operation in group:
                operation.answer(Failure(problem(report.kind)))
        else:
            troubles = [
                type(outcome.value)
                for outcome in report.outcomes
                if isinstance(outcome, Failure) and isinstance(outcome.value, StorageUnavailable)
            ]
            self.noted(troubles[-1] if troubles else None, report.changed)
            for operation, outcome in zip(group, report.outcomes, strict=True):
                operation.answer(outcome)
        self._next()

    def _locked(self, group: Sequence[Operation], began: float, wait: float) -> None:
        now = self.clock.seconds()
        expired = [operation for operation in group if operation.deadline <= now]
        kept = [operation for operation in group if operation.deadline > now]
        # They were first and stay first.
        self._urgent.extendleft(reversed([operation for operation in kept if operation.urgent]))
        self._background.extendleft(reversed([operation for operation in kept if not operation.urgent]))
        if not kept and not self._urgent and not self._background:
            self.waiting_since = None
        if expired:
            self.noted(StoreBusy, False)
        for operation in expired:
            operation.answer(Failure(problem(StoreBusy)))
        if now - began < wait / 2:
            # SQLite did not wait (it sees a deadlock, say): neither hammer it nor give up early.
            self.clock.callLater(SHORTEST_WAIT, self._next)
        else:
            self._next()

    def _crashed(self, failure: Failure, group: Sequence[Operation]) -> None:
        self.waiting_since = None
        trouble = failure.value if isinstance(failure.value, StorageUnavailable) else None
        if trouble is not None:
            self.noted(type(trouble), False)
        for operation in group:
            operation.answer(Failure(failure.value if trouble is None else problem(type(trouble))))
        self._next()

    def _survived(self, failure: Failure) -> None:
        # A fault of ours; without this the queue would stand still for good.
        log.failure("the results of a group could not be handed out", failure)
        self._next()
