"""Every kind of hostile receiver that answers at all, and what must come of a callback to it."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from tests.support.hostile import Floods, bomb, drips, head, late, says
from tests.support.http_server import response
from tests.support.lab import FULL, repetitions
from tests.support.receiver import Conduct

OK = response(200, b"ok")
TIMEOUT = "timeout after 10 s"
TOO_LARGE = "response head too large"
MALFORMED = "malformed response"


@frozen
class Kind:
    """A hostile answer, and what must come of it."""

    name: str
    conduct: Conduct
    again: str | None = None
    """The reason, when it is to be tried again."""
    dead: str | None = None
    """The reason, when it is final."""


def framed(name: str, *fields: bytes, body: bytes = b"ok") -> Kind:
    """A 200 whose framing is in doubt, which its status is not."""
    return Kind(name, says(head(b"200 OK", *fields) + body, then="hangs"))


CHUNKED = b"Transfer-Encoding: chunked"
ENDLESS = b"Content-Length: 999999999999"

SLOW = [
    Kind("never answers", says(then="hangs"), TIMEOUT),
    Kind("stops within the head", says(b"HTTP/1.1 200 OK\r\nContent-", then="hangs"), TIMEOUT),
    Kind("drips a status line", drips(b"HTTP/1.1 200 ", b"O"), TIMEOUT),
    Kind("drips a field", drips(b"HTTP/1.1 200 OK\r\nX: ", b"y"), TIMEOUT),
    Kind("drips fields", drips(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), TIMEOUT),
    Kind("drips 100s", drips(b"", head(b"100 Continue")), TIMEOUT),
    Kind("drips blank lines", drips(b"", b"\r\n"), TIMEOUT),
    Kind("drips the body of a 200", drips(head(b"200 OK", ENDLESS), b"x")),
    Kind("drips a chunk of a 200", drips(head(b"200 OK", CHUNKED) + b"ff\r\n", b"x")),
    Kind("drips the body of a 503", drips(head(b"503 x", ENDLESS), b"x"), "HTTP 503"),
    Kind("stops within the body of a 404", says(head(b"404 x", ENDLESS), then="hangs"), dead="HTTP 404"),
    Kind("answers late, but in time", late(9.9 if FULL else 9.5, OK)),
    Kind("answers too late", late(11, OK), TIMEOUT),
]

FLOODS = [
    Kind("flood in the status line", Floods(b"HTTP/1.1 200 ", b"O" * 1024), TOO_LARGE),
    Kind("flood of digits for a status", Floods(b"HTTP/1.1 ", b"2" * 1024), MALFORMED),
    Kind("flood in a field", Floods(b"HTTP/1.1 200 OK\r\nX: ", b"y" * 1024), TOO_LARGE),
    Kind("flood of fields", Floods(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), TOO_LARGE),
    Kind("flood of 100s", Floods(b"", head(b"100 Continue")), TOO_LARGE),
    Kind("flood of 103s", Floods(b"", head(b"103 x", b"Link: </a>; rel=preload")), TOO_LARGE),
    Kind("flood of blank lines", Floods(b"", b"\r\n"), TOO_LARGE),
    Kind("flood of zeros", Floods(b"", b"\0"), MALFORMED),
    Kind("flood of a 200 without a length", Floods(head(b"200 OK"), b"x" * 1024)),
    Kind("flood of a 200 with a length", Floods(head(b"200 OK", ENDLESS), b"x" * 1024)),
    Kind("flood of chunks", Floods(head(b"200 OK", CHUNKED), b"1\r\nx\r\n")),
    Kind("flood in a chunk's extension", Floods(head(b"503 x", CHUNKED) + b"1;", b"e"), "HTTP 503"),
    Kind("flood of trailers", Floods(head(b"200 OK", CHUNKED) + b"0\r\n", b"X: y\r\n")),
    Kind("flood of a 404", Floods(head(b"404 x"), b"x" * 1024), dead="HTTP 404"),
    Kind("flood of answers", Floods(b"", OK)),
    Kind("gzip bomb", says(bomb())),
    Kind("gzip bomb at 503", says(bomb().replace(b"200 OK", b"503 OK")), "HTTP 503"),
]

FRAMING = [
    framed("two equal lengths", b"Content-Length: 2", b"Content-Length: 2"),
    framed("two lengths", b"Content-Length: 2", b"Content-Length: 3"),
    framed("a list of lengths", b"Content-Length: 2, 2"),
    framed("length and chunks", b"Content-Length: 2", CHUNKED, body=b"2\r\nok\r\n0\r\n\r\n"),
    framed("chunks and length", CHUNKED, b"Content-Length: 2", body=b"2\r\nok\r\n0\r\n\r\n"),
    framed("a negative length", b"Content-Length: -1"),
    framed("a length with a sign", b"Content-Length: +2"),
    framed("a length of 5000 digits", b"Content-Length: " + b"9" * 5000),
    framed("a chunk of 2^64", CHUNKED, body=b"10000000000000000\r\nok\r\n"),
    framed("a negative chunk", CHUNKED, body=b"-2\r\nok\r\n"),
    framed("an unknown coding", b"Transfer-Encoding: x, chunked", body=b"2\r\nok\r\n0\r\n\r\n"),
    framed("a space before the colon", b"Content-Length : 2"),
    framed("a zero byte", b"X: \0", b"Content-Length: 2"),
    framed("a folded line", b"X: y", b" z", b"Content-Length: 2"),
    Kind("bare line feeds", says(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", then="hangs")),
]

MOST_OF_A_HEAD = 65_000
MOST = (
    ("a field as long as may be", b"HTTP/1.1 200 OK\r\nX: " + b"y" * MOST_OF_A_HEAD),
    ("as many fields as may be", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (MOST_OF_A_HEAD // 6)),
    ("as much asked for as may be", b"HTTP/1.1 429 x\r\n" + b"Retry-After: 1\r\n" * (MOST_OF_A_HEAD // 16)),
    (
        "two lengths, and a field as long as may be",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\nX: " + b"y" * MOST_OF_A_HEAD,
    ),
    ("as much body as may be", head(b"503 x", ENDLESS) + b"x" * 2 * MOST_OF_A_HEAD),
)
"""By name: the most that is listened to, after all of which a callback would fail."""
FULL_UP = [
    Kind(name, says(words, then="hangs"), "HTTP 503" if "body" in name else TIMEOUT) for name, words in MOST
]

KINDS: Sequence[Kind] = (*SLOW, *FULL_UP, *FLOODS, *FRAMING)

DRIPS = [kind for kind in SLOW if kind.name.startswith("drips")]
OVER_TLS: Sequence[Kind] = (SLOW[0], *DRIPS, *FULL_UP, *FLOODS)[:: repetitions(3, 1)]
"""Of these, what another layer between might let through; in the quick form one in three."""
