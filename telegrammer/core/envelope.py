"""
The Bot API's envelope: which answer it is, decided by one rule for every method (contract 2.1, 5.4).

Every answer is a JSON object with a boolean ``ok``; failures carry ``description``, an integer
``error_code`` and perhaps ``parameters`` (core.telegram.org/bots/api, "Making requests").  In front of the
hosted server stands a proxy that answers HTML of its own: nothing here relies on an envelope being there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from attrs import field, frozen

from telegrammer.core.backoff import LONGEST_RETRY_AFTER, retry_after
from telegrammer.core.foreign import shown
from telegrammer.core.jsontext import NotJson, Reader, read_object, read_value, skip_space
from telegrammer.core.telegram import (
    BadCredentials,
    Conflict,
    Done,
    Identity,
    IdentityOutcome,
    Misbehaved,
    RateLimited,
    Refused,
    Rejected,
    SendOutcome,
    Sent,
    SettingOutcome,
    UpstreamFailure,
    WebhookInfo,
    WebhookOutcome,
)
from telegrammer.core.usernames import is_username

DESCRIPTION_LIMIT: Final = 256
"""Characters of Telegram's own words that are passed on (contract 2.1)."""

_CREDENTIALS: Final = (401, 404, 421)
_webhook_conflict = re.compile(r"webhook is active|setwebhook", re.IGNORECASE).search
"""The two of the server's three texts of a 409 that tell of a webhook (telegram-bot-api, Client.cpp)."""


@frozen
class Envelope:
    """An answer that has the shape of one; ``result`` is there only when it was an object or an array."""

    ok: bool
    result: object = field(default=None, repr=False)
    error_code: int | None = None
    description: str | None = field(default=None, repr=False)
    retry_after: object = None
    migrate_to_chat_id: int | None = None


def read_envelope(body: bytes, result: Reader = read_object) -> Envelope | None:
    """
    The envelope in ``body``; None for invalid UTF-8, no JSON, no object, no boolean ``ok``.

    :param result: who reads the member ``result``.
    """
    try:
        text = body.decode("utf-8")
        members, end = read_object(text, skip_space(text, 0), {"result": result, "parameters": read_object})
        if skip_space(text, end) != len(text):
            return None
    except (UnicodeDecodeError, NotJson):
        return None
    if members is None:
        return None
    ok = members.get("ok")
    if not isinstance(ok, bool):
        return None
    code = members.get("error_code")
    description = members.get("description")
    parameters = members.get("parameters")
    if not isinstance(parameters, Mapping):
        parameters = {}
    return Envelope(
        ok=ok,
        result=members.get("result"),
        error_code=code if type(code) is int else None,
        description=description if isinstance(description, str) else None,
        retry_after=parameters.get("retry_after"),
        migrate_to_chat_id=chat_id_of(parameters.get("migrate_to_chat_id")),
    )


def chat_id_of(value: object) -> int | None:
    """``value`` if it is a chat id (a signed 64-bit integer, not 0), else None."""
    if type(value) is int and value != 0 and -(2**63) <= value < 2**63:
        return value
    return None


def succeeded(status: int, envelope: Envelope | None) -> bool:
    """A 2xx whose envelope says ``ok: true``; whether ``result`` is right is the method's business."""
    return 200 <= status < 300 and envelope is not None and envelope.ok


def _code(status: int, envelope: Envelope | None) -> int | None:
    """What decides a failure: ``error_code``, else the HTTP status; None when they disagree."""
    if envelope is None:
        return status
    if envelope.ok:
        return None
    return status if envelope.error_code is None else envelope.error_code


def refused(status: int, retry_header: Sequence[bytes], envelope: Envelope | None) -> Refused:
    """
    What an answer that brought nothing means to the poller.

    :param status: the HTTP status.
    :param retry_header: the raw values of ``Retry-After``.
    """
    code = _code(status, envelope)
    if code == 429:
        asked = retry_after(envelope.retry_after if envelope else None, retry_header)
        return RateLimited(None if asked is None else min(asked, LONGEST_RETRY_AFTER))
    if code in _CREDENTIALS:
        return BadCredentials(code)
    if code == 409:
        words = envelope.description if envelope else None
        return Conflict(webhook=words is not None and _webhook_conflict(words) is not None)
    if envelope is None:
        return UpstreamFailure(f"HTTP {status} without an envelope")
    if envelope.ok:
        return UpstreamFailure(f"HTTP {status} with an envelope that does not fit")
    return UpstreamFailure(f"HTTP {status}, error code {_plain(envelope.error_code)}")


def _plain(code: int | None) -> str:
    return "none" if code is None else str(code) if 0 <= code < 1000 else "odd"


def sent_outcome(
    status: int,
    retry_header: Sequence[bytes],
    body: bytes,
    redact: Callable[[str], str] = str,
) -> SendOutcome:
    """
    What an answer to ``sendMessage`` means to the caller of ``POST /send`` (the table of contract 2.1).

    :param status: the HTTP status.
    :param retry_header: the raw values of ``Retry-After``.
    :param body: the whole body.
    :param redact: takes secrets out of Telegram's own words, before they are escaped and cut.
    """
    envelope = read_envelope(body)
    if succeeded(status, envelope):
        # read_object leaves None for a result that is no object.
        return Misbehaved() if envelope is None or envelope.result is None else Sent(body)
    code = _code(status, envelope)
    if code == 429:
        asked = retry_after(envelope.retry_after if envelope else None, retry_header)
        return RateLimited(asked if asked is not None and asked <= LONGEST_RETRY_AFTER else None)
    if code in (400, 403) and envelope is not None:
        return _rejected(envelope, redact)
    return Misbehaved()


def _rejected(envelope: Envelope, redact: Callable[[str], str]) -> Rejected:
    return Rejected(_words(envelope.description, redact), envelope.migrate_to_chat_id)


def _words(text: object, redact: Callable[[str], str]) -> str | None:
    """Telegram's own, fit to be passed on."""
    return shown(redact(text), DESCRIPTION_LIMIT) if isinstance(text, str) and text else None


def setting_outcome(
    status: int,
    retry_header: Sequence[bytes],
    body: bytes,
    redact: Callable[[str], str] = str,
) -> SettingOutcome:
    """What an answer to ``setWebhook`` or ``deleteWebhook`` means; parameters as in `sent_outcome`."""
    # Their result is a bare true.  It tells nothing that "ok" does not, and some servers leave it out.
    envelope = read_envelope(body, read_value)
    if envelope is not None and succeeded(status, envelope) and envelope.result is not False:
        return Done()
    if envelope is not None and _code(status, envelope) in (400, 403):
        return _rejected(envelope, redact)
    return refused(status, retry_header, envelope)


def identity_outcome(status: int, retry_header: Sequence[bytes], body: bytes) -> IdentityOutcome:
    """What an answer to ``getMe`` tells of the bot; parameters as in `sent_outcome`."""
    envelope = read_envelope(body)
    if envelope is None or not succeeded(status, envelope):
        return refused(status, retry_header, envelope)
    user = envelope.result
    bot_id = chat_id_of(user.get("id")) if isinstance(user, Mapping) else None
    if not isinstance(user, Mapping) or bot_id is None or bot_id < 0:
        return UpstreamFailure("getMe names no bot")
    username = user.get("username")
    reads_all = user.get("can_read_all_group_messages")
    return Identity(
        bot_id=bot_id,
        username=username if isinstance(username, str) and is_username(username) else None,
        can_read_all_group_messages=reads_all if isinstance(reads_all, bool) else None,
    )


def webhook_outcome(
    status: int,
    retry_header: Sequence[bytes],
    body: bytes,
    redact: Callable[[str], str] = str,
) -> WebhookOutcome:
    """
    Which webhook is set, and how Telegram fares with it; parameters as in `sent_outcome`.

    Only the host is for showing: path and query of a webhook are often secret.
    """
    envelope = read_envelope(body)
    if envelope is None or not succeeded(status, envelope):
        return refused(status, retry_header, envelope)
    info = envelope.result
    if not isinstance(info, Mapping) or not isinstance(info.get("url"), str):
        return UpstreamFailure("getWebhookInfo names no URL")
    url: str = info["url"]
    return WebhookInfo(
        host=_host(url),
        pending_update_count=_natural(info.get("pending_update_count")) or 0,
        url=url,
        last_error_at=_natural(info.get("last_error_date")),
        last_error=_words(info.get("last_error_message"), redact),
    )


def _natural(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _host(url: str) -> str | None:
    if not url:
        return None
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    return shown(host, 255) if host else "unknown"
