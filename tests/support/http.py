"""Speaks HTTP/1.1 to a resource, in memory and without a clock."""

from __future__ import annotations

import json
from typing import Any

from attrs import Factory, define, frozen
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol
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

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class AdmittedAs7(Request):
    """A request that admission let through, of the key with id 7."""

    caller = 7


@define(eq=False)
class Conversation:
    """One connection to a site that serves the resource."""

    resource: IResource
    transport: StringTransport = Factory(StringTransport)
    protocol: IProtocol | None = None

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: tuple[str, ...] = ("Host: gateway",)
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", *headers, f"Content-Length: {len(body)}", "", ""]
        self.raw("\r\n".join(lines).encode("latin-1") + body)

    def raw(self, data: bytes) -> None:
        """The bytes of one request as they are."""
        site = Site(self.resource, requestFactory=AdmittedAs7, reactor=Clock(), timeout=None)
        self.protocol = site.buildProtocol(None)
        assert self.protocol is not None
        self.protocol.makeConnection(self.transport)
        self.protocol.dataReceived(data)

    def hang_up(self) -> None:
        """The client closes the connection."""
        assert self.protocol is not None
        self.protocol.connectionLost(Failure(ConnectionDone()))

    @property
    def answer(self) -> Answer:
        head, _, body = self.transport.value().partition(b"\r\n\r\n")
        status, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
        return Answer(int(status.split(" ")[1]), headers, body)
