"""What the keeper of the webhook tells the operator: one line when something changes, none for each try."""

from __future__ import annotations

from attrs import define, field
from twisted.logger import Logger

from telegrammer.core.standing import Identified, OtherBot
from telegrammer.core.telegram import BadCredentials, Identity, Rejected
from telegrammer.core.webhook import Elsewhere, Event, KeeperState, Undelivered, WebhookSet
from telegrammer.ingest.trouble_log import code_of, tell_other_bot, tell_refused_token, why_of

log = Logger(namespace="telegrammer.ingest.webhook_keeper")

DOING = "ingestion by webhook"


@define(eq=False)
class KeeperLog:
    """
    Writes a line when what it would tell has changed since the last one.

    :param host: of our webhook; the rest of its URL is nobody's business.
    """

    host: str
    _told: tuple[object, ...] = field(default=(), init=False)
    _failures: int = field(default=0, init=False)
    """Since the last success."""
    _unknown_told: bool = field(default=False, init=False)

    def tell(
        self,
        event: Event | None,
        before: KeeperState,
        after: KeeperState,
        rest: float,
        identity: Identity | None,
    ) -> None:
        """
        Tell of a step, if it changed anything.

        :param event: None: an update was accepted.
        :param rest: seconds until the next request.
        :param identity: the bot, once known.
        """
        if isinstance(event, BadCredentials) and after.refused_check is not None:
            # getMe will tell what that means.
            return
        if isinstance(event, Identified) and before.refused_check == 404:
            self._tell_unknown_question()
        elif isinstance(event, Identified):
            # Whether Telegram has the webhook is still to be seen.
            return
        if after.failures > before.failures:
            self._failures += 1
        news = (after.state, after.reason, code_of(event), _what(event, after))
        if news == self._told:
            return
        self._told = news
        if after.state == "listening":
            self._tell_listening(event, identity)
        elif after.state == "backing_off":
            self._tell_backing_off(event, after, rest)
        else:
            self._tell_suspended(event)

    def _tell_unknown_question(self) -> None:
        if not self._unknown_told:
            self._unknown_told = True
            log.warn(
                "the Bot API server does not know getWebhookInfo: whether it keeps our webhook cannot be told"
            )

    def _tell_listening(self, event: Event | None, identity: Identity | None) -> None:
        if self._failures:
            log.info(
                "listening again, after {failures} failure{s}",
                failures=self._failures,
                s="" if self._failures == 1 else "s",
            )
            self._failures = 0
        elif isinstance(event, WebhookSet) and identity is not None:
            log.info(
                "listening for bot {bot_id}, @{username}: the webhook is set, on host {host}",
                bot_id=identity.bot_id,
                username=identity.username or "unnamed",
                host=self.host,
            )

    def _tell_backing_off(self, event: Event | None, after: KeeperState, rest: float) -> None:
        match event:
            case Undelivered(why=why):
                log.warn("Telegram cannot deliver: {why}", why=why)
            case Rejected(description=description):
                log.error(
                    "Telegram does not take the webhook: {why}; mend --webhook-url, its certificate or the "
                    "proxy; it is set again and again",
                    why=description or "it does not say why",
                )
            case _ if after.reason == "rate_limited":
                log.warn(
                    "Telegram limits our questions about the webhook: the next one in {seconds:.0f} s",
                    seconds=rest,
                )
            case _:
                log.warn(
                    "{doing} backs off ({reason}): {why}",
                    doing=DOING,
                    reason=after.reason,
                    why=why_of(event) or "an answer that does not fit",
                )

    def _tell_suspended(self, event: Event | None) -> None:
        match event:
            case Elsewhere(host=None):
                log.error(
                    "{doing} is suspended: the webhook was deleted at Telegram; restart to set it again",
                    doing=DOING,
                )
            case Elsewhere(host=host):
                log.error(
                    "{doing} is suspended: the bot has another webhook now, on host {host}; if it is not "
                    "wanted, restart to set ours; this resumes by itself once ours is back",
                    doing=DOING,
                    host=host,
                )
            case OtherBot():
                tell_other_bot(log, DOING, event)
            case _:
                tell_refused_token(log, DOING, event)


def _what(event: Event | None, after: KeeperState) -> object:
    """What makes two events of the same state and reason different news."""
    match event:
        case Elsewhere(host=host):
            return host or ""
        case Undelivered() | Rejected():
            return type(event).__name__
        case _:
            return after.undelivered
