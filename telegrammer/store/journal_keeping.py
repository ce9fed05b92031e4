"""
What the journal lets go of, and when: the text of what is folded first, its identity later (contract 8).

What waits is never let go.  Functions of a cursor; times are whole Unix seconds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from attrs import frozen

IDENTITY_SECONDS = 2 * 86_400
"""
How long an entry is known at the least: Telegram repeats an update for a day, and after a change of the mode
the poller asks as well.
"""
MOST_FAILED = 10_000
"""Failed entries that are kept, for ``replay`` after an upgrade; beyond it the oldest go."""
PORTION = 500
"""Entries that one transaction looks at."""

LEAVING = "SELECT id, accepted_at, parse_status, body IS NULL FROM journal WHERE id > ? ORDER BY id LIMIT ?"
EMPTY = "UPDATE journal SET body = NULL WHERE id = ?"
REMOVE = "DELETE FROM journal WHERE id = ?"
ALL_FAILED = "SELECT COUNT(*) FROM journal WHERE parse_status = 'failed'"
EVICT_FAILED = """
    DELETE FROM journal WHERE id IN (
        SELECT id FROM journal WHERE parse_status = 'failed' ORDER BY id LIMIT ?)
"""


@frozen
class LetGo:
    """What one portion did."""

    reached: int
    """The last id that was looked at, to go on from; what follows is too young."""
    finished: bool
    emptied: int = 0
    removed: int = 0


def let_go(cursor: sqlite3.Cursor, after: int, bodies_before: int, entries_before: int, now: int) -> LetGo:
    """
    Let go of folded entries whose time is over, in a portion: of the body first, later of the rest.

    :param bodies_before: ``accepted_at`` below which a folded entry loses its body, and …
    :param entries_before: … is removed altogether.
    :param now: what was accepted later came while the clock was wrong: others behind it may be older.
    """
    rows = cursor.execute(LEAVING, (after, PORTION)).fetchall()
    emptied: list[tuple[int]] = []
    removed: list[tuple[int]] = []
    for entry_id, accepted_at, status, is_empty in rows:
        if bodies_before <= accepted_at <= now:
            return LetGo(after, True, *_let_go(cursor, emptied, removed))
        after = entry_id
        if status != "folded" or accepted_at > now:
            continue
        if accepted_at < entries_before:
            removed.append((entry_id,))
        elif not is_empty:
            emptied.append((entry_id,))
    return LetGo(after, len(rows) < PORTION, *_let_go(cursor, emptied, removed))


def _let_go(
    cursor: sqlite3.Cursor, emptied: Sequence[tuple[int]], removed: Sequence[tuple[int]]
) -> tuple[int, int]:
    cursor.executemany(EMPTY, emptied)
    cursor.executemany(REMOVE, removed)
    return len(emptied), len(removed)


def evict_failed(cursor: sqlite3.Cursor) -> int:
    """Delete some of the oldest failed entries beyond the limit; how many."""
    excess = cursor.execute(ALL_FAILED).fetchone()[0] - MOST_FAILED
    return cursor.execute(EVICT_FAILED, (min(excess, PORTION),)).rowcount if excess > 0 else 0
