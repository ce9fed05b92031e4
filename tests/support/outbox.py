"""An outbox for unit tests: on a real file, its thread's jobs done at once or step by step."""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from attrs import define, field
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.messaging.outbox import Outbox
from telegrammer.messaging.sqlite_config import SQLiteMessagingConfig
from tests.support.directories import temporary_directory

T = TypeVar("T")

LOCAL = b"22 1 8:1 / / rw - ext4 /dev/root rw\n"
"""A table of mounts in which all is local."""


@define(eq=False)
class SteppedLane:
    """Does its jobs in the test's own thread: at once, or when told to."""

    stepped: bool = False
    stopped: int = 0
    trouble: Exception | None = None
    """What stands in the way of a new thread."""
    _jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = field(factory=deque, init=False)

    def put(self, job: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        if self.trouble is not None:
            raise self.trouble
        self._jobs.append((job, done))
        if not self.stepped:
            self.step()

    def step(self) -> None:
        """Do all that waits."""
        while self._jobs:
            self.halfway()()

    def halfway(self) -> Callable[[], None]:
        """Do the next in the "thread"; what is returned tells the "reactor"."""
        job, done = self._jobs.popleft()
        try:
            result = job()
        except BaseException:
            result = Failure()
        return lambda: done(result)

    def stop(self) -> None:
        self.stopped += 1


@define(eq=False)
class Desk:
    """A file, a clock, and handles on it."""

    test: SynchronousTestCase
    clock: Clock = field(factory=Clock)
    path: Path = field(init=False)
    mounts: Path = field(init=False)

    def __attrs_post_init__(self) -> None:
        directory = temporary_directory(self.test)
        os.chmod(directory, 0o700)
        self.path, self.mounts = directory / "outbox.db", directory / "mountinfo"
        self.mounts.write_bytes(LOCAL)

    def config(self, name: str = "alerts", timeout: float = 1.0) -> SQLiteMessagingConfig:
        return SQLiteMessagingConfig(name, self.path, timeout)

    def open(self, name: str = "alerts", timeout: float = 1.0, **options: Any) -> Outbox:
        """A handle, which is closed with the test."""
        options.setdefault("lane", SteppedLane())
        options.setdefault("mounts", self.mounts)
        outbox = self.test.successResultOf(
            Outbox.open(self.config(name, timeout), reactor=self.clock, now=self.clock.seconds, **options)
        )
        self.test.addCleanup(outbox._file.close)
        return outbox

    def rows(self, sql: str) -> list[Any]:
        """Looked at, or changed, from outside."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()
