"""Waits: the retry schedule, jitter, doubling back-off, ``Retry-After`` (contract 1.2, 5.4, 6)."""

from __future__ import annotations

from attrs import frozen


@frozen
class Schedule:
    """``--retry-schedule``: the waits between attempts, in whole seconds; N waits make N + 1 attempts."""

    waits: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)

    @property
    def attempts(self) -> int:
        """How many attempts a job gets."""
        return len(self.waits) + 1
