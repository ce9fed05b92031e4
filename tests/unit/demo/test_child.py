"""A child process of the demo, without a process."""

from __future__ import annotations

import os
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.demo.child import OWN_SIGNAL_FIRST, STOP_PATIENCE, Child, environment


class FakeReactor(Clock):
    """Spawns a process that records the signals it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.argv: list[str] = []
        self.signals: list[str] = []
        self.gone = False

    def spawnProcess(self, protocol: object, executable: str, argv: list[str], env: object) -> FakeReactor:
        self.argv = argv
        return self

    def signalProcess(self, name: str) -> None:
        if self.gone:
            raise ProcessExitedAlready
        self.signals.append(name)


class ChildTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = FakeReactor()
        self.child = Child(self.reactor, "serve", "--port", "0")

    def end(self, status: int | None = 0, signal: int | None = None) -> None:
        done = ProcessDone(0) if status == 0 else ProcessTerminated(status, signal)
        self.child.processEnded(Failure(cast(Any, done)))

    def test_it_runs_this_package(self) -> None:
        self.assertEqual(self.reactor.argv[-5:], ["-m", "telegrammer", "serve", "--port", "0"])

    def test_nothing_of_ours_in_its_environment(self) -> None:
        for name in (
            "TELEGRAMMER_DB",
            "STATE_DIRECTORY",
            "CREDENTIALS_DIRECTORY",
            "NOTIFY_SOCKET",
            "LISTEN_FDS",
        ):
            self.patch(os, "environ", {name: "x", "PATH": "/bin"})
            self.assertEqual(set(environment()), {"PATH", "PYTHONPATH"})

    def test_its_address_once_the_line_is_whole(self) -> None:
        waiting = Deferred.fromCoroutine(self.child.address())
        for part in (b"warm-up\nlistening on http://127.0", b".0.1:80"):
            self.child.errReceived(part)
            self.assertNoResult(waiting)
        self.child.errReceived(b"80\nmore")
        self.assertEqual(self.successResultOf(waiting), "http://127.0.0.1:8080")

    def test_no_address_when_it_ends(self) -> None:
        waiting = Deferred.fromCoroutine(self.child.address())
        self.end(1)
        self.assertEqual(self.successResultOf(waiting), "")

    def test_what_it_wrote(self) -> None:
        self.child.outReceived(b"a key")
        self.child.outReceived(b"\n\xff")
        self.assertEqual(self.child.out, "a key\n\N{REPLACEMENT CHARACTER}")

    def test_how_it_ended(self) -> None:
        for status, signal, expected in ((0, None, 0), (3, None, 3), (None, 9, -9)):
            self.child.status = None
            waiting = Deferred.fromCoroutine(self.child.ended())
            self.end(status, signal)
            self.assertEqual(self.successResultOf(waiting), expected)

    def test_what_ctrl_c_ended_is_told_after_a_moment(self) -> None:
        for status, signal, expected in ((None, 2, -2), (130, None, 130)):
            self.child.status = None
            waiting = Deferred.fromCoroutine(self.child.ended())
            self.end(status, signal)
            self.assertNoResult(waiting)
            self.reactor.advance(OWN_SIGNAL_FIRST)
            self.assertEqual(self.successResultOf(waiting), expected)

    def test_a_stop(self) -> None:
        stopping = Deferred.fromCoroutine(self.child.stop())
        self.end()
        self.assertEqual(self.successResultOf(stopping), 0)
        self.assertEqual(self.reactor.signals, ["TERM"])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_a_stop_that_needs_force(self) -> None:
        stopping = Deferred.fromCoroutine(self.child.stop())
        self.reactor.advance(STOP_PATIENCE)
        self.assertEqual(self.reactor.signals, ["TERM", "KILL"])
        self.end(None, 9)
        self.assertEqual(self.successResultOf(stopping), -9)

    def test_a_stop_after_the_end(self) -> None:
        self.end(1)
        self.assertEqual(self.successResultOf(Deferred.fromCoroutine(self.child.stop())), 1)
        self.assertEqual(self.reactor.signals, [])

    def test_a_stop_while_it_ends(self) -> None:
        self.reactor.gone = True
        stopping = Deferred.fromCoroutine(self.child.stop())
        self.end()
        self.assertEqual(self.successResultOf(stopping), 0)

    def test_a_wait_that_is_given_up(self) -> None:
        waiting = Deferred.fromCoroutine(self.child.ended())
        waiting.addErrback(lambda failure: None)
        waiting.cancel()
        self.end()
        self.assertIsNone(self.successResultOf(waiting))
