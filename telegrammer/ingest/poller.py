"""
The long poll: one request after the other, each dealt with before the next (contract 5.1, 5.4).

``Poller.poll_once`` is the step, ``core.polling`` the table of what follows from it, ``PollerService`` the
loop with its stop.  A poll may be cancelled at any time, for its offset is not confirmed before the next
one; the commit of a batch may not, and is waited for.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from attrs import define, field
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from telegrammer.core import polling
from telegrammer.core.health import IngestionStatus
from telegrammer.core.ingestion import Cursor
from telegrammer.core.polling import Event, PollState, after_poll, may_be_woken
from telegrammer.core.problems import CapacityReached, MalformedUpdate, StorageUnavailable, WrongBot
from telegrammer.core.telegram import Batch, Conflict, Identity, WebhookInfo
from telegrammer.ingest.ingestor import Ingestor
from telegrammer.ingest.poll_log import Details, PollLog
from telegrammer.logs import whence
from telegrammer.ports import Ingestion, Jitter, Now, TelegramApi
from telegrammer.service import Repeating, Wakeup

log = Logger()

T = TypeVar("T")

SHORTEST_REST: Final = 0.25
"""Seconds that a rest lasts at least though it is woken: news come faster than Telegram should be asked."""


@define(eq=False)
class Poller:
    """
    Asks Telegram who we are, then for updates.

    :param token_bot_id: the bot the token's digits claim.
    :param wakeup: the rest of the loop around `poll_once`.
    """

    api: TelegramApi
    ingestion: Ingestion
    ingestor: Ingestor
    token_bot_id: int
    clock: IReactorTime
    now: Now
    jitter: Jitter
    wakeup: Wakeup
    _poll_log: PollLog = field(factory=PollLog, init=False)
    _details: Details = field(factory=Details, init=False)
    """Of the step in hand, for its line in the log."""
    _state: PollState = field(factory=PollState, init=False)
    _identity: Identity | None = field(default=None, init=False)
    _cursor: Cursor | None = field(default=None, init=False)
    """As committed; None: to be read from the store."""
    _last_success_at: int | None = field(default=None, init=False)
    _quiet_since: float = field(init=False)
    _ended: float = field(init=False)
    """When the last step ended (monotonic), as the next two."""
    _due: float = field(init=False)
    _woken: bool = field(default=False, init=False)
    _crash: str | None = field(default=None, init=False)
    """The fault of ours that the log has been told of."""
    _held: Deferred[Any] | None = field(default=None, init=False)
    """The request in hand."""
    _stepping: bool = field(default=False, init=False)
    _stopped: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._quiet_since = self._ended = self._due = self.clock.seconds()

    # -- what others may know and do ------------------------------------------------------------------

    def status(self) -> IngestionStatus:
        """How polling does, for ``/health``."""
        return IngestionStatus(
            state="stopped" if self._stopped else self._state.state,
            reason=self._state.reason,
            consecutive_failures=self._state.failures,
            last_success_at=self._last_success_at,
            quiet_seconds=self.clock.seconds() - self._quiet_since,
        )

    def identity(self) -> Identity | None:
        """The bot, once ``getMe`` has named the one that token and database are of."""
        return self._identity

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

    def stop(self) -> None:
        """Give up the request in hand, if it is one that may be; take no other step."""
        self._stopped = True
        if self._held is not None:
            self._held.cancel()

    def resume(self) -> None:
        """Take steps again after `stop`."""
        self._stopped = False

    # -- the step -------------------------------------------------------------------------------------

    async def poll_once(self) -> float:
        """
        One request and what follows from it.

        :return: the seconds to rest.  Called earlier, it only says how much of the rest is left.
        """
        began = self.clock.seconds()
        due = min(self._due, self._ended + SHORTEST_REST) if self._woken else self._due
        if began < due:
            return due - began
        if self._stopped or self._stepping:
            # Or restarted while the last commit is still under way: never two polls at once.
            return SHORTEST_REST
        self._stepping, self._woken, self._details = True, False, Details()
        try:
            event = await self._asked(began)
        except Exception as error:
            if self._stopped:
                return SHORTEST_REST
            self._details = Details(why=f"an unexpected {type(error).__name__}")
            self._log_crash(error)
            event = polling.Crashed()
        finally:
            self._stepping = False
        return SHORTEST_REST if event is None else self._settle(event)

    async def _asked(self, began: float) -> Event | None:
        """What came of the next request; None when it was cut short by a stop."""
        try:
            if self._state.ask == "identity":
                return await self._identify()
            return await self._poll(began)
        except CancelledError:
            if not self._stopped:
                raise
            return None
        except StorageUnavailable as error:
            self._cursor = None
            self._details = Details(why=f"the database is {error.state}")
            return polling.StorageFailed()

    async def _identify(self) -> Event:
        found = await self._hold(self.api.get_me())
        if not isinstance(found, Identity):
            return found
        if found.bot_id != self.token_bot_id:
            self._identity = None
            self._details = Details(expected_bot=self.token_bot_id, found_bot=found.bot_id)
            return polling.OtherBot()
        try:
            await self.ingestion.bind(found.bot_id)
        except WrongBot as wrong:
            self._identity = None
            self._details = Details(expected_bot=wrong.bound, found_bot=wrong.found)
            return polling.OtherBot()
        self._identity = found
        return polling.Identified()

    async def _poll(self, began: float) -> Event:
        if self._cursor is None:
            self._cursor = await self.ingestion.cursor()
            if self._stopped:
                raise CancelledError
        offset = None if self._cursor.from_head else self._cursor.next_offset
        outcome = await self._hold(self.api.get_updates(offset, self._state.limit))
        if isinstance(outcome, Conflict) and outcome.webhook and self._state.reason != "conflict_webhook":
            webhook = await self._hold(self.api.get_webhook_info())
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
            # Whatever it was, what is committed is the store's to say.
            self._cursor = None
            if isinstance(error, StorageUnavailable):
                raise
            self._log_crash(error)
            self._details = Details(why="ingesting a batch crashed")
            return polling.StorageFailed(unforeseen=True)
        self._cursor = done.cursor
        self._crash = None
        ended = self.clock.seconds()
        self._quiet_since = ended
        self._last_success_at = int(self.now())
        return polling.Committed(fresh=done.fresh, received=len(batch.elements), seconds=ended - began)

    async def _hold(self, request: Awaitable[T]) -> T:
        """Await a request so that `stop` can cancel it."""

        async def answer() -> T:
            return await request

        held = self._held = Deferred.fromCoroutine(answer())
        try:
            result: T = await held
        finally:
            self._held = None
        if self._stopped:
            # An answer that came of being cancelled, or just before, is unconfirmed and will come again.
            raise CancelledError
        return result

    def _settle(self, event: Event) -> float:
        before = self._state
        self._state, rest = after_poll(event, before, self.jitter())
        self._ended = self.clock.seconds()
        self._due = self._ended + rest
        self._poll_log.tell(event, before, self._state, rest, self._details, self._identity)
        # News that came while the request was in hand count, if they are news for what it came to.
        if self._woken and self._state.reason not in ("capacity", "malformed_update"):
            self._woken = False
        return min(rest, SHORTEST_REST) if self._woken else rest

    def _log_crash(self, error: Exception) -> None:
        """Once, not at each try, until a batch is committed again."""
        what = whence(error)
        if what != self._crash:
            self._crash = what
            log.error("polling met an unexpected {what}", what=what)


@define(eq=False)
class PollerService(Service):
    """Polls from start to stop; stopping cancels the request in hand and waits for the commit in hand."""

    poller: Poller
    _loop: Repeating | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.setName("poller")

    def startService(self) -> None:
        super().startService()
        self.poller.resume()
        # A new loop each time: the last one may still be waiting for its commit.
        self._loop = Repeating(self.poller.poll_once, self.poller.clock, self.poller.wakeup)
        self._loop.setName("poller")
        self._loop.startService()

    def stopService(self) -> Deferred[None]:
        """Fires when the last step has ended."""
        super().stopService()
        loop, self._loop = self._loop, None
        # The loop first: a cancelled request returns from within `stop`, and the loop would go on at once,
        # for ever.
        stopped = succeed(None) if loop is None else loop.stopService()
        self.poller.stop()
        return stopped
