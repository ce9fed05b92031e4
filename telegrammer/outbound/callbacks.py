"""
The callback client: one bounded POST per claim (contract 6).

Order of one attempt: take the URL apart, an idle connection or look-up and connect, then one exchange; all
under one deadline.  Nothing is ever sent twice, redirects are answers, and whatever is cut short is closed.
The limits live in ``response`` (bytes), ``connecting`` (connect time) and here (total time).
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import lru_cache
from typing import Any, Protocol, cast

from attrs import define, field, frozen
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IReactorTCP, IReactorTime
from twisted.internet.protocol import ClientFactory
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from twisted.web.iweb import IPolicyForHTTPS

from telegrammer.core.callback_url import target_of
from telegrammer.core.delivery import AttemptResult, Claimed, Unanswered, Undeliverable
from telegrammer.outbound.connecting import Made, Race, Unreachable
from telegrammer.outbound.connections import CallbackConnection, Peer
from telegrammer.outbound.deadlines import Deadlines
from telegrammer.outbound.pool import ConnectionPool
from telegrammer.outbound.resolver import Addresses, LookupFailed
from telegrammer.outbound.response import ResponseReader
from telegrammer.timers import FairClock

STOPPED = "gateway stopped"

LOOKUP_PATIENCE = 0.1
"""Seconds after which an attempt whose name is still being looked up counts as stuck."""


def _nothing() -> None: ...


class Resolver(Protocol):
    def resolve(self, host: str, port: int) -> Deferred[Addresses]:
        """The addresses of a name or a literal; fails with ``LookupFailed``."""
        ...


@frozen
class CallbackLimits:
    """What one receiver may cost: seconds and bytes."""

    connect: float = 3.0
    total: float = 10.0
    """From before the name look-up to the last byte of the response."""
    head: int = 65536
    body: int = 65536
    idle: float = 1.5
    """How long a connection is kept for the next POST."""
    idle_connections: int = 64


@frozen
class _Route:
    """A callback URL, ready: where to connect, and the head of each request up to the delivery id."""

    peer: Peer
    head: bytes = field(repr=False)


@define(eq=False)
class CallbackClient:
    """
    POSTs jobs to their callback URLs; an implementation of ``ports.Callbacks``.

    ``tls`` makes the connection creator for a host (``outbound.tls.policy_for_https``); ``on_stuck`` is
    called when one more attempt is `stuck`.
    """

    tcp: IReactorTCP
    clock: IReactorTime
    resolver: Resolver
    tls: IPolicyForHTTPS
    user_agent: str
    limits: CallbackLimits = CallbackLimits()
    on_stuck: Callable[[], None] = _nothing
    _stuck: set[int] = field(factory=set, init=False)
    _pool: ConnectionPool = field(init=False)
    _route: Callable[[str], _Route] = field(init=False)
    _deadlines: Deadlines = field(init=False)
    _stopped: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._deadlines = Deadlines(FairClock(self.clock))
        self._pool = ConnectionPool(self.clock, self.limits.idle, self.limits.idle_connections)
        self._route = lru_cache(maxsize=1024)(self._route_of)

    def post(self, job: Claimed) -> Deferred[AttemptResult]:
        """
        One POST of the job; fires with what came of it, and fails only when cancelled.

        Cancelling aborts the connection; the POST may have arrived.
        """
        if self._stopped:
            return succeed(Unanswered(STOPPED))
        try:
            route = self._route(job.url)
        except ValueError:
            return succeed(Undeliverable("the callback URL is not valid"))
        request = b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (
            route.head,
            job.delivery_id.encode("ascii"),
            len(job.body),
            job.body,
        )
        connection = self._pool.take(route.peer)
        posting: Deferred[AttemptResult]
        if connection is None:
            posting = Deferred.fromCoroutine(self._connect_and_post(route.peer, request, job.id))
        else:
            posting = cast("Deferred[AttemptResult]", connection.exchange(request))
        self._deadlines.add(posting, self.limits.total)
        return posting.addBoth(self._finish, posting)

    def stuck(self) -> Set[int]:
        """The jobs (by id) whose attempts wait for a name that does not come, and so for no receiver."""
        return self._stuck

    def _finish(
        self, result: AttemptResult | Failure, posting: Deferred[AttemptResult]
    ) -> AttemptResult | Failure:
        late = not self._deadlines.discard(posting)
        if isinstance(result, Failure) and result.check(CancelledError):
            if late:
                return Unanswered(f"timeout after {self.limits.total:g} s")
            if self._stopped:
                return Unanswered(STOPPED)
        return result

    def close(self) -> Deferred[None]:
        """
        Give up what is under way (``Unanswered``, unless the answer is in) and close every connection.

        Fires when the last one is gone, within a second or so.
        """
        self._stopped = True
        for posting in self._deadlines:
            posting.cancel()
        return self._pool.close()

    async def _connect_and_post(self, peer: Peer, request: bytes, job_id: int) -> AttemptResult:
        try:
            connection = await self._connect(peer, await self._look_up(peer, job_id))
        except (LookupFailed, Unreachable) as error:
            return Unanswered(error.why)
        return await connection.exchange(request)

    async def _look_up(self, peer: Peer, job_id: int) -> Addresses:
        addresses = self.resolver.resolve(peer.host, peer.port)
        if addresses.called:
            return await addresses
        patience = self.clock.callLater(LOOKUP_PATIENCE, self._is_stuck, job_id)
        try:
            return await addresses
        finally:
            if patience.active():
                patience.cancel()
            self._stuck.discard(job_id)

    def _is_stuck(self, job_id: int) -> None:
        self._stuck.add(job_id)
        self.on_stuck()

    async def _connect(self, peer: Peer, addresses: Addresses) -> CallbackConnection:
        connected: list[CallbackConnection] = []

        def build(made: Made) -> CallbackConnection:
            def won() -> None:
                connected.append(connection)
                made()

            reader = ResponseReader(self.limits.head, self.limits.body)
            connection = CallbackConnection(peer, self._pool, reader, won)
            return connection

        def wrap(factory: ClientFactory[Any]) -> ClientFactory[Any]:
            if peer.scheme != "https":
                return factory
            creator = self.tls.creatorForNetloc(peer.host.encode("ascii"), peer.port)
            return TLSMemoryBIOFactory(creator, True, factory, self.clock)

        race = Race(self.tcp, self.clock, build, wrap, self.limits.connect)
        await race.start(addresses)
        return connected[0]

    def _route_of(self, url: str) -> _Route:
        target = target_of(url)
        head = (
            b"POST %b HTTP/1.1\r\nHost: %b\r\nUser-Agent: %b\r\nContent-Type: application/json\r\n"
            b"X-Telegrammer-Delivery-Id: "
        ) % (target.request_target, target.host_header, self.user_agent.encode("ascii"))
        return _Route(_peer(target.scheme, target.host, target.port), head)


# Equal ones are one: a dictionary then finds it without comparing.
_peer = lru_cache(maxsize=1024)(Peer)
