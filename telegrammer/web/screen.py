"""What a request's head alone decides: route, method, key, declared length, media type (contract 2)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

from attrs import define, field, frozen
from twisted.web.http_headers import Headers
from twisted.web.resource import IResource
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import Map, MapAdapter

from telegrammer.web.credentials import Credentials
from telegrammer.web.limits import RequestLimits
from telegrammer.web.responses import (
    NOT_FOUND,
    Response,
    body_too_large,
    method_not_allowed,
    unsupported_media_type,
)

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
    """
    The head is in order: who calls (None: Telegram), on which route, how much body we take, whether a worker
    is needed, and who serves it.
    """

    caller: int | None
    route: str
    body_bytes: int
    takes_turn: bool
    resource: IResource


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


BODY_BYTES: Final = 64 * 1024
"""The largest body of a request, where nothing else is said (contract 2)."""


@frozen
class Area:
    """
    A part of a site: routes for the same callers, and who serves them.

    :ivar resource: a Klein resource; ``routes`` is the map by which it routes.
    :ivar immediate: routes that take no worker and have only a moment for the credentials.
    :ivar json_only: whether a POST has to name its media type.
    """

    resource: IResource
    routes: Map
    credentials: Credentials
    body_bytes: int = BODY_BYTES
    immediate: frozenset[str] = frozenset()
    json_only: bool = True


@define(eq=False)
class Screen:
    """Judges heads.  No path is in two areas."""

    areas: Sequence[Area]
    limits: RequestLimits = RequestLimits()
    _adapters: Sequence[tuple[Area, MapAdapter]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._adapters = [(area, area.routes.bind("localhost")) for area in self.areas]

    async def judge(self, head: Head) -> Verdict:
        """The order of contract 2: path, method, credentials, length, media type."""
        found = self._route(head)
        if isinstance(found, Refusal):
            return found
        area, route = found
        immediate = route in area.immediate
        limits = self.limits
        known = await area.credentials.check(
            head.headers, limits.quick_lookup_seconds if immediate else limits.lookup_seconds
        )
        if isinstance(known, Response):
            return Refusal(known, route)
        caller = known.caller
        if head.length is not None and head.length > area.body_bytes:
            return Refusal(body_too_large(area.body_bytes, head.length), route, caller)
        media_types = head.headers.getRawHeaders(b"content-type", [])
        if area.json_only and head.method == b"POST" and not is_json(media_types):
            return Refusal(unsupported_media_type(media_types), route, caller)
        return Admission(caller, route, area.body_bytes, not immediate, area.resource)

    def _route(self, head: Head) -> tuple[Area, str] | Refusal:
        path = decoded_path(head.target)
        if path is None:
            return Refusal(NOT_FOUND)
        method = head.method.decode("ascii")
        if not method.isupper():  # werkzeug raises the case; methods have one (RFC 9110, 9.1)
            method = _NO_METHOD
        for area, adapter in self._adapters:
            try:
                rule, _ = adapter.match(path, method, return_rule=True)
            except MethodNotAllowed as wrong:
                return Refusal(method_not_allowed(wrong.valid_methods or ()))
            except (HTTPException, ValueError):  # ValueError: an <int:…> of more digits than int() takes
                continue
            return area, rule.rule
        return Refusal(NOT_FOUND)
