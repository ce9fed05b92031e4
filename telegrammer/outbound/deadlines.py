"""One timer for all that has to end within the same time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime


@define(eq=False)
class Deadlines:
    """
    Cancels what has not ended in time.

    All that is added is given equally long, so the oldest is always the next.  A timer for each would be a
    tenth of what a POST costs.  There is none when there is nothing to wait for.
    """

    clock: IReactorTime
    _ends: dict[Deferred[Any], float] = field(factory=dict, init=False)
    """In the order of the deadlines."""
    _timer: IDelayedCall | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[Deferred[Any]]:
        """Over a copy: cancelling ends it."""
        return iter(list(self._ends))

    def add(self, waited: Deferred[Any], seconds: float) -> None:
        """Cancel ``waited`` in so many seconds, the same for all."""
        self._ends[waited] = self.clock.seconds() + seconds
        if self._timer is None:
            self._timer = self.clock.callLater(seconds, self._expire)

    def discard(self, waited: Deferred[Any]) -> bool:
        """It has ended; False when its time was over already."""
        in_time = self._ends.pop(waited, None) is not None
        if not self._ends and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return in_time

    def _expire(self) -> None:
        self._timer = None
        now = self.clock.seconds()
        late = [waited for waited, end in self._ends.items() if end <= now]
        for waited in late:
            del self._ends[waited]
        if self._ends:
            self._timer = self.clock.callLater(next(iter(self._ends.values())) - now, self._expire)
        for waited in late:
            waited.cancel()
