"""
Connections to callback receivers: one exchange at a time, kept for a moment between two.

Reuse saves a connect and often a TLS handshake per message, and costs an attempt when the receiver closes
an idle connection at the very moment we use it (it may have read the request, so it is never sent again).
Hence the short idle time, below the two seconds of the hastiest common servers, and a look at the socket
before reuse.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, cast

from attrs import define, field, frozen
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IConsumer,
    IDelayedCall,
    IHandshakeListener,
    IPushProducer,
    IReactorTime,
    ISystemHandle,
    ITCPTransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from telegrammer.core.delivery import Answered, Unanswered
from telegrammer.outbound.response import ResponseReader, Stage
from telegrammer.outbound.tls import CertificateRefused

CONNECTION_LOST = "connection lost"
HANDSHAKE_FAILED = "TLS handshake failed"

LINGER = 1.0
"""Seconds for the peer to take leave before its connection is aborted."""
WRITE_BUFFER = 65536
"""Twisted's transports tell of what waits to be sent only beyond this many bytes."""


class IStream(ITCPTransport, IConsumer):
    """What Twisted's stream transports are, plain and TLS alike."""


@frozen
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
        return answer

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
            handle.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
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


@define(eq=False)
class ConnectionPool:
    """
    All connections of the client; those between two exchanges can be taken.

    One timer serves them all, and there is none when nothing waits to be closed.
    """

    clock: IReactorTime
    idle_seconds: float
    idle_limit: int
    """Beyond it, the connection that has been idle longest is closed."""
    _open: set[CallbackConnection] = field(factory=set, init=False)
    _idle: dict[CallbackConnection, float] = field(factory=dict, init=False)
    """Until when each may be used, in the order they became idle."""
    _idle_by_peer: dict[Peer, list[CallbackConnection]] = field(factory=dict, init=False)
    _leaving: dict[CallbackConnection, float] = field(factory=dict, init=False)
    """When each is aborted if its peer does not let go."""
    _reaper: IDelayedCall | None = field(default=None, init=False)
    _closed: Deferred[None] | None = field(default=None, init=False)

    def take(self, peer: Peer) -> CallbackConnection | None:
        """The most recently used idle connection to ``peer`` that is still good."""
        while connections := self._idle_by_peer.get(peer):
            connection = connections[-1]
            until = self._idle[connection]
            self.dropped(connection)
            if until > self.clock.seconds() and connection.is_quiet():
                return connection
            self.leaving(connection)
        return None

    def keep(self, connection: CallbackConnection, seconds: int | None) -> None:
        """``connection`` is idle from now on; its peer keeps it for ``seconds``, when it says so."""
        # A second less than promised: the promise counts from when the peer sent its answer.
        usable = self.idle_seconds if seconds is None else min(self.idle_seconds, seconds - 1)
        if self._closed is not None or usable <= 0:
            self.leaving(connection)
            return
        self._idle[connection] = self.clock.seconds() + usable
        self._idle_by_peer.setdefault(connection.peer, []).append(connection)
        if len(self._idle) > self.idle_limit:
            oldest = next(iter(self._idle))
            self.dropped(oldest)
            self.leaving(oldest)
        self._arm(usable)

    def leaving(self, connection: CallbackConnection) -> None:
        """Close ``connection`` in an orderly way, by force if its peer does not do its part."""
        self._leaving[connection] = self.clock.seconds() + LINGER
        self._arm(LINGER)
        connection.leave()

    def dropped(self, connection: CallbackConnection) -> None:
        """``connection`` is not idle any more."""
        if self._idle.pop(connection, None) is None:
            return
        connections = self._idle_by_peer[connection.peer]
        connections.remove(connection)
        if not connections:
            del self._idle_by_peer[connection.peer]

    def opened(self, connection: CallbackConnection) -> None:
        self._open.add(connection)

    def closed(self, connection: CallbackConnection) -> None:
        """``connection`` is gone."""
        self._open.discard(connection)
        self.dropped(connection)
        self._leaving.pop(connection, None)
        if self._reaper is not None and not self._idle and not self._leaving:
            self._reaper.cancel()
            self._reaper = None
        if self._closed is not None and not self._open and not self._closed.called:
            self._closed.callback(None)

    def close(self) -> Deferred[None]:
        """Close all, idle ones in order, the others by force; fires when the last is gone."""
        closed: Deferred[None] = Deferred()
        if self._closed is None:
            self._closed = closed
        else:
            self._closed.chainDeferred(closed)
        for connection in list(self._open):
            if connection in self._idle:
                self.dropped(connection)
                self.leaving(connection)
            elif connection not in self._leaving:
                connection.abort()
        if not self._open and not self._closed.called:
            self._closed.callback(None)
        return closed

    def _arm(self, seconds: float) -> None:
        # Something may come to its end a little before the timer: ``take`` looks at the time itself.
        if self._reaper is None:
            self._reaper = self.clock.callLater(seconds, self._reap)

    def _reap(self) -> None:
        self._reaper = None
        now = self.clock.seconds()
        for connection in [it for it, until in self._leaving.items() if until <= now]:
            del self._leaving[connection]
            connection.abort()
        for connection in [it for it, until in self._idle.items() if until <= now]:
            self.dropped(connection)
            self.leaving(connection)
        ends = [*self._idle.values(), *self._leaving.values()]
        if ends:
            self._arm(max(min(ends) - now, 0.0))
