"""
Lanes: one row a subscription, with its oldest undelivered job, so that a claim is one step in an index.

``head_id`` is the oldest job that is not dead, by (epoch, update id); the dead lie behind it, so the search
for a successor walks none of them.  ``next_due`` is when the head may go; it is NULL while a job of the lane
is in flight (nearly always the head; after ``retry-delivery`` the head may be an older one that waits for
it), and while the POST of a job that was removed under way has not come back.

``waits_since`` is when the wait for ``next_due`` began.  In an empty lane with failures it is when the last
job died of a spent budget: a message that comes later waits for the rest of the back-off (contract 6).

Functions of a cursor; ``now`` is in whole Unix seconds.
"""

from __future__ import annotations

import sqlite3

from attrs import frozen

READY = "SELECT subscription_id FROM lanes WHERE sick = ? AND next_due <= ? ORDER BY next_due, turn LIMIT ?"

EARLIEST = """
    SELECT next_due FROM lanes WHERE sick = ? AND next_due IS NOT NULL ORDER BY next_due, turn LIMIT 1
"""

# A row value, not OR: only this form is searched by all three columns of the index.
SUCCESSOR = """
    SELECT id, attempt_count, next_attempt_at FROM deliveries
    WHERE subscription_id = ? AND (epoch, update_id) > (?, ?) AND state <> 'DEAD'
    ORDER BY epoch, update_id LIMIT 1
"""

HEAD = """
    SELECT l.head_id, l.next_due, d.epoch, d.update_id, d.attempt_count, d.next_attempt_at
    FROM lanes l LEFT JOIN deliveries d ON d.id = l.head_id WHERE l.subscription_id = ?
"""

SETTLED = """
    UPDATE lanes SET head_id = ?, next_due = ?, waits_since = ?, turn = ?, sick = ?,
        fails = CASE WHEN ? THEN fails + 1 ELSE 0 END
    WHERE subscription_id = ? AND head_id = ?
"""

SETTLED_BEHIND = """
    UPDATE lanes SET next_due = ?, waits_since = ?, turn = ?, sick = ?,
        fails = CASE WHEN ? THEN fails + 1 ELSE 0 END
    WHERE subscription_id = ?
"""

PENALISE = "UPDATE lanes SET next_due = MAX(next_due, ?), waits_since = ? WHERE subscription_id = ?"

HOLD = "UPDATE lanes SET next_due = NULL WHERE subscription_id = ?"
PLACE = "UPDATE lanes SET head_id = ?, next_due = ?, waits_since = ? WHERE subscription_id = ?"
FORGIVE = "UPDATE lanes SET fails = 0 WHERE subscription_id = ?"

# The plus keeps the planner on the handful of rows that are in flight, off the lane's backlog.
IN_FLIGHT = "SELECT 1 FROM deliveries WHERE state = 'IN_FLIGHT' AND +subscription_id = ? LIMIT 1"

DROP_DRAINED = """
    DELETE FROM subscriptions WHERE retired = 1
        AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.subscription_id = subscriptions.id)
"""

Position = tuple[int, int]
"""(epoch, update id): a job's place in its lane."""


@frozen
class Head:
    """A lane's head, as read."""

    id: int
    next_due: int | None
    position: Position
    due: int
    """When it may go, were nothing of its lane in flight."""


def head_of(cursor: sqlite3.Cursor, subscription_id: int, now: int) -> Head | None:
    """The lane's head; None when it is empty, or there is no such lane."""
    row = cursor.execute(HEAD, (subscription_id,)).fetchone()
    if row is None or row[0] is None or row[2] is None:
        return None
    head_id, next_due, epoch, update_id, attempts, waits_until = row
    return Head(head_id, next_due, (epoch, update_id), _due(attempts, waits_until, now))


def _due(attempts: int, waits_until: int, now: int) -> int:
    # A job without an attempt behind it waits for nothing but its turn, whatever the clock said then.
    return max(now, waits_until) if attempts else now


def ready(cursor: sqlite3.Cursor, *, sick: bool, now: int, most: int) -> list[tuple[int, bool]]:
    """Lanes of the class whose head may go, in the order of their turns: (subscription id, class)."""
    return [(row[0], sick) for row in cursor.execute(READY, (sick, now, most))]


def earliest(cursor: sqlite3.Cursor, *, sick: bool) -> int | None:
    """When the next waiting lane of the class is due; None when none waits."""
    row = cursor.execute(EARLIEST, (sick,)).fetchone()
    return None if row is None else int(row[0])


def successor(
    cursor: sqlite3.Cursor, subscription_id: int, after: Position, now: int
) -> tuple[int | None, int | None]:
    """The oldest job behind ``after`` that is not dead, and when it may go; (None, None) without one."""
    row = cursor.execute(SUCCESSOR, (subscription_id, *after)).fetchone()
    return (None, None) if row is None else (row[0], _due(row[1], row[2], now))


def settled(
    cursor: sqlite3.Cursor,
    subscription_id: int,
    job_id: int,
    head: tuple[int | None, int | None],
    *,
    now: int,
    turn: int,
    sick: bool,
    failed: bool,
    not_before: int = 0,
) -> None:
    """
    Write the lane after an attempt at ``job_id``: the ``head`` that follows, and what the lane has become.

    An older job that was put back meanwhile stays the head; then it may go now.
    """
    head_id, due = head
    if due is not None:
        due = max(due, not_before)
    values = (head_id, due, now, turn, sick, failed, subscription_id, job_id)
    if cursor.execute(SETTLED, values).rowcount:
        return
    older = head_of(cursor, subscription_id, now)
    due = None if older is None else max(older.due, not_before)
    cursor.execute(SETTLED_BEHIND, (due, now, turn, sick, failed, subscription_id))


def resume(cursor: sqlite3.Cursor, subscription_id: int, now: int) -> None:
    """The POST of a removed job has come back: the lane may go on, unless another of it is in flight."""
    head = head_of(cursor, subscription_id, now)
    if head is None or head.next_due is not None:
        return
    if cursor.execute(IN_FLIGHT, (subscription_id,)).fetchone() is None:
        cursor.execute(PLACE, (head.id, head.due, now, subscription_id))


def put_back(cursor: sqlite3.Cursor, subscription_id: int, job_id: int, place: Position, now: int) -> None:
    """
    A pending job with a fresh budget stands at ``place`` again: it is due now if it leads its lane.

    The lane's failures are forgotten (contract 6).
    """
    head = head_of(cursor, subscription_id, now)
    if head is None:
        cursor.execute(PLACE, (job_id, now, now, subscription_id))
    elif place <= head.position:
        cursor.execute(PLACE, (job_id, None if head.next_due is None else now, now, subscription_id))
    cursor.execute(FORGIVE, (subscription_id,))


def taken_out(cursor: sqlite3.Cursor, subscription_id: int, job_id: int, place: Position, now: int) -> None:
    """A job that is deleted or dead leaves its lane; when it was the head, the next one is."""
    row = cursor.execute(
        "SELECT head_id, next_due FROM lanes WHERE subscription_id = ?", (subscription_id,)
    ).fetchone()
    if row is None or row[0] != job_id:
        return
    head_id, due = successor(cursor, subscription_id, place, now)
    # The next message to come into an empty lane finds no wait, unless the caller knows of one.
    since = 0 if head_id is None else now
    cursor.execute(PLACE, (head_id, None if row[1] is None else due, since, subscription_id))


def penalise(cursor: sqlite3.Cursor, subscription_id: int, until: int, now: int) -> None:
    """The job ahead died of a spent budget: whatever comes next in the lane waits until then."""
    cursor.execute(PENALISE, (until, now, subscription_id))


def drop_drained(cursor: sqlite3.Cursor) -> int:
    """Delete the retired subscriptions that have no job left; how many."""
    return cursor.execute(DROP_DRAINED).rowcount
