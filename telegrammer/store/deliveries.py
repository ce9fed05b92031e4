"""
The delivery queue: the port the workers use, and what operators do to it (contract 1.1, 2.3, 6).

``turns.py`` has the transaction of the workers, ``lanes.py`` the order of the jobs.  The functions here take
a cursor inside an open write transaction, so daemon and commands share them; ``now`` is in Unix seconds.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from math import floor

from attrs import frozen
from twisted.internet.defer import Deferred

from telegrammer.core.delivery import DeadJob, Finished, QueueCounts, Slots, Turn
from telegrammer.core.notice_texts import Deaths
from telegrammer.core.notices import DeathsWanted
from telegrammer.core.problems import DeliveriesRefused
from telegrammer.ports import Now
from telegrammer.store import lanes
from telegrammer.store.engine import Transactions
from telegrammer.store.turns import (
    DEAD_IN_ALL,
    DEAD_OF_KEY,
    EVICT,
    EVICT_OF_KEY,
    PORTION,
    QueueRules,
    take_turn,
)

ALL = "SELECT COUNT(*) FROM deliveries"
IN_FLIGHT = "SELECT COUNT(*) FROM deliveries WHERE state = 'IN_FLIGHT'"

# A lane's head is its oldest job; when that one is in flight, the oldest pending is its successor.
OLDEST_PENDING = """
    SELECT MIN(created_at) FROM (
        SELECT d.created_at FROM lanes l CROSS JOIN deliveries d ON d.id = l.head_id
        WHERE d.state = 'PENDING'
        UNION ALL
        SELECT (SELECT n.created_at FROM deliveries n
                WHERE n.subscription_id = f.subscription_id
                    AND (n.epoch, n.update_id) > (f.epoch, f.update_id) AND n.state = 'PENDING'
                ORDER BY n.epoch, n.update_id LIMIT 1)
        FROM deliveries f WHERE f.state = 'IN_FLIGHT')
"""

PURGE = """
    DELETE FROM deliveries WHERE id IN (
        SELECT id FROM deliveries WHERE state = 'DEAD' AND died_at <= ? ORDER BY died_at, id LIMIT ?)
"""

KEYS_WITH_DEAD = """
    SELECT k.id FROM keys k
    WHERE EXISTS (SELECT 1 FROM deliveries d WHERE d.state = 'DEAD' AND d.key_id = k.id)
"""

DEAD_JOBS = """
    SELECT d.id, d.subscription_id, s.chat_id, d.update_id, d.attempt_count, d.created_at, d.died_at,
        d.last_error
    FROM deliveries d CROSS JOIN subscriptions s ON s.id = d.subscription_id
    WHERE d.state = 'DEAD'
        AND (:subscription IS NULL OR d.subscription_id = :subscription)
        AND (:key IS NULL OR d.key_id = :key)
    ORDER BY d.died_at, d.id
"""

# Of the few subscriptions in :apart (a JSON object) another second counts.
DEATHS = """
    WITH apart(subscription_id, since) AS MATERIALIZED (
        SELECT CAST(key AS INTEGER), value FROM json_each(:apart))
    SELECT d.subscription_id, COALESCE(d.last_error, ''), COUNT(*), MAX(d.died_at)
    FROM deliveries d INDEXED BY deliveries_dead LEFT JOIN apart a ON a.subscription_id = d.subscription_id
    WHERE d.state = 'DEAD' AND d.died_at > :least AND d.died_at < :before
        AND d.died_at > COALESCE(a.since, :since)
    GROUP BY 1, 2
"""

JOB = "SELECT subscription_id, epoch, update_id, state FROM deliveries WHERE id = ?"

REVIVE = """
    UPDATE deliveries SET state = 'PENDING', attempt_count = 0, carried = 0, first_attempt_at = NULL,
        next_attempt_at = ?, died_at = NULL, last_error = NULL
    WHERE id = ?
"""

SHIFT_LANES = """
    UPDATE lanes SET next_due = next_due + :seconds, waits_since = waits_since + :seconds
    WHERE waits_since BETWEEN 1 AND :began_before
"""

SHIFT_JOBS = """
    UPDATE deliveries
    SET next_attempt_at = next_attempt_at + :seconds, first_attempt_at = first_attempt_at + :seconds
    WHERE first_attempt_at IS NOT NULL AND state <> 'DEAD'
"""


# -- what the daemon asks ------------------------------------------------------------------------------


def counts(cursor: sqlite3.Cursor) -> QueueCounts:
    """The queue for ``/health``: cheap, whatever its size (no state is counted row by row but the dead)."""
    total, in_flight, dead = (cursor.execute(sql).fetchone()[0] for sql in (ALL, IN_FLIGHT, DEAD_IN_ALL))
    pending = total - in_flight - dead
    oldest = cursor.execute(OLDEST_PENDING).fetchone()[0] if pending else None
    return QueueCounts(pending=pending, in_flight=in_flight, dead=dead, oldest_pending_at=oldest)


def deaths(cursor: sqlite3.Cursor, wanted: DeathsWanted) -> list[Deaths]:
    """The dead jobs that are news to the operator, by subscription and reason."""
    values = {
        "apart": json.dumps({str(number): since for number, since in wanted.apart.items()}),
        "least": min(wanted.since, *wanted.apart.values()) if wanted.apart else wanted.since,
        "since": wanted.since,
        "before": wanted.before,
    }
    return [Deaths(*row) for row in cursor.execute(DEATHS, values)]


def purge_portion(cursor: sqlite3.Cursor, died_by: int) -> int:
    """Delete some of the jobs that died at ``died_by`` or before; how many (0: none is left)."""
    return cursor.execute(PURGE, (died_by, PORTION)).rowcount


def evict_portion(cursor: sqlite3.Cursor, rules: QueueRules) -> int:
    """Delete some of the oldest dead beyond the limits, which may have been lowered; how many."""
    for (key_id,) in cursor.execute(KEYS_WITH_DEAD).fetchall():
        excess = cursor.execute(DEAD_OF_KEY, (key_id,)).fetchone()[0] - rules.max_dead_per_key
        if excess > 0:
            return cursor.execute(EVICT_OF_KEY, (key_id, min(excess, PORTION))).rowcount
    excess = cursor.execute(DEAD_IN_ALL).fetchone()[0] - rules.max_dead
    return cursor.execute(EVICT, (min(excess, PORTION),)).rowcount if excess > 0 else 0


def shift_times(cursor: sqlite3.Cursor, seconds: int, now: int) -> None:
    """
    The wall clock jumped by ``seconds`` and now says ``now``: what waits goes on waiting as long as before.

    Lanes whose wait began after a jump forward are left alone.  Dead jobs keep their times: retention is a
    matter of dates.
    """
    began_before = now - seconds + 1 if seconds > 0 else now - seconds
    cursor.execute(SHIFT_LANES, {"seconds": seconds, "began_before": began_before})
    cursor.execute(SHIFT_JOBS, {"seconds": seconds})


# -- what operators do ---------------------------------------------------------------------------------


def dead_jobs(
    cursor: sqlite3.Cursor, *, subscription: int | None = None, key: int | None = None
) -> list[DeadJob]:
    """The dead jobs, the oldest death first; of one subscription, or of one key (its id), if asked."""
    return [
        DeadJob(
            id=row[0],
            subscription_id=row[1],
            chat_id=row[2],
            update_id=row[3],
            attempts=row[4],
            created_at=row[5],
            died_at=row[6],
            reason=row[7] or "",
        )
        for row in cursor.execute(DEAD_JOBS, {"subscription": subscription, "key": key})
    ]


def retry(cursor: sqlite3.Cursor, ids: Sequence[int], now: float) -> int:
    """
    Put jobs back in their places, with a fresh budget and due now: dead ones, and pending ones that wait.

    :returns: how many jobs that was.
    :raises DeliveriesRefused: some are unknown or in flight; nothing was done.
    """
    jobs = {job_id: cursor.execute(JOB, (job_id,)).fetchone() for job_id in _storable(ids)}
    unknown = sorted(set(ids) - {job_id for job_id, job in jobs.items() if job is not None})
    in_flight = sorted(job_id for job_id, job in jobs.items() if job is not None and job[3] == "IN_FLIGHT")
    if unknown or in_flight:
        raise DeliveriesRefused(unknown, in_flight)
    second = floor(now)
    cursor.executemany(REVIVE, [(second, job_id) for job_id in jobs])
    # Of each lane only the first can come to lead it.
    first: dict[int, tuple[lanes.Position, int]] = {}
    for job_id, (subscription_id, epoch, update_id, _) in jobs.items():
        place = ((epoch, update_id), job_id)
        first[subscription_id] = min(place, first.get(subscription_id, place))
    for subscription_id, (position, job_id) in first.items():
        lanes.put_back(cursor, subscription_id, job_id, position, second)
    return len(jobs)


def retry_all(cursor: sqlite3.Cursor, now: float, subscription: int | None = None) -> int:
    """Put every dead job back, or those of one subscription; how many."""
    return retry(cursor, [job.id for job in dead_jobs(cursor, subscription=subscription)], now)


def delete(cursor: sqlite3.Cursor, ids: Sequence[int], now: float) -> int:
    """
    Remove jobs, in whatever state, and what their lanes wait for on their account; how many.

    A lane whose job was in flight goes on when that POST has come back.

    :raises DeliveriesRefused: some are unknown; nothing was done.
    """
    jobs = {job_id: cursor.execute(JOB, (job_id,)).fetchone() for job_id in _storable(ids)}
    unknown = sorted(set(ids) - {job_id for job_id, job in jobs.items() if job is not None})
    if unknown:
        raise DeliveriesRefused(unknown)
    for job_id, (subscription_id, epoch, update_id, _) in jobs.items():
        cursor.execute("DELETE FROM deliveries WHERE id = ?", (job_id,))
        lanes.taken_out(cursor, subscription_id, job_id, (epoch, update_id), floor(now))
    lanes.drop_drained(cursor)
    return len(jobs)


def _storable(ids: Iterable[int]) -> set[int]:
    """Without the ids that SQLite cannot even be asked for."""
    return {job_id for job_id in ids if 0 < job_id < 2**63}


# -- the port ------------------------------------------------------------------------------------------


@frozen
class SqlDeliveries:
    """Implements ``ports.Deliveries``."""

    database: Transactions
    now: Now
    rules: QueueRules = QueueRules()
    dead_retention: int = 7 * 86_400
    """Seconds."""

    def turn(self, finished: Sequence[Finished], slots: Slots, now: Now) -> Deferred[Turn]:
        # The clock is read when the transaction has begun: it may have waited for the lock.
        def work(cursor: sqlite3.Cursor) -> Turn:
            return take_turn(cursor, finished, slots, floor(now()), self.rules)

        return self.database.write(work)

    def counts(self) -> Deferred[QueueCounts]:
        return self.database.read(counts)

    def deaths(self, wanted: DeathsWanted) -> Deferred[list[Deaths]]:
        """The dead jobs that are news to the operator."""
        return self.database.read(deaths, wanted)

    async def purge_dead(self) -> int:
        """In portions, each a transaction of its own, so that no one waits long for the writer."""
        purged = await self._portions(purge_portion, floor(self.now()) - self.dead_retention)
        purged += await self._portions(evict_portion, self.rules)
        await self.database.write(lanes.drop_drained)
        return purged

    async def _portions(self, portion: Callable[..., int], argument: int | QueueRules) -> int:
        total = 0
        while count := await self.database.write(portion, argument):
            total += count
        return total

    def shift_times(self, seconds: int) -> Deferred[None]:
        return self.database.write(shift_times, seconds, floor(self.now()))
