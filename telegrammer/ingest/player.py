"""
Folds one entry of the journal, and says what came of it as a value (contract 8).

The worker and ``telegrammer replay`` both play entries by this, so that an error means the same to both.
Nothing here needs a reactor.
"""

from __future__ import annotations

from attrs import define, field
from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from telegrammer.core.folding import (
    ALREADY,
    DEFERRED,
    FAILED,
    Outcome,
    circumstance_of,
    is_circumstance,
    outcome_of,
    reason_of,
)
from telegrammer.core.problems import CapacityReached, MalformedUpdate, UnknownEntry
from telegrammer.ingest.ingestor import Ingestor
from telegrammer.logs import whence
from telegrammer.ports import Journal

log = Logger()


@define(eq=False)
class Player:
    """
    Plays entries, one at a time.  Its lines in the log have ids and kinds, never what an update holds.

    A circumstance is told of once, until it is another or none waits any more: where the queue is full, one
    entry gets through for each job that leaves, and the next one waits again.
    """

    ingestor: Ingestor
    journal: Journal
    lacks_room: bool = field(default=False, init=False)
    """The last entry waits for room in the queue."""
    _told: str | None = field(default=None, init=False)

    @property
    def waits_for(self) -> str | None:
        """What kept the entry that was last deferred; None: none has waited since the end was reached."""
        return self._told

    def reached_end(self) -> None:
        """No entry waits any more: what comes next in the way is news."""
        self._told = None

    async def play(self, entry_id: int) -> Outcome:
        """
        Fold it: exactly one class of the outcome is 1.

        Only the error is judged; whether somebody wants to stop is the caller's to know.

        :raises UnknownEntry: there is none (any more); nothing was done.
        """
        try:
            outcome = outcome_of(await self.ingestor.fold(entry_id))
        except UnknownEntry:
            raise
        except Exception as error:
            if _passes(error):
                return self._deferred(entry_id, error)
            return await self._failed(entry_id, error)
        self.lacks_room = False
        return outcome

    def _deferred(self, entry_id: int, error: Exception) -> Outcome:
        why, self.lacks_room = circumstance_of(error), isinstance(error, CapacityReached)
        if why != self._told:
            self._told = why
            log.warn("entry {entry} of the journal waits: {why}", entry=entry_id, why=why)
        return DEFERRED

    async def _failed(self, entry_id: int, error: Exception) -> Outcome:
        what = whence(error)
        try:
            update_id = await self.journal.fail(entry_id, reason_of(error))
        except Exception as trouble:
            # Nothing was written, so it is what it was.
            if not _passes(trouble):
                log.error(
                    "entry {entry} of the journal could not be marked as failed: an unexpected {what}",
                    entry=entry_id,
                    what=whence(trouble),
                )
            return self._deferred(entry_id, trouble)
        self.lacks_room = False
        if update_id is None:
            if not isinstance(error, MalformedUpdate):
                log.error(
                    "entry {entry} of the journal is folded, though an unexpected {what} was met",
                    entry=entry_id,
                    what=what,
                )
            return ALREADY
        if isinstance(error, MalformedUpdate):
            log.warn(
                "update {update_id}, entry {entry} of the journal, cannot be folded: {why}",
                update_id=update_id,
                entry=entry_id,
                why=error.why,
            )
        else:
            log.error(
                "folding update {update_id}, entry {entry} of the journal, met an unexpected {what}",
                update_id=update_id,
                entry=entry_id,
                what=what,
            )
        return FAILED


def _passes(error: Exception) -> bool:
    """Is it a circumstance?  So is being cancelled, which the core knows nothing of."""
    return isinstance(error, CancelledError) or is_circumstance(error)
