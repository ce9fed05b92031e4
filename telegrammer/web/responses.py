"""
Every answer of the HTTP API in one place: outcomes and problems in, status, code, headers and body out
(contract 2).

Codes are stable and for programs; messages are for people.  No message holds a secret, the text of an
exception, or (``error.description`` of a 422 aside) anything a peer said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Protocol, assert_never

from attrs import frozen

from telegrammer.core.foreign import shown
from telegrammer.core.health import HealthReport
from telegrammer.core.problems import (
    InvalidRequest,
    StorageUnavailable,
    SubscriptionLimit,
    TelegrammerError,
    UnknownKey,
)
from telegrammer.core.subscriptions import Subscription
from telegrammer.core.telegram import (
    Misbehaved,
    RateLimited,
    Rejected,
    SendOutcome,
    Sent,
    TimedOut,
    Unavailable,
)

Headers = tuple[tuple[bytes, bytes], ...]

_NO_STORE: Headers = ((b"Cache-Control", b"no-store"),)
_JSON: Headers = ((b"Content-Type", b"application/json"), *_NO_STORE)
_NO_CONTENT = 204
SECRET_HEADER = b"X-Telegram-Bot-Api-Secret-Token"
"""In which Telegram shows the ``secret_token`` of a webhook."""
_KIND_LIMIT = 60
"""Characters of a media type that are shown to the caller who sent it."""


@frozen
class Response:
    """An answer, complete but for its ``Content-Length``, which ``put_head`` adds."""

    status: int
    body: bytes = b""
    headers: Headers = _JSON


class ResponseHead(Protocol):
    """What ``put_head`` needs of a ``twisted.web`` request."""

    def setResponseCode(self, code: int) -> None: ...

    def setHeader(self, name: bytes, value: bytes) -> None: ...


def put_head(request: ResponseHead, response: Response) -> bytes:
    """
    Set status and headers on the request, and return the body for the caller to write.

    ``Server`` names the product in place of Twisted's own banner.  A 204 has no length (RFC 9110, 8.6).
    """
    request.setResponseCode(response.status)
    request.setHeader(b"Server", b"telegrammer")
    for name, value in response.headers:
        request.setHeader(name, value)
    if response.status != _NO_CONTENT:
        request.setHeader(b"Content-Length", b"%d" % len(response.body))
    return response.body


def json_response(document: dict[str, object], status: int = 200) -> Response:
    """A JSON document."""
    return Response(status, json.dumps(document, separators=(",", ":")).encode("ascii"))


def problem(
    status: int,
    code: str,
    message: str,
    field: str | None = None,
    headers: Iterable[tuple[bytes, bytes]] = (),
    **extra: object,
) -> Response:
    """An error; ``extra`` are further members of its ``error`` object, left out when None."""
    error = {"code": code, "message": message, "field": field, **extra}
    present = {name: value for name, value in error.items() if value is not None}
    answer = json_response({"ok": False, "error": present}, status)
    return Response(answer.status, answer.body, (*_JSON, *headers))


# -- refusals of the HTTP layer -----------------------------------------------------------------------

BAD_REQUEST = problem(400, "BAD_REQUEST", "the request is not well-formed HTTP")
UNAUTHORIZED = problem(
    401,
    "UNAUTHORIZED",
    "exactly one header 'Authorization: Bearer KEY' with a valid key is needed",
    headers=[(b"WWW-Authenticate", b"Bearer")],
)
WRONG_SECRET = problem(
    401,
    "UNAUTHORIZED",
    f"exactly one header {SECRET_HEADER.decode()!r} with the secret of the webhook is needed",
    # There is no registered scheme for it, and every 401 has to name one (RFC 9110, 15.5.2).
    headers=[(b"WWW-Authenticate", SECRET_HEADER)],
)
NOT_FOUND = problem(404, "NOT_FOUND", "there is nothing under this path")
REQUEST_TIMEOUT = problem(408, "REQUEST_TIMEOUT", "the request did not arrive in time")
INTERNAL_ERROR = problem(500, "INTERNAL_ERROR", "the gateway failed on this request; its log says more")
OVERLOADED = problem(
    503,
    "OVERLOADED",
    "too many requests are in progress; nothing was done",
    headers=[(b"Retry-After", b"1")],
)
AUTH_UNAVAILABLE = problem(503, "AUTH_UNAVAILABLE", "the key could not be checked at the moment")
STORAGE_UNAVAILABLE = problem(
    503, "STORAGE_UNAVAILABLE", "the database could not do this at the moment; nothing was changed"
)


def body_too_large(limit: int, declared: int | None = None) -> Response:
    """413; ``declared``: the length, where it was known before the body came."""
    if declared is None:
        message = f"the request body is larger than {limit} bytes"
    else:
        message = f"the request body has {declared} bytes; at most {limit} bytes are taken"
    return problem(413, "BODY_TOO_LARGE", message)


def unsupported_media_type(given: Sequence[bytes]) -> Response:
    """415; ``given`` are the values of every ``Content-Type`` header of the request."""
    if len(given) == 1:
        kind = "this one is " + (shown(given[0].decode("latin-1").strip(), _KIND_LIMIT) or "empty")
    else:
        kind = f"this request has {len(given) or 'none'}"
    return problem(
        415,
        "UNSUPPORTED_MEDIA_TYPE",
        f"one Content-Type, application/json in UTF-8, is needed; {kind}",
        headers=[(b"Accept", b"application/json")],
    )


def method_not_allowed(allowed: Iterable[str]) -> Response:
    """405, with the methods that the path does have."""
    allow = ", ".join(sorted(allowed)).encode("ascii")
    return problem(
        405, "METHOD_NOT_ALLOWED", "the path does not have this method", headers=[(b"Allow", allow)]
    )


# -- answers to Telegram (contract 8) -----------------------------------------------------------------

JOURNALED = json_response({"ok": True})
NOT_JOURNALED = problem(
    503,
    "STORAGE_UNAVAILABLE",
    "the update could not be journaled in time; send it again",
    headers=[(b"Retry-After", b"1")],
)


# -- answers of the routes ----------------------------------------------------------------------------

USERNAME_NOT_FOUND = problem(
    404,
    "USERNAME_NOT_FOUND",
    "no private chat was seen under this username; its owner has to write to the bot first",
    field="username",
)
SUBSCRIPTION_NOT_FOUND = problem(404, "NOT_FOUND", "there is no such subscription of this key")
REMOVED = Response(_NO_CONTENT, headers=_NO_STORE)


def subscribed(subscription_id: int) -> Response:
    """The committed subscription's id."""
    return json_response({"ok": True, "subscription_id": subscription_id})


def subscription_list(subscriptions: Sequence[Subscription]) -> Response:
    """The caller's subscriptions, in the order given."""
    listed = [
        {"subscription_id": each.id, "chat_id": each.chat_id, "callback_url": each.callback_url}
        for each in subscriptions
    ]
    return json_response({"ok": True, "subscriptions": listed})


def from_health(report: HealthReport) -> Response:
    """200 while the gateway works or retries, 503 when it does not."""
    return json_response(report.document, 200 if report.ok else 503)


def from_send(outcome: SendOutcome) -> Response:
    """What became of a ``sendMessage`` (contract 2.1)."""
    match outcome:
        case Sent(envelope):
            return Response(200, envelope)
        case Rejected(description, migrate_to_chat_id):
            return problem(
                422,
                "TELEGRAM_REJECTED",
                "Telegram refused the message",
                description=description,
                migrate_to_chat_id=migrate_to_chat_id,
            )
        case RateLimited(retry_after):
            headers = [] if retry_after is None else [(b"Retry-After", b"%d" % retry_after)]
            return problem(
                429, "TELEGRAM_RATE_LIMITED", "Telegram asks to slow down; nothing was sent", headers=headers
            )
        case Misbehaved():
            return problem(502, "UPSTREAM_ERROR", "Telegram gave no usable answer")
        case Unavailable():
            return problem(
                502,
                "UPSTREAM_UNAVAILABLE",
                "Telegram could not be reached, or the connection was lost; in the latter case the message "
                "may have been sent",
            )
        case TimedOut():
            return problem(
                504, "UPSTREAM_TIMEOUT", "Telegram did not answer in time; the message may have been sent"
            )
        case _:
            assert_never(outcome)


def from_problem(error: TelegrammerError) -> Response:
    """What an exception of ours means to the caller; one that means nothing to him is a 500."""
    match error:
        case InvalidRequest():
            return problem(400, "INVALID_REQUEST", error.message, field=error.field)
        case SubscriptionLimit():
            return problem(409, "SUBSCRIPTION_LIMIT", str(error) or "the limit of subscriptions is reached")
        case UnknownKey():
            return UNAUTHORIZED
        case StorageUnavailable():
            return STORAGE_UNAVAILABLE
        case _:
            return INTERNAL_ERROR
