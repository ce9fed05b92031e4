"""The worker and its player over a journal in memory, with what may go wrong in the test's hand."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from attrs import define, field
from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.logger import LogEvent, LogLevel, capturedLogs, formatEvent

from telegrammer.core.folding import Folded, Outcome
from telegrammer.core.ingestion import Cursor, Ingested
from telegrammer.core.telegram import Batch
from telegrammer.ingest.ingestor import Ingestor
from telegrammer.ingest.journal_worker import JournalWorker
from telegrammer.ingest.player import Player
from telegrammer.ports import Ingestion
from telegrammer.store.engine import PoolRole
from telegrammer.store.ingestion import SqlIngestion
from telegrammer.store.journal import SqlJournal
from tests.support.inline_database import InlineDatabase
from tests.support.journal_case import JournalCase

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@define(eq=False)
class StagedIngestion:
    """``ports.Ingestion``, of which `fold` may be held up, or fail before it has done anything."""

    inner: Ingestion
    troubles: dict[int, Exception] = field(factory=dict)
    """By entry; it fails so until the test takes it out."""
    gate: Deferred[None] | None = None
    """While set, a fold that has begun waits for it."""
    begun: list[int] = field(factory=list)
    """The entries whose fold has begun, in order."""
    on_fold: Callable[[int], object] = lambda entry_id: None
    """Told of the entry when its fold begins."""

    async def bind(self, bot_id: int) -> None:
        await self.inner.bind(bot_id)

    async def cursor(self) -> Cursor:
        return await self.inner.cursor()

    async def accept(self, batch: Batch) -> Ingested:
        return await self.inner.accept(batch)

    async def fold(self, entry_id: int) -> Folded:
        self.begun.append(entry_id)
        self.on_fold(entry_id)
        if self.gate is not None:
            await self.gate
        if entry_id in self.troubles:
            raise self.troubles[entry_id]
        return await self.inner.fold(entry_id)


class BreakingCursor(sqlite3.Cursor):
    """Raises ``error`` in place of the statement whose number is ``at``, from 1."""

    at = 0
    error: Exception = RuntimeError()
    count = 0

    def execute(self, *arguments: Any) -> BreakingCursor:
        self._step()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> BreakingCursor:
        self._step()
        return super().executemany(*arguments)

    def _step(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise self.error


@define(eq=False)
class StagedDatabase:
    """``engine.Transactions`` that counts reads, and whose verbs may fail."""

    inner: InlineDatabase
    read_trouble: Exception | None = None
    write_trouble: Exception | None = None
    reading: Deferred[Any] | None = None
    """While set, what a read answers with."""
    reads: int = 0
    break_at: int = 0
    """The statement of the next transaction, from 1, that raises …"""
    error: Exception = field(factory=RuntimeError)
    """… this; 0: none does."""

    def read(
        self, work: Callable[[sqlite3.Cursor, *Ts], T], *args: *Ts, pool: PoolRole = "requests"
    ) -> Deferred[T]:
        self.reads += 1
        if self.reading is not None:
            return self.reading
        if self.read_trouble is not None:
            return fail(self.read_trouble)
        return self.inner.read(work, *args, pool=pool)

    def write(
        self,
        work: Callable[[sqlite3.Cursor, *Ts], T],
        *args: *Ts,
        urgent: bool = False,
        begin_within: float | None = None,
    ) -> Deferred[T]:
        if self.write_trouble is not None:
            return fail(self.write_trouble)
        at, self.break_at = self.break_at, 0

        def broken(cursor: sqlite3.Cursor, *args: *Ts) -> T:
            breaking = cursor.connection.cursor(BreakingCursor)
            breaking.at, breaking.error = at, self.error
            return work(breaking, *args)

        return self.inner.write(broken, *args, urgent=urgent, begin_within=begin_within)


class FoldingCase(JournalCase):
    portion = 100

    def setUp(self) -> None:
        super().setUp()
        self.clock = Clock()
        self.rings = 0
        self.staged_database = StagedDatabase(self.database)
        self.journal = SqlJournal(self.staged_database, lambda: self.now)
        self.ingestion = SqlIngestion(self.staged_database, self.max_jobs, lambda: self.now)
        self.staged = StagedIngestion(self.ingestion)
        self.worker = self.new_worker()
        self.events = self.enterContext(capturedLogs())

    def new_worker(self) -> JournalWorker:
        """As after a restart."""
        player = Player(Ingestor(self.staged, self.ring), self.journal)
        return JournalWorker(player, self.journal, self.clock, lambda: self.now, self.portion)

    def ring(self) -> None:
        self.rings += 1

    def fold_pass(self) -> Outcome:
        return self.successResultOf(self.begin_pass())

    def begin_pass(self) -> Deferred[Outcome]:
        return Deferred.fromCoroutine(self.worker.fold_pass())

    def lines(self, *levels: LogLevel) -> list[str]:
        """What the log says from the given levels (all: without debug)."""
        return [formatEvent(event) for event in self.events if _level(event) in (levels or LOUD)]


LOUD = (LogLevel.info, LogLevel.warn, LogLevel.error, LogLevel.critical)


def _level(event: LogEvent) -> LogLevel:
    level: LogLevel = event["log_level"]
    return level
