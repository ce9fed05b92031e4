"""
Where asking Telegram stands between two requests, and what every kind of trouble does to it (contract 5.4).

``core.polling`` and ``core.webhook`` build their tables on it: whichever way updates come, an answer that
brought nothing means the same, and is waited out the same way.
"""

from __future__ import annotations

from typing import Literal, TypeVar, assert_never

from attrs import evolve, frozen

from telegrammer.core.backoff import backoff, identity_wait, storage_wait
from telegrammer.core.health import IngestionState, Reason
from telegrammer.core.telegram import BadCredentials, NetworkFailure, RateLimited, UpstreamFailure

# -- what happened ------------------------------------------------------------------------------------


@frozen
class Identified:
    """``getMe`` named the bot that the token and the database are of."""


@frozen
class OtherBot:
    """``getMe`` named another bot than the token's digits, or than the one the database belongs to."""

    expected: int
    found: int


@frozen
class StorageFailed:
    """The database could not do its part."""

    unforeseen: bool = False
    """By a fault of ours: a wait does not mend it, so it backs off as far as the others do."""
    why: str = "the database could not be used"


@frozen
class Crashed:
    """An exception nobody foresaw, while Telegram was asked."""

    why: str = "an unexpected error"


Trouble = OtherBot | StorageFailed | Crashed | NetworkFailure | UpstreamFailure | RateLimited | BadCredentials

# -- where that leaves us -----------------------------------------------------------------------------


@frozen
class Standing:
    """What both tables know."""

    ask: Literal["identity", "journal", "updates", "webhook", "check"] = "identity"
    """What the next request is for."""
    state: IngestionState = "starting"
    reason: Reason | None = None
    failures: int = 0
    """In a row, of any kind."""
    backoffs: int = 0
    """Since the last success, as the next: waits of the doubling back-off …"""
    identity_refusals: int = 0
    """… answers that refused the token, or named another bot."""


S = TypeVar("S", bound=Standing)


def after_trouble(event: Trouble, before: S, jitter: float) -> tuple[S, float]:
    """
    The standing after a trouble, and the seconds to rest.

    :param jitter: in [0, 1), for the waits that have one.
    """
    match event:
        case BadCredentials():
            return _identity_refused(before, "credentials")
        case OtherBot():
            return _identity_refused(before, "wrong_bot")
        case RateLimited(retry_after=int(seconds)):
            return backing_off(before, "rate_limited"), float(seconds)
        case RateLimited():
            return doubling(before, "rate_limited", jitter)
        case NetworkFailure():
            return doubling(before, "network", jitter)
        case UpstreamFailure() | Crashed():
            return doubling(before, "upstream", jitter)
        case StorageFailed(unforeseen=True):
            return doubling(before, "storage", jitter)
        case StorageFailed():
            after = backing_off(before, "storage")
            return evolve(after, backoffs=before.backoffs + 1), storage_wait(before.backoffs, jitter)
        case _:
            assert_never(event)


def _identity_refused(before: S, reason: Reason) -> tuple[S, float]:
    after = suspended(before, reason)
    return (
        evolve(after, ask="identity", identity_refusals=before.identity_refusals + 1),
        identity_wait(before.identity_refusals),
    )


def doubling(before: S, reason: Reason, jitter: float) -> tuple[S, float]:
    """A back-off twice as long as the one before, up to a minute."""
    after = backing_off(before, reason)
    return evolve(after, backoffs=before.backoffs + 1), backoff(before.backoffs, jitter)


def suspended(before: S, reason: Reason) -> S:
    """One failure more, of a kind that does not pass by itself."""
    return evolve(before, state="suspended", reason=reason, failures=before.failures + 1)


def backing_off(before: S, reason: Reason) -> S:
    """One failure more, of a kind that passes."""
    return evolve(before, state="backing_off", reason=reason, failures=before.failures + 1)
