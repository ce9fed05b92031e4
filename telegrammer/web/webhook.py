"""
The route by which Telegram pushes updates (contract 8).

Requests come here admitted: the secret was compared before any byte of the body was taken, and the body is
complete and within its limit, so the time that an answer may take begins here.  It takes no turn among the
workers: what is pushed waits for one short transaction, and connections are its bound.  Importing this module
imports Klein, which installs the default reactor: import it late.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any, ClassVar, Final, Protocol

from attrs import define
from klein import Klein
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest

from telegrammer.config import WEBHOOK_PATH
from telegrammer.core.problems import StorageUnavailable
from telegrammer.ports import UpdateIntake
from telegrammer.web import responses
from telegrammer.web.credentials import WebhookSecret
from telegrammer.web.failures import answer_to
from telegrammer.web.responses import ResponseHead, put_head
from telegrammer.web.screen import Area
from telegrammer.web.shield import shielded

BODY_BYTES: Final = 1024 * 1024
"""The largest body of a push."""


class Pushed(ResponseHead, Protocol):
    """What the handler needs of a ``web.request.AdmittedRequest``."""

    content: BytesIO
    """The whole body, within its limit."""

    def hold_turn(self, work: Deferred[Any]) -> None: ...


@define(eq=False)
class Webhook:
    """
    The one route.  Its caller may leave as soon as the body has arrived: it is journaled all the same.

    What media type a push says it has is not looked at: Telegram holds back what follows in a chat for as
    long as an update is refused.
    """

    intake: UpdateIntake

    app: ClassVar[Klein] = Klein()
    # Otherwise /a//b is a redirect, in HTML.
    app.url_map.merge_slashes = False

    def area(self, secret: Callable[[], str | None]) -> Area:
        """
        Its part of a site.

        :param secret: what Telegram has to show; while it is None, nothing is taken.
        """
        return Area(
            self.app.resource(),
            self.app.url_map,
            WebhookSecret(secret),
            BODY_BYTES,
            immediate=frozenset({WEBHOOK_PATH}),
            json_only=False,
        )

    @app.route(WEBHOOK_PATH, methods=["POST"])
    async def push(self, request: Pushed) -> bytes:
        accepting = self.intake.accept(request.content.read())
        await shielded("pushed update", accepting, request.hold_turn)
        return put_head(request, responses.JOURNALED)

    @app.handle_errors(Exception)
    def refuse(self, request: IRequest, failure: Failure) -> bytes:
        if failure.check(StorageUnavailable):
            return put_head(request, responses.NOT_JOURNALED)
        return put_head(request, answer_to(failure))
