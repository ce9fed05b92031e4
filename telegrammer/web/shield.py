"""
Operations that go on when the caller who asked for them hangs up.

Klein cancels a handler when its client leaves, and the cancellation reaches whatever the handler awaits: a
``sendMessage`` on the wire would be torn, a commit's result lost.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from attrs import Factory, define, field
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

log = Logger()

T = TypeVar("T")


@define(eq=False)
class Shield:
    """Keeps what it runs from being cancelled, and knows what still runs."""

    _running: set[Deferred[Any]] = field(factory=set, init=False)
    _waiting: list[Deferred[None]] = field(default=Factory(list), init=False)

    def run(self, what: str, work: Awaitable[T]) -> Deferred[T]:
        """
        The result of ``work``, whose cancellation does not reach it.

        Once nobody waits for the result, the log says what became of it: by the class of the outcome or
        the exception, since either may carry what no log should.
        """
        left = False

        def leave(_: Deferred[T]) -> None:
            nonlocal left
            left = True

        async def operation() -> T:
            return await work

        def ended(result: T | Failure) -> None:
            self._running.discard(running)
            if not left:
                answer.callback(result)
            elif isinstance(result, Failure):
                log.warn(
                    "{what}: the caller left, then it failed: {kind}", what=what, kind=_kind(result.value)
                )
            else:
                log.info(
                    "{what}: the caller left, it ended all the same: {kind}", what=what, kind=_kind(result)
                )
            if not self._running:
                waiting, self._waiting = self._waiting, []
                for each in waiting:
                    each.callback(None)

        answer: Deferred[T] = Deferred(leave)
        running = Deferred.fromCoroutine(operation())
        self._running.add(running)
        running.addBoth(ended)
        return answer

    def finished(self) -> Deferred[None]:
        """Fires when nothing runs any more; for a stop that must not close the database too early."""
        if not self._running:
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        self._waiting.append(waiting)
        return waiting


def _kind(value: object) -> str:
    return type(value).__name__
