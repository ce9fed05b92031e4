"""One timer for all that is waited for equally long."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.outbound.deadlines import Deadlines


class DeadlinesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.deadlines = Deadlines(self.clock)

    def add(self) -> Deferred[None]:
        waited: Deferred[None] = Deferred()
        self.deadlines.add(waited, 10)
        return waited

    def test_each_ends_at_its_own_time(self) -> None:
        first = self.add()
        self.clock.advance(4)
        second = self.add()
        self.clock.advance(5.9)
        self.assertNoResult(first)
        self.clock.advance(0.1)
        self.failureResultOf(first, CancelledError)
        self.clock.advance(3.9)
        self.assertNoResult(second)
        self.clock.advance(0.1)
        self.failureResultOf(second, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_one_timer_whatever_waits_and_none_when_nothing_does(self) -> None:
        waited = [self.add() for _ in range(3)]
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)
        for each in waited:
            self.assertTrue(self.deadlines.discard(each))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_what_ended_in_time_is_let_alone(self) -> None:
        first, second = self.add(), self.add()
        self.deadlines.discard(first)
        self.clock.advance(10)
        self.assertNoResult(first)
        self.failureResultOf(second, CancelledError)

    def test_says_whether_it_ended_in_time(self) -> None:
        late = self.add()
        said: list[bool] = []
        late.addErrback(lambda _: said.append(self.deadlines.discard(late)))
        self.clock.advance(10)
        self.assertEqual(said, [False])

    def test_one_that_adds_another_while_it_is_cancelled(self) -> None:
        again: list[Deferred[None]] = []
        self.add().addErrback(lambda _: again.append(self.add()))
        self.clock.advance(10)
        self.assertNoResult(again[0])
        self.clock.advance(10)
        self.failureResultOf(again[0], CancelledError)

    def test_all_that_is_waited_for(self) -> None:
        waited = [self.add(), self.add()]
        self.assertEqual(list(self.deadlines), waited)
        for each in self.deadlines:
            self.deadlines.discard(each)
        self.assertEqual(list(self.deadlines), [])
