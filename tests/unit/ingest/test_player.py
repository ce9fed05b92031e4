"""The player: an error becomes an outcome, the same for the worker and for ``replay`` (contract 8)."""

from __future__ import annotations

import sqlite3

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import LogLevel

from telegrammer.core.folding import Outcome
from telegrammer.core.problems import (
    CapacityReached,
    MalformedUpdate,
    OutOfTurn,
    StoreBusy,
    StoreClosed,
    StoreFull,
    UnknownEntry,
)
from telegrammer.ingest import player
from telegrammer.store.engine import problem
from tests.support.journal_case import CHAT
from tests.support.pushed import group, malformed, update
from tests.support.queue_checks import subscribe
from tests.unit.ingest.folding_case import FoldingCase

CLASSIFIED: tuple[tuple[Exception, Outcome, str, LogLevel], ...] = (
    # A circumstance: it stays as it was.
    (StoreBusy(), Outcome(deferred=1), "pending", LogLevel.warn),
    (StoreFull(), Outcome(deferred=1), "pending", LogLevel.warn),
    (StoreClosed(), Outcome(deferred=1), "pending", LogLevel.warn),
    (CapacityReached(), Outcome(deferred=1), "pending", LogLevel.warn),
    (OutOfTurn(), Outcome(deferred=1), "pending", LogLevel.warn),
    (MemoryError(), Outcome(deferred=1), "pending", LogLevel.warn),
    (CancelledError(), Outcome(deferred=1), "pending", LogLevel.warn),
    # What it holds.
    (MalformedUpdate(7, "odd"), Outcome(failed=1), "failed", LogLevel.warn),
    (MalformedUpdate(None, "odd"), Outcome(failed=1), "failed", LogLevel.warn),
    # A fault of ours: the same would happen again, for ever.
    (ZeroDivisionError("canary"), Outcome(failed=1), "failed", LogLevel.error),
    (RecursionError("canary"), Outcome(failed=1), "failed", LogLevel.error),
    (sqlite3.IntegrityError("canary"), Outcome(failed=1), "failed", LogLevel.error),
)


class PlayerTests(FoldingCase):
    def setUp(self) -> None:
        super().setUp()
        self.player = self.worker.player

    def play(self, entry_id: int) -> Outcome:
        return self.successResultOf(Deferred.fromCoroutine(self.player.play(entry_id)))

    def test_an_entry_that_folds(self) -> None:
        subscribe(self.connection, self.owner, CHAT)
        entry = self.enter(group(1, CHAT))
        self.assertEqual(self.play(entry), Outcome(folded=1, jobs=1))
        self.assertEqual(self.rings, 1)
        self.assertEqual(self.play(entry), Outcome(already=1))
        self.assertEqual(self.play(self.enter(update(2))), Outcome(unsupported=1))
        self.assertEqual((self.rings, self.lines()), (1, []))

    def test_the_table_of_errors(self) -> None:
        told = 0
        for number, (error, outcome, status, level) in enumerate(CLASSIFIED, 100):
            with self.subTest(error=error):
                entry = self.enter(group(number, CHAT))
                self.staged.troubles = {entry: error}
                self.player = self.new_worker().player
                self.assertEqual(self.play(entry), outcome)
                self.assertEqual(self.statuses()[number], status)
                said = self.lines(level)[-1]
                self.assertIn(f"update {number}, entry {entry} " if outcome.failed else f"{entry} of", said)
                self.assertNotIn("canary", said)
                told += 1
                self.assertEqual(len(self.lines()), told)
                self.connection.execute("DELETE FROM journal")

    def check_busy(self) -> None:
        """The lock is held while the entry would be folded, and no longer after that."""
        entry = self.enter(group(1, CHAT))
        self.staged.troubles = {entry: problem(StoreBusy)}
        before = self.dump()
        self.assertEqual(self.play(entry), Outcome(deferred=1))
        self.assertEqual(self.dump(), before)

    def test_busy_storage_leaves_it_pending_and_content_makes_it_failed(self) -> None:
        self.check_busy()
        self.assertEqual(self.lines(), ["entry 1 of the journal waits: the database is busy"])
        self.staged.troubles = {}
        self.play(1)
        self.assertEqual(self.play(self.enter(malformed(2))), Outcome(failed=1))
        self.assertEqual(self.statuses(), {1: "folded", 2: "failed"})
        self.assertIn("update 2, entry 2 of the journal, cannot be folded: message.chat.id", self.lines()[1])

    def test_the_rule_that_busy_storage_is_a_circumstance_is_what_keeps_it(self) -> None:
        self.patch(player, "is_circumstance", lambda error: False)
        self.assertRaises(self.failureException, self.check_busy)

    def test_a_failure_that_cannot_be_written_is_put_off(self) -> None:
        entry = self.enter(malformed(1))
        self.staged.troubles = {entry: MalformedUpdate(1, "odd")}
        for trouble, errors in ((problem(StoreBusy), 0), (ZeroDivisionError("canary"), 1)):
            self.staged_database.write_trouble = trouble
            self.assertEqual(self.play(entry), Outcome(deferred=1))
            self.assertEqual(len(self.lines(LogLevel.error)), errors)
        self.assertEqual(self.statuses(), {1: "pending"})
        self.assertNotIn("canary", "".join(self.lines()))
        self.staged_database.write_trouble = None
        self.assertEqual(self.play(entry), Outcome(failed=1))

    def test_what_another_has_folded_meanwhile_is_no_failure(self) -> None:
        entry = self.enter(group(1, CHAT))
        self.fold(entry)
        for error, errors in ((MalformedUpdate(1, "odd"), 0), (ZeroDivisionError(), 1)):
            self.staged.troubles = {entry: error}
            self.assertEqual(self.play(entry), Outcome(already=1))
            self.assertEqual(len(self.lines()), errors)
        self.assertEqual(self.statuses(), {1: "folded"})
        self.assertIn("entry 1 of the journal is folded, though an unexpected ZeroDiv", self.lines()[0])

    def test_a_bug_after_the_commit_is_no_failure_of_the_entry(self) -> None:
        def broken() -> None:
            raise ZeroDivisionError

        subscribe(self.connection, self.owner, CHAT)
        self.player.ingestor.on_jobs = broken
        self.assertEqual(self.play(self.enter(group(1, CHAT))), Outcome(already=1))
        self.assertEqual(self.statuses(), {1: "folded"})

    def test_a_circumstance_is_told_of_once_until_it_is_over_or_another(self) -> None:
        entry = self.enter(group(1, CHAT))
        for error in (StoreBusy(), StoreBusy(), CapacityReached(), StoreBusy()):
            self.staged.troubles = {entry: error}
            self.play(entry)
        self.assertEqual(len(self.lines(LogLevel.warn)), 3)
        # One that gets through between two that wait is not its end.
        self.staged.troubles = {}
        self.play(entry)
        second = self.enter(group(2, CHAT))
        self.staged.troubles = {second: StoreBusy()}
        self.play(second)
        self.assertEqual(len(self.lines(LogLevel.warn)), 3)
        self.player.reached_end()
        self.assertIsNone(self.player.waits_for)
        self.play(second)
        self.assertEqual(len(self.lines(LogLevel.warn)), 4)

    def test_an_entry_that_is_not_there(self) -> None:
        self.failureResultOf(Deferred.fromCoroutine(self.player.play(99)), UnknownEntry)
        self.assertEqual(self.lines(), [])

    def test_a_failed_entry_that_fails_again_has_the_new_reason(self) -> None:
        entry = self.enter(malformed(1))
        self.successResultOf(self.journal.fail(entry, "as an older version said"))
        self.assertEqual(self.play(entry), Outcome(failed=1))
        [(reason,)] = self.connection.execute("SELECT reason FROM journal")
        self.assertIn("message.chat.id", reason)
