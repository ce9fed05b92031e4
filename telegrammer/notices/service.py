"""The notices as one service, and how they do."""

from __future__ import annotations

from attrs import define, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from telegrammer.core.health import OutboxStatus
from telegrammer.notices.carrier import Carrier
from telegrammer.notices.handle import Handle
from telegrammer.notices.watch import Watch
from telegrammer.service import Repeating, Wakeup


@define(eq=False)
class Notices(Service):
    """
    Watches and carries from start to stop, and closes the outbox after.

    ``wakeup`` ends the carrier's rest: ring it when something was put into the outbox.
    """

    handle: Handle
    watch: Watch
    carrier: Carrier
    clock: IReactorTime
    wakeup: Wakeup
    _loops: tuple[Repeating, ...] = field(default=(), init=False)

    def startService(self) -> None:
        super().startService()
        self.handle.reopen()
        self.carrier.resume()
        self._loops = (
            Repeating(self.watch.round, self.clock, Wakeup(self.clock)),
            Repeating(self.carrier.carry, self.clock, self.wakeup),
        )
        for name, loop in zip(("watch", "carrier"), self._loops, strict=True):
            loop.setName(name)
            loop.startService()

    def stopService(self) -> Deferred[None]:
        """Cut off the delivery in hand; fires when the outbox is closed."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        # The loops first: a delivery that is cancelled returns from within, and the loop would go on at once.
        stopping = [loop.stopService() for loop in self._loops]
        self.carrier.stop()
        for stopped in stopping:
            await stopped
        await self.handle.close()

    def status(self) -> OutboxStatus:
        """For ``/health``; a look at memory."""
        trouble = self.handle.trouble or self.carrier.failure
        return OutboxStatus(
            state="ok" if trouble is None else "failing",
            outstanding=self.watch.outstanding,
            dropped=self.watch.dropped,
            oldest_at=self.watch.oldest_at,
            last_failure=trouble,
        )
