"""Answers of a Bot API that is unwell, for `tests.support.bot_api.BotApi.script`."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from tests.support.bot_api import JSON, Answer, Call, failure
from tests.support.http_server import response

HTML: Final = "Content-Type: text/html"
LONGEST = 45.0
"""Seconds that a stalled answer is held; every deadline of the daemon is shorter."""


def too_many_requests(seconds: int) -> bytes:
    """As the server says it: in the body and in the header."""
    words = f"Too Many Requests: retry after {seconds}"
    return failure(429, words, f"Retry-After: {seconds}", retry_after=seconds)


def upgraded(new_chat_id: int) -> bytes:
    """The group is a supergroup now, under another id."""
    words = "Bad Request: group chat was upgraded to a supergroup chat"
    return failure(400, words, migrate_to_chat_id=new_chat_id)


def blocked() -> bytes:
    return failure(403, "Forbidden: bot was blocked by the user")


def restarting() -> bytes:
    return failure(500, "Internal Server Error: restart")


def page(status: int, *fields: str) -> bytes:
    """What the web server in front of the hosted one says."""
    body = b"<html>\r\n<head><title>%d</title></head>\r\n<body>nginx</body>\r\n</html>\r\n" % status
    return response(status, body, HTML, *fields)


def envelope(body: bytes, status: int = 200, *fields: str) -> bytes:
    """The whole of an HTTP answer with this body."""
    return response(status, body, JSON, *fields)


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """Answered in pieces, as any proxy may."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        + body
        + end
    )


def broken_off(head: bytes) -> Answer:
    """These bytes, then the end of the connection."""

    def respond(call: Call, wire: socket.socket) -> bool:
        wire.sendall(head)
        return False

    return respond


def stalled(head: bytes = b"") -> Answer:
    """These bytes, then nothing more until the caller leaves."""

    def respond(call: Call, wire: socket.socket) -> bool:
        wire.sendall(head)
        select.select([wire], [], [], LONGEST)
        return False

    return respond


def dripping(head: bytes, drop: bytes = b" ", every: float = 0.5) -> Answer:
    """These bytes, then one drop after the other until the caller leaves."""

    def respond(call: Call, wire: socket.socket) -> bool:
        wire.sendall(head)
        until = time.monotonic() + LONGEST
        while time.monotonic() < until and not select.select([wire], [], [], every)[0]:
            wire.sendall(drop)
        return False

    return respond


def endless(head: bytes, piece: bytes) -> Answer:
    """These bytes, then pieces as fast as they are taken until the caller leaves."""

    def respond(call: Call, wire: socket.socket) -> bool:
        wire.sendall(head)
        until = time.monotonic() + LONGEST
        while time.monotonic() < until:
            wire.sendall(piece)
        return False

    return respond


def reset(call: Call, wire: socket.socket) -> bool:
    """The request is read, and answered with a RST."""
    reset_at_once(wire)
    return False


def reset_at_once(wire: socket.socket) -> bool:
    """The end of the connection is to be a RST, not a FIN; for ``greet`` too."""
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def times(count: int, greet: Callable[[socket.socket], bool]) -> Callable[[socket.socket], bool]:
    """A ``greet`` for so many connections; those after are welcome."""
    left = [count]

    def respond(wire: socket.socket) -> bool:
        left[0] -= 1
        return left[0] >= 0 and greet(wire) or left[0] < 0

    return respond
