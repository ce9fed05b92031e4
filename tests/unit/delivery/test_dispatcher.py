"""The dispatcher: turns, attempts, rests, failing storage, a clock that is set, the stop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import define, evolve, field
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import (
    Again,
    Answered,
    AttemptResult,
    Claimed,
    Dead,
    Done,
    Finished,
    QueueCounts,
    Slots,
    Toll,
    Turn,
    Unanswered,
)
from telegrammer.core.health import DeliveryStatus
from telegrammer.core.problems import StoreClosed, StoreFull
from telegrammer.core.retry import Schedule
from telegrammer.delivery.dispatcher import MOST_ASIDE, Dispatcher
from telegrammer.ports import Callbacks, Deliveries, Now

NOTHING = Turn()


@define
class Call:
    """A turn the dispatcher has asked for, and the Deferred that answers it."""

    finished: tuple[Finished, ...]
    slots: Slots
    now: Now
    answer: Deferred[Turn] = field(factory=Deferred)


@define(eq=False)
class RecordedDeliveries:
    """A store that answers when the test says so."""

    calls: list[Call] = field(factory=list)
    shifts: list[tuple[int, Deferred[None]]] = field(factory=list)

    def turn(self, finished: Sequence[Finished], slots: Slots, now: Now) -> Deferred[Turn]:
        self.calls.append(Call(tuple(finished), slots, now))
        return self.calls[-1].answer

    def shift_times(self, seconds: int) -> Deferred[None]:
        self.shifts.append((seconds, Deferred()))
        return self.shifts[-1][1]

    def counts(self) -> Deferred[QueueCounts]:
        raise AssertionError("not the dispatcher's business")

    def purge_dead(self) -> Deferred[int]:
        raise AssertionError("not the dispatcher's business")


@define(eq=False)
class RecordedCallbacks:
    """A receiver that answers when the test says so."""

    posts: list[tuple[Claimed, Deferred[AttemptResult]]] = field(factory=list)

    def post(self, job: Claimed) -> Deferred[AttemptResult]:
        self.posts.append((job, Deferred()))
        return self.posts[-1][1]


def job(number: int = 1, *, lane: int | None = None, sick: bool = False, attempt: int = 1) -> Claimed:
    return Claimed(
        id=number,
        subscription_id=number if lane is None else lane,
        url="http://h/",
        body=b"{}",
        delivery_id=f"1-{number}-0-1",
        attempt=attempt,
        first_attempt_at=1000,
        sick=sick,
    )


class DispatcherCase(SynchronousTestCase):
    workers = 4

    def setUp(self) -> None:
        self.clock = Clock()
        self.set_forward = 0.0
        self.store = RecordedDeliveries()
        self.receiver = RecordedCallbacks()
        self.left = 0
        self.stuck: set[int] = set()
        store: Deliveries = self.store
        receiver: Callbacks = self.receiver
        self.dispatcher = Dispatcher(
            store,
            receiver,
            self.clock,
            lambda: 1000.0 + self.clock.seconds() + self.set_forward,
            lambda: 0.0,
            Schedule((1, 2, 4)),
            self.workers,
            self.count_left,
            lambda: self.stuck,
        )
        self.events = self.enterContext(capturedLogs())

    def count_left(self) -> None:
        self.left += 1

    def start(self) -> None:
        self.dispatcher.startService()
        self.clock.advance(0)

    def answer(self, turn: Turn = NOTHING) -> None:
        """Commit the turn that is under way."""
        self.store.calls[-1].answer.callback(turn)

    def calls(self) -> int:
        return len(self.store.calls)

    def lines(self) -> list[str]:
        return [str(event["log_format"]) for event in self.events if "log_format" in event]


class TurnTests(DispatcherCase):
    def test_it_looks_for_work_at_the_start(self) -> None:
        self.dispatcher.startService()
        self.assertEqual(self.calls(), 0)
        self.clock.advance(0)
        self.assertEqual([(call.finished, call.slots) for call in self.store.calls], [((), Slots(4, 2, 0))])
        self.answer()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_post_begins_only_after_the_commit(self) -> None:
        self.start()
        self.assertEqual(self.receiver.posts, [])
        self.answer(Turn((job(1), job(2))))
        self.assertEqual([claimed for claimed, _ in self.receiver.posts], [job(1), job(2)])

    def test_a_result_is_written_and_its_slot_filled_in_one_turn(self) -> None:
        self.start()
        self.answer(Turn((job(1), job(2), job(3), job(4)), healthy_run=3))
        self.receiver.posts[0][1].callback(Answered(200))
        self.assertEqual(self.store.calls[1].finished, (Finished(job(1), Done(slow=False)),))
        self.assertEqual(self.store.calls[1].slots, Slots(1, 2, 3))

    def test_what_ends_during_a_turn_is_written_in_the_next_at_once(self) -> None:
        self.start()
        self.answer(Turn((job(1), job(2), job(3))))
        self.receiver.posts[0][1].callback(Answered(200))
        self.receiver.posts[1][1].callback(Answered(503))
        self.receiver.posts[2][1].callback(Unanswered("connection refused"))
        self.assertEqual(self.calls(), 2)
        self.answer()
        self.assertEqual(
            self.store.calls[2].finished,
            (
                Finished(job(2), Again(1001, "HTTP 503")),
                Finished(job(3), Again(1001, "connection refused")),
            ),
        )
        self.assertEqual(self.store.calls[2].slots.free, 4)

    def test_sick_attempts_are_counted_against_their_share(self) -> None:
        self.start()
        self.answer(Turn((job(1, sick=True), job(2))))
        self.receiver.posts[1][1].callback(Answered(200))
        self.assertEqual(self.store.calls[1].slots, Slots(3, 1, 0))

    @pytest.mark.report("H2")
    def test_one_that_hangs_is_counted_before_it_ends(self) -> None:
        self.start()
        self.answer(Turn((job(1), job(2))))
        self.clock.advance(1.0)
        self.dispatcher.wake()
        self.answer(Turn((job(3),)))
        self.clock.advance(0.5)
        self.dispatcher.wake()
        self.assertEqual([call.slots for call in self.store.calls[1:]], [Slots(2, 2, 0), Slots(1, 0, 0)])

    @pytest.mark.report("H16")
    def test_one_that_is_stuck_in_its_name_holds_no_slot(self) -> None:
        self.start()
        self.answer(Turn((job(1), job(2, sick=True), job(3, sick=True), job(4))))
        self.stuck = {1, 2}
        self.dispatcher.wake()
        self.assertEqual(self.store.calls[1].slots, Slots(2, 1, 0))
        self.answer(Turn((job(5), job(6))))
        self.assertEqual(self.dispatcher.status(), DeliveryStatus("ok", 4, 4))
        self.stuck = set()
        self.dispatcher.wake()
        self.assertEqual(self.calls(), 2, "they go on, and there is no room beside them")
        for _, answer in self.receiver.posts[:3]:
            answer.callback(Answered(200))
        self.assertEqual(self.store.calls[2].slots.free, 0)
        self.answer()
        self.assertEqual(self.store.calls[3].slots.free, 1)

    def test_so_many_at_most_hold_none(self) -> None:
        self.start()
        for first in range(0, MOST_ASIDE + 4, 4):
            self.assertEqual(self.store.calls[-1].slots.free, 4)
            self.answer(Turn(tuple(job(number) for number in range(first, first + 4))))
            self.stuck.update(range(first, first + 4))
            self.dispatcher.wake()
        self.assertEqual(self.calls(), MOST_ASIDE // 4 + 1)

    def test_full_slots_ask_for_nothing(self) -> None:
        self.start()
        self.answer(Turn((job(1), job(2), job(3), job(4))))
        self.dispatcher.wake()
        self.assertEqual(self.calls(), 1)
        self.receiver.posts[0][1].callback(Answered(200))
        self.assertEqual(self.calls(), 2)

    def test_wake(self) -> None:
        self.start()
        self.dispatcher.wake()
        self.dispatcher.wake()
        self.answer()
        self.assertEqual(self.calls(), 2)
        self.answer()
        self.dispatcher.wake()
        self.assertEqual(self.calls(), 3)

    def test_room_is_told_when_jobs_left(self) -> None:
        self.start()
        self.answer(Turn(left=0, buried=3))
        self.assertEqual(self.left, 0)
        self.dispatcher.wake()
        self.answer(Turn(left=2, evicted=2))
        self.assertEqual(self.left, 1)
        self.assertEqual(self.dispatcher.take_toll(), Toll(died=3, evicted=2))
        self.assertEqual(self.dispatcher.take_toll(), Toll())

    def test_an_answer_that_came_at_once_does_not_recurse(self) -> None:
        rounds = 0

        def post(claimed: Claimed) -> Deferred[AttemptResult]:
            answered: Deferred[AttemptResult] = Deferred()
            answered.callback(Answered(200))
            return answered

        def turn(finished: Sequence[Finished], slots: Slots, now: Now) -> Deferred[Turn]:
            nonlocal rounds
            rounds += 1
            done: Deferred[Turn] = Deferred()
            done.callback(Turn((job(rounds),) if rounds < 5000 else ()))
            return done

        self.patch(RecordedCallbacks, "post", lambda _, claimed: post(claimed))
        self.patch(RecordedDeliveries, "turn", lambda _, *arguments: turn(*arguments))
        self.start()
        self.assertEqual(rounds, 5000)


class RestTests(DispatcherCase):
    def test_until_the_next_lane_is_due(self) -> None:
        self.start()
        self.answer(Turn(next_due=1005))
        self.clock.pump([0.5] * 9)
        self.assertEqual(self.calls(), 1)
        self.clock.advance(0.51)
        self.assertEqual(self.calls(), 2)

    def test_a_wake_ends_it(self) -> None:
        self.start()
        self.answer(Turn(next_due=5000))
        self.dispatcher.wake()
        self.assertEqual(self.calls(), 2)
        self.answer(Turn())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_search_that_ended_early_goes_on(self) -> None:
        self.start()
        self.answer(Turn(next_due=1000))
        self.assertEqual(self.calls(), 2)

    def test_a_slot_that_frees_late_still_finds_the_waiting(self) -> None:
        self.start()
        self.answer(Turn((job(1), job(2), job(3), job(4)), next_due=None))
        self.clock.advance(20)
        self.receiver.posts[0][1].callback(Answered(200))
        self.assertEqual(self.store.calls[1].slots.free, 1)


class AttemptTests(DispatcherCase):
    def test_slow_is_measured_by_the_monotonic_clock(self) -> None:
        self.start()
        self.answer(Turn((job(1), job(2))))
        self.clock.advance(1.5)
        self.set_forward = -1.0
        self.receiver.posts[0][1].callback(Answered(200))
        self.assertEqual(self.store.calls[1].finished[0].verdict, Done(slow=True))

    def test_a_crash_is_one_failed_attempt(self) -> None:
        self.start()
        self.answer(Turn((job(1),)))
        self.receiver.posts[0][1].errback(ValueError("http://h/?secret"))
        self.assertEqual(self.store.calls[1].finished, (Finished(job(1), Again(1001, "internal error")),))
        (event,) = [event for event in self.events if "failed inside" in str(event.get("log_format"))]
        self.assertEqual(event["id"], "1-1-0-1")
        self.assertIn("ValueError", event["what"])
        self.assertNotIn("secret", repr(event))

    def test_the_last_attempt(self) -> None:
        self.start()
        self.answer(Turn((job(1, attempt=4),)))
        self.receiver.posts[0][1].callback(Answered(503))
        self.assertEqual(self.store.calls[1].finished[0].verdict, Dead("HTTP 503", spent=True, due=1016))

    def test_a_lane_never_has_two_posts(self) -> None:
        # The first job was removed under way, its lane emptied and filled again.
        self.start()
        self.answer(Turn((job(1, lane=9),)))
        self.dispatcher.wake()
        self.answer(Turn((job(2, lane=9), job(3))))
        self.assertEqual([claimed.id for claimed, _ in self.receiver.posts], [1, 3])
        self.clock.advance(5)
        self.receiver.posts[0][1].callback(Answered(200))
        self.assertEqual([claimed.id for claimed, _ in self.receiver.posts], [1, 3, 2])
        # Its own time counts from its own POST.
        self.receiver.posts[2][1].callback(Answered(200))
        self.answer()
        self.assertEqual(self.store.calls[-1].finished, (Finished(job(2, lane=9), Done(slow=False)),))


class StorageTests(DispatcherCase):
    def fail_turn(self) -> None:
        self.store.calls[-1].answer.errback(StoreFull("full"))

    def test_results_are_kept_and_nothing_is_claimed(self) -> None:
        self.start()
        self.answer(Turn((job(1), job(2))))
        self.receiver.posts[0][1].callback(Answered(200))
        self.fail_turn()
        self.assertEqual(self.dispatcher.status(), DeliveryStatus("backing_off", 4, 1))
        self.receiver.posts[1][1].callback(Answered(200))
        self.dispatcher.wake()
        self.assertEqual(self.calls(), 2)
        self.clock.advance(1)
        both = (Finished(job(1), Done(slow=False)), Finished(job(2), Done(slow=False)))
        self.assertEqual(self.store.calls[2].finished, both)
        self.answer()
        self.assertEqual(self.dispatcher.status(), DeliveryStatus("ok", 4, 0))
        self.assertEqual(len(self.receiver.posts), 2)

    def test_the_back_off_doubles_up_to_ten_seconds(self) -> None:
        self.start()
        waits = []
        for _ in range(6):
            self.fail_turn()
            (alarm,) = self.clock.getDelayedCalls()
            waits.append(alarm.getTime() - self.clock.seconds())
            self.clock.advance(waits[-1])
        self.assertEqual(waits, [1, 2, 4, 8, 8, 8])

    def test_a_commit_of_another_process_ends_the_back_off(self) -> None:
        self.start()
        for _ in range(3):
            self.fail_turn()
            self.dispatcher.wake()
            self.clock.advance(3)
        self.assertEqual(self.calls(), 3)
        self.dispatcher.notify_commit()
        self.assertEqual(self.calls(), 4)
        self.dispatcher.notify_commit()
        self.answer()
        self.assertEqual(self.calls(), 5)
        self.answer()
        self.assertEqual((self.calls(), self.clock.getDelayedCalls()), (5, []))

    def test_one_line_when_it_begins_and_one_when_it_ends(self) -> None:
        self.start()
        for _ in range(4):
            self.fail_turn()
            self.clock.advance(10)
        self.answer()
        self.assertEqual(
            [line.split(",")[0] for line in self.lines()],
            [
                "delivery backs off",
                "delivery goes on after {failures} failed transactions",
            ],
        )

    def test_an_unexpected_error_is_no_end_either(self) -> None:
        self.start()
        self.store.calls[-1].answer.errback(ValueError("secret"))
        self.assertNotIn("secret", repr(self.events))
        self.clock.advance(1)
        self.assertEqual(self.calls(), 2)

    def test_a_listener_that_fails_ends_nothing(self) -> None:
        def broken() -> None:
            raise ValueError("secret")

        self.dispatcher.on_left = broken
        self.start()
        self.answer(Turn(left=1))
        self.assertNotIn("secret", repr(self.events))
        self.dispatcher.wake()
        self.assertEqual(self.calls(), 2)


class ClockTests(DispatcherCase):
    def test_what_waits_moves_along_before_anything_is_claimed(self) -> None:
        self.start()
        self.answer(Turn((job(1),), next_due=1060))
        self.set_forward = 86_400.0 * 2
        self.clock.advance(1.1)
        self.assertEqual([seconds for seconds, _ in self.store.shifts], [172_800])
        self.assertEqual(self.calls(), 1)
        self.store.shifts[0][1].callback(None)
        self.assertEqual(self.calls(), 2)
        self.answer(Turn(next_due=1060 + 172_800))
        self.clock.pump([1.0] * 50)
        self.assertEqual((len(self.store.shifts), self.calls()), (1, 2))
        self.clock.pump([1.0] * 10)
        self.assertEqual((len(self.store.shifts), self.calls()), (1, 3))

    def test_an_attempt_under_way_does_not_die_of_it(self) -> None:
        self.start()
        self.answer(Turn((job(1), job(2))))
        self.set_forward = 86_400.0 * 2
        self.receiver.posts[0][1].callback(Answered(503))
        self.store.shifts[0][1].callback(None)
        (moved,) = self.store.calls[1].finished
        self.assertEqual(moved.verdict, Again(1001 + 172_800, "HTTP 503"))
        self.answer()
        self.receiver.posts[1][1].callback(Answered(503))
        (after,) = self.store.calls[2].finished
        self.assertEqual(after.job, evolve(job(2), first_attempt_at=1000 + 172_800))
        self.assertEqual(after.verdict, Again(1001 + 172_800, "HTTP 503"))

    def test_a_turn_that_waits_for_the_lock_meanwhile(self) -> None:
        """What it takes for due is so by the clock that the stored times are by: no back-off ends early."""
        self.start()
        self.set_forward = 86_400.0
        self.assertEqual(self.store.calls[0].now(), 1000)
        self.answer()
        self.dispatcher.wake()
        self.store.shifts[0][1].callback(None)
        self.assertEqual(self.store.calls[1].now(), 1000 + 86_400)

    def test_what_ends_while_the_times_are_moved(self) -> None:
        self.start()
        self.answer(Turn((job(1),)))
        self.set_forward = -500.0
        self.dispatcher.wake()
        self.receiver.posts[0][1].callback(Answered(503))
        self.store.shifts[0][1].callback(None)
        self.answer()
        (moved,) = self.store.calls[-1].finished
        self.assertEqual(moved.verdict, Again(501, "HTTP 503"))
        self.assertEqual(
            self.lines(), ["the clock was set by {seconds} s: waiting deliveries were moved along"]
        )

    def test_a_move_that_fails_is_tried_again(self) -> None:
        self.start()
        self.answer()
        self.set_forward = -500.0
        self.dispatcher.wake()
        self.store.shifts[0][1].errback(StoreFull("full"))
        self.assertEqual(self.dispatcher.status().state, "backing_off")
        self.clock.advance(1)
        self.assertEqual([seconds for seconds, _ in self.store.shifts], [-500, -500])
        self.store.shifts[1][1].callback(None)
        self.assertEqual(self.calls(), 2)

    def test_a_clock_that_is_corrected_slowly_is_followed(self) -> None:
        self.start()
        for _ in range(20):
            self.answer()
            self.set_forward += 1.0
            self.dispatcher.wake()
        self.assertEqual(self.store.shifts, [])


class StopTests(DispatcherCase):
    def test_idle(self) -> None:
        self.start()
        self.answer(Turn(next_due=5000))
        self.successResultOf(self.dispatcher.stopService())
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.dispatcher.status().state, "stopped")
        self.dispatcher.wake()
        self.assertEqual(self.calls(), 1)

    def test_before_the_first_turn(self) -> None:
        self.dispatcher.startService()
        self.successResultOf(self.dispatcher.stopService())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    @pytest.mark.report("A4")
    def test_attempts_in_flight_end_and_are_written(self) -> None:
        self.start()
        self.answer(Turn((job(1), job(2)), next_due=1001))
        stopped = self.dispatcher.stopService()
        self.clock.advance(5)
        self.assertEqual(self.calls(), 1)
        self.receiver.posts[0][1].callback(Answered(200))
        self.assertEqual(self.store.calls[1].slots.free, 0)
        self.answer()
        self.assertNoResult(stopped)
        self.receiver.posts[1][1].callback(Answered(200))
        self.assertNoResult(stopped)
        self.answer()
        self.successResultOf(stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_during_a_turn(self) -> None:
        self.start()
        stopped = self.dispatcher.stopService()
        self.assertNoResult(stopped)
        self.answer(Turn((job(1),)))
        # Its claim is committed: an attempt it has been given is not thrown away.
        self.assertEqual(len(self.receiver.posts), 1)
        self.receiver.posts[0][1].callback(Answered(200))
        self.answer()
        self.successResultOf(stopped)

    def test_during_a_back_off_it_tries_at_once(self) -> None:
        self.start()
        self.answer(Turn((job(1),)))
        self.receiver.posts[0][1].callback(Answered(200))
        self.store.calls[-1].answer.errback(StoreFull("full"))
        stopped = self.dispatcher.stopService()
        self.assertEqual(self.calls(), 3)
        self.answer()
        self.successResultOf(stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_results_that_cannot_be_written_do_not_hold_it_for_ever(self) -> None:
        self.start()
        self.answer(Turn((job(1),)))
        stopped = self.dispatcher.stopService()
        self.receiver.posts[0][1].callback(Answered(200))
        for _ in range(5):
            self.assertNoResult(stopped)
            self.store.calls[-1].answer.errback(StoreFull("full"))
            self.clock.advance(1)
        self.successResultOf(stopped)
        self.assertEqual(self.calls(), 6)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_closed_database_ends_it(self) -> None:
        self.start()
        self.answer(Turn((job(1),)))
        stopped = self.dispatcher.stopService()
        self.receiver.posts[0][1].callback(Answered(200))
        self.store.calls[-1].answer.errback(StoreClosed("closed"))
        self.successResultOf(stopped)

    def test_it_can_be_started_again(self) -> None:
        self.start()
        self.answer()
        self.successResultOf(self.dispatcher.stopService())
        self.start()
        self.assertEqual(self.calls(), 2)
        self.assertEqual(self.dispatcher.status(), DeliveryStatus("ok", 4, 0))
