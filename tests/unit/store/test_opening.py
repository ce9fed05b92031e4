"""Recognised, refused untouched, created, migrated with a backup (contract 1.3, 4)."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.keys import digest
from telegrammer.core.problems import LockHeld, MigrationRefused, StartRefused, UnknownSchema
from telegrammer.core.subscriptions import KeyRecord
from telegrammer.core.telegram import Batch
from telegrammer.store import ingestion, keys, layout, migrate, opening
from telegrammer.store.engine import connect, immediate, snapshot
from telegrammer.store.layout import Absent, Legacy, Ours, recognise
from telegrammer.store.lock import ProcessLock
from telegrammer.store.migrations import LATEST, MIGRATIONS
from telegrammer.store.opening import Opened, connect_for_command, open_state
from telegrammer.store.recovery import violations
from tests.support.directories import temporary_directory
from tests.support.queue_checks import add_key, subscribe, text

# The header and the list of tables more often than the rest.
PLACES = st.one_of(st.integers(0, 200), st.integers(0, 4096), st.integers(0, 2**17))
NOW = 1_793_000_000.75
OLD = "CREATE TABLE api_keys(name TEXT PRIMARY KEY, key TEXT NOT NULL, created_at INTEGER)"


class OpeningCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.path = temporary_directory(self) / "a.db"

    def open(self, bot_digits: int | None = 42) -> Opened:
        return open_state(self.path, bot_digits=bot_digits, now=lambda: NOW)

    def make(self, *statements: str | tuple[str, tuple[object, ...]]) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            for statement in statements:
                if isinstance(statement, str):
                    connection.execute(statement)
                else:
                    connection.execute(*statement)

    def files(self) -> dict[str, bytes]:
        """
        Every file of the directory and what is in it.

        Of ``-shm``, SQLite's shared memory, only that it is there: readers mark themselves in it.
        """
        return {
            path.name: b"" if path.name.endswith("-shm") else path.read_bytes()
            for path in self.path.parent.iterdir()
        }

    def refused(self, kind: type[StartRefused] = UnknownSchema, bot_digits: int | None = 42) -> str:
        """The one line of the refusal, which leaves every file as it was."""
        before, modes = self.files(), self.path.stat().st_mode
        with self.assertRaises(kind) as caught:
            self.open(bot_digits)
        self.assertEqual(self.files(), before)
        self.assertEqual(self.path.stat().st_mode, modes)
        self.assertNotIn("\n", str(caught.exception))
        return str(caught.exception)

    def crash(self) -> None:
        """Leave the files as a process that was killed leaves them."""
        copy = temporary_directory(self) / "crashed"
        shutil.copytree(self.path.parent, copy)
        self.path = copy / self.path.name


class NewTests(OpeningCase):
    def test_a_new_one(self) -> None:
        opened = self.open()
        self.assertEqual(opened, Opened(True, None, None, None, opened.recovered))
        self.assertEqual(recognise(self.path), Ours(LATEST, None))
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
        self.assertEqual(list(self.files()), ["a.db"])
        with closing(connect(self.path)) as connection:
            self.assertEqual(connection.execute("PRAGMA journal_mode").fetchone(), ("wal",))
            self.assertEqual(violations(connection.cursor()), [])

    def test_an_empty_file_is_a_new_one(self) -> None:
        self.path.touch(0o644)
        self.assertEqual(recognise(self.path), Absent(exists=True))
        self.assertTrue(self.open().created)
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)

    def test_a_database_without_tables_too(self) -> None:
        self.make("VACUUM")
        self.assertEqual(recognise(self.path), Absent(exists=True))
        self.assertTrue(self.open().created)

    def test_companions_are_private(self) -> None:
        old = os.umask(0)
        self.addCleanup(os.umask, old)
        self.open()
        with closing(connect(self.path)) as connection:
            add_key(connection, "a")
            for name in ("a.db-wal", "a.db-shm"):
                self.assertEqual(self.path.with_name(name).stat().st_mode & 0o777, 0o600, name)

    def test_the_directory_is_made(self) -> None:
        self.path = self.path.parent / "x" / "y" / "a.db"
        self.open()
        self.assertEqual(self.path.parent.stat().st_mode & 0o777, 0o700)

    def test_one_that_cannot_be_finished_is_not_left(self) -> None:
        self.patch(migrate, "MIGRATIONS", (MIGRATIONS[0], ("CREATE odd",)))
        self.assertRaises(StartRefused, self.open)
        self.assertEqual(self.files(), {})

    def test_one_that_cannot_be_made(self) -> None:
        self.patch(opening, "create_private", self._refuse)
        with self.assertRaises(StartRefused) as caught:
            self.open()
        self.assertIn("Read-only file system", str(caught.exception))

    def _refuse(self, path: Path) -> int:
        raise OSError(30, "Read-only file system", str(path))

    def test_a_second_time(self) -> None:
        self.open()
        opened = self.open()
        self.assertEqual((opened.created, opened.migrated_from), (False, None))


class OursTests(OpeningCase):
    def setUp(self) -> None:
        super().setUp()
        self.open()

    def bind(self, bot_id: int) -> None:
        self.make(("UPDATE gateway SET bot_id = ?", (bot_id,)))

    def test_bound_to_the_bot(self) -> None:
        self.bind(42)
        self.assertEqual(self.open(42).bot_id, 42)

    def test_another_bots_is_refused(self) -> None:
        self.bind(41)
        line = self.refused(StartRefused)
        self.assertIn("41", line)
        self.assertIn("42", line)

    def test_another_bots_is_refused_also_after_a_crash(self) -> None:
        """What was committed last is in the -wal file only."""
        with closing(connect(self.path)) as connection:
            connection.execute("UPDATE gateway SET bot_id = 41")
            self.crash()
        self.refused(StartRefused)

    def test_without_digits_nothing_is_compared(self) -> None:
        self.bind(41)
        self.assertEqual(self.open(None).bot_id, 41)

    def test_jobs_in_flight_may_go_again(self) -> None:
        with closing(connect(self.path)) as connection:
            subscribe(connection, add_key(connection, "a"), 5)
            with immediate(connection) as cursor:
                ingestion.accept(cursor, Batch((text(1, 5),)), 10, int(NOW))
                cursor.execute("UPDATE deliveries SET state = 'IN_FLIGHT', attempt_count = 1")
                cursor.execute("UPDATE lanes SET next_due = NULL")
        self.assertEqual(self.open().recovered.requeued, 1)

    def test_a_newer_version_is_refused(self) -> None:
        self.make(f"PRAGMA user_version={LATEST + 1}")
        self.assertIn(f"version {LATEST + 1}", self.refused())

    def test_an_older_version_is_migrated_with_a_backup(self) -> None:
        self.bind(42)
        for module in (layout, opening):
            self.patch(module, "LATEST", LATEST + 1)
        self.patch(migrate, "MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE later(x)",)))
        opened = self.open()
        backup = self.path.with_name(f"a.db.backup-v{LATEST}-20261026-073320")
        self.assertEqual((opened.migrated_from, opened.backup), (LATEST, backup))
        self.assertEqual(migrate.backups(self.path), [backup])
        self.assertEqual(migrate.backups(self.path.parent / "nowhere" / "a.db"), [])
        self.assertEqual(recognise(self.path), Ours(LATEST + 1, 42))
        self.assertEqual(recognise(backup), Ours(LATEST, 42))

    def test_a_migration_that_fails_is_undone_whole(self) -> None:
        for module in (layout, opening):
            self.patch(module, "LATEST", LATEST + 1)
        self.patch(migrate, "MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE later(x)", "CREATE odd")))
        self.assertRaises(StartRefused, self.open)
        self.assertEqual(recognise(self.path), Ours(LATEST, None))

    def test_one_that_is_locked_is_refused_in_time(self) -> None:
        self.patch(opening, "START_BUSY_MS", 20)
        with closing(connect(self.path)) as connection, immediate(connection):
            with self.assertRaises(StartRefused) as caught:
                self.open()
        self.assertIn("locked", str(caught.exception))

    def test_one_without_its_row_is_unknown(self) -> None:
        self.make("DELETE FROM gateway")
        self.refused()


class UnwritableTests(OpeningCase):
    def test_a_file_that_is_for_reading_only(self) -> None:
        self.open()
        self.patch(os, "access", lambda path, mode, effective_ids: mode != os.W_OK)
        self.assertEqual(self.refused(StartRefused), f"the database {self.path} cannot be written")

    def test_a_file_that_is_taken_away_meanwhile(self) -> None:
        self.open()
        self.patch(opening, "recognise", lambda path: Ours(LATEST, 42))
        self.path.unlink()
        self.assertIn("No such file", str(self.assertRaises(StartRefused, self.open)))


class StrangerTests(OpeningCase):
    def test_other_tables(self) -> None:
        for number, statements in enumerate(
            (
                ("CREATE TABLE t(x)",),
                ("CREATE TABLE api_keys(name, key)",),
                ("CREATE TABLE api_keys(name, key, created_at, more)",),
                (OLD, "CREATE TABLE t(x)"),
                (OLD, "CREATE VIEW v AS SELECT 1"),
                (OLD, "CREATE TRIGGER t AFTER INSERT ON api_keys BEGIN SELECT 1; END"),
                ("CREATE VIEW v AS SELECT 1",),
                (OLD, "PRAGMA user_version=1"),
                ("PRAGMA user_version=1",),
                ("PRAGMA user_version=-1",),
                ("PRAGMA journal_mode=WAL", "CREATE TABLE t(x)"),
            )
        ):
            self.path = self.path.with_name(f"{number}.db")
            self.make(*statements)
            self.refused()

    def test_no_database(self) -> None:
        for content in (
            b"x",
            b"SQLite format 3",
            b"SQLite format 3\x00",
            b"SQLite format 3\x00" + b"\xff" * 4096,
        ):
            self.path.write_bytes(content)
            self.refused()

    def test_a_directory(self) -> None:
        self.path.mkdir()
        self.assertRaises(UnknownSchema, self.open)

    def test_one_that_cannot_be_read(self) -> None:
        self.path.symlink_to(self.path.absolute())
        self.assertRaises(StartRefused, self.open)

    def test_one_in_use_by_another_program(self) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as theirs:
            theirs.execute("PRAGMA journal_mode=WAL")
            theirs.execute("CREATE TABLE t(x)")
            before = self.files()
            self.assertRaises(UnknownSchema, self.open)
            self.assertEqual(self.files(), before)

    def test_the_leavings_of_another_programs_crash(self) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as theirs:
            theirs.execute("PRAGMA journal_mode=WAL")
            theirs.execute("CREATE TABLE t(x)")
            self.crash()
        self.path.with_name("a.db-shm").unlink()
        self.refused()

    def test_a_hot_journal(self) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as theirs:
            theirs.execute("CREATE TABLE t(x)")
            theirs.execute("PRAGMA cache_size=1")
            theirs.execute("BEGIN")
            theirs.execute("DROP TABLE t")
            theirs.execute(OLD)
            theirs.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 999)"
                " INSERT INTO api_keys SELECT i, hex(zeroblob(100)), 0 FROM n"
            )
            self.crash()
        self.assertGreater(self.path.with_name("a.db-journal").stat().st_size, 0)
        self.refused()


class LinkTests(OpeningCase):
    """The file's companions lie beside the file, not beside a link to it."""

    def test_a_link_to_a_database_in_use(self) -> None:
        self.open()
        link = self.path.with_name("link.db")
        link.symlink_to(self.path)
        with closing(connect(self.path)) as connection:
            connection.execute("UPDATE gateway SET bot_id = 41")
            self.assertEqual(recognise(link), Ours(LATEST, 41))

    def test_a_link_to_nowhere_is_refused_and_stays(self) -> None:
        target = self.path.with_name("target.db")
        self.path.symlink_to(target)
        for look in (self.open, lambda: connect_for_command(self.path, create=True)):
            line = str(self.assertRaises(StartRefused, look))
            self.assertEqual(line, f"{self.path} is a link to a file that is not there")
        self.assertEqual(os.readlink(self.path), str(target))
        self.assertEqual(os.listdir(self.path.parent), ["a.db"])

    def test_what_came_there_meanwhile_is_not_removed(self) -> None:
        self.patch(opening, "recognise", lambda path: Absent(exists=False))
        self.path.write_bytes(b"precious")
        self.assertIn("File exists", str(self.assertRaises(StartRefused, self.open)))
        self.assertEqual(self.path.read_bytes(), b"precious")

    def test_one_lock_for_both_names(self) -> None:
        link = self.path.with_name("link.db")
        link.symlink_to(self.path)
        with ProcessLock(self.path):
            self.assertRaises(LockHeld, ProcessLock(link, lambda seconds: None).acquire)


class DamageTests(OpeningCase):
    @given(st.lists(st.tuples(PLACES, st.binary(min_size=1, max_size=8)), min_size=1, max_size=20))
    @settings(max_examples=60)
    def test_whatever_became_of_a_file_it_is_told_in_one_line(self, damage: list[tuple[int, bytes]]) -> None:
        for make in (self.open, lambda: self.make(OLD, "INSERT INTO api_keys VALUES ('a', 'k', 7)")):
            self.path.unlink(missing_ok=True)
            make()
            content = bytearray(self.path.read_bytes())
            for place, junk in damage:
                place %= len(content)
                content[place : place + len(junk)] = junk
            self.path.write_bytes(content)
            try:
                recognise(self.path)
            except StartRefused as refusal:
                self.assertNotIn("\n", str(refusal))
            self.assertEqual(self.path.read_bytes(), content)
            self.assertEqual(list(self.files()), ["a.db"])
            try:
                self.open()
            except StartRefused as refusal:
                self.assertNotIn("\n", str(refusal))
            for path in self.path.parent.iterdir():
                path.unlink()

    def test_a_binding_that_is_no_number(self) -> None:
        self.open()
        self.make("UPDATE gateway SET bot_id = 'x'")
        self.refused()


class LegacyTests(OpeningCase):
    def legacy(self, *rows: tuple[object, ...], table: str = OLD) -> None:
        self.make(table, *(("INSERT INTO api_keys VALUES (?, ?, ?)", row) for row in rows))

    def keys(self) -> list[KeyRecord]:
        with closing(connect(self.path)) as connection, snapshot(connection) as cursor:
            return keys.listing(cursor)

    def test_keys_stay_valid_and_are_marked(self) -> None:
        self.legacy(("ops", "S3cret", 1_700_000_000), ("zoë", "öther", 1))
        self.path.chmod(0o644)
        before = self.path.read_bytes()
        opened = self.open()
        self.assertEqual(self.keys(), [KeyRecord("ops", 1_700_000_000, True), KeyRecord("zoë", 1, True)])
        with closing(connect(self.path)) as connection:
            self.assertEqual(keys.owner_of(connection.cursor(), digest("S3cret")), 1)
            self.assertEqual(keys.owner_of(connection.cursor(), digest("öther")), 2)
            self.assertEqual(violations(connection.cursor()), [])
        self.assertEqual(recognise(self.path), Ours(LATEST, None))
        self.assertEqual((opened.migrated_from, opened.created), (0, False))
        backup = self.path.with_name("a.db.backup-v0-20261026-073320")
        self.assertEqual(opened.backup, backup)
        self.assertEqual(backup.stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
        self.assertEqual(recognise(backup), Legacy())
        self.assertNotEqual(self.path.read_bytes(), before)

    def test_recognised_by_names_whatever_the_types(self) -> None:
        for number, table in enumerate(
            (
                "CREATE TABLE api_keys(name, key, created_at)",
                "CREATE TABLE api_keys(created_at DATETIME DEFAULT 'now', KEY BLOB, Name VARCHAR(64))",
                "CREATE TABLE API_KEYS(name TEXT PRIMARY KEY, key INTEGER, created_at REAL) WITHOUT ROWID",
                "CREATE TABLE api_keys(name TEXT NOT NULL, key TEXT UNIQUE, created_at TEXT)",
            )
        ):
            self.path = self.path.with_name(f"{number}.db")
            self.make(table, "INSERT INTO api_keys(name, key, created_at) VALUES ('a', 'k', 7)")
            self.assertEqual(recognise(self.path), Legacy(), table)
            self.open()
            self.assertEqual(self.keys(), [KeyRecord("a", 7, True)])

    def test_an_index_of_it_is_no_stranger(self) -> None:
        self.make(OLD, "CREATE INDEX by_key ON api_keys(key)")
        self.assertEqual(self.open().migrated_from, 0)
        self.assertEqual(self.keys(), [])

    def test_times_as_they_were_written(self) -> None:
        times: list[tuple[object, int]] = [
            (1_700_000_000, 1_700_000_000),
            (1_700_000_000.9, 1_700_000_000),
            ("1700000000", 1_700_000_000),
            (1_700_000_000_123, 1_700_000_000),
            ("2023-11-14 22:13:20", 1_700_000_000),
            ("2023-11-14T23:13:20+01:00", 1_700_000_000),
            ("2023-11-14", 1_699_920_000),
            (0, 0),
            (None, int(NOW)),
            ("", int(NOW)),
            ("yesterday", int(NOW)),
            (-5, int(NOW)),
            ("nan", int(NOW)),
            ("inf", int(NOW)),
            ("1e300", int(NOW)),
            (b"\xff", int(NOW)),
        ]
        self.legacy(
            *((f"{n}", f"key {n}", written) for n, (written, _) in enumerate(times)),
            table="CREATE TABLE api_keys(name, key, created_at)",
        )
        self.open()
        self.assertEqual([key.created_at for key in self.keys()], [read for _, read in times])

    def test_rows_that_break_the_rules_are_named_and_nothing_is_touched(self) -> None:
        self.legacy(
            ("good", "k1", 0),
            ("", "k2", 0),
            ("x" * 129, "k3", 0),
            ("a\nb", "k4", 0),
            (None, "k5", 0),
            (b"\xff", "k6", 0),
            ("empty", "", 0),
            ("null", None, 0),
            ("twin", "k1", 0),
            ("good", "k7", 0),
            ("real", 0.5, 0),
            table="CREATE TABLE api_keys(name, key, created_at)",
        )
        self.make("UPDATE api_keys SET name = CAST(name AS TEXT) WHERE key = 'k6'")
        line = self.refused(MigrationRefused)
        for part in (
            "row 2 (",
            f"'{'x' * 40}…' (",
            "'a\\x0ab' (",
            "row 5 (no name)",
            "'\\xff' (its name is not UTF-8)",
            "'empty' (it has no key)",
            "'null' (it has no key)",
            "'twin' (it has the same key as 'good')",
            "'good' (its name occurs twice)",
            "'real' (its key was stored as a fraction)",
        ):
            self.assertIn(part, line)
        for number in range(1, 8):
            self.assertNotIn(f"k{number}", line)

    def test_many_are_named_in_part(self) -> None:
        self.legacy(*((f"key {n}", "", 0) for n in range(25)))
        line = self.refused(MigrationRefused)
        self.assertIn("'key 9' (it has no key) and 15 more", line)

    def test_names_and_keys_that_are_numbers(self) -> None:
        self.legacy((7, 1234, 0), table="CREATE TABLE api_keys(name, key, created_at)")
        self.open()
        self.assertEqual([key.name for key in self.keys()], ["7"])
        with closing(connect(self.path)) as connection:
            self.assertEqual(keys.owner_of(connection.cursor(), digest("1234")), 1)

    def test_a_name_that_is_bytes_is_refused(self) -> None:
        self.legacy((b"a", "k", 0), table="CREATE TABLE api_keys(name, key, created_at)")
        self.assertIn("of type blob", self.refused(MigrationRefused))

    def test_a_second_backup_in_the_same_second(self) -> None:
        self.legacy(("a", "k", 0))
        self.path.with_name("a.db.backup-v0-20261026-073320").touch()
        opened = self.open()
        assert opened.backup is not None
        self.assertEqual(opened.backup.name, "a.db.backup-v0-20261026-073320-2")

    def test_what_a_backup_that_was_cut_off_left_is_no_backup(self) -> None:
        """Nor is its journal rolled back into the new one."""
        self.legacy(("a", "k", 0))
        for name in ("a.db.unfinished-backup", "a.db.unfinished-backup-journal"):
            self.path.with_name(name).write_bytes(b"torn")
        opened = self.open()
        assert opened.backup is not None
        self.assertEqual(recognise(opened.backup), Legacy())
        self.assertEqual([name for name in self.files() if "unfinished" in name], [])

    def test_without_a_backup_nothing_is_migrated(self) -> None:
        self.legacy(("a", "k", 0))

        def create(path: Path) -> int:
            raise PermissionError(13, "Permission denied")

        self.patch(migrate, "create_private", create)
        self.assertIn("backup", self.refused(StartRefused))

    def test_a_backup_that_cannot_be_written_is_not_left(self) -> None:
        self.legacy(("a", "k", 0))

        def fsync(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        self.patch(os, "fsync", fsync)
        self.assertIn("cannot be written", self.refused(StartRefused))

    def test_a_locked_one_is_refused_in_time(self) -> None:
        self.legacy(("a", "k", 0))
        self.patch(opening, "START_BUSY_MS", 20)
        with closing(sqlite3.connect(self.path, isolation_level=None)) as theirs:
            theirs.execute("BEGIN IMMEDIATE")
            self.assertRaises(StartRefused, self.open)
        self.assertEqual(recognise(self.path), Legacy())
        # It could be read, and so copied; but each try would have left a copy.
        self.assertEqual(list(self.files()), ["a.db"])

    def test_the_backup_of_a_finished_migration_stays(self) -> None:
        self.legacy(("a", "k", 0))

        def use_wal(connection: sqlite3.Connection) -> None:
            raise StartRefused("no WAL here")

        self.patch(opening, "_use_wal", use_wal)
        self.assertRaises(StartRefused, self.open)
        self.assertEqual(sorted(self.files()), ["a.db", "a.db.backup-v0-20261026-073320"])

    def test_what_another_user_owns_is_refused_before_a_backup(self) -> None:
        self.legacy(("a", "k", 0))
        self.patch(os, "geteuid", lambda: self.path.stat().st_uid + 1)
        self.assertIn("belongs to another user", self.refused(StartRefused))


class CommandTests(OpeningCase):
    def setUp(self) -> None:
        super().setUp()
        self.pauses: list[float] = []

    def connect(self, *, create: bool = False) -> sqlite3.Connection:
        connection = connect_for_command(self.path, create=create, pause=self.pauses.append)
        self.addCleanup(connection.close)
        return connection

    def test_none_there(self) -> None:
        with self.assertRaises(StartRefused) as caught:
            self.connect()
        self.assertIn("no database", str(caught.exception))
        self.assertEqual(self.files(), {})

    def test_made_when_wanted(self) -> None:
        add_key(self.connect(create=True), "a")
        self.assertEqual(recognise(self.path), Ours(LATEST, None))
        self.assertNotIn("a.db.lock", self.files())

    def test_beside_a_running_daemon(self) -> None:
        self.open()
        with ProcessLock(self.path):
            add_key(self.connect(), "a")

    def test_a_migration_needs_the_lock(self) -> None:
        self.make(OLD, "INSERT INTO api_keys VALUES ('a', 'k', 7)")
        with ProcessLock(self.path):
            self.assertRaises(LockHeld, self.connect)
        self.assertEqual(recognise(self.path), Legacy())
        with snapshot(self.connect()) as cursor:
            self.assertEqual(keys.listing(cursor), [KeyRecord("a", 7, True)])

    def test_whoever_holds_the_lock_is_waited_for_five_seconds(self) -> None:
        self.make(OLD)
        with ProcessLock(self.path):
            self.assertRaises(LockHeld, self.connect)
        self.assertApproximates(sum(self.pauses), 5, 0.25)

    def test_another_that_works_on_it_meanwhile(self) -> None:
        """It migrates; or what it has made so far looks like nothing we know."""
        for found in (OLD, "CREATE TABLE half_way(x)"):
            self.path.unlink(missing_ok=True)
            self.make(found)
            told: list[int] = []

            def tell(version: int, backup: Path, told: list[int] = told) -> None:
                told.append(version)

            def other(seconds: float) -> None:
                self.path.unlink()
                self.open()

            with (
                ProcessLock(self.path),
                closing(
                    connect_for_command(
                        self.path,
                        create=False,
                        pause=other,
                        migrated=tell,
                    )
                ) as connection,
            ):
                add_key(connection, "a")
            self.assertEqual(told, [], "who did it tells of it")

    def test_what_was_seen_at_the_end_of_another_s_work_is_looked_at_again(self) -> None:
        self.open()
        real = recognise
        refusals = [StartRefused("the database cannot be opened")]

        def recognise_at_the_second_look(path: Path) -> object:
            if refusals:
                raise refusals.pop()
            return real(path)

        self.patch(opening, "recognise", recognise_at_the_second_look)
        add_key(self.connect(), "a")

    def test_making_one_needs_it_too(self) -> None:
        with ProcessLock(self.path):
            self.assertRaises(LockHeld, lambda: self.connect(create=True))

    def test_strangers_are_refused(self) -> None:
        self.make("CREATE TABLE t(x)")
        self.assertRaises(UnknownSchema, self.connect)

    def test_one_that_goes_away_meanwhile(self) -> None:
        self.open()
        real: Callable[[Path], object] = recognise

        def recognise_and_lose(path: Path) -> object:
            found = real(path)
            path.unlink()
            return found

        self.patch(opening, "recognise", recognise_and_lose)
        self.assertRaises(StartRefused, self.connect)
