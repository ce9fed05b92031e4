"""
The file system becomes read-only under the daemon, or its disk fails, and is well again.

Shown in ``/health`` within 2 s, reads go on, nothing is lost or sent twice, and within 10 s of the end of it
all goes on without a restart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.support.faulty_daemon import Fault, Storage, faulty_storage, why_not
from tests.support.gateway import CHAT, Gateway
from tests.support.lab import FULL, full_only, repetitions
from tests.support.oracle import Oracle
from tests.support.small_disk import broken_disk, gateway_on, why_no_broken_disk
from tests.support.storage import RECOVERY, check_reads, database_state, refused_write, shows, works_again

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


STATES: dict[Fault, str] = {"read-only": "readonly", "writes fail": "failing"}
CASES = tuple(product(("ingest", "completion", "request", "look"), STATES))


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)


@pytest.fixture
def storage(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    control: Path = tmp_path_factory.mktemp("control") / "fault"
    with faulty_storage(gateway.daemon, control) as storage:
        yield storage


@pytest.mark.report("I4")
@pytest.mark.parametrize(("meets_it", "fault"), CASES if FULL else CASES[:4:3])
def test_every_write_fails(
    gateway: Gateway, oracle: Oracle, storage: Storage, meets_it: str, fault: Fault
) -> None:
    """Whatever meets it first: an update, the answer to a callback, a request, or nothing at all."""
    state = STATES[fault]
    gateway.receiver.policy = lambda callback: None
    gateway.start()
    oracle.subscribe()
    oracle.messages(2)
    (held,) = gateway.receiver.wait_for(1)
    gateway.api.wait_for_offset(confirmed := oracle.sent[-1].update_id + 1)
    gateway.receiver.policy = lambda callback: 200
    storage.becomes(fault)
    if meets_it == "ingest":
        oracle.message("while it lasts")
    elif meets_it == "completion":
        held.answer()
    if meets_it != "look":
        assert refused_write(gateway) == "STORAGE_UNAVAILABLE"
        shows(gateway, state)
    check_reads(gateway)
    if meets_it != "ingest":
        oracle.message("while it lasts")
    if meets_it != "completion":
        held.answer()
    shows(gateway, state)
    gateway.daemon.output.wait_for("results held: 1")
    gateway.daemon.output.wait_for("updates cannot be stored")
    assert oracle.check() == []
    time.sleep(repetitions(0, 12))  # It lasts, and back-offs become long.
    assert gateway.api.of("getUpdates")[-1].arguments["offset"] == confirmed
    assert len(gateway.receiver.on(None)) == 1
    assert database_state(gateway) == state
    assert gateway.daemon.output.text.count("is not available") <= 2

    storage.becomes("none")
    began = time.monotonic()
    assert oracle.settle(RECOVERY) == []
    works_again(gateway, RECOVERY - (time.monotonic() - began))
    print(f"{fault}: all was well {time.monotonic() - began:.1f} s after its end")


def test_a_file_system_that_finds_itself_broken(tmp_path: Path) -> None:
    """The kernel's own read-only; without it the others would show no more than what we believe of it."""
    if (why := why_no_broken_disk()) is not None:
        pytest.skip(why)
    with broken_disk(tmp_path / "disk") as disk, gateway_on(disk) as gateway:
        oracle = Oracle(gateway)
        gateway.start()
        oracle.subscribe()
        oracle.messages(2)
        gateway.api.wait_for_offset(confirmed := oracle.sent[-1].update_id + 1)
        oracle.settle()
        disk.breaks()
        oracle.message("while it lasts")
        shows(gateway, "readonly")
        assert refused_write(gateway) == "STORAGE_UNAVAILABLE"
        check_reads(gateway)
        assert oracle.check() == []
        assert gateway.api.of("getUpdates")[-1].arguments["offset"] == confirmed
        assert gateway.daemon.stop() == 0

        disk.is_mended()
        gateway.daemon.start()
        assert oracle.settle() == []
        assert gateway.daemon.stop() == 0


@full_only
def test_stopped_while_every_write_fails(gateway: Gateway, oracle: Oracle, storage: Storage) -> None:
    """In order and within its time; what it could not write is done again by the next life, no more."""
    gateway.receiver.policy = lambda callback: None
    gateway.start()
    oracle.subscribe()
    oracle.messages(2)
    (held,) = gateway.receiver.wait_for(1)
    storage.becomes("read-only")
    held.answer()
    gateway.daemon.output.wait_for("results held: 1")
    assert gateway.daemon.stop() == 0
    storage.becomes("none")
    assert oracle.check() == []
    gateway.receiver.policy = lambda callback: 200
    gateway.daemon.start()
    assert oracle.settle() == [held.delivery_id]


@full_only
def test_the_log_cannot_be_folded_into_the_database(
    gateway: Gateway, oracle: Oracle, storage: Storage
) -> None:
    """The database file refuses writes that its log takes: it shows before the log has filled the disk."""
    wal = gateway.daemon.db.with_name(gateway.daemon.db.name + "-wal")
    gateway.start()
    oracle.subscribe()
    storage.becomes("the database file cannot be written")
    heavy = "x" * 1_000_000
    while not wal.exists() or wal.stat().st_size < 10_000_000:
        oracle.message(heavy, CHAT)
        gateway.receiver.wait_for(len(oracle.sent))
    shows(gateway, "failing")
    assert oracle.check() == []
    storage.becomes("none")
    works_again(gateway)
    oracle.message("after it")
    assert oracle.settle() == []
