"""
The webhook at Telegram: set once, at the start, and looked at from then on (contract 8).

``WebhookKeeper.keep_once`` is the step, ``core.webhook`` the table of what follows from it.  Updates are
accepted all the while, whatever becomes of the questions; a stop leaves the webhook set, so that Telegram
keeps what comes meanwhile, and pushes it when we are back.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from attrs import define, field
from twisted.internet.interfaces import IReactorTime

from telegrammer.core import webhook
from telegrammer.core.health import IngestionStatus
from telegrammer.core.telegram import Done, Identity, WebhookInfo
from telegrammer.core.webhook import Event, KeeperState, after_acceptance, after_step
from telegrammer.ingest.asking import SHORTEST_REST, Asking, AskingService
from telegrammer.ingest.identity import Identification
from telegrammer.ingest.keeper_log import DOING, KeeperLog
from telegrammer.ports import Ingestion, Jitter, Now, TelegramApi
from telegrammer.service import Wakeup


@define(eq=False)
class WebhookKeeper:
    """
    Asks Telegram who we are, sets the webhook, and looks after it.

    :param url: what Telegram is to call.
    :param secret: what it is to show; known once the database is open.
    :param token_bot_id: the bot the token's digits claim.
    """

    api: TelegramApi
    ingestion: Ingestion
    url: str
    secret: Callable[[], str]
    token_bot_id: int
    clock: IReactorTime
    now: Now
    jitter: Jitter
    _asking: Asking = field(init=False)
    _identification: Identification = field(init=False)
    _log: KeeperLog = field(init=False)
    _state: KeeperState = field(factory=KeeperState, init=False)
    _accepted: bool = field(default=False, init=False)
    """An update has come since the last look at the webhook."""

    def __attrs_post_init__(self) -> None:
        self._asking = Asking(DOING, self.clock, self.now)
        self._identification = Identification(self.api, self.ingestion, self.token_bot_id)
        self._log = KeeperLog(urlsplit(self.url).hostname or "unknown")

    def service(self) -> AskingService:
        """Keeps the webhook from its start to its stop."""
        return AskingService(self._asking, self.keep_once, Wakeup(self.clock))

    # -- what others may know and do ------------------------------------------------------------------

    def status(self) -> IngestionStatus:
        """How ingestion does, for ``/health``."""
        return self._asking.status(self._state, "webhook")

    def identity(self) -> Identity | None:
        """The bot, once ``getMe`` has named the one that token and database are of."""
        return self._identification.known

    def may_accept(self) -> bool:
        """Whether what is pushed may enter the database: not while it is known to be another bot's."""
        return self._state.reason != "wrong_bot"

    def note_accepted(self) -> None:
        """An update was accepted: a success, whatever Telegram complained of before."""
        self._accepted = True
        self._asking.heard()
        before, self._state = self._state, after_acceptance(self._state)
        if self._state.state != before.state:
            self._log.tell(None, before, self._state, 0.0, self.identity())

    # -- the step -------------------------------------------------------------------------------------

    async def keep_once(self) -> float:
        """
        One request and what follows from it.

        :return: the seconds to rest.  Called earlier, it only says how much of the rest is left.
        """
        left = self._asking.left()
        if left > 0:
            return left
        event = await self._asking.step(self._asked)
        return SHORTEST_REST if event is None else self._settle(event)

    async def _asked(self) -> Event:
        """What came of the next request."""
        match self._state.ask:
            case "identity":
                return await self._identification.ask(self._asking)
            case "webhook":
                outcome = await self._asking.hold(self.api.set_webhook(self.url, self.secret()))
                return webhook.WebhookSet() if isinstance(outcome, Done) else outcome
            case _:
                return await self._look()

    async def _look(self) -> Event:
        info = await self._asking.hold(self.api.get_webhook_info())
        if not isinstance(info, WebhookInfo):
            return info
        accepted, self._accepted = self._accepted, False
        return webhook.judged(info, self.url, self._state, accepted=accepted)

    def _settle(self, event: Event) -> float:
        before = self._state
        self._state, rest = after_step(event, before, self.jitter())
        if self._state.state == "listening" and self._state.refused_check is None:
            self._asking.succeeded()
        self._asking.rests(rest)
        self._log.tell(event, before, self._state, rest, self.identity())
        return rest
