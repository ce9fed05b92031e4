"""
Folding: a journal entry becomes jobs and observations, and what that came to is a value (contract 8).

Only content makes an entry ``failed``: with what it holds it can never be folded by this version.  A
circumstance (a busy database, a full queue, a stop) says nothing of the entry, which stays ``pending``.
"""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from telegrammer.core.problems import CapacityReached, MalformedUpdate, OutOfTurn, StorageUnavailable


@frozen
class Folded:
    """One entry's transaction was committed."""

    kind: Literal["folded", "already", "unsupported"]
    """``unsupported``: of a kind that makes no job; it is dealt with like any other."""
    update_id: int
    jobs: int = 0
    migrated: int = 0
    """Subscriptions moved to another chat, or absorbed there."""
    evicted: int = 0
    """The oldest dead jobs, that had to go for the message to fit."""


@frozen
class Outcome:
    """What became of entries: each counts once in the first five, ``jobs`` and ``migrated`` come beside."""

    folded: int = 0
    already: int = 0
    unsupported: int = 0
    failed: int = 0
    deferred: int = 0
    """Left pending: a circumstance was in the way, and nothing was written."""
    jobs: int = 0
    migrated: int = 0

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.folded + other.folded,
            self.already + other.already,
            self.unsupported + other.unsupported,
            self.failed + other.failed,
            self.deferred + other.deferred,
            self.jobs + other.jobs,
            self.migrated + other.migrated,
        )

    @property
    def taken(self) -> int:
        """Entries that were looked at."""
        return self.folded + self.already + self.unsupported + self.failed + self.deferred


ALREADY = Outcome(already=1)
DEFERRED = Outcome(deferred=1)
FAILED = Outcome(failed=1)


def outcome_of(folded: Folded) -> Outcome:
    """Of a fold that was committed."""
    match folded.kind:
        case "folded":
            return Outcome(folded=1, jobs=folded.jobs, migrated=folded.migrated)
        case "unsupported":
            return Outcome(unsupported=1)
        case _:
            return ALREADY


def is_circumstance(error: Exception) -> bool:
    """
    Is it the circumstances that kept an entry from being folded, not what the entry holds?

    An exception that nobody foresaw is the entry's failure: the same would happen again, for ever.
    """
    return isinstance(error, StorageUnavailable | CapacityReached | OutOfTurn | MemoryError)


def circumstance_of(error: Exception) -> str:
    """What was in the way, for the log."""
    match error:
        case StorageUnavailable():
            return f"the database is {error.state}"
        case CapacityReached():
            return "the queue has no room for its message"
        case OutOfTurn():
            return "an older update waits"
        case _:
            return type(error).__name__


def reason_of(error: Exception) -> str:
    """Why an entry failed, for the operator: never a text of which nobody knows what it holds."""
    return error.why if isinstance(error, MalformedUpdate) else f"unexpected {type(error).__name__}"
