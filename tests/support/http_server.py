"""A small HTTP server on raw sockets and threads, for tests that block: it does what it is told, no more."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from attrs import frozen

from tests.support.daemon import PATIENCE


@frozen
class Request:
    """One request as it arrived."""

    method: str
    target: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


def response(status: int, body: bytes = b"", *fields: str) -> bytes:
    """A complete response; ``fields`` are whole header lines."""
    head = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def has_left(wire: socket.socket) -> bool:
    """True once the peer has closed its side; it is not to send anything meanwhile."""
    try:
        readable, _, _ = select.select([wire], [], [], 0)
        if isinstance(wire, ssl.SSLSocket):
            return bool(readable)
        return bool(readable) and not wire.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True


class HttpServer:
    """
    Listens on a loopback port; each connection has a thread, each request a call of ``respond``.

    ``port`` 0 picks one.  ``greet`` sees each connection before anything is read of it; False closes it.

    ``changed`` guards whatever a subclass keeps, and is notified on every change, so that tests wait for
    events.
    """

    def __init__(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.tls = tls
        self.greet: Callable[[socket.socket], bool] = lambda wire: True
        self.changed = threading.Condition()
        self.closing = False
        self.torn: list[bytes] = []
        """Requests that ended before they were whole."""
        self._wires: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listeners: list[socket.socket] = []
        self.host = host
        self.port = port
        self.listen_at(host)

    def listen_at(self, host: str) -> None:
        """Listen at this address too, on the same port."""
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._listeners.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self._start(self._accept, listener)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many are open."""
        with self.changed:
            return len(self._wires)

    def hang_up(self) -> None:
        """Close every connection there is."""
        with self.changed:
            wires = list(self._wires)
        for wire in wires:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)

    def respond(self, request: Request, wire: socket.socket) -> bool:
        """Answer on ``wire``; False closes the connection."""
        raise NotImplementedError

    def wait_until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """
        Wait until ``condition()`` holds.

        It is looked at on each change, and now and then: it may be about more than this server.
        """
        until = time.monotonic() + seconds
        with self.changed:
            while not condition():
                left = until - time.monotonic()
                assert left > 0, "what the test waits for did not happen"
                self.changed.wait(min(left, 0.05))

    def close(self) -> None:
        """Close every socket and wait for the threads."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
            wires = list(self._wires)
        for wire in (*self._listeners, *wires):
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)
        for listener in self._listeners:
            listener.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a thread of the test's server goes on"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- threads ---------------------------------------------------------------------------------------

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                wire, _ = listener.accept()
            except OSError:
                return
            with self.changed:
                self._wires.add(wire)
                closing = self.closing
            if closing:
                wire.close()
                return
            if not self.greet(wire):
                with self.changed:
                    self._wires.discard(wire)
                wire.close()
                continue
            self._start(self._shake_hands if self.tls else self._serve, wire)

    def _shake_hands(self, plain: socket.socket) -> None:
        assert self.tls is not None
        try:
            wire = self.tls.wrap_socket(plain, server_side=True)
        except OSError:  # the peer does not trust us
            plain.close()
            return
        with self.changed:
            self._wires.discard(plain)
            self._wires.add(wire)
        self._serve(wire)

    def _serve(self, wire: socket.socket) -> None:
        buffered = b""
        with wire:
            try:
                while True:
                    while b"\r\n\r\n" not in buffered:
                        more = wire.recv(65536)
                        if not more:
                            if buffered:
                                self.torn.append(buffered)
                            return
                        buffered += more
                    head, _, buffered = buffered.partition(b"\r\n\r\n")
                    first, *lines = head.decode("latin-1").split("\r\n")
                    method, target, _ = first.split(" ", 2)
                    fields = (line.partition(":") for line in lines)
                    headers = {name.lower(): value.strip() for name, _, value in fields}
                    length = int(headers.get("content-length", "0"))
                    while len(buffered) < length:
                        more = wire.recv(65536)
                        if not more:
                            self.torn.append(head + buffered)
                            return
                        buffered += more
                    body, buffered = buffered[:length], buffered[length:]
                    if not self.respond(Request(method, target, headers, body), wire):
                        return
            except OSError:
                return
            finally:
                with self.changed:
                    self._wires.discard(wire)
                    self.changed.notify_all()
