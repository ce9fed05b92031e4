"""
The long poll: one request after the other, each dealt with before the next (contract 5.1, 5.4).

``Poller.poll_once`` is the step, ``core.polling`` the table of what follows from it.  A poll may be cancelled
at any time, for its offset is not confirmed before the next one; the commit of a batch may not, and is waited
for.
"""

from __future__ import annotations

from attrs import define, field
from twisted.internet.interfaces import IReactorTime

from telegrammer.core import polling
from telegrammer.core.health import IngestionStatus
from telegrammer.core.ingestion import Cursor
from telegrammer.core.polling import Event, PollState, after_poll, may_be_woken
from telegrammer.core.problems import CapacityReached, MalformedUpdate, StorageUnavailable
from telegrammer.core.standing import StorageFailed
from telegrammer.core.telegram import Batch, Conflict, Identity, WebhookInfo
from telegrammer.ingest.asking import SHORTEST_REST, Asking, AskingService
from telegrammer.ingest.identity import Identification
from telegrammer.ingest.ingestor import Ingestor
from telegrammer.ingest.poll_log import Details, PollLog
from telegrammer.ports import Ingestion, Jitter, Journal, Now, TelegramApi
from telegrammer.service import Wakeup


@define(eq=False)
class Poller:
    """
    Asks Telegram who we are, then for updates.

    :param journal: what was pushed before the mode was changed; it is folded before anything is polled.
    :param token_bot_id: the bot the token's digits claim.
    :param wakeup: the rest of the loop around `poll_once`.
    """

    api: TelegramApi
    ingestion: Ingestion
    ingestor: Ingestor
    journal: Journal
    token_bot_id: int
    clock: IReactorTime
    now: Now
    jitter: Jitter
    wakeup: Wakeup
    _asking: Asking = field(init=False)
    _identification: Identification = field(init=False)
    _poll_log: PollLog = field(factory=PollLog, init=False)
    _details: Details = field(factory=Details, init=False)
    """Of the step in hand, for its line in the log."""
    _state: PollState = field(factory=PollState, init=False)
    _cursor: Cursor | None = field(default=None, init=False)
    """As committed; None: to be read from the store."""
    _woken: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._asking = Asking("polling", self.clock, self.now)
        self._identification = Identification(self.api, self.ingestion, self.token_bot_id)

    def service(self) -> AskingService:
        """Polls from its start to its stop."""
        return AskingService(self._asking, self.poll_once, self.wakeup)

    # -- what others may know and do ------------------------------------------------------------------

    def status(self) -> IngestionStatus:
        """How polling does, for ``/health``."""
        return self._asking.status(self._state, "poll")

    def identity(self) -> Identity | None:
        """The bot, once ``getMe`` has named the one that token and database are of."""
        return self._identification.known

    def notify_room(self) -> None:
        """Jobs have left the queue: a batch that did not fit may do so now."""
        self._wake(room=True)

    def notify_commit(self) -> None:
        """Another process committed: it may have made room, or marked an update to be skipped."""
        self._wake(room=False)

    def _wake(self, *, room: bool) -> None:
        # Kept also while a request is in hand: what it finds may be out of date by the time it ends.
        if may_be_woken(self._state, room=room):
            self._woken = True
            self.wakeup.ring()

    # -- the step -------------------------------------------------------------------------------------

    async def poll_once(self) -> float:
        """
        One request and what follows from it.

        :return: the seconds to rest.  Called earlier, it only says how much of the rest is left.
        """
        left = self._asking.left(woken=self._woken)
        if left > 0:
            return left
        self._woken, self._details = False, Details()
        event = await self._asking.step(self._asked)
        return SHORTEST_REST if event is None else self._settle(event)

    async def _asked(self) -> Event:
        """What came of the next request."""
        match self._state.ask:
            case "identity":
                return await self._identification.ask(self._asking)
            case "journal":
                waits = await self.journal.pending(limit=1)
                self._asking.go_on()
                return polling.JournalWaits() if waits else polling.JournalDrained()
            case _:
                return await self._poll(self.clock.seconds())

    async def _poll(self, began: float) -> Event:
        if self._cursor is None:
            self._cursor = await self.ingestion.cursor()
            self._asking.go_on()
        offset = None if self._cursor.from_head else self._cursor.next_offset
        outcome = await self._asking.hold(self.api.get_updates(offset, self._state.limit))
        if isinstance(outcome, Conflict) and outcome.webhook and self._state.reason != "conflict_webhook":
            webhook = await self._asking.hold(self.api.get_webhook_info())
            host = webhook.host if isinstance(webhook, WebhookInfo) else None
            self._details = Details(webhook_host=host)
        if not isinstance(outcome, Batch):
            return outcome
        return await self._ingest(outcome, began)

    async def _ingest(self, batch: Batch, began: float) -> Event:
        try:
            done = await self.ingestor.accept(batch)
        except CapacityReached:
            return polling.NoRoom()
        except MalformedUpdate as malformed:
            self._details = Details(why=malformed.why, update_id=malformed.update_id)
            return polling.Held()
        except Exception as error:
            # Whatever it was, what is committed is the store's to say: the cursor will be read anew.
            if isinstance(error, StorageUnavailable):
                raise
            self._asking.log_crash(error)
            return StorageFailed(unforeseen=True, why="ingesting a batch crashed")
        self._cursor = done.cursor
        self._asking.succeeded()
        seconds = self.clock.seconds() - began
        return polling.Committed(fresh=done.fresh, received=len(batch.elements), seconds=seconds)

    def _settle(self, event: Event) -> float:
        before = self._state
        self._state, rest = after_poll(event, before, self.jitter())
        if isinstance(event, StorageFailed):
            self._cursor = None
        self._asking.rests(rest)
        self._poll_log.tell(event, before, self._state, rest, self._details, self.identity())
        # News that came while the request was in hand count, if they are news for what it came to.
        if self._woken and self._state.reason not in ("capacity", "malformed_update"):
            self._woken = False
        return min(rest, SHORTEST_REST) if self._woken else rest
