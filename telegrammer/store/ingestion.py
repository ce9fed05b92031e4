"""A batch of updates becomes jobs, observations and a cursor, in one transaction (contract 5.2 to 5.5)."""

from __future__ import annotations

import json
import sqlite3

from attrs import frozen
from twisted.internet.defer import Deferred

from telegrammer.core.folding import Folded
from telegrammer.core.ingestion import Cursor, Ingested, plan
from telegrammer.core.journal import restarts_ids
from telegrammer.core.problems import InvalidRequest, WrongBot
from telegrammer.core.telegram import Batch
from telegrammer.core.updates import HIGHEST_UPDATE_ID
from telegrammer.ports import Now
from telegrammer.store.engine import Transactions
from telegrammer.store.intake import Intake
from telegrammer.store.journal import fold, quarantine_update

BINDING = "SELECT bot_id FROM gateway WHERE id = 1"
BIND = "UPDATE gateway SET bot_id = ? WHERE id = 1"
CURSOR = "SELECT next_offset, epoch, mode = 'webhook' FROM gateway WHERE id = 1"
# What was seen of another epoch says nothing of this one.
SET_CURSOR = """
    UPDATE gateway SET next_offset = :next_offset, mode = 'poll', accepted_at = COALESCE(:now, accepted_at),
        highest_seen = CASE WHEN epoch = :epoch THEN highest_seen END, epoch = :epoch
    WHERE id = 1
"""

MARKS = "SELECT update_id FROM skip_marks"
MARK = "INSERT INTO skip_marks(update_id, created_at) VALUES (?, ?) ON CONFLICT(update_id) DO NOTHING"
DROP_PASSED_MARKS = "DELETE FROM skip_marks WHERE update_id < ?"
DROP_MARKS = "DELETE FROM skip_marks"

KNOWN = """
    SELECT update_id FROM journal WHERE epoch = ? AND update_id IN (SELECT value FROM json_each(?))
"""
SEEN_BEFORE = "SELECT highest_seen, accepted_at FROM gateway WHERE id = 1"
"""The highest id that was pushed in this epoch, and the clock at the last update."""


def binding(cursor: sqlite3.Cursor) -> int | None:
    """The id of the bot this database belongs to, or None."""
    bot_id: int | None = cursor.execute(BINDING).fetchone()[0]
    return bot_id


def bind(cursor: sqlite3.Cursor, bot_id: int) -> None:
    """:raises WrongBot: the database belongs to another."""
    bound = binding(cursor)
    if bound is None:
        cursor.execute(BIND, (bot_id,))
    elif bound != bot_id:
        raise WrongBot(bound, bot_id)


def read_cursor(cursor: sqlite3.Cursor) -> Cursor:
    """The stored cursor."""
    next_offset, epoch, from_head = cursor.execute(CURSOR).fetchone()
    return Cursor(next_offset, epoch, bool(from_head))


def mark_skip(cursor: sqlite3.Cursor, update_id: int, now: float) -> None:
    """
    Have the next batch pass over this update, should it be malformed.

    :raises InvalidRequest: it is no update id, or has been dealt with; the message is for the operator.
    """
    if not 0 <= update_id <= HIGHEST_UPDATE_ID:
        raise InvalidRequest("an update id is between 0 and 2^63 - 1", "update_id")
    next_offset = read_cursor(cursor).next_offset
    if update_id < next_offset:
        raise InvalidRequest(
            f"update {update_id} lies below the cursor {next_offset}: it has been dealt with", "update_id"
        )
    cursor.execute(MARK, (update_id, int(now)))


def accept(
    cursor: sqlite3.Cursor, batch: Batch, max_jobs: int, now: int, quarantine: bool = False
) -> Ingested:
    """
    Write a polled batch.  When this raises, the caller's transaction (or savepoint) undoes all of it.

    :param quarantine: put malformed updates aside, as failed entries of the journal.
    :raises CapacityReached: with it there would be more than ``max_jobs``, dead ones included.
    :raises MalformedUpdate: an element is malformed, and neither marked to be skipped nor put aside.
    """
    before = read_cursor(cursor)
    highest, accepted_at = cursor.execute(SEEN_BEFORE).fetchone()
    marks = frozenset(update_id for (update_id,) in cursor.execute(MARKS))
    todo = plan(
        batch.elements,
        before,
        marks,
        journaled=_journaled(cursor, before.epoch, batch),
        quarantine=quarantine,
        restarted=_restarted(batch, max(highest or 0, before.next_offset - 1), accepted_at, now),
    )
    epoch = todo.cursor.epoch
    intake = Intake(cursor, max_jobs, now)
    for update in todo.updates:
        if update.message is not None:
            # After a change of the mode: what Telegram could not push may be older than what it could.
            overtaken = highest is not None and update.update_id < highest
            intake.take(update.message, epoch, update.update_id, overtaken=overtaken)
    quarantined = tuple(quarantine_update(cursor, each, epoch, now) for each in todo.quarantined)
    intake.end()
    if todo.cursor != before:
        moved = todo.cursor.next_offset != before.next_offset
        values = {"next_offset": todo.cursor.next_offset, "epoch": epoch, "now": now if moved else None}
        cursor.execute(SET_CURSOR, values)
    if todo.reset:
        # They name updates of a numbering that is over.
        cursor.execute(DROP_MARKS)
    elif marks:
        cursor.execute(DROP_PASSED_MARKS, (todo.cursor.next_offset,))
    return Ingested(
        cursor=todo.cursor,
        fresh=len(todo.updates) + len(todo.skipped) + len(todo.quarantined),
        replayed=todo.replayed,
        jobs=intake.jobs,
        migrated=intake.migrated,
        reset=todo.reset,
        skipped=todo.skipped,
        quarantined=quarantined,
        evicted=intake.evicted,
    )


def _restarted(batch: Batch, highest: int, accepted_at: int | None, now: int) -> bool:
    """
    Whether all of the batch tells that the ids were restarted since the last update.

    The cursor alone does not know: updates that were pushed have not moved it.
    """
    ids = _ids(batch)
    quiet = None if accepted_at is None else now - accepted_at
    return bool(ids) and restarts_ids(max(ids), highest, quiet)


def _journaled(cursor: sqlite3.Cursor, epoch: int, batch: Batch) -> frozenset[int]:
    """Those of the ids that came by webhook before (contract 8)."""
    return frozenset(row[0] for row in cursor.execute(KNOWN, (epoch, json.dumps(_ids(batch)))))


def _ids(batch: Batch) -> list[int]:
    return [each.update_id for each in batch.elements if each.update_id is not None]


@frozen
class SqlIngestion:
    """Implements ``ports.Ingestion``."""

    database: Transactions
    max_jobs: int
    now: Now
    quarantine: bool = False
    """``--on-malformed quarantine``."""
    fold_seconds: float = 10.0
    """``--fold-timeout``."""

    def bind(self, bot_id: int) -> Deferred[None]:
        return self.database.write(bind, bot_id)

    def cursor(self) -> Deferred[Cursor]:
        return self.database.read(read_cursor, pool="workers")

    def accept(self, batch: Batch) -> Deferred[Ingested]:
        return self.database.write(accept, batch, self.max_jobs, int(self.now()), self.quarantine)

    def fold(self, entry_id: int) -> Deferred[Folded]:
        return self.database.write(
            fold, entry_id, self.max_jobs, int(self.now()), begin_within=self.fold_seconds
        )
