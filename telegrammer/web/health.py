"""Gathers what ``/health`` shows, in bounded time (contract 2.3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from attrs import define, field
from twisted.internet.defer import Deferred, TimeoutError, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from telegrammer.core.delivery import QueueCounts
from telegrammer.core.health import (
    DeliveryStatus,
    FoldingStatus,
    HealthReport,
    IngestionStatus,
    OutboxStatus,
    report,
)
from telegrammer.core.journal import JournalCounts
from telegrammer.core.problems import DatabaseState, StorageUnavailable
from telegrammer.core.telegram import Identity
from telegrammer.ports import Now, Storage

log = Logger()


def _no_outbox() -> None: ...


@define(eq=False)
class Health:
    """
    Each room's state is a look at memory; only the counts need the database, which may be stuck.

    They are waited for no longer than ``patience`` seconds; then the last known ones are shown.  At most
    one look-up is under way, however many ask, so that impatient monitors cannot pile up work behind a
    stuck database.
    """

    bot: Callable[[], Identity | None]
    ingestion: Callable[[], IngestionStatus]
    delivery: Callable[[], DeliveryStatus]
    storage: Storage
    counts: Callable[[], Awaitable[QueueCounts]]
    """``Deliveries.counts``."""
    folding: Callable[[], FoldingStatus]
    journal: Callable[[], Awaitable[JournalCounts]]
    """``Journal.counts``."""
    capacity: int
    """``--max-jobs``."""
    clock: IReactorTime
    now: Now
    outbox: Callable[[], OutboxStatus | None] = _no_outbox
    """None where no notices are configured."""
    patience: float = 0.04
    _queue: QueueCounts = field(default=QueueCounts(), init=False)
    _entries: JournalCounts = field(default=JournalCounts(), init=False)
    _trouble: DatabaseState = field(default="ok", init=False)
    """What kept the last look-up from its result."""
    _looking: bool = field(default=False, init=False)
    _look_up: Deferred[None] | None = field(default=None, init=False)
    _waiting: list[Deferred[None]] = field(factory=list, init=False)

    async def report(self) -> HealthReport:
        """The report of this moment; no I/O to Telegram, and none that is waited for beyond ``patience``."""
        await self._fresh_counts()
        state = self.storage.state()
        return report(
            bot=self.bot(),
            ingestion=self.ingestion(),
            delivery=self.delivery(),
            database=self._trouble if state == "ok" else state,
            counts=self._queue,
            folding=self.folding(),
            journal=self._entries,
            capacity=self.capacity,
            now=self.now(),
            outbox=self.outbox(),
        )

    def _fresh_counts(self) -> Deferred[None]:
        if not self._looking:
            self._looking = True
            self._look_up = Deferred.fromCoroutine(self._look())
        if not self._looking:
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        return waiting.addTimeout(self.patience, self.clock).addErrback(_give_up_waiting)

    async def _look(self) -> None:
        try:
            self._queue = await self.counts()
            self._entries = await self.journal()
            self._trouble = "ok"
        except StorageUnavailable as error:
            self._trouble = error.state
        except Exception as error:
            self._trouble = "failing"
            log.error("the queue or the journal could not be counted: {kind}", kind=type(error).__name__)
        self._looking = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)


def _give_up_waiting(failure: Failure) -> None:
    failure.trap(TimeoutError)
