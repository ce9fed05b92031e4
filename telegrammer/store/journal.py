"""
The journal: pushed updates as they came, until they are folded and for a while after (contract 8).

The queue is this table.  An entry is written in one short transaction, which is all that an answer to
Telegram waits for; folding is another one for each entry, with the entry's new status in it, so that an
interrupted fold leaves nothing.  The functions take a cursor inside an open transaction; ``now`` is in whole
Unix seconds.
"""

from __future__ import annotations

import sqlite3
from math import floor

from attrs import frozen
from twisted.internet.defer import Deferred

from telegrammer.core.folding import Folded
from telegrammer.core.ingestion import Quarantined, was_polled
from telegrammer.core.journal import BEGINNING, Accepted, JournalCounts, Late, Pending, Place, restarts_ids
from telegrammer.core.problems import OutOfTurn, UnknownEntry
from telegrammer.core.telegram import Malformed
from telegrammer.core.updates import read_update
from telegrammer.ports import Now
from telegrammer.store.engine import Transactions
from telegrammer.store.intake import Intake
from telegrammer.store.journal_keeping import IDENTITY_SECONDS, evict_failed, let_go

STANDING = """
    SELECT epoch, next_offset, MAX(COALESCE(highest_seen, -1), next_offset - 1), accepted_at,
        received_at, (SELECT COALESCE(MAX(id), 0) FROM subscriptions)
    FROM gateway WHERE id = 1
"""
# First looked for, for an INSERT that does nothing still takes an id, and so writes.
THERE = "SELECT 1 FROM journal WHERE epoch = ? AND update_id = ?"
ENTER = """
    INSERT INTO journal(received_at, accepted_at, epoch, update_id, subscriptions_until, body)
    VALUES (?, ?, ?, ?, ?, ?)
"""
ACCEPTED = """
    UPDATE gateway SET epoch = ?, next_offset = ?, highest_seen = ?, accepted_at = ?, received_at = ?
    WHERE id = 1
"""
QUARANTINE = """
    INSERT INTO journal(
        received_at, accepted_at, epoch, update_id, subscriptions_until, parse_status, reason, body)
    SELECT MAX(:now, received_at), :now, :epoch, :update_id, (SELECT COALESCE(MAX(id), 0) FROM subscriptions),
        'failed', :reason, :body
    FROM gateway WHERE id = 1
"""
RECEIVED = "UPDATE gateway SET received_at = MAX(received_at, ?) WHERE id = 1"

# A row value, not OR: only this form is a search.  SQLite makes it one by the second, and looks at the ids
# within; those that were dealt with are no longer there.
PENDING = """
    SELECT received_at, id, accepted_at FROM journal
    WHERE parse_status = 'pending' AND (received_at, id) > (?, ?) ORDER BY received_at, id LIMIT ?
"""
COUNT_PENDING = "SELECT COUNT(*) FROM journal WHERE parse_status = 'pending'"
LATE = """
    SELECT COUNT(*), MIN(accepted_at) FROM journal WHERE parse_status = 'pending' AND accepted_at <= ?
"""
COUNT_FAILED = "SELECT COUNT(*), MAX(id) FROM journal WHERE parse_status = 'failed'"

ENTRY = """
    SELECT received_at, epoch, update_id, subscriptions_until, parse_status, body FROM journal WHERE id = ?
"""
FOLDED = "UPDATE journal SET parse_status = 'folded', reason = NULL WHERE id = ?"
FAILED = """
    UPDATE journal SET parse_status = 'failed', reason = ? WHERE id = ? AND parse_status <> 'folded'
    RETURNING update_id
"""


def accept(cursor: sqlite3.Cursor, update_id: int, body: bytes, now: int) -> Accepted:
    """Write a pushed update, once; a repeat of what was pushed or polled before changes nothing."""
    epoch, next_offset, highest, accepted_at, received_at, until = cursor.execute(STANDING).fetchone()
    quiet = None if accepted_at is None else now - accepted_at
    # -1: there is no update yet.
    restarted = restarts_ids(update_id, None if highest < 0 else highest, quiet)
    if restarted:
        epoch, next_offset, highest = epoch + 1, 0, -1
    elif was_polled(update_id, next_offset):
        return Accepted(None, epoch)
    if cursor.execute(THERE, (epoch, update_id)).fetchone() is not None:
        return Accepted(None, epoch)
    place = max(now, received_at)
    cursor.execute(ENTER, (place, now, epoch, update_id, until, body))
    entry_id = cursor.lastrowid
    cursor.execute(ACCEPTED, (epoch, next_offset, max(highest, update_id), now, place))
    return Accepted(entry_id, epoch, restarted)


def quarantine_update(cursor: sqlite3.Cursor, update: Malformed, epoch: int, now: int) -> Quarantined:
    """Put a polled update aside that cannot be folded; it must have an id that the journal does not hold."""
    assert update.update_id is not None
    values = {
        "now": now,
        "epoch": epoch,
        "update_id": update.update_id,
        "reason": update.why,
        "body": update.text,
    }
    cursor.execute(QUARANTINE, values)
    entry_id = cursor.lastrowid
    assert entry_id is not None
    cursor.execute(RECEIVED, (now,))
    return Quarantined(update.update_id, entry_id, update.why)


def fold(cursor: sqlite3.Cursor, entry_id: int, max_jobs: int, now: int) -> Folded:
    """
    Fold one entry: its jobs, observation and moves, and its new status.

    An entry that is folded stays so: nothing is done.  One that has failed is tried again.

    :raises UnknownEntry: there is none.
    :raises OutOfTurn: it waits behind an older one.
    :raises MalformedUpdate: it cannot be understood.
    :raises CapacityReached: with it there would be more than ``max_jobs`` jobs, dead ones included.
    """
    row = cursor.execute(ENTRY, (entry_id,)).fetchone()
    if row is None:
        raise UnknownEntry(f"there is no entry {entry_id} in the journal")
    received_at, epoch, update_id, until, status, body = row
    if status == "folded":
        return Folded("already", update_id)
    if status == "pending" and pending(cursor, BEGINNING, 1)[0].place.entry_id != entry_id:
        raise OutOfTurn("an older update waits to be folded")
    message = read_update(bytes(body)).message
    if message is None:
        cursor.execute(FOLDED, (entry_id,))
        return Folded("unsupported", update_id)
    intake = Intake(cursor, max_jobs, now)
    intake.take(
        message,
        epoch,
        update_id,
        until,
        overtaken=True,
        received_at=received_at,
        late=status == "failed",
    )
    intake.end()
    cursor.execute(FOLDED, (entry_id,))
    return Folded("folded", update_id, intake.jobs, intake.migrated, intake.evicted)


def fail(cursor: sqlite3.Cursor, entry_id: int, reason: str) -> int | None:
    """It cannot be folded; why.  The update's id, or None: folded meanwhile, it stays so, or it is gone."""
    rows = cursor.execute(FAILED, (reason, entry_id)).fetchall()
    return rows[0][0] if rows else None


def pending(cursor: sqlite3.Cursor, after: Place, limit: int) -> list[Pending]:
    """Entries that wait, in the order of folding, strictly behind ``after``."""
    rows = cursor.execute(PENDING, (after.received_at, after.entry_id, limit))
    return [Pending(Place(received_at, entry_id), accepted_at) for received_at, entry_id, accepted_at in rows]


def counts(cursor: sqlite3.Cursor) -> JournalCounts:
    """The journal in numbers; what it costs grows with what waits, not with what is kept."""
    (waiting,) = cursor.execute(COUNT_PENDING).fetchone()
    failed, newest_failed = cursor.execute(COUNT_FAILED).fetchone()
    oldest = pending(cursor, BEGINNING, 1)
    return JournalCounts(waiting, failed, oldest[0].accepted_at if oldest else None, newest_failed)


def late(cursor: sqlite3.Cursor, accepted_until: int) -> Late:
    """Entries that wait since then or longer."""
    return Late(*cursor.execute(LATE, (accepted_until,)).fetchone())


# -- the mode ------------------------------------------------------------------------------------------

SET_WEBHOOK_MODE = """
    UPDATE gateway SET mode = 'webhook', webhook_secret = COALESCE(webhook_secret, ?) WHERE id = 1
"""
WEBHOOK_SECRET = "SELECT webhook_secret FROM gateway WHERE id = 1"


def enter_webhook_mode(cursor: sqlite3.Cursor, fresh_secret: str) -> str:
    """
    From now on updates may be pushed: a later poll has to know.

    :param fresh_secret: for a database that has none.
    :returns: the ``secret_token`` of our webhook.
    """
    cursor.execute(SET_WEBHOOK_MODE, (fresh_secret,))
    secret: str = cursor.execute(WEBHOOK_SECRET).fetchone()[0]
    return secret


# -- the port ------------------------------------------------------------------------------------------


@frozen
class SqlJournal:
    """Implements ``ports.Journal``."""

    database: Transactions
    now: Now
    retention: int = 7 * 86_400
    """Seconds (``--journal-retention``)."""
    accept_seconds: float = 5.0
    """How long an acceptance may wait before it begins."""

    def accept(self, update_id: int, body: bytes) -> Deferred[Accepted]:
        return self.database.write(
            accept, update_id, body, floor(self.now()), urgent=True, begin_within=self.accept_seconds
        )

    def fail(self, entry_id: int, reason: str) -> Deferred[int | None]:
        return self.database.write(fail, entry_id, reason)

    def pending(self, after: Place = BEGINNING, limit: int = 100) -> Deferred[list[Pending]]:
        return self.database.read(pending, after, limit, pool="workers")

    def counts(self) -> Deferred[JournalCounts]:
        return self.database.read(counts)

    def late(self, accepted_until: int) -> Deferred[Late]:
        return self.database.read(late, accepted_until, pool="workers")

    async def let_go(self) -> int:
        """In portions, each a transaction of its own, so that no one waits long for the writer."""
        now = floor(self.now())
        bodies_before = now - self.retention
        entries_before = min(bodies_before, now - IDENTITY_SECONDS)
        reached, finished = 0, False
        while not finished:
            portion = await self.database.write(let_go, reached, bodies_before, entries_before, now)
            reached, finished = portion.reached, portion.finished
        evicted = 0
        while count := await self.database.write(evict_failed):
            evicted += count
        return evicted
