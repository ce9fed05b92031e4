"""What a request's head alone decides: route, method, key, declared length, media type (contract 2)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from attrs import define, field, frozen
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.web.http_headers import Headers
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import Map, MapAdapter

from telegrammer.core.bearer import bearer_token
from telegrammer.core.keys import digest
from telegrammer.core.problems import StorageUnavailable
from telegrammer.ports import Keys
from telegrammer.web.limits import RequestLimits
from telegrammer.web.responses import (
    AUTH_UNAVAILABLE,
    NOT_FOUND,
    UNAUTHORIZED,
    Response,
    body_too_large,
    method_not_allowed,
    unsupported_media_type,
)

log = Logger()

NO_ROUTE = "-"

# No HTTP method: finds a path's methods without matching one.
_NO_METHOD = "~"

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_JSON_TYPE = re.compile(rb"application/json(?![^; \t])", re.IGNORECASE)
_PARAMETER = re.compile(
    rb"[ \t]*;[ \t]*(?:(?P<name>%b)=(?:(?P<value>%b)|\"(?P<quoted>[^\"\\]*)\"))?" % (_TOKEN, _TOKEN)
)


@frozen
class Head:
    """A request's head; ``length`` is the declared one, None for a chunked body; ``target`` starts with /."""

    method: bytes
    target: bytes
    headers: Headers
    length: int | None


@frozen
class Admission:
    """The head is in order: who calls, on which route, how much body we take, whether a worker is needed."""

    caller: int
    route: str
    body_bytes: int
    takes_turn: bool = True


@frozen
class Refusal:
    """The answer to a request that is not served; ``route`` and ``caller`` as far as they are known."""

    response: Response
    route: str = NO_ROUTE
    caller: int | None = None


Verdict = Admission | Refusal


def is_json(values: Sequence[bytes]) -> bool:
    """Whether ``values`` (every Content-Type header) say ``application/json``, charset absent or utf-8."""
    if len(values) != 1:
        return False
    value = values[0].strip(b" \t")
    found = _JSON_TYPE.match(value)
    charsets = []
    while found is not None and found.end() < len(value):
        # One parameter at a time: a repeated group could be made to backtrack without end.
        found = _PARAMETER.match(value, found.end())
        if found is not None and (found["name"] or b"").lower() == b"charset":
            charsets.append((found["value"] or found["quoted"] or b"").lower())
    return found is not None and charsets in ([], [b"utf-8"])


def decoded_path(target: bytes) -> str | None:
    """
    The path of a request target, percent-decoded as Klein does it; None when it cannot be a route of ours.

    Klein and werkzeug forgive what we do not: a doubled slash at the start, an encoded one as separator.
    """
    path = target.partition(b"?")[0]
    if b"//" in path or b"%2f" in path.lower():
        return None
    try:
        return unquote_to_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        return None


@define(eq=False)
class Screen:
    """Judges heads.  ``immediate`` routes take no worker and have only a moment for the key's look-up."""

    routes: Map
    keys: Keys
    clock: IReactorTime
    limits: RequestLimits = RequestLimits()
    immediate: frozenset[str] = frozenset({"/health"})
    _adapter: MapAdapter = field(init=False)
    _failing: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._adapter = self.routes.bind("localhost")

    async def judge(self, head: Head) -> Verdict:
        """The order of contract 2: path, method, credentials, length, media type."""
        route = self._route(head)
        if isinstance(route, Refusal):
            return route
        immediate = route in self.immediate
        token = bearer_token(head.headers.getRawHeaders(b"authorization", []))
        if token is None:
            return Refusal(UNAUTHORIZED, route)
        limits = self.limits
        seconds = limits.quick_lookup_seconds if immediate else limits.lookup_seconds
        try:
            caller = await self._owner(token, seconds)
        except Exception as error:
            self._look_up_failed(error)
            return Refusal(AUTH_UNAVAILABLE, route)
        if self._failing:
            self._failing = False
            log.info("keys can be checked again")
        if caller is None:
            return Refusal(UNAUTHORIZED, route)
        if head.length is not None and head.length > limits.body_bytes:
            return Refusal(body_too_large(head.length), route, caller)
        media_types = head.headers.getRawHeaders(b"content-type", [])
        if head.method == b"POST" and not is_json(media_types):
            return Refusal(unsupported_media_type(media_types), route, caller)
        return Admission(caller, route, limits.body_bytes, takes_turn=not immediate)

    def _route(self, head: Head) -> str | Refusal:
        path = decoded_path(head.target)
        if path is None:
            return Refusal(NOT_FOUND)
        method = head.method.decode("ascii")
        if not method.isupper():  # werkzeug raises the case; methods have one (RFC 9110, 9.1)
            method = _NO_METHOD
        try:
            rule, _ = self._adapter.match(path, method, return_rule=True)
        except MethodNotAllowed as wrong:
            return Refusal(method_not_allowed(wrong.valid_methods or ()))
        except (HTTPException, ValueError):  # ValueError: an <int:…> of more digits than int() takes
            return Refusal(NOT_FOUND)
        return rule.rule

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
