"""Receivers as no program should be: what they do with a request, and listeners that do not even read one."""

from __future__ import annotations

import contextlib
import gzip
import select
import socket
import struct
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.support.gateway import CHAT
from tests.support.http_server import HttpServer, Request
from tests.support.oracle import Oracle
from tests.support.receiver import Callback, Conduct

HOSTILE = CHAT + 1
"""The chat whose messages they get."""
HALF_A_HANDSHAKE = b"\x16\x03\x03\x40\x00\x02"
"""The head of a TLS record whose rest never comes."""
TAKES_LEAVE = b"\x15\x03\x03\x00\x02\x01\x00"
"""The alert by which a TLS peer ends a connection in order."""
HELLO_REQUEST = b"\x16\x03\x03\x00\x04\x00\x00\x00\x00"
"""A record that a TLS client may ignore, however many come."""
PIECE = 65536
"""How much a flood writes at once, at least."""


def pause(wire: socket.socket, seconds: float) -> bool:
    """Wait so long; True as soon as the peer has left.  What it sends meanwhile is dropped."""
    until = time.monotonic() + seconds
    try:
        while (left := until - time.monotonic()) > 0:
            readable, _, _ = select.select([wire], [], [], left)
            if readable and not wire.recv(65536):
                return True
    except (OSError, ValueError):
        return True
    return False


def reset(wire: socket.socket) -> None:
    """Have the wire's end be an RST instead of a FIN."""
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def head(status: bytes, *fields: bytes) -> bytes:
    """A response's, with these fields and no others."""
    return b"\r\n".join([b"HTTP/1.1 " + status, *fields]) + b"\r\n\r\n"


def subscribe_apart(oracle: Oracle, path: str) -> int:
    """
    Subscribe a path of the receiver, for the hostile chat, at an address of its own.

    Connections to one address are shared by whoever is behind it.
    """
    receiver = oracle.gateway.receiver
    address = f"127.0.1.{len(oracle.subscribed)}"
    receiver.listen_at(address)
    subscription_id = oracle.gateway.daemon.subscribe(HOSTILE, f"http://{address}:{receiver.port}{path}")
    oracle.answered(subscription_id, path, HOSTILE)
    return subscription_id


# -- conducts: the request has been read ---------------------------------------------------------------


def says(*pieces: bytes, then: str = "stays", every: float = 0.0) -> Conduct:
    """
    Says the pieces, ``every`` so many seconds one, and then ``stays`` for the next request, ``closes``,
    ``resets``, or ``hangs`` until the peer leaves.
    """
    assert then in ("stays", "closes", "resets", "hangs")

    def conduct(wire: socket.socket) -> bool:
        for number, piece in enumerate(pieces):
            if number and every and pause(wire, every):
                return False
            wire.sendall(piece)
        if then == "hangs":
            pause(wire, 600)
        elif then == "resets":
            reset(wire)
        return then == "stays"

    return conduct


def drips(start: bytes, drop: bytes, every: float = 1.0) -> Conduct:
    """Says ``start``, and then a drop every so many seconds for as long as it is listened to."""

    def conduct(wire: socket.socket) -> bool:
        wire.sendall(start)
        while not pause(wire, every):
            wire.sendall(drop)
        return False

    return conduct


class Floods:
    """Says ``start``, and then the piece as often and as fast as it can."""

    def __init__(self, start: bytes, piece: bytes) -> None:
        self._start = start
        self._much = piece * (PIECE // len(piece) + 1)
        self.said = 0
        """Bytes, the most on one connection; what fits between us and the peer besides what it has taken."""

    def __call__(self, wire: socket.socket) -> bool:
        wire.sendall(self._start)
        said = 0
        while True:
            wire.sendall(self._much)
            said += len(self._much)
            self.said = max(self.said, said)


def late(seconds: float, answer: bytes) -> Conduct:
    """Answers after so long, if it is still listened to."""

    def conduct(wire: socket.socket) -> bool:
        if pause(wire, seconds):
            return False
        wire.sendall(answer)
        return True

    return conduct


def bomb(size: int = 50_000_000) -> bytes:
    """A response whose body is some thousandth of ``size``, and that much when it is decoded."""
    body = gzip.compress(bytes(size), mtime=0)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\n"
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


class InTurn:
    """
    A policy: on each path its own answers one after another, the last of them over and over.

    Elsewhere 200.
    """

    def __init__(self, scripts: dict[str, Sequence[int | bytes | Conduct]]) -> None:
        self._scripts = scripts
        self._asked = dict.fromkeys(scripts, 0)

    def __call__(self, callback: Callback) -> int | bytes | Conduct:
        script = self._scripts.get(callback.path)
        if script is None:
            return 200
        number = self._asked[callback.path]
        self._asked[callback.path] += 1
        return script[min(number, len(script) - 1)]


# -- listeners: no request is read -----------------------------------------------------------------------


class Shut:
    """A port that refuses connections; silent, it drops every SYN, for its backlog is full."""

    def __init__(self) -> None:
        self._sockets = [socket.socket()]
        self._sockets[0].bind(("127.0.0.1", 0))
        self.port: int = self._sockets[0].getsockname()[1]

    def fall_silent(self) -> Self:
        self._sockets[0].listen(0)
        for _ in range(4):
            filler = socket.socket()
            self._sockets.append(filler)
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._sockets:
            each.close()


class Blurts(HttpServer):
    """Says ``words`` to whatever comes first, and then hangs; or ``leaves``, or floods with ``piece``."""

    def __init__(self, words: bytes = b"", piece: bytes = b"", leaves: bool = False) -> None:
        self.words = words
        self.piece = piece
        self.leaves = leaves
        self.met = 0
        super().__init__()

    def respond(self, request: Request, wire: socket.socket) -> bool:
        raise AssertionError("it reads no request")

    def _serve(self, wire: socket.socket) -> None:
        with self.changed:
            self.met += 1
            self.changed.notify_all()
        with wire, contextlib.suppress(OSError):
            if not self.leaves:
                wire.recv(1)
            wire.sendall(self.words)
            if self.piece:
                Floods(b"", self.piece)(wire)
            while not self.leaves and wire.recv(65536):
                pass
        with self.changed:
            self._wires.discard(wire)
