"""Sending an answer piece by piece, so that it is seen whether the peer takes it (contract 2)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import define, field
from twisted.internet.abstract import FileDescriptor
from twisted.internet.interfaces import IReactorTime

from telegrammer.web.limits import Deadline

_PIECE = 64 * 1024


@define(eq=False)
class PacedWriter:
    """
    Writes one message at a time to a transport whose producer events are passed on to it.

    A transport that has to keep bytes pauses its producer until they are gone.  Each such pause ends within
    ``stall_seconds``, or ``stalled`` is called.
    """

    transport: Any
    clock: IReactorTime
    stall_seconds: float
    stalled: Callable[[], object]
    _unsent: memoryview = field(default=memoryview(b""), init=False)
    _blocked: bool = field(default=False, init=False)
    _stall: Deadline = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._stall = Deadline(self.clock)
        _report_every_drain(self.transport)

    @property
    def busy(self) -> bool:
        """Whether a part of the message, or of what was written before, is still with us."""
        return self._blocked or len(self._unsent) > 0

    def send(self, message: bytes) -> None:
        self._unsent = memoryview(message)
        self._write()

    def paused(self) -> None:
        """The transport has to keep bytes."""
        if not self._blocked:
            self._blocked = True
            self._stall.set(self.stall_seconds, self.stalled)

    def resumed(self) -> None:
        """The transport has none left."""
        self._blocked = False
        self._stall.clear()
        self._write()

    def close(self) -> None:
        """Nothing more is sent; whoever ends the connection has a deadline of his own."""
        self._unsent = memoryview(b"")
        self._stall.clear()

    def _write(self) -> None:
        while self._unsent and not self._blocked:
            piece, self._unsent = self._unsent[:_PIECE], self._unsent[_PIECE:]
            self.transport.write(bytes(piece))


def _report_every_drain(transport: Any) -> None:
    """
    Have the transport pause its producer for every byte it keeps, not only beyond 64 KiB.

    Under TLS the socket is one or more layers below.
    """
    descriptor = transport
    while descriptor is not None and not isinstance(descriptor, FileDescriptor):
        descriptor = vars(descriptor).get("transport")
    if descriptor is not None:
        # Not its bufferSize: that is also how much it reads at once.
        setattr(descriptor, "_isSendBufferFull", partial(_keeps_bytes, descriptor))  # noqa: B010  # a method


def _keeps_bytes(descriptor: FileDescriptor) -> bool:
    return bool(descriptor.dataBuffer) or descriptor._tempDataLen > 0
