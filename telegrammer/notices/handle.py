"""The outbox as the notices use it: opened when first needed, and anew after it failed."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from attrs import define, field
from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from telegrammer.core.problems import (
    CommitUncertain,
    InsecurePath,
    LeaseLost,
    MessagingError,
    NotAnOutbox,
    OutboxClosed,
    OutboxFailing,
    QueueEmpty,
    QueueFull,
)
from telegrammer.logs import escaped, whence
from telegrammer.ports import Outbox

log = Logger()

T = TypeVar("T")

PAUSE = 5.0
"""Seconds until the outbox is tried again after it failed."""
LONG_PAUSE = 30.0
"""The same where only the operator can mend it."""


class OpenOutbox(Outbox, Protocol):
    """An outbox that somebody opened and has to close."""

    def close(self) -> Awaitable[None]:
        """Let what is under way finish, then close the file."""
        ...


def kind_of(error: BaseException) -> str:
    """What failed, as ``/health`` names it: ``delivery_failed``, ``queue_full``, ``unexpected`` ..."""
    if not isinstance(error, MessagingError):
        return "unexpected"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()


def words_of(error: BaseException) -> str:
    """What a log line says of it."""
    return escaped(str(error)) if isinstance(error, MessagingError) else f"unexpected {whence(error)}"


def pause_after(error: BaseException) -> float:
    """Seconds until the outbox is worth another try."""
    return LONG_PAUSE if isinstance(error, InsecurePath | NotAnOutbox) else PAUSE


@define(eq=False)
class Handle:
    """
    ``use`` runs one operation; what it raises, opening raises as well.

    :param open: opens the file, made when missing.
    """

    open: Callable[[], Awaitable[OpenOutbox]]
    _troubles: dict[str, str] = field(factory=dict, init=False)
    """By what each user's last round failed, if it did; a full disk fails who writes, and nobody else."""
    _outbox: OpenOutbox | None = field(default=None, init=False)
    _opening: DeferredLock = field(factory=DeferredLock, init=False)
    _closed: bool = field(default=False, init=False)

    @property
    def trouble(self) -> str | None:
        """The kind of what somebody's last round failed by; None: nobody's did."""
        return next(iter(self._troubles.values()), None)

    async def use(
        self, operation: Callable[[OpenOutbox], Awaitable[T]], by: str = "", *, ends: bool = True
    ) -> T:
        """
        One operation on the open outbox.

        :param by: who does it; what fails one user is not over when it works for another.
        :param ends: it is the last of a round, so that all is well when it works.
        :raises OutboxClosed: after `close`.
        :raises OutboxError: as the operation, or as opening the file.
        """
        outbox = None
        try:
            outbox = await self._opened()
            result = await operation(outbox)
        except (QueueEmpty, QueueFull, LeaseLost):
            if ends:
                self._works(by)
            raise
        except Exception as error:
            if isinstance(error, CommitUncertain | OutboxClosed | OutboxFailing) and self._outbox is outbox:
                # It has closed itself, or its file is not what it was: the file is looked at anew.
                self._outbox = None
                if outbox is not None:
                    await outbox.close()
            if not self._closed:
                self._fails(by, error)
            raise
        if ends:
            self._works(by)
        return result

    async def _opened(self) -> OpenOutbox:
        async with self._opening:
            if self._closed:
                raise OutboxClosed("the daemon stops")
            if self._outbox is None:
                self._outbox = await self.open()
            return self._outbox

    def _works(self, by: str) -> None:
        if self._troubles.pop(by, None) is not None and not self._troubles:
            log.info("the outbox of the notices works again")

    def _fails(self, by: str, error: Exception) -> None:
        """A line when it begins, or fails by something else."""
        kind = kind_of(error)
        if kind not in self._troubles.values():
            log.error("the outbox of the notices fails: {why}", why=words_of(error))
        self._troubles[by] = kind

    def reopen(self) -> None:
        """Use it again after `close`."""
        self._closed = False

    async def close(self) -> None:
        """Close the file, once no operation is under way in it."""
        self._closed = True
        async with self._opening:
            outbox, self._outbox = self._outbox, None
            if outbox is not None:
                await outbox.close()
