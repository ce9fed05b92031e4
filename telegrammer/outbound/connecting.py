"""
Connects to the first of several addresses that answers (RFC 8305, "happy eyeballs").

Twisted's ``HostnameEndpoint`` does the like, but refuses host names with an underscore and waits its full
step after an address that refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import Any

from attrs import define, field
from twisted.internet import error
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IConnector, IDelayedCall, IReactorTCP, IReactorTime
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.python.failure import Failure

from telegrammer.timers import FairClock

IPAddress = IPv4Address | IPv6Address

STEP = 0.25
"""Seconds before the next address is tried while the last one is silent."""
MOST_ADDRESSES = 32
"""No name gets more connection attempts than this."""

CONNECT_TIMEOUT = "connect timeout"
REFUSED = "connection refused"
UNREACHABLE = "host unreachable"
CONNECT_FAILED = "could not connect"

Made = Callable[[], None]


class Unreachable(Exception):
    """No connection was made, and nothing sent; ``why`` is short and ours."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def interleaved(addresses: Iterable[IPAddress]) -> list[IPAddress]:
    """The families in turn, the resolver's order kept in each (RFC 8305, section 4)."""
    known = list(addresses)
    first = [address for address in known if type(address) is type(known[0])]
    other = [address for address in known if type(address) is not type(known[0])]
    pairs = chain.from_iterable(zip_longest(first, other))
    return [address for address in pairs if address is not None][:MOST_ADDRESSES]


class AttemptFactory(ClientFactory[Any]):
    """One attempt of a race; ``build`` makes its protocol, which calls what it is given once connected."""

    noisy = False

    def __init__(self, race: Race, build: Callable[[Made], Protocol]) -> None:
        self._race = race
        self._build = build

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return self._build(lambda: self._race.won(self))

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        self._race.lost(self, reason)


@define(eq=False)
class Race:
    """
    Attempts to connect, each started when the last has failed or been silent for a step.

    ``wrap`` puts TLS around an attempt's factory, or returns it as it is.  ``result`` fires with None when
    the winner's protocol has its transport (that protocol knows itself), or fails with ``Unreachable``;
    cancelling it gives up.  Afterwards no socket but the winner's, and no timer, is left.
    """

    tcp: IReactorTCP
    clock: IReactorTime
    build: Callable[[Made], Protocol]
    wrap: Callable[[ClientFactory[Any]], ClientFactory[Any]]
    seconds: float
    """For all addresses together."""
    result: Deferred[None] = field(init=False)
    _waiting: list[IPAddress] = field(factory=list, init=False)
    _attempts: dict[AttemptFactory, IConnector | None] = field(factory=dict, init=False)
    _whys: list[str] = field(factory=list, init=False)
    _step: IDelayedCall | None = field(default=None, init=False)
    _limit: IDelayedCall | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.result = Deferred(lambda _: self._close())

    @property
    def open(self) -> bool:
        """Nobody has won yet, and it was not given up."""
        return self._limit is not None

    def start(self, addresses: Iterable[IPAddress]) -> Deferred[None]:
        self._waiting = interleaved(addresses)
        self._limit = FairClock(self.clock).callLater(self.seconds, self._fail, CONNECT_TIMEOUT)
        self._next()
        return self.result

    def won(self, attempt: AttemptFactory) -> None:
        """``attempt`` is connected."""
        self._attempts.pop(attempt, None)
        self._close()
        self.result.callback(None)

    def lost(self, attempt: AttemptFactory, reason: Failure) -> None:
        """``attempt`` failed."""
        if not self.open:
            return
        self._attempts.pop(attempt, None)
        self._whys.append(_why(reason))
        self._next()

    def _next(self) -> None:
        if self._step is not None and self._step.active():
            self._step.cancel()
        self._step = None
        if self._waiting:
            address = self._waiting.pop(0)
            attempt = AttemptFactory(self, self.build)
            self._attempts[attempt] = None
            connector = self.tcp.connectTCP(address.host, address.port, self.wrap(attempt), self.seconds)
            if attempt in self._attempts:
                self._attempts[attempt] = connector
                if self._waiting and self._step is None:
                    self._step = self.clock.callLater(STEP, self._next)
        elif not self._attempts:
            # The most telling of them: a refusal says that the host is there.
            self._fail(REFUSED if REFUSED in self._whys else (self._whys or [CONNECT_FAILED])[0])

    def _fail(self, why: str) -> None:
        self._close()
        self.result.errback(Unreachable(why))

    def _close(self) -> None:
        for timer in (self._limit, self._step):
            if timer is not None and timer.active():
                timer.cancel()
        self._limit = self._step = None
        self._waiting.clear()
        attempts, self._attempts = self._attempts, {}
        for connector in attempts.values():
            if connector is not None:
                connector.stopConnecting()


def _why(reason: Failure) -> str:
    if reason.check(error.ConnectionRefusedError):
        return REFUSED
    if reason.check(error.TimeoutError, error.TCPTimedOutError):
        return CONNECT_TIMEOUT
    if reason.check(error.NoRouteError):
        return UNREACHABLE
    return CONNECT_FAILED
