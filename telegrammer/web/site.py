"""The site: puts screen, limits and channel together, writes the access line, and drains at the stop."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.web.http import Request
from twisted.web.resource import IResource, Resource
from twisted.web.server import Site

from telegrammer.web.admission import AdmissionChannel
from telegrammer.web.limits import Connections, RequestLimits, WorkerQueue
from telegrammer.web.request import AdmittedRequest
from telegrammer.web.screen import Admission, Area, Head, Screen, Verdict

log = Logger()

# A method is a stranger's text; only those anybody uses are worth a place in the log.
_METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT")


class TurnedAway(Protocol):
    """A connection beyond the limit."""

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.loseConnection()


class GatewaySite(Site):
    """
    Serves ``areas`` over HTTP/1.1, each to its callers, within limits (contract 2).

    Heads are judged by the areas' routes.  Serve it with ``Ports``; close those first, then wait for
    ``drain``.
    """

    requestFactory = AdmittedRequest
    # Typed for the wrapper that chooses between HTTP/1.1 and 2; any protocol will do.
    protocol = cast(Any, AdmissionChannel)
    noisy = False

    def __init__(
        self,
        areas: Sequence[Area],
        clock: IReactorTime,
        limits: RequestLimits | None = None,
    ) -> None:
        super().__init__(Resource(), reactor=clock, parsePOSTFormSubmission=False)
        self.limits = limits = limits or RequestLimits()
        self.clock = clock
        self.stopping = False
        self.screen = Screen(areas, limits)
        self.workers = WorkerQueue(clock, limits.workers, limits.queue, limits.wait_seconds)
        self.connections: Connections[AdmissionChannel] = Connections(limits.connections)

    # -- for the listening port ------------------------------------------------------------------------

    def buildProtocol(self, addr: IAddress | None) -> Any:
        # Not None for those beyond the limit: a TLS port cannot cope with it.
        if self.stopping or not self.connections.has_room():
            return TurnedAway()
        return super().buildProtocol(addr)

    def acceptableProtocols(self) -> list[bytes]:
        """What TLS may negotiate: this channel speaks no HTTP/2."""
        return [b"http/1.1"]

    def startFactory(self) -> None:
        """Nothing: no access log file, and no timer that keeps its date."""

    def stopFactory(self) -> None:
        """Nothing, likewise."""

    def getResourceFor(self, request: Request) -> IResource:
        """Who serves an admitted request; the resource is a leaf, whatever the path."""
        assert isinstance(request, AdmittedRequest) and isinstance(request.verdict, Admission)
        return request.verdict.resource

    # -- for the channels ------------------------------------------------------------------------------

    def judge(self, head: Head) -> Awaitable[Verdict]:
        return self.screen.judge(head)

    def log(self, request: Request) -> None:
        """Nothing: the requests bring their own line (``record``)."""

    def record(
        self, method: bytes, route: str, status: int, started: float | None, caller: int | None
    ) -> None:
        """The access line (contract 9): never a path, which may be anything."""
        log.info(
            "{method} {route} {status} {milliseconds} ms, key {key}",
            method=method.decode("ascii") if method in _METHODS else "-",
            route=route,
            status=status,
            milliseconds=0 if started is None else round((self.clock.seconds() - started) * 1000),
            key="-" if caller is None else caller,
        )

    # -- the stop --------------------------------------------------------------------------------------

    def drain(self) -> Deferred[None]:
        """
        Begin the stop: idle connections close, requests that wait get 503, those being served finish.

        Fires when every connection is gone and every turn is over.  The caller bounds the wait; ``abort``
        ends it.
        """
        self.stopping = True
        for channel in self.connections:
            channel.stop()
        turns = self.workers.close()

        async def drained() -> None:
            await turns
            await self.connections.gone()

        return Deferred.fromCoroutine(drained())

    def abort(self) -> None:
        """Cut every connection at once."""
        for channel in self.connections:
            channel.abort()
