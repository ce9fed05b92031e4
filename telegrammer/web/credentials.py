"""Who may come in: programs with a key of their own (contract 2), Telegram with the webhook's secret (8)."""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
from typing import Protocol

from attrs import define, field, frozen
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.web.http_headers import Headers

from telegrammer.core.bearer import bearer_token
from telegrammer.core.keys import digest
from telegrammer.core.problems import StorageUnavailable
from telegrammer.ports import Keys
from telegrammer.web.responses import (
    AUTH_UNAVAILABLE,
    SECRET_HEADER,
    UNAUTHORIZED,
    WRONG_SECRET,
    Response,
)

log = Logger()


@frozen
class Known:
    """Who calls: the id of a key; None: Telegram, which has none."""

    caller: int | None = None


class Credentials(Protocol):
    """Looks at a head for what proves who sent it."""

    async def check(self, headers: Headers, seconds: float) -> Known | Response:
        """
        Who calls, or the answer to one who cannot show it.

        :param seconds: how long it may take.
        """
        ...


@define(eq=False)
class BearerKeys:
    """A key in the one ``Authorization`` header, looked up for every request."""

    keys: Keys
    clock: IReactorTime
    _failing: bool = field(default=False, init=False)

    async def check(self, headers: Headers, seconds: float) -> Known | Response:
        token = bearer_token(headers.getRawHeaders(b"authorization", []))
        if token is None:
            return UNAUTHORIZED
        try:
            caller = await self._owner(token, seconds)
        except Exception as error:
            self._look_up_failed(error)
            return AUTH_UNAVAILABLE
        if self._failing:
            self._failing = False
            log.info("keys can be checked again")
        return UNAUTHORIZED if caller is None else Known(caller)

    def _owner(self, token: bytes, seconds: float) -> Deferred[int | None]:
        async def look_up() -> int | None:
            return await self.keys.owner_of(digest(token))

        return Deferred.fromCoroutine(look_up()).addTimeout(seconds, self.clock)

    def _look_up_failed(self, error: Exception) -> None:
        """One line when it begins; a failure that is no circumstance is ours and gets its traceback, once."""
        if isinstance(error, CancelledError) or self._failing:  # cancelled: the caller went away
            return
        self._failing = True
        if isinstance(error, StorageUnavailable | TimeoutError):
            log.warn("keys cannot be checked: {reason}", reason=type(error).__name__)
        else:
            log.failure("keys cannot be checked")


@frozen
class WebhookSecret:
    """
    The ``secret_token`` of our webhook in the one header for it, compared in constant time.

    :ivar secret: asked for each request; while it is None nobody comes in.
    """

    secret: Callable[[], str | None] = field(repr=False)

    async def check(self, headers: Headers, seconds: float) -> Known | Response:
        shown = headers.getRawHeaders(SECRET_HEADER, [])
        secret = self.secret()
        if secret is not None and len(shown) == 1 and compare_digest(shown[0], secret.encode("ascii")):
            return Known()
        return WRONG_SECRET
