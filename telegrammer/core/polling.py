"""
What the poller does next: the table of contract 5.4 as one function of frozen values.

A failure is forgotten by one thing only, a batch that was validated *and* committed: not by a request that
went out, nor by a ``getMe`` that answered while ``getUpdates`` does not.
"""

from __future__ import annotations

from typing import Final, Literal, assert_never

from attrs import evolve, frozen

from telegrammer.core.backoff import backoff, conflict_wait, identity_wait, room_wait, storage_wait
from telegrammer.core.health import IngestionState, Reason
from telegrammer.core.telegram import (
    BadCredentials,
    Conflict,
    NetworkFailure,
    RateLimited,
    Refused,
    UpstreamFailure,
)

FULL_LIMIT: Final = 100
"""The ``limit`` of an undisturbed poll (contract 5.1)."""

SHORTEST_QUIET_POLL: Final = 1.0
"""Seconds from the start of a poll that brought nothing new to the start of the next, at least."""

# -- what happened ------------------------------------------------------------------------------------


@frozen
class Identified:
    """``getMe`` named the bot that the token and the database are of."""


@frozen
class OtherBot:
    """``getMe`` named another bot than the token's digits, or than the one the database belongs to."""


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


@frozen
class StorageFailed:
    """The database could not do its part."""

    unforeseen: bool = False
    """By a fault of ours: a wait does not mend it, so it backs off as far as the others do."""


@frozen
class Crashed:
    """An exception nobody foresaw, while Telegram was asked."""


Event = Identified | OtherBot | Committed | NoRoom | Held | StorageFailed | Crashed | Refused

# -- where that leaves us -----------------------------------------------------------------------------


@frozen
class PollState:
    """Where polling stands between two requests."""

    ask: Literal["identity", "updates"] = "identity"
    """What the next request is for."""
    state: IngestionState = "starting"
    reason: Reason | None = None
    failures: int = 0
    """In a row, of any kind."""
    limit: int = FULL_LIMIT
    """How many updates the next poll asks for."""
    backoffs: int = 0
    """Since the last batch, as the three below: waits of the doubling back-off …"""
    conflicts: int = 0
    """… answers 409 …"""
    identity_refusals: int = 0
    """… answers that refused the token, or named another bot …"""
    room_refusals: int = 0
    """… single updates that did not fit."""


def after_poll(event: Event, before: PollState, jitter: float) -> tuple[PollState, float]:
    """
    The state after an event, and the seconds to rest before the next request.

    :param jitter: in [0, 1), for the waits that have one.
    """
    match event:
        case Identified():
            # With failures behind us the state stays as it was: nothing was achieved yet.
            state = "polling" if before.failures == 0 else before.state
            return evolve(before, ask="updates", state=state), 0.0
        case Committed():
            return _committed(event, before)
        case NoRoom():
            return _no_room(before)
        case Conflict(webhook=webhook):
            after = _suspended(before, "conflict_webhook" if webhook else "conflict_poller")
            return evolve(after, conflicts=before.conflicts + 1), conflict_wait(before.conflicts)
        case BadCredentials():
            return _identity_refused(before, "credentials")
        case OtherBot():
            return _identity_refused(before, "wrong_bot")
        case RateLimited(retry_after=int(seconds)):
            return _backing_off(before, "rate_limited"), float(seconds)
        case RateLimited():
            return _doubling(before, "rate_limited", jitter)
        case NetworkFailure():
            return _doubling(before, "network", jitter)
        case UpstreamFailure() | Crashed():
            return _doubling(before, "upstream", jitter)
        case StorageFailed(unforeseen=True):
            return _doubling(before, "storage", jitter)
        case StorageFailed():
            after = _backing_off(before, "storage")
            return evolve(after, backoffs=before.backoffs + 1), storage_wait(before.backoffs, jitter)
        case Held():
            return _doubling(before, "malformed_update", jitter)
        case _:
            assert_never(event)


def _committed(event: Committed, before: PollState) -> tuple[PollState, float]:
    # A full batch proves room for itself only: double.  A shorter one took all there was.
    limit = min(FULL_LIMIT, before.limit * 2) if event.received >= before.limit else FULL_LIMIT
    # Servers exist that ignore ``timeout``, and some that ignore ``offset``: those must not be stormed.
    rest = max(0.0, SHORTEST_QUIET_POLL - event.seconds) if event.fresh == 0 else 0.0
    return PollState(ask="updates", state="polling", limit=limit), rest


def _no_room(before: PollState) -> tuple[PollState, float]:
    after = _suspended(before, "capacity")
    if before.limit > 1:
        return evolve(after, limit=before.limit // 2), 0.0
    return evolve(after, room_refusals=before.room_refusals + 1), room_wait(before.room_refusals)


def _identity_refused(before: PollState, reason: Reason) -> tuple[PollState, float]:
    after = _suspended(before, reason)
    return (
        evolve(after, ask="identity", identity_refusals=before.identity_refusals + 1),
        identity_wait(before.identity_refusals),
    )


def _doubling(before: PollState, reason: Reason, jitter: float) -> tuple[PollState, float]:
    after = _backing_off(before, reason)
    return evolve(after, backoffs=before.backoffs + 1), backoff(before.backoffs, jitter)


def _suspended(before: PollState, reason: Reason) -> PollState:
    return evolve(before, state="suspended", reason=reason, failures=before.failures + 1)


def _backing_off(before: PollState, reason: Reason) -> PollState:
    return evolve(before, state="backing_off", reason=reason, failures=before.failures + 1)


def may_be_woken(state: PollState, *, room: bool) -> bool:
    """
    May this rest be cut short?

    Only where what ended the wait can be told from outside: room in the queue, or a mark to skip an update.
    Every other back-off spares a peer or a disk that is no better for our work being ready; that of a
    database which failed is short.

    :param room: jobs have left the queue; False: another process committed something.
    """
    return state.reason == "capacity" or (state.reason == "malformed_update" and not room)
