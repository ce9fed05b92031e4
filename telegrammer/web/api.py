"""
The routes of the HTTP API: parse, call a port, translate (contract 2).

Requests come here admitted: ``web.admission`` has matched the route, checked the key, and read a body
within the limits.  Importing this module imports Klein, which installs the default reactor: import it late.
"""

from __future__ import annotations

import traceback
from typing import IO, ClassVar, Protocol

from attrs import Factory, define
from klein import Klein
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource, Resource
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import Map

from telegrammer.core.problems import TelegrammerError
from telegrammer.core.requests import parse_id, parse_send, parse_subscribe
from telegrammer.ports import Subscriptions, TelegramApi, Usernames
from telegrammer.web import responses
from telegrammer.web.health import Health
from telegrammer.web.responses import Response, ResponseHead, put_head
from telegrammer.web.shield import Shield

log = Logger()


class AdmittedRequest(ResponseHead, Protocol):
    """What a handler takes of a request."""

    caller: int
    """The id of the key, set by ``web.admission``."""
    content: IO[bytes]
    """The whole body, within its limit."""


@define(eq=False)
class Api:
    """
    The five routes.

    The caller of a message or a registration may leave at any time: from the moment it is handed to its
    port it is carried through (``shield``).
    """

    subscriptions: Subscriptions
    usernames: Usernames
    telegram: TelegramApi
    health: Health
    shield: Shield = Factory(Shield)

    app: ClassVar[Klein] = Klein()
    # Otherwise /a//b is a redirect, in HTML.
    app.url_map.merge_slashes = False

    def resource(self) -> IResource:
        """The root of the site."""
        return _Entrance(self.app.resource())

    @property
    def routes(self) -> Map:
        """The paths and methods there are, for who judges a request before its body."""
        return self.app.url_map

    @app.route("/send", methods=["POST"])
    async def send(self, request: AdmittedRequest) -> bytes:
        wanted = parse_send(request.content.read())
        chat_id = wanted.chat_id
        if wanted.username is not None:
            chat_id = await self.usernames.chat_of(wanted.username)
        if chat_id is None:
            return put_head(request, responses.USERNAME_NOT_FOUND)
        outcome = await self.shield.run("send", self.telegram.send_message(chat_id, wanted.text))
        return put_head(request, responses.from_send(outcome))

    @app.route("/subscribe", methods=["POST"])
    async def subscribe(self, request: AdmittedRequest) -> bytes:
        wanted = parse_subscribe(request.content.read())
        adding = self.subscriptions.add(request.caller, wanted.chat_id, wanted.callback_url)
        return put_head(request, responses.subscribed(await self.shield.run("subscribe", adding)))

    @app.route("/subscriptions", methods=["GET"])
    async def list_subscriptions(self, request: AdmittedRequest) -> bytes:
        listed = await self.subscriptions.of(request.caller)
        return put_head(request, responses.subscription_list(listed))

    @app.route("/subscriptions/<text>", methods=["DELETE"])
    async def remove_subscription(self, request: AdmittedRequest, text: str) -> bytes:
        subscription_id = parse_id(text)
        if subscription_id is None:
            return put_head(request, responses.SUBSCRIPTION_NOT_FOUND)
        removing = self.subscriptions.remove(request.caller, subscription_id)
        removed = await self.shield.run("unsubscribe", removing)
        return put_head(request, responses.REMOVED if removed else responses.SUBSCRIPTION_NOT_FOUND)

    @app.route("/health", methods=["GET"])
    async def show_health(self, request: AdmittedRequest) -> bytes:
        return put_head(request, responses.from_health(await self.health.report()))

    @app.handle_errors(Exception)
    def refuse(self, request: IRequest, failure: Failure) -> bytes:
        return put_head(request, _answer_to(failure))


def _answer_to(failure: Failure) -> Response:
    match failure.value:
        case MethodNotAllowed(valid_methods=allowed):
            return responses.method_not_allowed(allowed or ())
        case HTTPException():
            return responses.NOT_FOUND
        case TelegrammerError() as error:
            answer = responses.from_problem(error)
        case _:
            answer = responses.INTERNAL_ERROR
    if answer is responses.INTERNAL_ERROR:
        log.error(
            "a request failed unexpectedly: {kind} at {where}",
            kind=type(failure.value).__name__,
            where=_where(failure),
        )
    return answer


def _where(failure: Failure) -> str:
    """The way to the fault without its text: an exception's message may quote what no log should hold."""
    frames = traceback.extract_tb(failure.getTracebackObject())
    return " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames)


class _Entrance(Resource):
    """
    Klein, kept from what it answers in HTML, or not at all.

    It decodes path and Host, and binds its routes to the host, before any of its error handlers is in
    place; and it serves ``//send`` as ``/send``.
    """

    isLeaf = True

    def __init__(self, klein: IResource) -> None:
        super().__init__()
        self._klein = klein

    def render(self, request: IRequest) -> bytes | int:
        # No route depends on the host, and the client may send anything as one.
        request.requestHeaders.setRawHeaders(b"Host", [b"localhost"])
        if request.path.startswith(b"//") or not _is_utf8(b"/".join(request.postpath)):
            return put_head(request, responses.NOT_FOUND)
        rendered: bytes | int = self._klein.render(request)
        return rendered


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
