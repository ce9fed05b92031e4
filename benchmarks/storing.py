"""Storing: a large batch against bare rows; an API write while it is ingested."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import Any

from twisted.internet.defer import Deferred, gatherResults

from benchmarks.harness import BODY, Figure, State, at_most, batch, middle, pause, state
from telegrammer.core.subscriptions import SubscriptionLimits
from telegrammer.store.database import Database
from telegrammer.store.ingestion import SqlIngestion
from telegrammer.store.subscriptions import SqlSubscriptions

SUBSCRIPTIONS = 1000
UPDATES = 100
JOBS = SUBSCRIPTIONS * UPDATES


def crowd(made: State) -> None:
    made.subscribe([f"http://127.0.0.1:9/{n}" for n in range(SUBSCRIPTIONS)])


def bare_rows(made: State) -> float:
    """Seconds to insert as many bare rows, each with the message, in one transaction."""
    with closing(sqlite3.connect(made.folder / "bare.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("CREATE TABLE bare(id INTEGER PRIMARY KEY, subscription_id, update_id, body BLOB)")
        began = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO bare(subscription_id, update_id, body) VALUES (?, ?, ?)",
            ((n % SUBSCRIPTIONS, n // SUBSCRIPTIONS, BODY) for n in range(JOBS)),
        )
        connection.execute("COMMIT")
        return time.perf_counter() - began


async def a_large_batch(reactor: Any, quick: bool) -> list[Figure]:
    """100 updates for 1,000 subscriptions, against inserting 100,000 bare rows: at most three times."""
    ratios, ours, theirs = [], [], []
    for _ in range(3 if quick else 7):
        with state() as made:
            crowd(made)
            began = time.perf_counter()
            assert made.ingest(1, UPDATES) == JOBS
            ours.append(time.perf_counter() - began)
            theirs.append(bare_rows(made))
            ratios.append(ours[-1] / theirs[-1])
    detail = f"{middle(ours):.3f} s against {middle(theirs):.3f} s"
    return [at_most("100 x 1,000 batch / bare rows", middle(ratios), 3, detail)]


async def an_api_write_beside_it(reactor: Any, quick: bool) -> list[Figure]:
    """The p99 of ``POST /subscribe``'s write while a batch that fills the queue is ingested."""
    times: list[float] = []
    for _ in range(3 if quick else 8):
        with state() as made:
            crowd(made)
            database = Database(made.path, reactor)
            database.startService()
            times += await writes_beside_a_batch(reactor, database)
            await database.stopService()
    times.sort()
    p99 = times[int(len(times) * 0.99)]
    detail = f"{len(times)} writes, median {times[len(times) // 2] * 1000:.1f} ms, worst {times[-1]:.3f} s"
    return [at_most("API write p99 beside a batch (s)", p99, 0.5, detail)]


async def writes_beside_a_batch(reactor: Any, database: Database) -> list[float]:
    ingestion = SqlIngestion(database, JOBS, time.time)
    subscriptions = SqlSubscriptions(database, SubscriptionLimits(10**6, 10**6), time.time)
    times: list[float] = []
    written: list[Deferred[None]] = []
    ingested = False

    async def write(n: int) -> None:
        began = time.perf_counter()
        await subscriptions.add(1, 6, f"http://127.0.0.1:9/{n}")
        times.append(time.perf_counter() - began)

    async def callers() -> None:
        while not ingested:
            written.append(Deferred.fromCoroutine(write(len(written))))
            await pause(reactor, 0.002)

    calling = Deferred.fromCoroutine(callers())
    assert (await ingestion.accept(batch(1, UPDATES))).jobs == JOBS
    ingested = True
    await calling
    await gatherResults(written)
    return times
