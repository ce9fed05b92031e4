"""What an outbox does with its rows: functions of a cursor inside an exclusive transaction (contract 7.2)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from hmac import compare_digest

from telegrammer.core.leases import CAPACITY, Leased, expiry, is_current
from telegrammer.core.messages import Mark, decode
from telegrammer.core.problems import LeaseLost, MessageRefused, OutboxFailing, QueueEmpty, QueueFull


def send(
    cursor: sqlite3.Cursor, queue: str, message_id: str, record: bytes, marks: Sequence[Mark], now: float
) -> str:
    """:raises QueueFull: the file holds as many messages as it may."""
    if outstanding(cursor) >= CAPACITY:
        raise QueueFull(f"the outbox holds {CAPACITY} messages")
    cursor.execute(
        "INSERT INTO messages(id, queue, created_at, record) VALUES (?, ?, ?, ?)",
        (message_id, queue, int(now), record),
    )
    cursor.executemany(
        "INSERT INTO marks(queue, subject, state, at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT(queue, subject) DO UPDATE SET state = excluded.state, at = excluded.at",
        [(queue, mark.subject, mark.state, mark.at) for mark in marks],
    )
    return message_id


def marks(cursor: sqlite3.Cursor, queue: str) -> dict[str, Mark]:
    rows = cursor.execute("SELECT subject, state, at FROM marks WHERE queue = ? ORDER BY subject", (queue,))
    return {subject: Mark(subject, state, at) for subject, state, at in rows}


def outstanding(cursor: sqlite3.Cursor) -> int:
    count: int = cursor.execute("SELECT COUNT(*) FROM messages").fetchone()[0]
    return count


def claim(cursor: sqlite3.Cursor, queue: str, lease: str, now: float) -> Leased:
    """
    The oldest available message.  One whose record cannot be read is left where it is, and told of only when
    nothing else is available: it holds up no other.

    :raises QueueEmpty: none is available.
    :raises OutboxFailing: none is but such as cannot be read.
    """
    available = [
        seq
        for seq, held, expires_at in cursor.execute(
            "SELECT seq, lease, lease_expires_at FROM messages WHERE queue = ? ORDER BY seq", (queue,)
        )
        if held is None or not is_current(expires_at, now)
    ]
    unreadable: list[str] = []
    for seq in available:
        message_id, created_at, record = cursor.execute(
            "SELECT id, created_at, record FROM messages WHERE seq = ?", (seq,)
        ).fetchone()
        try:
            message = decode(record)
        except MessageRefused:
            unreadable.append(message_id)
            continue
        expires_at = expiry(now)
        cursor.execute(
            "UPDATE messages SET lease = ?, lease_expires_at = ? WHERE seq = ?", (lease, expires_at, seq)
        )
        return Leased.under(lease, expires_at, message_id, message, created_at)
    if unreadable:
        raise OutboxFailing(
            f"{len(unreadable)} stored message(s) cannot be read; the oldest: {unreadable[0]}"
        )
    raise QueueEmpty("no message is available")


def acknowledge(cursor: sqlite3.Cursor, queue: str, message_id: str, lease: str, now: float) -> None:
    """:raises LeaseLost: the lease is not the current one."""
    cursor.execute("DELETE FROM messages WHERE seq = ?", (_held(cursor, queue, message_id, lease, now),))


def release(cursor: sqlite3.Cursor, queue: str, message_id: str, lease: str, now: float) -> None:
    """:raises LeaseLost: the lease is not the current one."""
    cursor.execute(
        "UPDATE messages SET lease = NULL, lease_expires_at = NULL WHERE seq = ?",
        (_held(cursor, queue, message_id, lease, now),),
    )


def _held(cursor: sqlite3.Cursor, queue: str, message_id: str, lease: str, now: float) -> int:
    found = cursor.execute(
        "SELECT seq, lease, lease_expires_at FROM messages WHERE id = ? AND queue = ?", (message_id, queue)
    ).fetchone()
    if found is not None:
        seq, held, expires_at = found
        if held is not None and compare_digest(held, lease) and is_current(expires_at, now):
            return int(seq)
    raise LeaseLost("the lease is not, or no longer, the current one of this message")


def oldest_at(cursor: sqlite3.Cursor) -> int | None:
    """When the oldest of them was accepted, in Unix seconds; None: there are none."""
    found: int | None = cursor.execute("SELECT MIN(created_at) FROM messages").fetchone()[0]
    return found


def look(cursor: sqlite3.Cursor) -> None:
    """Read a row of each table, if there is one, and change nothing."""
    for table in ("messages", "marks"):
        cursor.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()
