"""
The one writer: everything that waits goes into one transaction (group commit; contract 4).

SQLite admits one writer at a time and its busy handler is unfair, so all writes of the process queue here,
urgent ones first, and one thread serves the queue.  A turn takes what waits *now*; no timer collects more.
Idle, a group is one operation; under load, groups grow by themselves.

One that raises is undone alone; a commit that fails fails for all of its group (``group``).

Another process may hold the lock.  A turn therefore waits only a slice for it, then those whose patience has
ended are told ``StoreBusy`` and the others, with whatever has arrived meanwhile, try again: nobody waits
longer for having company.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, TypeVarTuple

from attrs import define, field
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from telegrammer.core.problems import StorageUnavailable, StoreBusy, StoreClosed
from telegrammer.store.engine import Handle, problem
from telegrammer.store.group import Locked, Lost, Operation, Report, perform

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
        begin_within: float | None = None,
    ) -> Deferred[T]:
        """
        The result of ``work``, committed.

        Cancelling it stops the waiting: an operation that has not begun is dropped, one that has begun is
        finished all the same.

        :param patience: seconds to wait for the lock, in place of what ``urgent`` says.
        :param begin_within: the same, and the operation is withdrawn after so many seconds also when
            something else holds it up; when it has begun by then, it is waited for to its end.
        """
        if begin_within is not None:
            patience = begin_within
        elif patience is None:
            patience = URGENT_PATIENCE if urgent else BACKGROUND_PATIENCE

        def abandon(_: Deferred[object]) -> None:
            operation.abandoned = True
            if operation.late is not None and operation.late.active():
                operation.late.cancel()

        caller: Deferred[object] = Deferred(abandon)
        operation = Operation(
            lambda cursor: work(cursor, *args), self.clock.seconds() + patience, urgent, caller
        )
        if self._closed:
            operation.answer(Failure(problem(StoreClosed)))
        else:
            if begin_within is not None:
                operation.late = self.clock.callLater(begin_within, self._withdraw, operation)
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

    def _withdraw(self, operation: Operation) -> None:
        """Its time to begin is over."""
        if operation.claim():
            operation.answer(Failure(problem(StoreBusy)))
            operation.abandoned = True

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
            self.waiting_since = None  # whoever waited for the lock has been told, or has left
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
