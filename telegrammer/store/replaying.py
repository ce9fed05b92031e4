"""
What ``telegrammer replay`` selects of the journal: what is kept, whatever became of it (contract 8).

Functions of a cursor.
"""

from __future__ import annotations

import sqlite3

LAST = "SELECT COALESCE(MAX(id), 0) FROM journal"
# The ids are in the order of folding, for received_at never goes back.
AGAIN = "SELECT id FROM journal WHERE id > ? AND id <= ? AND received_at >= ? ORDER BY id LIMIT ?"
FAILED_AGAIN = """
    SELECT id FROM journal WHERE parse_status = 'failed' AND id > ? AND id <= ? ORDER BY id LIMIT ?
"""
NAMED = "SELECT id FROM journal WHERE id = ?"
NAMED_BY_UPDATE = "SELECT MAX(id) FROM journal WHERE update_id = ?"
REASON = "SELECT update_id, reason FROM journal WHERE id = ?"


def last_entry(cursor: sqlite3.Cursor) -> int:
    """The highest id there is; 0 without an entry."""
    return int(cursor.execute(LAST).fetchone()[0])


def kept(cursor: sqlite3.Cursor, after: int, until: int, limit: int, since: int = 0) -> list[int]:
    """
    Ids of entries, folded or not, in the order of folding, behind ``after`` and up to ``until``.

    :param since: only those received then (Unix seconds) or later.
    """
    return [entry_id for (entry_id,) in cursor.execute(AGAIN, (after, until, since, limit))]


def failed(cursor: sqlite3.Cursor, after: int, until: int, limit: int) -> list[int]:
    """The same of entries that are failed."""
    return [entry_id for (entry_id,) in cursor.execute(FAILED_AGAIN, (after, until, limit))]


def find(cursor: sqlite3.Cursor, number: int) -> int | None:
    """The entry of this id; if there is none, the latest with this update id; or None."""
    row = cursor.execute(NAMED, (number,)).fetchone() or cursor.execute(NAMED_BY_UPDATE, (number,)).fetchone()
    found: int | None = row[0]
    return found


def reason(cursor: sqlite3.Cursor, entry_id: int) -> tuple[int, str | None] | None:
    """The update id of an entry, and why it is failed; None: it is there no longer."""
    row: tuple[int, str | None] | None = cursor.execute(REASON, (entry_id,)).fetchone()
    return row
