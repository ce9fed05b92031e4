"""How much the HTTP front takes on, and for how long: connections, requests worked on, requests waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from attrs import define, field, frozen
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from telegrammer.timers import FairClock

log = Logger()

T = TypeVar("T")


@frozen
class RequestLimits:
    """
    The numbers of contract 2.  Durations are seconds; each stage's end is absolute, a peer cannot put it off.

    A "stall" is the time without a byte of progress that a stage allows within its own end.
    """

    workers: int = 8
    queue: int = 64
    connections: int = 256
    idle_seconds: float = 5
    """From the end of an answer to the first byte of the next request."""
    head_seconds: float = 5
    lookup_seconds: float = 5
    """How long the credentials may take to be looked up."""
    quick_lookup_seconds: float = 0.06
    """The same for routes that answer within 100 ms whatever happens (contract 2.3)."""
    body_stall_seconds: float = 5
    body_seconds: float = 30
    wait_seconds: float = 5
    """How long a request waits for a worker."""
    answer_stall_seconds: float = 5
    answer_seconds: float = 30
    linger_seconds: float = 2
    """How long, and how much, we still read after a refusal, so that it is not lost to a reset."""
    linger_bytes: int = 1024 * 1024


@define(eq=False)
class Deadline:
    """At most one thing that will happen unless it is set anew or cleared."""

    clock: IReactorTime
    _call: IDelayedCall | None = field(default=None, init=False)

    def set(self, seconds: float, late: Callable[..., object], *args: object) -> None:
        self.clear()
        self._call = FairClock(self.clock).callLater(seconds, late, *args)

    def clear(self) -> None:
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None

    def restart(self, seconds: float) -> None:
        """Put it off, when it is set."""
        if self._call is not None and self._call.active():
            self._call.reset(seconds)


class Overloaded(Exception):
    """No worker for this request: all are busy and the queue is full, it waited too long, or we stop."""


@define(eq=False)
class Vacancy:
    """Those who wait for the last one to leave."""

    _waiting: list[Deferred[None]] = field(factory=list, init=False)

    def wait(self) -> Deferred[None]:
        """Fires at the next announcement."""
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        return waiting

    def announce(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)


@define(eq=False)
class WorkerQueue:
    """
    Lets ``workers`` requests run and ``queue`` more wait, first come first served.

    Who was given a turn owes exactly one ``release``.
    """

    clock: IReactorTime
    workers: int = 8
    queue: int = 64
    wait_seconds: float = 5
    running: int = field(default=0, init=False)
    _waiting: dict[Deferred[None], IDelayedCall] = field(factory=dict, init=False)
    _closed: bool = field(default=False, init=False)
    _handing_over: bool = field(default=False, init=False)
    _vacancy: Vacancy = field(factory=Vacancy, init=False)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def turn(self) -> Deferred[None]:
        """
        Fires when the caller may run; cancelling it leaves the queue.

        :raises Overloaded: (as the Deferred's failure) there is no turn for this caller.
        """
        if self._closed:
            return fail(Overloaded("the daemon stops"))
        if self.running < self.workers and not self._waiting:
            self.running += 1
            return succeed(None)
        if len(self._waiting) >= self.queue:
            return fail(Overloaded("the queue is full"))
        place: Deferred[None] = Deferred(self._leave)
        self._waiting[place] = self.clock.callLater(self.wait_seconds, self._wait_ended, place)
        return place

    def release(self) -> None:
        """A turn is over; the first who waits takes it."""
        self.running -= 1
        if self._handing_over:
            return  # a turn that ended at once, inside the loop below: no deeper stack for each
        self._handing_over = True
        try:
            while self._waiting and self.running < self.workers:
                place = next(iter(self._waiting))
                self._leave(place)
                self.running += 1
                place.callback(None)
        finally:
            self._handing_over = False
        if not self.running:
            self._vacancy.announce()

    def close(self) -> Deferred[None]:
        """Turn away all who wait and all who come.  Fires when the last turn is over."""
        self._closed = True
        for place in list(self._waiting):
            self._turn_away(place, "the daemon stops")
        return self._vacancy.wait() if self.running else succeed(None)

    def _leave(self, place: Deferred[None]) -> None:
        timer = self._waiting.pop(place)
        if timer.active():
            timer.cancel()

    def _turn_away(self, place: Deferred[None], why: str) -> None:
        if place in self._waiting:  # not when an earlier one's leaving took it along
            self._leave(place)
            place.errback(Overloaded(why))

    def _wait_ended(self, place: Deferred[None]) -> None:
        self._turn_away(place, "waited too long for a worker")


@define(eq=False)
class Connections(Generic[T]):
    """The open connections, and their limit."""

    limit: int
    _open: set[T] = field(factory=set, init=False)
    _refusing: bool = field(default=False, init=False)
    _vacancy: Vacancy = field(factory=Vacancy, init=False)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[T]:
        """Over a copy: what is done to a connection may end it."""
        return iter(list(self._open))

    def has_room(self) -> bool:
        """Whether one more may be opened.  Says so once when there is none."""
        if len(self._open) < self.limit:
            return True
        if not self._refusing:
            self._refusing = True
            log.warn("{limit} connections are open: further ones are closed at once", limit=self.limit)
        return False

    def add(self, connection: T) -> None:
        self._open.add(connection)

    def remove(self, connection: T) -> None:
        self._open.discard(connection)
        if self._refusing and len(self._open) <= self.limit * 3 // 4:  # well below: no line for each change
            self._refusing = False
            log.info("there is room for connections again: {count} are open", count=len(self._open))
        if not self._open:
            self._vacancy.announce()

    def gone(self) -> Deferred[None]:
        """Fires when none is open."""
        return self._vacancy.wait() if self._open else succeed(None)
