"""
What an SMTP client reads and writes (RFC 5321), without a socket: replies, data, answers of authentication.

A peer may be broken or hostile: lines, replies and all that it says in one conversation are bounded.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

from attrs import define, field, frozen

from telegrammer.core.foreign import shown
from telegrammer.core.messages import Credentials

Transport = Literal["smtp", "starttls", "smtps"]
"""In clear; in clear until STARTTLS, which is required; in TLS from the first byte."""

PORTS: Final[Mapping[Transport, int]] = {"smtp": 25, "starttls": 587, "smtps": 465}
"""The usual port of each transport (RFC 5321; RFC 8314, section 3.3)."""

LINE_LIMIT: Final = 2048
"""Bytes; RFC 5321, 4.5.3.1.5, has 512."""
LINES_LIMIT: Final = 128
"""Lines of one reply."""
TALK_LIMIT: Final = 128 * 1024
"""Bytes that a peer may say in one conversation."""
SHOWN: Final = 200
"""Characters of a peer's words that are shown."""

_LINE = re.compile(rb"([2-5][0-9]{2})(?:([ -])(.*))?", re.DOTALL)


class BrokenReply(Exception):
    """What the peer says is no reply; ``why`` is short and ours."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@frozen
class Reply:
    """A whole reply (RFC 5321, 4.2)."""

    code: int
    lines: tuple[bytes, ...] = field(repr=False)
    """Without code and line end, as the peer sent them."""

    @property
    def positive(self) -> bool:
        return self.code < 300

    @property
    def refused(self) -> bool:
        """For now (4xx) or for good (5xx)."""
        return self.code >= 400

    @property
    def permanent(self) -> bool:
        return self.code >= 500

    def said(self, secrets: Iterable[str] = ()) -> str:
        """
        The code, and the peer's words made fit to be shown.

        :param secrets: the words are left out when they hold one of these.
        """
        text = b" ".join(line.strip() for line in self.lines).decode("utf-8", "backslashreplace").strip()
        if not text or any(secret in text for secret in secrets):
            return str(self.code)
        return f"{self.code} {shown(text, SHOWN)}"


@define
class ReplyReader:
    """Cuts replies out of what a peer sends."""

    _buffer: bytes = field(default=b"", init=False, repr=False)
    _code: int | None = field(default=None, init=False)
    """Of the reply whose last line has not come yet."""
    _lines: list[bytes] = field(factory=list, init=False, repr=False)
    _allowed: int = field(default=TALK_LIMIT, init=False)

    @property
    def amid(self) -> bool:
        """Something has come that is no whole reply yet."""
        return bool(self._buffer) or self._code is not None

    def feed(self, data: bytes) -> list[Reply]:
        """
        The replies that are whole now.

        :raises BrokenReply: it is not SMTP, or too much; the replies before it are lost as well.
        """
        self._allowed -= len(data)
        if self._allowed < 0:
            raise BrokenReply("the server says too much")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if any(len(line) > LINE_LIMIT for line in (*lines, self._buffer)):
            raise BrokenReply("the server sends a line that is too long")
        return [reply for line in lines if (reply := self._line(line.removesuffix(b"\r"))) is not None]

    def _line(self, line: bytes) -> Reply | None:
        found = _LINE.fullmatch(line)
        if found is None or self._code not in (None, int(found[1])):
            raise BrokenReply("the server's answer is no SMTP reply")
        self._code = int(found[1])
        self._lines.append(found[3] or b"")
        if len(self._lines) > LINES_LIMIT:
            raise BrokenReply("the server sends a reply of too many lines")
        if found[2] == b"-":
            return None
        reply = Reply(self._code, tuple(self._lines))
        self._code = None
        self._lines.clear()
        return reply


def extensions(reply: Reply) -> Mapping[str, tuple[str, ...]]:
    """The keywords of an answer to EHLO, with their parameters, in upper case (RFC 5321, 4.1.1.1)."""
    offered: dict[str, tuple[str, ...]] = {}
    for line in reply.lines[1:]:
        # "AUTH=LOGIN" is how servers of the last century write it, some beside the right one.
        keyword, *parameters = line.decode("ascii", "replace").upper().replace("=", " ").split() or [""]
        offered[keyword] = (*offered.get(keyword, ()), *parameters)
    return offered


_LINE_END = re.compile(rb"\r\n|\r|\n")


def with_crlf(text: bytes) -> bytes:
    """Every line end a CRLF, the last one included: a bare CR or LF is one to some servers only."""
    lines = _LINE_END.sub(b"\r\n", text)
    return lines if lines.endswith(b"\r\n") else lines + b"\r\n"


def as_data(message: bytes) -> bytes:
    """What follows a 354: the message, its dots doubled (RFC 5321, 4.5.2), and the end of it."""
    return re.sub(rb"^\.", b"..", with_crlf(message), flags=re.MULTILINE) + b".\r\n"


Answer = Callable[[bytes], bytes]
"""From the server's challenge to what is answered, neither in base64."""


@frozen
class Mechanism:
    """One way to authenticate (RFC 4954)."""

    name: str
    initial: bytes | None = field(repr=False)
    """What goes with the command itself."""
    answers: Sequence[Answer] = field(repr=False)
    """To the server's challenges, in order."""


def mechanism(offered: Iterable[str], credentials: Credentials) -> Mechanism | None:
    """
    The first of PLAIN, LOGIN and CRAM-MD5 that is offered; None when none is.

    The simplest comes first: they are used within verified TLS only, where a challenge adds nothing, and
    servers that keep hashed passwords often offer CRAM-MD5 without being able to check it.
    """
    user, password = credentials.username.encode(), credentials.password.encode()
    plain = b"\0" + user + b"\0" + password
    known = {
        "PLAIN": Mechanism("PLAIN", plain, [lambda _: plain]),
        "LOGIN": Mechanism("LOGIN", None, [lambda _: user, lambda _: password]),
        "CRAM-MD5": Mechanism(
            "CRAM-MD5",
            None,
            [lambda challenge: user + b" " + hmac.new(password, challenge, "md5").hexdigest().encode()],
        ),
    }
    names = set(offered)
    return next((each for name, each in known.items() if name in names), None)


def challenge_of(reply: Reply) -> bytes:
    """
    What a 334 asks, out of base64.

    :raises BrokenReply: it is none.
    """
    try:
        return b64decode(reply.lines[0].strip(), validate=True)
    except ValueError:
        raise BrokenReply("the server's challenge is no base64") from None


def secrets_of(credentials: Credentials) -> tuple[str, ...]:
    """What a server's words must not be shown with: all the forms in which it was told the password."""
    user, password = credentials.username, credentials.password
    told = (password, f"\0{user}\0{password}")
    return tuple(form for text in told if text for form in (text, b64encode(text.encode()).decode()))
