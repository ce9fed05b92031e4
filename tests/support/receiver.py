"""A callback receiver for tests that block: it records, and answers when and what the test says."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from attrs import define, field

from tests.support.daemon import PATIENCE
from tests.support.http_server import HttpServer, Request, response
from tests.support.overheard import QUERY


@define(eq=False)
class Callback:
    """One POST that arrived, body read; unanswered until ``answer`` when the receiver holds."""

    path: str
    """As in the URL that was registered, without the query that marks it (`overheard.QUERY`)."""
    delivery_id: str
    body: bytes
    request: Request
    connection: int = 0
    """The port it came from: equal for those that shared a connection."""
    at: float = field(factory=time.monotonic)
    _answer: bytes | None = field(default=None, init=False)
    _answered: threading.Event = field(factory=threading.Event, init=False)
    _flushed: threading.Event = field(factory=threading.Event, init=False)

    def answer(self, status: int = 200, *fields: str) -> None:
        """Answer it, and return when the kernel has every byte of the answer."""
        self._answer = response(status, b"", *fields)
        self._answered.set()
        assert self._flushed.wait(PATIENCE), "the answer could not be written"

    @property
    def as_job(self) -> tuple[str, bytes]:
        """What must be equal on every attempt."""
        return self.delivery_id, self.body


Conduct = Callable[[socket.socket], bool]
"""Answers on the wire in its own way, and says whether the connection goes on."""
Policy = Callable[[Callback], "int | bytes | Conduct | None"]
"""Says what to answer at once: a status, the bytes of a response, a conduct; None holds until ``answer``."""


class CallbackReceiver(HttpServer):
    """Takes POSTs on any path."""

    def __init__(
        self,
        policy: Policy = lambda callback: 200,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.policy = policy
        self.arrived: list[Callback] = []
        self._on: defaultdict[str, list[Callback]] = defaultdict(list)
        super().__init__(host, tls, port)

    def wait_for(self, count: int, seconds: float = PATIENCE, path: str | None = None) -> list[Callback]:
        """Wait until so many callbacks have arrived (on ``path``); all of them."""
        self.wait_until(lambda: len(self.on(path)) >= count, seconds)
        return self.on(path)

    def share(self, other: CallbackReceiver) -> None:
        """From now on both have one list of what arrived, whoever received it.  Before anything has."""
        assert not self.arrived
        self.arrived, self._on, self.changed = other.arrived, other._on, other.changed

    def on(self, path: str | None) -> list[Callback]:
        with self.changed:
            return list(self.arrived if path is None else self._on[path])

    def respond(self, request: Request, wire: socket.socket) -> bool:
        path = request.target.removesuffix("?" + QUERY)
        delivery_id = request.headers.get("x-telegrammer-delivery-id", "")
        connection: int = wire.getpeername()[1]
        callback = Callback(path, delivery_id, request.body, request, connection)
        with self.changed:
            self.arrived.append(callback)
            self._on[callback.path].append(callback)
            self.changed.notify_all()
        decided = self.policy(callback)
        if decided is None:
            while not callback._answered.wait(0.05):
                if self.closing:
                    return False
            decided = callback._answer
        if callable(decided):
            return decided(wire)
        answer = response(decided) if isinstance(decided, int) else decided or b""
        wire.sendall(answer)
        callback._flushed.set()
        return b"\r\nConnection: close\r\n" not in answer
