"""
The disk is full, under the running daemon and at its start: a small file system that others fill.

Whatever meets it is rolled back whole and shown in ``/health`` within 2 s; what reads goes on; and within
10 s of there being room again all of it goes on, without a restart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

from tests.support.barrier_daemon import barrier
from tests.support.gateway import CHAT, Gateway
from tests.support.lab import FULL, full_only, repetitions
from tests.support.oracle import Oracle
from tests.support.small_disk import SmallDisk, gateway_on, small_disk, why_not
from tests.support.storage import RECOVERY, ask_to_subscribe, check_reads, refused_write, shows, works_again


@frozen
class Place:
    """The gateway, its judge, and the disk."""

    gateway: Gateway
    oracle: Oracle
    disk: SmallDisk


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    if (why := why_not()) is not None:
        pytest.skip(why)
    with small_disk(tmp_path / "disk", 16) as disk, gateway_on(disk) as gateway:
        yield Place(gateway, Oracle(gateway), disk)


@pytest.mark.report("I4")
@pytest.mark.parametrize("fact", ["ingest", "claim", "completion"] if FULL else ["completion"])
def test_full_at_a_commit_of_the_queue(place: Place, fact: str) -> None:
    """Nothing is lost; what was answered 200 and could not be written is written later, not sent again."""
    gateway, oracle = place.gateway, place.oracle
    with barrier(gateway.daemon, f"before the commit of: {fact}") as stand:
        gateway.start()
        oracle.subscribe()
        oracle.messages(3)
        stand.wait()
        place.disk.fill()
        stand.release()
    shows(gateway, "full")
    assert refused_write(gateway) == "STORAGE_UNAVAILABLE"
    check_reads(gateway)
    assert oracle.check() == []
    assert len(gateway.receiver.on(None)) == (fact == "completion")
    time.sleep(repetitions(0, 12))  # It lasts, and back-offs become long.

    place.disk.free()
    began = time.monotonic()
    assert oracle.settle(RECOVERY) == []
    works_again(gateway, RECOVERY - (time.monotonic() - began))
    print(f"full: all was well {time.monotonic() - began:.1f} s after there was room")


@full_only
def test_full_at_the_commit_of_a_subscription(place: Place) -> None:
    gateway, oracle = place.gateway, place.oracle
    gateway.start()
    gateway.api.wait_for_calls("getUpdates", 1)
    place.disk.fill()
    reply = ask_to_subscribe(gateway, "/hook")
    assert (reply.status, reply.json["error"]["code"]) == (503, "STORAGE_UNAVAILABLE")
    shows(gateway, "full")
    check_reads(gateway)
    place.disk.free()
    works_again(gateway)
    oracle.subscribe()
    oracle.message("after it")
    assert oracle.settle() == []


def test_full_when_the_log_is_to_be_folded_into_the_database(place: Place) -> None:
    """
    A checkpoint that finds no room is put off: commits go on while the ``-wal`` file has room.

    Its room was taken before the disk was filled, so that the database file is what has to grow first.
    """
    gateway, oracle, disk = place.gateway, place.oracle, place.disk
    wal = disk.outside / "telegrammer.db-wal"
    gateway.receiver.policy = lambda callback: None
    gateway.start()
    oracle.subscribe()
    heavy = "x" * 100_000
    while not wal.exists() or wal.stat().st_size < 4_200_000:
        oracle.message(heavy)
        gateway.api.wait_for_offset(oracle.sent[-1].update_id + 1)
    disk.fill()
    size = wal.stat().st_size
    while gateway.daemon.health()["components"]["database"]["state"] == "ok":
        assert len(oracle.sent) < 150, "the disk was never felt to be full"
        oracle.message(heavy)
        gateway.api.wait_until(
            lambda: (
                gateway.api.of("getUpdates")[-1].arguments["offset"] > oracle.sent[-1].update_id
                or gateway.daemon.health()["components"]["ingestion"]["state"] != "polling"
            )
        )
    assert wal.stat().st_size - size < 8192
    shows(gateway, "full")
    assert oracle.check() == []

    disk.free()
    gateway.receiver.policy = lambda callback: 200
    for callback in gateway.receiver.on(None):
        callback.answer()
    works_again(gateway)
    assert oracle.settle() == []


def files(disk: SmallDisk) -> dict[str, bytes]:
    """Without what SQLite keeps beside a database while it is open, which holds nothing after a stop."""
    found = {file.name: file.read_bytes() for file in disk.outside.iterdir()}
    assert found.pop("telegrammer.db-wal", b"") == b""
    found.pop("telegrammer.db-shm", None)
    return found


@pytest.mark.parametrize("there", [True, False] if FULL else [True])
def test_full_at_the_start(place: Place, there: bool) -> None:
    """Refused in one line that names the database, new or not; nothing is left; with room it starts."""
    daemon, disk = place.gateway.daemon, place.disk
    if there:
        place.gateway.start()
        place.oracle.subscribe()
        place.oracle.messages(2)
        place.oracle.settle()
        assert daemon.stop() == 0
    before = files(disk)
    disk.fill()
    status, said = daemon.refused()
    assert status == 1
    (line,) = [line for line in said.splitlines() if "telegrammer.db" in line]
    assert "the disk of the database is full" in line
    disk.free()
    assert files(disk) == before

    place.gateway.start()
    if there:
        place.oracle.message("after it", CHAT)
        assert place.oracle.settle() == []
