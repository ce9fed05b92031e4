"""
The journal: raw updates that Telegram pushed, in the order in which they were accepted (contract 8).

An entry's place is ``(received_at, id)``: neither ever goes back, whatever the clock does, so the order of
acceptance is the order of folding.
"""

from __future__ import annotations

from typing import Final, Literal

from attrs import frozen

from telegrammer.core.ingestion import RESET_DISTANCE

QUIET_BEFORE_RESTART: Final = 6 * 86_400
"""Seconds without an update, at the least, before Telegram restarts its ids: it says "at least a week"."""

ParseStatus = Literal["pending", "folded", "failed"]


@frozen(order=True)
class Place:
    """Where an entry stands; ``Place()`` is before all of them."""

    received_at: int = 0
    """Unix seconds that never go back: the clock's, or those of the entry before."""
    entry_id: int = 0


BEGINNING: Final = Place()


@frozen
class Pending:
    """An entry that waits to be folded."""

    place: Place
    accepted_at: int
    """Unix seconds by the clock of the moment, for its age."""


@frozen
class Accepted:
    """What became of a pushed update: it is safe in the journal."""

    entry_id: int | None
    """None: it was there before, or polled before; nothing was stored."""
    epoch: int
    restarted: bool = False
    """With it Telegram has restarted its ids: the epoch was raised."""

    @property
    def is_repeat(self) -> bool:
        return self.entry_id is None


@frozen
class JournalCounts:
    """The journal in numbers, for ``/health`` and the operator's notices."""

    pending: int = 0
    failed: int = 0
    oldest_pending_at: int | None = None
    """``accepted_at`` of the first that waits."""
    newest_failed: int | None = None
    """The id of the last entry that is failed."""


@frozen
class Late:
    """Entries that have waited for long."""

    count: int = 0
    oldest_at: int | None = None
    """The earliest ``accepted_at`` among them."""


def restarts_ids(update_id: int, highest_seen: int | None, quiet_seconds: float | None) -> bool:
    """
    Does a pushed update tell that Telegram restarted its ids (at random, after a quiet week)?

    Pushed updates overtake one another, so a low id alone proves nothing.

    :param highest_seen: the highest id of the epoch so far; None: there was none.
    :param quiet_seconds: since the last update was accepted; None: there was none.
    """
    if highest_seen is None or quiet_seconds is None:
        return False
    return update_id < highest_seen - RESET_DISTANCE and quiet_seconds >= QUIET_BEFORE_RESTART
