"""
The twin of ``store.database.Database`` for unit tests: the same verbs, at once, on one connection in memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from attrs import define, field
from twisted.internet.defer import Deferred, fail

from telegrammer.core.problems import StorageUnavailable
from telegrammer.store.engine import PoolRole, connect, immediate
from telegrammer.store.inline import InlineTransactions
from telegrammer.store.migrations import LATEST, MIGRATIONS

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def migrated_connection() -> sqlite3.Connection:
    """A database in memory with the latest layout; foreign keys on, transactions explicit."""
    connection = connect(":memory:")
    with immediate(connection) as cursor:
        for statements in MIGRATIONS:
            for statement in statements:
                cursor.execute(statement)
        cursor.execute(f"PRAGMA user_version={LATEST}")
    return connection


@define(eq=False)
class InlineDatabase:
    """
    Implements ``engine.Transactions``; ``connection`` is there for a test to prepare and to look.

    Set ``trouble`` to make every operation fail with it before it begins, as a held lock does.
    """

    connection: sqlite3.Connection = field(factory=migrated_connection)
    trouble: StorageUnavailable | None = None
    urgent: list[bool] = field(factory=list)
    """What ``write`` was told, call by call."""
    pools: list[PoolRole] = field(factory=list)
    """What ``read`` was told, call by call."""

    def read(
        self, work: Callable[[sqlite3.Cursor, *Ts], T], *args: *Ts, pool: PoolRole = "requests"
    ) -> Deferred[T]:
        self.pools.append(pool)
        if self.trouble is not None:
            return fail(self.trouble)
        return InlineTransactions(self.connection).read(work, *args, pool=pool)

    def write(
        self,
        work: Callable[[sqlite3.Cursor, *Ts], T],
        *args: *Ts,
        urgent: bool = False,
        begin_within: float | None = None,
    ) -> Deferred[T]:
        self.urgent.append(urgent)
        if self.trouble is not None:
            return fail(self.trouble)
        return InlineTransactions(self.connection).write(
            work, *args, urgent=urgent, begin_within=begin_within
        )

    def close(self) -> None:
        self.connection.close()
