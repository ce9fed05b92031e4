"""
What Telegram pushes is made safe in the journal, and nothing else is waited for (contract 8).

Here is no folding: whoever folds is rung for, and may be down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from telegrammer.core.journal import Accepted
from telegrammer.core.problems import InvalidRequest, StorageUnavailable, StoreBusy
from telegrammer.core.updates import update_id_of
from telegrammer.logs import whence
from telegrammer.ports import Journal
from telegrammer.timers import FairClock

log = Logger()

ANSWER_SECONDS: Final = 10.0
"""
From the end of the body to the answer, at the latest.

The journal has about half of it to begin (``SqlJournal.accept_seconds``), so what is refused by then is not
stored.  A commit that hangs is left to end as it will: the answer is that it was not journaled in time, and
when it was after all, Telegram's repeat finds it.
"""
WARN_SECONDS: Final = 60.0
"""Between two lines that tell of bodies without an update: who has the secret may still send anything."""
NO_UPDATE: Final = "the body has to be a JSON object in UTF-8 with an integer update_id from 0 to 2^63 - 1"


@define(eq=False)
class WebhookIntake:
    """
    Implements ``ports.UpdateIntake``.

    :param on_accepted: called after each commit of an entry that is new, late ones included; never for a
        repeat.
    :param may_accept: asked first; while it says no, nothing is taken, and Telegram keeps what it has.
    :param seconds: how long an acceptance may take.
    """

    journal: Journal
    clock: IReactorTime
    on_accepted: Callable[[], None]
    may_accept: Callable[[], bool] = lambda: True
    seconds: float = ANSWER_SECONDS
    _warned_at: float | None = field(default=None, init=False)

    async def accept(self, body: bytes) -> Accepted:
        """See ``ports.UpdateIntake``.  Cancelling it ends the waiting alone: the update is journaled."""
        update_id = update_id_of(body)
        if update_id is None:
            self._tell_of_no_update(len(body))
            raise InvalidRequest(NO_UPDATE)
        if not self.may_accept():
            raise StoreBusy("the database belongs to another bot than the token")
        return await self._in_time(Deferred.fromCoroutine(self._enter(update_id, body)))

    def _in_time(self, entering: Deferred[Accepted]) -> Deferred[Accepted]:
        """Its result, or that it was not there in time; it goes on in either case."""

        def stop() -> None:
            if timer.active():
                timer.cancel()

        def ended(result: Accepted | Failure) -> None:
            stop()
            if not answer.called:
                answer.callback(result)
            elif isinstance(result, Failure) and not result.check(StorageUnavailable):
                log.error(
                    "an update that nobody waits for any more could not be journaled: {error}",
                    error=whence(result.value),
                )

        answer: Deferred[Accepted] = Deferred(lambda _: stop())
        timer = FairClock(self.clock).callLater(
            self.seconds, lambda: answer.errback(StoreBusy("the update was not journaled in time"))
        )
        entering.addBoth(ended)
        return answer

    async def _enter(self, update_id: int, body: bytes) -> Accepted:
        accepted = await self.journal.accept(update_id, body)
        if accepted.restarted:
            log.warn(
                "Telegram restarted its update ids: update {update_id}, epoch {epoch}",
                update_id=update_id,
                epoch=accepted.epoch,
            )
        if not accepted.is_repeat:
            try:
                self.on_accepted()
            except Exception:
                # The update is safe, and that is all its answer says.
                log.failure("a listener to accepted updates failed")
        return accepted

    def _tell_of_no_update(self, size: int) -> None:
        now = self.clock.seconds()
        if self._warned_at is None or now - self._warned_at >= WARN_SECONDS:
            self._warned_at = now
            log.warn("a body of {size} bytes was pushed that is no update: refused", size=size)
