"""A database in memory with keys and subscriptions to start from, and what must hold of it at any time."""

from __future__ import annotations

import sqlite3

from telegrammer.core.keys import digest
from telegrammer.core.subscriptions import SubscriptionLimits
from telegrammer.core.telegram import Message, Update
from telegrammer.store import keys, subscriptions
from telegrammer.store.engine import immediate
from telegrammer.store.recovery import violations

NO_LIMITS = SubscriptionLimits(10**6, 10**6)


def add_key(connection: sqlite3.Connection, name: str) -> int:
    """A key of this name, which is its text as well; its id."""
    with immediate(connection) as cursor:
        keys.add(cursor, name, digest(name), 0)
        owner = keys.owner_of(cursor, digest(name))
    assert owner is not None
    return owner


def subscribe(connection: sqlite3.Connection, owner: int, chat_id: int, url: str = "http://h/") -> int:
    """The id of the owner's subscription."""
    with immediate(connection) as cursor:
        return subscriptions.add(cursor, owner, chat_id, url, NO_LIMITS, 0)


def text(update_id: int, chat_id: int, body: bytes | None = None) -> Update:
    """A message in a group."""
    return Update(update_id, Message(chat_id, "group", b"u%d" % update_id if body is None else body))


def private(update_id: int, chat_id: int, username: str | None, *, odd: bool = False) -> Update:
    """A message in a private chat whose person has this username."""
    return Update(update_id, Message(chat_id, "private", b"{}", username=username, username_is_odd=odd))


def moved_to(update_id: int, old: int, new: int) -> Update:
    """The service message in the group."""
    return Update(update_id, Message(old, "group", b"to", migrate_to_chat_id=new))


def moved_from(update_id: int, old: int, new: int) -> Update:
    """The service message in the supergroup."""
    return Update(update_id, Message(new, "supergroup", b"from", migrate_from_chat_id=old))


def jobs(connection: sqlite3.Connection) -> list[tuple[int, int, int, str]]:
    """(subscription, epoch, update id, message) of every job, in the order of the lanes."""
    return connection.execute(
        """
        SELECT d.subscription_id, d.epoch, d.update_id, CAST(p.body AS TEXT)
        FROM deliveries d JOIN payloads p ON p.id = d.payload_id
        ORDER BY d.subscription_id, d.epoch, d.update_id
        """
    ).fetchall()


def broken(connection: sqlite3.Connection) -> list[str]:
    """The invariants of the queue that do not hold, and foreign keys that point nowhere."""
    orphans = connection.execute("PRAGMA foreign_key_check").fetchall()
    return violations(connection.cursor()) + [f"orphan {row}" for row in orphans]
