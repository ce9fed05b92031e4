"""
Name look-ups on threads of their own.

``getaddrinfo`` cannot be interrupted and may hang for half a minute.  In the reactor's pool of ten threads a
few dead names stall every other look-up and every ``deferToThread`` besides.  Here a hanging look-up costs
one thread and nobody's time; callers leave it behind at their deadline.  The threads are daemons: none keeps
the process from exiting.

Nothing is cached: a look-up of ``localhost`` costs a fraction of a connect, and a kept-alive connection
needs none.
"""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Any, Final, cast

from attrs import define, field, frozen
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.interfaces import (
    IAddress,
    IConnector,
    IDelayedCall,
    IHostnameResolver,
    IHostResolution,
    IListeningPort,
    IReactorFromThreads,
    IReactorPluggableNameResolver,
    IReactorTCP,
    IReactorTime,
    IResolutionReceiver,
)
from twisted.internet.protocol import ClientFactory, ServerFactory
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

log = Logger()

Addresses = Sequence[IPv4Address | IPv6Address]
GetAddrInfo = Callable[..., list[tuple[Any, ...]]]

NAME_NOT_FOUND: Final = "name not found"
LOOKUP_FAILED: Final = "name look-up failed"

SLOW: Final = 2.0
"""A name whose look-up took longer than so many seconds, or was abandoned, has to share threads."""
STALE: Final = 15.0
"""A look-up that has run so many seconds is not joined; a new one is begun beside it."""
REMEMBERED: Final = 1024
"""How many slow names are remembered."""


class LookupFailed(Exception):
    """No address; ``why`` is short and ours."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@define(eq=False)
class _Lookup:
    host: str
    slow: bool
    since: float
    waiting: list[Deferred[list[str]]] = field(factory=list)


@implementer(IHostResolution)
@define(eq=False)
class _Resolution:
    name: str
    pending: Deferred[None] | None = None

    def cancel(self) -> None:
        if self.pending is not None:
            self.pending.cancel()


@implementer(IHostnameResolver)
@define(eq=False)
class ThreadedResolver:
    """
    Looks names up with ``getaddrinfo``, each on a thread of its own; look-ups of one name are shared.

    ``threads`` bounds how many run at once; give it twice the number of callers at least, for those left
    behind.  Names known to be slow get at most half of them, so that others need not wait behind these.
    """

    reactor: IReactorFromThreads
    clock: IReactorTime
    threads: int = 64
    getaddrinfo: GetAddrInfo = socket.getaddrinfo
    _current: dict[str, _Lookup] = field(factory=dict, init=False)
    """The look-up a new caller joins, running or queued."""
    _running: set[_Lookup] = field(factory=set, init=False)
    _queue: deque[_Lookup] = field(factory=deque, init=False)
    _slow_queue: deque[_Lookup] = field(factory=deque, init=False)
    _slow_names: OrderedDict[str, None] = field(factory=OrderedDict, init=False)
    _stopped: bool = field(default=False, init=False)

    def resolve(self, host: str, port: int) -> Deferred[Addresses]:
        """
        The stream addresses of ``host``, in the system's order of preference (RFC 6724).

        Fails with ``LookupFailed``.  Cancelling leaves the look-up behind; others may still wait for it.
        """
        if isIPAddress(host):
            return succeed([IPv4Address("TCP", host, port)])
        if isIPv6Address(host):
            return succeed([IPv6Address("TCP", host, port)])
        if self._stopped:
            return fail(LookupFailed(LOOKUP_FAILED))
        lookup = self._current.get(host)
        if lookup is not None and self.clock.seconds() - lookup.since > STALE:
            # The network may have come back since; whoever waits for the old one goes on waiting.
            self._abandon(lookup)
            lookup = None
        if lookup is None:
            lookup = self._begin(host)
        texts: Deferred[list[str]] = Deferred(lambda deferred: self._left(lookup, deferred))
        lookup.waiting.append(texts)
        self._pump()
        return texts.addCallback(_as_addresses, port)

    def resolveHostName(
        self,
        resolutionReceiver: IResolutionReceiver,
        hostName: str,
        portNumber: int = 0,
        addressTypes: Sequence[type[IAddress]] | None = None,
        transportSemantics: str = "TCP",
    ) -> IHostResolution:
        """For endpoints and agents: see ``IHostnameResolver``.  A failed look-up has no addresses."""
        resolution = _Resolution(hostName)
        resolutionReceiver.resolutionBegan(resolution)

        def found(addresses: Addresses) -> None:
            for address in addresses:
                if addressTypes is None or isinstance(address, tuple(addressTypes)):
                    resolutionReceiver.addressResolved(address)

        def failed(failure: Failure) -> None:
            if not failure.check(LookupFailed, CancelledError):
                log.warn("a name look-up ended with {error}", error=type(failure.value).__name__)

        resolution.pending = self.resolve(hostName, portNumber).addCallbacks(found, failed)
        resolution.pending.addCallback(lambda _: resolutionReceiver.resolutionComplete())
        return resolution

    def stop(self) -> None:
        """Fail whoever waits, and take no more.  Threads that hang are left to end by themselves."""
        self._stopped = True
        self._queue.clear()
        self._slow_queue.clear()
        lookups, self._current = self._current, {}
        for lookup in [*lookups.values(), *self._running]:
            waiting, lookup.waiting = lookup.waiting, []
            for deferred in waiting:
                deferred.errback(LookupFailed(LOOKUP_FAILED))

    def _begin(self, host: str) -> _Lookup:
        slow = host in self._slow_names
        lookup = self._current[host] = _Lookup(host, slow, self.clock.seconds())
        (self._slow_queue if slow else self._queue).append(lookup)
        return lookup

    def _pump(self) -> None:
        while len(self._running) < self.threads:
            if self._queue:
                lookup = self._queue.popleft()
            elif self._slow_queue and self._slow_ones() < max(self.threads // 2, 1):
                lookup = self._slow_queue.popleft()
            else:
                return
            lookup.since = self.clock.seconds()
            self._running.add(lookup)
            try:
                threading.Thread(target=self._work, args=(lookup,), name="name-lookup", daemon=True).start()
            except RuntimeError:
                # The system has no thread to give.
                self._finished(lookup, LookupFailed(LOOKUP_FAILED))

    def _slow_ones(self) -> int:
        return sum(lookup.slow for lookup in self._running)

    def _work(self, lookup: _Lookup) -> None:
        """In the thread."""
        outcome: list[str] | Exception
        try:
            found = self.getaddrinfo(lookup.host, 0, socket.AF_UNSPEC, socket.SOCK_STREAM)
            outcome = list(dict.fromkeys(str(address[0]) for *_, address in found))
        except (socket.gaierror, UnicodeError) as error:
            # UnicodeError: the codec in front of getaddrinfo takes no label over 63 characters.
            temporary = isinstance(error, socket.gaierror) and error.errno not in _NOT_FOUND
            outcome = LookupFailed(LOOKUP_FAILED if temporary else NAME_NOT_FOUND)
        except OSError:
            outcome = LookupFailed(LOOKUP_FAILED)
        except Exception as error:
            outcome = error
        if not self._stopped:
            self.reactor.callFromThread(self._finished, lookup, outcome)

    def _finished(self, lookup: _Lookup, outcome: list[str] | Exception) -> None:
        self._running.discard(lookup)
        if self._current.get(lookup.host) is lookup:
            del self._current[lookup.host]
        if self.clock.seconds() - lookup.since > SLOW:
            self._remember(lookup.host)
        else:
            self._slow_names.pop(lookup.host, None)
        waiting, lookup.waiting = lookup.waiting, []
        for deferred in waiting:
            if isinstance(outcome, Exception):
                deferred.errback(outcome)
            else:
                deferred.callback(outcome)
        self._pump()

    def _left(self, lookup: _Lookup, deferred: Deferred[list[str]]) -> None:
        lookup.waiting = [other for other in lookup.waiting if other is not deferred]
        if lookup.waiting:
            return
        if lookup in self._running:
            self._abandon(lookup)
            return
        for queue in (self._queue, self._slow_queue):
            if lookup in queue:
                queue.remove(lookup)
        if self._current.get(lookup.host) is lookup:
            del self._current[lookup.host]

    def _abandon(self, lookup: _Lookup) -> None:
        lookup.slow = True
        self._remember(lookup.host)

    def _remember(self, host: str) -> None:
        self._slow_names[host] = None
        self._slow_names.move_to_end(host)
        if len(self._slow_names) > REMEMBERED:
            self._slow_names.popitem(last=False)


_NOT_FOUND = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


def _as_addresses(texts: list[str], port: int) -> Addresses:
    return [
        IPv6Address("TCP", text, port) if ":" in text else IPv4Address("TCP", text, port) for text in texts
    ]


@implementer(IReactorTCP, IReactorTime, IReactorPluggableNameResolver)
@define(eq=False)
class ResolvingReactor:
    """A reactor for an ``Agent`` or an endpoint: the real one, but for who looks names up."""

    tcp: IReactorTCP
    clock: IReactorTime
    nameResolver: IHostnameResolver

    def installNameResolver(self, resolver: IHostnameResolver) -> IHostnameResolver:
        previous, self.nameResolver = self.nameResolver, resolver
        return previous

    def connectTCP(
        self,
        host: str,
        port: int,
        factory: ClientFactory[Any],
        timeout: float = 30.0,
        bindAddress: tuple[str, int] | None = None,
    ) -> IConnector:
        return self.tcp.connectTCP(host, port, factory, timeout, bindAddress)

    def listenTCP(
        self, port: int, factory: ServerFactory[Any], backlog: int = 50, interface: str = ""
    ) -> IListeningPort:
        return self.tcp.listenTCP(port, factory, backlog, interface)

    def seconds(self) -> float:
        return self.clock.seconds()

    def callLater(
        self, delay: float, callable: Callable[..., Any], *args: object, **kwargs: object
    ) -> IDelayedCall:
        return self.clock.callLater(delay, callable, *args, **kwargs)

    def getDelayedCalls(self) -> Sequence[IDelayedCall]:
        return self.clock.getDelayedCalls()


def reactor_with_resolver(
    tcp: IReactorTCP, clock: IReactorTime, resolver: IHostnameResolver
) -> ResolvingReactor:
    """What to give an ``Agent`` as its reactor, so that it looks names up with ``resolver``."""
    return ResolvingReactor(tcp, clock, resolver)


@implementer(IResolutionReceiver)
@frozen(eq=False)
class _LoopbackOnly:
    receiver: IResolutionReceiver

    def resolutionBegan(self, resolution: IHostResolution) -> None:
        self.receiver.resolutionBegan(resolution)

    def addressResolved(self, address: IAddress) -> None:
        host = cast("IPv4Address | IPv6Address", address).host
        if ip_address(host.partition("%")[0]).is_loopback:
            self.receiver.addressResolved(address)

    def resolutionComplete(self) -> None:
        self.receiver.resolutionComplete()


@implementer(IHostnameResolver)
@frozen(eq=False)
class LoopbackResolver:
    """
    Knows of every name the loopback addresses only: for what must not leave this machine.

    ``localhost`` is but a name, and who answers for it may be a server that says something else.
    """

    resolver: IHostnameResolver

    def resolveHostName(
        self,
        resolutionReceiver: IResolutionReceiver,
        hostName: str,
        portNumber: int = 0,
        addressTypes: Sequence[type[IAddress]] | None = None,
        transportSemantics: str = "TCP",
    ) -> IHostResolution:
        receiver = _LoopbackOnly(resolutionReceiver)
        return self.resolver.resolveHostName(receiver, hostName, portNumber, addressTypes, transportSemantics)


def on_loopback(reactor: ResolvingReactor) -> ResolvingReactor:
    """The same reactor, where names lead to loopback addresses only."""
    return ResolvingReactor(reactor, reactor, LoopbackResolver(reactor.nameResolver))
