"""
What the poller does next: the table of contract 5.4 as one function of frozen values.

A failure is forgotten by one thing only, a batch that was validated *and* committed: not by a request that
went out, nor by a ``getMe`` that answered while ``getUpdates`` does not.
"""

from __future__ import annotations

from typing import Final

from attrs import evolve, frozen

from telegrammer.core.backoff import conflict_wait, room_wait
from telegrammer.core.standing import Identified, Standing, Trouble, after_trouble, doubling, suspended
from telegrammer.core.telegram import Conflict

FULL_LIMIT: Final = 100
"""The ``limit`` of an undisturbed poll (contract 5.1)."""

SHORTEST_QUIET_POLL: Final = 1.0
"""Seconds from the start of a poll that brought nothing new to the start of the next, at least."""

JOURNAL_REST: Final = 1.0
"""Seconds until it is looked again whether all that was pushed has been folded."""

# -- what happened ------------------------------------------------------------------------------------


@frozen
class JournalWaits:
    """What was pushed before a change of the mode is not all folded yet, and polling would overtake it."""


@frozen
class JournalDrained:
    """Nothing of what was pushed waits."""


@frozen
class Committed:
    """A batch was validated and committed; ``seconds`` since its poll began."""

    fresh: int
    """Updates that were new."""
    received: int
    """Elements of the batch."""
    seconds: float


@frozen
class NoRoom:
    """The batch did not fit ``--max-jobs``; nothing of it was written."""


@frozen
class Held:
    """A malformed update holds the batch up."""


Event = Identified | JournalWaits | JournalDrained | Committed | NoRoom | Held | Conflict | Trouble

# -- where that leaves us -----------------------------------------------------------------------------


@frozen
class PollState(Standing):
    """Where polling stands between two requests."""

    limit: int = FULL_LIMIT
    """How many updates the next poll asks for."""
    conflicts: int = 0
    """Since the last batch, as the next: answers 409 …"""
    room_refusals: int = 0
    """… single updates that did not fit."""


def after_poll(event: Event, before: PollState, jitter: float) -> tuple[PollState, float]:
    """
    The state after an event, and the seconds to rest before the next request.

    :param jitter: in [0, 1), for the waits that have one.
    """
    match event:
        case Identified():
            return evolve(before, ask="journal"), 0.0
        case JournalWaits():
            return before, JOURNAL_REST
        case JournalDrained():
            # With failures behind us the state stays as it was: nothing was achieved yet.
            state = "polling" if before.failures == 0 else before.state
            return evolve(before, ask="updates", state=state), 0.0
        case Committed():
            return _committed(event, before)
        case NoRoom():
            return _no_room(before)
        case Held():
            return doubling(before, "malformed_update", jitter)
        case Conflict(webhook=webhook):
            after = suspended(before, "conflict_webhook" if webhook else "conflict_poller")
            return evolve(after, conflicts=before.conflicts + 1), conflict_wait(before.conflicts)
        case _:
            return after_trouble(event, before, jitter)


def _committed(event: Committed, before: PollState) -> tuple[PollState, float]:
    # A full batch proves room for itself only: double.  A shorter one took all there was.
    limit = min(FULL_LIMIT, before.limit * 2) if event.received >= before.limit else FULL_LIMIT
    # Servers exist that ignore ``timeout``, and some that ignore ``offset``: those must not be stormed.
    rest = max(0.0, SHORTEST_QUIET_POLL - event.seconds) if event.fresh == 0 else 0.0
    return PollState(ask="updates", state="polling", limit=limit), rest


def _no_room(before: PollState) -> tuple[PollState, float]:
    after = suspended(before, "capacity")
    if before.limit > 1:
        return evolve(after, limit=before.limit // 2), 0.0
    return evolve(after, room_refusals=before.room_refusals + 1), room_wait(before.room_refusals)


def may_be_woken(state: PollState, *, room: bool) -> bool:
    """
    May this rest be cut short?

    Only where what ended the wait can be told from outside: room in the queue, or a mark to skip an update.
    Every other back-off spares a peer or a disk that is no better for our work being ready; that of a
    database which failed is short.

    :param room: jobs have left the queue; False: another process committed something.
    """
    return state.reason == "capacity" or (state.reason == "malformed_update" and not room)
