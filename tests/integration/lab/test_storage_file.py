"""
The database file itself: damaged, removed, replaced, under the running daemon and before its start.

What cannot be kept is never answered as done: the trouble is said in one line that names the file, and shown
in ``/health`` within 2 s.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.gateway import CHAT, Gateway
from tests.support.gateway import gateway as three
from tests.support.http_server import response
from tests.support.lab import FULL, full_only, repetitions
from tests.support.oracle import Oracle, Sent
from tests.support.storage import RECOVERY, SHOWN, refused_write, shows, works_again

TABLES = ("deliveries", "keys", "gateway", "lanes", "payloads", "subscriptions", "usernames", "lanes_ready")
"""And one index."""
UNAVAILABLE = r"the database \S+telegrammer\.db is not available: failing; "


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)


# -- removed and replaced ----------------------------------------------------------------------------------


def take_away(db: Path, how: str) -> None:
    """From under the daemon; ``away`` is where it can be got back from."""
    if how == "with its directory":
        db.parent.rename(db.parent.with_name("away"))
        return
    os.link(db, db.with_name("away"))
    db.unlink()
    if how == "replaced":
        shutil.copyfile(db.with_name("away"), db)


def bring_back(db: Path, how: str) -> None:
    if how == "with its directory":
        db.parent.with_name("away").rename(db.parent)
    else:
        db.with_name("away").replace(db)


@pytest.mark.parametrize("how", ["replaced", *(("removed", "with its directory") if FULL else ())])
def test_a_file_that_is_taken_away_and_brought_back(tmp_path: Path, how: str) -> None:
    """An idle daemon notices by itself; nothing is taken, claimed or confirmed until it is back."""
    (tmp_path / "state").mkdir()
    with three(tmp_path / "state") as gateway:
        oracle, daemon = Oracle(gateway), gateway.daemon
        daemon.directory = tmp_path
        gateway.receiver.policy = lambda callback: None
        gateway.start()
        oracle.subscribe()
        oracle.messages(2)
        (held,) = gateway.receiver.wait_for(1)
        gateway.api.wait_for_offset(confirmed := oracle.sent[-1].update_id + 1)
        take_away(daemon.db, how)
        # What keys are good for is in that file too.
        daemon.output.wait_for(UNAVAILABLE + "the file was removed, or another was put in its place", SHOWN)
        assert daemon.request("GET", "/health").status == 503
        assert refused_write(gateway) == "AUTH_UNAVAILABLE"
        held.answer()
        oracle.message("while it is away")
        daemon.output.wait_for("delivery backs off, the database is failing; results held: 1")
        daemon.output.wait_for("updates cannot be stored: the database is failing")
        assert gateway.api.of("getUpdates")[-1].arguments["offset"] == confirmed
        assert len(gateway.receiver.on(None)) == 1

        bring_back(daemon.db, how)
        gateway.receiver.policy = lambda callback: 200
        assert oracle.settle(RECOVERY) == []
        if FULL:
            works_again(gateway)
        assert daemon.stop() == 0


@full_only
def test_a_removed_file_does_not_keep_the_daemon_from_stopping(gateway: Gateway, oracle: Oracle) -> None:
    gateway.start()
    oracle.subscribe()
    gateway.daemon.db.unlink()
    gateway.daemon.output.wait_for(UNAVAILABLE, SHOWN)
    assert gateway.daemon.stop() == 0


@full_only
def test_the_lock_is_held_by_another(gateway: Gateway, tmp_path: Path) -> None:
    """The second is refused and says why; the first is not disturbed."""
    gateway.start()
    with Daemon(tmp_path, gateway.api.url) as second:
        status, said = second.refused()
    assert status == 1
    assert f"another process holds {gateway.daemon.db}.lock" in said
    oracle = Oracle(gateway)
    oracle.subscribe()
    oracle.message("undisturbed")
    assert oracle.settle() == []


# -- damage ------------------------------------------------------------------------------------------------


def root_page(db: Path, name: str) -> int:
    with closing(sqlite3.connect(f"{db.as_uri()}?mode=ro", uri=True)) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,))
        return int(page)


def damage(db: Path, page: int) -> Callable[[], None]:
    """Overwrite a page in the file; what puts back what it held."""
    with open(db, "rb") as file:
        file.seek(16)
        size = int.from_bytes(file.read(2), "big")
        file.seek((page - 1) * size)
        held = file.read(size)

    def put(content: bytes) -> None:
        with open(db, "r+b", buffering=0) as file:
            file.seek((page - 1) * size)
            file.write(content)

    put(b"\xa5" * size)
    return lambda: put(held)


def leave_jobs_behind(gateway: Gateway, oracle: Oracle) -> None:
    """Stopped, with three jobs that wait."""
    gateway.receiver.policy = lambda callback: response(503, b"", "Retry-After: 600")
    gateway.start()
    oracle.subscribe()
    oracle.messages(3)
    gateway.receiver.wait_for(1)
    assert gateway.daemon.stop() == 0


@pytest.mark.report("I4")
@pytest.mark.parametrize("name", TABLES if FULL else TABLES[:1])
def test_damaged_before_the_start(gateway: Gateway, oracle: Oracle, name: str) -> None:
    """Refused in one line that names the file, or up and failing; the file stays as it is found."""
    leave_jobs_behind(gateway, oracle)
    damage(gateway.daemon.db, root_page(gateway.daemon.db, name))
    before = gateway.daemon.db.read_bytes()
    status, said = gateway.daemon.refused()
    assert status == 1, said
    (line,) = [line for line in said.splitlines() if "telegrammer.db" in line]
    assert "damaged" in line
    assert gateway.daemon.db.read_bytes() == before


@pytest.mark.report("I4")
def test_damaged_under_the_running_daemon(gateway: Gateway, oracle: Oracle) -> None:
    """Said once however often it is met, nothing is confirmed that could not be stored, and it passes."""
    daemon = gateway.daemon
    gateway.start()
    oracle.subscribe()
    gateway.api.wait_until(lambda: gateway.api.open_polls == 1)
    mend = damage(daemon.db, root_page(daemon.db, "sqlite_autoindex_usernames_1"))
    refused = daemon.request("POST", "/send", {"username": "somebody", "text": "hello"})
    assert (refused.status, refused.json["error"]["code"]) == (503, "STORAGE_UNAVAILABLE")
    shows(gateway, "failing")
    daemon.output.wait_for(UNAVAILABLE + "the database is damaged")
    update_id, body = gateway.api.message(CHAT, "of somebody", username="somebody")
    oracle.sent.append(Sent(update_id, CHAT, body))
    daemon.output.wait_for("updates cannot be stored: the database is failing")
    # What needs no damaged page is done, and proves nothing of the others.
    assert daemon.request("POST", "/send", {"chat_id": CHAT, "text": "hello"}).status == 200
    time.sleep(repetitions(0, 15))
    shows(gateway, "failing")
    assert daemon.output.text.count("is not available") == 1
    assert "works again" not in daemon.output.text
    assert all(call.arguments.get("offset", 0) <= update_id for call in gateway.api.of("getUpdates"))

    mend()
    assert oracle.settle(RECOVERY) == []
    if FULL:
        works_again(gateway)
    assert daemon.request("POST", "/send", {"username": "somebody", "text": "hello"}).status == 200
