"""
The Bot API's methods over a bounded exchange (contract 2.1, 5.1; core.telegram.org/bots/api).

This is the one place that knows the token and builds URLs with it.  Nothing that leaves here carries either:
what went wrong comes back as one of the values of ``core.telegram``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from attrs import define, field

from telegrammer import __version__
from telegrammer.config import Token
from telegrammer.core import envelope, updates
from telegrammer.core.exchange import (
    BadReply,
    BodyTooLarge,
    DeadlinePassed,
    ExchangeFailed,
    Reply,
)
from telegrammer.core.telegram import (
    IdentityOutcome,
    Misbehaved,
    NetworkFailure,
    PollOutcome,
    SendOutcome,
    SettingOutcome,
    TimedOut,
    Unavailable,
    UpstreamFailure,
    WebhookOutcome,
)
from telegrammer.logs import Redactor
from telegrammer.ports import Exchange

HOLD_SECONDS: Final = 30
"""How long Telegram holds a poll that finds nothing: ``timeout`` of ``getUpdates``."""

_ALLOWED_UPDATES: Final = ("message",)
_MIB: Final = 2**20
_HEADERS: Final = {"Content-Type": "application/json", "User-Agent": f"telegrammer/{__version__}"}


@define(eq=False)
class BotApi:
    """
    Implements ``ports.TelegramApi``.

    :param base_url: of the Bot API server, without a trailing slash.
    :param polling: for what may be asked again: the long poll, ``getMe``, all that is about a webhook.
    :param sending: for ``sendMessage``, so that sends neither wait for a poll nor use its connection.
    """

    token: Token = field(repr=False)
    base_url: str
    polling: Exchange
    sending: Exchange
    _redact: Redactor = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._redact = Redactor([self.token.text])

    async def get_me(self) -> IdentityOutcome:
        """Who the token's bot is.  10 s, 1 MiB."""
        reply = await self._ask("getMe", {}, seconds=10, limit=_MIB)
        if not isinstance(reply, Reply):
            return reply
        return envelope.identity_outcome(reply.status, reply.values(b"retry-after"), reply.body)

    async def get_webhook_info(self) -> WebhookOutcome:
        """Which webhook is set; a question only, it changes nothing.  10 s, 1 MiB."""
        reply = await self._ask("getWebhookInfo", {}, seconds=10, limit=_MIB)
        if not isinstance(reply, Reply):
            return reply
        return envelope.webhook_outcome(reply.status, reply.values(b"retry-after"), reply.body, self._redact)

    async def set_webhook(self, url: str, secret: str) -> SettingOutcome:
        """
        Have updates pushed to ``url``, each with ``secret`` in its head; what waits stays.  30 s, 1 MiB.

        Telegram resolves and looks at the URL before it answers.
        """
        # It may quote what it was told.
        self._redact = Redactor([self.token.text, secret, url])
        return await self._set(
            "setWebhook",
            # Telegram remembers the last list it was given, whoever gave it.
            {"url": url, "secret_token": secret, "allowed_updates": _ALLOWED_UPDATES},
        )

    async def delete_webhook(self) -> SettingOutcome:
        """Have nothing pushed any more; what waits stays.  30 s, 1 MiB."""
        return await self._set("deleteWebhook", {})

    async def _set(self, method: str, question: Mapping[str, object]) -> SettingOutcome:
        reply = await self._ask(method, question, seconds=30, limit=_MIB)
        if not isinstance(reply, Reply):
            return reply
        return envelope.setting_outcome(reply.status, reply.values(b"retry-after"), reply.body, self._redact)

    async def get_updates(self, offset: int | None, limit: int) -> PollOutcome:
        """
        One long poll.  40 s, 16 MiB (contract 5.1).

        :param offset: the cursor; Telegram forgets every update below it.  None: it is to forget nothing.
        :param limit: how many updates at most, 1 to 100.
        """
        question = {
            **({} if offset is None else {"offset": offset}),
            "timeout": HOLD_SECONDS,
            "limit": limit,
            # In every request: Telegram remembers the last list it was given, whoever gave it.
            "allowed_updates": _ALLOWED_UPDATES,
        }
        reply = await self._ask("getUpdates", question, seconds=40, limit=16 * _MIB)
        if not isinstance(reply, Reply):
            return reply
        return updates.poll_outcome(reply.status, reply.values(b"retry-after"), reply.body)

    async def send_message(self, chat_id: int, text: str) -> SendOutcome:
        """At most one ``sendMessage`` on the wire, without a parse mode.  20 s, 1 MiB (contract 2.1)."""
        message = {"chat_id": chat_id, "text": text}
        try:
            reply = await self._exchange(self.sending, "sendMessage", message, seconds=20, limit=_MIB)
        except DeadlinePassed:
            return TimedOut()
        except (BodyTooLarge, BadReply):
            return Misbehaved()
        except ExchangeFailed:
            return Unavailable()
        # Callers get Telegram's own words; something in front of it may have put the path into them.
        retry_after = reply.values(b"retry-after")
        return envelope.sent_outcome(reply.status, retry_after, reply.body, self._redact)

    async def _ask(
        self, method: str, question: Mapping[str, object], *, seconds: float, limit: int
    ) -> Reply | NetworkFailure | UpstreamFailure:
        try:
            return await self._exchange(self.polling, method, question, seconds=seconds, limit=limit)
        except (BodyTooLarge, BadReply) as failed:
            return UpstreamFailure(failed.why)
        except ExchangeFailed as failed:
            return NetworkFailure(failed.why)

    async def _exchange(
        self,
        exchange: Exchange,
        method: str,
        question: Mapping[str, object],
        *,
        seconds: float,
        limit: int,
    ) -> Reply:
        # A POST, always: the HTTP stack repeats by itself only what has no body.  ASCII JSON, so that no
        # text whatever can fail to be encoded.
        return await exchange.exchange(
            "POST",
            f"{self.base_url}/bot{self.token.text}/{method}",
            _HEADERS,
            json.dumps(question, separators=(",", ":")).encode("ascii"),
            seconds=seconds,
            limit=limit,
        )
