"""
The HTTP/1.1 channel that judges a request by its head before it keeps any of its body.

``twisted.web`` parses the head, buffers the whole body, and only then looks for a resource.  Here the
channel stops reading between the two, asks the site to judge the head, and either goes on or answers at
once (contract 2).  Three things make this hard:

* *A refusal must arrive.*  A socket closed with unread bytes sends a reset, which may destroy the answer on
  its way.  So the channel closes its own half, discards for a moment, and only then goes (``_close``).
* *Nothing that follows a refusal may be taken for a request.*  Once refused, the channel is deaf.
* *Every stage ends*, whatever the peer does: ``HTTPChannel``'s own timer starts anew with each byte, and
  stops while a request is served.  Here each ``Stage`` has an absolute end.

Twisted offers no public hook at this place, so some private names are used; ``web.twisted_names`` refuses
to start on a Twisted that lacks one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHalfCloseableProtocol, IReactorTime, ISSLTransport
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, Request
from twisted.web.http_headers import Headers
from zope.interface import implementer

from telegrammer.web import twisted_names
from telegrammer.web.framing import names_host, origin_form, well_formed_trailer, well_framed
from telegrammer.web.half_close import NothingToRead, hung_up
from telegrammer.web.limits import Connections, Deadline, RequestLimits, WorkerQueue
from telegrammer.web.pacing import PacedWriter
from telegrammer.web.request import AdmittedRequest, render
from telegrammer.web.responses import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    OVERLOADED,
    REQUEST_TIMEOUT,
    Response,
    body_too_large,
)
from telegrammer.web.screen import Head, Refusal, Verdict

twisted_names.check()

_FRAMING = 8
"""A chunked body in chunks of one byte takes six bytes for each; more than this is a waste of our time."""

_LOOK_SECONDS = 1.0
"""How often it is looked whether a peer that sends no more is still there, while it is served."""

_STOPPING_SECONDS = 0.5
"""The longest goodbye to a peer once the daemon stops."""


class Front(Protocol):
    """What a channel needs of its site."""

    limits: RequestLimits
    clock: IReactorTime
    workers: WorkerQueue
    connections: Connections[AdmissionChannel]
    stopping: bool

    def judge(self, head: Head) -> Awaitable[Verdict]: ...

    def record(
        self, method: bytes, route: str, status: int, started: float | None, caller: int | None
    ) -> None:
        """Write the access line."""
        ...


class Stage(Enum):
    """Where a connection is with its request in hand."""

    IDLE = auto()
    HEAD = auto()
    SCREENING = auto()
    BODY = auto()
    SERVING = auto()
    ANSWERING = auto()
    REFUSED = auto()
    """Answering too, and deaf to whatever still comes."""
    CLOSING = auto()


@implementer(IHalfCloseableProtocol)
class AdmissionChannel(HTTPChannel):
    """idle → head → screening (not reading) → body → serving → answering → idle …; or refused; closing."""

    _log = Logger()
    site: Front
    transport: Any
    _networkProducer: Any
    _transferDecoder: object
    requests: list[AdmittedRequest]
    stage = Stage.HEAD
    _screening: Deferred[Verdict] | None = None
    _expects_continue = False
    _answered: Request | None = None
    _taken = 0
    _body_bytes = 0
    _input_ended = False

    # -- the connection --------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        self.timeOut = None  # the idle timer gives way to the stages' ends
        clock = self.site.clock
        limits = self.site.limits
        self._end, self._body_stall = Deadline(clock), Deadline(clock)
        self._writer = PacedWriter(self.transport, clock, limits.answer_stall_seconds, self.abort)
        self.site.connections.add(self)
        super().connectionMade()
        self._enter(Stage.HEAD, limits.head_seconds, self._head_late)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._enter(Stage.CLOSING)
        self._writer.close()
        super().connectionLost(reason)
        self.site.connections.remove(self)

    def readConnectionLost(self) -> None:
        """
        The peer sends no more.  What it has asked for and waits for it gets; nothing else is left to do.

        It may be gone altogether, so a request that still waits for a worker is not started (contract 2).
        """
        self._input_ended = True
        self._networkProducer = NothingToRead(self.transport)
        match self.stage:
            case Stage.IDLE | Stage.HEAD | Stage.BODY:
                self._gone()
            case Stage.CLOSING:
                self.transport.loseConnection()  # what lingering waited for
            case _:
                self._look_for_the_peer()

    def writeConnectionLost(self) -> None:
        """Our own half is closed: ``_close`` did it."""

    def _look_for_the_peer(self) -> None:
        """While a request is served whose peer sends no more; from the answer on, writing will tell."""
        if self.stage is not Stage.SERVING:
            return
        if self.requests[0].waits or hung_up(self.transport):
            self._gone()
        else:
            self._end.set(_LOOK_SECONDS, self._look_for_the_peer)

    def _gone(self) -> None:
        """As if the end of its input had been the end of the connection, which it is to most protocols."""
        self.transport.connectionLost(Failure(ConnectionDone()))

    def stop(self) -> None:
        """The daemon stops: a request that is being served finishes, everything else ends now."""
        self.persistent = False
        match self.stage:
            case Stage.IDLE | Stage.HEAD:
                self._close(linger=False)
            case Stage.SCREENING | Stage.BODY:
                self.refuse(OVERLOADED)
            case Stage.CLOSING:
                self._end.set(_STOPPING_SECONDS, self.abort)
            case _:
                pass

    def abort(self) -> None:
        """Cut the connection at once."""
        self.transport.abortConnection()

    def _enter(
        self, stage: Stage, seconds: float | None = None, late: Callable[..., object] | None = None
    ) -> None:
        """Go to a stage, which ends by ``late`` after so many seconds."""
        self.stage = stage
        self._body_stall.clear()
        self._end.clear()
        if seconds is not None and late is not None:
            self._end.set(seconds, late)
        screening, self._screening = self._screening, None
        if screening is not None:
            screening.cancel()

    def _expect(self, stage: Stage, seconds: float, late: Callable[[], object]) -> None:
        """Go to a stage in which more has to come; whoever sends no more leaves it in the next turn."""
        if self._input_ended:
            self._enter(stage, 0, self._gone)
        else:
            self._enter(stage, seconds, late)

    # -- parsing ---------------------------------------------------------------------------------------

    @property
    def takes_body(self) -> bool:
        return self.stage is Stage.BODY

    def dataReceived(self, data: bytes) -> None:
        if self._deaf:
            self._taken += len(data)
            if self._taken > self.site.limits.linger_bytes:
                self.abort()
            return
        if self.stage is Stage.IDLE and data:
            self._expect(Stage.HEAD, self.site.limits.head_seconds, self._head_late)
        elif self.stage is Stage.BODY and data:
            self._body_stall.restart(self.site.limits.body_stall_seconds)
            self._taken += len(data)
            limit = self._body_bytes
            if self._taken > (_FRAMING + 1) * limit:
                return self.refuse(body_too_large(limit))
        super().dataReceived(data)
        if self.stage is Stage.HEAD and b"\n" in self._buffer and b"\r\n" not in self._buffer:
            # An LF without its CR: no line of it will ever be complete, waiting would not help.
            self._respondToBadRequestAndDisconnect()

    @property
    def _deaf(self) -> bool:
        return self.stage in (Stage.REFUSED, Stage.CLOSING)

    def lineReceived(self, line: bytes) -> None:
        if line[:1] in (b" ", b"\t"):  # obs-fold, which proxies read differently (RFC 9112, 5.2)
            self._respondToBadRequestAndDisconnect()
        else:
            super().lineReceived(line)

    def lineLengthExceeded(self, line: bytes) -> None:
        self._respondToBadRequestAndDisconnect()

    def headerReceived(self, line: bytes) -> bool:
        try:
            return bool(super().headerReceived(line))
        except ValueError:  # a Content-Length of more digits than int() takes
            self._respondToBadRequestAndDisconnect()
            return False

    def checkPersistence(self, request: Request, version: bytes) -> bool:
        """Whether another request may follow.  Twisted's own takes "close" only between spaces."""
        values = request.requestHeaders.getRawHeaders(b"connection", [])
        options = {option.strip(b" \t").lower() for value in values for option in value.split(b",")}
        return version == b"HTTP/1.1" and b"close" not in options and not self.site.stopping

    def _head_late(self) -> None:
        if self.requests or self._buffer:
            self.refuse(REQUEST_TIMEOUT)
        else:
            self._close(linger=False)

    # -- head complete: stop reading and ask -----------------------------------------------------------

    def allHeadersReceived(self) -> None:
        request = self.requests[-1]
        headers = request.requestHeaders
        target = origin_form(self._command, self._path)
        if (
            target is None
            or not well_framed(headers, self._version)
            or not names_host(headers, self._version)
        ):
            self._respondToBadRequestAndDisconnect()
            return
        self._path = target
        expects = [value.lower() for value in headers.getRawHeaders(b"expect", [])]
        self._expects_continue = expects == [b"100-continue"] and self._version == b"HTTP/1.1"
        headers.removeHeader(b"expect")  # 100 has to wait for the verdict
        super().allHeadersReceived()
        self.paused = True  # bytes that have already come stay in LineReceiver's buffer
        self._networkProducer.pauseProducing()
        self._enter(Stage.SCREENING)
        head = Head(self._command, target, headers, self.length)

        async def judge() -> Verdict:
            return await self.site.judge(head)

        screening = self._screening = Deferred.fromCoroutine(judge())
        screening.addErrback(self._screening_failed)
        screening.addCallback(self._screened)

    def _screening_failed(self, failure: Failure) -> Verdict:
        if failure.check(CancelledError) is None:
            self._log.failure("a head could not be judged", failure)
        return Refusal(INTERNAL_ERROR)

    def _screened(self, verdict: Verdict) -> None:
        self._screening = None
        if self.stage is Stage.SCREENING:
            # In the next turn: never act from inside the parser, even if the verdict came at once.
            self._end.set(0, self._judged, verdict)

    def _judged(self, verdict: Verdict) -> None:
        limits = self.site.limits
        self.paused = False
        self.requests[-1].verdict = verdict
        self._taken = 0
        self._read_on()
        if self.length == 0:  # nothing follows, so even a refusal may keep the connection
            self._enter(Stage.BODY)
            self.allContentReceived()
        elif isinstance(verdict, Refusal):
            self.refuse(verdict.response)
        else:
            self._body_bytes = verdict.body_bytes
            self._expect(Stage.BODY, limits.body_seconds, self._body_late)
            self._body_stall.set(limits.body_stall_seconds, self._body_late)
            if self._expects_continue and not self._buffer:
                self._send100Continue()
        if not self._deaf:
            self.dataReceived(b"")  # what has come meanwhile

    def _body_late(self) -> None:
        self.refuse(REQUEST_TIMEOUT)

    def allContentReceived(self) -> None:
        if self.stage is Stage.BODY:
            # A body of declared length has none.
            if not well_formed_trailer(getattr(self._transferDecoder, "_trailerHeaders", ())):
                self._respondToBadRequestAndDisconnect()
                return
            self._enter(Stage.SERVING)
            super().allContentReceived()
            if self._input_ended:
                self._look_for_the_peer()

    # -- answering -------------------------------------------------------------------------------------

    def answer(self, message: bytes) -> None:
        """Send the answer of the request in hand; ``requestDone`` follows."""
        self._enter(Stage.ANSWERING, self.site.limits.answer_seconds, self.abort)
        self._writer.send(message)

    def requestDone(self, request: Request) -> None:
        self._answered = request
        self._go_on()

    def refuse(self, response: Response) -> None:
        """Answer the request whose head or body is still coming, and hear no more from this peer."""
        if self._deaf:
            return
        self._enter(Stage.REFUSED, self.site.limits.answer_seconds, self.abort)
        self.paused = False
        self.clearLineBuffer()
        self._taken = 0
        request = self.requests[-1] if self.requests else None
        method = getattr(self, "_command", b"") if request is not None else b""
        if request is None:
            self.site.record(method, "-", response.status, None, None)
        else:
            self.site.record(method, request.route, response.status, request.started, request.caller_or_none)
        self._read_on()
        headers = Headers()
        for name, value in response.headers:
            headers.addRawHeader(name, value)
        self._writer.send(
            render(response.status, headers, response.body, head_only=method == b"HEAD", close=True)
        )
        self._go_on()

    def _respondToBadRequestAndDisconnect(self) -> None:
        self.refuse(BAD_REQUEST)

    def _go_on(self) -> None:
        """Once the answer has left our hands: the next request, or the end.  Until then, neither."""
        if self._writer.busy:
            return
        request, self._answered = self._answered, None
        if self.stage is Stage.REFUSED:
            self._close(linger=True)
        elif self.stage is Stage.ANSWERING and request is not None:
            if self.persistent:
                self._expect(Stage.IDLE, self.site.limits.idle_seconds, self.loseConnection)
            super().requestDone(request)

    def pauseProducing(self) -> None:
        self._writer.paused()
        super().pauseProducing()
        # HTTPChannel reads on while a request is in hand: a peer that never reads could fill our memory.
        self._networkProducer.pauseProducing()

    def resumeProducing(self) -> None:
        super().resumeProducing()
        if self.stage is Stage.SCREENING:
            self._networkProducer.pauseProducing()
        elif self.stage is Stage.SERVING:
            self._networkProducer.resumeProducing()
        self._writer.resumed()
        self._go_on()

    def _read_on(self) -> None:
        if not self._writer.busy:  # otherwise when the peer has taken what it was sent before
            self._networkProducer.resumeProducing()

    # -- the end ---------------------------------------------------------------------------------------

    def loseConnection(self) -> None:
        # Bytes of a request that will not be read any more would make the kernel send a reset.
        self._close(linger=bool(self._dataBuffer or self._buffer))

    def _close(self, linger: bool) -> None:
        if self.stage is Stage.CLOSING:
            return
        linger = linger and not self._input_ended
        limits = self.site.limits
        seconds = limits.linger_seconds if linger else limits.answer_stall_seconds
        self._enter(
            Stage.CLOSING, min(seconds, _STOPPING_SECONDS) if self.site.stopping else seconds, self.abort
        )
        self._writer.close()
        self._dataBuffer = []
        self.clearLineBuffer()
        self._networkProducer.resumeProducing()
        self._networkProducer.unregisterProducer()
        # TLS has no half to close, but goes on reading after its own goodbye, until it has the peer's.
        half_close = None
        if linger and not ISSLTransport.providedBy(self.transport):
            half_close = getattr(self.transport, "loseWriteConnection", None)
        (half_close or self.transport.loseConnection)()
