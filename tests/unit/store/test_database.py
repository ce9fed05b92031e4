"""What the database service says of itself, without its threads (contract 1.1, 2.3)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from attrs import define, field
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
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
from telegrammer.ports import Storage
from telegrammer.store import database
from telegrammer.store.database import BEAT, LONG_LOG, LONG_WAIT, QUIET, Database
from telegrammer.store.engine import Handle, problem
from telegrammer.store.group import Locked, Lost
from telegrammer.store.look import ROOM
from tests.support.directories import temporary_directory
from tests.support.inline_database import migrated_connection

T = TypeVar("T")


@define(eq=False)
class InlinePool:
    """Runs what it is lent for at once; ``outcomes`` are what the next groups or reads end with instead."""

    connection: sqlite3.Connection
    outcomes: list[Any] = field(factory=list)
    held: list[Deferred[Any]] | None = None
    closed: bool = False

    def run(self, work: Callable[[Handle], T]) -> Deferred[T]:
        if self.held is not None:
            held: Deferred[T] = Deferred()
            self.held.append(held)
            return held
        if self.outcomes:
            outcome = self.outcomes.pop(0)
            return maybeDeferred(
                lambda: outcome.raiseException() if isinstance(outcome, Failure) else outcome
            )
        assert isinstance(self.connection, Handle)
        return maybeDeferred(work, self.connection)

    def hold(self) -> list[Deferred[Any]]:
        """From now on what is lent for waits here for the test to end it."""
        self.held = []
        return self.held

    def close(self) -> None:
        self.closed = True


def bump(cursor: sqlite3.Cursor) -> int:
    cursor.execute("UPDATE gateway SET turn = turn + 1")
    return int(cursor.execute("SELECT turn FROM gateway").fetchone()[0])


class DatabaseTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.pools: dict[str, InlinePool] = {}
        self.connection = migrated_connection()
        self.addCleanup(self.connection.close)
        self.patch(Database, "_pool", self._pool)
        self.calls: list[str] = []
        self.service = Database(
            Path("/nowhere/a.db"),
            None,
            opening=lambda: self.calls.append("opened"),
            clock=self.clock,
            on_outside_commit=[lambda: self.calls.append("outside")],
        )
        self.service.startService()
        self.events = self.enterContext(capturedLogs())
        self.told = 0

    def _pool(self, name: str, size: int, busy_ms: int, *, query_only: bool) -> InlinePool:
        self.assertEqual(query_only, name != "writer")
        self.pools[name] = InlinePool(self.connection)
        return self.pools[name]

    def lose(self, kind: type[StorageUnavailable]) -> None:
        """A write that meets this trouble."""
        self.pools["writer"].outcomes.append(Lost(kind))
        self.failureResultOf(self.service.write(bump), kind)

    def room(self, free: int) -> None:
        """So many bytes are free on the disk."""

        class Space:
            f_bavail = free
            f_frsize = 1

        self.patch(os, "statvfs", lambda path: Space)

    def test_it_tells_how_it_is(self) -> None:
        storage: Storage = self.service
        self.assertEqual(storage.state(), "ok")

    def test_opened_first_and_looked_at_at_once(self) -> None:
        self.assertEqual(self.calls, ["opened"])
        self.clock.advance(0)
        self.assertEqual(self.calls, ["opened", "outside"])
        self.clock.advance(BEAT)
        self.assertEqual(self.calls, ["opened", "outside"])

    def test_closed_before_and_after(self) -> None:
        service = Database(Path("/nowhere/a.db"), None, clock=self.clock)
        self.failureResultOf(service.write(bump), StoreClosed)
        self.failureResultOf(service.read(bump), StoreClosed)
        self.assertEqual(service.state(), "ok")
        self.assertEqual(self.successResultOf(Deferred.fromCoroutine(service.beat())), BEAT)
        self.successResultOf(self.service.stopService())
        self.failureResultOf(self.service.write(bump), StoreClosed)
        self.assertTrue(all(pool.closed for pool in self.pools.values()))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_busy_until_the_next_group(self) -> None:
        self.lose(StoreBusy)
        self.assertEqual(self.service.state(), "busy")
        self.clock.advance(0)
        self.assertEqual(self.service.state(), "ok")

    def test_busy_while_a_group_waits(self) -> None:
        held = self.pools["writer"].hold()
        write = self.service.write(bump, urgent=True)
        self.clock.advance(LONG_WAIT)
        self.assertEqual(self.service.state(), "ok")
        self.clock.advance(0.1)
        self.assertEqual(self.service.state(), "busy")
        self.pools["writer"].held = None
        held[0].callback(Locked())
        self.assertEqual(self.successResultOf(write), 1)
        self.assertEqual(self.service.state(), "ok")

    def test_a_look_at_a_held_lock(self) -> None:
        held = self.pools["writer"].hold()
        self.clock.advance(0)
        self.clock.advance(0.5)
        held[0].callback(Locked())
        self.assertEqual(self.service.state(), "busy")
        # One at a time, a second after the last.
        self.assertEqual(len(held), 1)
        self.clock.advance(BEAT)
        self.assertEqual(len(held), 2)
        self.clock.advance(5 * BEAT)
        self.assertEqual(len(held), 2)

    def test_a_trouble_passes_with_a_commit_that_wrote(self) -> None:
        self.lose(StoreReadOnly)
        self.assertEqual(self.service.state(), "readonly")
        self.successResultOf(self.service.write(lambda cursor: None))
        self.assertEqual(self.service.state(), "readonly")
        self.successResultOf(self.service.write(bump))
        self.assertEqual(self.service.state(), "ok")

    def test_a_look_writes_while_there_is_trouble(self) -> None:
        self.lose(StoreReadOnly)
        self.clock.advance(0)
        self.assertEqual(self.service.state(), "ok")

    def beats(self, seconds: float) -> None:
        self.clock.pump([BEAT] * round(seconds / BEAT))

    def fail_to_read(self, kind: type[StorageUnavailable] = StoreFailing) -> None:
        self.pools["requests"].outcomes.append(Failure(problem(kind)))
        self.failureResultOf(self.service.read(bump), kind)

    def lines(self) -> list[str]:
        """What the service has logged of its state since it was last asked."""
        lines = [formatEvent(event) for event in self.events[self.told :]]
        self.told += len(lines)
        return lines

    def test_a_failing_database_is_failing_until_it_has_been_quiet(self) -> None:
        self.clock.advance(0)
        for _ in range(20):  # one kind of work fails again and again, another goes well
            self.lose(StoreFailing)
            self.successResultOf(self.service.write(bump))
            self.beats(QUIET - BEAT)
            self.assertEqual(self.service.state(), "failing")
        self.assertEqual(
            self.lines(),
            ["the database /nowhere/a.db is not available: failing; the database reports an error"],
        )
        self.beats(2 * BEAT)
        self.assertEqual(self.service.state(), "ok")
        self.assertEqual(self.lines(), ["the database works again"])

    def test_failing_reads_between_others(self) -> None:
        self.clock.advance(0)
        for kind in (StoreFailing, StoreReadOnly, StoreBusy):
            for _ in range(5):
                self.fail_to_read(kind)
                self.successResultOf(self.service.read(lambda cursor: None))
                self.successResultOf(self.service.write(bump))
                self.beats(QUIET - BEAT)
                self.assertEqual(self.service.state(), kind.state)
            self.beats(2 * BEAT)
            self.assertEqual(self.service.state(), "ok")
            self.assertEqual(len(self.lines()), 2)

    def test_a_database_without_one_of_its_tables_is_failing(self) -> None:
        for fail in (lambda: self.lose(StoreFailing), self.fail_to_read):
            self.clock.advance(0)
            self.connection.execute("ALTER TABLE usernames RENAME TO elsewhere")
            fail()
            for _ in range(30):
                self.successResultOf(self.service.write(bump))
                self.successResultOf(self.service.read(lambda cursor: None))
                self.beats(1)
                self.assertEqual(self.service.state(), "failing")
            self.connection.execute("ALTER TABLE elsewhere RENAME TO usernames")
            self.beats(QUIET + BEAT)
            self.assertEqual(self.service.state(), "ok")
            self.assertEqual(len(self.lines()), 2)

    def test_a_held_lock_does_not_hide_that_the_database_fails(self) -> None:
        self.lose(StoreFailing)
        self.lose(StoreBusy)
        self.assertEqual(self.service.state(), "failing")
        self.successResultOf(self.service.write(bump))
        self.assertEqual(self.service.state(), "failing")

    @pytest.mark.report("I4")
    def test_a_full_disk_is_full_until_there_is_room(self) -> None:
        self.room(ROOM - 1)
        self.lose(StoreFull)
        self.successResultOf(self.service.write(bump))
        self.clock.advance(0)
        self.assertEqual(self.service.state(), "full")
        self.room(ROOM)
        self.clock.advance(BEAT)
        self.assertEqual(self.service.state(), "ok")

    def long_log(self, size: int) -> None:
        """The -wal file is as long as this."""
        self.service.path = temporary_directory(self) / "a.db"
        with open(self.service.path.with_name("a.db-wal"), "wb") as file:
            file.truncate(size)

    def test_a_log_that_grows_is_folded_in_and_a_refusal_shows_until_it_succeeds(self) -> None:
        refusals = [problem(StoreFull)] * 2
        tries: list[Handle] = []

        def refuse(connection: Handle) -> None:
            tries.append(connection)
            if refusals:
                raise refusals.pop()

        self.patch(database, "fold", refuse)
        self.room(ROOM)
        self.long_log(LONG_LOG - 1)
        self.beats(BEAT)
        self.assertEqual(tries, [])
        self.long_log(LONG_LOG)
        self.clock.advance(BEAT)
        self.assertEqual(self.service.state(), "full")
        self.clock.advance(BEAT)
        self.assertEqual(self.service.state(), "full")
        self.clock.advance(BEAT)
        self.assertEqual((self.service.state(), len(tries)), ("ok", 3))

    def test_the_end_of_a_trouble_counts_as_news(self) -> None:
        self.clock.advance(0)
        self.calls.clear()
        self.lose(StoreBusy)
        self.assertEqual(self.calls, [])
        self.clock.advance(BEAT)
        self.assertEqual(self.calls, ["outside"])
        self.clock.advance(BEAT)
        self.assertEqual(self.calls, ["outside"])

    def test_back_offs_stand_on_a_failing_disk(self) -> None:
        self.clock.advance(0)
        self.calls.clear()
        self.lose(StoreFailing)
        self.beats(QUIET + BEAT)
        self.assertEqual((self.service.state(), self.calls), ("ok", []))

    def test_failing_until_the_whole_file_is_found_sound(self) -> None:
        """The small work of a look succeeds all the while."""
        damaged = True

        def look_through(cursor: sqlite3.Cursor) -> None:
            if damaged:
                raise problem(StoreDamaged)

        self.patch(database, "prove_sound", look_through)
        self.lose(StoreDamaged)
        self.beats(10 * QUIET)
        self.assertEqual(self.service.state(), "failing")
        damaged = False
        self.beats(QUIET + BEAT)
        self.assertEqual(self.service.state(), "ok")
        self.assertEqual(len(self.lines()), 2)

    def test_a_reading_trouble_of_its_own(self) -> None:
        for pool in ("requests", "workers"):
            self.pools[pool].outcomes.append(Failure(problem(StoreFailing)))
        self.failureResultOf(self.service.read(bump), StoreFailing)
        self.assertEqual(self.service.state(), "failing")
        self.successResultOf(self.service.write(bump))
        self.beats(QUIET)
        self.assertEqual(self.service.state(), "failing")  # the read of the look has failed
        self.beats(QUIET)
        self.assertEqual(self.service.state(), "ok")

    def test_what_a_read_raises_of_its_own_is_no_trouble(self) -> None:
        def divide(cursor: sqlite3.Cursor) -> float:
            return 1 / 0

        self.failureResultOf(self.service.read(divide), ZeroDivisionError)
        self.assertEqual(self.service.state(), "ok")

    def test_a_new_connection_counts_as_news(self) -> None:
        self.clock.advance(0)
        self.calls.clear()
        self.pools["writer"].connection = other = migrated_connection()
        self.addCleanup(other.close)
        self.clock.advance(BEAT)
        self.assertEqual(self.calls, ["outside"])

    def test_stop_waits_for_what_runs(self) -> None:
        held = self.pools["workers"].hold()
        read = self.service.read(bump, pool="workers")
        stopped = self.service.stopService()
        self.assertNoResult(stopped)
        self.assertFalse(self.pools["workers"].closed)
        held[0].callback(7)
        self.assertEqual(self.successResultOf(read), 7)
        self.successResultOf(stopped)

    def test_started_again(self) -> None:
        self.successResultOf(self.service.stopService())
        self.service.startService()
        self.assertEqual(self.successResultOf(self.service.write(bump)), 1)
