"""The database service with its real threads: groups, roles, troubles that show and pass, an orderly end."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.task import deferLater

from telegrammer.core.keys import digest
from telegrammer.core.problems import (
    CapacityReached,
    DatabaseState,
    LockHeld,
    StoreBusy,
    StoreClosed,
    StoreFailing,
    StoreFull,
    StoreMoved,
    StoreReadOnly,
)
from telegrammer.core.subscriptions import SubscriptionLimits
from telegrammer.core.telegram import Batch
from telegrammer.store.database import Database
from telegrammer.store.engine import connect, immediate
from telegrammer.store.ingestion import SqlIngestion
from telegrammer.store.keys import SqlKeys
from telegrammer.store.opening import open_state
from telegrammer.store.recovery import violations
from telegrammer.store.subscriptions import SqlSubscriptions
from tests.integration.conftest import bounded
from tests.support.queue_checks import add_key, text
from tests.support.switching import eager_switching

__all__ = ["eager_switching"]


@asynccontextmanager
async def database(path: Path, reactor: Any, **options: Any) -> AsyncIterator[Database]:
    """A running service on a new file; stopped at the end, and then without a thread."""
    before = set(threading.enumerate())
    service = Database(
        path, reactor, opening=lambda: open_state(path, bot_digits=None, now=time.time), **options
    )
    service.startService()
    try:
        yield service
    finally:
        await service.stopService()
    assert set(threading.enumerate()) <= before
    assert not path.with_name(path.name + "-wal").exists()


@contextmanager
def lock_held(path: Path) -> Iterator[None]:
    """Another process's write transaction."""
    with closing(connect(path)) as theirs, immediate(theirs):
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def bump(cursor: sqlite3.Cursor) -> int:
    cursor.execute("UPDATE gateway SET turn = turn + 1")
    return turn(cursor)


def turn(cursor: sqlite3.Cursor) -> int:
    return int(cursor.execute("SELECT turn FROM gateway").fetchone()[0])


def fill(cursor: sqlite3.Cursor, size: int) -> None:
    cursor.execute(
        "INSERT INTO payloads(epoch, update_id, body, refs) VALUES (9, ?, zeroblob(?), 1)", (size, size)
    )


async def becomes(service: Database, state: DatabaseState, reactor: Any, within: float) -> float:
    """Seconds until the service is in this state."""
    began = time.monotonic()
    while service.state() != state:
        assert time.monotonic() - began < within, f"still {service.state()} after {within} s"
        await deferLater(reactor, 0.02)
    return time.monotonic() - began


async def fails(deferred: Deferred[Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await deferred


# -- groups -------------------------------------------------------------------------------------------


@bounded(20)
async def test_what_is_written_is_read(path: Path, reactor: Any) -> None:
    async with database(path, reactor) as service:
        assert await service.write(bump) == 1
        for pool in ("credentials", "requests", "workers"):
            assert await service.read(turn, pool=pool) == 1
        assert service.state() == "ok"


@bounded(20)
async def test_many_writes_share_few_commits(path: Path, reactor: Any) -> None:
    async with database(path, reactor) as service:
        statements: list[str] = []
        await service.write(lambda cursor: cursor.connection.set_trace_callback(statements.append))
        writes = [service.write(bump, urgent=number % 2 == 0) for number in range(1000)]
        results = await gatherResults(writes)
        assert sorted(results) == list(range(1, 1001))
        assert await service.read(turn) == 1000
        await service.write(lambda cursor: cursor.connection.set_trace_callback(None))
        # The first alone, then the urgent, then the others in portions; and perhaps a look.
        assert 3 <= statements.count("COMMIT") <= 7


@bounded(20)
async def test_one_failure_of_a_group_is_alone(path: Path, reactor: Any) -> None:
    def refuse(cursor: sqlite3.Cursor) -> None:
        bump(cursor)
        raise CapacityReached("no room")

    async with database(path, reactor) as service:
        first, second, third = service.write(bump), service.write(refuse), service.write(bump)
        await fails(second, CapacityReached)
        assert (await first, await third) == (1, 2)
        assert service.state() == "ok"


@pytest.mark.report("cowrie/cowrie#40463")
@bounded(60)
async def test_requests_batches_and_look_ups_at_once(path: Path, reactor: Any) -> None:
    async with database(path, reactor) as service:
        with closing(connect(path)) as connection:
            owner = add_key(connection, "key")
        subscriptions = SqlSubscriptions(service, SubscriptionLimits(1000, 1000), time.time)
        keys, ingestion = SqlKeys(service), SqlIngestion(service, 100_000, time.time)
        for number in range(100):
            await subscriptions.add(owner, 5, f"http://h/{number}")
        doing: list[Deferred[Any]] = [
            subscriptions.add(owner, 6, f"http://h/{number % 25}") for number in range(50)
        ]
        batch = ingestion.accept(Batch(tuple(text(number, 5) for number in range(100))))
        doing += [keys.owner_of(digest("key")) for _ in range(50)]
        doing += [service.write(bump) for _ in range(50)]
        results = await gatherResults(doing)
        assert len(set(results[:50])) == 25
        assert results[50:100] == [owner] * 50
        assert (await batch).jobs == 10_000
        assert await service.read(lambda cursor: violations(cursor)) == []


# -- readers ------------------------------------------------------------------------------------------


@bounded(20)
async def test_readers_cannot_write(path: Path, reactor: Any) -> None:
    async with database(path, reactor) as service:
        await fails(service.read(bump), StoreReadOnly)
        assert await service.read(turn) == 0
        await becomes(service, "ok", reactor, within=10)


@bounded(20)
async def test_a_slow_report_delays_nobody_else(path: Path, reactor: Any) -> None:
    release = threading.Event()

    def slow(cursor: sqlite3.Cursor) -> int:
        found = turn(cursor)
        release.wait(15)
        return found

    async with database(path, reactor) as service:
        reports = [service.read(slow, pool="workers") for _ in range(3)]
        try:
            assert await service.write(bump) == 1
            assert await service.read(turn, pool="credentials") == 1
            assert await service.read(turn, pool="requests") == 1
        finally:
            release.set()
        # The first saw its own snapshot to the end.
        assert (await gatherResults(reports))[0] in (0, 1)


@bounded(20)
async def test_a_cancelled_read_is_over_for_its_caller(path: Path, reactor: Any) -> None:
    release, begun = threading.Event(), []

    def slow(cursor: sqlite3.Cursor) -> None:
        begun.append(True)
        release.wait(15)

    async with database(path, reactor) as service:
        running = service.read(slow, pool="workers")
        waiting = service.read(slow, pool="workers")
        running.cancel()
        waiting.cancel()
        await fails(running, CancelledError)
        await fails(waiting, CancelledError)
        release.set()
    assert len(begun) <= 1


# -- troubles -----------------------------------------------------------------------------------------


@bounded(40)
async def test_a_held_lock(path: Path, reactor: Any) -> None:
    async with database(path, reactor) as service:
        await service.write(bump)
        with lock_held(path):
            began = time.monotonic()
            background, request = service.write(bump), service.write(bump, urgent=True)
            assert await becomes(service, "busy", reactor, within=4) < 4
            await fails(background, StoreBusy)
            assert 0.9 < time.monotonic() - began < 4
            # Readers do not mind.
            assert await service.read(turn) == 1
            late = service.write(bump, urgent=True)
            await fails(request, StoreBusy)
            assert 4.5 < time.monotonic() - began < 15
        assert await late == 2
        await becomes(service, "ok", reactor, within=5)


@bounded(20)
async def test_a_held_lock_shows_within_two_seconds_when_idle(path: Path, reactor: Any) -> None:
    async with database(path, reactor) as service:
        await service.write(bump)
        with lock_held(path):
            assert await becomes(service, "busy", reactor, within=4) < 4
        await becomes(service, "ok", reactor, within=5)


@pytest.mark.report("applikatoni/applikatoni#35")
@bounded(20)
async def test_a_short_lock_is_waited_for(path: Path, reactor: Any) -> None:
    async with database(path, reactor) as service:
        with closing(connect(path)) as theirs:
            theirs.execute("BEGIN IMMEDIATE")
            write = service.write(bump)
            await deferLater(reactor, 0.3)
            theirs.execute("COMMIT")
        assert await write == 1


@pytest.mark.report("NousResearch/hermes-agent#31014")
@bounded(30)
async def test_a_file_that_may_not_grow(path: Path, reactor: Any) -> None:
    """An I/O error at COMMIT: all is undone, reads go on, and it ends with its cause."""
    async with database(path, reactor) as service:
        await service.write(bump)
        wal = path.with_name("a.db-wal")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (wal.stat().st_size, hard))
        try:
            await fails(service.write(fill, 100_000), StoreFailing)
            assert service.state() == "failing"
            assert await service.read(turn) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await becomes(service, "ok", reactor, within=10)
        await service.write(fill, 100_000)


@bounded(30)
async def test_no_room(path: Path, reactor: Any) -> None:
    def limit(cursor: sqlite3.Cursor, pages: int) -> None:
        cursor.execute(f"PRAGMA max_page_count={pages}")

    async with database(path, reactor) as service:
        await service.write(limit, 1)
        await fails(service.write(fill, 100_000), StoreFull)
        assert service.state() == "full"
        assert await service.read(turn) == 0
        await service.write(limit, 1_000_000)
        await service.write(fill, 100_000)
        # Until a look has found room.
        assert service.state() == "full"
        await becomes(service, "ok", reactor, within=5)


@pytest.mark.report("daintreehq/daintree#6270")
def test_a_full_disk(tmp_path: Path) -> None:
    """On a small file system of its own, in a process of its own."""
    program = f"{sys.executable} -m tests.support.full_disk {tmp_path}"
    script = f"mount -t tmpfs -o size=2m none {tmp_path} && exec {program}"
    try:
        ran = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            timeout=60,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if "unshare" in ran.stderr or "mount" in ran.stderr:
        pytest.skip(f"no file system of its own: {ran.stderr.strip()}")
    assert ran.stderr == ""
    assert ran.stdout.split() == ["full", "still-full", "read", "refused", "ok", "written"]


@bounded(30)
async def test_a_connection_that_is_read_only_is_opened_anew(path: Path, reactor: Any) -> None:
    async with database(path, reactor) as service:
        await service.write(lambda cursor: cursor.execute("PRAGMA query_only=ON") and None)
        await fails(service.write(bump), StoreReadOnly)
        assert service.state() == "readonly"
        assert await service.write(bump) == 1
        assert service.state() == "ok"


@bounded(30)
async def test_a_file_that_is_gone_and_comes_back(path: Path, reactor: Any) -> None:
    """Nothing is read or written of it, by connections that are there or new ones, until it is back."""
    async with database(path, reactor) as service:
        assert await service.write(bump) == 1
        away = path.with_name("away")
        path.rename(away)
        await fails(service.write(bump), StoreMoved)
        await fails(service.read(turn), StoreMoved)
        assert service.state() == "failing"
        assert not path.exists()
        path.write_bytes(away.read_bytes())
        await fails(service.write(bump), StoreMoved)
        await fails(service.read(turn), StoreMoved)
        away.rename(path)
        assert await service.write(bump) == 2
        assert await service.read(turn) == 2
        await becomes(service, "ok", reactor, within=10)


@bounded(30)
async def test_a_reading_trouble_ends_also_when_nobody_reads(path: Path, reactor: Any) -> None:
    async with database(path, reactor) as service:
        await fails(service.read(lambda cursor: cursor.execute("SELECT 1 FROM nowhere")), StoreFailing)
        assert service.state() == "failing"
        await becomes(service, "ok", reactor, within=10)


# -- commits of other processes -----------------------------------------------------------------------


@bounded(30)
async def test_commits_of_others_are_noticed_and_our_own_are_not(path: Path, reactor: Any) -> None:
    calls: list[float] = []

    async with database(path, reactor, on_outside_commit=[lambda: calls.append(time.monotonic())]) as service:
        await service.beat()
        calls.clear()
        await service.write(bump)
        await service.beat()
        await service.beat()
        assert calls == []
        with closing(connect(path)) as theirs:
            add_key(theirs, "key")
            began = time.monotonic()
        while not calls:
            assert time.monotonic() - began < 5
            await deferLater(reactor, 0.02)
        count = len(calls)
        await service.beat()
        assert len(calls) == count


@bounded(30)
async def test_a_listener_that_fails_is_survived(path: Path, reactor: Any, logged_failures: Any) -> None:
    calls: list[int] = []

    def faulty() -> None:
        raise ZeroDivisionError

    async with database(path, reactor, on_outside_commit=[faulty, lambda: calls.append(1)]) as service:
        await service.beat()
        assert calls
    assert logged_failures.claim(ZeroDivisionError)


# -- start and stop -----------------------------------------------------------------------------------


@bounded(30)
async def test_stop_lets_what_was_accepted_finish(path: Path, reactor: Any) -> None:
    release = threading.Event()

    def slow(cursor: sqlite3.Cursor) -> int:
        release.wait(15)
        return turn(cursor)

    async with database(path, reactor) as service:
        await service.write(bump)
        write, read = service.write(slow), service.read(slow)
        queued = service.write(bump)
        stopped = service.stopService()
        await fails(service.write(bump), StoreClosed)
        await fails(service.read(turn), StoreClosed)
        assert not stopped.called
        # The reactor is not held up.
        await deferLater(reactor, 0.05)
        release.set()
        assert (await write, await queued) == (1, 2)
        # Its snapshot is that of its first look.
        assert await read in (1, 2)
        await stopped
        await fails(service.write(bump), StoreClosed)


@bounded(30)
async def test_stop_while_the_lock_is_held(path: Path, reactor: Any) -> None:
    async with database(path, reactor) as service:
        await service.write(bump)
        with lock_held(path):
            background = service.write(bump)
            began = time.monotonic()
            stopped = service.stopService()
            await fails(background, StoreBusy)
            await stopped
            assert time.monotonic() - began < 5


def test_a_start_that_is_refused_leaves_no_thread(path: Path, reactor: Any) -> None:
    def refuse() -> None:
        raise LockHeld("held")

    before = threading.enumerate()
    service = Database(path, reactor, opening=refuse)
    with pytest.raises(LockHeld):
        service.startService()
    assert threading.enumerate() == before
    assert not service.running


def test_pools_that_cannot_all_start_are_closed_again(
    path: Path, reactor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = Database._pool

    def pool(self: Database, name: str, *sizes: int, **options: bool) -> Any:
        if name == "writer":
            raise RuntimeError("can't start new thread")
        return real(self, name, *sizes, **options)

    monkeypatch.setattr(Database, "_pool", pool)
    path.touch()
    before = threading.enumerate()
    service = Database(path, reactor)
    with pytest.raises(RuntimeError):
        service.startService()
    assert threading.enumerate() == before


def test_stopped_before_the_reactors_first_turn(path: Path, reactor: Any) -> None:
    """As when a later service cannot start: nothing may need another turn of the reactor."""
    before = threading.enumerate()
    service = Database(path, reactor, opening=lambda: open_state(path, bot_digits=None, now=time.time))
    service.startService()
    assert service.stopService().called
    assert threading.enumerate() == before
