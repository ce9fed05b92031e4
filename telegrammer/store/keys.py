"""API keys: functions of a cursor for the daemon and the commands alike (contract 3)."""

from __future__ import annotations

import sqlite3

from attrs import frozen
from twisted.internet.defer import Deferred

from telegrammer.core.keys import check_name
from telegrammer.core.problems import InvalidRequest
from telegrammer.core.subscriptions import KeyRecord
from telegrammer.store.engine import Transactions

OWNER = "SELECT id FROM keys WHERE digest = ?"
INSERT = "INSERT INTO keys(name, digest, created_at, legacy) VALUES (?, ?, ?, ?) ON CONFLICT(name) DO NOTHING"
LISTING = "SELECT name, created_at, legacy FROM keys ORDER BY id"
DELETE = "DELETE FROM keys WHERE name = ?"


def owner_of(cursor: sqlite3.Cursor, digest: bytes) -> int | None:
    """The id of the key with this SHA-256, or None."""
    row = cursor.execute(OWNER, (digest,)).fetchone()
    return None if row is None else int(row[0])


def add(cursor: sqlite3.Cursor, name: str, digest: bytes, now: float, *, legacy: bool = False) -> None:
    """
    Store a key under its name.

    :raises InvalidRequest: the name breaks a rule or is taken; the message is for the operator.
    """
    check_name(name)
    cursor.execute(INSERT, (name, digest, int(now), legacy))
    if cursor.rowcount == 0:
        raise InvalidRequest("a key of this name exists already", "name")


def listing(cursor: sqlite3.Cursor) -> list[KeyRecord]:
    """All keys, in the order in which they were made."""
    return [KeyRecord(name, created_at, bool(legacy)) for name, created_at, legacy in cursor.execute(LISTING)]


def delete(cursor: sqlite3.Cursor, name: str) -> bool:
    """Delete the key, its subscriptions and their jobs; False when there is none of that name."""
    # Lanes, jobs and (by trigger) payloads go by cascade.
    return cursor.execute(DELETE, (name,)).rowcount == 1


@frozen
class SqlKeys:
    """Implements ``ports.Keys``.  There is no cache: a revocation holds from the next request on."""

    database: Transactions

    def owner_of(self, digest: bytes) -> Deferred[int | None]:
        return self.database.read(owner_of, digest, pool="credentials")
