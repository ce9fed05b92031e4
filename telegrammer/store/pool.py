"""
Connections lent to functions in threads: ``adbapi`` with the transactions left to us (contract 4).

``adbapi`` lends one connection to one function in one thread, which is all we want of it: its own ``commit``
and ``rollback`` do nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from twisted.enterprise import adbapi
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from telegrammer.core.problems import StoreMoved
from telegrammer.store.engine import Durability, Handle, prepare, problem, translate, uri
from telegrammer.store.files import KnownFile

T = TypeVar("T")


class Lent(adbapi.Connection):
    """adbapi's hold on a connection: opened anew when stale; transactions are left to us."""

    def __init__(self, pool: Pool) -> None:
        # First, for neither may another file be opened, nor the hold on one that is gone be given up.
        pool.check_file()
        super().__init__(pool)
        if self.handle.stale:
            self.reconnect()

    @property
    def handle(self) -> Handle:
        connection = self._connection
        assert isinstance(connection, Handle)
        return connection

    def commit(self) -> None:
        """Nothing: what runs here has ended its transaction."""

    def rollback(self) -> None:
        """Nothing: what runs here has ended its transaction."""


class Pool(adbapi.ConnectionPool):
    """Connections and their threads; never closed while something runs in one of them."""

    connectionFactory = Lent
    file: KnownFile
    """Which the connections are of."""

    def check_file(self) -> None:
        """:raises StoreMoved: the file no longer has its name."""
        if not self.file.is_there():
            raise problem(StoreMoved)

    def run(self, work: Callable[[Handle], T]) -> Deferred[T]:
        """
        The result of ``work`` in a thread.

        :raises StorageUnavailable: (as a failure) no connection could be opened.
        """
        running: Deferred[T] = self.runWithConnection(lambda lent: work(lent.handle))
        return running.addErrback(_translated)


def _translated(failure: Failure) -> Failure:
    trouble = translate(failure.value)
    return failure if trouble is None else Failure(trouble)


def started_pool(
    reactor: Any,
    path: Path,
    name: str,
    *,
    least: int,
    most: int,
    durability: Durability,
    busy_ms: int,
    query_only: bool,
) -> Pool:
    """
    A pool that works from now on; its ``close`` blocks until its threads are idle.

    :param least: threads that are there from the start; the others come when wanted, up to ``most``.
    """
    pool = Pool(
        "sqlite3",
        uri(path),
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        factory=Handle,
        cp_reactor=reactor,
        cp_name=f"database-{name}",
        cp_min=least,
        cp_max=most,
        cp_openfun=partial(prepare, durability=durability, busy_ms=busy_ms, query_only=query_only),
    )
    pool.file = KnownFile.of(path)
    pool.start()
    return pool
