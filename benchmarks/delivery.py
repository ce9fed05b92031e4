"""Delivering: durable and ordered against a bare client; a long drain beside sick receivers."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any
from urllib.request import urlopen

from attrs import define, field
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.threads import deferToThread
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.http_headers import Headers

from benchmarks.harness import BODY, Figure, State, at_least, at_most, batch, middle, pause, peer, state
from telegrammer.core.delivery import Done, Finished, Slots, Turn
from telegrammer.core.retry import Schedule
from telegrammer.delivery.dispatcher import Dispatcher
from telegrammer.outbound.callbacks import CallbackClient, CallbackLimits
from telegrammer.outbound.exchange import WholeBody, read_body
from telegrammer.outbound.resolver import ThreadedResolver
from telegrammer.outbound.tls import policy_for_https
from telegrammer.ports import Now
from telegrammer.store.database import Database
from telegrammer.store.deliveries import SqlDeliveries
from telegrammer.store.ingestion import SqlIngestion
from telegrammer.store.turns import QueueRules

LANES = 1000


@define(eq=False)
class Watched:
    """The deliveries, and when how many were done."""

    inner: SqlDeliveries
    total: int
    done: int = 0
    moments: list[tuple[float, int]] = field(factory=list)
    finished: Deferred[None] = field(factory=Deferred)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def turn(self, finished: Sequence[Finished], slots: Slots, now: Now) -> Deferred[Turn]:
        count = sum(isinstance(each.verdict, Done) for each in finished)

        def note(turn: Turn) -> Turn:
            self.done += count
            self.moments.append((time.perf_counter(), self.done))
            if self.done >= self.total and not self.finished.called:
                self.finished.callback(None)
            return turn

        return self.inner.turn(finished, slots, now).addCallback(note)


async def drained(reactor: Any, made: State, total: int, workers: int, during: Any = None) -> Watched:
    """Deliver ``total`` jobs with the daemon's own parts."""
    database = Database(made.path, reactor)
    database.startService()
    schedule = Schedule()
    deliveries = SqlDeliveries(database, time.time, QueueRules(schedule.attempts, 10**7))
    watched = Watched(deliveries, total)
    resolver = ThreadedResolver(reactor, reactor)
    limits = CallbackLimits(idle_connections=max(64, workers))
    client = CallbackClient(reactor, reactor, resolver, policy_for_https(), "bench", limits)
    dispatcher = Dispatcher(watched, client, reactor, time.time, random.random, schedule, workers)
    watched.moments.append((time.perf_counter(), 0))
    dispatcher.startService()
    if during is not None:
        await during(database, dispatcher)
    await watched.finished
    await dispatcher.stopService()
    await client.close()
    resolver.stop()
    await database.stopService()
    return watched


async def bare(reactor: Any, port: int, total: int, concurrency: int) -> float:
    """POSTs a second of a loop around ``Agent`` with a pool of connections, and nothing else."""
    pool = HTTPConnectionPool(reactor)
    pool.maxPersistentPerHost = concurrency
    agent = Agent(reactor, pool=pool)
    url = b"http://127.0.0.1:%d/hook" % port
    headers = Headers({b"content-type": [b"application/json"]})
    left = total

    async def loop() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            response = await agent.request(b"POST", url, headers, WholeBody(BODY))
            await read_body(response, 65536)

    began = time.perf_counter()
    await gatherResults([Deferred.fromCoroutine(loop()) for _ in range(concurrency)])
    rate = total / (time.perf_counter() - began)
    await pool.closeCachedConnections()
    return rate


async def against_a_bare_client(reactor: Any, quick: bool) -> list[Figure]:
    """64 slots, durable and ordered, against a bare ``Agent`` POST loop: at least twice as fast."""
    rounds, updates, posts = (3, 8, 4000) if quick else (5, 30, 15_000)
    ratios, ours, theirs = [], [], []
    with peer("receiver") as receiver:
        for _ in range(rounds):
            with state() as made:
                made.subscribe([f"http://127.0.0.1:{receiver.port}/hook/{n}" for n in range(LANES)])
                total = made.ingest(1, updates)
                watched = await drained(reactor, made, total, 64)
                took = watched.moments[-1][0] - watched.moments[0][0]
            rate = await bare(reactor, receiver.port, posts, 64)
            ours.append(total / took)
            theirs.append(rate)
            ratios.append(ours[-1] / rate)
    detail = f"{middle(ours):,.0f} jobs/s against {middle(theirs):,.0f} posts/s of Agent"
    return [at_least("64 slots / bare Agent", middle(ratios), 2, detail)]


async def beside_sick_receivers(reactor: Any, quick: bool) -> list[Figure]:
    """A drain with 10 sick lanes: as fast in the end as in the beginning, and nobody healthy waits."""
    per_lane = 30 if quick else 101
    figures = []
    with peer("receiver") as receiver:
        hook = f"http://127.0.0.1:{receiver.port}"
        with state() as made:
            made.subscribe([f"{hook}/hook/{n}" for n in range(LANES - 10)])
            made.subscribe([f"{hook}/sick/{n}" for n in range(10)])
            made.ingest(1, per_lane)
            total = (LANES - 10) * per_lane
            watched = await drained(reactor, made, total, 64)
        figures.append(deciles(watched, total))
        with state() as made:
            made.subscribe([f"{hook}/hook/{n}" for n in range(LANES - 10)])
            made.subscribe([f"{hook}/sick/{n}" for n in range(10)])
            made.subscribe([f"{hook}/probe/{n}" for n in range(5)], chat=77)
            made.ingest(1, per_lane)
            waits: list[float] = []

            async def probe(database: Database, dispatcher: Dispatcher) -> None:
                ingestion = SqlIngestion(database, 10**7, time.time)
                await pause(reactor, 0.3)
                for n in range(5):
                    began = time.monotonic()
                    await ingestion.accept(batch(10_000 + n, 1, chat=77))
                    dispatcher.wake()
                    when = 0.0
                    while when < began:
                        await pause(reactor, 0.02)
                        when = float(await deferToThread(fetch, f"{hook}/latest"))
                    waits.append(when - began)

            await drained(reactor, made, total, 4, probe)
        detail = "4 workers, a full queue, 10 sick lanes; worst of 5 messages to 5 healthy lanes"
        figures.append(at_most("a healthy lane's new message (s)", max(waits), 1, detail))
    return figures


def deciles(watched: Watched, total: int) -> Figure:
    """The rate of the last tenth against that of the first."""

    def reached(count: float) -> float:
        return next(at for at, done in watched.moments if done >= count)

    first = total / 10 / (reached(total / 10) - watched.moments[0][0])
    last = total / 10 / (reached(total) - reached(total * 9 / 10))
    detail = f"{total:,} jobs, 10 sick lanes: first tenth {first:,.0f}/s, last {last:,.0f}/s"
    return at_least("last decile / first decile", last / first, 0.7, detail)


def fetch(url: str) -> bytes:
    with urlopen(url, timeout=10) as answer:
        content: bytes = answer.read()
    return content
