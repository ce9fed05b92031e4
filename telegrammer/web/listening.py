"""The listening ports: opened early or refused at once, closed first of all at the stop (contract 1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from attrs import define, field, frozen
from twisted.application.service import Service
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import quoteStringArgument, serverFromString
from twisted.internet.error import CannotListenError, ConnectionDone
from twisted.internet.interfaces import IListeningPort
from twisted.internet.protocol import Factory
from twisted.internet.ssl import ContextFactory
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.lockfile import FilesystemLock

from telegrammer.bounded_tls import BoundedServerConnections
from telegrammer.core.problems import StartRefused
from telegrammer.web.site import GatewaySite

log = Logger()

_LEAST_BACKLOG = 128
"""Twisted's own is 50, fewer than the callers that may work and wait."""


def tcp_endpoint(host: str, port: int, connections: int = 0) -> str:
    """
    The endpoint string for an address and a port.

    :param connections: how many may be open.  So many find room in the kernel's queue when they come at once:
        of one that does not, the kernel drops the first packet, and its client tries again after a second.
    """
    backlog = max(connections, _LEAST_BACKLOG)
    return f"tcp:{port}:interface={quoteStringArgument(host)}:backlog={backlog}"


@frozen
class BoundingReactor:
    """The reactor, as endpoints see it: TLS by it is bounded."""

    reactor: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reactor, name)

    def listenSSL(
        self,
        port: int,
        factory: Factory,
        contextFactory: ContextFactory,
        backlog: int = 50,
        interface: str = "",
    ) -> IListeningPort:
        bounded = BoundedServerConnections(contextFactory)
        listening: IListeningPort = self.reactor.listenSSL(port, factory, bounded, backlog, interface)
        return listening


@define(eq=False)
class Ports(Service):
    """
    Opens every endpoint (Twisted's server endpoint strings), or refuses the start.

    It starts early, so that a port that is taken is known before anything is changed; no connection is
    accepted before the reactor runs, when all has started.  An endpoint service of Twisted's would log a
    taken port and live on without a listener.
    """

    endpoints: Sequence[str]
    site: GatewaySite
    reactor: Any
    """What endpoint strings need of a reactor depends on their kind."""
    what: str = "listening"
    """How the log calls it."""
    _ports: list[IListeningPort] = field(factory=list, init=False)

    def startService(self) -> None:
        try:
            for description in self.endpoints:
                self._listen(description)
        except BaseException:
            self._close_at_once()
            raise
        super().startService()

    def stopService(self) -> None:
        """After a start that failed further on; else they have been closed long ago."""
        super().stopService()
        self._close_at_once()

    def addresses(self) -> list[str]:
        """Where it listens, as a person would write it."""
        return [
            _shown(description, port.getHost())
            for description, port in zip(self.endpoints, self._ports, strict=True)
        ]

    async def close(self) -> None:
        ports, self._ports = self._ports, []
        for port in ports:
            closed = port.stopListening()
            if closed is not None:
                await closed

    def _close_at_once(self) -> None:
        # stopListening would do it in a turn of the reactor that never comes.
        ports, self._ports = self._ports, []
        for port in ports:
            cast(Any, port).connectionLost(Failure(ConnectionDone()))

    def _listen(self, description: str) -> None:
        outcome: list[object] = []
        try:
            endpoint = serverFromString(BoundingReactor(self.reactor), description)
            endpoint.listen(self.site).addBoth(outcome.append)
        except Exception as error:
            raise StartRefused(f"cannot listen on {description}: {_why(error)}") from None
        if not outcome:
            raise StartRefused(f"cannot listen on {description}: it does not listen at once")
        [port] = outcome
        if isinstance(port, Failure):
            where = description
            match port.value:
                case CannotListenError(port=int(number), interface=interface):
                    where = f"{interface or '*'}:{number}"
                case CannotListenError(port=bytes(path), socketError=OSError()):
                    # First what is open: one of these may hold the lock, and gives it back itself.
                    self._close_at_once()
                    _release(path)
            raise StartRefused(f"cannot listen on {where}: {_why(port.value)}") from None
        self._ports.append(port)  # type: ignore[arg-type]  # what listen() fires with


@define(eq=False)
class Listening(Service):
    """
    Says that requests are accepted; at the stop closes the ports and sees requests in progress through.

    :ivar doors: told of in this order; at the stop all are closed before any is waited for.
    """

    doors: Sequence[Ports]

    def startService(self) -> None:
        super().startService()
        for ports in self.doors:
            for address in ports.addresses():
                log.info("{what} on {address}", what=ports.what, address=address)

    def stopService(self) -> Deferred[None]:
        """Fires when requests in progress have their answers and all connections are gone."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        drained = [ports.site.drain() for ports in self.doors]
        for ports in self.doors:
            await ports.close()
        for each in drained:
            await each


def _release(path: bytes) -> None:
    """Take away the lock beside a UNIX socket, if it is ours: Twisted leaves it when it cannot bind."""
    with suppress(OSError, ValueError):
        FilesystemLock(path + b".lock").unlock()


def _shown(description: str, address: object) -> str:
    scheme = "https" if description.startswith("ssl:") else "http"
    match address:
        case IPv4Address(host=host, port=port):
            return f"{scheme}://{host}:{port}"
        case IPv6Address(host=host, port=port):
            return f"{scheme}://[{host}]:{port}"
        case UNIXAddress(name=bytes(name)):
            return f"unix:{name.decode(errors='replace')}"
    return description.partition(":")[0]


def _why(error: BaseException | None) -> str:
    cause = error.socketError if isinstance(error, CannotListenError) else error
    match cause:
        case OSError():
            # Python's own, such as that of a path too long for a socket, have a text and no number.
            return (cause.strerror or str(cause) or type(cause).__name__).lower()
        case str():
            # Of a UNIX socket: the lock that Twisted puts beside it.
            return "another process listens there"
        case IndexError():
            # Of systemd's sockets, which are numbered.
            return "no such socket was passed to this process"
        case ValueError() | TypeError() | KeyError():
            return "not a server endpoint that Twisted knows"
    return type(cause).__name__
