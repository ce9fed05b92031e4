"""Group commit: who goes together, who fails alone, who waits how long (contract 4)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from attrs import define, field
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import (
    CapacityReached,
    StorageUnavailable,
    StoreBusy,
    StoreClosed,
    StoreFailing,
    StoreFull,
)
from telegrammer.store.engine import Handle, connect
from telegrammer.store.group import Locked, Lost, Report
from telegrammer.store.writer import LARGEST_BACKGROUND, SHORTEST_WAIT, SLICE, Writer
from tests.support.directories import temporary_directory

T = TypeVar("T")


@define(eq=False)
class StepwiseLender:
    """Holds each group until the test runs it, or says what became of it."""

    connection: Handle
    waiting: list[tuple[Callable[[Handle], Any], Deferred[Any]]] = field(factory=list)

    def run(self, work: Callable[[Handle], T]) -> Deferred[T]:
        running: Deferred[T] = Deferred()
        self.waiting.append((work, running))
        return running

    def step(self, outcome: Report | Failure | None = None) -> None:
        """Run the group, or let it end so."""
        [(work, running)] = self.waiting
        self.waiting.clear()
        running.callback(work(self.connection) if outcome is None else outcome)


class ShortOfSpace(Handle):
    """Runs out of disk when told to: at a commit, or in an operation, which then loses everything."""

    full_at_commit = False
    commits = 0

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            self.commits += 1
            if self.full_at_commit:
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
        return super().execute(sql, *parameters)


class WriterCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.connection = ShortOfSpace(":memory:", isolation_level=None)
        self.addCleanup(self.connection.close)
        self.connection.execute("CREATE TABLE t(x INTEGER)")
        self.clock = Clock()
        self.lender = StepwiseLender(self.connection)
        self.noted: list[tuple[type[StorageUnavailable] | None, bool]] = []
        self.writer = Writer(
            self.lender, self.clock, lambda trouble, changed: self.noted.append((trouble, changed))
        )

    def insert(self, value: int, *, urgent: bool = False) -> Deferred[int]:
        return self.writer.submit(insert, value, urgent=urgent)

    def rows(self) -> list[int]:
        return [row[0] for row in self.connection.execute("SELECT x FROM t ORDER BY rowid")]


def insert(cursor: sqlite3.Cursor, value: int) -> int:
    cursor.execute("INSERT INTO t VALUES (?)", (value,))
    return value


def insert_then(cursor: sqlite3.Cursor, value: int, error: Exception) -> int:
    insert(cursor, value)
    raise error


class GroupTests(WriterCase):
    def test_one_that_is_alone_goes_at_once(self) -> None:
        result = self.insert(1)
        self.assertEqual(len(self.lender.waiting), 1)
        self.assertNoResult(result)
        self.lender.step()
        self.assertEqual(self.successResultOf(result), 1)
        self.assertEqual(self.rows(), [1])
        self.assertEqual(self.lender.waiting, [])

    @pytest.mark.report("I1")
    def test_what_came_meanwhile_goes_together_urgent_first(self) -> None:
        self.insert(1)
        results = [self.insert(2), self.insert(3, urgent=True), self.insert(4), self.insert(5, urgent=True)]
        self.lender.step()
        self.connection.commits = 0
        self.lender.step()
        self.assertEqual([self.successResultOf(result) for result in results], [2, 3, 4, 5])
        self.assertEqual(self.rows(), [1, 3, 5, 2, 4])
        self.assertEqual(self.connection.commits, 1)

    def test_results_come_in_order_and_after_the_commit(self) -> None:
        seen: list[tuple[int, bool]] = []
        for value in (1, 2):
            self.insert(value).addCallback(lambda value: seen.append((value, self.connection.in_transaction)))
            self.lender.step()
        self.assertEqual(seen, [(1, False), (2, False)])

    def test_what_a_result_asks_for_joins_the_next_group(self) -> None:
        first = self.insert(1).addCallback(lambda _: self.insert(2))
        second = self.insert(3)
        self.lender.step()
        self.lender.step()
        self.assertEqual(self.successResultOf(first), 2)
        self.assertEqual(self.successResultOf(second), 3)
        self.assertEqual(self.rows(), [1, 3, 2])

    def test_background_work_is_taken_in_portions(self) -> None:
        self.insert(0)
        for value in range(1, LARGEST_BACKGROUND + 3):
            self.insert(value)
        self.lender.step()
        self.lender.step()
        self.assertEqual(len(self.rows()), 1 + LARGEST_BACKGROUND)
        late = self.insert(-1, urgent=True)
        self.lender.step()
        self.assertEqual(len(self.rows()), 3 + LARGEST_BACKGROUND)
        self.assertNoResult(late)
        self.lender.step()
        self.assertEqual(self.successResultOf(late), -1)


class FailureTests(WriterCase):
    def test_one_that_fails_fails_alone(self) -> None:
        self.insert(1)
        before = self.insert(2)
        failing = self.writer.submit(insert_then, 3, CapacityReached("no room"))
        after = self.insert(4)
        self.lender.step()
        self.lender.step()
        self.failureResultOf(failing, CapacityReached)
        self.assertEqual((self.successResultOf(before), self.successResultOf(after)), (2, 4))
        self.assertEqual(self.rows(), [1, 2, 4])
        self.assertEqual(self.noted[-1], (None, True))

    def test_an_error_of_the_database_in_one_is_typed_and_noted(self) -> None:
        failing = self.writer.submit(lambda cursor: cursor.execute("SELECT secret FROM nowhere"))
        self.lender.step()
        error = self.failureResultOf(failing, StoreFailing).value
        self.assertNotIn("secret", str(error))
        self.assertEqual(self.noted, [(StoreFailing, False)])

    def test_what_was_undone_was_not_written(self) -> None:
        self.failureResultOf(self._one(CapacityReached("no room")), CapacityReached)
        self.assertEqual(self.noted, [(None, False)])

    def _one(self, error: Exception) -> Deferred[int]:
        result = self.writer.submit(insert_then, 1, error)
        self.lender.step()
        return result

    def test_a_commit_that_fails_fails_all_the_same_way(self) -> None:
        self.connection.full_at_commit = True
        self.insert(1).addErrback(lambda _: None)
        results = [self.insert(2), self.writer.submit(insert_then, 3, CapacityReached("no room"))]
        self.lender.step()
        self.lender.step()
        for result in results:
            self.failureResultOf(result, StoreFull)
        self.assertEqual(self.rows(), [])
        self.assertFalse(self.connection.in_transaction)
        self.connection.full_at_commit = False
        self.assertEqual(self._written(4), [4])

    def _written(self, value: int) -> list[int]:
        result = self.insert(value)
        self.lender.step()
        self.successResultOf(result)
        return self.rows()

    def test_sqlite_giving_up_the_transaction_fails_all(self) -> None:
        def lose_everything(cursor: sqlite3.Cursor) -> None:
            cursor.execute("ROLLBACK")
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

        self.insert(1)
        results = [self.insert(2), self.writer.submit(lose_everything), self.insert(3)]
        self.lender.step()
        self.lender.step()
        for result in results:
            self.failureResultOf(result, StoreFailing)
        self.assertEqual(self.rows(), [1])
        self.assertEqual(self.noted[-1], (StoreFailing, False))

    def test_an_operation_that_commits_by_itself_is_found_out(self) -> None:
        result = self.writer.submit(lambda cursor: cursor.execute("COMMIT"))
        self.lender.step()
        self.failureResultOf(result, StorageUnavailable)
        self.assertEqual(self._written(4), [4])

    def test_one_that_gives_up_everything_for_a_reason_of_its_own(self) -> None:
        def give_up(cursor: sqlite3.Cursor) -> None:
            cursor.execute("ROLLBACK")
            raise KeyError("odd")

        result = self.writer.submit(give_up)
        with_it = self.insert(1)
        self.lender.step()
        self.failureResultOf(result, StoreFailing)
        self.lender.step()
        self.assertEqual(self.successResultOf(with_it), 1)

    def test_a_connection_that_cannot_be_had(self) -> None:
        results = [self.insert(1), self.insert(2)]
        self.lender.step(Failure(StoreFull("no file")))
        self.failureResultOf(results[0], StoreFull)
        self.lender.step(Failure(ZeroDivisionError()))
        self.failureResultOf(results[1], ZeroDivisionError)
        self.assertEqual(self._written(4), [4])
        self.assertEqual(self.noted[0], (StoreFull, False))

    def test_a_fault_of_ours_does_not_stop_the_queue(self) -> None:
        def faulty(trouble: type[StorageUnavailable] | None, changed: bool) -> None:
            self.writer.noted = lambda trouble, changed: None
            raise ZeroDivisionError

        self.writer.noted = faulty
        self.insert(1)
        self.lender.step()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self._written(2), [1, 2])


class PatienceTests(WriterCase):
    """Another process holds the lock: every step ends ``Locked`` after its slice."""

    def locked(self, seconds: float = SLICE) -> None:
        self.clock.advance(seconds)
        self.lender.step(Locked())

    def test_background_work_waits_a_second(self) -> None:
        result = self.insert(1)
        self.locked()
        self.assertNoResult(result)
        self.locked()
        self.failureResultOf(result, StoreBusy)
        self.assertEqual(self.lender.waiting, [])
        self.assertEqual(self.noted, [(StoreBusy, False)])

    def test_requests_wait_five(self) -> None:
        result = self.insert(1, urgent=True)
        for _ in range(9):
            self.locked()
        self.assertNoResult(result)
        self.locked()
        self.failureResultOf(result, StoreBusy)

    def test_company_changes_nothing(self) -> None:
        background = self.insert(1)
        self.clock.advance(0.4)
        urgent = self.insert(2, urgent=True)
        late = self.insert(3)
        self.lender.step(Locked())
        self.locked(0.5)
        self.assertNoResult(background)
        self.locked(0.1)
        self.failureResultOf(background, StoreBusy)
        self.assertNoResult(late)
        self.locked(0.4)
        self.failureResultOf(late, StoreBusy)
        self.assertNoResult(urgent)
        self.lender.step()
        self.assertEqual(self.successResultOf(urgent), 2)

    def test_those_who_wait_keep_their_order(self) -> None:
        for value in (1, 2, 3):
            self.insert(value, urgent=value == 2)
        self.locked()
        self.lender.step()
        self.assertEqual(self.rows(), [2, 1, 3])

    def test_patience_of_its_own(self) -> None:
        result = self.writer.submit(insert, 1, urgent=True, patience=0.5)
        self.locked()
        self.failureResultOf(result, StoreBusy)

    def test_waiting_since(self) -> None:
        self.clock.advance(10)
        result = self.insert(1, urgent=True)
        self.assertEqual(self.writer.waiting_since, 10)
        self.locked()
        self.assertEqual(self.writer.waiting_since, 10)
        self.lender.step()
        self.successResultOf(result)
        self.assertIsNone(self.writer.waiting_since)
        self.failureResultOf(self._given_up(), StoreBusy)
        self.assertIsNone(self.writer.waiting_since)

    def _given_up(self) -> Deferred[int]:
        result = self.writer.submit(insert, 1, patience=0.5)
        self.locked()
        return result

    def test_a_lock_that_is_refused_at_once_is_not_hammered(self) -> None:
        result = self.insert(1)
        for _ in range(19):
            self.lender.step(Locked())
            self.assertEqual(self.lender.waiting, [])
            self.clock.advance(SHORTEST_WAIT)
        self.assertNoResult(result)
        self.lender.step()
        self.successResultOf(result)

    @pytest.mark.report("I2")
    def test_a_held_lock_for_real(self) -> None:
        path = temporary_directory(self) / "a.db"
        path.touch()
        ours, theirs = connect(path), connect(path)
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        theirs.execute("CREATE TABLE t(x)")
        theirs.execute("BEGIN IMMEDIATE")
        self.lender.connection = ours
        result = self.writer.submit(insert, 1, patience=SHORTEST_WAIT)
        self.clock.advance(1)
        self.lender.step()
        self.failureResultOf(result, StoreBusy)
        theirs.execute("COMMIT")
        self.assertEqual(self.successResultOf(self._stepped(self.insert(1))), 1)

    def _stepped(self, result: Deferred[int]) -> Deferred[int]:
        self.lender.step()
        return result


class BeginWithinTests(WriterCase):
    """An operation that has only so long to begin: whoever is told that it did not can rely on it."""

    def submit(self, value: int, seconds: float = 5) -> Deferred[int]:
        return self.writer.submit(insert, value, urgent=True, begin_within=seconds)

    def test_one_that_begins_in_time(self) -> None:
        result = self.submit(1)
        self.clock.advance(4.9)
        self.lender.step()
        self.assertEqual(self.successResultOf(result), 1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_one_that_was_taken_and_has_not_begun_is_withdrawn(self) -> None:
        result = self.submit(1)
        self.clock.advance(4.9)
        self.assertNoResult(result)
        self.clock.advance(0.2)
        self.failureResultOf(result, StoreBusy)
        self.lender.step()
        self.assertEqual(self.rows(), [])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_one_behind_a_group_that_hangs_is_withdrawn_and_its_company_is_not(self) -> None:
        hanging = self.insert(1)
        results = [self.submit(2), self.insert(3, urgent=True)]
        self.clock.advance(5)
        self.failureResultOf(results[0], StoreBusy)
        self.assertNoResult(results[1])
        self.lender.step()
        self.lender.step()
        self.assertEqual((self.successResultOf(hanging), self.successResultOf(results[1])), (1, 3))
        self.assertEqual(self.rows(), [1, 3])

    def test_one_that_has_begun_is_waited_for(self) -> None:
        def insert_slowly(cursor: sqlite3.Cursor) -> int:
            self.clock.advance(60)
            self.assertNoResult(result)
            return insert(cursor, 1)

        result: Deferred[int] = self.writer.submit(insert_slowly, urgent=True, begin_within=5)
        self.lender.step()
        self.assertEqual((self.successResultOf(result), self.rows()), (1, [1]))

    def test_one_that_has_begun_and_is_not_committed(self) -> None:
        self.connection.full_at_commit = True
        result = self.submit(1)
        self.lender.step()
        self.failureResultOf(result, StoreFull)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_held_lock(self) -> None:
        result = self.submit(1, 1)
        for _ in range(2):
            self.assertNoResult(result)
            self.clock.advance(SLICE)
            self.lender.step(Locked())
        self.failureResultOf(result, StoreBusy)
        self.assertEqual((self.lender.waiting, self.clock.getDelayedCalls()), ([], []))

    def test_withdrawn_between_two_turns_nobody_waits_for_the_lock(self) -> None:
        result = self.submit(1, SHORTEST_WAIT)
        self.lender.step(Locked())  # at once: the next turn is in a moment
        self.assertEqual(self.writer.waiting_since, 0)
        self.clock.advance(SHORTEST_WAIT)
        self.failureResultOf(result, StoreBusy)
        self.assertEqual(self.lender.waiting, [])
        self.assertIsNone(self.writer.waiting_since)

    def test_one_whose_caller_leaves(self) -> None:
        result = self.submit(1)
        result.cancel()
        self.failureResultOf(result, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.lender.step()
        self.assertEqual(self.rows(), [])

    def test_closed(self) -> None:
        self.successResultOf(self.writer.close())
        self.failureResultOf(self.submit(1), StoreClosed)
        self.assertEqual(self.clock.getDelayedCalls(), [])


class CancellationTests(WriterCase):
    def test_one_that_has_not_begun_is_dropped(self) -> None:
        self.insert(1)
        dropped = self.insert(2)
        dropped.cancel()
        self.failureResultOf(dropped, CancelledError)
        self.lender.step()
        self.assertEqual((self.rows(), self.lender.waiting), ([1], []))

    def test_one_that_was_taken_and_has_not_begun(self) -> None:
        dropped = self.insert(1)
        dropped.cancel()
        self.failureResultOf(dropped, CancelledError)
        self.lender.step()
        self.assertEqual(self.rows(), [])

    def test_one_that_has_begun_is_finished(self) -> None:
        def insert_and_leave(cursor: sqlite3.Cursor) -> int:
            begun.cancel()
            return insert(cursor, 1)

        begun: Deferred[int] = self.writer.submit(insert_and_leave)
        self.lender.step()
        self.failureResultOf(begun, CancelledError)
        self.assertEqual(self.rows(), [1])

    def test_one_that_is_late_is_told_nothing_twice(self) -> None:
        dropped = self.insert(1)
        dropped.cancel()
        self.failureResultOf(dropped, CancelledError)
        self.lender.step(Lost(StoreFull))


class CloseTests(WriterCase):
    def test_idle(self) -> None:
        self.successResultOf(self.writer.close())
        self.failureResultOf(self.insert(1), StoreClosed)

    def test_what_was_accepted_is_finished(self) -> None:
        first, second = self.insert(1), self.insert(2)
        closed = self.writer.close()
        again = self.writer.close()
        self.failureResultOf(self.insert(3), StoreClosed)
        self.lender.step()
        self.assertNoResult(closed)
        self.lender.step()
        self.assertEqual((self.successResultOf(first), self.successResultOf(second)), (1, 2))
        self.successResultOf(closed)
        self.successResultOf(again)
