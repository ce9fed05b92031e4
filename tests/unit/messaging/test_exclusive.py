"""What fails, and what is certain then (contract 7.2)."""

from __future__ import annotations

import sqlite3
import traceback
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.messages import Mark, Message
from telegrammer.core.problems import AdmissionTimeout, CommitUncertain, OutboxClosed, OutboxFailing
from telegrammer.messaging import outbox_file
from telegrammer.messaging.exclusive import ExclusiveFile
from telegrammer.messaging.outbox import Outbox
from tests.support.outbox import Desk, SteppedLane

HELLO = Message("subject", "the secret body", ["operator@example.org"])


def error(code: int) -> sqlite3.OperationalError:
    found = sqlite3.OperationalError("the secret of SQLite")
    found.sqlite_errorcode = code
    return found


class Faulty:
    """A connection that meets ``fault(statement)`` before each statement; an exception of it is raised."""

    def __init__(self, fault: Callable[[str], Any]) -> None:
        self.fault = fault
        self.opened = 0

    def __call__(self, path: Path) -> sqlite3.Connection:
        self.opened += 1
        real = outbox_file.connect(path)
        fault = self.fault

        class Cursor(sqlite3.Cursor):
            def execute(self, sql: str, parameters: Any = (), /) -> Any:
                fault(sql)
                return super().execute(sql, parameters)

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, parameters: Any = (), /) -> Any:
                fault(sql)
                return super().execute(sql, parameters)

            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

        real.close()
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Connection)


class FaultTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.desk = Desk(self)
        self.fault: Callable[[str], Any] = lambda sql: None
        self.connect = Faulty(lambda sql: self.fault(sql))
        self.lane = SteppedLane()
        self.outbox = self.desk.open(connect=self.connect, lane=self.lane)

    def raising(self, statement: str, problem: BaseException, times: int = 1) -> None:
        left = [times]

        def fault(sql: str) -> None:
            if statement in sql and left[0]:
                left[0] -= 1
                raise problem

        self.fault = fault

    def check_says_nothing(self, failure: Any) -> None:
        self.assertIsNone(failure.value.__cause__)
        text = "".join(traceback.format_exception(failure.value))
        for secret in ("the secret", "INSERT"):
            self.assertNotIn(secret, str(failure.value) + text)

    def outstanding(self, outbox: Outbox | None = None) -> int:
        return self.successResultOf((outbox or self.outbox).outstanding())

    def test_a_commit_that_fails(self) -> None:
        """Uncertain, and the end of the handle; what became of it is found by opening anew."""
        for problem in (error(sqlite3.SQLITE_IOERR), error(sqlite3.SQLITE_FULL), MemoryError(), SystemExit()):
            outbox = self.desk.open(connect=self.connect)
            self.raising("COMMIT", problem)
            failure = self.failureResultOf(outbox.send(HELLO), CommitUncertain)
            self.check_says_nothing(failure)
            self.assertTrue(outbox.is_closed)
            self.failureResultOf(outbox.send(HELLO), OutboxClosed)
            self.successResultOf(outbox.close())
            self.assertEqual(self.outstanding(), 0, "here, nothing")

    def test_a_commit_that_fails_after_it_was_done(self) -> None:
        class Late(sqlite3.Connection):
            def execute(self, sql: str, parameters: Any = (), /) -> Any:
                cursor = super().execute(sql, parameters)
                if sql == "COMMIT":
                    raise error(sqlite3.SQLITE_IOERR)
                return cursor

        def connect(path: Path) -> sqlite3.Connection:
            return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Late)

        outbox = self.desk.open(connect=connect)
        self.failureResultOf(outbox.send(HELLO, marks=[Mark("s", "down", 1)]), CommitUncertain)
        self.assertEqual(self.outstanding(), 1, "here, all")
        self.assertEqual(self.successResultOf(self.outbox.marks()), {"s": Mark("s", "down", 1)})

    def test_those_behind_an_uncertain_one_did_nothing(self) -> None:
        self.lane.stepped = True
        first, second = self.outbox.send(HELLO), self.outbox.send(HELLO)
        self.raising("COMMIT", error(sqlite3.SQLITE_IOERR))
        self.lane.step()
        self.failureResultOf(first, CommitUncertain)
        self.failureResultOf(second, OutboxClosed)
        self.assertEqual(self.lane.stopped, 1)
        self.assertEqual(self.desk.clock.getDelayedCalls(), [])

    def test_a_cancel_hides_no_uncertainty(self) -> None:
        self.lane.stepped = True
        sending = self.outbox.send(HELLO)
        self.raising("COMMIT", error(sqlite3.SQLITE_IOERR))
        tell = self.lane.halfway()
        sending.cancel()
        tell()
        self.failureResultOf(sending, CommitUncertain)

    def test_an_error_before_the_commit(self) -> None:
        for statement, code, said in (
            ("BEGIN", sqlite3.SQLITE_IOERR, "reports an error"),
            ("BEGIN", sqlite3.SQLITE_CANTOPEN, "cannot be written"),
            ("BEGIN", sqlite3.SQLITE_NOTADB, "reports an error"),
            ("INSERT", sqlite3.SQLITE_FULL, "the disk of the outbox is full"),
            ("INSERT", sqlite3.SQLITE_READONLY_DBMOVED, "cannot be written"),
            ("SELECT COUNT", sqlite3.SQLITE_CORRUPT, "reports an error"),
        ):
            before = self.outstanding()
            opened = self.connect.opened
            self.raising(statement, error(code))
            failure = self.failureResultOf(self.outbox.send(HELLO, marks=[Mark("s", "x", 1)]), OutboxFailing)
            self.check_says_nothing(failure)
            self.assertIn(said, str(failure.value))
            self.assertEqual(self.outstanding(), before)
            self.assertEqual(self.connect.opened, opened + 1, "the connection is given up")
            self.assertEqual(self.successResultOf(self.outbox.marks()), {})
            self.successResultOf(self.outbox.send(HELLO))

    def test_a_rollback_that_fails(self) -> None:
        def fault(sql: str) -> None:
            if "INSERT" in sql or "ROLLBACK" in sql:
                raise error(sqlite3.SQLITE_IOERR)

        self.fault = fault
        self.failureResultOf(self.outbox.send(HELLO), OutboxFailing)
        self.fault = lambda sql: None
        self.assertEqual(self.outstanding(), 0)

    def test_a_fault_of_the_program_is_rolled_back_and_shown(self) -> None:
        self.raising("INSERT INTO messages", ZeroDivisionError())
        self.failureResultOf(self.outbox.send(HELLO), ZeroDivisionError)
        self.assertEqual(self.outstanding(), 0)

    def test_busy_is_waited_for(self) -> None:
        self.raising("BEGIN", error(sqlite3.SQLITE_BUSY), times=3)
        self.successResultOf(self.outbox.send(HELLO))

    def test_an_end_between_two_rounds(self) -> None:
        """The "thread" finds out by itself."""
        self.lane.stepped = True
        ends: dict[type[BaseException], Callable[[Deferred[str]], Any]] = {
            CancelledError: lambda sending: sending.cancel(),
            AdmissionTimeout: lambda sending: self.desk.clock.advance(1),
        }
        for kind, end in ends.items():
            sending = self.outbox.send(HELLO)
            rounds = count(1)

            reach = partial(end, sending)

            def fault(sql: str, reach: Callable[[], Any] = reach, rounds: Any = rounds) -> None:
                if "BEGIN" in sql:
                    if next(rounds) == 3:
                        reach()
                    raise error(sqlite3.SQLITE_BUSY)

            self.fault = fault
            self.lane.step()
            self.assertEqual(next(rounds), 4)
            self.failureResultOf(sending, kind)
            self.fault = lambda sql: None
        self.lane.stepped = False
        self.assertEqual(self.outstanding(), 0)

    def test_an_end_while_the_lock_comes(self) -> None:
        """Locked, but not admitted any more: rolled back."""
        self.lane.stepped = True
        sending = self.outbox.send(HELLO)

        def fault(sql: str) -> None:
            if "BEGIN" in sql:
                sending.cancel()

        self.fault = fault
        self.lane.step()
        self.failureResultOf(sending, CancelledError)
        self.fault = lambda sql: None
        self.lane.stepped = False
        self.assertEqual(self.outstanding(), 0)
        self.assertEqual(self.connect.opened, 1, "the handle goes on with its connection")

    def test_another_journal_mode_is_waited_for(self) -> None:
        other = self.desk.open()
        with mock.patch.object(
            ExclusiveFile, "_journal_mode", side_effect=["wal", "delete", "delete"]
        ) as setting:
            self.successResultOf(other.send(HELLO))
        self.assertEqual(setting.call_count, 3)

    def test_an_opening_that_fails(self) -> None:
        for problem in (error(sqlite3.SQLITE_CANTOPEN), OSError(24, "Too many open files")):
            lane = SteppedLane()

            def connect(path: Path, problem: Exception = problem) -> sqlite3.Connection:
                raise problem

            opening = Outbox.open(
                self.desk.config(),
                reactor=self.desk.clock,
                mounts=self.desk.mounts,
                connect=connect,
                lane=lane,
            )
            self.failureResultOf(opening, OutboxFailing)
            self.assertEqual(lane.stopped, 1)

    def test_an_opening_that_is_cancelled_at_its_end(self) -> None:
        lane = SteppedLane(stepped=True)
        made: list[sqlite3.Connection] = []

        def connect(path: Path) -> sqlite3.Connection:
            opening.cancel()
            made.append(outbox_file.connect(path))
            return made[0]

        opening = Outbox.open(
            self.desk.config(), reactor=self.desk.clock, mounts=self.desk.mounts, connect=connect, lane=lane
        )
        lane.step()
        self.failureResultOf(opening, CancelledError)
        self.assertRaises(sqlite3.ProgrammingError, made[0].execute, "SELECT 1")
        self.assertEqual(lane.stopped, 1)

    def test_a_file_that_is_gone(self) -> None:
        """Nothing is promised that nobody would find; put back, all goes on."""
        away = self.desk.path.with_name("away")
        self.desk.path.rename(away)
        for _ in range(2):
            self.failureResultOf(self.outbox.send(HELLO), OutboxFailing)
        self.assertFalse(self.desk.path.exists())
        away.rename(self.desk.path)
        self.successResultOf(self.outbox.send(HELLO))

    def test_a_file_that_was_replaced(self) -> None:
        self.successResultOf(self.outbox.send(HELLO))
        self.desk.path.rename(self.desk.path.with_name("away"))
        outbox_file.create(self.desk.path)
        self.failureResultOf(self.outbox.send(HELLO), OutboxFailing)
        self.assertEqual(self.outstanding(), 0, "the new one, from now on")

    def test_a_file_set_to_write_ahead(self) -> None:
        """There readers would not be waited for."""
        self.successResultOf(self.outbox.close())
        self.desk.rows("PRAGMA journal_mode=WAL")
        other = self.desk.open()
        self.successResultOf(other.send(HELLO))
        self.assertEqual(self.desk.rows("PRAGMA journal_mode"), [("delete",)])

    def test_a_file_set_to_write_ahead_under_a_handle(self) -> None:
        self.successResultOf(self.outbox.send(HELLO))
        self.desk.rows("PRAGMA journal_mode=WAL")
        self.successResultOf(self.outbox.send(HELLO))
        self.assertEqual(self.desk.rows("PRAGMA journal_mode"), [("delete",)])

    def test_a_damaged_schema(self) -> None:
        """SQLite's words about it quote the damage, and need not be UTF-8."""
        self.successResultOf(self.outbox.close())
        whole = self.desk.path.read_bytes()
        self.desk.path.write_bytes(whole.replace(b"CREATE TABLE marks", b"CREATE \xffABLE marks"))
        damaged = self.desk.open()
        self.failureResultOf(damaged.send(HELLO), OutboxFailing)
        self.failureResultOf(damaged.claim(), OutboxFailing)
        self.desk.path.write_bytes(whole)
        self.successResultOf(damaged.send(HELLO))
