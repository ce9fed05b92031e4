"""One HTTP exchange with the Bot API, as values: what came, or why nothing did."""

from __future__ import annotations

from attrs import field, frozen

from telegrammer.core.problems import TelegrammerError


@frozen
class Reply:
    """A complete answer within its limit."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Names in lower case."""
    body: bytes = field(default=b"", repr=False)

    def values(self, name: bytes) -> tuple[bytes, ...]:
        """The raw values of the header ``name`` (lower case), in order."""
        return tuple(value for key, value in self.headers if key == name)


class ExchangeFailed(TelegrammerError):
    """
    No complete answer within the limits.  ``why`` is short and ours: no URL, no peer's text.

    The subclasses differ in what may have happened to the request; the caller decides what that means.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class NotConnected(ExchangeFailed):
    """Resolving, connecting or TLS failed.  Check the network, ``--api-url`` and ``--ca-file``."""


class ConnectionBroken(ExchangeFailed):
    """The connection ended before the answer was complete; the request may have been acted on."""


class DeadlinePassed(ExchangeFailed):
    """The exchange took longer than it was given; the request may have been acted on."""


class BodyTooLarge(ExchangeFailed):
    """The answer is longer than its limit; it was cut off with its connection."""


class BadReply(ExchangeFailed):
    """What answers does not speak HTTP as we know it."""
