"""
The real daemon, with a barrier at one point of its work with the database.

As ``python -m tests.support.barrier_daemon serve …`` it is ``telegrammer serve …``, but at the point that the
environment names it says so over an inherited socket and waits there until it is killed or released.  Nothing
of it is in the product: a connection class that knows the product's statements stands in for the store's own.

The points (`POINTS`): before and after the commit that holds new jobs, a cursor, an entry of the journal, its
fold, a claim, a completion, a subscription, or the migration; after each statement of the migration; amid and
after the backup.
"""

from __future__ import annotations

import os
import select
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from attrs import define, field

from telegrammer.store import engine, ingestion, intake, journal, pool, subscriptions, turns
from telegrammer.store.migrations import MIGRATIONS
from tests.support.daemon import PATIENCE, PYTHON, Daemon

AT, DESCRIPTOR = "BARRIER_AT", "BARRIER_DESCRIPTOR"
LONGEST = 100.0
"""Seconds that the daemon stands at its barrier; then it ends itself, for nobody will."""

FACTS: dict[str, str] = {
    intake.JOBS: "ingest",
    ingestion.SET_CURSOR: "cursor",
    journal.ENTER: "accept",
    journal.FOLDED: "fold",
    turns.CLAIM: "claim",
    turns.COMPLETE: "completion",
    subscriptions.INSERT: "subscribe",
    MIGRATIONS[0][0]: "migration",
    MIGRATIONS[1][0]: "second migration",
}
"""By statement: what a transaction is about in which it has run."""
POINTS = (
    *(f"{when} the commit of: {fact}" for fact in FACTS.values() for when in ("before", "after")),
    "amid the backup",
    "after the backup",
)
"""And ``after statement N of the migration``, from 1."""


# -- in the daemon ---------------------------------------------------------------------------------------


def _stand(point: str) -> None:
    """Wait here when this is the point: once, and for one thread."""
    if os.environ.get(AT) != point:
        return
    del os.environ[AT]
    descriptor = int(os.environ[DESCRIPTOR])
    os.write(descriptor, point.encode() + b"\n")
    readable, _, _ = select.select([descriptor], [], [], LONGEST)
    released = b""
    with suppress(ConnectionError):
        released = os.read(descriptor, 1) if readable else b""
    if not released:
        os._exit(70)


class BarrierHandle(engine.Handle):
    """A connection that knows what its transaction is about."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.facts: list[str] = []
        self.statements = 0
        super().__init__(*arguments, **options)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(BarrierCursor)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        cursor: BarrierCursor = self.cursor()
        return cursor.execute(sql, parameters)

    def backup(
        self,
        target: sqlite3.Connection,
        *,
        pages: int = -1,
        progress: Callable[[int, int, int], object] | None = None,
        name: str = "main",
        sleep: float = 0.25,
    ) -> None:
        """Page by page, so that there is an amid."""
        super().backup(target, pages=1, progress=lambda *_: _stand("amid the backup"), name=name)
        _stand("after the backup")


class BarrierCursor(sqlite3.Cursor):
    """Tells its connection what it does, and stands at the barrier."""

    def execute(self, sql: str, parameters: Any = (), /) -> BarrierCursor:
        self._before(sql)
        super().execute(sql, parameters)
        self._after(sql)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> BarrierCursor:
        rows = list(parameters)
        super().executemany(sql, rows)
        if rows:
            self._after(sql)
        return self

    @property
    def _handle(self) -> BarrierHandle:
        assert isinstance(self.connection, BarrierHandle)
        return self.connection

    def _before(self, sql: str) -> None:
        if sql == "COMMIT":
            for fact in self._handle.facts:
                _stand(f"before the commit of: {fact}")

    def _after(self, sql: str) -> None:
        handle = self._handle
        if sql == "COMMIT":
            facts, handle.facts = handle.facts, []
            for fact in facts:
                _stand(f"after the commit of: {fact}")
        elif sql.startswith("BEGIN") or sql == "ROLLBACK":
            handle.facts = []
            handle.statements = 0
        elif sql in FACTS and FACTS[sql] not in handle.facts:
            handle.facts.append(FACTS[sql])
        if "migration" in handle.facts:
            handle.statements += 1
            _stand(f"after statement {handle.statements} of the migration")


def serve() -> int:
    """Put the class in the store's place, and be the command."""
    name = engine.Handle.__name__
    for module in (engine, pool):
        assert hasattr(module, name)
        setattr(module, name, BarrierHandle)
    from telegrammer.cli import main

    return main()


# -- in the test -----------------------------------------------------------------------------------------


@define(eq=False)
class Barrier:
    """The test's end."""

    point: str
    _ours: socket.socket
    _theirs: socket.socket
    _reached: bool = field(default=False, init=False)

    def wait(self, seconds: float = PATIENCE) -> None:
        """Until the daemon stands there; fails when it ends before.  It must have been launched."""
        self._theirs.close()
        self._ours.settimeout(seconds)
        said = b""
        while not said.endswith(b"\n"):
            more = self._ours.recv(100)
            assert more, f"the daemon ended before it came to the point {self.point!r}"
            said += more
        assert said == self.point.encode() + b"\n"
        self._reached = True

    def release(self) -> None:
        """Let it go on."""
        assert self._reached
        self._ours.sendall(b"!")


@contextmanager
def barrier(daemon: Daemon, point: str) -> Iterator[Barrier]:
    """The daemon that is started inside has a barrier at this point; the next one after it has none."""
    before = daemon.program, daemon.environment, daemon.passed
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        daemon.program = (*PYTHON, "-m", "tests.support.barrier_daemon", "serve")
        daemon.environment = dict(daemon.environment) | {AT: point, DESCRIPTOR: str(theirs.fileno())}
        daemon.passed = (*daemon.passed, theirs.fileno())
        try:
            yield Barrier(point, ours, theirs)
        finally:
            daemon.program, daemon.environment, daemon.passed = before


if __name__ == "__main__":
    sys.exit(serve())
