"""
The life of a delivery: what an answer means, what is written for it, which lane goes next (contract 6).

A *lane* is the jobs of one subscription, in order of (epoch, update id).  Only its head may be in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TypeVar

from attrs import evolve, field, frozen

from telegrammer.core.retry import LIFE, Schedule, carried_wait, due_after, retry_after_seconds

T = TypeVar("T")

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
    """When a lane that the slots still free may take is due (Unix seconds); None when there is none."""
    healthy_run: int = 0
    buried: int = 0
    """Jobs that became dead in this turn, by verdict or at the claim."""
    left: int = 0
    """Jobs that are gone from the queue: done, or dead and evicted.  Their room is free."""
    evicted: int = 0
    """The oldest dead that went because there were more than the limits allow."""


@frozen
class Toll:
    """What became of jobs that nobody will deliver, since it was last asked."""

    died: int = 0
    evicted: int = 0
    """The oldest dead that went because there were more than the limits allow."""


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


# -- the rules ----------------------------------------------------------------------------------------

SLOW = 1.0
"""Seconds: an attempt that took longer makes its lane sick, whatever the answer."""

HEALTHY_IN_A_ROW = 7
"""While a sick lane waits, the next claim after so many healthy ones is its own."""

_LONGEST_REASON = 120


def delivery_id(bot_id: int, subscription_id: int, epoch: int, update_id: int) -> str:
    """The value of ``X-Telegrammer-Delivery-Id``, equal on every attempt (contract 6)."""
    return f"{bot_id}-{subscription_id}-{epoch}-{update_id}"


def sick_share(workers: int) -> int:
    """How many workers sick lanes may hold together."""
    return max(1, workers // 2)


def settle(
    job: Claimed, result: AttemptResult, *, took: float, now: float, jitter: float, schedule: Schedule
) -> Verdict:
    """
    What an attempt's result means for the job and its lane (contract 6).

    ``took`` in seconds, by a monotonic clock; ``now``, the wall clock when the attempt ended, with its
    fraction; ``jitter`` in [0, 1).
    """
    slow = took > SLOW
    if isinstance(result, Undeliverable):
        return Dead(shortened(result.why), spent=False, slow=slow)
    if isinstance(result, Unanswered):
        return _failed(job, shortened(result.why), 0, now, jitter, schedule)
    status = result.status
    if 200 <= status <= 299:
        return Done(slow)
    if status in (408, 429) or 500 <= status <= 599:
        asked = retry_after_seconds(result.retry_after, now) or 0
        return _failed(job, f"HTTP {status}", asked, now, jitter, schedule)
    return Dead(_refusal(status), spent=False, slow=slow)


def _failed(job: Claimed, reason: str, asked: int, now: float, jitter: float, schedule: Schedule) -> Verdict:
    """To be retried, unless budget or life say no.  ``asked``: the receiver's Retry-After, in seconds."""
    if job.attempt >= schedule.attempts:
        return _spent(job, reason, now, jitter)
    wait = max(schedule.waits[job.attempt - 1], carried_wait(job.carried))
    due = max(due_after(now, wait, jitter), ceil(now + asked))
    if due > job.first_attempt_at + LIFE:
        why = "Retry-After is" if asked > wait else "the next attempt would be"
        return _spent(job, f"{reason}; {why} beyond 24 h", now, jitter)
    return Again(due, reason)


def _spent(job: Claimed, reason: str, now: float, jitter: float) -> Dead:
    wait = carried_wait(job.carried + job.attempt)
    return Dead(reason, spent=True, due=due_after(now, wait, jitter))


def _refusal(status: int) -> str:
    if 300 <= status <= 399 and status != 304:
        return f"redirect (HTTP {status})"
    return f"HTTP {status}"


def shortened(reason: str) -> str:
    """A reason fit for the database and a terminal: one short line of visible ASCII."""
    visible = "".join(char if " " <= char <= "~" else "?" for char in reason[:_LONGEST_REASON])
    return visible.strip() or "unknown failure"


def choose(healthy: Sequence[T], sick: Sequence[T], slots: Slots) -> tuple[list[T], int]:
    """
    Which of the ready lanes are claimed, and the healthy run after that.

    Both lists are in the order of their turns.  Healthy ones go first, but when both wait at least one
    claim in eight is a sick one's; sick ones never take more than ``slots.free_sick``.
    """
    sick = sick[: max(0, slots.free_sick)]
    chosen: list[T] = []
    run, first_healthy, first_sick = slots.healthy_run, 0, 0
    while len(chosen) < slots.free:
        healthy_waits, sick_waits = first_healthy < len(healthy), first_sick < len(sick)
        if healthy_waits and not (sick_waits and run >= HEALTHY_IN_A_ROW):
            chosen.append(healthy[first_healthy])
            first_healthy += 1
            run = run + 1 if sick_waits else 0
        elif sick_waits:
            chosen.append(sick[first_sick])
            first_sick += 1
            run = 0
        else:
            break
    return chosen, run


def moved(finished: Finished, seconds: int) -> Finished:
    """The same result after the wall clock jumped by ``seconds``: what it waits for moves along."""
    job = evolve(finished.job, first_attempt_at=finished.job.first_attempt_at + seconds)
    match finished.verdict:
        case Again(due) | Dead(spent=True, due=due):
            return Finished(job, evolve(finished.verdict, due=due + seconds))
        case _:
            return Finished(job, finished.verdict)
