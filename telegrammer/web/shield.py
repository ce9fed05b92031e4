"""
Operations that go on when the caller who asked for them hangs up.

Klein cancels a handler when its client leaves, and the cancellation reaches whatever the handler awaits: a
``sendMessage`` on the wire would be torn, the result of a commit lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

log = Logger()

T = TypeVar("T")


def shielded(what: str, work: Awaitable[T], hold: Callable[[Deferred[Any]], object]) -> Deferred[T]:
    """
    The result of ``work``, whose cancellation does not reach it.

    Once nobody waits for the result, the log says what became of it: by the class of the outcome or the
    exception, since either may carry what no log should.

    :param hold: is given the running work, so that it counts as running until it has ended.
    """
    left = False

    def leave(_: Deferred[T]) -> None:
        nonlocal left
        left = True

    async def operation() -> T:
        return await work

    def ended(result: T | Failure) -> None:
        if not left:
            answer.callback(result)
        elif isinstance(result, Failure):
            log.warn(
                "{what}: the caller left, then it failed: {kind}", what=what, kind=type(result.value).__name__
            )
        else:
            log.info(
                "{what}: the caller left, it ended all the same: {kind}",
                what=what,
                kind=type(result).__name__,
            )

    answer: Deferred[T] = Deferred(leave)
    running = Deferred.fromCoroutine(operation())
    hold(running)
    running.addBoth(ended)
    return answer
