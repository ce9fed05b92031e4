"""
Messages as files in a spool directory, for another program to pick up (contract 7.1).

A message becomes ``<message id>.eml``, whole or not at all; the same id again is the same file.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Final, Protocol, Self

from attrs import define, field, frozen
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.python.failure import Failure

from telegrammer.core.messages import Credentials, Message
from telegrammer.core.problems import (
    CredentialsRefused,
    DeliveryFailed,
    MaybeDelivered,
    MessageRefused,
    StartRefused,
)
from telegrammer.messaging.directives import absolute_path, duration, parse_directives, provider_name, timeout
from telegrammer.messaging.mime import BodyFormat, check_id, render
from telegrammer.messaging.one_thread import Job, OneThread
from telegrammer.messaging.settings import bare_address, body_format_name, setting
from telegrammer.ports import Now
from telegrammer.store.files import create_private, make_state_directory, sync_directory
from telegrammer.timers import FairClock

TIMEOUT: Final = 30.0
"""Seconds of an attempt for which nothing else is said."""
LONGEST_SECONDS: Final = 86_400.0
"""No attempt lasts longer, whatever its caller says."""

_REQUIRED = {"name": provider_name, "path": absolute_path, "from": bare_address}
_OPTIONAL = {"body_format": body_format_name, "timeout": duration}


@frozen(kw_only=True)
class FileConfig:
    """
    A spool directory.  Checked without a look at the disk.

    :raises DirectiveRefused: a value breaks its rule; ``directive`` names it.
    """

    name: str = setting(provider_name)
    path: Path = setting(absolute_path)
    """The directory; made, 0700, when a message comes and it is not there."""
    sender: str = setting(bare_address, "from")
    """The directive is called ``from``."""
    body_format: BodyFormat = setting(body_format_name, default="qp-html")
    timeout: float = setting(timeout, default=TIMEOUT)
    """Seconds of an attempt, unless the call says otherwise."""

    kind: ClassVar[str] = "file"

    @classmethod
    def from_directives(cls, directives: Iterable[str]) -> Self:
        """
        From ``["name ops", "path /var/spool/notices", "from gateway@example.org", …]``.

        The settings are those of the constructor, ``from`` for ``sender``.

        :raises DirectiveRefused: one is unknown, repeated, missing or malformed.
        """
        values = parse_directives(directives, _REQUIRED, _OPTIONAL)
        values["sender"] = values.pop("from")
        return cls(**values)


class Writer(Protocol):
    """Where files are written: not in the reactor's thread."""

    def put(self, job: Job) -> None:
        """
        Run it in its turn.

        :raises RuntimeError: it will not run.
        """
        ...


@define(eq=False)
class FileProvider:
    """
    Writes messages into the directory of its configuration; implements ``ports.Mailer``.

    :param reactor: the global one when None.
    """

    config: FileConfig
    reactor: Any = field(default=None, repr=False)
    now: Now = field(default=time.time, repr=False, kw_only=True)  # noqa: TID251
    new_id: Callable[[], str] = field(default=partial(secrets.token_hex, 16), repr=False, kw_only=True)
    writer: Writer = field(factory=partial(OneThread, "spool"), repr=False, kw_only=True)

    kind: ClassVar[str] = "file"

    @property
    def name(self) -> str:
        return self.config.name

    def send(
        self,
        message: Message,
        *,
        message_id: str | None = None,
        seconds: float | None = None,
        credentials: Credentials | None = None,
    ) -> Deferred[None]:
        """
        Fires when the file is on the disk under its name.

        It is written in the provider's thread, one after another, which cannot be interrupted: where a disk
        hangs, what comes after fails in its own time.  Cancelled before the file is about to get its name,
        the message is certainly not there and never will be (``CancelledError``); from there on it may be
        (``MaybeDelivered``).

        :param message_id: names the file; made up when None.
        :param seconds: by default the configuration's ``timeout``.
        :raises CredentialsRefused: credentials were given; a file takes none.
        :raises MessageRefused: the body is not what ``body_format`` says.
        :raises DeliveryFailed: there is no such file, or an older one of the same id.
        :raises MaybeDelivered: it may be there, but the disk did not confirm it in time.
        """
        seconds = self.config.timeout if seconds is None else seconds
        try:
            if credentials is not None:
                raise CredentialsRefused("a file takes no credentials")
            if not seconds > 0:
                raise DeliveryFailed("time was up")
            name = check_id(self.new_id() if message_id is None else message_id)
            data = render(
                message,
                sender=self.config.sender,
                message_id=name,
                now=self.now(),
                body_format=self.config.body_format,
            )
        except (CredentialsRefused, DeliveryFailed, MessageRefused, ValueError) as refused:
            return fail(refused)
        reactor = self.reactor
        if reactor is None:
            from twisted.internet import reactor
        return _Writing(self.config.path / f"{name}.eml", data).start(reactor, self.writer, seconds)


@define(eq=False)
class _Writing:
    """One file on its way to the disk, watched from the reactor."""

    path: Path
    data: bytes = field(repr=False)
    _lock: Lock = field(factory=Lock, init=False)
    _given_up: bool = field(default=False, init=False)
    _naming: bool = field(default=False, init=False)
    """The file is about to get its name, or has it."""

    def start(self, reactor: Any, writer: Writer, seconds: float) -> Deferred[None]:
        """What ``FileProvider.send`` returns."""
        done: Deferred[None] = Deferred(lambda it: self._give_up(it, CancelledError(), "cancelled"))
        timer = FairClock(reactor).callLater(
            min(seconds, LONGEST_SECONDS), self._give_up, done, DeliveryFailed("time was up"), "time was up"
        )

        def ended(result: Any) -> Any:
            if timer.active():
                timer.cancel()
            return result

        def written(result: None | Failure) -> None:
            # Whoever gave up has been told already.
            if not done.called:
                done.callback(result) if result is None else done.errback(result)

        def job() -> None:
            result: None | Failure = None
            try:
                self._write()
            except BaseException:
                result = Failure()
            reactor.callFromThread(written, result)

        done.addBoth(ended)
        try:
            writer.put(job)
        except RuntimeError:
            written(Failure(DeliveryFailed("writing the file: no thread is to be had")))
        return done

    def _give_up(self, done: Deferred[None], certain: Exception, why: str) -> None:
        with self._lock:
            self._given_up = True
            naming = self._naming
            # Where a disk hangs, those behind wait with nothing in their hands.
            self.data = b""
        if not done.called:
            done.errback(MaybeDelivered(f"writing the file: {why}") if naming else certain)

    # -- in the thread ---------------------------------------------------------------------------------

    def _write(self) -> None:
        data = self.data
        if self._given_up:
            return  # while it waited for the thread
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        try:
            make_state_directory(self.path)
            descriptor = create_private(temporary)
        except StartRefused:
            raise DeliveryFailed("the spool directory cannot be made") from None
        except OSError as error:
            raise DeliveryFailed(f"writing the file: {error.strerror}") from None
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self._name(temporary)
        except OSError as error:
            raise DeliveryFailed(f"writing the file: {error.strerror}") from None
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        sync_directory(self.path)

    def _name(self, temporary: Path) -> None:
        with self._lock:
            if self._given_up:
                raise DeliveryFailed("given up")
            self._naming = True
        temporary.rename(self.path)
