"""What has to be done for the journal now and then: what is kept no longer goes (contract 8)."""

from __future__ import annotations

from attrs import define, field
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from telegrammer.core.problems import StorageUnavailable
from telegrammer.ports import Journal

log = Logger()

INTERVAL = 60.0
"""Seconds between two rounds."""
REST_SHARE = 9
"""So many times as long as a round has taken, at least, is rested after it."""


@define(eq=False)
class JournalKeeping:
    """
    ``round`` is the step of a ``service.Repeating``.

    Where bodies go soon, a round looks at all the entries of two days that are kept for their identity.  So
    one that took its time is followed by a longer rest.

    :param interval: seconds between two rounds, at least.
    """

    journal: Journal
    clock: IReactorTime
    interval: float = INTERVAL
    _failing: bool = field(default=False, init=False)

    async def round(self) -> float:
        """Let go of what is kept no longer, and say so where it was not folded; seconds until the next."""
        began = self.clock.seconds()
        try:
            evicted = await self.journal.let_go()
        except StorageUnavailable as error:
            if not self._failing:
                log.warn("the journal cannot be tidied, the database is {state}", state=error.state)
            self._failing = True
            return self.interval
        self._failing = False
        if evicted:
            log.warn("{count} failed updates were purged from the journal, too many are kept", count=evicted)
        return max(self.interval, REST_SHARE * (self.clock.seconds() - began))
