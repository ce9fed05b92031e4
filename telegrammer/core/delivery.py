"""
The life of a delivery: what an answer means, what is written for it, which lane goes next (contract 6).

A *lane* is the jobs of one subscription, in order of (epoch, update id).  Only its head may be in flight.
"""

from __future__ import annotations

from attrs import field, frozen

# -- what the store hands out -------------------------------------------------------------------------


@frozen
class Claimed:
    """A job whose claim is committed: it may be POSTed, once, for this ``attempt``."""

    id: int
    subscription_id: int
    url: str
    """The canonical callback URL; its query is a secret."""
    body: bytes = field(repr=False)
    delivery_id: str = ""
    """``bot-subscription-epoch-update``: equal on every attempt."""
    attempt: int = 1
    """1 for the first."""
    first_attempt_at: int = 0
    carried: int = 0
    """F: failures in a row in this lane before this job's first attempt."""
    sick: bool = False
    """The lane's class at the claim."""


# -- what the receiver did ----------------------------------------------------------------------------


@frozen
class Answered:
    """The final status of the response; ``retry_after`` holds the raw values of that field, in order."""

    status: int
    retry_after: tuple[bytes, ...] = ()


@frozen
class Unanswered:
    """No complete response head within the limits; ``why`` is short and ours (``connection refused``)."""

    why: str


@frozen
class Undeliverable:
    """The job cannot be sent at all (its URL no longer parses); it is dead at once."""

    why: str


AttemptResult = Answered | Unanswered | Undeliverable

# -- what is written for it ---------------------------------------------------------------------------


@frozen
class Done:
    """2xx: the job is deleted, the lane's failures are forgotten."""

    slow: bool
    """The attempt took over a second: the lane is sick all the same."""


@frozen
class Again:
    """To be retried, not before ``due`` (Unix seconds)."""

    due: int
    reason: str


@frozen
class Dead:
    """Final.  ``spent``: of its budget, so the lane stays sick and its successor waits until ``due``."""

    reason: str
    spent: bool
    slow: bool = False
    due: int = 0


Verdict = Done | Again | Dead


@frozen
class Finished:
    """One attempt and its verdict, on the way to the store."""

    job: Claimed
    verdict: Verdict


@frozen
class Slots:
    """What may be claimed now."""

    free: int
    """Idle workers."""
    free_sick: int
    """How many of these a sick lane may take."""
    healthy_run: int = 0
    """Claims in a row that went to healthy lanes while a sick one waited (after seven, a sick one goes)."""


@frozen
class Turn:
    """What one delivery transaction did, after its commit."""

    claimed: tuple[Claimed, ...] = ()
    next_due: int | None = None
    """When the next waiting lane is due (Unix seconds); None when none waits."""
    healthy_run: int = 0
    buried: int = 0
    """Jobs that became dead in this turn, by verdict or at the claim."""


@frozen
class QueueCounts:
    """The queue as ``/health`` shows it."""

    pending: int = 0
    in_flight: int = 0
    dead: int = 0
    oldest_pending_at: int | None = None
    """Creation time of the oldest pending job (Unix seconds)."""


@frozen
class DeadJob:
    """A dead job as operators see it: no payload, no URL."""

    id: int
    subscription_id: int
    chat_id: int
    update_id: int
    attempts: int
    created_at: int
    died_at: int
    reason: str
