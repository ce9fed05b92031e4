"""The loop around the pass: what wakes it, how long it backs off, how it stops (contract 8)."""

from __future__ import annotations

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import LogLevel

from telegrammer.core.journal import Accepted
from telegrammer.core.problems import CapacityReached, StoreBusy
from telegrammer.ingest.journal_worker import FoldingService
from telegrammer.ingest.webhook import WebhookIntake
from telegrammer.service import OrderedServices
from telegrammer.store.engine import problem
from tests.support.journal_case import CHAT
from tests.support.pushed import group
from tests.support.queue_checks import subscribe
from tests.unit.ingest.folding_case import FoldingCase


class LoopCase(FoldingCase):
    def run_worker(self) -> Deferred[None]:
        running = Deferred.fromCoroutine(self.worker.run())
        running.addErrback(lambda failure: failure.trap(CancelledError) and None)
        self.addCleanup(running.cancel)
        return running

    def folded(self) -> list[int]:
        return [update_id for update_id, status in self.statuses().items() if status == "folded"]


class RunTests(LoopCase):
    def test_cancelling_ends_the_loop(self) -> None:
        running = Deferred.fromCoroutine(self.worker.run())
        self.assertNoResult(running)
        self.assertEqual(self.worker.status().state, "ok")
        running.cancel()
        self.failureResultOf(running, CancelledError)
        self.assertEqual(self.worker.status().state, "stopped")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_notification_wakes_it_at_once(self) -> None:
        self.run_worker()
        self.enter(group(1, CHAT))
        self.worker.notify()
        self.assertEqual(self.folded(), [1])

    def test_a_lost_notification_loses_no_work(self) -> None:
        self.run_worker()
        self.enter(group(1, CHAT))
        self.clock.advance(4.9)
        self.assertEqual(self.folded(), [])
        self.clock.advance(0.1)
        self.assertEqual(self.folded(), [1])
        # Nor does one of two, whose other came: the pass takes all there is.
        self.enter(group(2, CHAT))
        self.enter(group(3, CHAT))
        self.worker.notify()
        self.assertEqual(self.folded(), [1, 2, 3])

    def test_notifications_during_a_pass_are_one(self) -> None:
        self.staged.gate = Deferred()
        self.enter(group(1, CHAT))
        self.run_worker()
        for number in (2, 3, 4):
            self.enter(group(number, CHAT))
            self.worker.notify()
        before = self.staged_database.reads
        gate, self.staged.gate = self.staged.gate, None
        assert gate is not None
        gate.callback(None)
        self.assertEqual(self.folded(), [1, 2, 3, 4])
        self.assertEqual(self.staged_database.reads, before + 1)

    def test_a_commit_of_another_process_wakes_it(self) -> None:
        self.run_worker()
        self.enter(group(1, CHAT))
        self.worker.notify_commit()
        self.assertEqual(self.folded(), [1])


class BackOffTests(LoopCase):
    def setUp(self) -> None:
        super().setUp()
        self.staged.troubles = {self.enter(group(1, CHAT)): CapacityReached()}
        self.run_worker()

    def test_it_doubles_to_the_tick_and_no_notification_cuts_it_short(self) -> None:
        for seconds in (1, 2, 4, 5, 5):
            tries = len(self.staged.begun)
            self.worker.notify()
            self.clock.advance(seconds - 0.01)
            self.worker.notify()
            self.assertEqual(len(self.staged.begun), tries)
            self.clock.advance(0.01)
            self.assertEqual(len(self.staged.begun), tries + 1)
        self.assertEqual(self.worker.status().state, "backing_off")

    def test_room_and_the_commit_of_another_process_do(self) -> None:
        for notify in (self.worker.notify_room, self.worker.notify_commit):
            tries = len(self.staged.begun)
            notify()
            self.assertEqual(len(self.staged.begun), tries + 1)
        self.staged.troubles = {}
        self.worker.notify_room()
        self.assertEqual(self.folded(), [1])
        self.assertEqual(self.worker.status().state, "ok")

    def test_room_that_was_made_before_is_of_no_meaning(self) -> None:
        self.staged.troubles = {}
        self.worker.notify_room()
        self.worker.notify_room()
        self.staged.troubles = {self.enter(group(2, CHAT)): StoreBusy()}
        self.worker.notify()
        self.clock.advance(0.9)
        self.assertEqual(self.staged.begun, [1, 1, 2])

    def test_room_that_is_made_during_the_pass_counts(self) -> None:
        def make_room(entry: int) -> None:
            self.staged.on_fold = lambda entry: None
            self.worker.notify_room()

        self.staged.on_fold = make_room
        self.clock.advance(1)
        self.assertEqual(len(self.staged.begun), 3)

    def test_a_journal_that_cannot_be_read_as_well(self) -> None:
        self.staged.troubles = {}
        self.clock.advance(1)
        self.enter(group(2, CHAT))
        self.staged_database.read_trouble = problem(StoreBusy)
        self.worker.notify()
        self.staged_database.read_trouble = None
        self.worker.notify()
        self.clock.advance(0.99)
        self.assertEqual(self.folded(), [1])
        self.clock.advance(0.01)
        self.assertEqual(self.folded(), [1, 2])


class Watched(Service):
    """Notes its stop."""

    def __init__(self, title: str, stopped: list[str]) -> None:
        self.title, self.stopped = title, stopped

    def stopService(self) -> None:
        super().stopService()
        self.stopped.append(self.title)


class StopTests(LoopCase):
    def setUp(self) -> None:
        super().setUp()
        subscribe(self.connection, self.owner, CHAT)
        self.stopped: list[str] = []
        self.root = OrderedServices(self.clock, 50)
        self.service = FoldingService(self.worker, self.clock)
        self.service.setName("folding")
        for part in (Watched("database", self.stopped), self.service, Watched("door", self.stopped)):
            part.setServiceParent(self.root)

    def test_it_begins_in_the_first_turn_of_the_reactor(self) -> None:
        self.enter(group(1, CHAT))
        self.root.startService()
        self.assertEqual(self.staged.begun, [])
        self.clock.advance(0)
        self.assertEqual(self.folded(), [1])
        self.successResultOf(self.root.stopService())
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.worker.status().state, "stopped")

    def test_a_start_that_fails_further_on_has_folded_nothing(self) -> None:
        self.enter(group(1, CHAT))
        self.service.startService()
        self.successResultOf(self.service.stopService())
        self.clock.advance(10)
        self.assertEqual(self.staged.begun, [])

    def test_first_the_door_then_the_fold_in_hand_then_the_database(self) -> None:
        self.staged.gate = Deferred()
        for number in (1, 2):
            self.enter(group(number, CHAT))
        before = self.dump()
        self.root.startService()
        self.clock.advance(0)
        stopping = self.root.stopService()
        self.assertEqual(self.stopped, ["door"])
        self.assertNoResult(stopping)
        self.assertEqual(self.dump(), before)
        self.staged.gate.callback(None)
        self.successResultOf(stopping)
        self.assertEqual(self.stopped, ["door", "database"])
        # What was begun is whole, what was not is untouched.
        self.assertEqual(self.statuses(), {1: "folded", 2: "pending"})
        self.assertEqual(self.connection.execute("SELECT COUNT(*) FROM deliveries").fetchone(), (1,))
        self.assertEqual(self.lines(LogLevel.warn, LogLevel.error), [])

    def test_running_out_of_the_budget_is_a_warning(self) -> None:
        self.staged.gate = Deferred()
        self.enter(group(1, CHAT))
        self.root.startService()
        self.clock.advance(0)
        stopping = self.root.stopService()
        self.clock.advance(50)
        self.successResultOf(stopping)
        self.assertEqual(self.stopped, ["door"])
        [line] = self.lines(LogLevel.warn)
        self.assertIn("left unfinished: folding", line)
        self.assertEqual(self.lines(LogLevel.error, LogLevel.critical), [])
        self.staged.gate.callback(None)

    def test_the_end_of_the_loop_by_itself_is_no_secret(self) -> None:
        def broken(seconds: float) -> Deferred[None]:
            raise ZeroDivisionError

        self.patch(type(self.worker), "fold_pass", broken)
        self.root.startService()
        self.clock.advance(0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.worker.status().state, "stopped")
        self.successResultOf(self.root.stopService())


class AcceptanceTests(LoopCase):
    """Accepting does not pay for the worker."""

    def push(self, number: int) -> Accepted:  # type: ignore[override]  # through the intake
        intake = WebhookIntake(self.journal, self.clock, self.worker.notify)
        return self.successResultOf(Deferred.fromCoroutine(intake.accept(group(number, CHAT))))

    def test_with_a_worker_that_hangs(self) -> None:
        self.staged.gate = Deferred()
        self.push(1)
        self.run_worker()
        for number in (2, 3):
            self.assertFalse(self.push(number).is_repeat)
        self.assertEqual(self.statuses(), {1: "pending", 2: "pending", 3: "pending"})

    def test_with_a_worker_that_is_dead(self) -> None:
        for number in (1, 2):
            self.assertFalse(self.push(number).is_repeat)
        self.assertEqual(self.statuses(), {1: "pending", 2: "pending"})

    def test_it_is_folded_without_being_waited_for(self) -> None:
        self.run_worker()
        self.push(1)
        self.assertEqual(self.folded(), [1])
