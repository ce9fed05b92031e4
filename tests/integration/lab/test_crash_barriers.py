"""
Killed at every commit boundary, one by one: the daemon stands at a barrier there, and no handler of its runs.

In the quick form one cycle each; in the full form a hundred, and two hundred kills at random under load.
"""

from __future__ import annotations

import http.client
import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from attrs import frozen

from telegrammer.core.delivery import Slots
from telegrammer.core.subscriptions import SubscriptionLimits
from telegrammer.core.telegram import Batch
from telegrammer.store import subscriptions
from telegrammer.store.engine import connect, immediate
from telegrammer.store.ingestion import accept, bind
from telegrammer.store.layout import Layout, Legacy, Ours, recognise
from telegrammer.store.migrations import MIGRATIONS
from telegrammer.store.recovery import violations
from telegrammer.store.turns import QueueRules, take_turn
from tests.support.barrier_daemon import barrier
from tests.support.daemon import BOT_ID, PATIENCE
from tests.support.gateway import CHAT, Gateway
from tests.support.lab import full_only, repetitions
from tests.support.old_database import OLD_KEYS, old_database
from tests.support.oracle import Oracle
from tests.support.queue_checks import text

cycles = pytest.mark.parametrize("cycle", range(repetitions(1, 100)))


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)


# -- the queue -------------------------------------------------------------------------------------------


@frozen
class Then:
    """How things stand at a boundary, with three messages for one subscription."""

    point: str
    jobs: int
    in_flight: int
    received: int
    repeated: int = 0


BOUNDARIES = (
    Then("before the commit of: ingest", jobs=0, in_flight=0, received=0),
    Then("after the commit of: ingest", jobs=3, in_flight=0, received=0),
    Then("before the commit of: claim", jobs=3, in_flight=0, received=0),
    Then("after the commit of: claim", jobs=3, in_flight=1, received=0),
    Then("before the commit of: completion", jobs=3, in_flight=1, received=1, repeated=1),
    Then("after the commit of: completion", jobs=2, in_flight=1, received=1),
)


def send_three_in_one_batch(oracle: Oracle) -> None:
    """With the daemon at rest, so that each step is a transaction of its own."""
    api = oracle.gateway.api
    api.withhold = True
    api.wait_until(lambda: api.open_polls == 1)
    oracle.subscribe()
    # Whatever turn of the workers was under way at the first is over at the second: one queue, one writer.
    oracle.subscribe("/elsewhere", CHAT + 1)
    oracle.messages(3)
    api.withhold = False


def jobs(gateway: Gateway) -> tuple[int, int]:
    """(all, in flight), as committed."""
    ((count, in_flight),) = gateway.query(
        "SELECT count(*), coalesce(sum(state = 'IN_FLIGHT'), 0) FROM deliveries"
    )
    return count, in_flight


@pytest.mark.report("A3")
@pytest.mark.report("H5")
@cycles
@pytest.mark.parametrize("then", BOUNDARIES, ids=lambda then: then.point)
def test_killed_at_a_commit_of_the_queue(gateway: Gateway, oracle: Oracle, then: Then, cycle: int) -> None:
    """Nothing is lost, nothing reordered; repeated is what was answered and not yet written, no more."""
    with barrier(gateway.daemon, then.point) as stand:
        gateway.start()
        send_three_in_one_batch(oracle)
        stand.wait()
        assert jobs(gateway) == (then.jobs, then.in_flight)
        assert len(gateway.receiver.on(None)) == then.received
        gateway.daemon.kill()
    assert oracle.check() == []
    assert jobs(gateway) == (then.jobs, then.in_flight)

    gateway.daemon.start()
    repeats = oracle.settle()
    assert repeats == [callback.delivery_id for callback in gateway.receiver.on(None)[: then.repeated]]


@pytest.mark.report("H5")
@cycles
def test_killed_after_the_receiver_has_read(gateway: Gateway, oracle: Oracle, cycle: int) -> None:
    gateway.receiver.policy = lambda callback: None
    gateway.start()
    oracle.subscribe()
    oracle.messages(3)
    (held,) = gateway.receiver.wait_for(1)
    gateway.daemon.kill()
    assert oracle.check() == []

    gateway.receiver.policy = lambda callback: 200
    gateway.daemon.start()
    assert oracle.settle() == [held.delivery_id]


def test_a_barrier_that_is_released_changes_nothing(gateway: Gateway, oracle: Oracle) -> None:
    """The control: the same daemon, merely late; and it holds on to nothing."""
    with barrier(gateway.daemon, "after the commit of: claim") as stand:
        gateway.start()
        oracle.subscribe()
        oracle.messages(3)
        stand.wait()
        stand.release()
    assert oracle.settle() == []
    oracle.base_line()
    oracle.messages(20, "more")
    assert oracle.settle() == []
    oracle.check_base_line()
    assert gateway.daemon.stop() == 0


@full_only
@pytest.mark.parametrize("seed", range(repetitions(1, 20)))
def test_killed_at_random_under_load(gateway: Gateway, oracle: Oracle, seed: int) -> None:
    """Ten kills each: repeated is at most what four workers had in flight."""
    chance = random.Random(seed)
    gateway.start()
    for path in ("/a", "/b", "/c", "/d", "/e"):
        oracle.subscribe(path)
    kills = 10
    for life in range(kills):
        oracle.messages(100, f"life {life}")
        arrived = len(gateway.receiver.on(None))
        gateway.receiver.wait_for(arrived + chance.randint(1, 450))
        gateway.daemon.kill()
        oracle.check()
        gateway.daemon.start()
    assert len(oracle.settle()) <= 4 * kills


# -- subscriptions -----------------------------------------------------------------------------------------


class Callers:
    """Subscribes from many threads at once, and keeps what was answered."""

    def __init__(self, gateway: Gateway, pool: ThreadPoolExecutor, count: int) -> None:
        self.answered: dict[str, int] = {}
        self._news = threading.Condition()
        self._gateway = gateway
        self._calls = [pool.submit(self._call, f"/{number}") for number in range(count)]

    def _call(self, path: str) -> None:
        wanted = {"chat_id": CHAT, "callback_url": self._gateway.callback_url(path)}
        try:
            reply = self._gateway.daemon.request("POST", "/subscribe", wanted)
        except (OSError, http.client.HTTPException):
            return  # The daemon is dead: this caller knows nothing.
        if reply.status == 503:
            return  # It has waited 5 s for a turn, on a machine that is busy with other tests.
        assert reply.status == 200, reply
        with self._news:
            self.answered[path] = reply.json["subscription_id"]
            self._news.notify_all()

    def wait_for(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.answered) >= count, PATIENCE)

    def finish(self) -> None:
        """Every caller has its answer, or none; what failed otherwise is raised."""
        done, unfinished = wait(self._calls, PATIENCE)
        assert not unfinished
        for call in done:
            call.result()


@contextmanager
def callers(gateway: Gateway, count: int) -> Iterator[Callers]:
    with ThreadPoolExecutor(count) as pool:
        yield Callers(gateway, pool, count)


def listed(gateway: Gateway) -> dict[str, int]:
    """Path and id of each subscription, as its owner sees it."""
    reply = gateway.daemon.request("GET", "/subscriptions")
    assert reply.status == 200
    there = reply.json["subscriptions"]
    return {urlsplit(each["callback_url"]).path: each["subscription_id"] for each in there}


@cycles
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_the_commit_of_a_subscription(gateway: Gateway, when: str, cycle: int) -> None:
    """Nobody is answered before the commit, however many wait behind it."""
    with barrier(gateway.daemon, f"{when} the commit of: subscribe") as stand:
        gateway.start()
        with callers(gateway, 8) as many:
            stand.wait()
            gateway.daemon.kill()
            many.finish()
    assert many.answered == {}

    gateway.daemon.start()
    there = listed(gateway)
    assert bool(there) == (when == "after")
    for path, subscription_id in there.items():
        assert gateway.subscribe(path) == subscription_id, "asked again, it is the same"


@cycles
def test_what_was_answered_200_is_there_after_a_kill(gateway: Gateway, oracle: Oracle, cycle: int) -> None:
    """The group that waited behind the barrier is committed as one; the kill comes amid its answers."""
    with barrier(gateway.daemon, "before the commit of: subscribe") as stand:
        gateway.start()
        with callers(gateway, 24) as many:
            stand.wait()
            assert many.answered == {}
            stand.release()
            many.wait_for(6)
            gateway.daemon.kill()
            many.finish()
    assert len(many.answered) >= 6

    gateway.daemon.start()
    there = listed(gateway)
    assert many.answered.items() <= there.items()
    for path, subscription_id in there.items():
        oracle.answered(subscription_id, path)
    oracle.messages(2)
    assert oracle.settle() == []


# -- migration and backup ----------------------------------------------------------------------------------

LAST_STATEMENT = len(MIGRATIONS[0]) + 1 + OLD_KEYS + 1
"""The layout, its number, a row for each key, and the old table's end."""


def backups(gateway: Gateway) -> list[Path]:
    return sorted(gateway.daemon.state.glob("*.backup-*"))


def is_complete(backup: Path) -> bool:
    """Every old key is in it, and nothing is wrong with it; of the old layout, or of a step on the way."""
    layout = recognise(backup)
    table = "api_keys" if layout == Legacy() else "keys"
    if layout not in (Legacy(), Ours(1, None)):
        return False
    with closing(sqlite3.connect(f"{backup.as_uri()}?mode=ro", uri=True)) as connection:
        sound = connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return sound and connection.execute(f"SELECT count(*) FROM {table}").fetchall() == [(OLD_KEYS,)]


@cycles
@pytest.mark.parametrize(
    "point",
    [
        "amid the backup",
        "after the backup",
        "after statement 1 of the migration",
        f"after statement {len(MIGRATIONS[0]) + 1 + OLD_KEYS // 2} of the migration",
        f"after statement {LAST_STATEMENT} of the migration",
        "before the commit of: migration",
        "after the commit of: migration",
        "before the commit of: second migration",
        "after the commit of: second migration",
    ],
)
def test_killed_while_the_old_database_is_taken_over(gateway: Gateway, point: str, cycle: int) -> None:
    """It stands between two steps, the next start finishes the work, and no key is lost."""
    steps: dict[str, Layout] = {
        "after the commit of: migration": Ours(1, None),
        "before the commit of: second migration": Ours(1, None),
        "after the commit of: second migration": Ours(2, None),
    }
    database, key = old_database()
    daemon = gateway.daemon
    daemon.adopt(database, key)
    with barrier(daemon, point) as stand:
        daemon.launch()
        stand.wait()
        daemon.kill()
    assert recognise(daemon.db) == steps.get(point, Legacy())
    assert all(is_complete(backup) for backup in backups(gateway)), "a torn copy is called a backup"

    gateway.start()
    assert daemon.request("GET", "/subscriptions").status == 200
    assert gateway.query("SELECT count(*) FROM keys WHERE legacy = 1") == [(OLD_KEYS,)]
    assert gateway.query("SELECT 1 FROM sqlite_master WHERE name = 'api_keys'") == []
    assert gateway.query("PRAGMA journal_mode") == [("wal",)]
    assert backups(gateway)
    assert all(is_complete(backup) for backup in backups(gateway))
    companions = {daemon.db.name + suffix for suffix in ("", "-wal", "-shm", ".lock")}
    files = {path.name for path in daemon.state.iterdir()}
    assert files == companions | {backup.name for backup in backups(gateway)}
    assert {path.stat().st_mode & 0o777 for path in daemon.state.iterdir()} == {0o600}


# -- a long queue ------------------------------------------------------------------------------------------

JOBS = 100_000


def fill(db: Path, url: str) -> None:
    """As many jobs as the queue holds, four of them in flight, by the store's own functions."""
    lanes, now = 100, 1_793_000_000
    with closing(connect(db)) as connection:
        with immediate(connection) as cursor:
            bind(cursor, BOT_ID)
            for number in range(lanes):
                subscriptions.add(cursor, 1, CHAT, f"{url}/{number}", SubscriptionLimits(lanes, lanes), now)
            updates = tuple(text(number, CHAT, b'{"text":"%d"}' % number) for number in range(JOBS // lanes))
            assert accept(cursor, Batch(updates), JOBS, now).jobs == JOBS
        with immediate(connection) as cursor:
            turn = take_turn(cursor, (), Slots(4, 4), now, QueueRules())
            assert len(turn.claimed) == 4


def cpu_seconds(pid: int) -> float:
    """What the process has used up; proc_pid_stat(5), behind the name, which may hold spaces."""
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_start_with_a_full_queue(gateway: Gateway) -> None:
    """It listens within 5 s, what was in flight is back in the queue, and the callbacks begin."""
    gateway.receiver.policy = lambda callback: None
    gateway.start()
    gateway.daemon.kill()
    fill(gateway.daemon.db, gateway.receiver.url)

    began = time.monotonic()
    gateway.daemon.start()
    took = time.monotonic() - began
    used = cpu_seconds(gateway.daemon.process.pid)
    print(f"listening with {JOBS} jobs after {took:.2f} s, of which {used:.2f} s of CPU")
    # Of the work, not of the turns that a busy machine gives it; there is nothing else to wait for.
    assert used < 5
    gateway.daemon.output.wait_for("4 deliveries were in flight")
    gateway.receiver.wait_for(4)
    assert gateway.query("SELECT count(*) FROM deliveries") == [(JOBS,)]
    with closing(sqlite3.connect(f"{gateway.daemon.db.as_uri()}?mode=ro", uri=True)) as connection:
        assert violations(connection.cursor()) == []
    gateway.daemon.kill()
