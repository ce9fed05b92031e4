"""The durable outbox: messages kept until a worker has delivered them (contract 7.2)."""

from __future__ import annotations

import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from attrs import define, field
from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

from telegrammer.core.leases import Leased
from telegrammer.core.messages import Credentials, Mark, Message, encode
from telegrammer.core.problems import (
    AdmissionTimeout,
    CredentialsRefused,
    LeaseLost,
    MessageRefused,
    OutboxClosed,
    OutboxFailing,
)
from telegrammer.messaging import outbox_file
from telegrammer.messaging import outbox_rows as rows
from telegrammer.messaging.admission import Admission, Answer, Lane, ThreadLane
from telegrammer.messaging.exclusive import ExclusiveFile
from telegrammer.messaging.local_disk import MOUNTS
from telegrammer.messaging.sqlite_config import SQLiteMessagingConfig
from telegrammer.ports import Now

T = TypeVar("T")

_RANDOM = re.compile(r"[0-9a-f]{32}")


def random_text() -> str:
    """32 hexadecimal digits that nobody can guess."""
    return secrets.token_hex(16)


@define(eq=False)
class Outbox:
    """
    A handle on one queue of an outbox's file; ``await Outbox.open(config)`` makes it.

    Operations of one handle are done one after another, in a thread; handles, in whatever processes, wait
    for each other.  Each operation has the config's ``timeout`` to get the file, counted from the call.
    Until it has it, the timeout (``AdmissionTimeout``) or ``cancel()`` of its Deferred (``CancelledError``)
    ends it at once, nothing was changed, and the handle goes on.  After that it is finished and its true
    result is given.

    All may fail with an ``OutboxError``: ``AdmissionTimeout``, ``OutboxFailing`` (rolled back),
    ``OutboxClosed`` (nothing done), ``CommitUncertain`` (perhaps done, and the handle is closed).
    """

    kind: ClassVar[str] = "sqlite"

    config: SQLiteMessagingConfig
    _reactor: Any = field(repr=False)
    _now: Now = field(repr=False)
    _random: Callable[[], str] = field(repr=False)
    _file: ExclusiveFile = field(repr=False)
    _lane: Lane = field(repr=False)
    _closing: Deferred[None] | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        """Of the provider, and of the queue."""
        return self.config.name

    @property
    def is_closed(self) -> bool:
        """By ``close``, or by a COMMIT that failed."""
        return self._closing is not None or self._file.closed

    @classmethod
    def open(
        cls,
        config: SQLiteMessagingConfig,
        *,
        reactor: Any = None,
        now: Now = time.time,  # noqa: TID251  # the library's own door: a test gives another
        random: Callable[[], str] = random_text,
        mounts: Path = MOUNTS,
        connect: Callable[[Path], sqlite3.Connection] = outbox_file.connect,
        lane: Lane | None = None,
    ) -> Deferred[Outbox]:
        """
        Open the file, and make it if it is not there (its directory must be).  It waits for no lock.

        :param reactor: for the timeouts and the way back from the thread; else the global one.
        :param now: wall-clock Unix seconds, of any thread.
        :param random: makes ids and leases.
        :param mounts: the table of mounts.
        :param connect: makes a connection to a file that was checked.
        :param lane: runs what is done with the file; else a thread of its own.
        :raises InsecurePath: file or directory is not private, or not local; it was not touched.
        :raises NotAnOutbox: it is something else, or of a newer version; it was not touched.
        :raises OutboxFailing: it cannot be opened.
        """
        if reactor is None:
            from twisted.internet import reactor
        outbox = cls(
            config,
            reactor,
            now,
            random,
            ExclusiveFile(config.path, mounts, connect),
            ThreadLane(reactor) if lane is None else lane,
        )
        opening = outbox._submit(outbox._file.open)

        def undo(failure: Failure) -> Failure:
            outbox.close()
            return failure

        return opening.addCallbacks(lambda _: outbox, undo)

    def send(
        self, message: Message, *, credentials: Credentials | None = None, marks: Sequence[Mark] = ()
    ) -> Deferred[str]:
        """
        The message's id, durably accepted here (not: delivered); committed, together with the marks.

        :param credentials: must be None: the outbox stores none.
        :raises QueueFull: the file holds as many messages as it may, over all its queues; no mark was stored.
        :raises CredentialsRefused: there are some; nothing was stored.
        :raises MessageRefused: it is no ``Message``, or one of the marks no ``Mark``.
        """
        if credentials is not None:
            return fail(CredentialsRefused("an outbox takes no credentials, and stores none"))
        if not isinstance(message, Message):
            return fail(MessageRefused("record", "only a Message can be sent"))
        told = tuple(marks)
        if not all(isinstance(mark, Mark) for mark in told):
            return fail(MessageRefused("mark", "only Marks can be stored with a message"))
        record = encode(message)
        return self._operate(
            lambda cursor: rows.send(cursor, self.name, self._random(), record, told, self._now())
        )

    def claim(self) -> Deferred[Leased]:
        """
        The oldest available message of this queue, leased for 60 s from when the lock was there.

        :raises QueueEmpty: none is available now.
        """
        return self._operate(lambda cursor: rows.claim(cursor, self.name, self._random(), self._now()))

    def acknowledge(self, message_id: str, lease: str | None) -> Deferred[None]:
        """
        Delete it, delivered.

        :raises LeaseLost: it is not the current lease of this message in this queue; nothing was changed.
        """
        return self._settle(rows.acknowledge, message_id, lease)

    def release(self, message_id: str, lease: str | None) -> Deferred[None]:
        """
        Make it available again at once, in its old place.

        :raises LeaseLost: it is not the current lease of this message in this queue; nothing was changed.
        """
        return self._settle(rows.release, message_id, lease)

    def check_ready(self) -> Deferred[None]:
        """Get the file, read nothing of note, change nothing: whether it works, within the timeout."""
        return self._operate(rows.look)

    def marks(self) -> Deferred[Mapping[str, Mark]]:
        """The last mark of each subject in this queue."""
        return self._operate(lambda cursor: rows.marks(cursor, self.name))

    def outstanding(self) -> Deferred[int]:
        """Messages in the file, all queues together, leased or not."""
        return self._operate(rows.outstanding)

    def oldest_at(self) -> Deferred[int | None]:
        """When the oldest of them was accepted, in Unix seconds; None: there are none."""
        return self._operate(rows.oldest_at)

    def close(self) -> Deferred[None]:
        """
        Finish what was asked for before, then give file and thread back; once more is the same.

        It belongs to whoever opened the handle, after the workers that use it.
        """
        if self._closing is None:
            self._closing = Deferred()
            try:
                self._lane.put(self._file.close, self._stopped)
            except RuntimeError:  # There is no thread, so nothing runs in one.
                self._file.close()
                self._stopped(None)
        admission = Admission()
        admission.admit()
        answer: Answer[None] = Answer(admission)
        self._closing.addBoth(lambda _: answer.callback(None))
        return answer

    def _stopped(self, _: object) -> None:
        assert self._closing is not None
        self._lane.stop()
        self._closing.callback(None)

    def _settle(
        self,
        verb: Callable[[sqlite3.Cursor, str, str, str, float], None],
        message_id: str,
        lease: str | None,
    ) -> Deferred[None]:
        for text in (message_id, lease):
            if not isinstance(text, str) or _RANDOM.fullmatch(text) is None:
                return fail(LeaseLost("this is no lease of a message"))
        assert lease is not None
        return self._operate(lambda cursor: verb(cursor, self.name, message_id, lease, self._now()))

    def _operate(self, work: Callable[[sqlite3.Cursor], T]) -> Deferred[T]:
        if self.is_closed:
            return fail(OutboxClosed("the outbox is closed"))
        return self._submit(lambda admission: self._file.run(admission, work))

    def _submit(self, job: Callable[[Admission], T]) -> Deferred[T]:
        """Have the job done in its turn, if it is admitted before the deadline."""
        admission = Admission()
        answer: Answer[T] = Answer(admission)

        def expire() -> None:
            if admission.abandon():
                answer.errback(AdmissionTimeout(f"the outbox was not to be had in {self.config.timeout} s"))

        deadline = self._reactor.callLater(self.config.timeout, expire)

        def done(result: T | Failure) -> None:
            if not answer.called:
                answer.callback(result)  # A Failure is passed on as one.
            if self._file.closed and self._closing is None:
                self.close()

        def settled(result: T | Failure) -> T | Failure:
            if deadline.active():
                deadline.cancel()
            return result

        answer.addBoth(settled)
        try:
            self._lane.put(partial(job, admission), done)
        except RuntimeError:  # "can't start new thread"
            if admission.abandon():
                answer.errback(OutboxFailing("the outbox's thread cannot be started"))
        return answer
