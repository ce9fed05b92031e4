"""
Looks at the daemon every few seconds and puts what is news into the outbox (contract 7.4).

``round`` is the step of a ``service.Repeating``.  It looks at memory and waits for the database no longer
than `PATIENCE`, in no one's way; what there is to tell, and when, ``core.notices`` says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import TypeVar

from attrs import define, field
from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from telegrammer.core.delivery import QueueCounts
from telegrammer.core.health import FoldingStatus, IngestionStatus
from telegrammer.core.journal import JournalCounts
from telegrammer.core.messages import Mark, Message
from telegrammer.core.notice_texts import Deaths
from telegrammer.core.notices import DeathsWanted, Notice, Observed, deaths_wanted, due
from telegrammer.core.problems import (
    CommitUncertain,
    MessageRefused,
    OutboxError,
    QueueFull,
    StorageUnavailable,
)
from telegrammer.logs import whence
from telegrammer.notices.handle import Handle, OpenOutbox, pause_after
from telegrammer.ports import Now

log = Logger()

T = TypeVar("T")

ROUND = 2.0
"""Seconds between two looks at memory."""
LOOK_AT_QUEUE = 5.0
"""Seconds between two counts of the queue and the journal."""
LOOK_AT_DEATHS = 10.0
"""Seconds between two looks for deliveries that died."""
PATIENCE = 2.0
"""Seconds a look waits for the database."""


def _nothing() -> None: ...


@define(eq=False)
class Watch:
    """
    Keeps the marks in memory, as the outbox has them: nobody else writes those of this queue.

    A notice the full outbox does not take is dropped: its mark is kept in memory alone, and so is the end of
    a trouble that nobody was told of.  After a restart it is news again.

    :param counts: ``Deliveries.counts``.
    :param journal: ``Journal.counts``.
    :param deaths: the dead deliveries that are news.
    :param backups: names of what migrations left beside the database.
    :param on_sent: called when there is something to carry.
    """

    handle: Handle
    recipients: Sequence[str]
    ingestion: Callable[[], IngestionStatus]
    folding: Callable[[], FoldingStatus]
    counts: Callable[[], Awaitable[QueueCounts]]
    journal: Callable[[], Awaitable[JournalCounts]]
    deaths: Callable[[DeathsWanted], Awaitable[Sequence[Deaths]]]
    capacity: int
    clock: IReactorTime
    now: Now
    backups: Callable[[], Sequence[str]] = tuple
    on_sent: Callable[[], None] = _nothing
    dropped: int = field(default=0, init=False)
    """Notices that the outbox had no room for, since the start."""
    outstanding: int | None = field(default=None, init=False)
    """Messages in the outbox, and …"""
    oldest_at: int | None = field(default=None, init=False)
    """… the creation of the oldest, in Unix seconds, when last looked at."""
    _marks: dict[str, Mark] | None = field(default=None, init=False)
    """None: to be read from the outbox."""
    _uncertain: Notice | None = field(default=None, init=False)
    """It may be in the outbox, or not."""
    _unsaid: set[str] = field(factory=set, init=False)
    """Matters whose trouble was dropped."""
    _purged: int = field(default=0, init=False)
    _counts: QueueCounts | None = field(default=None, init=False)
    _entries: JournalCounts | None = field(default=None, init=False)
    _looked: dict[str, float] = field(factory=dict, init=False)
    _crash: str | None = field(default=None, init=False)
    """The fault of ours that the log has been told of."""

    def tell_purged(self, count: int) -> None:
        """So many dead deliveries were purged; told of together, from memory: a restart forgets them."""
        self._purged += count

    async def round(self) -> float:
        """Look, and put what is news into the outbox; seconds until the next round."""
        try:
            marks = await self._known_marks()
            observed = await self._observe(marks)
            for notice in due(observed, marks, self.now()):
                await self._send(notice, marks)
            self.outstanding = await self._use(lambda outbox: outbox.outstanding())
            self.oldest_at = await self._use(lambda outbox: outbox.oldest_at(), ends=True)
        except OutboxError as error:
            # The handle has told of it.
            return pause_after(error)
        return ROUND

    async def _use(self, operation: Callable[[OpenOutbox], Awaitable[T]], ends: bool = False) -> T:
        return await self.handle.use(operation, "watch", ends=ends)

    # -- looking ---------------------------------------------------------------------------------------

    async def _known_marks(self) -> dict[str, Mark]:
        if self._marks is None:
            marks = dict(await self._use(lambda outbox: outbox.marks()))
            self._marks = marks
            uncertain, self._uncertain = self._uncertain, None
            if uncertain is not None and marks.get(uncertain.mark.subject) == uncertain.mark:
                self._keep(uncertain, marks)
                self.on_sent()
        return self._marks

    async def _observe(self, marks: Mapping[str, Mark]) -> Observed:
        if self._is_time("queue", LOOK_AT_QUEUE):
            self._counts = await self._patiently(self.counts)
            self._entries = await self._patiently(self.journal)
        deaths: Sequence[Deaths] = ()
        wanted = deaths_wanted(marks, self.now())
        if wanted is not None and self._is_time("deaths", LOOK_AT_DEATHS):
            asked = wanted
            deaths = await self._patiently(lambda: self.deaths(asked)) or ()
        return Observed(
            ingestion=self.ingestion(),
            folding=self.folding(),
            capacity=self.capacity,
            counts=self._counts,
            journal=self._entries,
            deaths=deaths,
            purged=self._purged,
            backups=self.backups(),
        )

    def _is_time(self, what: str, seconds: float) -> bool:
        now = self.clock.seconds()
        if now - self._looked.get(what, -inf) < seconds:
            return False
        self._looked[what] = now
        return True

    async def _patiently(self, look: Callable[[], Awaitable[T]]) -> T | None:
        """What the database says, or None: it has troubles of its own, which ingestion will tell of."""

        async def looked() -> T:
            return await look()

        try:
            return await Deferred.fromCoroutine(looked()).addTimeout(PATIENCE, self.clock)
        except (StorageUnavailable, TimeoutError):
            return None
        except Exception as error:
            what = whence(error)
            if what != self._crash:
                self._crash = what
                log.error("looking for notices met an unexpected {what}", what=what)
            return None

    # -- telling ---------------------------------------------------------------------------------------

    async def _send(self, notice: Notice, marks: dict[str, Mark]) -> None:
        matter = notice.mark.subject
        if notice.recovery and matter in self._unsaid:
            return self._keep(notice, marks)
        try:
            message = Message(notice.subject, notice.body, tuple(self.recipients))
            await self._use(lambda outbox: outbox.send(message, marks=(notice.mark,)))
        except (QueueFull, MessageRefused) as error:
            self.dropped += 1
            if isinstance(error, QueueFull):
                log.warn("the outbox is full; dropped the notice: {subject}", subject=notice.subject)
            else:
                log.error("dropped a notice: {why}", why=str(error))
            self._keep(notice, marks)
            if not notice.recovery:
                self._unsaid.add(matter)
            return
        except CommitUncertain:
            self._marks, self._uncertain = None, notice
            raise
        self._keep(notice, marks)
        log.info("notice to the operator: {subject}", subject=notice.subject)
        self.on_sent()

    def _keep(self, notice: Notice, marks: dict[str, Mark]) -> None:
        """The notice is dealt with."""
        matter = notice.mark.subject
        marks[matter] = notice.mark
        self._unsaid.discard(matter)
        if matter == "purges":
            self._purged -= int(notice.mark.state)
