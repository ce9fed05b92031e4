"""
The delivery workers: fills free slots from the lanes, carries the results to the store (contract 6).

A *turn* is one transaction that writes every finished attempt and claims for every free slot.  One turn is
under way at a time, and the next begins at once with whatever finished meanwhile, so load makes the batches
and an idle queue waits for nothing.  A POST begins only after the turn that claimed it.  When a turn fails,
its results are kept for the next and nothing is claimed: a full disk causes no second POST.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from itertools import islice

from attrs import define, evolve, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from telegrammer.core.delivery import (
    SLOW,
    AttemptResult,
    Claimed,
    Finished,
    Slots,
    Toll,
    Turn,
    Unanswered,
    moved,
    settle,
    sick_share,
)
from telegrammer.core.health import DeliveryStatus
from telegrammer.core.problems import StorageUnavailable, StoreClosed
from telegrammer.core.retry import Schedule
from telegrammer.delivery.wall_clock import WallClock
from telegrammer.logs import whence
from telegrammer.ports import Callbacks, Deliveries, Jitter, Now

log = Logger()

LONGEST_BACK_OFF = 8.0
"""Seconds between two turns that fail, at most: deliveries go on within 10 s of the trouble's end."""

LOOK_AT_CLOCK = 1.0
"""Seconds: a longer rest is interrupted as often, to notice a clock that was set."""

LAST_TRIES = 5
"""So many turns may fail while stopping; then the results they carry are given up."""

MOST_ASIDE = 32
"""So many attempts that are stuck in a name look-up hold no worker."""

_SLACK = 0.005


def _nothing() -> None: ...


def _nobody() -> Set[int]:
    return frozenset()


@define(eq=False)
class Dispatcher(Service):
    """
    ``workers`` slots, each of which holds one attempt from its claim to its result.

    An attempt that is stuck in the look-up of its name is set *aside*: it troubles no receiver, so its slot
    is free for another meanwhile.  Otherwise a few names that hang would hold every slot until their
    deadline, and all the rest would wait for them.

    :param schedule: the budget and the waits, as the store's rules have them.
    :param on_left: called after a turn in which jobs left the queue, so that there is room again.
    :param stuck: which attempts (by the job's id) are stuck so; ``wake`` is to be called for each.
    """

    deliveries: Deliveries
    callbacks: Callbacks
    clock: IReactorTime
    now: Now
    jitter: Jitter
    schedule: Schedule
    workers: int
    on_left: Callable[[], None] = _nothing
    stuck: Callable[[], Set[int]] = _nobody
    _wall: WallClock = field(init=False)
    _busy: dict[int, Claimed] = field(factory=dict, init=False)
    """The attempts under way, by the job's id."""
    _since: dict[int, float] = field(factory=dict, init=False)
    """When each of them was claimed, by the clock of the process."""
    _behind: dict[int, list[Claimed]] = field(factory=dict, init=False)
    """By subscription with an attempt under way: jobs that have to wait for its end."""
    _finished: list[Finished] = field(factory=list, init=False)
    """Results no turn has written yet."""
    _work_may_be_there: bool = field(default=False, init=False)
    _turning: bool = field(default=False, init=False)
    _turns: Deferred[None] | None = field(default=None, init=False)
    _next_due: int | None = field(default=None, init=False)
    _alarm: IDelayedCall | None = field(default=None, init=False)
    """The end of a rest, or of a back-off."""
    _failures: int = field(default=0, init=False)
    """Turns that failed in a row."""
    _healthy_run: int = field(default=0, init=False)
    _toll: Toll = field(default=Toll(), init=False)
    _stopped: Deferred[None] | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._wall = WallClock(self.clock, self.now)

    # -- from outside ----------------------------------------------------------------------------------

    def startService(self) -> None:
        super().startService()
        self._wall = WallClock(self.clock, self.now)
        self._stopped = None
        self._work_may_be_there = True
        # In the reactor's first turn, so that a start which fails further on has claimed nothing.
        self._rest(0)

    def wake(self) -> None:
        """Jobs came, or another process changed the queue: look now.  Many calls are one."""
        self._work_may_be_there = True
        self._go()

    def notify_commit(self) -> None:
        """Another process committed, or the database works again: look now, a back-off notwithstanding."""
        if self._failures and not self._turning:
            self._cancel_alarm()
        self.wake()

    def status(self) -> DeliveryStatus:
        """For ``/health``."""
        busy = len(self._busy) - len(self._aside())
        if not self.running:
            return DeliveryStatus("stopped", self.workers, busy)
        return DeliveryStatus("backing_off" if self._failures else "ok", self.workers, busy)

    def take_toll(self) -> Toll:
        """How many jobs turns have buried, and evicted, since this was last asked."""
        toll, self._toll = self._toll, Toll()
        return toll

    def stopService(self) -> Deferred[None]:
        """Claim no more; fires when the attempts in flight have ended and their results are committed."""
        super().stopService()
        if self._idle():
            self._cancel_alarm()
            return succeed(None)
        self._stopped = Deferred()
        self._failures = min(self._failures, 1)
        if not self._turning:
            self._cancel_alarm()
            self._go()
        return self._stopped

    # -- turns -----------------------------------------------------------------------------------------

    def _idle(self) -> bool:
        return not (self._turning or self._busy or self._finished)

    def _aside(self) -> Set[int]:
        """The attempts that hold no slot at present."""
        return frozenset(islice(self.stuck(), MOST_ASIDE))

    def _free(self) -> int:
        # Some of those set aside may have found their names after all.
        return max(0, self.workers - len(self._busy) + len(self._aside())) if self.running else 0

    def _is_wanted(self) -> bool:
        """Whether a turn has something to do."""
        return bool(self._finished) or (self._work_may_be_there and self._free() > 0)

    def _go(self) -> None:
        """Begin a series of turns, unless one is under way, backing off, or has nothing to do."""
        backing_off = self._failures > 0 and self._alarm is not None
        if self._turning or backing_off or not (self.running or self._stopped) or not self._is_wanted():
            return
        self._cancel_alarm()
        self._turning = True
        self._turns = Deferred.fromCoroutine(self._take_turns())

    async def _take_turns(self) -> None:
        try:
            while self._is_wanted() and await self._turn():
                pass
        except Exception as error:
            log.critical("a turn of deliveries failed inside: {what}", what=whence(error))
        finally:
            self._turning = False
            self._settle_down()

    async def _turn(self) -> bool:
        """One transaction; False when it failed."""
        finished, self._finished = self._finished, []
        self._work_may_be_there = False
        try:
            seconds = self._wall.jump()
            if seconds:
                await self.deliveries.shift_times(seconds)
                finished = [moved(each, seconds) for each in finished]
                self._clock_was_set(seconds)
            # Not by the system's clock: set while this waits for the lock, it would end every back-off.
            turn = await self.deliveries.turn(tuple(finished), self._slots(), self._wall.read)
        except Exception as error:
            self._finished[:0] = finished
            self._work_may_be_there = True
            self._turn_failed(error)
            return False
        self._turn_committed(turn)
        return True

    def _slots(self) -> Slots:
        # One that is slow already is sick, though its lane learns so only at its end.
        begun = self.clock.seconds() - SLOW
        aside = self._aside()
        holding = (job for job in self._busy.values() if job.id not in aside)
        sick = sum(job.sick or self._since[job.id] < begun for job in holding)
        return Slots(self._free(), max(0, sick_share(self.workers) - sick), self._healthy_run)

    def _clock_was_set(self, seconds: int) -> None:
        self._wall.moved(seconds)
        self._finished = [moved(each, seconds) for each in self._finished]
        for job_id, job in self._busy.items():
            self._busy[job_id] = evolve(job, first_attempt_at=job.first_attempt_at + seconds)
        log.warn("the clock was set by {seconds} s: waiting deliveries were moved along", seconds=seconds)

    def _turn_committed(self, turn: Turn) -> None:
        if self._failures:
            log.info("delivery goes on after {failures} failed transactions", failures=self._failures)
        self._failures = 0
        self._healthy_run = turn.healthy_run
        self._toll = Toll(self._toll.died + turn.buried, self._toll.evicted + turn.evicted)
        self._next_due = turn.next_due
        if turn.next_due is not None and turn.next_due <= self._wall.read():
            # The turn ended its search early, or a second began meanwhile.
            self._work_may_be_there = True
        for job in turn.claimed:
            self._begin(job)
        if turn.left:
            self.on_left()

    def _turn_failed(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == 1:
            # No text of the error: one that is not ours may quote values.
            reason = error.state if isinstance(error, StorageUnavailable) else whence(error)
            log.warn(
                "delivery backs off, the database is {reason}; results held: {held}",
                reason=reason,
                held=len(self._finished),
            )
        if self._stopped is not None and (self._failures >= LAST_TRIES or isinstance(error, StoreClosed)):
            log.error(
                "stopping without the results of {held} attempts; these are sent again after the next start",
                held=len(self._finished),
            )
            self._finished.clear()

    def _settle_down(self) -> None:
        """After a series of turns: finish a stop, or rest until the next has something to do."""
        if self._stopped is not None and self._idle():
            self._stopped.callback(None)
        elif self._failures:
            self._rest(1.0 if self._stopped else min(LONGEST_BACK_OFF, 2.0 ** min(self._failures - 1, 10)))
        elif self.running and self._next_due is not None and self._free() > 0:
            remaining = self._next_due - self._wall.read() + _SLACK
            self._rest(max(_SLACK, min(remaining, LOOK_AT_CLOCK)))

    # -- rests -----------------------------------------------------------------------------------------

    def _rest(self, seconds: float) -> None:
        self._cancel_alarm()
        self._alarm = self.clock.callLater(seconds, self._rested)

    def _rested(self) -> None:
        self._alarm = None
        if self._wall.jump() or (self._next_due is not None and self._wall.read() >= self._next_due):
            self._work_may_be_there = True
        if self._is_wanted():
            self._go()
        else:
            self._settle_down()

    def _cancel_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    # -- attempts --------------------------------------------------------------------------------------

    def _begin(self, job: Claimed) -> None:
        self._busy[job.id] = job
        self._since[job.id] = self.clock.seconds()
        behind = self._behind.get(job.subscription_id)
        if behind is None:
            self._behind[job.subscription_id] = []
            self._post(job)
        else:
            # The POST of a job that was removed under way: a lane never has two at once.
            behind.append(job)

    def _post(self, job: Claimed) -> None:
        # No coroutine here and in the client: it would be a sixth of what an attempt costs.
        began = self.clock.seconds()
        try:
            posting = self.callbacks.post(job)
        except Exception:
            posting = fail()
        posting.addErrback(_failed_inside, job).addCallback(self._ended, job, began)

    def _ended(self, result: AttemptResult, job: Claimed, began: float) -> None:
        took = self.clock.seconds() - began
        # As it is now: its times move along when the clock is set.
        job = self._busy.pop(job.id)
        del self._since[job.id]
        verdict = settle(
            job, result, took=took, now=self._wall.read(), jitter=self.jitter(), schedule=self.schedule
        )
        self._finished.append(Finished(job, verdict))
        behind = self._behind[job.subscription_id]
        if not behind:
            del self._behind[job.subscription_id]
        self._go()
        if behind:
            self._post(behind.pop(0))


def _failed_inside(failure: Failure, job: Claimed) -> AttemptResult:
    log.critical(
        "attempt {attempt} of delivery {id} failed inside: {what}",
        attempt=job.attempt,
        id=job.delivery_id,
        what=whence(failure.value),
    )
    return Unanswered("internal error")
