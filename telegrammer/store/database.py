"""
The database as a service: readers by role, one writer, how it does (contract 4).

Readers have small ``query_only`` pools by role, the writer has one connection and a queue (``writer``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from attrs import define, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from telegrammer.core.problems import (
    DatabaseState,
    StorageUnavailable,
    StoreBusy,
    StoreClosed,
    StoreFailing,
    StoreFull,
    StoreReadOnly,
)
from telegrammer.service import Repeating, Wakeup
from telegrammer.store.engine import Durability, Handle, PoolRole, problem, snapshot
from telegrammer.store.files import real_path
from telegrammer.store.look import fold, look, prove_sound, touch_tables
from telegrammer.store.pool import Pool, started_pool
from telegrammer.store.writer import Writer

log = Logger()

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

READERS: dict[PoolRole, int] = {"credentials": 2, "requests": 2, "workers": 1}
"""How many connections each role has at most."""
READER_BUSY_MS: dict[PoolRole, int] = {"credentials": 5000, "requests": 5000, "workers": 1000}
"""Readers wait for a lock only while another process repairs or converts the file."""
BEAT = 1.0
"""Seconds between looks for commits of other processes and at the lock (contract 1.1, 2.3)."""
BEAT_PATIENCE = 0.5
"""Seconds a look waits for the lock, so that a held one shows within 2 s."""
LONG_WAIT = 1.0
"""Seconds of waiting for the lock that health calls busy."""
LONG_LOG = 8 * 2**20
"""Bytes of the -wal file, twice what SQLite lets it grow to, from which a look tries itself to fold it in."""
QUIET = 5.0
"""
Seconds without a new failure after which a failing database may count as working again.

Damage hits some work and spares other: a success proves nothing of the rest, and the state would flap.  So
the whole file is looked through at its end, and if that fails another such time has to pass.
"""


@define(eq=False)
class Database(Service):
    """
    Implements ``engine.Transactions`` and ``ports.Storage``.

    :param reactor: for threads and time (``IReactorThreads``, ``IReactorCore``, ``IReactorTime``).
    :param opening: called by ``startService`` before any thread exists; recognises, migrates, recovers
        (``opening.open_state``).  What it raises is what ``startService`` raises.
    """

    path: Path
    reactor: Any
    durability: Durability = "normal"
    opening: Callable[[], object] = lambda: None
    clock: IReactorTime = field(kw_only=True)
    on_outside_commit: list[Callable[[], None]] = field(factory=list, kw_only=True)
    """Called within about a second when another process has committed (contract 1.1), or trouble is over."""
    _readers: dict[PoolRole, Pool] = field(factory=dict, init=False)
    _writing: Pool | None = field(default=None, init=False)
    _writer: Writer | None = field(default=None, init=False)
    _beats: Repeating | None = field(default=None, init=False)
    _write_trouble: type[StorageUnavailable] | None = field(default=None, init=False)
    _read_trouble: type[StorageUnavailable] | None = field(default=None, init=False)
    _write_failed: float = field(default=-inf, init=False)
    """When a write last found the database failing (by ``clock``)."""
    _read_failed: float = field(default=-inf, init=False)
    """When a read last failed."""
    _seen: tuple[int, int] | None = field(default=None, init=False)
    _reading: int = field(default=0, init=False)
    _read_out: Deferred[None] | None = field(default=None, init=False)

    @clock.default
    def _reactors_time(self) -> IReactorTime:
        reactor: IReactorTime = self.reactor
        return reactor

    # -- life ---------------------------------------------------------------------------------------

    def startService(self) -> None:
        self.opening()
        try:
            for role, size in READERS.items():
                self._readers[role] = self._pool(role, size, READER_BUSY_MS[role], query_only=True)
            self._writing = self._pool("writer", 1, 1000, query_only=False)
        except BaseException:
            self._close()
            raise
        self._writer = Writer(self._writing, self.clock, self._noted)
        self._seen = None
        self._beats = Repeating(self.beat, self.clock, Wakeup(self.clock))
        self._beats.setName("database")
        self._beats.startService()
        super().startService()

    def _pool(self, name: str, size: int, busy_ms: int, *, query_only: bool) -> Pool:
        return started_pool(
            self.reactor,
            self.path,
            name,
            least=0 if query_only else size,
            most=size,
            durability=self.durability,
            busy_ms=busy_ms,
            query_only=query_only,
        )

    def stopService(self) -> Deferred[None]:
        """Refuse new work, let what was accepted finish, close.  Fires when no thread is left."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        beats, self._beats = self._beats, None
        beating = None if beats is None else beats.stopService()
        if self._writer is not None:
            await self._writer.close()
        if beating is not None:
            await beating
        if self._reading:
            self._read_out = Deferred()
            await self._read_out
            self._read_out = None
        self._close()

    def _close(self) -> None:
        # adbapi's close blocks until its threads are idle: they are.  The writer's last, so that the
        # connection that may write folds the -wal file into the database.
        writing, self._writing = self._writing, None
        for pool in (*self._readers.values(), writing):
            if pool is not None:
                pool.close()
        self._readers.clear()

    # -- the two verbs ------------------------------------------------------------------------------

    def read(
        self, work: Callable[[sqlite3.Cursor, *Ts], T], *args: *Ts, pool: PoolRole = "requests"
    ) -> Deferred[T]:
        """See ``engine.Transactions``.  Cancelling stops the waiting; a read that has begun runs on."""
        if not self.running:
            return fail(problem(StoreClosed))
        abandoned = False

        def abandon(_: Deferred[T]) -> None:
            nonlocal abandoned
            abandoned = True

        def in_thread(connection: Handle) -> T | None:
            if abandoned:
                return None
            with snapshot(connection) as cursor:
                return work(cursor, *args)

        caller: Deferred[T] = Deferred(abandon)

        def done(result: Any) -> None:
            self._reading -= 1
            if not abandoned:
                if isinstance(result, Failure) and isinstance(result.value, StorageUnavailable):
                    self._read_failed = self.clock.seconds()
                    self._change(self._write_trouble, type(result.value))
                caller.callback(result)
            if self._reading == 0 and self._read_out is not None:
                self._read_out.callback(None)

        self._reading += 1
        self._readers[pool].run(in_thread).addBoth(done)
        return caller

    def write(
        self,
        work: Callable[[sqlite3.Cursor, *Ts], T],
        *args: *Ts,
        urgent: bool = False,
        begin_within: float | None = None,
    ) -> Deferred[T]:
        """See ``engine.Transactions``, and ``Writer.submit`` for what cancelling does."""
        if not self.running or self._writer is None:
            return fail(problem(StoreClosed))
        return self._writer.submit(work, *args, urgent=urgent, begin_within=begin_within)

    # -- how it does --------------------------------------------------------------------------------

    def state(self) -> DatabaseState:
        """
        The last trouble, until a success shows that it is over; ``busy`` also while the lock is waited for.

        What is failing, or failed a read, is over when a look finds it so after ``QUIET`` seconds.
        """
        if self._write_trouble is not None:
            return self._write_trouble.state
        waiting = None if self._writer is None else self._writer.waiting_since
        if waiting is not None and self.clock.seconds() - waiting > LONG_WAIT:
            return "busy"
        return "ok" if self._read_trouble is None else self._read_trouble.state

    def _noted(self, trouble: type[StorageUnavailable] | None, changed: bool) -> None:
        if _is_failing(trouble):
            self._write_failed = self.clock.seconds()
        if trouble is not None:
            if trouble is not StoreBusy or not _is_failing(self._write_trouble):
                self._change(trouble, self._read_trouble)
        elif self._write_trouble is StoreBusy or (changed and self._write_trouble is StoreReadOnly):
            # That a full disk has room again, or a failing one is sound, is for a look to say.
            self._change(None, self._read_trouble)

    async def _fold_long_log(self) -> None:
        """So that a database file which refuses writes shows before its log has filled the disk."""
        path = real_path(self.path)
        try:
            size = path.with_name(path.name + "-wal").stat().st_size
        except OSError:
            return
        if size < LONG_LOG or self._writing is None:
            return
        try:
            await self._writing.run(fold)
        except StorageUnavailable as error:
            self._noted(type(error), False)
            raise

    async def _end_troubles(self, roomy: bool) -> None:
        """After a look that succeeded."""
        quiet_since = self.clock.seconds() - QUIET
        write = self._write_trouble
        if write is StoreFull and roomy:
            self._change(None, self._read_trouble)
        failing = _is_failing(write) or _is_failing(self._read_trouble)
        if failing and max(self._write_failed, self._read_failed) <= quiet_since:
            await self.read(prove_sound, pool="workers")
            self._change(None if _is_failing(self._write_trouble) else self._write_trouble, None)
        elif self._read_trouble is not None and not failing and self._read_failed <= quiet_since:
            await self.read(touch_tables, pool="workers")
            self._change(self._write_trouble, None)

    def _change(self, write: type[StorageUnavailable] | None, read: type[StorageUnavailable] | None) -> None:
        before = self._write_trouble or self._read_trouble
        self._write_trouble, self._read_trouble = write, read
        after = write or read
        if before is after:
            return
        if after is None:
            log.info("the database works again")
            if not _is_failing(before):
                # Whoever backs off on its account need not wait any longer.  A failing disk may take the
                # small write of a look and refuse a batch: there the back-offs stand.
                self._seen = None
        elif before is None or before.state != after.state:
            log.warn(
                "the database {path} is not available: {state}; {why}",
                path=str(self.path),
                state=after.state,
                why=str(problem(after)),
            )

    async def beat(self) -> float:
        """
        One look: shows a held lock, sees the end of a trouble, notices commits of other processes.

        It joins whatever group is under way, and the next begins when it has ended: looks never pile up.
        """
        if self._writer is None:
            return BEAT
        trouble = self._write_trouble
        try:
            seen = await self._writer.submit(
                look,
                self.path.absolute().parent,
                trouble,
                _is_failing(trouble) or _is_failing(self._read_trouble),
                urgent=True,
                patience=BEAT_PATIENCE,
            )
            await self._fold_long_log()
            if trouble is self._write_trouble:  # otherwise the look was for another
                await self._end_troubles(seen.roomy)
        except StorageUnavailable:
            return BEAT
        at = (seen.connection, seen.version)
        if at != self._seen:
            self._seen = at
            for call in self.on_outside_commit:
                try:
                    call()
                except Exception:
                    log.failure("a listener to commits of other processes failed")
        return BEAT


def _is_failing(trouble: type[StorageUnavailable] | None) -> bool:
    return trouble is not None and issubclass(trouble, StoreFailing)
