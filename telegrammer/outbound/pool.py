"""
Connections to callback receivers, kept for a moment between two exchanges.

Reuse saves a connect and often a TLS handshake per message, and costs an attempt when the receiver closes
an idle connection at the very moment we use it (it may have read the request, so it is never sent again).
Hence the short idle time, below the two seconds of the hastiest common servers, and a look at the socket
before reuse.
"""

from __future__ import annotations

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from telegrammer.outbound.connections import CallbackConnection, Peer

LINGER = 1.0
"""Seconds for the peer to take leave before its connection is aborted."""


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
