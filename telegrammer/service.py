"""Services that repeat a step, start in order, stop one at a time, and tell systemd."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import cast

from attrs import define, field
from twisted.application.service import IService, MultiService, Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

log = Logger()


@define(eq=False)
class Wakeup:
    """
    A rest that can be ended early.

    A ring that comes while nobody rests is kept, once: the next rest ends at once, so that work announced
    during a step is not slept over.  Many rings are one.
    """

    clock: IReactorTime
    _rung: bool = False
    _resting: Deferred[None] | None = None

    def ring(self) -> None:
        """End the rest in hand, or the next one."""
        resting, self._resting = self._resting, None
        if resting is None:
            self._rung = True
        else:
            resting.callback(None)

    def forget(self) -> None:
        """Take back a ring that was kept."""
        self._rung = False

    def rest(self, seconds: float) -> Deferred[None]:
        """Fires after ``seconds``, or at a ring; cancelling it ends it quietly."""
        if self._rung:
            self._rung = False
            return succeed(None)
        resting = self._resting = Deferred(lambda deferred: deferred.callback(None))
        timer = self.clock.callLater(seconds, self.ring)

        def awake(result: None) -> None:
            if timer.active():
                timer.cancel()
            if self._resting is resting:
                self._resting = None

        return resting.addCallback(awake)


@define(eq=False)
class Listeners:
    """Who is to be told of something; some of them are built after those who tell."""

    _called: list[Callable[[], None]] = field(factory=list, init=False)

    def add(self, listener: Callable[[], None]) -> None:
        self._called.append(listener)

    def tell(self) -> None:
        for listener in self._called:
            listener()


@define(eq=False)
class Repeating(Service):
    """
    Runs ``step`` until stopped.

    ``step`` is the unit a test calls; it returns how many seconds to rest (0: go on at once).  The first
    step begins in the reactor's first turn, so that a start which fails further on has done nothing.  A
    step that raises is logged and survived.
    """

    step: Callable[[], Awaitable[float]]
    clock: IReactorTime
    wakeup: Wakeup
    after_crash: float = 5.0
    """Seconds to rest after a step that raised."""
    _running: Deferred[None] | None = field(default=None, init=False)
    _beginning: IDelayedCall | None = field(default=None, init=False)
    _stopping: bool = field(default=False, init=False)

    def startService(self) -> None:
        super().startService()
        self._stopping = False
        self._beginning = self.clock.callLater(0, self._begin)

    def _begin(self) -> None:
        self._beginning = None
        self._running = Deferred.fromCoroutine(self._run())

    async def _run(self) -> None:
        while not self._stopping:
            try:
                rest = await self.step()
            except Exception:
                if self._stopping:
                    return
                log.failure("a step of {name} crashed", name=self.name)
                rest = self.after_crash
            if rest > 0 and not self._stopping:
                await self.wakeup.rest(rest)

    def stopService(self) -> Deferred[None]:
        """Finish the step in hand, take no other.  Fires when the loop has ended."""
        super().stopService()
        self._stopping = True
        if self._beginning is not None:
            self._beginning.cancel()
            self._beginning = None
        running, self._running = self._running, None
        if running is None:
            return succeed(None)
        self.wakeup.ring()
        return running


class OrderedServices(MultiService):
    """
    A MultiService whose children stop one after another, the last started first.

    ``MultiService`` stops all children at once: the database would close under the workers.  And when a
    child cannot start, those before it are stopped again: the threads of a started pool would keep a
    failed twistd from exiting.

    ``budget``: seconds for the whole stop (no end without a clock).
    """

    def __init__(self, clock: IReactorTime | None = None, budget: float | None = None) -> None:
        super().__init__()
        self.clock = clock
        self.budget = budget
        self._stopping: str | None = None

    def startService(self) -> None:
        Service.startService(self)
        started: list[IService] = []
        try:
            for child in self:
                child.startService()
                started.append(child)
        except BaseException:
            self.running = False
            for child in reversed(started):
                try:
                    child.stopService()
                except Exception:
                    log.failure("{name} did not stop cleanly", name=child.name)
            raise

    def privilegedStartService(self) -> None:
        """Nothing: everything that can fail does so in ``startService``, in order."""

    def stopService(self) -> Deferred[None]:
        """
        Stop the children one by one.  Fires when all have stopped, at the latest when the budget is over:
        then a line in the log names the child that was left.
        """
        Service.stopService(self)
        gone: Deferred[None] = Deferred()
        budget = None

        def over() -> None:
            log.warn(
                "the shutdown budget of {seconds} s is over; left unfinished: {name}",
                seconds=self.budget,
                name=self._stopping,
            )
            gone.callback(None)

        def stopped(result: object) -> None:
            if budget is not None and budget.active():
                budget.cancel()
            if not gone.called:
                gone.callback(None)

        if self.clock is not None and self.budget is not None:
            budget = self.clock.callLater(self.budget, over)
        Deferred.fromCoroutine(self._stop_children()).addBoth(stopped)
        return gone

    async def _stop_children(self) -> None:
        for child in reversed(list(cast("list[IService]", self.services))):
            if not child.running:
                continue
            self._stopping = child.name
            try:
                stopped = child.stopService()
                if stopped is not None:
                    await stopped
            except Exception:
                log.failure("{name} did not stop cleanly", name=child.name)


@define(eq=False)
class SystemdNotifier(Service):
    """
    Tells systemd of start, stop and life (sd_notify(3)).  Give it the last place: it starts when all
    before it have, and stops first.

    ``address`` is ``$NOTIFY_SOCKET``, ``watchdog_usec`` ``$WATCHDOG_USEC``; either may be None.
    """

    address: str | None
    clock: IReactorTime
    watchdog_usec: int | None = None
    _beat: IDelayedCall | None = field(default=None, init=False)

    def startService(self) -> None:
        super().startService()
        if self.address is None:
            return
        # In the reactor's first turn, when the address really answers.
        self._beat = self.clock.callLater(0, self._ready)

    def _ready(self) -> None:
        self._tell(b"READY=1")
        self._beat = None
        self._alive()

    def _alive(self) -> None:
        if self.watchdog_usec is not None:
            self._tell(b"WATCHDOG=1")
            self._beat = self.clock.callLater(self.watchdog_usec / 2_000_000, self._alive)

    def stopService(self) -> None:
        super().stopService()
        if self._beat is not None and self._beat.active():
            self._beat.cancel()
        self._beat = None
        self._tell(b"STOPPING=1")

    def _tell(self, state: bytes) -> None:
        if not self.address:
            return
        name = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as wire:
                wire.setblocking(False)
                wire.connect(name)
                wire.sendall(state)
        except OSError as error:
            log.warn(
                "systemd was not told {state}: {reason}", state=state.decode(), reason=type(error).__name__
            )
