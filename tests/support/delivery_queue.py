"""A delivery queue in memory, as ingestion fills it, for tests of what becomes of the jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from attrs import define, field

from telegrammer.core.delivery import Claimed, Finished, Slots, Turn, Verdict
from telegrammer.core.telegram import Message
from telegrammer.store import recovery
from telegrammer.store.intake import WAKE, Intake, lane_values
from telegrammer.store.turns import QueueRules, take_turn
from tests.support.inline_database import InlineDatabase

BOT = 123456789
PLENTY = 1000
PLENTY_OF_JOBS = 10**6


@define(eq=False)
class DeliveryQueue:
    """``now`` is the wall clock, in whole seconds; a test sets it forward."""

    database: InlineDatabase = field(factory=InlineDatabase)
    now: int = 1_000_000
    rules: QueueRules = QueueRules(attempts=3)
    last_update: int = 0

    def __attrs_post_init__(self) -> None:
        self.execute("UPDATE gateway SET bot_id = ?", BOT)
        for name in ("one", "two"):
            self.execute(
                "INSERT INTO keys(name, digest, created_at) VALUES (?, ?, 0)",
                name,
                name.encode().ljust(32),
            )

    @property
    def cursor(self) -> sqlite3.Cursor:
        return self.database.connection.cursor()

    def execute(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        return self.database.connection.execute(sql, values).fetchall()

    def number(self, sql: str, *values: object) -> int:
        """The one value of a statement that gives an integer."""
        value = self.execute(sql, *values)[0][0]
        assert isinstance(value, int)
        return value

    def subscribe(self, chat_id: int = 1, key_id: int = 1, url: str | None = None) -> int:
        """A new subscription's id; without a URL it gets one of its own."""
        cursor = self.cursor
        cursor.execute(
            "INSERT INTO subscriptions(key_id, chat_id, callback_url, created_at) VALUES (?, ?, ?, ?)",
            (key_id, chat_id, url or "", self.now),
        )
        subscription_id = cursor.lastrowid
        assert subscription_id is not None
        if url is None:
            self.execute(
                "UPDATE subscriptions SET callback_url = 'http://h/' || id WHERE id = ?", subscription_id
            )
        self.execute("INSERT INTO lanes(subscription_id) VALUES (?)", subscription_id)
        return subscription_id

    def ingest(self, chat_id: int = 1, count: int = 1) -> list[int]:
        """New updates of the chat: their ids.  Empty lanes become due, as ``store.ingestion`` does it."""
        updates = []
        for _ in range(count):
            self.last_update += 1
            updates.append(self.last_update)
            cursor = self.cursor
            cursor.execute(
                "INSERT INTO payloads(epoch, update_id, body, refs) VALUES (0, ?, ?, 0)",
                (self.last_update, b'{"n":%d}' % self.last_update),
            )
            payload_id = cursor.lastrowid
            cursor.execute(
                """
                INSERT INTO deliveries(subscription_id, key_id, epoch, update_id, payload_id,
                    next_attempt_at, created_at)
                SELECT id, key_id, 0, ?, ?, ?, ? FROM subscriptions WHERE chat_id = ? AND retired = 0
                """,
                (self.last_update, payload_id, self.now, self.now, chat_id),
            )
            self.execute("UPDATE payloads SET refs = ? WHERE id = ?", cursor.rowcount, payload_id)
            self.execute("DELETE FROM payloads WHERE refs = 0")
            cursor.execute(WAKE, lane_values(0, self.last_update, self.now, chat_id))
        return updates

    def pass_over(self) -> int:
        """An update that comes later than the next ones do: its id."""
        self.last_update += 1
        return self.last_update

    def fold_late(self, update_id: int, chat_id: int = 1) -> int:
        """An update comes that others have overtaken, through the real intake; how many jobs it makes."""
        intake = Intake(self.cursor, PLENTY_OF_JOBS, self.now)
        intake.take(Message(chat_id, "group", b'{"n":%d}' % update_id), 0, update_id, overtaken=True)
        intake.end()
        return intake.jobs

    def turn(
        self,
        finished: Sequence[tuple[Claimed, Verdict]] = (),
        free: int = PLENTY,
        free_sick: int = PLENTY,
        run: int = 0,
    ) -> Turn:
        """One turn, committed."""
        results = [Finished(job, verdict) for job, verdict in finished]
        connection = self.database.connection
        connection.execute("BEGIN IMMEDIATE")
        turn = take_turn(connection.cursor(), results, Slots(free, free_sick, run), self.now, self.rules)
        connection.execute("COMMIT")
        return turn

    def claim(self, free: int = PLENTY) -> list[Claimed]:
        return list(self.turn(free=free).claimed)

    def finish(self, job: Claimed, verdict: Verdict) -> Turn:
        """Write one result and claim nothing."""
        return self.turn([(job, verdict)], free=0)

    def recover(self) -> recovery.Recovered:
        return recovery.recover(self.cursor, float(self.now))

    def violations(self) -> list[str]:
        return recovery.violations(self.cursor)

    def lane(self, subscription_id: int) -> tuple[object, ...]:
        """(update id of the head, next_due, sick, fails)."""
        return self.execute(
            """
            SELECT d.update_id, l.next_due, l.sick, l.fails
            FROM lanes l LEFT JOIN deliveries d ON d.id = l.head_id WHERE l.subscription_id = ?
            """,
            subscription_id,
        )[0]

    def states(self, subscription_id: int) -> dict[object, object]:
        """Update id → state."""
        rows = self.execute(
            "SELECT update_id, state FROM deliveries WHERE subscription_id = ? ORDER BY epoch, update_id",
            subscription_id,
        )
        return {row[0]: row[1] for row in rows}

    def id_of(self, subscription_id: int, update_id: int) -> int:
        return self.number(
            "SELECT id FROM deliveries WHERE subscription_id = ? AND update_id = ?",
            subscription_id,
            update_id,
        )

    def close(self) -> None:
        self.database.close()
