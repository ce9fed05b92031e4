"""
Asking Telegram, one request after the other, each dealt with before the next; with a stop that takes no time.

What is asked, and what follows from the answer, is for the poller and the keeper of the webhook to say.  A
request may be given up at any time; what the database has begun may not, and is waited for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from attrs import define, field
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from telegrammer.core.health import IngestionMode, IngestionStatus
from telegrammer.core.problems import StorageUnavailable
from telegrammer.core.standing import Crashed, Standing, StorageFailed
from telegrammer.logs import whence
from telegrammer.ports import Now
from telegrammer.service import Repeating, Wakeup

log = Logger()

T = TypeVar("T")

SHORTEST_REST: Final = 0.25
"""Seconds that a rest lasts at least though it is woken: news come faster than Telegram should be asked."""


@define(eq=False)
class Asking:
    """
    The steps of one who asks: when the next is due, the request in hand, and what must not come of either.

    :param doing: what the log calls it.
    """

    doing: str
    clock: IReactorTime
    now: Now
    stopped: bool = field(default=False, init=False)
    _last_success_at: int | None = field(default=None, init=False)
    _quiet_since: float = field(init=False)
    """The last success, or the start (monotonic)."""
    _ended: float = field(init=False)
    """When the last step ended (monotonic), as the next."""
    _due: float = field(init=False)
    _crash: str | None = field(default=None, init=False)
    """The fault of ours that the log has been told of."""
    _held: Deferred[Any] | None = field(default=None, init=False)
    _stepping: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._ended = self._due = self._quiet_since = self.clock.seconds()

    def status(self, standing: Standing, mode: IngestionMode) -> IngestionStatus:
        """How it does, for ``/health``."""
        return IngestionStatus(
            state="stopped" if self.stopped else standing.state,
            reason=standing.reason,
            consecutive_failures=standing.failures,
            last_success_at=self._last_success_at,
            quiet_seconds=self.clock.seconds() - self._quiet_since,
            mode=mode,
        )

    def left(self, *, woken: bool = False) -> float:
        """
        Seconds until the next step may be taken; 0: now.

        :param woken: there is a reason not to rest to the end.
        """
        now = self.clock.seconds()
        due = min(self._due, self._ended + SHORTEST_REST) if woken else self._due
        if now < due:
            return due - now
        # Or started again while what the last step began is still under way: never two at once.
        return SHORTEST_REST if self.stopped or self._stepping else 0.0

    async def step(self, request: Callable[[], Awaitable[T]]) -> T | StorageFailed | Crashed | None:
        """What came of a step; None when it was cut short by a stop."""
        self._stepping = True
        try:
            return await request()
        except StorageUnavailable as error:
            return StorageFailed(why=f"the database is {error.state}")
        except Exception as error:
            if self.stopped:
                return None
            self.log_crash(error)
            return Crashed(f"an unexpected {type(error).__name__}")
        finally:
            self._stepping = False

    async def hold(self, request: Awaitable[T]) -> T:
        """
        Await a request so that `stop` can cancel it.

        :raises CancelledError: it was.
        """

        async def answer() -> T:
            return await request

        held = self._held = Deferred.fromCoroutine(answer())
        try:
            result: T = await held
        finally:
            self._held = None
        # An answer that came of being cancelled, or just before, is one that nobody has dealt with.
        self.go_on()
        return result

    def go_on(self) -> None:
        """:raises CancelledError: after a stop; to be asked before a request that came behind a wait."""
        if self.stopped:
            raise CancelledError

    def rests(self, seconds: float) -> None:
        """The step is over; so long no other is taken."""
        self._ended = self.clock.seconds()
        self._due = self._ended + seconds

    def log_crash(self, error: Exception) -> None:
        """Once, not at each try, until `succeeded`."""
        what = whence(error)
        if what != self._crash:
            self._crash = what
            log.error("{doing} met an unexpected {what}", doing=self.doing, what=what)

    def heard(self) -> None:
        """Updates came, or could have come: a success."""
        self._last_success_at = int(self.now())
        self._quiet_since = self.clock.seconds()

    def succeeded(self) -> None:
        """The same of a step: whatever crashed before is over."""
        self._crash = None
        self.heard()

    def stop(self) -> None:
        """Give up the request in hand, if it is one that may be; take no other step."""
        self.stopped = True
        if self._held is not None:
            self._held.cancel()

    def resume(self) -> None:
        """Take steps again after `stop`."""
        self.stopped = False


@define(eq=False)
class AskingService(Service):
    """
    Takes steps from start to stop; stopping cancels the request in hand, and waits for the commit in hand.

    :param step: returns the seconds to rest; called earlier, how much of the rest is left.
    """

    asking: Asking
    step: Callable[[], Awaitable[float]]
    wakeup: Wakeup
    _loop: Repeating | None = field(default=None, init=False)

    def startService(self) -> None:
        super().startService()
        self.asking.resume()
        # A new loop each time: the last one may still be waiting for its commit.
        self._loop = Repeating(self.step, self.asking.clock, self.wakeup)
        self._loop.setName(self.asking.doing)
        self._loop.startService()

    def stopService(self) -> Deferred[None]:
        """Fires when the last step has ended."""
        super().stopService()
        loop, self._loop = self._loop, None
        # The loop first: a cancelled request returns from within `stop`, and the loop would go on at once,
        # for ever.
        stopped = succeed(None) if loop is None else loop.stopService()
        self.asking.stop()
        return stopped
