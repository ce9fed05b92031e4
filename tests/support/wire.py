"""
Callers of the daemon that write their bytes themselves, and a reading of what comes back.

The reading is independent of the product's and of any HTTP library's: it takes the answers of RFC 9112 that
contract 2 allows, and fails on everything else.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen

from telegrammer.store.database import READERS
from tests.support.daemon import PATIENCE, Daemon
from tests.support.gateway import eventually
from tests.support.oracle import Footprint
from tests.support.pusher import SECRET

_STATUS_LINE = re.compile(r"HTTP/1\.1 ([1-5][0-9]{2}) [\x21-\x7e\x20]*")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([\x21-\x7e]?[\x20-\x7e]*)")

CODES: Mapping[int, Collection[str]] = {
    400: {"INVALID_REQUEST", "BAD_REQUEST"},
    401: {"UNAUTHORIZED"},
    404: {"NOT_FOUND", "USERNAME_NOT_FOUND"},
    405: {"METHOD_NOT_ALLOWED"},
    408: {"REQUEST_TIMEOUT"},
    409: {"SUBSCRIPTION_LIMIT"},
    413: {"BODY_TOO_LARGE"},
    415: {"UNSUPPORTED_MEDIA_TYPE"},
    422: {"TELEGRAM_REJECTED"},
    429: {"TELEGRAM_RATE_LIMITED"},
    500: {"INTERNAL_ERROR"},
    502: {"UPSTREAM_ERROR", "UPSTREAM_UNAVAILABLE"},
    503: {"OVERLOADED", "AUTH_UNAVAILABLE", "STORAGE_UNAVAILABLE"},
    504: {"UPSTREAM_TIMEOUT"},
}
"""Which codes an error of each status may have (contract 2)."""

_MEMBERS = {"code", "message", "field", "description", "migrate_to_chat_id"}


@frozen
class WireAnswer:
    """One answer, as it came over the wire."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The code of an error."""
        code: str | None = self.json["error"]["code"] if self.status >= 400 else None
        return code

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"

    def check(self) -> None:
        """The shape that contract 2 asks of every answer."""
        assert self.headers["server"] == "telegrammer", self
        assert self.headers["cache-control"] == "no-store", self
        assert self.headers.keys() <= _HEADERS | _HEADERS_OF.get(self.status, set()), self
        assert _HEADERS_OF.get(self.status, set()) <= self.headers.keys() | _OPTIONAL, self
        if self.status == 204:
            assert self.body == b"", self
            assert "content-length" not in self.headers, self
            return
        assert self.headers["content-type"] == "application/json", self
        document = self.json
        assert isinstance(document, dict), self
        if self.status == 200:
            assert document["ok"] is True, self
        elif "components" in document:  # of /health
            assert (self.status, document["ok"]) == (503, False), self
        else:
            self._check_error(document)

    def _check_error(self, document: dict[str, Any]) -> None:
        assert document.keys() == {"ok", "error"}, self
        assert document["ok"] is False, self
        error = document["error"]
        assert error["code"] in CODES[self.status], self
        assert isinstance(error["message"], str), self
        assert error["message"], self
        assert isinstance(error.get("field", ""), str), self
        assert error.keys() <= _MEMBERS, self
        if error["code"] == "OVERLOADED":
            assert self.headers["retry-after"] == "1", self
        if self.status == 401:
            assert self.headers["www-authenticate"] in ("Bearer", SECRET), self
        if error["code"] in ("BAD_REQUEST", "REQUEST_TIMEOUT"):
            assert self.closes, self


_HEADERS = {"server", "date", "cache-control", "content-type", "content-length", "connection"}
_HEADERS_OF = {
    401: {"www-authenticate"},
    405: {"allow"},
    415: {"accept"},
    429: {"retry-after"},
    503: {"retry-after"},
}
_OPTIONAL = {"retry-after"}


def read_answers(stream: bytes, methods: Sequence[bytes] = ()) -> list[WireAnswer]:
    """
    Every answer of a connection that has ended, interim ones left out; each is checked for its shape.

    :param methods: of the requests in order, for an answer to HEAD has no body.
    """
    answers: list[WireAnswer] = []
    while stream:
        head, blank, stream = stream.partition(b"\r\n\r\n")
        assert blank, f"a head that does not end: {head!r}"
        first, *lines = head.decode("ascii").split("\r\n")
        matched = _STATUS_LINE.fullmatch(first)
        assert matched, first
        status = int(matched[1])
        headers: dict[str, str] = {}
        for line in lines:
            field = _FIELD.fullmatch(line)
            assert field, line
            assert field[1].lower() not in headers, f"repeated: {line}"
            headers[field[1].lower()] = field[2]
        if status == 100:
            assert headers == {}, headers
            continue
        number = len(answers)
        head_only = number < len(methods) and methods[number] == b"HEAD"
        size = 0 if status == 204 or head_only else int(headers["content-length"])
        assert len(stream) >= size, f"cut short: {first}"
        body, stream = stream[:size], stream[size:]
        answer = WireAnswer(status, headers, body)
        if not head_only:
            answer.check()
        answers.append(answer)
    return answers


# -- sockets -----------------------------------------------------------------------------------------------


def connect(daemon: Daemon, seconds: float = PATIENCE) -> socket.socket:
    """A connection to the daemon."""
    address = urlsplit(daemon.url)
    return socket.create_connection((address.hostname, address.port), timeout=seconds)


def read_to_end(peer: socket.socket) -> bytes:
    """All that comes until the daemon closes, orderly or not."""
    received = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := peer.recv(65536):
            received += piece
    return bytes(received)


def reset(peer: socket.socket) -> None:
    """Go so that the daemon notices at once: with a reset."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def write(peer: socket.socket, data: bytes) -> None:
    """All of it, or as much as the daemon takes before it refuses; then the end of our input."""
    with contextlib.suppress(ConnectionError):
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)


def ask(daemon: Daemon, data: bytes, methods: Sequence[bytes] = ()) -> list[WireAnswer]:
    """What comes back for these bytes and the end of our input."""
    with contextlib.closing(connect(daemon)) as peer:
        writing = threading.Thread(target=write, args=(peer, data))
        writing.start()
        try:
            return read_answers(read_to_end(peer), methods)
        finally:
            writing.join(PATIENCE)


@contextmanager
def many(daemon: Daemon, count: int) -> Iterator[list[socket.socket]]:
    """So many connections at once."""
    peers: list[socket.socket] = []
    try:
        for _ in range(count):
            peers.append(connect(daemon))
        yield peers
    finally:
        for peer in peers:
            peer.close()


def first_answered(peers: Sequence[socket.socket], count: int) -> list[socket.socket]:
    """Wait until so many of them have something to read; those."""
    ready: list[socket.socket] = []
    until = time.monotonic() + PATIENCE
    while len(ready) < count:
        assert time.monotonic() < until, f"only {len(ready)} were answered"
        ready, _, _ = select.select(peers, [], [], 0.02)
    return ready


def warm_up(daemon: Daemon) -> None:
    """Have so many requests at once that every thread which comes when it is wanted is there."""
    pid = daemon.process.pid
    threads = 2 + sum(READERS.values())  # the reactor's, and the writer's

    def all_there() -> bool:
        with many(daemon, 24) as peers:
            for number, peer in enumerate(peers):
                target = (b"/subscriptions", b"/health", b"/send")[number % 3]
                method, fields = (b"POST", (b"Content-Length: 0",)) if target == b"/send" else (b"GET", ())
                peer.sendall(head(method, target, daemon.key, b"Connection: close", *fields))
            for peer in peers:
                read_answers(read_to_end(peer))
        return Footprint.of(pid).threads >= threads

    eventually(all_there)


# -- requests ----------------------------------------------------------------------------------------------


def head(method: bytes, target: bytes, key: str, *fields: bytes) -> bytes:
    """A request's head; ``fields`` are whole lines without their ends."""
    lines = [b"%b %b HTTP/1.1" % (method, target), b"Host: gateway"]
    if key:
        lines.append(b"Authorization: Bearer " + key.encode("ascii"))
    return b"\r\n".join([*lines, *fields, b"", b""])


def post(target: bytes, key: str, body: bytes, *fields: bytes) -> bytes:
    """A whole POST of JSON with its length."""
    length = b"Content-Length: %d" % len(body)
    return head(b"POST", target, key, b"Content-Type: application/json", length, *fields) + body


def chunked(target: bytes, key: str, coded: bytes, *fields: bytes) -> bytes:
    """A POST of JSON whose body is already coded."""
    kind = b"Content-Type: application/json"
    return head(b"POST", target, key, kind, b"Transfer-Encoding: chunked", *fields) + coded


def send_body(text: str, chat_id: int = 5) -> bytes:
    return json.dumps({"chat_id": chat_id, "text": text}).encode()
