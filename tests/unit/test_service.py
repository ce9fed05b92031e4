"""Repeating steps, ordered start and stop, what systemd is told."""

from __future__ import annotations

import os
import socket
import tempfile
from typing import cast

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.service import Listeners, OrderedServices, Repeating, SystemdNotifier, Wakeup


class WakeupTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.wakeup = Wakeup(self.clock)

    def test_rests_for_the_given_time(self) -> None:
        rest = self.wakeup.rest(10)
        self.clock.advance(9.9)
        self.assertNoResult(rest)
        self.clock.advance(0.1)
        self.successResultOf(rest)

    def test_a_ring_ends_the_rest_and_its_timer(self) -> None:
        rest = self.wakeup.rest(10)
        self.wakeup.ring()
        self.successResultOf(rest)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_rings_without_a_rest_are_kept_as_one(self) -> None:
        self.wakeup.ring()
        self.wakeup.ring()
        self.successResultOf(self.wakeup.rest(10))
        self.assertNoResult(self.wakeup.rest(10))

    def test_a_cancelled_rest_leaves_no_timer(self) -> None:
        rest = self.wakeup.rest(10)
        rest.cancel()
        self.successResultOf(rest)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.wakeup.ring()
        self.successResultOf(self.wakeup.rest(10))


class ListenersTests(SynchronousTestCase):
    def test_all_are_told_also_those_who_came_later(self) -> None:
        told: list[str] = []
        listeners = Listeners()
        tell = listeners.tell
        tell()
        listeners.add(lambda: told.append("a"))
        listeners.add(lambda: told.append("b"))
        tell()
        self.assertEqual(told, ["a", "b"])


class RepeatingTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.steps: list[Deferred[float]] = []
        self.wakeup = Wakeup(self.clock)

        async def step() -> float:
            self.steps.append(Deferred())
            return await self.steps[-1]

        self.service = Repeating(step, self.clock, self.wakeup)
        self.service.setName("worker")

    def start(self) -> None:
        self.service.startService()
        self.clock.advance(0)

    def test_the_first_step_waits_for_the_reactor(self) -> None:
        self.service.startService()
        self.assertEqual(self.steps, [])
        self.clock.advance(0)
        self.assertEqual(len(self.steps), 1)

    def test_stopped_before_the_first_step(self) -> None:
        self.service.startService()
        self.successResultOf(self.service.stopService())
        self.clock.advance(1)
        self.assertEqual((self.steps, self.clock.getDelayedCalls()), ([], []))

    def test_rests_then_goes_on(self) -> None:
        self.start()
        self.steps[0].callback(10.0)
        self.assertEqual(len(self.steps), 1)
        self.clock.advance(10)
        self.assertEqual(len(self.steps), 2)

    def test_a_ring_during_a_step_is_kept_once(self) -> None:
        self.start()
        self.wakeup.ring()
        self.wakeup.ring()
        self.steps[0].callback(10.0)
        self.assertEqual(len(self.steps), 2)
        self.steps[1].callback(10.0)
        self.assertEqual(len(self.steps), 2)

    def test_stop_waits_for_the_step_in_hand(self) -> None:
        self.start()
        stopped = self.service.stopService()
        self.assertNoResult(stopped)
        self.steps[0].callback(10.0)
        self.successResultOf(stopped)
        self.assertEqual((len(self.steps), self.clock.getDelayedCalls()), (1, []))

    def test_stop_ends_a_rest(self) -> None:
        self.start()
        self.steps[0].callback(3600.0)
        self.successResultOf(self.service.stopService())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_crash_is_logged_and_survived(self) -> None:
        self.start()
        self.steps[0].errback(ValueError("x"))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.clock.advance(5)
        self.assertEqual(len(self.steps), 2)

    def test_a_failure_caused_by_the_stop_is_no_crash(self) -> None:
        self.start()
        stopped = self.service.stopService()
        self.steps[0].errback(ValueError("cancelled"))
        self.successResultOf(stopped)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_can_be_started_again(self) -> None:
        self.start()
        stopped = self.service.stopService()
        self.steps[0].callback(0.0)
        self.successResultOf(stopped)
        self.start()
        self.assertEqual(len(self.steps), 2)

    def test_many_quick_steps_do_not_recurse(self) -> None:
        count = 0

        async def step() -> float:
            nonlocal count
            count += 1
            return 0.0 if count < 50_000 else 1.0

        quick = Repeating(step, self.clock, Wakeup(self.clock))
        quick.startService()
        self.clock.advance(0)
        self.assertEqual(count, 50_000)


class Child(Service):
    """Stops when told."""

    def __init__(self, name: str, journal: list[str], refuses: BaseException | None = None) -> None:
        self.setName(name)
        self.journal = journal
        self.refuses = refuses
        self.stopped: Deferred[None] = Deferred()

    def startService(self) -> None:
        if self.refuses is not None:
            raise self.refuses
        super().startService()
        self.journal.append(f"+{self.name}")

    def stopService(self) -> Deferred[None]:
        super().stopService()
        self.journal.append(f"-{self.name}")
        return self.stopped


class OrderedServicesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.journal: list[str] = []
        self.clock = Clock()
        self.root = OrderedServices(self.clock, 50)

    def add(self, name: str, refuses: BaseException | None = None) -> Child:
        child = Child(name, self.journal, refuses)
        child.setServiceParent(self.root)
        return child

    def test_stops_the_last_first_and_one_at_a_time(self) -> None:
        database, workers = self.add("database"), self.add("workers")
        self.root.startService()
        done = self.root.stopService()
        self.assertEqual(self.journal, ["+database", "+workers", "-workers"])
        workers.stopped.callback(None)
        self.assertEqual(self.journal[-1], "-database")
        self.assertNoResult(done)
        database.stopped.callback(None)
        self.successResultOf(done)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_failing_stop_does_not_keep_the_others_up(self) -> None:
        database, workers = self.add("database"), self.add("workers")
        self.root.startService()
        done = self.root.stopService()
        workers.stopped.errback(ValueError("x"))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        database.stopped.callback(None)
        self.successResultOf(done)

    def test_a_failed_start_stops_what_had_started(self) -> None:
        for refusal in (RuntimeError("no"), SystemExit("no")):
            self.journal.clear()
            self.root = OrderedServices()
            self.add("database")
            self.add("broken", refusal)
            self.add("never")
            self.assertRaises(type(refusal), self.root.startService)
            self.assertEqual(self.journal, ["+database", "-database"])
            self.assertFalse(self.root.running)

    def test_a_failing_stop_after_a_failed_start_hides_nothing(self) -> None:
        class Unstoppable(Child):
            def stopService(self) -> Deferred[None]:
                raise ValueError("x")

        Unstoppable("odd", self.journal).setServiceParent(self.root)
        self.add("broken", RuntimeError("the cause"))
        self.assertRaises(RuntimeError, self.root.startService)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_what_never_started_is_not_stopped(self) -> None:
        self.add("database")
        self.successResultOf(self.root.stopService())
        self.assertEqual(self.journal, [])

    def test_the_budget_ends_the_stop(self) -> None:
        stuck = self.add("stuck")
        self.root.startService()
        done = self.root.stopService()
        self.clock.advance(49)
        self.assertNoResult(done)
        said: list[str] = []

        def observe(event: LogEvent) -> None:
            said.append(formatEvent(event))

        globalLogPublisher.addObserver(cast(ILogObserver, observe))
        self.addCleanup(globalLogPublisher.removeObserver, cast(ILogObserver, observe))
        self.clock.advance(1)
        self.successResultOf(done)
        self.assertEqual(said, ["the shutdown budget of 50 s is over; left unfinished: stuck"])
        stuck.stopped.callback(None)

    def test_nothing_is_started_with_privileges(self) -> None:
        self.add("database")
        self.root.privilegedStartService()
        self.assertEqual(self.journal, [])


class SystemdNotifierTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        folder = tempfile.mkdtemp()
        self.address = os.path.join(folder, "notify")
        self.wire = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.addCleanup(self.wire.close)
        self.wire.bind(self.address)
        self.addCleanup(os.rmdir, folder)
        self.addCleanup(os.unlink, self.address)

    def heard(self) -> list[bytes]:
        said = []
        while True:
            try:
                said.append(self.wire.recv(100))
            except BlockingIOError:
                return said

    def test_ready_alive_stopping(self) -> None:
        notifier = SystemdNotifier(self.address, self.clock, watchdog_usec=30_000_000)
        notifier.startService()
        self.assertEqual(self.heard(), [])
        self.clock.advance(0)
        self.assertEqual(self.heard(), [b"READY=1", b"WATCHDOG=1"])
        self.clock.advance(15)
        self.assertEqual(self.heard(), [b"WATCHDOG=1"])
        notifier.stopService()
        self.assertEqual((self.heard(), self.clock.getDelayedCalls()), ([b"STOPPING=1"], []))

    def test_without_a_watchdog(self) -> None:
        notifier = SystemdNotifier(self.address, self.clock)
        notifier.startService()
        self.clock.advance(0)
        self.assertEqual((self.heard(), self.clock.getDelayedCalls()), ([b"READY=1"], []))

    def test_an_abstract_address(self) -> None:
        name = f"telegrammer-{os.getpid()}-{id(self)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as wire:
            wire.bind("\0" + name)
            SystemdNotifier("@" + name, self.clock).stopService()
            self.assertEqual(wire.recv(100), b"STOPPING=1")

    def test_without_systemd(self) -> None:
        notifier = SystemdNotifier(None, self.clock)
        notifier.startService()
        notifier.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_deaf_systemd_stops_nobody(self) -> None:
        notifier = SystemdNotifier(self.address + "-gone", self.clock)
        notifier.startService()
        self.clock.advance(0)
        notifier.stopService()
        self.assertEqual(self.flushLoggedErrors(), [])
