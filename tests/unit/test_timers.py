"""Time limits after a standstill: what had come in time is read before the limit counts."""

from __future__ import annotations

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from telegrammer.timers import FairClock


class Reactor(Clock):
    """Looks at its timers once a turn, as the real one does; ``turn`` says how long the process ran."""

    def turn(self, seconds: float) -> None:
        self.rightNow += seconds
        due = [call for call in self.calls if call.getTime() <= self.seconds()]
        for call in due:
            self.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


class FairClockTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = Reactor()
        self.clock = FairClock(self.reactor)
        self.called: list[str] = []

    def test_in_time_it_is_an_ordinary_call(self) -> None:
        self.clock.callLater(10, self.called.append, "late")
        self.reactor.turn(9.9)
        self.assertEqual(self.called, [])
        self.reactor.turn(0.2)
        self.assertEqual(self.called, ["late"])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_after_a_standstill_one_turn_comes_before_it(self) -> None:
        call = self.clock.callLater(10, self.called.append, "late")
        self.reactor.turn(120)
        self.assertEqual(self.called, [])
        self.assertTrue(call.active())
        self.reactor.turn(0)
        self.assertEqual(self.called, ["late"])
        self.assertFalse(call.active())

    def test_what_came_in_time_cancels_it_in_that_turn(self) -> None:
        call = self.clock.callLater(10, self.called.append, "late")
        self.reactor.turn(120)
        call.cancel()
        self.reactor.turn(120)
        self.assertEqual(self.called, [])

    def test_a_machine_that_is_always_late_puts_it_off_once(self) -> None:
        self.clock.callLater(10, self.called.append, "late")
        self.reactor.turn(120)
        self.reactor.turn(120)
        self.assertEqual(self.called, ["late"])

    def test_put_off(self) -> None:
        call = self.clock.callLater(10, self.called.append, "late")
        self.reactor.turn(9)
        call.reset(10)
        call.delay(5)
        self.assertEqual(call.getTime(), 24)
        self.reactor.turn(15)
        self.assertEqual(self.called, ["late"])

    def test_interfaces(self) -> None:
        verifyObject(IReactorTime, self.clock)
        verifyObject(IDelayedCall, self.clock.callLater(1, self.called.append, ""))
        self.assertEqual((self.clock.seconds(), len(self.clock.getDelayedCalls())), (0, 1))
