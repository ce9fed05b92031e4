"""An outward network in memory: attempts to connect are recorded, and the test decides their fate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionRefusedError, UserError
from twisted.internet.interfaces import IConnector, IListeningPort, IProtocol, IReactorTCP
from twisted.internet.protocol import ClientFactory, ServerFactory
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from zope.interface import implementer


class Wire(StringTransport):
    """The transport of a connection that was made."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: IProtocol | None = None
        self.aborted = False
        self.no_delay = False

    def abortConnection(self) -> None:
        self.aborted = True
        self.disconnecting = True

    def setTcpNoDelay(self, enabled: bool) -> None:
        self.no_delay = enabled

    @property
    def sent(self) -> bytes:
        """What was written since the last look."""
        data: bytes = self.value()
        self.clear()
        return data

    def receive(self, data: bytes) -> None:
        assert self.protocol is not None
        self.protocol.dataReceived(data)

    def lose(self, reason: Exception | None = None) -> None:
        """The connection is gone."""
        assert self.protocol is not None
        self.protocol.connectionLost(Failure(reason or ConnectionDone()))


@implementer(IConnector)
@define(eq=False)
class Attempt:
    """One ``connectTCP``."""

    host: str
    port: int
    factory: ClientFactory[Any]
    timeout: float
    stopped: bool = False

    def accept(self) -> Wire:
        wire = Wire()
        protocol = self.factory.buildProtocol(IPv4Address("TCP", self.host, self.port))
        assert protocol is not None
        wire.protocol = protocol
        protocol.makeConnection(wire)
        return wire

    def refuse(self, error: Exception | None = None) -> None:
        self.factory.clientConnectionFailed(self, Failure(error or ConnectionRefusedError()))

    def stopConnecting(self) -> None:
        self.stopped = True
        self.factory.clientConnectionFailed(self, Failure(UserError()))

    def disconnect(self) -> None:
        raise AssertionError("only attempts are given up")

    def connect(self) -> None:
        raise AssertionError("an attempt is made once")

    def getDestination(self) -> IPv4Address:
        return IPv4Address("TCP", self.host, self.port)


@implementer(IReactorTCP)
@define(eq=False)
class Network:
    attempts: list[Attempt] = field(factory=list)

    def connectTCP(
        self,
        host: str,
        port: int,
        factory: ClientFactory[Any],
        timeout: float = 30.0,
        bindAddress: tuple[str, int] | None = None,
    ) -> IConnector:
        attempt = Attempt(host, port, factory, timeout)
        self.attempts.append(attempt)
        return attempt

    def listenTCP(
        self, port: int, factory: ServerFactory[Any], backlog: int = 50, interface: str = ""
    ) -> IListeningPort:
        raise AssertionError("nobody listens here")

    @property
    def hosts(self) -> list[str]:
        return [attempt.host for attempt in self.attempts]


@define(eq=False)
class Names:
    """A resolver; names that are not in its table stay unanswered, or the test fires what is ``pending``."""

    table: dict[str, Sequence[str] | Exception] = field(factory=dict)
    asked: list[str] = field(factory=list)
    cancelled: list[str] = field(factory=list)
    pending: dict[str, Deferred[Sequence[IPv4Address | IPv6Address]]] = field(factory=dict)

    def resolve(self, host: str, port: int) -> Deferred[Sequence[IPv4Address | IPv6Address]]:
        self.asked.append(host)
        answer: Deferred[Sequence[IPv4Address | IPv6Address]] = Deferred(
            lambda _: self.cancelled.append(host)
        )
        found = self.table.get(host)
        if isinstance(found, Exception):
            answer.errback(found)
        elif found is not None:
            answer.callback([address(text, port) for text in found])
        else:
            self.pending[host] = answer
        return answer


def address(text: str, port: int = 80) -> IPv4Address | IPv6Address:
    return IPv6Address("TCP", text, port) if ":" in text else IPv4Address("TCP", text, port)
