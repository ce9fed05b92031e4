"""Rounds of tidying the journal: patience with the database, and a word for what went unfolded."""

from __future__ import annotations

from attrs import evolve
from twisted.internet.defer import Deferred, succeed
from twisted.logger import LogLevel

from telegrammer.core.problems import StoreBusy
from telegrammer.ingest.journal_keeping import JournalKeeping
from telegrammer.store import journal_keeping
from telegrammer.store.engine import problem
from telegrammer.store.journal import SqlJournal
from tests.support.pushed import malformed, update
from tests.unit.ingest.folding_case import FoldingCase

DAY = 86_400


class KeepingTests(FoldingCase):
    def setUp(self) -> None:
        super().setUp()
        self.keeping = JournalKeeping(evolve(self.journal, retention=DAY), self.clock, interval=7)

    def round(self) -> None:
        self.assertEqual(self.successResultOf(Deferred.fromCoroutine(self.keeping.round())), 7)

    def test_bodies_go_first_and_entries_later_without_a_word(self) -> None:
        self.fold_pass()
        self.enter(update(1))
        self.fold_pass()
        self.round()
        bodies = "SELECT body IS NULL FROM journal"
        self.assertEqual(self.connection.execute(bodies).fetchall(), [(0,)])
        self.now += DAY + 1
        self.round()
        self.assertEqual(self.connection.execute(bodies).fetchall(), [(1,)])
        self.now += DAY
        self.round()
        self.assertEqual(self.connection.execute(bodies).fetchall(), [])
        self.assertEqual(self.lines(), [])

    def test_what_waits_and_what_failed_stays(self) -> None:
        self.enter(malformed(1))
        self.fold_pass()
        self.enter(update(2))
        self.now += 100 * DAY
        self.round()
        self.assertEqual(self.statuses(), {1: "failed", 2: "pending"})

    def test_failed_ones_that_are_too_many_are_told_of(self) -> None:
        self.patch(journal_keeping, "MOST_FAILED", 1)
        for number in (1, 2, 3):
            self.enter(malformed(number))
        self.fold_pass()
        told = len(self.lines())
        self.round()
        self.assertEqual(self.statuses(), {3: "failed"})
        self.assertEqual(
            self.lines()[told:], ["2 failed updates were purged from the journal, too many are kept"]
        )

    def test_trouble_is_told_once_until_it_is_over(self) -> None:
        for trouble in (problem(StoreBusy), problem(StoreBusy), None, problem(StoreBusy)):
            self.staged_database.write_trouble = trouble
            self.round()
        said = "the journal cannot be tidied, the database is busy"
        self.assertEqual(self.lines(LogLevel.warn), [said, said])

    def test_a_long_round_is_followed_by_a_long_rest(self) -> None:
        def slow(journal: SqlJournal) -> Deferred[int]:
            self.clock.advance(times.pop())
            return succeed(0)

        self.patch(SqlJournal, "let_go", slow)
        times = [2.0, 0.5]
        for rest in (7, 18):
            self.assertEqual(self.successResultOf(Deferred.fromCoroutine(self.keeping.round())), rest)
