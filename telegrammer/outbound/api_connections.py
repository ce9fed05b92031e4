"""
Connections to the Bot API that end when they are told to, and whose answers' heads are bounded.

What Twisted's HTTP client lacks for a peer that may hang or flood, put between it and the socket.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, cast

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint, ITCPTransport
from twisted.internet.protocol import Factory, connectionDone
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.client import URI, HTTPConnectionPool
from twisted.web.iweb import IAgentEndpointFactory, IPolicyForHTTPS
from zope.interface import implementer

from telegrammer.outbound.resolver import ResolvingReactor, on_loopback

CONNECT_SECONDS: Final = 5.0
"""For one address; of several the next is tried 0.3 s after the last (contract 5.1)."""

HEAD_LIMIT: Final = 16 * 1024
"""
Bytes of an answer's head, the 1xx answers before it included.

As many as Twisted's client takes for one line, so that the refusal is always ours: not a lost connection.
"""

_end_of_head = re.compile(rb"\n\r?\n").search
_informational = re.compile(rb"HTTP/[0-9.]+ +1[0-9][0-9]").match
_connection_options = re.compile(rb"(?im)^connection:([^\r\n]*)").findall


class HeadTooLong(Exception):
    """The head of an answer is longer than `HEAD_LIMIT`: why its connection was aborted."""


@implementer(IAgentEndpointFactory)
@frozen(eq=False)
class ApiEndpoints:
    """
    Connections to the Bot API: each address of its name is tried, TLS verified, the end an abort.

    Without TLS they go to a loopback address, whatever the name is said to mean: the token is in every
    request.
    """

    reactor: ResolvingReactor
    policy: IPolicyForHTTPS
    connect_seconds: float

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        host = uri.host.decode("ascii")
        reactor = self.reactor if uri.scheme == b"https" else on_loopback(self.reactor)
        endpoint: IStreamClientEndpoint = HostnameEndpoint(
            reactor, host, uri.port, timeout=self.connect_seconds
        )
        if uri.scheme == b"https":
            endpoint = wrapClientTLS(self.policy.creatorForNetloc(uri.host, uri.port), endpoint)
        elif uri.scheme != b"http":
            raise ValueError("neither http nor https")
        return AbortingEndpoint(endpoint)


@implementer(IStreamClientEndpoint)
@frozen(eq=False)
class AbortingEndpoint:
    """An endpoint whose connections end at once when they end."""

    endpoint: IStreamClientEndpoint

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        # The client's factory announces its start with the endpoint's address in the log.
        cast(Factory, protocolFactory).noisy = False
        wrapping = AbortingFactory(protocolFactory)
        connected = cast("Deferred[AbortingTransport]", self.endpoint.connect(wrapping))
        return connected.addCallback(lambda wrapper: wrapper.wrappedProtocol)


class AbortingTransport(ProtocolWrapper):
    """
    Between Twisted's HTTP client and the socket: losing a connection aborts it, and heads have a limit.

    The client loses connections it has no more use for.  An orderly end waits until the peer has taken what
    was sent and, with TLS, has answered the goodbye: a peer that hangs would keep its socket with us.  And
    the client bounds the lines of a head, but not their number, nor that of 1xx answers, of which it logs
    each: they end here.
    """

    def __init__(self, factory: AbortingFactory, wrapped: IProtocol) -> None:
        super().__init__(factory, wrapped)
        self._head: bytearray | None = None
        """What has come of the head; None once it is complete."""
        self._passed = 0
        """How much of that the client has been given."""
        self._informational = 0
        """Bytes of 1xx answers before it."""
        self._refused = False
        self.is_kept_by_peer = False
        """Whether the last answer said that the peer keeps this connection."""

    def write(self, data: bytes) -> None:
        self._expect_head()
        super().write(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self._expect_head()
        super().writeSequence(data)

    def _expect_head(self) -> None:
        self._head, self._passed, self._informational = bytearray(), 0, 0

    def dataReceived(self, data: bytes) -> None:
        final = data if self._head is None else self._final(self._head, data)
        if self._refused:
            self.loseConnection()
        elif final:
            super().dataReceived(final)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(Failure(HeadTooLong()) if self._refused else reason)

    def _final(self, head: bytearray, data: bytes) -> bytes:
        """What of the bytes that have come is for the client: no 1xx answer, nor what may become one."""
        # The end may lie across two deliveries.
        seen = max(0, len(head) - 2)
        head += data
        while (end := _end_of_head(head, seen)) and _informational(head):
            self._informational += end.end()
            del head[: end.end()]
            seen = 0
        self._refused = self._informational + (end.end() if end else len(head)) > HEAD_LIMIT
        if not end and (b"\n" not in head or _informational(head)):
            return b""
        final = bytes(head[self._passed :])
        self._passed = len(head)
        if end:
            self.is_kept_by_peer = _keeps_alive(head[: end.end()])
            self._head = None
        return final

    def loseConnection(self) -> None:
        self.disconnecting = 1
        cast(ITCPTransport, self.transport).abortConnection()


def _keeps_alive(head: bytes | bytearray) -> bool:
    """Whether the head of an answer says ``Connection: keep-alive``, and not ``close`` besides."""
    values = b",".join(_connection_options(head)).lower().split(b",")
    options = {value.strip(b" \t") for value in values}
    return b"keep-alive" in options and b"close" not in options


class AbortingFactory(WrappingFactory["AbortingTransport"]):
    """Builds the client's protocol inside an `AbortingTransport`."""

    noisy = False
    protocol = AbortingTransport


class KeptConnections(HTTPConnectionPool):
    """
    Keeps a connection only when its peer has said that it does.

    A connection that the peer closes while a ``sendMessage`` is written to it leaves that one's outcome
    unknown, and nothing is sent twice.  HTTP/1.1 lets a client assume that a silent peer keeps it, and
    Twisted assumes it of HTTP/1.0 as well; but many a silent peer closes.  The Bot API, in both its
    forms (the hosted one behind nginx, and telegram-bot-api), says ``Connection: keep-alive`` every time.
    """

    def _putConnection(self, key: object, connection: Any) -> None:
        if connection.transport.is_kept_by_peer:
            super()._putConnection(key, connection)
        else:
            connection.transport.loseConnection()
