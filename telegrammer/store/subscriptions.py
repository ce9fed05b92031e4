"""Subscriptions: who wants what, within limits; and their move to another chat (contract 2.2, 5.5)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from attrs import frozen
from twisted.internet.defer import Deferred

from telegrammer.core.problems import SubscriptionLimit, UnknownKey
from telegrammer.core.subscriptions import Subscription, SubscriptionLimits
from telegrammer.ports import Now
from telegrammer.store.engine import Transactions

OWNER = "SELECT 1 FROM keys WHERE id = ?"
EQUAL = """
    SELECT id FROM subscriptions WHERE key_id = ? AND chat_id = ? AND callback_url = ? AND retired = 0
"""
OF_OWNER = "SELECT COUNT(*) FROM subscriptions WHERE key_id = ? AND retired = 0"
# Two counts of whole b-trees: neither looks at a row.
LIVE = """
    SELECT (SELECT COUNT(*) FROM subscriptions) - (SELECT COUNT(*) FROM subscriptions WHERE retired = 1)
"""
INSERT = "INSERT INTO subscriptions(key_id, chat_id, callback_url, created_at) VALUES (?, ?, ?, ?)"
INSERT_LANE = "INSERT INTO lanes(subscription_id) VALUES (?)"
LISTING = """
    SELECT id, chat_id, callback_url FROM subscriptions WHERE key_id = ? AND retired = 0 ORDER BY id
"""
EXISTS = "SELECT 1 FROM subscriptions WHERE id = ?"
DELETE = "DELETE FROM subscriptions WHERE id = ? AND key_id = ?"

OF_CHAT = "SELECT id, key_id, callback_url FROM subscriptions WHERE chat_id = ? AND retired = 0"
MOVE = """
    UPDATE subscriptions SET chat_id = ?, moved_from = ?, moved_epoch = ?, moved_by = ? WHERE id = ?
"""
RETIRE = "UPDATE subscriptions SET retired = 1 WHERE id = ?"
DELETE_DRAINED = """
    DELETE FROM subscriptions
    WHERE id = ? AND NOT EXISTS (SELECT 1 FROM deliveries WHERE subscription_id = subscriptions.id)
"""


def add(
    cursor: sqlite3.Cursor,
    owner: int,
    chat_id: int,
    callback_url: str,
    limits: SubscriptionLimits,
    now: float,
) -> int:
    """
    The id of the owner's subscription to the chat under this canonical URL, new or already there.

    :raises UnknownKey: the owner's key was deleted meanwhile.
    :raises SubscriptionLimit: a new one would exceed a limit; retired ones take no slot.
    """
    if cursor.execute(OWNER, (owner,)).fetchone() is None:
        raise UnknownKey("the key was deleted")
    row = cursor.execute(EQUAL, (owner, chat_id, callback_url)).fetchone()
    if row is not None:
        return int(row[0])
    if cursor.execute(OF_OWNER, (owner,)).fetchone()[0] >= limits.per_key:
        raise SubscriptionLimit(f"this key has reached its limit of {limits.per_key} subscriptions")
    if cursor.execute(LIVE).fetchone()[0] >= limits.total:
        raise SubscriptionLimit(f"the gateway has reached its limit of {limits.total} subscriptions")
    cursor.execute(INSERT, (owner, chat_id, callback_url, int(now)))
    subscription_id = cursor.lastrowid
    assert subscription_id is not None
    cursor.execute(INSERT_LANE, (subscription_id,))
    return subscription_id


def of_owner(cursor: sqlite3.Cursor, owner: int) -> list[Subscription]:
    """The owner's live ones, in id order."""
    return [Subscription(*row) for row in cursor.execute(LISTING, (owner,))]


def exists(cursor: sqlite3.Cursor, subscription_id: int) -> bool:
    """Whether it is there, whoever its owner, retired ones included."""
    return cursor.execute(EXISTS, (subscription_id,)).fetchone() is not None


def remove(cursor: sqlite3.Cursor, owner: int, subscription_id: int) -> bool:
    """Remove the owner's subscription with its lane, jobs and payloads; False when there is none."""
    # A retired one too: its owner may still know the id, and does not want the rest of its jobs.
    return cursor.execute(DELETE, (subscription_id, owner)).rowcount == 1


def move_chat(cursor: sqlite3.Cursor, old: int, new: int, epoch: int, update_id: int) -> int:
    """
    Move the subscriptions of a group to the supergroup it became; how many were moved or absorbed.

    Of two that are now equal the older stays; the younger is retired, and gone at once when it has no jobs.
    A second call finds nobody in the old chat and changes nothing.  Of who stays it is kept from where, and
    by which update: one of the old chat that is older, and comes later, is theirs.
    """
    moved = cursor.execute(OF_CHAT, (old,)).fetchall() if old != new else []
    for subscription_id, owner, callback_url in moved:
        twin = cursor.execute(EQUAL, (owner, new, callback_url)).fetchone()
        stays = subscription_id
        if twin is not None:
            stays, younger = sorted((subscription_id, twin[0]))
            # First, for two live equals cannot be.
            cursor.execute(RETIRE, (younger,))
            cursor.execute(DELETE_DRAINED, (younger,))
        cursor.execute(MOVE, (new, old, epoch, update_id, stays))
    return len(moved)


def _nothing() -> None: ...


@frozen
class SqlSubscriptions:
    """
    Implements ``ports.Subscriptions``.

    :param on_left: called after a commit by which a subscription's jobs left the queue: there is room.
    """

    database: Transactions
    limits: SubscriptionLimits
    now: Now
    on_left: Callable[[], None] = _nothing

    def add(self, owner: int, chat_id: int, callback_url: str) -> Deferred[int]:
        """:raises UnknownKey: the owner's key was deleted meanwhile."""
        return self.database.write(add, owner, chat_id, callback_url, self.limits, self.now(), urgent=True)

    def of(self, owner: int) -> Deferred[list[Subscription]]:
        return self.database.read(of_owner, owner)

    async def remove(self, owner: int, subscription_id: int) -> bool:
        removed = await self.database.write(remove, owner, subscription_id, urgent=True)
        if removed:
            self.on_left()
        return removed
