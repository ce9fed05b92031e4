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
    trouble: str | None = field(default=None, init=False)
    """The kind of what the last operation failed by; None: it did not."""
    _outbox: OpenOutbox | None = field(default=None, init=False)
    _opening: DeferredLock = field(factory=DeferredLock, init=False)
    _closed: bool = field(default=False, init=False)

    async def use(self, operation: Callable[[OpenOutbox], Awaitable[T]]) -> T:
        """
        One operation on the open outbox.

        :raises OutboxClosed: after `close`.
        :raises OutboxError: as the operation, or as opening the file.
        """
        outbox = None
        try:
            outbox = await self._opened()
            result = await operation(outbox)
        except (QueueEmpty, QueueFull, LeaseLost):
            self._works()
            raise
        except Exception as error:
            if isinstance(error, CommitUncertain | OutboxClosed | OutboxFailing) and self._outbox is outbox:
                # It has closed itself, or its file is not what it was: the file is looked at anew.
                self._outbox = None
                if outbox is not None:
                    await outbox.close()
            if not self._closed:
                self._fails(error)
            raise
        self._works()
        return result

    async def _opened(self) -> OpenOutbox:
        async with self._opening:
            if self._closed:
                raise OutboxClosed("the daemon stops")
            if self._outbox is None:
                self._outbox = await self.open()
            return self._outbox

    def _works(self) -> None:
        if self.trouble is not None:
            log.info("the outbox of the notices works again")
        self.trouble = None

    def _fails(self, error: Exception) -> None:
        """A line when it begins, or fails by something else."""
        kind = kind_of(error)
        if kind != self.trouble:
            log.error("the outbox of the notices fails: {why}", why=words_of(error))
        self.trouble = kind

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
