"""One pass over the journal: finite, in order, an entry at a time, and what the log is told (contract 8)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.logger import LogLevel

from telegrammer.core.delivery import Answered, AttemptResult, Claimed
from telegrammer.core.folding import Outcome
from telegrammer.core.health import FoldingStatus
from telegrammer.core.journal import Late
from telegrammer.core.problems import (
    CapacityReached,
    MalformedUpdate,
    StorageUnavailable,
    StoreBusy,
    StoreFull,
    UnknownEntry,
)
from telegrammer.core.retry import Schedule
from telegrammer.delivery.dispatcher import Dispatcher
from telegrammer.ingest.player import Player
from telegrammer.store.deliveries import SqlDeliveries
from telegrammer.store.engine import problem
from telegrammer.store.journal import SqlJournal
from telegrammer.store.turns import QueueRules
from tests.support.journal_case import CHAT, NOW
from tests.support.pushed import group, malformed, person, update
from tests.support.queue_checks import subscribe
from tests.unit.ingest.folding_case import FoldingCase


class PassTests(FoldingCase):
    portion = 3

    def test_a_pass_folds_what_waits_and_counts_each_update_once(self) -> None:
        subscribe(self.connection, self.owner, CHAT)
        for body in (
            group(1, CHAT),
            update(2),
            malformed(3),
            group(4, CHAT),
            group(5, 99),
            person(6, 7, "al"),
        ):
            self.enter(body)
        done = self.fold_pass()
        self.assertEqual(done, Outcome(folded=4, unsupported=1, failed=1, jobs=2))
        self.assertEqual(done.taken, 6)
        self.assertEqual(self.fold_pass(), Outcome())

    def test_it_ends_at_an_entry_that_stays_pending_and_takes_none_twice(self) -> None:
        entries = [self.enter(group(number, CHAT)) for number in range(1, 8)]
        self.staged.troubles = {entries[4]: StoreBusy()}
        self.assertEqual(self.fold_pass(), Outcome(folded=4, deferred=1))
        self.assertEqual(self.staged.begun, entries[:5])
        self.assertEqual(set(self.statuses().values()), {"folded", "pending"})
        self.assertEqual(self.fold_pass(), Outcome(deferred=1))
        self.staged.troubles = {}
        self.assertEqual(self.fold_pass(), Outcome(folded=3))
        self.assertEqual(self.staged.begun[6:], entries[4:])

    def test_an_entry_that_stays_pending_though_it_was_folded_is_not_selected_again(self) -> None:
        # As if its status could not be written, and nobody said so.
        entries = [self.enter(group(number, CHAT)) for number in range(1, 8)]
        self.connection.execute(
            "CREATE TEMP TRIGGER stays AFTER UPDATE ON journal WHEN new.parse_status = 'folded'"
            " BEGIN UPDATE journal SET parse_status = 'pending' WHERE id = new.id; END"
        )
        self.assertEqual(self.fold_pass(), Outcome(folded=1, deferred=1))
        self.assertEqual(self.staged.begun, entries[:2])

    def test_it_is_finite_though_each_fold_brings_another_update(self) -> None:
        def another() -> None:
            self.enter(group(next(numbers), CHAT))

        numbers = count(1)
        subscribe(self.connection, self.owner, CHAT)
        for _ in range(7):
            another()
        self.worker.player.ingestor.on_jobs = another
        # As many as waited when the first portion of three had made three more.
        self.assertEqual(self.fold_pass(), Outcome(folded=10, jobs=10))
        self.assertEqual(self.fold_pass().folded, 10)

    def test_a_short_pass_costs_one_look(self) -> None:
        self.fold_pass()
        self.enter(group(1, CHAT))
        before = self.staged_database.reads
        self.fold_pass()
        self.assertEqual(self.staged_database.reads, before + 1)

    def test_folding_twice_changes_nothing(self) -> None:
        subscribe(self.connection, self.owner, CHAT)
        for body in (group(1, CHAT), person(2, 7, "alice"), group(3, CHAT, migrate_to_chat_id=-100)):
            self.enter(body)
        self.fold_pass()
        before = self.dump()
        for entry in (1, 2, 3):
            played = Deferred.fromCoroutine(self.worker.player.play(entry))
            self.assertEqual(self.successResultOf(played), Outcome(already=1))
        self.assertEqual(self.fold_pass(), Outcome())
        self.assertEqual(self.dump(), before)

    def test_a_repeat_of_what_was_folded_is_not_folded_again(self) -> None:
        subscribe(self.connection, self.owner, CHAT)
        self.enter(group(1, CHAT))
        self.fold_pass()
        before = self.dump()
        self.assertTrue(self.accept(group(1, CHAT)).is_repeat)
        self.assertEqual(self.fold_pass(), Outcome())
        self.assertEqual(self.dump(), before)

    def test_a_crash_of_one_fold_fails_that_entry_alone(self) -> None:
        entries = [self.enter(group(number, CHAT)) for number in range(1, 4)]
        self.staged.troubles = {entries[1]: ZeroDivisionError("canary")}
        self.assertEqual(self.fold_pass(), Outcome(folded=2, failed=1))
        self.assertEqual(self.statuses(), {1: "folded", 2: "failed", 3: "folded"})
        [line] = self.lines(LogLevel.error)
        self.assertIn("update 2, entry 2 of the journal, met an unexpected ZeroDivisionError at ", line)
        self.assertNotIn("canary", line)

    def test_a_full_queue_leaves_what_follows_in_its_place(self) -> None:
        entries = [self.enter(group(number, CHAT)) for number in range(1, 4)]
        self.staged.troubles = {entries[1]: CapacityReached()}
        self.assertEqual(self.fold_pass(), Outcome(folded=1, deferred=1))
        self.assertEqual(self.statuses(), {1: "folded", 2: "pending", 3: "pending"})
        self.assertEqual(self.worker.status(), FoldingStatus("backing_off", lacks_room=True))
        self.staged.troubles = {2: StoreBusy()}
        self.fold_pass()
        self.assertEqual(self.worker.status(), FoldingStatus("backing_off"))
        self.staged.troubles = {}
        self.assertEqual(self.fold_pass(), Outcome(folded=2))
        self.assertEqual(self.worker.status(), FoldingStatus())
        self.assertEqual(
            self.lines(),
            [
                "3 updates of the journal wait to be folded",
                "entry 2 of the journal waits: the queue has no room for its message",
                "entry 2 of the journal waits: the database is busy",
                "folding goes on after 2 passes that were cut off",
            ],
        )

    def test_a_queue_that_stays_full_is_told_of_once(self) -> None:
        """However many entries get through meanwhile, one for each job that leaves."""
        for number in range(1, 21):
            self.enter(group(number, CHAT))
        for waits in range(2, 21):
            self.staged.troubles = {waits: CapacityReached()}
            self.assertEqual(self.fold_pass(), Outcome(folded=1, deferred=1))
        self.assertEqual(len(self.lines(LogLevel.warn)), 1)
        self.staged.troubles = {}
        self.assertEqual(self.fold_pass(), Outcome(folded=1))
        self.staged.troubles = {self.enter(group(21, CHAT)): CapacityReached()}
        self.fold_pass()
        self.assertEqual(len(self.lines(LogLevel.warn)), 2)

    def test_an_entry_that_is_gone_counts_as_folded_by_another(self) -> None:
        # These are not really gone, so they are there again for who selects from the beginning.
        for number in (1, 2, 3, 4):
            self.enter(group(number, CHAT))
        self.staged.troubles = {number: UnknownEntry() for number in (1, 2, 3)}
        self.assertEqual(self.fold_pass(), Outcome(already=3, deferred=1))
        self.assertEqual(self.staged.begun, [1, 2, 3, 4])

    def test_a_fault_of_the_player_defers(self) -> None:
        def broken(player: Player, entry_id: int) -> Deferred[Outcome]:
            raise ZeroDivisionError

        self.enter(group(1, CHAT))
        self.patch(Player, "play", broken)
        self.assertEqual(self.fold_pass(), Outcome(deferred=1))
        self.assertEqual(len(self.lines(LogLevel.error)), 1)

    def test_a_journal_that_cannot_be_read_ends_the_pass_not_the_worker(self) -> None:
        self.enter(group(1, CHAT))
        for trouble, level in ((ZeroDivisionError("x"), LogLevel.error), (problem(StoreBusy), LogLevel.warn)):
            self.staged_database.read_trouble = trouble
            for _ in range(2):
                self.assertEqual(self.fold_pass(), Outcome())
            self.assertEqual(len(self.lines(level)), 1)
            self.assertEqual(self.worker.status().state, "backing_off")
        self.assertEqual(self.worker.status().state, "backing_off")
        self.staged_database.read_trouble = None
        self.assertEqual(self.fold_pass(), Outcome(folded=1))
        self.staged_database.read_trouble = problem(StoreBusy)
        told = len(self.lines(LogLevel.warn))
        self.fold_pass()
        self.assertEqual(len(self.lines(LogLevel.warn)), told + 1)

    def test_what_was_folded_before_the_reading_failed_counts(self) -> None:
        for number in range(1, 5):
            self.enter(group(number, CHAT))

        def trouble(entry: int) -> None:
            if entry == 3:
                self.staged_database.read_trouble = problem(StoreFull)

        self.staged.on_fold = trouble
        self.assertEqual(self.fold_pass(), Outcome(folded=3))
        self.assertEqual(self.worker.status().state, "backing_off")


class InterruptedTests(FoldingCase):
    def setUp(self) -> None:
        super().setUp()
        subscribe(self.connection, self.owner, CHAT)
        subscribe(self.connection, self.owner, CHAT, "http://h/2")
        message = {"chat": {"id": CHAT, "type": "private", "username": "al"}, "migrate_to_chat_id": -100}
        self.enter(update(1, message))
        self.before = self.dump()

    def break_each_statement(self, error: Exception, check: Callable[[], None]) -> int:
        for number in count(1):
            self.staged_database.break_at, self.staged_database.error = number, error
            if self.fold_pass().folded:
                return number - 1
            check()
        raise AssertionError

    def test_a_fold_that_is_interrupted_anywhere_leaves_nothing(self) -> None:
        """The disk fills at each statement of the fold in turn: the entry is pending, all is as before."""
        full = sqlite3.OperationalError("database or disk is full")
        full.sqlite_errorcode = sqlite3.SQLITE_FULL
        statements = self.break_each_statement(full, lambda: self.assertEqual(self.dump(), self.before))
        self.assertGreater(statements, 10)
        self.assertEqual(self.statuses(), {1: "folded"})
        self.assertEqual(self.lines(LogLevel.warn), ["entry 1 of the journal waits: the database is full"])

    def test_a_crash_anywhere_leaves_nothing_but_the_failure(self) -> None:
        def check() -> None:
            self.assertEqual(self.statuses(), {1: "failed"})
            self.connection.execute("UPDATE journal SET parse_status = 'pending', reason = NULL")
            self.assertEqual(self.dump(), self.before)

        self.assertGreater(self.break_each_statement(ZeroDivisionError(), check), 10)


class CancelledTests(FoldingCase):
    def setUp(self) -> None:
        super().setUp()
        subscribe(self.connection, self.owner, CHAT)
        for number in (1, 2, 3):
            self.enter(group(number, CHAT))
        self.staged.gate = Deferred()

    def test_the_fold_in_hand_is_seen_through_and_no_other_begun(self) -> None:
        passing = self.begin_pass()
        for _ in range(3):
            passing.cancel()
        self.assertNoResult(passing)
        gate, self.staged.gate = self.staged.gate, None
        assert gate is not None
        gate.callback(None)
        self.failureResultOf(passing, CancelledError)
        self.assertEqual(self.statuses(), {1: "folded", 2: "pending", 3: "pending"})
        self.assertEqual(self.rings, 1)
        # Nobody is told of a trouble: there was none.
        self.assertEqual(self.lines(LogLevel.warn, LogLevel.error), [])
        self.assertEqual(self.fold_pass(), Outcome(folded=2, jobs=2))

    def test_while_the_journal_is_read(self) -> None:
        self.staged_database.reading = Deferred()
        passing = self.begin_pass()
        passing.cancel()
        self.failureResultOf(passing, CancelledError)
        self.assertEqual(self.staged.begun, [])


class Receiver:
    """Answers 200 at once, and keeps what came."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def post(self, job: Claimed) -> Deferred[AttemptResult]:
        self.bodies.append(job.body)
        return succeed(Answered(200))


class OrderTests(FoldingCase):
    def receive(self, portion: int, accepted: list[tuple[int, int]]) -> tuple[list[bytes], list[bytes]]:
        """
        What a receiver gets, and what was accepted.

        Each job is delivered as soon as it is made, so the receiver sees the order of folding, whatever the
        update ids are.

        :param accepted: update ids, and by how many seconds the clock is set before each.
        """
        self.portion = portion
        self.setUp()
        self.connection.execute("UPDATE gateway SET bot_id = 1")
        subscribe(self.connection, self.owner, CHAT)
        receiver, schedule = Receiver(), Schedule()
        deliveries = SqlDeliveries(
            self.database, lambda: self.now, QueueRules(schedule.attempts, 1000, 1000), 60
        )
        dispatcher = Dispatcher(
            deliveries, receiver, self.clock, lambda: self.now, lambda: 0.0, schedule, workers=1
        )
        dispatcher.startService()
        self.clock.advance(0)
        self.worker.player.ingestor.on_jobs = dispatcher.wake
        for update_id, seconds in accepted:
            self.now += seconds
            self.enter(group(update_id, CHAT))
        self.now += 10_000
        self.assertEqual(self.fold_pass().folded, len(accepted))
        sent = [b'{"chat":{"id":5,"type":"group"},"text":"u%d"}' % update_id for update_id, _ in accepted]
        return receiver.bodies, sent

    @settings(max_examples=40, deadline=None)
    @given(st.integers(1, 8), st.permutations(range(1, 8)))
    def test_within_a_second_the_order_is_that_of_acceptance_for_every_portion(
        self, portion: int, ids: list[int]
    ) -> None:
        received, sent = self.receive(portion, [(update_id, 0) for update_id in ids])
        self.assertEqual(received, sent)

    @settings(max_examples=40, deadline=None)
    @given(st.integers(1, 5), st.lists(st.integers(-3600, 3600), min_size=1, max_size=7))
    def test_a_clock_that_is_set_back_changes_nothing(self, portion: int, steps: list[int]) -> None:
        received, sent = self.receive(portion, list(enumerate(steps, 1)))
        self.assertEqual(received, sent)

    def test_the_last_of_a_second_names_the_chat(self) -> None:
        for number, name in enumerate(("carol", "bob", "alice"), 1):
            self.enter(person(number, 7, name))
        self.fold_pass()
        self.assertEqual(self.names(), {"alice": 7})


class LatenessTests(FoldingCase):
    def late(self) -> list[str]:
        return [line for line in self.lines(LogLevel.warn) if "five minutes or longer" in line]

    def test_the_backlog_of_the_first_pass_is_told_of_as_what_it_is(self) -> None:
        for number in (1, 2):
            self.enter(group(number, CHAT))
        self.now += 3600
        self.fold_pass()
        self.assertEqual(self.lines(), ["2 updates of the journal wait to be folded"])
        self.fold_pass()
        self.assertEqual(len(self.lines()), 1)

    def test_no_backlog_is_not_told_of(self) -> None:
        self.fold_pass()
        self.enter(group(1, CHAT))
        self.fold_pass()
        self.assertEqual(self.lines(), [])

    def test_lateness_shows_without_progress(self) -> None:
        self.fold_pass()
        for number in (1, 2, 3):
            self.enter(group(number, CHAT))
            self.now += 1
        self.staged.troubles = {1: StoreBusy()}
        self.now = NOW + 301.9
        self.assertEqual(self.fold_pass(), Outcome(deferred=1))
        # The second is at five minutes, the third not yet.
        said = "2 updates have waited to be folded for five minutes or longer, the longest for 301 s"
        self.assertEqual(self.late(), [said])

    def test_a_pass_that_was_cut_off_does_not_arm_it(self) -> None:
        self.staged.troubles = {self.enter(group(1, CHAT)): StoreBusy()}
        for _ in range(3):
            self.now += 3600
            self.clock.advance(3600)
            self.fold_pass()
        self.assertEqual(self.late(), [])

    def test_once_a_pass_and_at_most_once_a_minute(self) -> None:
        self.portion = 2
        self.worker = self.new_worker()
        self.fold_pass()
        entries = [self.enter(group(number, CHAT)) for number in range(1, 6)]
        self.now += 1000
        self.staged.troubles = {entries[4]: StoreBusy()}
        self.fold_pass()
        self.assertEqual(len(self.late()), 1)
        self.assertIn("5 updates", self.late()[0])
        self.clock.advance(59)
        self.fold_pass()
        self.assertEqual(len(self.late()), 1)
        self.clock.advance(1)
        self.fold_pass()
        self.assertEqual(len(self.late()), 2)
        self.assertIn("1 updates", self.late()[1])

    def test_what_another_has_folded_since_the_selection_is_not_late(self) -> None:
        self.fold_pass()
        self.enter(group(1, CHAT))
        self.now += 1000
        self.patch(SqlJournal, "late", lambda journal, until: succeed(Late()))
        self.fold_pass()
        self.assertEqual(self.late(), [])

    def test_what_is_folded_in_time_is_not_late(self) -> None:
        self.fold_pass()
        self.enter(group(1, CHAT))
        self.now += 299
        self.fold_pass()
        self.assertEqual(self.late(), [])

    def test_a_clock_that_was_set_back_makes_nothing_late(self) -> None:
        self.fold_pass()
        self.enter(group(1, CHAT))
        self.now -= 3600
        self.staged.troubles = {1: StoreBusy()}
        self.fold_pass()
        self.assertEqual(self.late(), [])


class SecrecyTests(FoldingCase):
    def test_lines_hold_only_ids_counts_and_kinds(self) -> None:
        """Everything that the worker and the player say, at every level, of updates full of canaries."""
        subscribe(self.connection, self.owner, CHAT, "http://h/?canary")
        self.fold_pass()
        self.enter(group(1, CHAT, text="canary"))
        self.enter(person(2, 987654321, "canary_name"))
        self.enter(update(3, {"chat": {"id": 0, "type": "canary"}, "canary": "canary"}))
        for number in (4, 5, 6):
            self.enter(group(number, CHAT, caption="canary", migrate_to_chat_id=-987654321))
        self.staged.troubles = {4: MalformedUpdate(4, "odd"), 5: ValueError("canary"), 6: StoreFull("canary")}
        self.now += 1000
        self.fold_pass()
        self.staged.troubles = {}
        self.staged_database.read_trouble = StorageUnavailable("canary")
        self.fold_pass()
        self.staged_database.read_trouble = KeyError("canary")
        self.fold_pass()
        self.staged_database.read_trouble = None
        self.fold_pass()
        self.assertGreater(len(self.events), 8)
        for event in self.events:
            said = repr({name: value for name, value in event.items() if not name.startswith("log_")})
            for canary in ("canary", "987654321"):
                self.assertNotIn(canary, said + str(event["log_format"]))
            self.assertNotIn("log_failure", event)
