"""
A peer that has closed its half of the connection: it sends no more, and may still read (``nc -N``).

The end of its input looks the same when it is gone altogether.  Over TCP only writing tells which of the two
it is; a Unix socket, or a connection that was reset, shows at once that nobody is there.
"""

from __future__ import annotations

import select
from typing import Any

from attrs import frozen
from twisted.internet.interfaces import ISystemHandle


@frozen
class NothingToRead:
    """
    Stands in for ``transport`` as a producer once its input has ended.

    A transport that is resumed then makes the reactor spin: the end of a file can be read again and again.
    """

    transport: Any

    def pauseProducing(self) -> None:
        """It is paused for good."""

    def resumeProducing(self) -> None:
        """It stays paused."""

    def unregisterProducer(self) -> None:
        self.transport.unregisterProducer()


def hung_up(transport: Any) -> bool:
    """Whether the socket itself knows that both directions have ended.  False where there is no socket."""
    if not ISystemHandle.providedBy(transport):
        return False
    handle: Any = transport.getHandle()
    poll = select.poll()
    poll.register(handle, 0)  # nothing asked for: POLLHUP and POLLERR are always told
    return bool(poll.poll(0))
