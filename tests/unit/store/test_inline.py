"""The verbs of the database at once on one connection, as commands have them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import NoReturn

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import StorageUnavailable, StoreBusy
from telegrammer.store.engine import connect
from telegrammer.store.inline import InlineTransactions
from telegrammer.store.opening import connect_for_command
from tests.support.directories import temporary_directory


def turn(cursor: sqlite3.Cursor) -> int:
    found: int = cursor.execute("SELECT turn FROM gateway").fetchone()[0]
    return found


def bump(cursor: sqlite3.Cursor, by: int = 1) -> int:
    cursor.execute("UPDATE gateway SET turn = turn + ?", (by,))
    return turn(cursor)


def bump_and_fail(cursor: sqlite3.Cursor) -> NoReturn:
    bump(cursor)
    raise ZeroDivisionError


class InlineTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.path = temporary_directory(self) / "t.db"
        self.connection = connect_for_command(self.path, create=True)
        self.addCleanup(self.connection.close)
        self.database = InlineTransactions(self.connection)

    def test_what_is_written_is_committed_when_it_returns(self) -> None:
        self.assertEqual(self.successResultOf(self.database.write(bump, 5)), 5)
        with closing(connect(self.path)) as other:
            self.assertEqual(turn(other.cursor()), 5)
        self.assertEqual(self.successResultOf(self.database.read(turn, pool="workers")), 5)

    def test_what_fails_is_undone(self) -> None:
        self.failureResultOf(self.database.write(bump_and_fail), ZeroDivisionError)
        self.assertEqual(self.successResultOf(self.database.read(turn)), 0)
        self.assertFalse(self.connection.in_transaction)

    def test_a_read_cannot_write(self) -> None:
        self.failureResultOf(self.database.read(bump), StorageUnavailable)
        self.assertEqual(self.successResultOf(self.database.write(bump)), 1)

    def test_a_coroutine_over_it_runs_in_one_go(self) -> None:
        async def both() -> int:
            return await self.database.write(bump) + await self.database.write(bump, urgent=True)

        self.assertEqual(self.successResultOf(Deferred.fromCoroutine(both())), 3)

    def test_how_long_it_waits_for_the_lock(self) -> None:
        """No command waits longer than 5 s (contract 1.1)."""
        for begin_within, patience in ((None, 5000), (0.25, 250), (10.0, 5000)):
            self.successResultOf(self.database.write(bump, begin_within=begin_within))
            (found,) = self.connection.execute("PRAGMA busy_timeout").fetchone()
            self.assertEqual(found, patience)

    def test_a_held_lock(self) -> None:
        with closing(connect(self.path)) as other:
            other.execute("BEGIN IMMEDIATE")
            self.failureResultOf(self.database.write(bump, begin_within=0.02), StoreBusy)
            self.assertEqual(self.successResultOf(self.database.read(turn)), 0)
        self.assertEqual(self.successResultOf(self.database.write(bump)), 1)
