"""Speaks HTTP/1.1 to a resource, in memory and without a clock."""

from __future__ import annotations

import json
from typing import Any

from attrs import Factory, define, frozen
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.resource import IResource
from twisted.web.server import Request, Site


@frozen
class Answer:
    """A response, taken apart."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def of(cls, received: bytes) -> Answer:
        head, _, body = received.partition(b"\r\n\r\n")
        status, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
        return cls(int(status.split(" ")[1]), headers, body)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class AdmittedAs7(Request):
    """A request that admission let through, of the key with id 7; ``held`` is what its turn lasts for."""

    caller = 7

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(*args, **kw)
        self.held: list[Deferred[Any]] = []

    def getRequestHostname(self) -> bytes:
        return b"localhost"

    def hold_turn(self, work: Deferred[Any]) -> None:
        self.held.append(work)


@define(eq=False)
class Conversation:
    """One connection to a site that serves the resource."""

    resource: IResource
    transport: StringTransport = Factory(StringTransport)
    protocol: Any = None

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: tuple[str, ...] = ("Host: gateway",)
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", *headers, f"Content-Length: {len(body)}", "", ""]
        self.raw("\r\n".join(lines).encode("latin-1") + body)

    def raw(self, data: bytes) -> None:
        """The bytes of one request as they are."""
        site = Site(self.resource, requestFactory=AdmittedAs7, reactor=Clock(), timeout=None)
        self.protocol = site.buildProtocol(None)
        self.protocol.makeConnection(self.transport)
        self.protocol.dataReceived(data)

    def hang_up(self) -> None:
        """The client closes the connection."""
        self.protocol.connectionLost(Failure(ConnectionDone()))

    @property
    def request(self) -> AdmittedAs7:
        """The request in progress."""
        request: AdmittedAs7 = self.protocol._channel.requests[-1]
        return request

    @property
    def answer(self) -> Answer:
        return Answer.of(self.transport.value())
