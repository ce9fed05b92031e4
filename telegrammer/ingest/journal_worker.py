"""
The worker that folds what the journal holds: strictly in its order, one entry after the other (contract 8).

``JournalWorker.fold_pass`` is the step and knows neither timers nor signals; ``run`` is the thin loop around
it, ``FoldingService`` its start and stop.  The queue is the journal itself, so nothing depends on being told:
a notification that is lost costs a rest of `TICK` seconds at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf
from typing import Final

from attrs import asdict, define, field
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from telegrammer.core.backoff import doubled
from telegrammer.core.folding import ALREADY, DEFERRED, Outcome, circumstance_of
from telegrammer.core.health import LONG_WAIT, FoldingStatus
from telegrammer.core.journal import BEGINNING, Pending
from telegrammer.core.problems import StorageUnavailable, UnknownEntry
from telegrammer.ingest.player import Player
from telegrammer.logs import whence
from telegrammer.ports import Journal, Now
from telegrammer.service import Wakeup

log = Logger()

PORTION: Final = 100
"""Entries that one selection brings."""
TICK: Final = 5.0
"""Seconds between two passes at most."""
SHORTEST_BACK_OFF: Final = 1.0
"""Seconds to rest after a pass that a circumstance has cut off; doubling to `TICK`."""
LATE_QUIET: Final = 60.0
"""Seconds between two lines that tell of late entries."""


@define(eq=False)
class JournalWorker:
    """
    Folds entries by the player.

    :param portion: entries that one selection brings.
    """

    player: Player
    journal: Journal
    clock: IReactorTime
    now: Now
    portion: int = PORTION
    _news: Wakeup = field(init=False)
    """Rung when there may be entries."""
    _relief: Wakeup = field(init=False)
    """Rung when what was in the way may be gone."""
    _began: bool = field(default=False, init=False)
    """Whether the size of the backlog has been told."""
    _reached_end: bool = field(default=False, init=False)
    """Whether a pass has reached the end."""
    _cut_off: int = field(default=0, init=False)
    """Passes in a row that did not."""
    _late_told: float = field(default=-inf, init=False)
    _told: str | None = field(default=None, init=False)
    """The trouble with selecting that the log has been told of."""
    _stopped: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._news = Wakeup(self.clock)
        self._relief = Wakeup(self.clock)

    # -- what others may know and do -------------------------------------------------------------------

    def status(self) -> FoldingStatus:
        """For ``/health``."""
        if self._stopped:
            return FoldingStatus("stopped")
        return FoldingStatus("backing_off", self.player.lacks_room) if self._cut_off else FoldingStatus()

    def notify(self) -> None:
        """An entry was accepted.  Never waits; many calls are one, and a back-off is not cut short."""
        self._news.ring()

    def notify_room(self) -> None:
        """Jobs have left the queue: what did not fit may do so now."""
        self._relief.ring()

    def notify_commit(self) -> None:
        """Another process committed, or the database works again: look now."""
        self._news.ring()
        self._relief.ring()

    # -- the pass --------------------------------------------------------------------------------------

    async def fold_pass(self) -> Outcome:
        """
        Fold what waits, once: what came of it.

        The pass ends when all that waited in its beginning has been taken, whatever comes meanwhile; at the
        first entry that a circumstance keeps from being folded, for what follows must not overtake it; or
        when the journal cannot be read.  None of that raises.  No entry is taken twice.

        Cancelling it lets the fold in hand come to its end, and begins no other.
        """
        done, after = Outcome(), BEGINNING
        most: int | None = None
        # What was made room before this pass is of no meaning for what it finds.
        self._relief.forget()
        try:
            if not self._began:
                await self._tell_backlog()
            while most is None or done.taken < most:
                limit = self.portion if most is None else min(self.portion, most - done.taken)
                portion = await self.journal.pending(after, limit)
                await self._tell_late(portion)
                for entry in portion:
                    outcome = await self._see_through(entry.place.entry_id)
                    done += outcome
                    if outcome.deferred:
                        return self._ended(done, reached_end=False)
                    after = entry.place
                if len(portion) < limit:
                    break
                if most is None:
                    most = done.taken + (await self.journal.counts()).pending
        except CancelledError:
            raise
        except Exception as error:
            self._tell_trouble(error)
            return self._ended(done, reached_end=False)
        return self._ended(done, reached_end=True)

    async def _see_through(self, entry_id: int) -> Outcome:
        """Play an entry to its end; only then a cancellation is raised."""
        waiting: list[Deferred[None]] = []

        def ended(outcome: Outcome) -> Outcome:
            for each in waiting:
                each.callback(None)
            return outcome

        playing = Deferred.fromCoroutine(self._play(entry_id)).addCallback(ended)
        cancelled: CancelledError | None = None
        while not playing.called:
            waiting[:] = [Deferred()]
            try:
                await waiting[0]
            except CancelledError as error:
                cancelled = error
                waiting.clear()
        outcome: Outcome = await playing
        if cancelled is not None:
            raise cancelled
        return outcome

    async def _play(self, entry_id: int) -> Outcome:
        try:
            return await self.player.play(entry_id)
        except UnknownEntry:
            # Somebody else has folded it, so long ago that it was let go.
            return ALREADY
        except Exception as error:
            log.error("playing entry {entry} met an unexpected {what}", entry=entry_id, what=whence(error))
            return DEFERRED

    def _ended(self, done: Outcome, *, reached_end: bool) -> Outcome:
        if not reached_end:
            self._cut_off += 1
        else:
            if self._cut_off:
                log.info("folding goes on after {count} passes that were cut off", count=self._cut_off)
            self._cut_off, self._reached_end, self._told = 0, True, None
            self.player.reached_end()
        if done.taken:
            log.debug(
                "a pass: folded {folded}, already {already}, unsupported {unsupported}, failed {failed},"
                " deferred {deferred}; jobs {jobs}, migrated {migrated}",
                **asdict(done),
            )
        return done

    # -- what the log is told --------------------------------------------------------------------------

    async def _tell_backlog(self) -> None:
        waiting = (await self.journal.counts()).pending
        self._began = True
        if waiting:
            log.info("{count} updates of the journal wait to be folded", count=waiting)

    async def _tell_late(self, portion: Sequence[Pending]) -> None:
        """Of entries that have waited for long; not of what was there at the start, nor again and again."""
        until = floor(self.now()) - LONG_WAIT
        if not self._reached_end or not any(entry.accepted_at <= until for entry in portion):
            return
        if self.clock.seconds() - self._late_told < LATE_QUIET:
            return
        late = await self.journal.late(until)
        if late.oldest_at is None:
            return
        self._late_told = self.clock.seconds()
        log.warn(
            "{count} updates have waited to be folded for five minutes or longer, the longest for {age} s",
            count=late.count,
            age=floor(self.now()) - late.oldest_at,
        )

    def _tell_trouble(self, error: Exception) -> None:
        """Once, until it is over or another."""
        known = isinstance(error, StorageUnavailable)
        what = circumstance_of(error) if known else f"an unexpected {whence(error)}"
        if what != self._told:
            self._told = what
            (log.warn if known else log.error)("the journal cannot be read: {what}", what=what)

    # -- the loop --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Pass after pass, until it is cancelled; then it ends, after the fold in hand."""
        self._stopped = False
        try:
            while True:
                await self.fold_pass()
                await _rest(
                    self._relief.rest(doubled(SHORTEST_BACK_OFF, self._cut_off - 1, TICK))
                    if self._cut_off
                    else self._news.rest(TICK)
                )
        finally:
            self._stopped = True


async def _rest(resting: Deferred[None]) -> None:
    """Wait for a rest, which ends quietly when it is cancelled: then raise all the same."""
    cancelled = False

    def cancel(_: Deferred[None]) -> None:
        nonlocal cancelled
        cancelled = True
        resting.cancel()

    def rested(_: None) -> None:
        if not cancelled:
            waiting.callback(None)

    waiting: Deferred[None] = Deferred(cancel)
    resting.addCallback(rested)
    await waiting


@define(eq=False)
class FoldingService(Service):
    """Folds from start to stop; stopping waits for the fold in hand."""

    worker: JournalWorker
    clock: IReactorTime
    _beginning: IDelayedCall | None = field(default=None, init=False)
    _running: Deferred[None] | None = field(default=None, init=False)

    def startService(self) -> None:
        super().startService()
        # In the reactor's first turn, so that a start which fails further on has done nothing.
        self._beginning = self.clock.callLater(0, self._begin)

    def _begin(self) -> None:
        self._beginning = None
        self._running = Deferred.fromCoroutine(self.worker.run()).addErrback(self._over)

    def _over(self, failure: Failure) -> None:
        if self.running or not failure.check(CancelledError):
            log.failure("the journal's worker has ended by itself", failure)

    def stopService(self) -> Deferred[None]:
        """Fires when the worker has ended."""
        super().stopService()
        if self._beginning is not None:
            self._beginning.cancel()
            self._beginning = None
        running, self._running = self._running, None
        if running is None:
            return succeed(None)
        running.cancel()
        return running
