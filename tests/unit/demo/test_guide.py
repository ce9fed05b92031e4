"""Every way in which a step of the demo can fail has its words."""

from __future__ import annotations

from typing import Any, cast

from attrs import define
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.demo.child import Child
from telegrammer.demo.guide import STEP_SECONDS, DemoFailed, DemoInterrupted, Guide


@define(eq=False)
class FakeChild:
    """A daemon that ends when the test says so."""

    ending: Deferred[int]
    status: int | None = None
    err: str = "".join(f"line {number}\n" for number in range(30))

    async def ended(self) -> int:
        return await self.ending

    def end(self, status: int) -> None:
        self.status = status
        self.ending.callback(status)


class GuideTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.said: list[str] = []
        self.guide = Guide(self.clock, self.said.append)
        self.event: Deferred[str] = Deferred()

    def wait(self, seconds: float | None = STEP_SECONDS) -> Deferred[str]:
        return Deferred.fromCoroutine(self.guide.expect("the thing", self.event, seconds))

    def failed(self, waiting: Deferred[Any]) -> str:
        return str(self.failureResultOf(waiting, DemoFailed).value)

    def run_daemon(self) -> FakeChild:
        child = FakeChild(Deferred())
        self.guide.watch_over(cast(Child, child))
        return child

    def test_steps_are_numbered(self) -> None:
        for line in ("one", "two"):
            self.guide.step(line)
        self.assertEqual(self.said, [" 1. one", " 2. two"])

    def test_a_check(self) -> None:
        self.guide.check(True, "never said")
        with self.assertRaisesRegex(DemoFailed, "^otherwise$"):
            self.guide.check(False, "otherwise")

    def test_what_comes_in_time(self) -> None:
        waiting = self.wait()
        self.event.callback("came")
        self.assertEqual(self.successResultOf(waiting), "came")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_what_does_not_come(self) -> None:
        waiting = self.wait()
        self.clock.advance(STEP_SECONDS)
        self.assertEqual(self.failed(waiting), "the thing: nothing within 10 s")

    def test_what_does_not_come_and_fails_in_its_own_way_when_cancelled(self) -> None:
        self.event = Deferred(lambda event: event.errback(ConnectionError()))
        waiting = self.wait()
        self.clock.advance(STEP_SECONDS)
        self.assertEqual(self.failed(waiting), "the thing: nothing within 10 s")

    def test_without_end(self) -> None:
        waiting = self.wait(None)
        self.clock.advance(1_000_000)
        self.assertNoResult(waiting)

    def test_what_fails(self) -> None:
        waiting = self.wait()
        self.event.errback(ConnectionError("a text that may hold anything"))
        self.assertEqual(self.failed(waiting), "the thing: ConnectionError")

    def test_a_daemon_that_dies_ends_the_wait(self) -> None:
        daemon = self.run_daemon()
        waiting = self.wait()
        daemon.end(-9)
        self.assertEqual(self.failed(waiting), "the thing: the daemon ended with status -9")

    def test_the_innermost_failure_is_told(self) -> None:
        daemon = self.run_daemon()
        inner: Deferred[str] = Deferred()

        async def outer() -> str:
            return await self.guide.expect("the inner thing", inner)

        waiting = Deferred.fromCoroutine(self.guide.expect("the outer thing", outer()))
        daemon.end(1)
        self.assertEqual(self.failed(waiting), "the inner thing: the daemon ended with status 1")

    def test_a_daemon_that_was_told_to_stop_ends_nothing(self) -> None:
        daemon = self.run_daemon()
        self.guide.daemon = None
        waiting = self.wait()
        daemon.end(0)
        self.assertNoResult(waiting)

    def test_an_interruption_ends_the_wait_in_hand(self) -> None:
        for cancelled in (None, lambda event: event.errback(ConnectionError())):
            guide = Guide(self.clock, self.said.append)
            event: Deferred[str] = Deferred(cancelled)
            waiting = Deferred.fromCoroutine(guide.expect("the thing", event))
            guide.interrupt()
            self.failureResultOf(waiting, DemoInterrupted)

    def test_an_interruption_ends_every_later_wait(self) -> None:
        self.guide.interrupt()
        self.failureResultOf(self.wait(), DemoInterrupted)
        self.failureResultOf(self.event, CancelledError)

    def test_the_end_of_the_log(self) -> None:
        self.assertEqual(self.guide.daemon_log, [])
        self.run_daemon()
        self.assertEqual(self.guide.daemon_log, [f"line {number}" for number in range(15, 30)])
