"""
Who may claim, acknowledge and release a message of an outbox (contract 7.2).

Times are whole Unix seconds by the wall clock, as they are stored.
"""

from __future__ import annotations

from typing import Self

from attrs import field, frozen

from telegrammer.core.messages import Message

LEASE_SECONDS = 60
CAPACITY = 1000
"""Messages in one file, all queues together, leased or not."""
_FURTHEST = 2 * LEASE_SECONDS
"""An expiry further ahead was written before the clock was set back: nobody waits for it."""


def expiry(now: float) -> int:
    """When a lease that is given now expires: at this second it has."""
    return int(now) + LEASE_SECONDS


def is_current(expires_at: int, now: float) -> bool:
    """
    Whether a lease still holds.

    One whose end is implausibly far ahead does not: the clock was set back meanwhile, and the message
    would be held up by as much.
    """
    return now < expires_at <= now + _FURTHEST


class _Held:
    """What must be in no copy and no text of a message: slots that attrs knows nothing of."""

    __slots__ = ("_lease", "_lease_expires_at")
    _lease: str
    _lease_expires_at: int


@frozen
class Leased(_Held):
    """
    A message as ``claim`` returns it, under a lease.

    ``lease`` and ``lease_expires_at`` belong to the worker that claimed it.  They are in no ``repr``, no
    ``attrs.asdict``, no pickle; a copy made by such means has None for both.
    """

    id: str
    subject: str = field(repr=False)
    body: str = field(repr=False)
    recipients: tuple[str, ...] = field(repr=False)
    created_at: int
    """Unix seconds."""

    @classmethod
    def under(cls, lease: str, expires_at: int, id: str, message: Message, created_at: int) -> Self:
        leased = cls(id, message.subject, message.body, message.recipients, created_at)
        object.__setattr__(leased, "_lease", lease)
        object.__setattr__(leased, "_lease_expires_at", expires_at)
        return leased

    @property
    def lease(self) -> str | None:
        """What ``acknowledge`` and ``release`` ask for."""
        return getattr(self, "_lease", None)

    @property
    def lease_expires_at(self) -> int | None:
        """Exactly what was committed, in Unix seconds: from this second on the message is anybody's."""
        return getattr(self, "_lease_expires_at", None)

    @property
    def message(self) -> Message:
        return Message(self.subject, self.body, self.recipients)
