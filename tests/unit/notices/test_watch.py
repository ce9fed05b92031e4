"""Looking at the daemon, and putting what is news into the outbox, with its mark."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import QueueCounts
from telegrammer.core.health import FoldingStatus, IngestionStatus
from telegrammer.core.journal import JournalCounts
from telegrammer.core.messages import Mark
from telegrammer.core.notice_texts import Deaths
from telegrammer.core.notices import DeathsWanted
from telegrammer.core.problems import AdmissionTimeout, CommitUncertain, NotAnOutbox, StoreBusy
from telegrammer.notices.handle import LONG_PAUSE, PAUSE, Handle
from telegrammer.notices.watch import LOOK_AT_DEATHS, LOOK_AT_QUEUE, PATIENCE, ROUND, Watch
from tests.support.notices import MemoryFile

START = 1_793_000_000
WELL = IngestionStatus(state="polling", last_success_at=START)
DOWN = IngestionStatus(state="backing_off", reason="network", consecutive_failures=5)


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.file = MemoryFile(self.now)
        self.status = WELL
        self.folding = FoldingStatus()
        self.counts: Deferred[QueueCounts] | None = None
        self.looks = 0
        self.failed: set[int] = set()
        self.dead: Sequence[Deaths] = ()
        self.wanted: list[DeathsWanted] = []
        self.found: Sequence[str] = ()
        self.rings = 0
        self.events = self.enterContext(capturedLogs())
        self.watch = self.new_watch()

    def new_watch(self) -> Watch:
        """As after a restart."""
        return Watch(
            Handle(self.file.open),
            ("op@example.org",),
            lambda: self.status,
            lambda: self.folding,
            self.count,
            self.count_entries,
            self.find_deaths,
            100,
            self.clock,
            self.now,
            lambda: self.found,
            self.ring,
        )

    def now(self) -> float:
        return START + self.clock.seconds()

    def count(self) -> Deferred[QueueCounts]:
        self.looks += 1
        return self.counts or succeed(QueueCounts())

    def count_entries(self) -> Deferred[JournalCounts]:
        return succeed(JournalCounts(failed=len(self.failed), newest_failed=max(self.failed, default=None)))

    def find_deaths(self, wanted: DeathsWanted) -> Deferred[Sequence[Deaths]]:
        self.wanted.append(wanted)
        return succeed(self.dead)

    def ring(self) -> None:
        self.rings += 1

    def round(self, after: float = 0) -> float:
        self.clock.advance(after)
        return self.successResultOf(Deferred.fromCoroutine(self.watch.round()))


class TellingTests(Case):
    def test_nothing_to_tell(self) -> None:
        self.assertEqual(self.round(), ROUND)
        self.assertEqual((self.file.rows, self.rings), ([], 0))

    def test_an_outage_and_its_end_each_once(self) -> None:
        self.status = DOWN
        self.round()
        self.round(2)
        self.assertEqual(self.file.marks, {"ingestion": Mark("ingestion", "failing", START)})
        self.status = WELL
        self.round(2)
        self.round(2)
        self.assertEqual(self.file.subjects, ["Ingestion keeps failing: network", "Ingestion has recovered"])
        self.assertEqual(self.rings, 2)
        self.assertEqual(self.file.rows[0].message.recipients, ("op@example.org",))

    def test_a_message_that_waits_for_room(self) -> None:
        self.folding = FoldingStatus("backing_off", lacks_room=True)
        self.round()
        self.assertEqual(self.file.subjects, ["The delivery queue is full"])

    def test_updates_that_failed_once(self) -> None:
        self.failed = {3, 7}
        self.round()
        self.round(LOOK_AT_QUEUE)
        self.watch = self.new_watch()
        self.round(2)
        self.assertEqual(self.file.subjects, ["2 updates from Telegram cannot be understood"])
        self.assertEqual(self.file.marks, {"updates": Mark("updates", "7", START)})

    def test_a_restart_in_between(self) -> None:
        self.status = DOWN
        self.round()
        self.watch = self.new_watch()
        self.round(2)
        self.status = WELL
        self.round(2)
        self.assertEqual(len(self.file.rows), 2)

    def test_the_marks_are_read_once(self) -> None:
        self.round()
        self.round(2)
        self.assertEqual(self.file.operations.count("marks"), 1)

    def test_deaths_are_looked_for_now_and_then(self) -> None:
        self.dead = [Deaths(7, "HTTP 503", 2, START)]
        self.round()
        self.assertEqual(self.wanted, [DeathsWanted(-1, START, {})])
        self.dead = ()
        self.round(599)
        self.assertEqual(len(self.wanted), 1)
        self.round(1)
        self.round(2)
        self.assertEqual(len(self.wanted), 2)
        self.round(LOOK_AT_DEATHS)
        self.assertEqual(len(self.wanted), 3)
        self.assertEqual(self.file.subjects, ["2 deliveries died, of 1 subscription"])

    def test_purges_are_added_up(self) -> None:
        self.watch.tell_purged(3)
        self.round()
        self.watch.tell_purged(4)
        self.round(2)
        self.watch.tell_purged(5)
        self.round(600)
        self.round(600)
        self.assertEqual(self.file.subjects, ["3 dead deliveries purged", "9 dead deliveries purged"])

    def test_one_that_breaks_a_limit_is_dropped(self) -> None:
        self.watch.recipients = ()
        self.status = DOWN
        self.round()
        self.round(2)
        self.assertEqual((self.watch.dropped, self.file.rows, len(self.events)), (1, [], 1))

    def test_a_backup_is_told_of_once(self) -> None:
        self.found = ["x.db.backup-v0-20260101-000000"]
        self.round()
        self.watch = self.new_watch()
        self.round()
        self.assertEqual(len(self.file.rows), 1)


class FullTests(Case):
    def setUp(self) -> None:
        super().setUp()
        self.file.capacity = 0

    def test_it_is_dropped_once_and_counted(self) -> None:
        self.status = DOWN
        for _ in range(5):
            self.assertEqual(self.round(2), ROUND)
        self.assertEqual((self.watch.dropped, self.rings), (1, 0))
        self.assertEqual(self.file.operations.count("send"), 1)
        self.assertEqual(len([event for event in self.events if "dropped" in event["log_format"]]), 1)
        self.assertEqual(self.watch.handle.trouble, None)

    def test_the_end_of_what_nobody_was_told_of(self) -> None:
        self.status = DOWN
        self.round()
        self.file.capacity = 9
        self.status = WELL
        self.round(2)
        self.assertEqual(self.file.rows, [])
        self.status = DOWN
        self.round(600)
        self.status = WELL
        self.round(2)
        self.assertEqual(len(self.file.rows), 2)

    def test_one_that_gets_worse_once_there_is_room(self) -> None:
        self.status = DOWN
        self.round()
        self.file.capacity = 9
        self.status = evolve(DOWN, state="suspended", reason="credentials")
        self.round(600)
        self.status = WELL
        self.round(2)
        self.assertEqual(
            self.file.subjects, ["Ingestion is suspended: credentials", "Ingestion has recovered"]
        )

    def test_the_end_of_what_he_was_told_of(self) -> None:
        self.file.capacity = 1
        self.status = DOWN
        self.round()
        self.status = WELL
        self.round(2)
        self.round(2)
        self.assertEqual((self.watch.dropped, len(self.file.rows)), (1, 1))

    def test_purges_are_forgotten(self) -> None:
        self.watch.tell_purged(3)
        self.round()
        self.file.capacity = 9
        self.watch.tell_purged(1)
        self.round(600)
        self.assertEqual(self.file.subjects, ["1 dead delivery purged"])


class OutboxTroubleTests(Case):
    def test_the_next_round_tells(self) -> None:
        self.round()
        self.status = DOWN
        self.file.failures.append(AdmissionTimeout("held"))
        self.assertEqual(self.round(2), PAUSE)
        self.assertEqual(self.file.rows, [])
        self.round(PAUSE)
        self.assertEqual(len(self.file.rows), 1)

    def test_no_outbox(self) -> None:
        self.watch.handle.open = lambda: fail(NotAnOutbox("a database"))
        self.assertEqual(self.round(), LONG_PAUSE)

    def test_uncertain(self) -> None:
        """The marks say whether it is stored; either way it is there once, and counted once."""
        for stored in (True, False):
            self.file.rows.clear()
            self.file.marks.clear()
            self.watch, self.rings = self.new_watch(), 0
            self.file.uncertain_but_done = stored
            self.round()
            self.watch.tell_purged(2)
            self.file.failures.append(CommitUncertain("?"))
            self.assertEqual(self.round(2), PAUSE)
            self.assertEqual(len(self.file.rows), stored)
            self.assertEqual(self.round(PAUSE), ROUND)
            self.round(600)
            self.assertEqual(self.file.subjects, ["2 dead deliveries purged"])
            self.assertEqual(self.rings, 1)


class LookingTests(Case):
    def test_the_queue_is_counted_now_and_then(self) -> None:
        self.round()
        self.round(2)
        self.assertEqual(self.looks, 1)
        self.round(LOOK_AT_QUEUE - 2)
        self.assertEqual(self.looks, 2)

    def test_a_full_queue(self) -> None:
        self.counts = succeed(QueueCounts(pending=80))
        self.round()
        self.assertEqual(self.file.subjects, ["The delivery queue is more than 80 % full"])

    def test_a_stuck_database_holds_up_no_notice_of_ingestion(self) -> None:
        self.counts = Deferred()
        self.status = DOWN
        step = Deferred.fromCoroutine(self.watch.round())
        self.clock.advance(PATIENCE)
        self.assertEqual(self.successResultOf(step), ROUND)
        self.assertEqual(len(self.file.rows), 1)

    def test_a_failing_one_neither(self) -> None:
        self.status = DOWN
        self.counts = fail(StoreBusy("locked"))
        self.round()
        self.assertEqual(len(self.file.rows), 1)

    def test_a_fault_is_told_once(self) -> None:
        for _ in range(2):
            self.counts = fail(ZeroDivisionError("secret"))
            self.assertEqual(self.round(LOOK_AT_QUEUE), ROUND)
        self.assertEqual(len(self.events), 1)
        self.assertNotIn("secret", str(self.events))

    def test_figures(self) -> None:
        self.assertEqual((self.watch.outstanding, self.watch.oldest_at), (None, None))
        self.status = DOWN
        self.round()
        self.assertEqual((self.watch.outstanding, self.watch.oldest_at), (1, START))
        self.file.rows.clear()
        self.round(LOOK_AT_QUEUE)
        self.assertEqual((self.watch.outstanding, self.watch.oldest_at), (0, None))
