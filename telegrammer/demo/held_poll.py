"""A ``getUpdates`` that waits for news."""

from __future__ import annotations

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from telegrammer.demo.replies import Reply


@define(eq=False)
class HeldPoll:
    """``answered`` fires with the answer; cancelled, when its client leaves, it ends quietly."""

    clock: IReactorTime
    offset: int
    limit: int
    answered: Deferred[Reply] = field(init=False)
    _timer: IDelayedCall | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.answered = Deferred(lambda deferred: self._stop())

    def answer(self, reply: Reply, after: float = 0.0) -> None:
        """Now, or in ``after`` seconds unless another answer comes before."""
        self._stop()
        if after:
            self._timer = self.clock.callLater(after, self.answer, reply)
        elif not self.answered.called:
            self.answered.callback(reply)

    def _stop(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
