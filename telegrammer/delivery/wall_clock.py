"""The wall clock between two jumps: what is waited for follows the monotonic clock (contract 9)."""

from __future__ import annotations

from attrs import define, field
from twisted.internet.interfaces import IReactorTime

from telegrammer.ports import Now

JUMP = 2.0
"""Seconds: less is the slow correction of a clock that is kept right, and is followed."""


@define(eq=False)
class WallClock:
    """
    Wall time that goes on evenly over a jump, until the jump has been taken into account.

    Times in the database are of the clock as it was; so are those this gives, until ``moved``.
    """

    clock: IReactorTime
    _now: Now
    _offset: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._offset = self._now() - self.clock.seconds()

    def read(self) -> float:
        """Unix seconds, by the clock as it was before a jump that has not been accounted for."""
        return self.clock.seconds() + self._offset

    def jump(self) -> int:
        """By how many seconds the clock has been set forward (or back, negative); 0: it was not."""
        drift = self._now() - self.read()
        if abs(drift) < JUMP:
            self._offset += drift
            return 0
        return round(drift)

    def moved(self, seconds: int) -> None:
        """What is stored has been moved by ``seconds``: from now on this clock is too."""
        self._offset += seconds
