"""A batch of updates becomes jobs, observations and a cursor, in one transaction (contract 5.2 to 5.5)."""

from __future__ import annotations

import sqlite3

from attrs import frozen
from twisted.internet.defer import Deferred

from telegrammer.core.ingestion import Cursor, Ingested, plan
from telegrammer.core.observations import observation_of
from telegrammer.core.problems import CapacityReached, InvalidRequest, WrongBot
from telegrammer.core.telegram import Batch, Message
from telegrammer.core.updates import HIGHEST_UPDATE_ID
from telegrammer.ports import Now
from telegrammer.store.engine import Transactions
from telegrammer.store.lanes import drop_drained
from telegrammer.store.subscriptions import move_chat
from telegrammer.store.turns import DEAD_IN_ALL, EVICT
from telegrammer.store.usernames import observe

BINDING = "SELECT bot_id FROM gateway WHERE id = 1"
BIND = "UPDATE gateway SET bot_id = ? WHERE id = 1"
CURSOR = "SELECT next_offset, epoch FROM gateway WHERE id = 1"
SET_CURSOR = "UPDATE gateway SET next_offset = ?, epoch = ? WHERE id = 1"

MARKS = "SELECT update_id FROM skip_marks"
MARK = "INSERT INTO skip_marks(update_id, created_at) VALUES (?, ?) ON CONFLICT(update_id) DO NOTHING"
DROP_PASSED_MARKS = "DELETE FROM skip_marks WHERE update_id < ?"
DROP_MARKS = "DELETE FROM skip_marks"

ANYBODY = "SELECT 1 FROM subscriptions WHERE chat_id = ? AND retired = 0 LIMIT 1"
# The same body as before, should the row be there: uniqueness is the last defence against a doubled job.
PAYLOAD = """
    INSERT INTO payloads(epoch, update_id, body, refs) VALUES (?, ?, ?, 0)
    ON CONFLICT(epoch, update_id) DO UPDATE SET refs = refs RETURNING id
"""
JOBS = """
    INSERT INTO deliveries(
        subscription_id, key_id, epoch, update_id, payload_id, next_attempt_at, created_at)
    SELECT id, key_id, ?, ?, ?, ?, ? FROM subscriptions WHERE chat_id = ? AND retired = 0
    ON CONFLICT(subscription_id, epoch, update_id) DO NOTHING
"""
REFER = "UPDATE payloads SET refs = refs + ? WHERE id = ?"
DROP_UNUSED = "DELETE FROM payloads WHERE id = ? AND refs <= 0"
# Lanes that were empty.  turn stays: their place among the others is the one they had.  An empty lane with
# failures lost its last job to a spent budget, at waits_since: the back-off runs from there (contract 6),
# min(300 s, 2^F) as in core.retry.carried_wait.
WAKE = """
    UPDATE lanes SET
        head_id = (SELECT id FROM deliveries WHERE subscription_id = lanes.subscription_id
                   AND epoch = :epoch AND update_id = :update_id),
        next_due = CASE WHEN fails > 0
            THEN MAX(:now, MIN(:now, waits_since) + MIN(300, 1 << MIN(fails, 9))) ELSE :now END,
        waits_since = :now
    WHERE head_id IS NULL
      AND subscription_id IN (SELECT id FROM subscriptions WHERE chat_id = :chat_id AND retired = 0)
"""
ALL_JOBS = "SELECT COUNT(*) FROM deliveries"


def wake(epoch: int, update_id: int, now: int, chat_id: int) -> dict[str, int]:
    """The parameters of ``WAKE``."""
    return {"epoch": epoch, "update_id": update_id, "now": now, "chat_id": chat_id}


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
    return Cursor(*cursor.execute(CURSOR).fetchone())


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


def accept(cursor: sqlite3.Cursor, batch: Batch, max_jobs: int, now: int) -> Ingested:
    """
    Write a batch.  When this raises, the caller's transaction (or savepoint) undoes all of it.

    :raises CapacityReached: with it there would be more than ``max_jobs``, dead ones included.
    :raises MalformedUpdate: an element is malformed and not marked to be skipped.
    """
    before = read_cursor(cursor)
    marks = frozenset(update_id for (update_id,) in cursor.execute(MARKS))
    todo = plan(batch.elements, before, marks)
    jobs = migrated = evicted = 0
    room = max_jobs - int(cursor.execute(ALL_JOBS).fetchone()[0])
    # Chats whose empty lanes have got their head: what follows in this batch queues behind it.
    awake: set[int] = set()
    for update in todo.updates:
        message = update.message
        if message is None:
            continue
        observed = observation_of(message)
        if observed is not None:
            observe(cursor, observed, now)
        chat_id = message.chat_id
        if message.migrate_from_chat_id is not None:
            migrated += _move(cursor, message.migrate_from_chat_id, chat_id, awake)
        made = _queue(cursor, message, todo.cursor.epoch, update.update_id, now)
        if made:
            jobs += made
            if made == jobs > room:
                evicted = _evict_for(cursor, made, max_jobs)
                room += evicted
            if jobs > room:
                raise CapacityReached("the batch does not fit the queue")
            if chat_id not in awake:
                awake.add(chat_id)
                cursor.execute(WAKE, wake(todo.cursor.epoch, update.update_id, now, chat_id))
        if message.migrate_to_chat_id is not None:
            migrated += _move(cursor, chat_id, message.migrate_to_chat_id, awake)
    if evicted:
        drop_drained(cursor)
    if todo.cursor != before:
        cursor.execute(SET_CURSOR, (todo.cursor.next_offset, todo.cursor.epoch))
    if todo.reset:
        # They name updates of a numbering that is over.
        cursor.execute(DROP_MARKS)
    elif marks:
        cursor.execute(DROP_PASSED_MARKS, (todo.cursor.next_offset,))
    return Ingested(
        cursor=todo.cursor,
        fresh=len(todo.updates) + len(todo.skipped),
        replayed=todo.replayed,
        jobs=jobs,
        migrated=migrated,
        reset=todo.reset,
        skipped=todo.skipped,
        evicted=evicted,
    )


def _evict_for(cursor: sqlite3.Cursor, made: int, max_jobs: int) -> int:
    """
    Delete the oldest dead that would keep a message's jobs out for good; how many.

    The dead have a quarter of the queue, so this is about one message that takes more than the rest of it:
    when all that is pending has left, the dead must not be what still stops ingestion (contract 6).
    """
    excess = cursor.execute(DEAD_IN_ALL).fetchone()[0] + made - max_jobs
    return cursor.execute(EVICT, (excess,)).rowcount if made <= max_jobs and excess > 0 else 0


def _queue(cursor: sqlite3.Cursor, message: Message, epoch: int, update_id: int, now: int) -> int:
    """One job for each subscription of the message's chat; how many."""
    chat_id = message.chat_id
    if cursor.execute(ANYBODY, (chat_id,)).fetchone() is None:
        return 0
    payload_id = cursor.execute(PAYLOAD, (epoch, update_id, message.text)).fetchall()[0][0]
    made = cursor.execute(JOBS, (epoch, update_id, payload_id, now, now, chat_id)).rowcount
    if made:
        cursor.execute(REFER, (made, payload_id))
    else:
        cursor.execute(DROP_UNUSED, (payload_id,))
    return made


def _move(cursor: sqlite3.Cursor, old: int, new: int, awake: set[int]) -> int:
    moved = move_chat(cursor, old, new)
    if moved:
        # Lanes have come that may be empty.
        awake.discard(new)
    return moved


@frozen
class SqlIngestion:
    """Implements ``ports.Ingestion``."""

    database: Transactions
    max_jobs: int
    now: Now

    def bind(self, bot_id: int) -> Deferred[None]:
        return self.database.write(bind, bot_id)

    def cursor(self) -> Deferred[Cursor]:
        return self.database.read(read_cursor, pool="workers")

    def accept(self, batch: Batch) -> Deferred[Ingested]:
        return self.database.write(accept, batch, self.max_jobs, int(self.now()))
