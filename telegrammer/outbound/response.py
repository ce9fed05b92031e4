"""
Reads one HTTP/1 response at a time, bounded in head and body; no I/O (RFC 9112, contract 6).

The parser is llhttp (httptools), which keeps no buffers of its own: counting the bytes that are fed to it
bounds both head and body, and a head is refused by its size before its end has been seen.  Of a response
only the status and ``Retry-After`` matter here, so everything behind the final head serves one purpose: to
find out whether the connection may be used again.
"""

from __future__ import annotations

import re
from enum import Enum, auto

import httptools
from attrs import define, field

from telegrammer.core.delivery import Answered, Unanswered

_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_STATUS_LINE = re.compile(rb"HTTP/[0-9]\.[0-9] ([0-9]{3})(?: [^\r\n]*)?\r?\n")
_STATUS_LINE_BEGUN = re.compile(
    rb"(?:H|HT|HTT|HTTP|HTTP/|HTTP/[0-9]|HTTP/[0-9]\.|HTTP/[0-9]\.[0-9]|HTTP/[0-9]\.[0-9] [0-9]{0,3})?\Z"
    rb"|HTTP/[0-9]\.[0-9] [0-9]{3}[ \r]"
)
_RETRY_AFTER = re.compile(rb"^retry-after:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_FOLD = re.compile(rb"[ \t]*\r?\n[ \t]+")
_KEEP_ALIVE_TIMEOUT = re.compile(rb"(?:^|[ \t,])timeout=\"?([0-9]{1,5})\"?(?:[ \t,]|$)", re.IGNORECASE)

MALFORMED = "malformed response"
HEAD_TOO_LARGE = "response head too large"
UPGRADE = "unexpected protocol switch"


class Stage(Enum):
    """Where the reading of a response stands."""

    READING = auto()
    """More bytes are wanted."""
    COMPLETE = auto()
    """The message ended within its limits."""
    BROKEN = auto()
    """Nothing good can follow: a limit was passed or the bytes make no sense.  The connection must go."""


@define(eq=False)
class ResponseReader:
    """
    The responses of one connection, one after another: ``begin``, then ``feed`` until it says to stop.

    ``head_limit`` and ``body_limit`` are bytes; interim (1xx) heads count towards the head.  A body that
    passes its limit leaves the answer standing.
    """

    head_limit: int
    body_limit: int
    stage: Stage = field(default=Stage.READING, init=False)
    keep_alive: bool = field(default=False, init=False)
    """After COMPLETE: the peer lets the connection be used again, and sent nothing beyond the message."""
    keep_alive_seconds: int | None = field(default=None, init=False)
    """How long the peer says it keeps an idle connection (``Keep-Alive: timeout=``)."""
    _status: int = field(default=0, init=False)
    _retry_after: list[bytes] = field(factory=list, init=False)
    _codings: list[bytes] = field(factory=list, init=False)
    """The values of ``Transfer-Encoding``."""
    _problem: str = field(default="", init=False)
    _head_fed: int = field(default=0, init=False)
    _body_fed: int = field(default=0, init=False)
    _body: int = field(default=0, init=False)
    _head: bytearray = field(factory=bytearray, init=False)
    _scanned: int = field(default=0, init=False)
    _mending: bool = field(default=False, init=False)
    _parser: httptools.HttpResponseParser | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)

    def begin(self) -> None:
        """Expect the next response."""
        self.stage = Stage.READING
        self.keep_alive = False
        self.keep_alive_seconds = None
        self._status = self._head_fed = self._body_fed = self._body = 0
        self._retry_after = []
        self._codings = []

    def end(self) -> None:
        """No more responses: let the parser, which refers back to here, go."""
        self._parser = None
        self._break()

    @property
    def answer(self) -> Answered | None:
        """What the final head said; None until it has arrived whole."""
        return Answered(self._status, tuple(self._retry_after)) if self._status else None

    @property
    def result(self) -> Answered | Unanswered:
        """The answer, or why there will be none (after BROKEN)."""
        return self.answer or Unanswered(self._problem or MALFORMED)

    def feed(self, data: bytes) -> Stage:
        """Take bytes off the wire; how things stand then.  Bytes after READING has ended are ignored."""
        if not self._status and self.stage is Stage.READING:
            room = self.head_limit - self._head_fed
            piece, data = data[:room], data[room:]
            self._head_fed += len(piece)
            self._feed_head(piece)
            if data and not self._status and self.stage is Stage.READING:
                self._break(HEAD_TOO_LARGE)
        if data and self.stage is not Stage.BROKEN:
            # The raw bound leaves room for chunk sizes and trailers, and ends a flood of them.
            self._body_fed += len(data)
            if self._body_fed > 2 * self.body_limit:
                self._break()
            else:
                self._parse(data)
        return self.stage

    def _feed_head(self, piece: bytes) -> None:
        if not self._mending and self._parse(piece):
            if not self._status and self.stage is Stage.READING:
                self._head += piece
            elif self._head:
                self._head.clear()
            return
        if not self._status and self.stage is Stage.READING:
            self._mending = True
            self._head += piece
            self._mend()

    def _parse(self, data: bytes) -> bool:
        """Feed the parser; False when it refuses the bytes."""
        if self._parser is None:
            return False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self._status:
                # Bytes beyond a complete message, or a broken body: the answer stands.
                self._break()
            return False
        return True

    def _mend(self) -> None:
        """
        Find status and ``Retry-After`` in a head the parser refused.

        llhttp refuses heads for their framing (two Content-Lengths, also equal ones, Content-Length with
        Transfer-Encoding, a bare line feed, a folded line).  Framing concerns the body; that a receiver said
        200 is beyond doubt, and posting to it again would be a duplicate.  Such a connection always goes.
        """
        while True:
            start = len(self._head) - len(self._head.lstrip(b"\r\n"))
            del self._head[:start]
            line = _STATUS_LINE.match(self._head)
            if line is None:
                if b"\n" in self._head or _STATUS_LINE_BEGUN.match(self._head) is None:
                    self._break(MALFORMED)
                return
            blank = _BLANK_LINE.search(self._head, max(self._scanned - start - 3, 0))
            if blank is None:
                self._scanned = len(self._head)
                return
            self._scanned = 0
            status, head = int(line[1]), bytes(self._head[: blank.start()])
            del self._head[: blank.end()]
            if _interim(status):
                continue
            # A folded line belongs to the value before it (RFC 9112, 5.2), which then is no wait.
            values = _RETRY_AFTER.findall(_FOLD.sub(b" ", head))
            self._retry_after = [value.strip(b" \t") for value in values]
            self._finish_head(status)
            if self._status:
                self._break()
            return

    def _finish_head(self, status: int) -> None:
        if status < 200:
            self._break(UPGRADE if status == 101 else MALFORMED)
        else:
            self._status = status

    def _break(self, problem: str = "") -> None:
        self.stage = Stage.BROKEN
        self.keep_alive = False
        self._problem = problem
        self._head.clear()

    # -- called by the parser; trailers come as headers, hence the looks at the status -----------------

    def on_message_begin(self) -> None:
        if self.stage is Stage.COMPLETE:
            self._break()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status:
            return
        folded = name.lower()
        if folded == b"retry-after":
            self._retry_after.append(value.strip(b" \t"))
        elif folded == b"transfer-encoding":
            self._codings.append(value.strip(b" \t").lower())
        elif folded == b"keep-alive":
            timeout = _KEEP_ALIVE_TIMEOUT.search(value)
            if timeout is not None:
                self.keep_alive_seconds = int(timeout[1])

    def on_headers_complete(self) -> None:
        if self._status or self._parser is None:
            return
        status = int(self._parser.get_status_code())
        if _interim(status):
            self._retry_after = []
            self._codings = []
            self.keep_alive_seconds = None
        else:
            self._finish_head(status)

    def on_body(self, data: bytes) -> None:
        self._body += len(data)
        if self._body > self.body_limit:
            self._break()

    def on_message_complete(self) -> None:
        if self._status and self.stage is Stage.READING and self._parser is not None:
            self.stage = Stage.COMPLETE
            # Chunked once and nothing else (RFC 9112, 6.1): others may see another end of such a body.
            framed = self._codings in ([], [b"chunked"])
            self.keep_alive = framed and self._parser.should_keep_alive()


def _interim(status: int) -> bool:
    """1xx, but for 101, after which the connection would speak something else."""
    return 100 <= status < 200 and status != 101
