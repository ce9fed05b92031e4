"""A program that gets callbacks, as a caller of the gateway would write it, with scripted answers."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from attrs import define, field, frozen
from klein import Klein
from twisted.internet.defer import Deferred, DeferredQueue
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource


@frozen
class Callback:
    """One POST as it arrived, and the status it was answered with."""

    delivery_id: str
    body: bytes
    content_type: str
    answered: int


@define(eq=False, slots=False)  # Klein keeps the bound application in an attribute of the instance
class CallbackReceiver:
    """Takes every POST to ``/hook``; answers 200, unless told otherwise by ``answer_next``."""

    app: ClassVar[Klein] = Klein()

    received: list[Callback] = field(factory=list, init=False)
    _answers: deque[int] = field(factory=deque, init=False)
    _arrivals: DeferredQueue[Callback] = field(factory=DeferredQueue, init=False)

    def answer_next(self, *statuses: int) -> None:
        """The next callbacks get these statuses, one each."""
        self._answers.extend(statuses)

    def next(self) -> Deferred[Callback]:
        """The next callback, each once."""
        return self._arrivals.get()

    def resource(self) -> IResource:
        """What to serve."""
        return self.app.resource()

    @app.route("/hook", methods=["POST"])
    def _hook(self, request: IRequest) -> bytes:
        status = self._answers.popleft() if self._answers else 200
        callback = Callback(
            delivery_id=request.getHeader("X-Telegrammer-Delivery-Id") or "",
            body=request.content.read(),
            content_type=request.getHeader("Content-Type") or "",
            answered=status,
        )
        request.setResponseCode(status)
        self.received.append(callback)
        self._arrivals.put(callback)
        return b""
