"""A database of version 1, with work under way, becomes one of version 2 (contract 4, 8)."""

from __future__ import annotations

import fcntl
import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.ingestion import Cursor
from telegrammer.core.journal import QUIET_BEFORE_RESTART, JournalCounts
from telegrammer.core.keys import digest
from telegrammer.core.problems import LockHeld
from telegrammer.store import journal, keys
from telegrammer.store.engine import connect, immediate, snapshot
from telegrammer.store.ingestion import read_cursor
from telegrammer.store.layout import Ours, recognise
from telegrammer.store.migrate import backups
from telegrammer.store.migrations import MIGRATIONS
from telegrammer.store.opening import Opened, connect_for_command, open_state
from telegrammer.store.recovery import violations
from tests.support.directories import temporary_directory
from tests.support.pushed import group, messages

NOW = 1_793_000_000
DIGEST = "5339ea689ca11e1c827e2793a3e3f3efdf574bb26c80506dd0533e3532146425"
WORK_UNDER_WAY = (
    "UPDATE gateway SET bot_id = 42, next_offset = 5003, epoch = 1, turn = 9",
    "INSERT INTO skip_marks VALUES (5004, 5)",
    "INSERT INTO keys(name, digest, created_at) VALUES ('owner', ?, 1)",
    "INSERT INTO subscriptions VALUES (1, 1, 5, 'http://a/', 1, 0), (2, 1, 5, 'http://b/', 1, 0)",
    "INSERT INTO subscriptions VALUES (4, 1, 6, 'http://a/', 1, 1)",
    f"INSERT INTO usernames VALUES (7, 'alice', {NOW - 100})",
    "INSERT INTO payloads VALUES (1, 1, 5000, '{\"n\":0}', 2), (2, 1, 5001, '{\"n\":1}', 3)",
    f"""
    INSERT INTO deliveries(subscription_id, key_id, epoch, update_id, payload_id, state, attempt_count,
        first_attempt_at, next_attempt_at, created_at, died_at, last_error) VALUES
    (1, 1, 1, 5000, 1, 'IN_FLIGHT', 2, {NOW - 60}, {NOW - 50}, {NOW - 90}, NULL, 'HTTP 503'),
    (1, 1, 1, 5001, 2, 'PENDING', 0, NULL, {NOW - 80}, {NOW - 80}, NULL, NULL),
    (2, 1, 1, 5000, 1, 'DEAD', 8, {NOW - 90}, {NOW - 70}, {NOW - 90}, {NOW - 65}, 'HTTP 404'),
    (2, 1, 1, 5001, 2, 'PENDING', 3, {NOW - 60}, {NOW + 30}, {NOW - 80}, NULL, 'timeout after 10 s'),
    (4, 1, 1, 5001, 2, 'PENDING', 0, NULL, {NOW - 80}, {NOW - 80}, NULL, NULL)
    """,
    f"""
    INSERT INTO lanes VALUES (1, 1, NULL, {NOW - 50}, 7, 0, 2), (2, 4, {NOW + 30}, {NOW - 2}, 8, 1, 3),
        (4, 5, {NOW - 80}, {NOW - 80}, 9, 0, 0)
    """,
)


class VersionOneTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.path = temporary_directory(self) / "a.db"
        self.path.touch(0o600)
        with closing(connect(self.path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            for statement in MIGRATIONS[0]:
                connection.execute(statement)
            for statement in WORK_UNDER_WAY:
                connection.execute(statement, (digest("key"),) if "?" in statement else ())
            connection.execute("PRAGMA user_version=1")
            self.assertEqual(violations(connection.cursor()), [])
            self.before = self.content(connection)

    def content(self, connection: sqlite3.Connection) -> dict[str, list[object]]:
        """The rows of version 1's tables, and of those that have grown since its columns."""
        tables = "skip_marks", "keys", "usernames", "payloads", "deliveries", "lanes"
        found = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
        gateway = connection.execute("SELECT id, bot_id, next_offset, epoch, turn FROM gateway")
        subscriptions = connection.execute(
            "SELECT id, key_id, chat_id, callback_url, created_at, retired FROM subscriptions"
        )
        return {**found, "gateway": gateway.fetchall(), "subscriptions": subscriptions.fetchall()}

    def open(self, secret: str | None = None) -> Opened:
        return open_state(self.path, bot_digits=42, now=lambda: NOW + 0.75, fresh_secret=secret)

    def test_this_is_what_version_1_was(self) -> None:
        """Databases of that version exist: what made them is not changed."""
        made = hashlib.sha256("".join(MIGRATIONS[0]).encode()).hexdigest()
        self.assertEqual(made, DIGEST)

    def test_a_backup_is_made_first(self) -> None:
        opened = self.open()
        backup = self.path.with_name("a.db.backup-v1-20261026-073320")
        self.assertEqual((opened.migrated_from, opened.backup), (1, backup))
        self.assertEqual(backups(self.path), [backup])
        self.assertEqual(backup.stat().st_mode & 0o777, 0o600)
        self.assertEqual((recognise(backup), recognise(self.path)), (Ours(1, 42), Ours(2, 42)))
        with closing(connect(backup)) as connection:
            self.assertEqual(self.content(connection), self.before)

    def test_nothing_of_it_is_lost(self) -> None:
        connection = connect_for_command(self.path, create=False, now=lambda: NOW)
        with closing(connection):
            self.assertEqual(self.content(connection), self.before)
            self.assertEqual(connection.execute("PRAGMA foreign_key_check").fetchall(), [])
            with snapshot(connection) as cursor:
                self.assertEqual(keys.owner_of(cursor, digest("key")), 1)
                self.assertEqual(read_cursor(cursor), Cursor(5003, 1))
                self.assertEqual(journal.counts(cursor), JournalCounts())

    def test_what_was_in_flight_goes_again(self) -> None:
        self.assertEqual(self.open().recovered.requeued, 1)
        with closing(connect(self.path)) as connection:
            self.assertEqual(violations(connection.cursor()), [])
            states = connection.execute("SELECT state, attempt_count FROM deliveries ORDER BY id").fetchall()
            expected = [("PENDING", 2), ("PENDING", 0), ("DEAD", 8), ("PENDING", 3), ("PENDING", 0)]
            self.assertEqual(states, expected)

    def test_it_polls_on_where_it_was(self) -> None:
        self.assertIsNone(self.open().webhook_secret)
        with closing(connect(self.path)) as connection:
            self.assertEqual(read_cursor(connection.cursor()), Cursor(5003, 1))

    def test_or_takes_what_is_pushed_from_there(self) -> None:
        self.assertEqual(self.open("fresh").webhook_secret, "fresh")
        with closing(connect(self.path)) as connection, immediate(connection) as cursor:
            self.assertEqual(read_cursor(cursor), Cursor(5003, 1, from_head=True))
            self.assertTrue(journal.accept(cursor, 5002, group(5002, 5), NOW).is_repeat)
            accepted = journal.accept(cursor, 5003, group(5003, 5), NOW)
            assert accepted.entry_id is not None
            self.assertEqual(journal.fold(cursor, accepted.entry_id, 1000, NOW).jobs, 2)
            self.assertEqual(violations(cursor), [])
            owed = [job[:3] for job in messages(connection) if job[2] == 5003]
            self.assertEqual(owed, [(1, 1, 5003), (2, 1, 5003)])

    def test_ids_that_restart_after_it_are_no_repeats(self) -> None:
        """The last update that can be told of counts, or they would be repeats for ever."""
        self.open("fresh")
        for later, is_repeat in ((QUIET_BEFORE_RESTART - 101, True), (QUIET_BEFORE_RESTART, False)):
            with closing(connect(self.path)) as connection, immediate(connection) as cursor:
                accepted = journal.accept(cursor, 17, group(17, 5), NOW + later)
                self.assertEqual((accepted.is_repeat, accepted.restarted), (is_repeat, not is_repeat))

    def test_nor_where_nothing_tells_of_one(self) -> None:
        with closing(connect(self.path)) as connection:
            for table in ("usernames", "deliveries"):
                connection.execute(f"DELETE FROM {table}")
            connection.execute("UPDATE lanes SET head_id = NULL, next_due = NULL")
        self.open("fresh")
        with closing(connect(self.path)) as connection, immediate(connection) as cursor:
            self.assertTrue(journal.accept(cursor, 17, group(17, 5), NOW).restarted)

    def test_a_command_waits_for_the_daemon_that_holds_it(self) -> None:
        with Path(f"{self.path}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            waited: list[float] = []
            with self.assertRaises(LockHeld):
                connect_for_command(self.path, create=False, pause=waited.append)
        self.assertEqual(recognise(self.path), Ours(1, 42))
        self.assertGreater(sum(waited), 1)
