"""
The two verbs of the database, done at once on one connection: for commands, which have no reactor.

The Deferreds have fired when they are returned, so that a coroutine over them runs to its end in one go
(``Deferred.fromCoroutine``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from attrs import define
from twisted.internet.defer import Deferred, execute

from telegrammer.store.engine import PoolRole, immediate, snapshot

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PATIENCE = 5.0
"""Seconds a transaction waits for the write lock at the most (contract 1.1)."""


@define(eq=False)
class InlineTransactions:
    """
    Implements ``engine.Transactions``; one after the other, in the order of the calls.

    :param connection: of `engine.connect` or `opening.connect_for_command`; whoever gave it closes it.
    """

    connection: sqlite3.Connection

    def read(
        self, work: Callable[[sqlite3.Cursor, *Ts], T], *args: *Ts, pool: PoolRole = "requests"
    ) -> Deferred[T]:
        return execute(self._read, lambda cursor: work(cursor, *args))

    def write(
        self,
        work: Callable[[sqlite3.Cursor, *Ts], T],
        *args: *Ts,
        urgent: bool = False,
        begin_within: float | None = None,
    ) -> Deferred[T]:
        patience = PATIENCE if begin_within is None else min(begin_within, PATIENCE)
        return execute(self._write, lambda cursor: work(cursor, *args), patience)

    def _read(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        self.connection.execute("PRAGMA query_only=ON")
        try:
            with snapshot(self.connection) as cursor:
                return work(cursor)
        finally:
            self.connection.execute("PRAGMA query_only=OFF")

    def _write(self, work: Callable[[sqlite3.Cursor], T], patience: float) -> T:
        self.connection.execute(f"PRAGMA busy_timeout={max(1, round(patience * 1000)):d}")
        with immediate(self.connection) as cursor:
            return work(cursor)
