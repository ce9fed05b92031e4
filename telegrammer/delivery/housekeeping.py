"""What has to be done now and then: dead jobs are told of, and past their retention they go (contract 6)."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field
from twisted.logger import Logger

from telegrammer.core.delivery import Toll
from telegrammer.core.problems import StorageUnavailable
from telegrammer.ports import Deliveries

log = Logger()

INTERVAL = 60.0
"""Seconds between two rounds, at most."""


def interval(retention: int) -> float:
    """Seconds between two rounds, so that dead jobs outlive a short ``retention`` (seconds) but little."""
    return min(INTERVAL, max(1.0, retention / 10))


def _nothing() -> None: ...


def _ignored(count: int) -> None: ...


def _no_toll() -> Toll:
    return Toll()


@define(eq=False)
class Housekeeping:
    """
    ``round`` is the step of a ``service.Repeating``.

    :param toll: what the workers' turns have buried and evicted since it was last asked.
    :param on_left: called when jobs left the queue, so that there is room again.
    :param on_purged: told how many dead jobs went.
    :param interval: seconds between two rounds.
    """

    deliveries: Deliveries
    toll: Callable[[], Toll] = _no_toll
    on_left: Callable[[], None] = _nothing
    interval: float = INTERVAL
    on_purged: Callable[[int], None] = _ignored
    _unreported: int = field(default=0, init=False)
    _failing: bool = field(default=False, init=False)

    async def round(self) -> float:
        """Purge, and tell in one line each how many died and how many went; seconds until the next round."""
        toll = self.toll()
        self._unreported += toll.evicted
        if toll.died:
            log.warn("{count} deliveries died; list-failed-deliveries tells why", count=toll.died)
        try:
            purged = await self.deliveries.purge_dead()
        except StorageUnavailable as error:
            # What has been evicted is told when the line can be complete.
            if not self._failing:
                log.warn("dead deliveries cannot be purged, the database is {state}", state=error.state)
            self._failing = True
            return self.interval
        self._failing = False
        gone, self._unreported = self._unreported + purged, 0
        if gone:
            log.warn("purged {count} dead deliveries, too old or too many", count=gone)
            self.on_purged(gone)
        if purged:
            self.on_left()
        return self.interval
