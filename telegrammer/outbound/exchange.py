"""
One bounded exchange with the Bot API (contract 2.1, 5.1).

One deadline from the name look-up to the last byte, a capped body, no redirect, no cookie, no content
coding, nothing repeated.  A connection whose exchange failed, whatever way, is aborted: closing it in an
orderly manner would wait for the very peer that does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from attrs import define, field, frozen
from hyperlink import EncodedURL
from OpenSSL import SSL
from treq.client import HTTPClient
from twisted.internet import error as neterror
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import (
    IConsumer,
    IReactorTime,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import Agent, ResponseDone, ResponseFailed
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import (
    UNKNOWN_LENGTH,
    IAgent,
    IBodyProducer,
    IPolicyForHTTPS,
    IResponse,
)
from zope.interface import implementer

from telegrammer.core.exchange import (
    BadReply,
    BodyTooLarge,
    ConnectionBroken,
    DeadlinePassed,
    ExchangeFailed,
    NotConnected,
    Reply,
)
from telegrammer.outbound.api_connections import CONNECT_SECONDS, ApiEndpoints, HeadTooLong, KeptConnections
from telegrammer.outbound.resolver import ResolvingReactor
from telegrammer.outbound.tls import CertificateRefused
from telegrammer.timers import FairClock

IDLE_SECONDS: Final = 10
"""How long an idle connection is kept: a stale one would make a send's outcome unknown."""


@define(eq=False)
class Exchange:
    """
    Implements ``ports.Exchange``.

    :param agent: what sends and receives; `api_exchange` builds the right one.
    :param close_idle: closes the connections the agent keeps.
    """

    agent: IAgent
    clock: IReactorTime
    close_idle: Callable[[], Deferred[None]] = field(default=lambda: succeed(None))
    _client: HTTPClient = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._client = HTTPClient(PlainAgent(self.agent), data_to_body_producer=WholeBody)

    def exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        seconds: float,
        limit: int,
    ) -> Deferred[Reply]:
        """Ask once; see ``ports.Exchange``."""

        def late(result: Reply | Failure, timeout: float) -> Reply | Failure:
            # Cancelled, an agent fails in another way in each of its phases.  One cause, one name.
            return (
                Failure(DeadlinePassed(f"no answer in {timeout:g} s"))
                if isinstance(result, Failure)
                else result
            )

        asked = Deferred.fromCoroutine(self._ask(method, url, headers, body, limit))
        return asked.addTimeout(seconds, FairClock(self.clock), onTimeoutCancel=late)

    async def _ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes, limit: int) -> Reply:
        try:
            response = await self._client.request(
                method,
                Uri.from_text(url),
                headers=Headers({name: [value] for name, value in headers.items()}),
                data=body,
                allow_redirects=False,
                unbuffered=True,
                # Its only use would be treq's own timeout, which ends with the head.
                reactor=cast(Any, self.clock),
            )
            return Reply(
                status=int(response.code),
                headers=tuple(
                    (name.lower(), value)
                    for name, values in response.headers.getAllRawHeaders()
                    for value in values
                ),
                body=await read_body(response, limit),
            )
        except ExchangeFailed:
            raise
        except Exception as error:
            failed = translated(error)
        # Outside the handler, lest the original hang on as context: its text may hold the URL.
        raise failed

    def close(self) -> Deferred[None]:
        """Close idle connections; to be called at the end, after the last exchange."""
        return self.close_idle()


class Uri(EncodedURL):
    """An ASCII URL as it is; treq would put its host through IDNA, which knows no IPv6 address."""

    def to_uri(self) -> Uri:
        return self


def read_body(response: IResponse, limit: int) -> Deferred[bytes]:
    """
    The response's body; cancelling closes the connection, which ``treq.content`` does not.

    :param limit: bytes; the connection of a longer one is closed as soon as that is known.
    :raises BodyTooLarge: it is longer.
    """
    declared_too_long = response.length is not UNKNOWN_LENGTH and response.length > limit
    collector = BodyCollector(limit, declared_too_long)
    response.deliverBody(collector)
    return collector.done


class BodyCollector(Protocol):
    """Keeps what comes, up to a limit; beyond it, and when cancelled, closes the connection."""

    def __init__(self, limit: int, declared_too_long: bool = False) -> None:
        self.done: Deferred[bytes] = Deferred(lambda _: self._close())
        self._limit = limit
        self._declared_too_long = declared_too_long
        self._parts = bytearray()

    def connectionMade(self) -> None:
        if self._declared_too_long:
            self._refuse()

    def _refuse(self) -> None:
        self._parts = bytearray()
        self._close()
        self.done.errback(BodyTooLarge(f"an answer of over {self._limit} bytes"))

    def _close(self) -> None:
        # The transport of a body has no abortConnection (twisted #8227, #12499); what this reaches in the
        # end is AbortingTransport.loseConnection, and that aborts.
        if self.transport is not None:
            self.transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        if self.done.called:
            return
        if len(self._parts) + len(data) > self._limit:
            self._refuse()
        else:
            self._parts += data

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.done.called:
            return
        if reason.check(ResponseDone, PotentialDataLoss):
            # PotentialDataLoss: its end was the connection's.  A truncated envelope is no envelope.
            self.done.callback(bytes(self._parts))
        else:
            self.done.errback(reason)


@implementer(IBodyProducer)
class WholeBody:
    """A request body already in memory, written at once; ``FileBodyProducer`` would need a cooperator."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.length = len(body)

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        consumer.write(self._body)
        return succeed(None)

    def pauseProducing(self) -> None:
        """Nothing: all is written already."""

    def resumeProducing(self) -> None:
        """Nothing."""

    def stopProducing(self) -> None:
        """Nothing."""


@implementer(IAgent)
@frozen(eq=False)
class PlainAgent:
    """
    Takes out of an exchange what treq puts in unasked: content codings and cookies.

    treq asks for gzip and inflates without a limit, and keeps cookies for the whole client.
    """

    agent: IAgent

    def request(
        self,
        method: bytes,
        uri: bytes,
        headers: Headers | None = None,
        bodyProducer: IBodyProducer | None = None,
    ) -> Deferred[IResponse]:
        plain = Headers() if headers is None else headers.copy()
        for name in (b"accept-encoding", b"cookie"):
            plain.removeHeader(name)

        def strip(response: IResponse) -> IResponse:
            for name in (b"content-encoding", b"set-cookie"):
                response.headers.removeHeader(name)
            return response

        return self.agent.request(method, uri, plain, bodyProducer).addCallback(strip)


# -- what went wrong ----------------------------------------------------------------------------------

_NOT_CONNECTED: Final[tuple[tuple[type[Exception], str], ...]] = (
    (SSL.Error, "TLS failed"),
    (neterror.DNSLookupError, "name not found"),
    (neterror.ConnectionRefusedError, "connection refused"),
    (neterror.TimeoutError, "connect timeout"),
    (neterror.ConnectError, "cannot connect"),
)


def translated(error: Exception) -> Exception:
    """
    What Twisted, OpenSSL or treq raised, as an `ExchangeFailed` without its text; a cancellation stays one.

    Twisted wraps: several causes may be in one error, and the earliest phase among them is the reason.
    """
    causes = tuple(_causes(error))
    for cause in causes:
        if isinstance(cause, CancelledError):
            return CancelledError()
        if isinstance(cause, CertificateRefused):
            return NotConnected(cause.why)
        if isinstance(cause, HeadTooLong):
            return BadReply("the head of the answer is too long")
    for kind, why in _NOT_CONNECTED:
        if any(isinstance(cause, kind) for cause in causes):
            return NotConnected(why)
    if any(isinstance(cause, neterror.ConnectionClosed | neterror.ConnectionLost) for cause in causes):
        return ConnectionBroken("connection lost")
    if isinstance(error, ResponseFailed):
        return BadReply("the answer is not HTTP")
    return BadReply(f"an unexpected {type(error).__name__}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error itself and what it wraps: the ``reasons`` of ``ResponseFailed`` and its relatives."""
    yield error
    for reason in getattr(error, "reasons", None) or ():
        if isinstance(reason, Failure) and reason.value is not None:
            yield from _causes(reason.value)


# -- what it runs over --------------------------------------------------------------------------------


def api_exchange(
    reactor: ResolvingReactor,
    policy: IPolicyForHTTPS,
    *,
    idle_connections: int = 0,
    connect_seconds: float = CONNECT_SECONDS,
) -> Exchange:
    """
    An exchange over sockets.

    :param reactor: connects, tells the time, and looks names up; see `resolver.reactor_with_resolver`.
    :param policy: for https; see `tls.policy_for_https`.
    :param idle_connections: how many are kept for the next exchange, for so many at once, of those that the
        peer promises to keep; 0: one is opened for each.
    """
    pool = KeptConnections(reactor, persistent=idle_connections > 0)
    pool.maxPersistentPerHost = idle_connections
    pool.retryAutomatically = False
    pool.cachedConnectionTimeout = IDLE_SECONDS
    endpoints = ApiEndpoints(reactor, policy, connect_seconds)
    agent = Agent.usingEndpointFactory(reactor, endpoints, pool)
    return Exchange(agent, reactor, pool.closeCachedConnections)
