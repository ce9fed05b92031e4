"""What SQLite's errors mean, and transactions that end (contract 4)."""

from __future__ import annotations

import sqlite3

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import (
    StorageUnavailable,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreFailing,
    StoreFull,
    StoreReadOnly,
)
from telegrammer.store.engine import Handle, connect, immediate, problem, snapshot, translate
from tests.support.directories import temporary_directory


def error_with(code: int, kind: type[sqlite3.Error] = sqlite3.OperationalError) -> sqlite3.Error:
    """An error as the module raises it, its text full of what nobody may see."""
    error = kind("SELECT secret FROM keys")
    error.sqlite_errorcode = code
    return error


class TranslationTests(SynchronousTestCase):
    def test_every_kind(self) -> None:
        for code, kind in (
            (sqlite3.SQLITE_BUSY, StoreBusy),
            (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreBusy),
            (sqlite3.SQLITE_LOCKED_SHAREDCACHE, StoreBusy),
            (sqlite3.SQLITE_FULL, StoreFull),
            (sqlite3.SQLITE_IOERR_SHMSIZE, StoreFull),
            (sqlite3.SQLITE_READONLY, StoreReadOnly),
            (sqlite3.SQLITE_READONLY_DBMOVED, StoreReadOnly),
            (sqlite3.SQLITE_CANTOPEN_ISDIR, StoreReadOnly),
            (sqlite3.SQLITE_IOERR_FSYNC, StoreFailing),
            (sqlite3.SQLITE_CORRUPT, StoreDamaged),
            (sqlite3.SQLITE_CORRUPT_INDEX, StoreDamaged),
            (sqlite3.SQLITE_NOTADB, StoreDamaged),
            (sqlite3.SQLITE_ERROR, StoreFailing),
        ):
            self.assertIs(type(translate(error_with(code))), kind, code)

    def test_damage_comes_as_another_class(self) -> None:
        error = error_with(sqlite3.SQLITE_CORRUPT, sqlite3.DatabaseError)
        self.assertIs(type(translate(error)), StoreDamaged)
        self.assertEqual(str(translate(error)), "the database is damaged")

    def test_an_error_without_a_code(self) -> None:
        self.assertIs(type(translate(sqlite3.OperationalError("odd"))), StoreFailing)

    def test_what_is_not_the_databases(self) -> None:
        for error in (
            error_with(sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.IntegrityError),
            sqlite3.ProgrammingError("closed"),
            sqlite3.InterfaceError("misuse"),
            ValueError("odd"),
            None,
        ):
            self.assertIsNone(translate(error))

    def test_texts_are_ours(self) -> None:
        for code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            trouble = translate(error_with(code))
            assert trouble is not None
            self.assertNotIn("secret", str(trouble))
            self.assertIsNone(trouble.__cause__)
        self.assertEqual(str(problem(StoreClosed)), "the database is closed")


class WaitingTests(SynchronousTestCase):
    """For the write lock, while somebody else has it."""

    def setUp(self) -> None:
        path = temporary_directory(self) / "a.db"
        path.touch()
        self.holder, self.connection = connect(path), connect(path, busy_ms=90)
        for connection in (self.holder, self.connection):
            self.addCleanup(connection.close)
        self.said: list[str] = []
        self.connection.set_trace_callback(self.said.append)

    def test_it_is_asked_for_often(self) -> None:
        """SQLite by itself would ask once a tenth of a second in the end, and miss every gap."""
        with immediate(self.holder), self.assertRaises(StoreBusy), immediate(self.connection):
            self.fail("two at once")
        self.assertEqual(self.said.count("BEGIN IMMEDIATE"), 5)

    def test_how_long_is_still_as_it_was(self) -> None:
        with immediate(self.connection):
            pass
        with immediate(self.holder), self.assertRaises(StoreBusy), immediate(self.connection):
            self.fail("two at once")
        self.assertEqual(self.connection.execute("PRAGMA busy_timeout").fetchone(), (90,))
        self.assertEqual(self.said.count("COMMIT"), 1)


class TransactionTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.connection = connect(":memory:")
        self.addCleanup(self.connection.close)
        self.connection.execute("CREATE TABLE t(x UNIQUE)")

    def rows(self) -> list[int]:
        return [row[0] for row in self.connection.execute("SELECT x FROM t")]

    def test_committed_at_the_end(self) -> None:
        with immediate(self.connection) as cursor:
            cursor.execute("INSERT INTO t VALUES (1)")
            self.assertTrue(self.connection.in_transaction)
        self.assertFalse(self.connection.in_transaction)
        self.assertEqual(self.rows(), [1])

    def test_rolled_back_whole(self) -> None:
        with self.assertRaises(ValueError), immediate(self.connection) as cursor:
            cursor.execute("INSERT INTO t VALUES (1)")
            raise ValueError
        self.assertFalse(self.connection.in_transaction)
        self.assertEqual(self.rows(), [])

    def test_a_broken_constraint_passes_as_it_is(self) -> None:
        with self.assertRaises(sqlite3.IntegrityError), immediate(self.connection) as cursor:
            cursor.execute("INSERT INTO t VALUES (1), (1)")

    def test_a_database_error_is_translated_without_its_text(self) -> None:
        with self.assertRaises(StoreFailing) as caught, snapshot(self.connection) as cursor:
            cursor.execute("SELECT 'a secret' FROM nowhere")
        self.assertTrue(caught.exception.__suppress_context__)
        self.assertTrue(self.connection.stale)

    def test_a_transaction_that_cannot_be_ended_closes_the_connection(self) -> None:
        connection = connect(":memory:")
        connection.set_authorizer(
            lambda action, what, *_: (
                sqlite3.SQLITE_DENY
                if action == sqlite3.SQLITE_TRANSACTION and what in ("COMMIT", "ROLLBACK")
                else sqlite3.SQLITE_OK
            )
        )
        with self.assertRaises(StorageUnavailable), immediate(connection):
            pass
        self.assertTrue(connection.stale)
        self.assertRaises(sqlite3.ProgrammingError, connection.execute, "SELECT 1")

    def test_ended_by_sqlite_itself(self) -> None:
        with self.assertRaises(ValueError), immediate(self.connection) as cursor:
            cursor.execute("ROLLBACK")
            raise ValueError


class ConnectionTests(SynchronousTestCase):
    def test_it_creates_no_file(self) -> None:
        path = temporary_directory(self) / "a.db"
        self.assertRaises(sqlite3.OperationalError, connect, path)
        self.assertFalse(path.exists())

    def test_odd_names_are_names(self) -> None:
        path = temporary_directory(self) / "a?mode=ro&x#y %41.db"
        path.touch()
        connection = connect(path)
        connection.execute("CREATE TABLE t(x)")
        connection.close()
        self.assertGreater(path.stat().st_size, 0)

    def test_pragmas(self) -> None:
        connection = connect(":memory:", durability="full", busy_ms=123)
        self.addCleanup(connection.close)
        for pragma, value in (("foreign_keys", 1), ("synchronous", 2), ("busy_timeout", 123)):
            self.assertEqual(connection.execute(f"PRAGMA {pragma}").fetchone()[0], value, pragma)

    def test_handles_are_told_apart(self) -> None:
        one, two = connect(":memory:"), connect(":memory:")
        self.addCleanup(one.close)
        self.addCleanup(two.close)
        self.assertIsInstance(one, Handle)
        self.assertNotEqual(one.serial, two.serial)
