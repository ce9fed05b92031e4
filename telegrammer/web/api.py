"""
The routes of the HTTP API: parse, call a port, translate (contract 2).

Requests come here admitted: ``web.admission`` has matched the route, checked the key, and read a body
within the limits.  Importing this module imports Klein, which installs the default reactor: import it late.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, ClassVar, Protocol

from attrs import define
from klein import Klein
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource

from telegrammer.core.requests import parse_id, parse_send, parse_subscribe
from telegrammer.ports import Subscriptions, TelegramApi, Usernames
from telegrammer.web import responses
from telegrammer.web.credentials import Credentials
from telegrammer.web.failures import answer_to
from telegrammer.web.health import Health
from telegrammer.web.responses import ResponseHead, put_head
from telegrammer.web.screen import Area
from telegrammer.web.shield import shielded


class Admitted(ResponseHead, Protocol):
    """What a handler needs of a ``web.request.AdmittedRequest``."""

    content: BytesIO
    """The whole body, within its limit."""

    @property
    def caller(self) -> int:
        """The id of the key."""
        ...

    def hold_turn(self, work: Deferred[Any]) -> None:
        """The request counts as worked on until ``work`` has ended."""
        ...


@define(eq=False)
class Api:
    """
    The five routes.

    The caller may leave at any time: what changes something is carried through all the same from the moment
    its port has it (``shielded``).
    """

    subscriptions: Subscriptions
    usernames: Usernames
    telegram: TelegramApi
    health: Health

    app: ClassVar[Klein] = Klein()
    # Otherwise /a//b is a redirect, in HTML.
    app.url_map.merge_slashes = False

    def resource(self) -> IResource:
        """What serves the routes."""
        resource: IResource = self.app.resource()
        return resource

    def area(self, credentials: Credentials) -> Area:
        """Its part of a site."""
        return Area(self.resource(), self.app.url_map, credentials, immediate=frozenset({"/health"}))

    @app.route("/send", methods=["POST"])
    async def send(self, request: Admitted) -> bytes:
        wanted = parse_send(request.content.read())
        chat_id = wanted.chat_id
        if wanted.username is not None:
            chat_id = await self.usernames.chat_of(wanted.username)
        if chat_id is None:
            return put_head(request, responses.USERNAME_NOT_FOUND)
        outcome = await shielded("send", self.telegram.send_message(chat_id, wanted.text), request.hold_turn)
        return put_head(request, responses.from_send(outcome))

    @app.route("/subscribe", methods=["POST"])
    async def subscribe(self, request: Admitted) -> bytes:
        wanted = parse_subscribe(request.content.read())
        adding = self.subscriptions.add(request.caller, wanted.chat_id, wanted.callback_url)
        subscription_id = await shielded("subscribe", adding, request.hold_turn)
        return put_head(request, responses.subscribed(subscription_id))

    @app.route("/subscriptions", methods=["GET"])
    async def list_subscriptions(self, request: Admitted) -> bytes:
        listed = await self.subscriptions.of(request.caller)
        return put_head(request, responses.subscription_list(listed))

    @app.route("/subscriptions/<subscription_id>", methods=["DELETE"])
    async def remove_subscription(self, request: Admitted, subscription_id: str) -> bytes:
        wanted = parse_id(subscription_id)
        if wanted is None:
            return put_head(request, responses.SUBSCRIPTION_NOT_FOUND)
        removing = self.subscriptions.remove(request.caller, wanted)
        removed = await shielded("unsubscribe", removing, request.hold_turn)
        return put_head(request, responses.REMOVED if removed else responses.SUBSCRIPTION_NOT_FOUND)

    @app.route("/health", methods=["GET"])
    async def show_health(self, request: Admitted) -> bytes:
        return put_head(request, responses.from_health(await self.health.report()))

    @app.handle_errors(Exception)
    def refuse(self, request: IRequest, failure: Failure) -> bytes:
        return put_head(request, answer_to(failure))
