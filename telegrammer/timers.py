"""Time limits that are fair after a standstill of the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer

STANDSTILL = 1.0
"""Seconds: a timer that comes later than this tells that the process did not run."""


@implementer(IDelayedCall)
@define(eq=False)
class FairCall:
    """
    A delayed call that waits for one more turn of the reactor when the process stood still over its time.

    After SIGSTOP, or in a container that was frozen, the reactor looks at its timers before its sockets: what
    had come in time would be found too late, an answer thrown away and its request sent again.
    """

    _clock: IReactorTime
    _call: Callable[[], object]
    _timer: IDelayedCall = field(init=False)
    _due: float = field(init=False)
    _deferred: bool = field(default=False, init=False)

    def begin(self, seconds: float) -> None:
        self._due = self._clock.seconds() + seconds
        self._timer = self._clock.callLater(seconds, self._ring)

    def _ring(self) -> None:
        if not self._deferred and self._clock.seconds() - self._due > STANDSTILL:
            self._deferred = True
            self._timer = self._clock.callLater(0, self._ring)
        else:
            self._call()

    def active(self) -> bool:
        return self._timer.active()

    def cancel(self) -> None:
        self._timer.cancel()

    def getTime(self) -> float:
        return self._timer.getTime()

    def reset(self, secondsFromNow: float) -> None:
        self._due = self._clock.seconds() + secondsFromNow
        self._timer.reset(secondsFromNow)

    def delay(self, secondsLater: float) -> None:
        self._due += secondsLater
        self._timer.delay(secondsLater)


@implementer(IReactorTime)
@define(eq=False)
class FairClock:
    """The same clock, whose delayed calls are `FairCall`."""

    _clock: IReactorTime

    def seconds(self) -> float:
        return self._clock.seconds()

    def callLater(
        self, delay: float, callable: Callable[..., Any], *args: object, **kwargs: object
    ) -> IDelayedCall:
        call = FairCall(self._clock, lambda: callable(*args, **kwargs))
        call.begin(delay)
        return call

    def getDelayedCalls(self) -> Sequence[IDelayedCall]:
        return self._clock.getDelayedCalls()
