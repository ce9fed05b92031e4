"""
Admission: who gets the file, and until when the caller may still change his mind (contract 7.2).

An operation waits in the queue of its handle's thread, then for SQLite's exclusive lock.  Until it has that,
the deadline or a cancel ends it at once, and nothing was changed.  From then on it is finished, and what it
really did is told.  Two threads decide, so one small state under a lock does.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from typing import Any, Literal, Protocol, TypeVar

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from telegrammer.messaging.one_thread import OneThread

T = TypeVar("T")


@define(eq=False)
class Admission:
    """Waiting, then either admitted (by the thread) or abandoned (by the reactor): never both."""

    _state: Literal["waiting", "admitted", "abandoned"] = field(default="waiting", init=False)
    _changed: Condition = field(factory=Condition, init=False, repr=False)

    def admit(self) -> bool:
        """Have the operation done now; False when it was abandoned."""
        return self._leave("admitted")

    def abandon(self) -> bool:
        """Have it not done; False when it was admitted, or abandoned before."""
        return self._leave("abandoned")

    def is_abandoned(self, within: float = 0.0) -> bool:
        """Whether it was, or is within so many seconds; it returns as soon as that is known."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state == "abandoned", within)

    def _leave(self, state: Literal["admitted", "abandoned"]) -> bool:
        with self._changed:
            if self._state != "waiting":
                return False
            self._state = state
            self._changed.notify_all()
            return True


class Answer(Deferred[T]):
    """
    The result of an operation; cancelling it ends what has not been admitted, and nothing else.

    A canceller could not do that: ``Deferred.cancel`` fires what its canceller leaves unfired.
    """

    def __init__(self, admission: Admission) -> None:
        super().__init__()
        self._admission = admission

    def cancel(self) -> None:
        """``CancelledError`` at once, unless the operation was admitted: then its result comes."""
        if self.called or self._admission.abandon():
            super().cancel()


class Lane(Protocol):
    """Where the jobs of one handle run, one after another."""

    def put(self, job: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        """Run the job in its turn, then ``done`` in the reactor's thread."""
        ...

    def stop(self) -> None:
        """The last job was done; give the thread back."""
        ...


class ThreadLane:
    """One thread of its own.  A lock that is waited for there holds up nobody else."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._thread = OneThread("outbox")

    def put(self, job: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        def run() -> None:
            try:
                result: T | Failure = job()
            except BaseException:
                result = Failure()
            self._reactor.callFromThread(done, result)

        self._thread.put(run)

    def stop(self) -> None:
        self._thread.join()
