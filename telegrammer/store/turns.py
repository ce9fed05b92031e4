"""
A turn: the results of finished attempts and the next claims, in one transaction (contract 6).

It is the only write of the steady state, so its cost is the queue's speed: each job costs one statement a
fact, all found by primary key or by one step in an index.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from attrs import define, field, frozen

from telegrammer.core.delivery import Again, Claimed, Dead, Done, Finished, Slots, Turn, choose, delivery_id
from telegrammer.core.retry import carried_wait
from telegrammer.store import lanes

COMPLETE = """
    DELETE FROM deliveries WHERE id = ? AND state = 'IN_FLIGHT' AND attempt_count = ?
    RETURNING epoch, update_id
"""

POSTPONE = """
    UPDATE deliveries SET state = 'PENDING', next_attempt_at = ?, last_error = ?
    WHERE id = ? AND state = 'IN_FLIGHT' AND attempt_count = ?
"""

BURY = """
    UPDATE deliveries SET state = 'DEAD', died_at = ?, last_error = ?
    WHERE id = ? AND state = 'IN_FLIGHT' AND attempt_count = ?
    RETURNING epoch, update_id, key_id
"""

BURY_UNSENT = """
    UPDATE deliveries SET state = 'DEAD', died_at = ?, last_error = ? WHERE id = ? AND state = 'PENDING'
"""

# CROSS JOIN fixes the order of the look-ups.  The casts: a text that is not UTF-8 would fail the whole
# turn in the driver; as bytes it is one job's misfortune.
PROSPECT = """
    SELECT d.id, d.state, d.attempt_count, d.carried, d.first_attempt_at, d.epoch, d.update_id, d.key_id,
        CAST(d.last_error AS BLOB), l.fails, CAST(s.callback_url AS BLOB), CAST(p.body AS BLOB)
    FROM lanes l CROSS JOIN subscriptions s ON s.id = l.subscription_id
        CROSS JOIN deliveries d ON d.id = l.head_id LEFT JOIN payloads p ON p.id = d.payload_id
    WHERE l.subscription_id = ?
"""

CLAIM = """
    UPDATE deliveries SET state = 'IN_FLIGHT', attempt_count = ?, carried = ?, first_attempt_at = ?
    WHERE id = ?
"""

OLDEST_NOT_DEAD = """
    SELECT id FROM deliveries WHERE subscription_id = ? AND state <> 'DEAD' ORDER BY epoch, update_id LIMIT 1
"""

DEAD_OF_KEY = "SELECT COUNT(*) FROM deliveries WHERE state = 'DEAD' AND key_id = ?"
DEAD_IN_ALL = "SELECT COUNT(*) FROM deliveries WHERE state = 'DEAD'"

EVICT_OF_KEY = """
    DELETE FROM deliveries WHERE id IN (
        SELECT id FROM deliveries WHERE state = 'DEAD' AND key_id = ? ORDER BY died_at, id LIMIT ?)
"""

EVICT = """
    DELETE FROM deliveries WHERE id IN (
        SELECT id FROM deliveries WHERE state = 'DEAD' ORDER BY died_at, id LIMIT ?)
"""

PORTION = 500
"""Rows that one transaction buries at the claim, purges, or evicts beyond its own dead."""


@frozen
class QueueRules:
    """The settings that a turn enforces."""

    attempts: int = 8
    """How many a job gets (``--retry-schedule``)."""
    max_jobs: int = 100_000
    max_dead_per_key: int = 10_000

    @property
    def max_dead(self) -> int:
        """A quarter of the queue: the dead can never stop ingestion (contract 6)."""
        return self.max_jobs // 4


def take_turn(
    cursor: sqlite3.Cursor, finished: Sequence[Finished], slots: Slots, now: int, rules: QueueRules
) -> Turn:
    """Write ``finished``, then claim for ``slots``; ``now`` in whole Unix seconds."""
    bot_id, counter = cursor.execute("SELECT bot_id, turn FROM gateway WHERE id = 1").fetchone()
    ledger = _Ledger(cursor, now, counter, rules)
    for each in finished:
        ledger.settle(each)
    claimed: list[Claimed] = []
    next_due, run = None, slots.healthy_run
    # Nothing is ingested before the database knows its bot; a delivery id without one would not last.
    if bot_id is not None and slots.free > 0:
        claimed, next_due, run = ledger.claim(bot_id, slots)
    evicted = evict(cursor, ledger.died, rules) if ledger.died else 0
    if ledger.emptied or evicted:
        lanes.drop_drained(cursor)
    if ledger.counter != counter:
        cursor.execute("UPDATE gateway SET turn = ? WHERE id = 1", (ledger.counter,))
    return Turn(tuple(claimed), next_due, run, ledger.buried, ledger.done + evicted, evicted)


def evict(cursor: sqlite3.Cursor, died: dict[int, int], rules: QueueRules) -> int:
    """
    Delete the oldest dead beyond the limits, the given keys' own first; how many.

    ``died`` counts by key the jobs that have just died: a limit that was lowered is reached in portions.
    """
    evicted = 0
    for key_id, count in died.items():
        excess = cursor.execute(DEAD_OF_KEY, (key_id,)).fetchone()[0] - rules.max_dead_per_key
        if excess > 0:
            evicted += cursor.execute(EVICT_OF_KEY, (key_id, min(excess, count + PORTION))).rowcount
    excess = cursor.execute(DEAD_IN_ALL).fetchone()[0] - rules.max_dead
    if excess > 0:
        evicted += cursor.execute(EVICT, (min(excess, sum(died.values()) + PORTION),)).rowcount
    return evicted


@define(eq=False)
class _Ledger:
    """What happens in the course of one turn."""

    cursor: sqlite3.Cursor
    now: int
    counter: int
    """The last number given to a lane: lanes that are due in the same second go by it, round-robin."""
    rules: QueueRules
    done: int = field(default=0, init=False)
    buried: int = field(default=0, init=False)
    died: dict[int, int] = field(factory=dict, init=False)
    """By key."""
    emptied: bool = field(default=False, init=False)

    def settle(self, finished: Finished) -> None:
        """Write one result, if its job is still in flight at that attempt."""
        job, fence = finished.job, (finished.job.id, finished.job.attempt)
        match finished.verdict:
            case Done(slow):
                row = self.cursor.execute(COMPLETE, fence).fetchone()
                if row is not None:
                    self.done += 1
                    return self._succeeded(job.subscription_id, job.id, row, sick=slow)
            case Dead(reason, spent, slow, due):
                row = self.cursor.execute(BURY, (self.now, reason, *fence)).fetchone()
                if row is not None:
                    self._died(row[2])
                    return self._succeeded(
                        job.subscription_id,
                        job.id,
                        row[:2],
                        sick=spent or slow,
                        failed=spent,
                        not_before=due if spent else 0,
                    )
            case Again(due, reason):
                if self.cursor.execute(POSTPONE, (due, reason, *fence)).rowcount:
                    return self._lane(job.subscription_id, job.id, (job.id, due), sick=True, failed=True)
        lanes.resume(self.cursor, job.subscription_id, self.now)

    def _succeeded(
        self,
        subscription_id: int,
        job_id: int,
        place: lanes.Position,
        *,
        sick: bool,
        failed: bool = False,
        not_before: int = 0,
    ) -> None:
        head = lanes.successor(self.cursor, subscription_id, place, self.now)
        self.emptied = self.emptied or head[0] is None
        self._lane(subscription_id, job_id, head, sick=sick, failed=failed, not_before=not_before)

    def _lane(
        self,
        subscription_id: int,
        job_id: int,
        head: tuple[int | None, int | None],
        *,
        sick: bool,
        failed: bool,
        not_before: int = 0,
    ) -> None:
        self.counter += 1
        lanes.settled(
            self.cursor,
            subscription_id,
            job_id,
            head,
            now=self.now,
            turn=self.counter,
            sick=sick,
            failed=failed,
            not_before=not_before,
        )

    def _died(self, key_id: int) -> None:
        self.buried += 1
        self.died[key_id] = self.died.get(key_id, 0) + 1

    def claim(self, bot_id: int, slots: Slots) -> tuple[list[Claimed], int | None, int]:
        """The claims, when a lane that could still be taken is due, and the healthy run."""
        claimed: list[Claimed] = []
        free, free_sick, run, unfit = slots.free, slots.free_sick, slots.healthy_run, 0
        while free > 0 and unfit < PORTION:
            healthy = lanes.ready(self.cursor, sick=False, now=self.now, most=free)
            sick = lanes.ready(self.cursor, sick=True, now=self.now, most=max(0, min(free, free_sick)))
            chosen, run = choose(healthy, sick, Slots(free, free_sick, run))
            fit = []
            for subscription_id, is_sick in chosen:
                job = self._prospect(bot_id, subscription_id, is_sick)
                if job is not None:
                    fit.append(job)
            self.cursor.executemany(lanes.HOLD, [(job.subscription_id,) for job in fit])
            self.cursor.executemany(
                CLAIM, [(job.attempt, job.carried, job.first_attempt_at, job.id) for job in fit]
            )
            claimed += fit
            free -= len(fit)
            free_sick -= sum(job.sick for job in fit)
            if len(fit) == len(chosen):
                break
            # The heads that could not go made room for their successors.
            unfit += len(chosen) - len(fit)
        if free <= 0:
            return claimed, None, run
        dues = [lanes.earliest(self.cursor, sick=False)]
        if free_sick > 0:
            dues.append(lanes.earliest(self.cursor, sick=True))
        return claimed, min((due for due in dues if due is not None), default=None), run

    def _prospect(self, bot_id: int, subscription_id: int, sick: bool) -> Claimed | None:
        """The lane's head as it would be claimed; None when it was buried, or the lane had to be mended."""
        row = self.cursor.execute(PROSPECT, (subscription_id,)).fetchone()
        if row is None or row[1] != "PENDING":
            self._mend(subscription_id)
            return None
        job_id, _, attempts, carried, first_attempt_at, epoch, update_id, key_id, error, fails, url, body = (
            row
        )
        not_before = 0
        if attempts >= self.rules.attempts:
            # It was in flight when the daemon ended, or the schedule has been shortened.
            reason = "no attempts left" + (f" ({error.decode('ascii', 'replace')})" if error else "")
            not_before = self.now + carried_wait(fails)
        elif not _is_object(body):
            reason = "payload is damaged"
        elif (address := _text(url)) is None:
            reason = "callback URL is damaged"
        else:
            return Claimed(
                id=job_id,
                subscription_id=subscription_id,
                url=address,
                body=body,
                delivery_id=delivery_id(bot_id, subscription_id, epoch, update_id),
                attempt=attempts + 1,
                first_attempt_at=self.now if first_attempt_at is None else first_attempt_at,
                carried=carried if attempts else fails,
                sick=sick,
            )
        self.cursor.execute(BURY_UNSENT, (self.now, reason, job_id))
        self._died(key_id)
        lanes.taken_out(self.cursor, subscription_id, job_id, (epoch, update_id), self.now)
        if not_before > self.now:
            lanes.penalise(self.cursor, subscription_id, not_before, self.now)
        return None

    def _mend(self, subscription_id: int) -> None:
        """The head is not what it should be (somebody edited the tables): look for it anew."""
        row = self.cursor.execute(OLDEST_NOT_DEAD, (subscription_id,)).fetchone()
        head_id = None if row is None else row[0]
        in_flight = self.cursor.execute(lanes.IN_FLIGHT, (subscription_id,)).fetchone() is not None
        due = None if head_id is None or in_flight else self.now
        self.cursor.execute(lanes.PLACE, (head_id, due, self.now, subscription_id))


def _is_object(body: bytes | None) -> bool:
    """Whether the bytes can be the JSON text of a message: a cheap look, not a parse."""
    return body is not None and body[:1] == b"{" and body[-1:] == b"}" and _text(body) is not None


def _text(raw: bytes | None) -> str | None:
    try:
        return None if raw is None else raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
