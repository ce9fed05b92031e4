"""The hot statements search: none of them walks a table or sorts (contract 5.2)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.journal import BEGINNING
from telegrammer.store import ingestion, intake, journal, journal_keeping, keys, subscriptions, usernames
from telegrammer.store.engine import immediate
from tests.support.inline_database import InlineDatabase
from tests.support.plans import costly_steps, plan_of

HOT = {
    "owner of a key": keys.OWNER,
    "delete a key": keys.DELETE,
    "chat of a username": usernames.CHAT,
    "confirm": usernames.CONFIRM,
    "forget a chat": usernames.FORGET_CHAT,
    "forget a name": usernames.FORGET_NAME,
    "equal subscription": subscriptions.EQUAL,
    "of the owner": subscriptions.OF_OWNER,
    "listing": subscriptions.LISTING,
    "remove": subscriptions.DELETE,
    "of the chat": subscriptions.OF_CHAT,
    "drained": subscriptions.DELETE_DRAINED,
    "cursor": ingestion.CURSOR,
    "anybody": intake.ANYBODY,
    "payload": intake.PAYLOAD,
    "jobs": intake.JOBS,
    "refer": intake.REFER,
    "unused": intake.DROP_UNUSED,
    "wake": intake.WAKE,
    "lead": intake.LEAD,
    "marks": ingestion.DROP_PASSED_MARKS,
    "known": ingestion.KNOWN.replace("SELECT value FROM json_each(?)", "?"),
    "newer": usernames.NEWER,
    "standing": journal.STANDING,
    "there": journal.THERE,
    "enter": journal.ENTER,
    "accepted": journal.ACCEPTED,
    "put aside": journal.QUARANTINE,
    "pending": journal.PENDING,
    "entry": journal.ENTRY,
    "folded": journal.FOLDED,
    "failed": journal.FAILED,
    "leaving": journal_keeping.LEAVING,
}
COLUMNS = "(received_at, accepted_at, epoch, update_id, subscriptions_until, parse_status, body)"
ENTRIES = """
    WITH RECURSIVE entry(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM entry WHERE n < :entries)
    SELECT n / 100, n / 100, 0, n, 0,
        CASE WHEN n > :entries - :pending THEN 'pending' WHEN n <= :failed THEN 'failed' ELSE 'folded' END,
        CASE WHEN n > :entries - :pending THEN CAST('{"update_id":1}' AS BLOB) END
    FROM entry
"""
SPELLED_OUT = """
    SELECT received_at, id, accepted_at FROM journal
    WHERE parse_status = 'pending' AND (received_at > ? OR received_at = ? AND id > ?)
    ORDER BY received_at, id LIMIT ?
"""
"""The same as ``journal.PENDING``, without a row value."""


class PlanTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.database = InlineDatabase()
        self.addCleanup(self.database.close)

    def test_hot_statements_only_search(self) -> None:
        for name, statement in HOT.items():
            self.assertEqual(costly_steps(self.database.connection, statement), [], name)

    def test_jobs_are_selected_by_their_chat(self) -> None:
        steps = plan_of(self.database.connection, intake.JOBS)
        self.assertTrue(any("subscriptions_chat (chat_id=?)" in step for step in steps), steps)

    def test_what_is_pending_is_searched_by_the_row_value(self) -> None:
        [step] = plan_of(self.database.connection, journal.PENDING)
        self.assertRegex(step, r"\ASEARCH journal USING INDEX journal_pending \(.*received_at.*>")

    def test_spelled_out_it_would_be_a_scan(self) -> None:
        """Which is the reason for the row value: a pass would begin anew with each portion."""
        [step] = plan_of(self.database.connection, SPELLED_OUT)
        self.assertTrue(step.startswith("SCAN journal"), step)

    def test_pending_ones_are_counted_in_their_index(self) -> None:
        for statement in (journal.COUNT_PENDING, journal.COUNT_FAILED):
            [step] = plan_of(self.database.connection, statement)
            # Not told covering, but no column of the table is read.
            self.assertRegex(step, r"INDEX journal_(pending|failed)")

    def test_the_same_after_analyze(self) -> None:
        self.database.connection.execute(
            f"INSERT INTO journal{COLUMNS} {ENTRIES}", {"entries": 2000, "pending": 5, "failed": 7}
        )
        self.database.connection.execute("ANALYZE")
        self.test_hot_statements_only_search()
        self.test_what_is_pending_is_searched_by_the_row_value()
        self.test_pending_ones_are_counted_in_their_index()


class CostTests(SynchronousTestCase):
    """What a pass costs, in SQLite's own steps: of what is kept it sees nothing."""

    def setUp(self) -> None:
        self.database = InlineDatabase()
        self.addCleanup(self.database.close)

    def fill(self, folded: int, failed: int) -> None:
        """So many entries, of which the last one is pending."""
        values = {"entries": folded + failed + 1, "pending": 1, "failed": failed}
        self.database.connection.execute(f"INSERT INTO journal{COLUMNS} {ENTRIES}", values)

    def steps(self, work: Callable[[sqlite3.Cursor], object]) -> int:
        """Instructions of SQLite's machine, in tens."""
        counted = 0

        def count() -> None:
            nonlocal counted
            counted += 1

        connection = self.database.connection
        connection.set_progress_handler(count, 10)
        try:
            with immediate(connection) as cursor:
                work(cursor)
        finally:
            connection.set_progress_handler(None, 0)
        return counted

    def one_pass(self, cursor: sqlite3.Cursor) -> None:
        journal.counts(cursor)
        [waiting] = journal.pending(cursor, BEGINNING, 100)
        journal.fold(cursor, waiting.place.entry_id, 1000, 10)
        self.assertEqual(journal.pending(cursor, waiting.place, 100), [])

    def test_a_million_folded_entries_cost_a_pass_nothing(self) -> None:
        self.fill(0, 0)
        few = self.steps(self.one_pass)
        self.database.connection.execute("DELETE FROM journal")
        self.fill(1_000_000, 0)
        many = self.steps(self.one_pass)
        self.assertGreater(few, 5)
        self.assertLessEqual(many, few + 5)

    def test_nor_do_others_of_the_same_second(self) -> None:
        """A burst is folded in a time that grows with it, and no faster."""

        def fold_all(cursor: sqlite3.Cursor) -> None:
            place = BEGINNING
            while waiting := journal.pending(cursor, place, 100):
                for each in waiting:
                    journal.fold(cursor, each.place.entry_id, 1000, 10)
                place = waiting[-1].place

        costs = []
        for burst in (300, 3000):
            with immediate(self.database.connection) as cursor:
                for _ in range(burst):
                    number = cursor.execute("SELECT COALESCE(MAX(id), 0) FROM journal").fetchone()[0]
                    journal.accept(cursor, number, b'{"update_id":1}', 10)
            costs.append(self.steps(fold_all))
        self.assertLess(costs[1], 15 * costs[0])

    def test_nor_an_acceptance(self) -> None:
        def accept(cursor: sqlite3.Cursor) -> None:
            self.assertFalse(journal.accept(cursor, 10**7, b"{}", 10).is_repeat)
            self.assertTrue(journal.accept(cursor, 10**7, b"{}", 10).is_repeat)

        few = self.steps(accept)
        self.database.connection.execute("DELETE FROM journal")
        self.fill(100_000, 1000)
        self.assertLessEqual(self.steps(accept), few + 5)
