"""A connection to a callback receiver: one exchange at a time, cut off at its limits (contract 6)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from attrs import frozen
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IConsumer,
    IHandshakeListener,
    IPushProducer,
    ISystemHandle,
    ITCPTransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.tcp import Connection
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from telegrammer.core.delivery import Answered, Unanswered
from telegrammer.outbound.response import ResponseReader, Stage
from telegrammer.outbound.tls import CertificateRefused

if TYPE_CHECKING:
    from telegrammer.outbound.pool import ConnectionPool

CONNECTION_LOST = "connection lost"
HANDSHAKE_FAILED = "TLS handshake failed"

WRITE_BUFFER = 65536
"""Twisted's transports tell of what waits to be sent only beyond this many bytes."""


class IStream(ITCPTransport, IConsumer):
    """What Twisted's stream transports are, plain and TLS alike."""


# Put together once: for enumerated flags it takes longer than the look itself.
_PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT


@frozen(cache_hash=True)
class Peer:
    """What a connection leads to; connections to equal peers are interchangeable."""

    scheme: str
    host: str
    port: int


@implementer(IHandshakeListener, IPushProducer)
class CallbackConnection(Protocol):
    """
    One connection to a receiver.

    ``made`` is called once it has its transport.
    """

    def __init__(
        self, peer: Peer, pool: ConnectionPool, reader: ResponseReader, made: Callable[[], None]
    ) -> None:
        self.peer = peer
        self._pool = pool
        self._reader = reader
        self._made: Callable[[], None] | None = made
        self._answer: Deferred[Answered | Unanswered] | None = None
        self._secure = peer.scheme != "https"
        self._telling = False
        """The transport tells us when the request has left."""
        self._unsent = False

    def exchange(self, request: bytes) -> Deferred[Answered | Unanswered]:
        """
        Send a request and read its response.

        Fires when the message is complete, has passed a limit, or the connection has ended.  Cancelling it
        aborts the connection; what the final head said, if it is in, is the result all the same.
        """
        answer = self._answer = Deferred(self._cut_off)
        self._reader.begin()
        if len(request) > WRITE_BUFFER:
            self._telling = True
            self._tcp.registerProducer(self, True)
            self._tcp.write(request)
        elif rest := self._sent_at_once(request):
            self._tcp.write(rest)
        return answer

    def _sent_at_once(self, request: bytes) -> bytes:
        """
        Give the request to the socket now; what it did not take.

        ``write`` would wait for the reactor's next turn, which costs an eighth of a whole delivery.  An error
        is left for ``write`` to meet again, where the reactor deals with it.
        """
        transport = self.transport
        if not isinstance(transport, Connection) or transport.dataBuffer or transport._tempDataBuffer:
            return request
        sent = transport.writeSomeData(request)
        return request[sent:] if isinstance(sent, int) else request

    def leave(self) -> None:
        """Close it as the protocols have it."""
        self._stop_telling()
        self._tcp.loseConnection()

    def abort(self) -> None:
        """Close it now."""
        self._stop_telling()
        self._tcp.abortConnection()

    def is_quiet(self) -> bool:
        """Nothing has come that was not read yet, the end of the stream included."""
        transport: Any = self.transport
        if isinstance(transport, TLSMemoryBIOProtocol):
            transport = transport.transport
        if transport.disconnecting:
            return False
        handle = transport.getHandle() if ISystemHandle.providedBy(transport) else None
        if not isinstance(handle, socket.socket):
            return True
        try:
            handle.recv(1, _PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return False

    @property
    def _tcp(self) -> IStream:
        return cast(IStream, self.transport)

    def _cut_off(self, answer: Deferred[Answered | Unanswered]) -> None:
        self._answer = None
        self.abort()
        if self._reader.answer is not None:
            answer.callback(self._reader.answer)

    def _stop_telling(self) -> None:
        if self._telling:
            self._telling = False
            self._tcp.unregisterProducer()

    # -- called by the transport -----------------------------------------------------------------------

    def connectionMade(self) -> None:
        # Nagle would hold back the last piece of a larger request for the peer's delayed ACK.
        self._tcp.setTcpNoDelay(True)
        self._pool.opened(self)
        made, self._made = self._made, None
        if made is not None:
            made()

    def handshakeCompleted(self) -> None:
        self._secure = True

    def dataReceived(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            # Nothing was asked: a second response, an early end of a chunked body, or worse.
            self._pool.dropped(self)
            self.abort()
            return
        stage = self._reader.feed(data)
        if stage is Stage.READING:
            return
        self._answer = None
        if stage is Stage.BROKEN:
            self.abort()
        elif not self._reader.keep_alive or self._unsent:
            self._pool.leaving(self)
        else:
            self._stop_telling()
            self._pool.keep(self, self._reader.keep_alive_seconds)
        answer.callback(self._reader.result)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._pool.closed(self)
        answer, self._answer = self._answer, None
        if answer is not None:
            # A body that ends with the connection, or is cut short by it: the head has answered.
            answer.callback(self._reader.answer or Unanswered(self._why(reason)))
        self._reader.end()

    def _why(self, reason: Failure) -> str:
        if isinstance(reason.value, CertificateRefused):
            return reason.value.why
        if not self._secure or isinstance(reason.value, SSL.Error):
            return HANDSHAKE_FAILED
        return CONNECTION_LOST

    # A push producer only for requests larger than the transport's buffer: a connection whose receiver
    # answered before it took the whole request must not get another.

    def pauseProducing(self) -> None:
        self._unsent = True

    def resumeProducing(self) -> None:
        self._unsent = False

    def stopProducing(self) -> None:
        self._telling = False
