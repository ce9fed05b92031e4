"""Workers, their queue, connections, deadlines."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.web.limits import Connections, Deadline, Overloaded, WorkerQueue


class WorkerQueueTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.queue = WorkerQueue(self.clock, workers=2, queue=2, wait_seconds=5)

    def fill(self) -> list[Deferred[None]]:
        """Two that run, two that wait."""
        turns = [self.queue.turn() for _ in range(4)]
        self.assertEqual((self.queue.running, self.queue.waiting), (2, 2))
        return turns

    def test_runs_so_many_and_lets_so_many_wait(self) -> None:
        turns = self.fill()
        self.successResultOf(turns[0])
        self.successResultOf(turns[1])
        self.assertNoResult(turns[2])
        self.assertNoResult(turns[3])
        self.failureResultOf(self.queue.turn(), Overloaded)

    def test_first_come_first_served(self) -> None:
        turns = self.fill()
        self.queue.release()
        self.successResultOf(turns[2])
        self.assertNoResult(turns[3])
        self.assertEqual((self.queue.running, self.queue.waiting), (2, 1))

    def test_waits_no_longer_than_allowed(self) -> None:
        turns = self.fill()
        self.clock.advance(4.99)
        self.assertNoResult(turns[2])
        self.clock.advance(0.01)
        self.failureResultOf(turns[2], Overloaded)
        self.failureResultOf(turns[3], Overloaded)
        self.assertEqual((self.queue.running, self.queue.waiting), (2, 0))

    def test_who_leaves_the_queue_takes_no_turn(self) -> None:
        turns = self.fill()
        turns[2].cancel()
        self.failureResultOf(turns[2], CancelledError)
        self.queue.release()
        self.successResultOf(turns[3])
        self.assertEqual(self.queue.running, 2)
        self.queue.release()
        self.queue.release()
        self.assertEqual(self.queue.running, 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nobody_overtakes_those_who_wait(self) -> None:
        """Not even one who asks from within the hand-over, while a place is free for a moment."""
        turns = self.fill()
        late: list[Deferred[None]] = []

        def ends_at_once(_: None) -> None:
            self.queue.release()
            late.append(self.queue.turn())

        turns[2].addCallback(ends_at_once)
        self.queue.release()
        self.successResultOf(turns[3])
        self.assertNoResult(late[0])

    def test_many_turns_that_end_at_once_do_not_recurse(self) -> None:
        queue = WorkerQueue(self.clock, workers=1, queue=5000)
        self.successResultOf(queue.turn())
        ended = []

        def end(number: int) -> None:
            ended.append(number)
            queue.release()

        for number in range(5000):
            queue.turn().addCallback(lambda _, ended_one: end(ended_one), number)
        queue.release()
        self.assertEqual(ended, list(range(5000)))
        self.assertEqual(queue.running, 0)

    def test_close_turns_away_and_tells_when_the_last_turn_is_over(self) -> None:
        turns = self.fill()
        closed = self.queue.close()
        self.failureResultOf(turns[2], Overloaded)
        self.failureResultOf(turns[3], Overloaded)
        self.failureResultOf(self.queue.turn(), Overloaded)
        self.queue.release()
        self.assertNoResult(closed)
        self.queue.release()
        self.successResultOf(closed)
        self.successResultOf(self.queue.close())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_close_survives_one_leaving_because_another_was_turned_away(self) -> None:
        turns = self.fill()
        turns[2].addErrback(lambda _: turns[3].cancel())
        self.queue.close()
        self.failureResultOf(turns[3], CancelledError)

    def test_waiting_for_the_close_can_be_given_up(self) -> None:
        turns = self.fill()
        closed = self.queue.close()
        self.failureResultOf(turns[2], Overloaded)
        self.failureResultOf(turns[3], Overloaded)
        closed.cancel()
        self.failureResultOf(closed, CancelledError)
        self.queue.release()
        self.queue.release()


class ConnectionsTests(SynchronousTestCase):
    def test_limit_and_its_line(self) -> None:
        connections: Connections[int] = Connections(4)
        for number in range(4):
            self.assertTrue(connections.has_room())
            connections.add(number)
        self.assertEqual((len(connections), sorted(connections)), (4, [0, 1, 2, 3]))
        self.assertFalse(connections.has_room())
        self.assertFalse(connections.has_room())
        connections.remove(0)
        self.assertTrue(connections.has_room())
        connections.remove(1)
        connections.remove(1)
        self.assertEqual(len(connections), 2)

    def test_gone(self) -> None:
        connections: Connections[int] = Connections(4)
        self.successResultOf(connections.gone())
        connections.add(1)
        connections.add(2)
        gone = connections.gone()
        connections.remove(1)
        self.assertNoResult(gone)
        connections.remove(2)
        self.successResultOf(gone)


class DeadlineTests(SynchronousTestCase):
    def test_fires_once_unless_cleared_or_put_off(self) -> None:
        clock, late = Clock(), list[str]()
        deadline = Deadline(clock)
        deadline.restart(1)
        deadline.set(2, late.append, "first")
        deadline.set(3, late.append, "second")
        clock.advance(2)
        deadline.restart(2)
        clock.advance(1.9)
        self.assertEqual(late, [])
        clock.advance(0.1)
        self.assertEqual(late, ["second"])
        deadline.restart(1)
        deadline.set(1, late.append, "third")
        deadline.clear()
        clock.advance(10)
        self.assertEqual(late, ["second"])
