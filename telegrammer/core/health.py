"""Component states in, the ``/health`` document out (contract 2.3)."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from telegrammer.core.delivery import QueueCounts
from telegrammer.core.journal import JournalCounts
from telegrammer.core.problems import DatabaseState
from telegrammer.core.telegram import Identity

IngestionState = Literal["starting", "polling", "listening", "backing_off", "suspended", "stopped"]
IngestionMode = Literal["poll", "webhook"]
Reason = Literal[
    "network",
    "upstream",
    "rate_limited",
    "credentials",
    "wrong_bot",
    "conflict_webhook",
    "conflict_poller",
    "capacity",
    "malformed_update",
    "storage",
]


@frozen
class IngestionStatus:
    """How updates come in: what was last *achieved*, never that it is alive."""

    state: IngestionState = "starting"
    reason: Reason | None = None
    consecutive_failures: int = 0
    last_success_at: int | None = None
    """
    Unix seconds of the last validated batch; by webhook, of the last update that was accepted, or of the last
    time Telegram said that it has our webhook and no trouble with it.
    """
    quiet_seconds: float = 0.0
    """Monotonic seconds since then, or since the start."""
    mode: IngestionMode = "poll"


@frozen
class DeliveryStatus:
    """How the callback workers do; ``backing_off``: their transactions fail, nothing is claimed."""

    state: Literal["ok", "backing_off", "stopped"] = "ok"
    workers: int = 0
    busy: int = 0


@frozen
class FoldingStatus:
    """How the journal's worker does; ``backing_off``: a circumstance cut its last pass off."""

    state: Literal["ok", "backing_off", "stopped"] = "ok"
    lacks_room: bool = False
    """That circumstance was that a message did not fit the queue."""


@frozen
class OutboxStatus:
    """How the operator's notices do; nothing in here makes the gateway itself any worse."""

    state: Literal["ok", "failing"] = "ok"
    """``failing``: the outbox cannot be used, or the last notice could not be carried."""
    outstanding: int | None = None
    """Messages in the outbox; None: not known (yet)."""
    dropped: int = 0
    """Notices that the full outbox did not take, since the start."""
    oldest_at: int | None = None
    """Creation of the oldest message (Unix seconds)."""
    last_failure: str | None = None
    """The kind of the failure that lasts."""


@frozen
class HealthReport:
    """The verdict and the document that shows it."""

    ok: bool
    status: Literal["ok", "degraded", "unavailable"]
    document: dict[str, object]


PERSISTENT_FAILURES = 5
"""So many failed polls in a row are no longer a passing trouble (contract 2.3)."""
PERSISTENT_SECONDS = 300
"""Nor is so long a time without a successful one."""
LONG_WAIT = 300
"""Seconds after which an update that was pushed should long be folded (contract 8)."""


def report(
    *,
    bot: Identity | None,
    ingestion: IngestionStatus,
    delivery: DeliveryStatus,
    database: DatabaseState,
    counts: QueueCounts,
    capacity: int,
    now: float,
    folding: FoldingStatus,
    journal: JournalCounts,
    outbox: OutboxStatus | None = None,
) -> HealthReport:
    """
    The whole of ``/health`` (contract 2.3).

    :param capacity: ``--max-jobs``.
    :param now: wall-clock Unix seconds, for the ages of the oldest job, update and notice.
    :param outbox: None where no notices are configured; then nothing is said of it.
    """
    waiting = _age(journal.oldest_pending_at, now)
    status = _status(ingestion, delivery, database, folding, waiting)
    components: dict[str, object] = {
        "database": {"state": database},
        "ingestion": {
            "mode": ingestion.mode,
            "state": ingestion.state,
            "reason": ingestion.reason,
            "consecutive_failures": ingestion.consecutive_failures,
            "last_success_at": ingestion.last_success_at,
        },
        "delivery": {"state": delivery.state, "workers": delivery.workers, "busy": delivery.busy},
        "journal": {"state": folding.state},
    }
    document: dict[str, object] = {
        "ok": status != "unavailable",
        "status": status,
        "bot_id": None if bot is None else bot.bot_id,
        "bot_username": None if bot is None else bot.username,
        "can_read_all_group_messages": None if bot is None else bot.can_read_all_group_messages,
        "components": components,
        "queue": {
            "pending": counts.pending,
            "in_flight": counts.in_flight,
            "dead": counts.dead,
            "capacity": capacity,
            "oldest_pending_age_s": _age(counts.oldest_pending_at, now),
        },
        "journal": {
            "pending": journal.pending,
            "failed": journal.failed,
            "oldest_pending_age_s": waiting,
        },
    }
    if outbox is not None:
        components["outbox"] = {"state": outbox.state}
        document["outbox"] = {
            "outstanding": outbox.outstanding,
            "dropped": outbox.dropped,
            "oldest_age_s": _age(outbox.oldest_at, now),
            "last_failure": outbox.last_failure,
        }
    return HealthReport(ok=status != "unavailable", status=status, document=document)


def _age(at: int | None, now: float) -> int | None:
    """Seconds since then; a clock set back must not show an age below zero."""
    return None if at is None else max(0, int(now) - at)


def _status(
    ingestion: IngestionStatus,
    delivery: DeliveryStatus,
    database: DatabaseState,
    folding: FoldingStatus,
    waiting: int | None,
) -> Literal["ok", "degraded", "unavailable"]:
    if (
        ingestion.state in ("suspended", "stopped")
        or ingestion.consecutive_failures >= PERSISTENT_FAILURES
        or ingestion.quiet_seconds >= PERSISTENT_SECONDS
        or delivery.state == "stopped"
        or folding.state == "stopped"
    ):
        return "unavailable"
    if (
        ingestion.state == "backing_off"
        or ingestion.consecutive_failures > 0
        or ingestion.reason is not None
        or delivery.state == "backing_off"
        or folding.state == "backing_off"
        or (waiting is not None and waiting > LONG_WAIT)
        or database != "ok"
    ):
        return "degraded"
    return "ok"
