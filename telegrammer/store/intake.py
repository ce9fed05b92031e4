"""
One update becomes jobs, an observation and moves of subscriptions: the same for whoever brings it (contract
5.2, 5.5, 8).
"""

from __future__ import annotations

import sqlite3

from attrs import define, field

from telegrammer.core.observations import observation_of
from telegrammer.core.problems import CapacityReached
from telegrammer.core.telegram import Message
from telegrammer.store.lanes import drop_drained
from telegrammer.store.subscriptions import move_chat
from telegrammer.store.turns import DEAD_IN_ALL, EVICT
from telegrammer.store.usernames import observe, observe_late

EVERYBODY = 2**63 - 1
"""As the highest id of a subscription: all there are."""

# Whose a message of the chat is.  Also theirs who were moved on from it by a younger update: the chats of a
# group are pushed side by side, so what the old one held may come after the move.
OWED = """
    (chat_id = :chat_id AND retired = 0
        OR moved_from = :chat_id AND retired = 0 AND (moved_epoch, moved_by) > (:epoch, :update_id))
    AND id <= :until
"""
ANYBODY = f"SELECT 1 FROM subscriptions WHERE {OWED} LIMIT 1"
# The same body as before, should the row be there: uniqueness is the last defence against a doubled job.
PAYLOAD = """
    INSERT INTO payloads(epoch, update_id, body, refs) VALUES (?, ?, ?, 0)
    ON CONFLICT(epoch, update_id) DO UPDATE SET refs = refs RETURNING id
"""
JOBS = f"""
    INSERT INTO deliveries(
        subscription_id, key_id, epoch, update_id, payload_id, next_attempt_at, created_at)
    SELECT id, key_id, :epoch, :update_id, :payload_id, :now, :now FROM subscriptions WHERE {OWED}
    ON CONFLICT(subscription_id, epoch, update_id) DO NOTHING
"""
REFER = "UPDATE payloads SET refs = refs + ? WHERE id = ?"
DROP_UNUSED = "DELETE FROM payloads WHERE id = ? AND refs <= 0"
# Lanes that were empty.  turn stays: their place among the others is the one they had.  An empty lane with
# failures lost its last job to a spent budget, at waits_since: the back-off runs from there (contract 6),
# min(300 s, 2^F) as in core.retry.carried_wait.
WAKE = f"""
    UPDATE lanes SET
        head_id = (SELECT id FROM deliveries WHERE subscription_id = lanes.subscription_id
                   AND epoch = :epoch AND update_id = :update_id),
        next_due = CASE WHEN fails > 0
            THEN MAX(:now, MIN(:now, waits_since) + MIN(300, 1 << MIN(fails, 9))) ELSE :now END,
        waits_since = :now
    WHERE head_id IS NULL AND subscription_id IN (
        SELECT id FROM subscriptions WHERE {OWED})
"""
# Lanes whose head is a younger update: updates that are pushed overtake one another.  The lane's wait stays
# what it is; when a job of it is in flight, the older one goes after that.
LEAD = f"""
    UPDATE lanes SET
        head_id = (SELECT id FROM deliveries WHERE subscription_id = lanes.subscription_id
                   AND epoch = :epoch AND update_id = :update_id)
    WHERE head_id IS NOT NULL AND subscription_id IN (
            SELECT id FROM subscriptions WHERE {OWED})
        AND EXISTS (SELECT 1 FROM deliveries head WHERE head.id = lanes.head_id
                    AND (head.epoch, head.update_id) > (:epoch, :update_id))
"""
ALL_JOBS = "SELECT COUNT(*) FROM deliveries"


def lane_values(epoch: int, update_id: int, now: int, chat_id: int, until: int = EVERYBODY) -> dict[str, int]:
    """The parameters of ``WAKE`` and ``LEAD``, and with ``payload_id`` of ``JOBS``."""
    return {"epoch": epoch, "update_id": update_id, "now": now, "chat_id": chat_id, "until": until}


@define(eq=False)
class Intake:
    """
    Takes updates in, one after the other, in one transaction; `end` belongs to it.

    :param now: whole Unix seconds.
    """

    cursor: sqlite3.Cursor
    max_jobs: int
    now: int
    jobs: int = field(default=0, init=False)
    migrated: int = field(default=0, init=False)
    evicted: int = field(default=0, init=False)
    _room: int = field(init=False)
    _awake: set[int] = field(factory=set, init=False)
    """Chats whose empty lanes have got their head: what follows in this batch queues behind it."""

    def __attrs_post_init__(self) -> None:
        self._room = self.max_jobs - int(self.cursor.execute(ALL_JOBS).fetchone()[0])

    def take(
        self,
        message: Message,
        epoch: int,
        update_id: int,
        until: int = EVERYBODY,
        *,
        overtaken: bool = False,
        received_at: int | None = None,
        late: bool = False,
    ) -> None:
        """
        Take one message in.

        :param until: the highest id of a subscription when it was received: later ones get no job.
        :param overtaken: younger ones may have been taken in before it.
        :param received_at: when it was received, in Unix seconds; None: now.
        :param late: its turn has been missed: it teaches of usernames only what nothing newer has.
        :raises CapacityReached: with it there would be more than ``max_jobs``, dead ones included.
        """
        observed = observation_of(message)
        if observed is not None:
            seen_at = self.now if received_at is None else received_at
            (observe_late if late else observe)(self.cursor, observed, seen_at)
        chat_id = message.chat_id
        if message.migrate_from_chat_id is not None:
            self._move(message.migrate_from_chat_id, chat_id, epoch, update_id)
        values = lane_values(epoch, update_id, self.now, chat_id, until)
        if self._queue(message, values):
            if overtaken:
                self.cursor.execute(LEAD, values)
            if chat_id not in self._awake:
                self._awake.add(chat_id)
                self.cursor.execute(WAKE, values)
        if message.migrate_to_chat_id is not None:
            self._move(chat_id, message.migrate_to_chat_id, epoch, update_id)

    def end(self) -> None:
        """When the last has been taken in."""
        if self.evicted:
            drop_drained(self.cursor)

    def _queue(self, message: Message, values: dict[str, int]) -> int:
        """One job for each subscription that the message is owed to; how many."""
        if self.cursor.execute(ANYBODY, values).fetchone() is None:
            return 0
        payload = (values["epoch"], values["update_id"], message.text)
        payload_id = self.cursor.execute(PAYLOAD, payload).fetchall()[0][0]
        made = self.cursor.execute(JOBS, {**values, "payload_id": payload_id}).rowcount
        if not made:
            self.cursor.execute(DROP_UNUSED, (payload_id,))
            return 0
        self.cursor.execute(REFER, (made, payload_id))
        self.jobs += made
        if made == self.jobs > self._room:
            evicted = self._evict_for(made)
            self.evicted += evicted
            self._room += evicted
        if self.jobs > self._room:
            raise CapacityReached("the batch does not fit the queue")
        return made

    def _evict_for(self, made: int) -> int:
        """
        Delete the oldest dead that would keep a message's jobs out for good; how many.

        The dead have a quarter of the queue, so this is about one message that takes more than the rest:
        when all that is pending has left, the dead must not be what still stops ingestion (contract 6).
        """
        excess = self.cursor.execute(DEAD_IN_ALL).fetchone()[0] + made - self.max_jobs
        if made > self.max_jobs or excess <= 0:
            return 0
        return self.cursor.execute(EVICT, (excess,)).rowcount

    def _move(self, old: int, new: int, epoch: int, update_id: int) -> None:
        moved = move_chat(self.cursor, old, new, epoch, update_id)
        if moved:
            # Lanes have come that may be empty.
            self._awake.discard(new)
            self.migrated += moved
