"""
Storage that fails under what is pushed: a held lock, a full disk, a disk that cannot be written.

An update that could not be journaled in time is refused with ``Retry-After``, and repeated by Telegram; what
is in the journal waits, nothing of it fails, and all of it goes on by itself when the cause has gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import faulty_daemon, small_disk
from tests.support.barrier_daemon import barrier
from tests.support.gateway import Gateway, eventually
from tests.support.lab import FULL
from tests.support.oracle import Oracle
from tests.support.pusher import Push
from tests.support.small_disk import SmallDisk, gateway_on
from tests.support.storage import RECOVERY, check_reads, shows, works_again

ANSWERED = 10.0
"""Seconds from the end of a body to the answer."""
SLACK = 2.0


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)


def refusals(gateway: Gateway, count: int) -> list[Push]:
    """Wait for so many calls that were refused as they have to be."""
    pushes = gateway.api.pusher.wait_for_pushes(count, 503)
    for push in pushes:
        assert push.wait == 1, "Retry-After: 1"
        assert push.ended - push.began < ANSWERED + SLACK
        assert b"STORAGE_UNAVAILABLE" in push.answer
        assert b"SQL" not in push.answer
    return pushes


def all_folded(gateway: Gateway, oracle: Oracle) -> None:
    """Each was taken once, and none failed on the way."""
    rows = gateway.query("SELECT update_id, parse_status, reason FROM journal ORDER BY id")
    expected = [(sent.update_id, "folded", None) for sent in oracle.sent]
    assert sorted(rows) == sorted(expected)


@pytest.mark.parametrize("seconds", [1, 30] if FULL else [1])
def test_a_lock_that_another_process_holds(gateway: Gateway, oracle: Oracle, seconds: int) -> None:
    """What is accepted waits to be folded, what comes is refused in its time, and then all goes on."""
    gateway.daemon.arguments = ("--fold-timeout", "1s")
    pusher = gateway.api.pusher
    with barrier(gateway.daemon, "after the commit of: accept") as stand:
        gateway.start_with_webhook()
        oracle.subscribe()
        oracle.message("before")
        stand.wait()
        with gateway.write_lock():
            stand.release()
            pusher.wait_for(oracle.sent[0].update_id)
            oracle.messages(3, "while it is held")
            gateway.daemon.output.wait_for("of the journal waits")
            shows(gateway, "busy")
            check_reads(gateway)
            report = gateway.daemon.health()
            assert (report["status"], report["journal"]["pending"]) == ("degraded", 1)
            assert report["journal"]["failed"] == 0
            assert report["components"]["journal"]["state"] == "backing_off"
            refusals(gateway, seconds // 6 + 1)
            assert gateway.query("SELECT parse_status FROM journal") == [("pending",)]
            assert oracle.check() == []
    assert oracle.settle(RECOVERY) == []
    all_folded(gateway, oracle)
    works_again(gateway)
    assert "database is locked" not in gateway.daemon.output.text


def test_a_lock_that_is_held_for_a_moment(gateway: Gateway, oracle: Oracle) -> None:
    """The call waits for it, and is answered 200."""
    gateway.start_with_webhook()
    oracle.subscribe()
    with gateway.write_lock():
        oracle.message("while it is held")
        shows(gateway, "busy")
        assert gateway.api.pusher.statuses() == []
    assert oracle.settle(RECOVERY) == []
    assert gateway.api.pusher.statuses() == [200]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if (why := small_disk.why_not()) is not None:
        pytest.skip(why)
    with small_disk.small_disk(tmp_path / "disk", 16) as disk:
        yield disk


def test_a_disk_that_is_full(disk: SmallDisk) -> None:
    """Neither accepted nor folded; with room again, what waits at Telegram and in the journal goes on."""
    with gateway_on(disk) as gateway:
        oracle = Oracle(gateway)
        with barrier(gateway.daemon, "after the commit of: accept") as stand:
            gateway.start_with_webhook()
            oracle.subscribe()
            oracle.message("before")
            stand.wait()
            disk.fill()
            stand.release()
        gateway.api.pusher.wait_for(oracle.sent[0].update_id)
        oracle.messages(3, "while it is full")
        refusals(gateway, 2)
        shows(gateway, "full")
        check_reads(gateway)
        assert oracle.check() == []
        # The entry may have found the last room of the -wal file; it has not failed.
        assert gateway.query("SELECT 1 FROM journal WHERE parse_status = 'failed'") == []

        disk.free()
        assert oracle.settle(RECOVERY) == []
        works_again(gateway)
        all_folded(gateway, oracle)


@pytest.mark.skipif(faulty_daemon.why_not() is not None, reason=str(faulty_daemon.why_not()))
@pytest.mark.parametrize("fault", ["read-only", "writes fail"] if FULL else ["read-only"])
def test_a_disk_that_cannot_be_written(
    gateway: Gateway, oracle: Oracle, tmp_path: Path, fault: faulty_daemon.Fault
) -> None:
    with faulty_daemon.faulty_storage(gateway.daemon, tmp_path / "fault") as storage:
        gateway.start_with_webhook()
        oracle.subscribe()
        oracle.message("before")
        gateway.receiver.wait_for(1)
        storage.becomes(fault)
        oracle.messages(3, "while it lasts")
        refusals(gateway, 2)
        shows(gateway, "readonly" if fault == "read-only" else "failing")
        assert oracle.check() == []
        storage.becomes("none")
        assert oracle.settle(RECOVERY) == []
        eventually(lambda: not gateway.query("SELECT 1 FROM journal WHERE parse_status = 'pending'"))
        all_folded(gateway, oracle)
        works_again(gateway)
