"""The plan of a batch: what is new, what a replay, whether Telegram restarted its ids (contract 5.2, 5.3)."""

from __future__ import annotations

from attrs import frozen

from telegrammer.core.telegram import Update


@frozen
class Cursor:
    """The next ``offset`` to ask Telegram for (0 in a fresh database), and how often its ids restarted."""

    next_offset: int = 0
    epoch: int = 0


@frozen
class Plan:
    """What one batch asks of the store, decided before anything is written."""

    cursor: Cursor
    """The cursor to store with the jobs."""
    updates: tuple[Update, ...]
    """The new ones, ascending, each id once."""
    replayed: int = 0
    reset: bool = False
    skipped: tuple[int, ...] = ()
    """Malformed updates passed over because the operator said so."""


@frozen
class Ingested:
    """What a committed batch did."""

    cursor: Cursor
    fresh: int
    """Updates that were not replays, unsupported and skipped ones included."""
    replayed: int
    jobs: int
    migrated: int = 0
    """Subscriptions moved to another chat, or absorbed there."""
    reset: bool = False
    skipped: tuple[int, ...] = ()
