"""
A request whose head was judged: it counts its body, takes its turn, and gives its answer in one piece.

Handlers find ``caller`` (a key's id) and ``content``, and may ``write`` and ``finish`` as with any
``twisted.web`` request.  What they write is kept until they finish (an answer has at most 1 MiB), so that
every answer has a length, HEAD says what GET would, and a crash half-way is a clean 500.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import NO_BODY_CODES, RESPONSES, datetimeToString
from twisted.web.http_headers import Headers
from twisted.web.server import Request

from telegrammer.web.limits import Overloaded
from telegrammer.web.responses import INTERNAL_ERROR, OVERLOADED, Response, body_too_large, put_head
from telegrammer.web.screen import NO_ROUTE, Admission, Refusal, Verdict

if TYPE_CHECKING:
    from telegrammer.web.admission import AdmissionChannel

log = Logger()

T = TypeVar("T")


def render(status: int, headers: Headers, body: bytes, *, head_only: bool, close: bool) -> bytes:
    """
    An answer as it goes on the wire, with what every one of ours has: no store, no banner but our name.

    ``head_only``: the answer to a HEAD, which has the length of the body it leaves out (RFC 9110, 9.3.2).
    """
    complete = headers.copy()
    complete.setRawHeaders(b"Server", [b"telegrammer"])
    complete.setRawHeaders(b"Date", [datetimeToString()])
    complete.setRawHeaders(b"Cache-Control", [b"no-store"])
    if status in NO_BODY_CODES:
        body = b""
    else:
        complete.setRawHeaders(b"Content-Length", [b"%d" % len(body)])
        if not complete.hasHeader(b"Content-Type"):
            complete.setRawHeaders(b"Content-Type", [b"application/json"])
    if close:
        complete.setRawHeaders(b"Connection", [b"close"])
    lines = [b"HTTP/1.1 %d %b" % (status, RESPONSES.get(status, b""))]
    lines += [b"%b: %b" % (name, value) for name, values in complete.getAllRawHeaders() for value in values]
    return b"\r\n".join([*lines, b"", b"" if head_only else body])


class AdmittedRequest(Request):
    """
    One request of an ``AdmissionChannel``; the channel sets ``verdict`` before any byte of the body comes.

    :ivar started: when its first line came, by the site's clock.
    :ivar waits: whether it waits for a worker.
    """

    channel: AdmissionChannel
    content: BytesIO
    verdict: Verdict | None = None
    started = 0.0
    waits = False
    _size = 0
    _holding = 0

    def __init__(self, channel: AdmissionChannel, *args: Any, **kw: Any) -> None:
        super().__init__(channel, *args, **kw)
        self._parts: list[bytes] = []
        self._site = channel.site
        self.started = self._site.clock.seconds()

    @property
    def caller(self) -> int:
        """
        The id of the key that calls.

        :raises LookupError: the request was refused or not judged, and no handler gets such a one; or it
            came in without a key, as Telegram does.
        """
        if not isinstance(self.verdict, Admission) or self.verdict.caller is None:
            raise LookupError("this request was not admitted by a key")
        return self.verdict.caller

    @property
    def caller_or_none(self) -> int | None:
        """The id of the key that calls, as far as it is known."""
        return None if self.verdict is None else self.verdict.caller

    @property
    def route(self) -> str:
        """The rule that matched, for the log: never the path."""
        return NO_ROUTE if self.verdict is None else self.verdict.route

    def hold_turn(self, work: Deferred[Any]) -> None:
        """
        Keep the worker taken until ``work`` has ended, also when the caller leaves before.

        For work that a caller's leaving does not cancel (contract 2.1): it still counts as running.
        """
        if self._holding:
            self._holding += 1
            work.addBoth(self._work_ended)

    # -- from the channel ------------------------------------------------------------------------------

    def getRequestHostname(self) -> bytes:
        """Not the Host header: nothing here depends on it, and Klein cannot digest every one."""
        return b"localhost"

    def gotLength(self, length: int | None) -> None:
        self.content = BytesIO()  # bounded by the verdict, so never a temporary file

    def handleContentChunk(self, data: bytes) -> None:
        verdict = self.verdict
        if not isinstance(verdict, Admission) or not self.channel.takes_body:
            return
        self._size += len(data)
        if self._size > verdict.body_bytes:
            self.channel.refuse(body_too_large(verdict.body_bytes))
        else:
            self.content.write(data)

    def process(self) -> None:
        """The body is complete: answer a refusal, or serve, in turn."""
        verdict = self.verdict
        if isinstance(verdict, Refusal):
            self.answer(verdict.response)
        elif isinstance(verdict, Admission) and not verdict.takes_turn:
            super().process()
        else:
            turn = self._site.workers.turn()
            self.waits = not turn.called
            self.notifyFinish().addErrback(lambda left: turn.cancel())
            turn.addCallbacks(self._serve_in_turn, self._turned_away)

    def _serve_in_turn(self, result: None) -> None:
        self.waits = False
        self._holding = 1
        super().process()
        # Asked for after process(), so that Klein's own errback (it cancels the handler) runs first:
        # otherwise the next handler starts while this one is still being unwound.
        if self.finished:  # notifyFinish() would never fire
            self._let_go()
        else:
            self.notifyFinish().addBoth(lambda ended: self._let_go())

    def _turned_away(self, failure: Failure) -> None:
        self.waits = False
        # Cancelled: the caller left while waiting, there is nobody to answer.
        if failure.check(CancelledError) is None:
            failure.trap(Overloaded)
            self.answer(OVERLOADED)

    def _work_ended(self, result: T) -> T:
        self._let_go()
        return result

    def _let_go(self) -> None:
        self._holding -= 1
        if not self._holding:
            self._site.workers.release()

    # -- from the handler ------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Keep a piece of the answer."""
        self._parts.append(data)

    def finish(self) -> None:
        """Send the answer.  Nothing happens when it was sent before, or nobody is there any more."""
        if self.finished or self.channel is None:
            return
        body = b"".join(self._parts)
        self.startedWriting = 1  # nothing is left for twisted.web to write
        self.sentLength = len(body)
        close = not self.channel.persistent
        self._site.record(self.method, self.route, self.code, self.started, self.caller_or_none)
        self.channel.answer(
            render(self.code, self.responseHeaders, body, head_only=self.method == b"HEAD", close=close)
        )
        super().finish()

    def answer(self, response: Response) -> None:
        """Give this answer, whatever was written before."""
        self.responseHeaders = Headers()
        self._parts = [put_head(self, response)]
        self.finish()

    def processingFailed(self, reason: Failure) -> Failure:
        """A handler crashed: 500, and the one traceback of its kind."""
        log.failure("a handler of {route} crashed", failure=reason, route=self.route)
        self.answer(INTERNAL_ERROR)
        return reason
