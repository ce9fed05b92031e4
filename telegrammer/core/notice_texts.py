"""
The words of the operator's notices (contract 7.4): plain English, and what to do.

They hold ids, counts, reason codes and our own words; never a token, a key, a payload, a URL or a query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from attrs import frozen

from telegrammer.core.delivery import shortened
from telegrammer.core.health import IngestionMode, IngestionStatus, Reason

MOST_LISTED = 50
"""Subscriptions, or backups, that one notice names; the others are a number.  This keeps it small."""
MOST_REASONS = 5
"""Reasons that are named for one subscription."""


@frozen
class Deaths:
    """Deliveries of one subscription that died of one reason, since the operator was last told."""

    subscription_id: int
    reason: str
    count: int
    last_at: int
    """Unix seconds of the last of them."""


WHAT_TO_DO: Mapping[Reason | None, str] = {
    None: "There was no successful poll for a long time.",
    "network": "Telegram cannot be reached: look at the network, at name resolution and at the proxy.",
    "upstream": "Telegram answers with errors.  Usually this passes by itself.",
    "rate_limited": "Telegram asks to be polled less often.  The gateway waits as long as it was told to.",
    "credentials": "Telegram does not accept the bot's token.  Give the gateway a valid one.",
    "wrong_bot": "The token belongs to another bot than the database.  Give the right one, or another --db.",
    "conflict_webhook": "A webhook is set for this bot, and Telegram refuses polling.  Delete it if it is not"
    " wanted.",
    "conflict_poller": "Another program polls for this bot.  Stop it.",
    "capacity": "The queue has no room for new messages.  Mend slow receivers, delete dead deliveries, or"
    " raise --max-jobs.",
    "malformed_update": "An update cannot be understood, and what follows waits.  The log has its id, for"
    " telegrammer skip-update.",
    "storage": "The database cannot be written.  Look at the disk.",
}
"""For each reason that ``/health`` gives, when Telegram is polled …"""
WEBHOOK_TO_DO: Mapping[Reason | None, str] = {
    None: "Nothing was heard of Telegram for a long time.",
    "network": "Telegram cannot be reached, or cannot reach the webhook; the log says which.  Look at the"
    " network, at name resolution, at the proxy before the gateway and at its certificate.",
    "upstream": "Telegram answers with errors, or does not take the webhook: the log has its words.  Look at"
    " --webhook-url.",
    "rate_limited": "Telegram asks to be asked less often.  The gateway waits as long as it was told to.",
    "conflict_webhook": "Another webhook is set for this bot, or the gateway's was deleted.  The gateway"
    " leaves that alone; started again, it sets its own.",
}
"""… and in place of these when it pushes."""


def moment(seconds: float) -> str:
    """In UTC; the number itself where a calendar has no such day."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return str(int(seconds))


def counted(count: int, one: str, more: str | None = None) -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"


def ingestion_trouble(status: IngestionStatus, suspended: bool, now: float) -> tuple[str, str]:
    """Subject and body."""
    subject = f"Ingestion {'is suspended' if suspended else 'keeps failing'}: {status.reason or 'no success'}"
    last = "none since the start" if status.last_success_at is None else moment(status.last_success_at)
    pushed = status.mode == "webhook"
    to_do = {**WHAT_TO_DO, **WEBHOOK_TO_DO} if pushed else WHAT_TO_DO
    body = (
        f"{'Messages from Telegram may not come' if pushed else 'No messages come from Telegram'}."
        f"  Seen at {moment(now)}.\n\n"
        f"Reason: {status.reason or 'none'}\n"
        f"Failures in a row: {status.consecutive_failures}\n"
        f"Last {'success' if pushed else 'successful poll'}: {last}\n\n"
        f"{to_do[status.reason]}\n\n"
        "The gateway goes on trying, and tells when it has succeeded.\n"
    )
    return subject, body


def ingestion_well(now: float) -> tuple[str, str]:
    body = f"Messages come from Telegram again.  Seen at {moment(now)}.\n"
    return "Ingestion has recovered", body


def queue_filled(full: bool, used: int, capacity: int, mode: IngestionMode, now: float) -> tuple[str, str]:
    subject = "The delivery queue is full" if full else "The delivery queue is more than 80 % full"
    where = "in the journal" if mode == "webhook" else "at Telegram"
    at_most = "" if mode == "webhook" else ", at most for a day"
    consequence = (
        f"New messages wait {where} until there is room{at_most}."
        if full
        else f"When it is full, new messages wait {where}."
    )
    body = (
        f"{counted(used, 'job')} of at most {capacity}, dead ones included.  Seen at {moment(now)}.\n\n"
        f"{consequence}\n"
        "Look for receivers that are slow or down, delete dead deliveries (telegrammer delete-delivery), or"
        " raise --max-jobs.\n"
    )
    return subject, body


def queue_drained(used: int, capacity: int, now: float) -> tuple[str, str]:
    body = f"{counted(used, 'job')} of at most {capacity}, dead ones included.  Seen at {moment(now)}.\n"
    return "The delivery queue has drained", body


def updates_failed(count: int, now: float) -> tuple[str, str]:
    subject = f"{counted(count, 'update')} from Telegram cannot be understood"
    body = (
        f"Their messages were not delivered.  The journal keeps them; what follows goes on.  Seen at"
        f" {moment(now)}.\n\n"
        "The log says of each why.  Upgrade the gateway, then have them tried again with telegrammer replay"
        " --failed.\n"
    )
    return subject, body


def deaths(found: Sequence[Deaths], now: float) -> tuple[str, str]:
    """Subject and body; one line for each subscription, the one with the most deaths first."""
    by_subscription: dict[int, list[Deaths]] = {}
    for each in found:
        by_subscription.setdefault(each.subscription_id, []).append(each)
    counts = {number: sum(each.count for each in some) for number, some in by_subscription.items()}
    order = sorted(counts, key=lambda number: (-counts[number], number))
    lines = [_line_of(number, counts[number], by_subscription[number]) for number in order[:MOST_LISTED]]
    if len(order) > MOST_LISTED:
        lines.append(f"... and {counted(len(order) - MOST_LISTED, 'more subscription')}")
    total = sum(counts.values())
    subject = f"{counted(total, 'delivery', 'deliveries')} died, of {counted(len(order), 'subscription')}"
    body = (
        f"These were given up and are kept for a while.  Seen at {moment(now)}.\n\n"
        + "\n".join(lines)
        + "\n\nMend the receivers, then put them back with telegrammer retry-delivery; telegrammer"
        " list-failed-deliveries has each of them.\n"
    )
    return subject, body


def _line_of(number: int, count: int, found: Sequence[Deaths]) -> str:
    by_count = sorted(found, key=lambda each: (-each.count, each.reason))
    reasons = [f"{shortened(each.reason)} ({each.count})" for each in by_count[:MOST_REASONS]]
    more = ["other reasons"] if len(by_count) > MOST_REASONS else []
    return f"subscription {number}: {count}: {', '.join(reasons + more)}"


def purged(count: int, now: float) -> tuple[str, str]:
    subject = f"{counted(count, 'dead delivery', 'dead deliveries')} purged"
    body = (
        f"They were older than --dead-retention, or more than the limits allow, and are gone for good."
        f"  Seen at {moment(now)}.\n"
    )
    return subject, body


def backed_up(names: Sequence[str], now: float) -> tuple[str, str]:
    subject = f"A migration made {counted(len(names), 'backup')} of the database"
    listed = [shortened(name) for name in names[:MOST_LISTED]]
    if len(names) > MOST_LISTED:
        listed.append(f"... and {len(names) - MOST_LISTED} more")
    body = (
        "Beside the database:\n\n"
        + "\n".join(listed)
        + f"\n\nSeen at {moment(now)}.  Keep it until the new version has proved itself, then delete it: it"
        " holds what the database held.\n"
    )
    return subject, body
