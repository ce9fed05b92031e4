"""The dispatcher over the real database and its threads: everything once, in order, also over a crash."""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from twisted.internet.defer import Deferred

from telegrammer.core.delivery import Answered, AttemptResult, Claimed
from telegrammer.core.retry import Schedule
from telegrammer.delivery.dispatcher import Dispatcher
from telegrammer.store import deliveries
from telegrammer.store.database import Database
from telegrammer.store.deliveries import SqlDeliveries
from telegrammer.store.engine import connect, immediate
from telegrammer.store.opening import open_state
from telegrammer.store.recovery import violations
from telegrammer.store.turns import QueueRules
from tests.integration.conftest import bounded
from tests.support.delivery_queue import DeliveryQueue
from tests.support.inline_database import InlineDatabase

SCHEDULE = Schedule((1, 1))


@define(eq=False)
class Receiver:
    """Answers after a turn of the reactor; ``expect`` fires when so many posts have come."""

    reactor: Any
    answer: Callable[[Claimed], AttemptResult] = lambda job: Answered(200)
    got: dict[int, list[str]] = field(factory=lambda: defaultdict(list))
    under_way: set[int] = field(factory=set)
    most: int = 0
    _awaited: list[tuple[int, Deferred[None]]] = field(factory=list)

    def expect(self, posts: int) -> Deferred[None]:
        enough: Deferred[None] = Deferred()
        self._awaited.append((posts, enough))
        self.check()
        return enough

    def post(self, job: Claimed) -> Deferred[AttemptResult]:
        return Deferred.fromCoroutine(self._post(job))

    async def _post(self, job: Claimed) -> AttemptResult:
        assert job.subscription_id not in self.under_way
        self.under_way.add(job.subscription_id)
        self.most = max(self.most, len(self.under_way))
        turn: Deferred[None] = Deferred()
        self.reactor.callLater(0, turn.callback, None)
        await turn
        self.under_way.remove(job.subscription_id)
        self.got[job.subscription_id].append(job.delivery_id)
        self.check()
        return self.answer(job)

    def check(self) -> None:
        posts = sum(len(each) for each in self.got.values())
        for awaited in [each for each in self._awaited if posts >= each[0]]:
            self._awaited.remove(awaited)
            self.reactor.callLater(0, awaited[1].callback, None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue of 40 lanes with 25 jobs each, on disk."""
    target = tmp_path / "queue.db"
    open_state(target, bot_digits=None, now=time.time)
    with closing(connect(target)) as connection, immediate(connection):
        queue = DeliveryQueue(InlineDatabase(connection), now=int(time.time()))
        for _ in range(40):
            queue.subscribe()
        queue.ingest(count=25)
    return target


def look(path: Path, work: Callable[[sqlite3.Cursor], Any]) -> Any:
    with closing(connect(path)) as connection, immediate(connection) as cursor:
        return work(cursor)


def build(path: Path, reactor: Any, receiver: Receiver, workers: int = 16) -> tuple[Database, Dispatcher]:
    database = Database(path, reactor, opening=lambda: open_state(path, bot_digits=None, now=time.time))
    store = SqlDeliveries(database, time.time, QueueRules(SCHEDULE.attempts))
    dispatcher = Dispatcher(store, receiver, reactor, time.time, lambda: 0.5, SCHEDULE, workers)
    database.on_outside_commit.append(dispatcher.wake)
    database.startService()
    dispatcher.startService()
    return database, dispatcher


async def stop(database: Database, dispatcher: Dispatcher) -> None:
    await dispatcher.stopService()
    await database.stopService()


@bounded(60)
async def test_every_job_once_and_in_order(path: Path, reactor: Any) -> None:
    receiver = Receiver(reactor)
    services = build(path, reactor, receiver)
    await receiver.expect(1000)
    await stop(*services)
    for lane, got in receiver.got.items():
        assert got == [f"123456789-{lane}-0-{update}" for update in range(1, 26)]
    assert 1 < receiver.most <= 16
    assert look(path, deliveries.counts).pending == 0
    assert look(path, violations) == []


@bounded(60)
async def test_a_stop_leaves_nothing_in_flight(path: Path, reactor: Any) -> None:
    receiver = Receiver(reactor)
    services = build(path, reactor, receiver)
    await receiver.expect(100)
    await stop(*services)
    done = sum(len(each) for each in receiver.got.values())
    counts = look(path, deliveries.counts)
    assert (counts.in_flight, counts.pending) == (0, 1000 - done)
    again = Receiver(reactor)
    services = build(path, reactor, again)
    await again.expect(1000 - done)
    await stop(*services)
    for lane in receiver.got:
        assert len(set(receiver.got[lane] + again.got[lane])) == 25


@bounded(60)
async def test_another_process_wakes_it(path: Path, reactor: Any) -> None:
    receiver = Receiver(reactor, lambda job: Answered(404))
    services = build(path, reactor, receiver)
    await receiver.expect(1000)
    # A stop fires when the last results are committed.
    await services[1].stopService()
    services[1].startService()
    assert look(path, deliveries.counts).dead == 1000
    receiver.answer = lambda job: Answered(200)
    assert look(path, lambda cursor: deliveries.retry_all(cursor, time.time())) == 1000
    began = time.monotonic()
    await receiver.expect(1001)
    assert time.monotonic() - began < 4
    await receiver.expect(2000)
    await stop(*services)
    assert look(path, deliveries.counts).dead == 0


@bounded(60)
async def test_a_locked_database_costs_no_second_post(path: Path, reactor: Any) -> None:
    receiver = Receiver(reactor)
    services = build(path, reactor, receiver)
    await receiver.expect(100)
    with closing(connect(path)) as theirs, immediate(theirs):
        backing_off: Deferred[None] = Deferred()

        def look_again() -> None:
            if services[1].status().state == "backing_off":
                backing_off.callback(None)
            else:
                reactor.callLater(0.05, look_again)

        look_again()
        await backing_off
    await receiver.expect(1000)
    await stop(*services)
    for lane, got in receiver.got.items():
        assert got == [f"123456789-{lane}-0-{update}" for update in range(1, 26)]
    assert look(path, violations) == []
