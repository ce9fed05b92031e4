from __future__ import annotations

import errno
import gc
import signal
from collections.abc import Callable
from types import FrameType

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from telegrammer.core.problems import LockHeld, StartRefused, StoreBusy, WrongBot
from telegrammer.daemon import Daemon, StopOnce, refusal, spare_the_collector


class Root(Service):
    def __init__(self, trouble: Exception | None = None) -> None:
        self.trouble = trouble
        self.stopped: Deferred[None] = Deferred()

    def startService(self) -> None:
        if self.trouble is not None:
            raise self.trouble
        super().startService()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return self.stopped


class DaemonTests(SynchronousTestCase):
    def test_nothing_is_built_before_the_start(self) -> None:
        built: list[Root] = []

        def build() -> Root:
            built.append(Root())
            return built[-1]

        daemon = Daemon(build)
        daemon.privilegedStartService()
        self.assertEqual(built, [])
        daemon.startService()
        self.assertTrue(daemon.running and built[0].running)

    def test_a_stop_waits_for_the_root_and_is_announced(self) -> None:
        root, said = Root(), []
        daemon = Daemon(lambda: root, on_stop=lambda: said.append("stop"))
        daemon.startService()
        stopped = daemon.stopService()
        self.assertEqual(said, ["stop"])
        self.assertNoResult(stopped)
        root.stopped.callback(None)
        self.successResultOf(stopped)
        self.successResultOf(daemon.stopService())
        self.assertEqual(said, ["stop"])

    def test_what_keeps_it_from_starting_is_one_line(self) -> None:
        for trouble, line in (
            (LockHeld("the lock is held"), "the lock is held"),
            (StoreBusy("the database is locked"), "the database is locked"),
            (CannotListenError("127.0.0.1", 80, OSError(errno.EADDRINUSE, "Address already in use")), None),
        ):
            daemon = Daemon(lambda trouble=trouble: Root(trouble))  # type: ignore[misc]  # a bound default
            refused = self.assertRaises(StartRefused, daemon.startService)
            self.assertEqual(str(refused), line or "cannot listen on 127.0.0.1:80: address already in use")
            self.assertFalse(daemon.running)

    def test_a_build_may_refuse_as_well(self) -> None:
        def build() -> Root:
            raise StartRefused("ca-file holds no certificate")

        self.assertRaises(StartRefused, Daemon(build).startService)

    def test_what_nobody_foresaw_stays_what_it_is(self) -> None:
        self.assertRaises(ZeroDivisionError, Daemon(lambda: Root(ZeroDivisionError())).startService)

    def test_warnings_are_logged_at_the_start(self) -> None:
        seen: list[LogEvent] = []

        @implementer(ILogObserver)
        def see(event: LogEvent) -> None:
            seen.append(event)

        globalLogPublisher.addObserver(see)
        self.addCleanup(globalLogPublisher.removeObserver, see)
        Daemon(Root, ("unknown environment variables are ignored: X",)).startService()
        self.assertIn("variables are ignored: X", str(seen))


class RefusalTests(SynchronousTestCase):
    def test_lines(self) -> None:
        for error, line in (
            (WrongBot(1, 2), "the database belongs to bot 1, the token to bot 2"),
            (CannotListenError(None, "/run/x", OSError(errno.EACCES, "x")), "cannot listen on /run/x: x"),
            (CannotListenError("", 80, OSError("odd")), "cannot listen on *:80: not possible"),
            (PermissionError(errno.EACCES, "x", "/var/lib/t"), "/var/lib/t: permission denied"),
            (PermissionError(errno.EACCES, "x", b"/var/lib/t"), "/var/lib/t: permission denied"),
            (OSError(errno.ENOSPC, "x"), "no space left on device"),
            (TimeoutError(), "TimeoutError"),
            (KeyError("token"), None),
        ):
            self.assertEqual(refusal(error), line)


class FakeReactor:
    def __init__(self) -> None:
        self.startup: list[Callable[[], None]] = []
        self.calls: list[tuple[str, int]] = []

    def addSystemEventTrigger(self, phase: str, event: str, callable: Callable[[], None], /) -> object:
        assert (phase, event) == ("after", "startup")
        self.startup.append(callable)
        return None

    def sigInt(self, number: int, frame: FrameType | None = None) -> None:
        self.calls.append(("int", number))

    def sigTerm(self, number: int, frame: FrameType | None = None) -> None:
        self.calls.append(("term", number))


class StopOnceTests(SynchronousTestCase):
    def setUp(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.reactor = FakeReactor()
        self.stop = StopOnce(self.reactor)

    def test_the_first_signal_stops_and_no_other_does(self) -> None:
        self.stop.watch()
        self.reactor.startup[0]()
        self.assertIsNone(self.stop.asked)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        self.assertEqual(self.reactor.calls, [("term", signal.SIGTERM)])
        self.assertEqual(self.stop.asked, signal.SIGTERM)

    def test_one_that_comes_too_early_is_kept(self) -> None:
        self.stop.watch()
        signal.raise_signal(signal.SIGINT)
        self.assertEqual(self.reactor.calls, [])
        self.reactor.startup[0]()
        self.assertEqual(self.reactor.calls, [("int", signal.SIGINT)])

    def test_the_reactor_s_own_handlers_are_replaced(self) -> None:
        self.stop.watch()
        signal.signal(signal.SIGTERM, lambda number, frame: self.fail("not ours"))
        self.reactor.startup[0]()
        signal.raise_signal(signal.SIGTERM)
        self.assertEqual(len(self.reactor.calls), 1)

    def test_one_that_the_parent_ignored_stops_as_well(self) -> None:
        """A shell has what it starts with "&" ignore SIGINT."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.stop.watch()
        self.reactor.startup[0]()
        signal.raise_signal(signal.SIGINT)
        self.assertEqual(self.reactor.calls, [("int", signal.SIGINT)])


class CollectorTests(SynchronousTestCase):
    def test_it_looks_less_often_and_at_less(self) -> None:
        thresholds = gc.get_threshold()
        self.addCleanup(gc.set_threshold, *thresholds)
        self.addCleanup(gc.unfreeze)
        spare_the_collector()
        self.assertGreater(gc.get_threshold()[0], thresholds[0])
        self.assertGreater(gc.get_freeze_count(), 10_000)
