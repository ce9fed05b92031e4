"""An outbox in memory and a mailer in the test's hands, for what uses those ports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field, frozen
from twisted.internet.defer import Deferred, fail, succeed

from telegrammer.core.leases import Leased, expiry, is_current
from telegrammer.core.messages import Credentials, Mark, Message
from telegrammer.core.problems import CommitUncertain, LeaseLost, OutboxClosed, QueueEmpty, QueueFull
from telegrammer.ports import Now


@define
class _Row:
    id: str
    message: Message
    created_at: int
    lease: str = ""
    expires_at: int = 0


@define(eq=False)
class MemoryFile:
    """What the outbox keeps; it outlives the handles."""

    now: Now
    capacity: int = 1000
    rows: list[_Row] = field(factory=list)
    marks: dict[str, Mark] = field(factory=dict)
    failures: deque[Exception | None] = field(factory=deque)
    """What the next operations fail by, before they change anything; None: not at all."""
    uncertain_but_done: bool = False
    """A ``CommitUncertain`` comes after the work."""
    operations: list[str] = field(factory=list)
    opened: int = 0
    closed: int = 0
    number: int = 0

    def open(self) -> Deferred[MemoryOutbox]:
        self.opened += 1
        return succeed(MemoryOutbox(self))

    @property
    def subjects(self) -> list[str]:
        return [row.message.subject for row in self.rows]


@define(eq=False)
class MemoryOutbox:
    """One handle."""

    file: MemoryFile
    closed: bool = False

    def _do(self, name: str, work: Callable[[], object]) -> Deferred[object]:
        file = self.file
        file.operations.append(name)
        if self.closed:
            return fail(OutboxClosed("closed"))
        failure = file.failures.popleft() if file.failures else None
        if isinstance(failure, CommitUncertain):
            self.closed = True
            if file.uncertain_but_done:
                work()
        if failure is not None:
            return fail(failure)
        try:
            return succeed(work())
        except Exception as error:
            return fail(error)

    def send(self, message: Message, *, marks: Sequence[Mark] = ()) -> Deferred[str]:
        def work() -> str:
            if len(self.file.rows) >= self.file.capacity:
                raise QueueFull("full")
            self.file.number += 1
            row = _Row(f"{self.file.number:032x}", message, int(self.file.now()))
            self.file.rows.append(row)
            self.file.marks.update({mark.subject: mark for mark in marks})
            return row.id

        return self._do("send", work)  # type: ignore[return-value]

    def marks(self) -> Deferred[Mapping[str, Mark]]:
        return self._do("marks", lambda: dict(self.file.marks))  # type: ignore[return-value]

    def claim(self) -> Deferred[Leased]:
        def work() -> Leased:
            now = self.file.now()
            for row in self.file.rows:
                if not is_current(row.expires_at, now):
                    self.file.number += 1
                    row.lease, row.expires_at = f"lease-{self.file.number}", expiry(now)
                    return Leased.under(row.lease, row.expires_at, row.id, row.message, row.created_at)
            raise QueueEmpty("empty")

        return self._do("claim", work)  # type: ignore[return-value]

    def acknowledge(self, message_id: str, lease: str) -> Deferred[None]:
        def work() -> None:
            for row in self.file.rows:
                if (row.id, row.lease) == (message_id, lease) and is_current(row.expires_at, self.file.now()):
                    self.file.rows.remove(row)
                    return
            raise LeaseLost("lost")

        return self._do("acknowledge", work)  # type: ignore[return-value]

    def release(self, message_id: str, lease: str) -> Deferred[None]:
        raise NotImplementedError

    def outstanding(self) -> Deferred[int]:
        return self._do("outstanding", lambda: len(self.file.rows))  # type: ignore[return-value]

    def oldest_at(self) -> Deferred[int | None]:
        return self._do(  # type: ignore[return-value]
            "oldest_at", lambda: min((row.created_at for row in self.file.rows), default=None)
        )

    def close(self) -> Deferred[None]:
        self.closed = True
        self.file.closed += 1
        return succeed(None)


@frozen(eq=False)
class Sending:
    """One call of the mailer, and the Deferred that answers it."""

    message: Message
    message_id: str
    seconds: float
    credentials: Credentials | None
    done: Deferred[None]


@define(eq=False)
class HeldMailer:
    """Keeps each delivery until the test says what became of it."""

    sendings: list[Sending] = field(factory=list)
    cancelled: int = 0

    def send(
        self,
        message: Message,
        *,
        message_id: str,
        seconds: float,
        credentials: Credentials | None = None,
    ) -> Deferred[None]:
        def cancel(_: Deferred[None]) -> None:
            self.cancelled += 1

        done: Deferred[None] = Deferred(cancel)
        self.sendings.append(Sending(message, message_id, seconds, credentials, done))
        return done
