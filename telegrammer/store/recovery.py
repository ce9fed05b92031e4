"""
The queue at start: what was in flight may go again, and the lanes are checked against the jobs (contract 6).

``violations`` holds for every state a committed transaction leaves behind; the commands and the tests ask it
as well.  ``now`` is in Unix seconds.
"""

from __future__ import annotations

import sqlite3
from math import floor

from attrs import frozen

from telegrammer.store import lanes

# An attempt that was cut off is one to be retried, so its lane is sick: a receiver that hung before the
# start would otherwise take a worker at once, and a few of them all.  But it goes before all that were sick
# already: most likely its receiver is well, and behind fifty that hang it would wait for minutes.
SUSPECT = """
    UPDATE lanes SET sick = 1, next_due = 0
    WHERE sick = 0 AND subscription_id IN (SELECT subscription_id FROM deliveries WHERE state = 'IN_FLIGHT')
"""

REQUEUE = """
    UPDATE deliveries SET state = 'PENDING', next_attempt_at = ? WHERE state = 'IN_FLIGHT'
"""

# Heads whose POST ended with the process, removed jobs' lanes among them.
RELEASE = """
    UPDATE lanes SET next_due = :now, waits_since = :now WHERE head_id IS NOT NULL AND next_due IS NULL
"""

# The clock was set back while nothing ran: the wait begins anew, with what was left of it at its start.
CLOCK_SET_BACK = "SELECT subscription_id, waits_since - :now FROM lanes WHERE waits_since > :now"

SHIFT_JOBS_OF_LANE = """
    UPDATE deliveries SET next_attempt_at = next_attempt_at - :seconds,
        first_attempt_at = MIN(:now, first_attempt_at - :seconds)
    WHERE subscription_id = :lane AND first_attempt_at IS NOT NULL AND state <> 'DEAD'
"""

SHIFT_LANE = """
    UPDATE lanes SET next_due = next_due - :seconds, waits_since = waits_since - :seconds
    WHERE subscription_id = :lane
"""

_OLDEST = """(
    SELECT d.id FROM deliveries d WHERE d.subscription_id = {id} AND d.state <> 'DEAD'
    ORDER BY d.epoch, d.update_id LIMIT 1)"""

_OWED = "(SELECT payload_id, COUNT(*) AS jobs FROM deliveries GROUP BY payload_id)"

CHECKS: tuple[tuple[str, str], ...] = (
    (
        "subscriptions without a lane",
        """
        SELECT COUNT(*) FROM subscriptions s
        WHERE NOT EXISTS (SELECT 1 FROM lanes l WHERE l.subscription_id = s.id)
        """,
    ),
    (
        "lanes whose head is not their oldest job",
        f"SELECT COUNT(*) FROM lanes l WHERE l.head_id IS NOT {_OLDEST.format(id='l.subscription_id')}",
    ),
    (
        "empty lanes that are due",
        "SELECT COUNT(*) FROM lanes WHERE head_id IS NULL AND next_due IS NOT NULL",
    ),
    (
        "lanes that are due while a job is in flight",
        """
        SELECT COUNT(*) FROM lanes l WHERE l.next_due IS NOT NULL AND l.subscription_id IN (
            SELECT subscription_id FROM deliveries WHERE state = 'IN_FLIGHT')
        """,
    ),
    (
        "lanes with two jobs in flight",
        """
        SELECT COUNT(*) FROM (
            SELECT 1 FROM deliveries WHERE state = 'IN_FLIGHT'
            GROUP BY subscription_id HAVING COUNT(*) > 1)
        """,
    ),
    (
        "payloads with a wrong count of jobs",
        f"""
        SELECT COUNT(*) FROM payloads p LEFT JOIN {_OWED} o ON o.payload_id = p.id
        WHERE p.refs IS NOT o.jobs
        """,
    ),
)


@frozen
class Recovered:
    """What a start found and did."""

    requeued: int = 0
    """Jobs that were in flight when the last daemon ended."""
    shifted: int = 0
    """Lanes whose wait began in what is now the future."""
    rebuilt: bool = False
    """The lanes contradicted the jobs and were made anew."""


def violations(cursor: sqlite3.Cursor) -> list[str]:
    """Which invariants of the queue are broken, with counts; empty when it is sound.  Reads only."""
    found = ((what, cursor.execute(sql).fetchone()[0]) for what, sql in CHECKS)
    return [f"{what}: {count}" for what, count in found if count]


def recover(cursor: sqlite3.Cursor, now: float) -> Recovered:
    """
    Make the queue ready for a daemon's start; under the process lock, in one write transaction.

    Budgets are looked at before the next attempt, when a job is claimed.
    """
    second = floor(now)
    cursor.execute(SUSPECT)
    requeued = cursor.execute(REQUEUE, (second,)).rowcount
    shifted = cursor.execute(CLOCK_SET_BACK, {"now": second}).fetchall()
    for subscription_id, seconds in shifted:
        cursor.execute(SHIFT_LANE, {"lane": subscription_id, "seconds": seconds})
        cursor.execute(SHIFT_JOBS_OF_LANE, {"lane": subscription_id, "seconds": seconds, "now": second})
    cursor.execute(RELEASE, {"now": second})
    rebuilt = bool(violations(cursor))
    if rebuilt:
        rebuild(cursor, second)
    lanes.drop_drained(cursor)
    return Recovered(requeued, len(shifted), rebuilt)


def rebuild(cursor: sqlite3.Cursor, now: int) -> None:
    """Derive lanes and payload counts from the jobs; what lanes know of their receivers' health is kept."""
    cursor.execute("INSERT OR IGNORE INTO lanes(subscription_id) SELECT id FROM subscriptions")
    cursor.execute(f"UPDATE lanes SET head_id = {_OLDEST.format(id='lanes.subscription_id')}")
    cursor.execute(
        """
        UPDATE lanes SET waits_since = :now, next_due = (
            SELECT CASE WHEN d.attempt_count > 0 THEN MAX(:now, d.next_attempt_at) ELSE :now END
            FROM deliveries d WHERE d.id = lanes.head_id AND d.state = 'PENDING')
        """,
        {"now": now},
    )
    cursor.execute(f"UPDATE payloads SET refs = o.jobs FROM {_OWED} o WHERE o.payload_id = payloads.id")
    cursor.execute("DELETE FROM payloads WHERE id NOT IN (SELECT payload_id FROM deliveries)")
