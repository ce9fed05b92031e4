"""Handles in several processes: one owner at a time, and nothing lost with a process (contract 7.2)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from telegrammer.core.leases import CAPACITY, LEASE_SECONDS
from tests.support.directories import quick_directory
from tests.support.gateway import eventually
from tests.support.outbox_peer import OutboxPeer

HELLO = ["subject", "body", ["operator@example.org"]]


@pytest.fixture
def path() -> Iterator[Path]:
    with quick_directory() as directory:
        yield directory / "outbox.db"


def check_sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def count(path: Path) -> int:
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        found: int = connection.execute("SELECT COUNT(*) FROM messages").fetchone()[0]
        return found


def test_two_race_for_a_thousand_messages(path: Path) -> None:
    """Each is claimed once at a time, none is lost, none acknowledged twice; the room is shared."""
    log = path.with_name("log")
    began = time.monotonic()
    with OutboxPeer(path) as one, OutboxPeer(path) as other:
        for peer in (one, other):
            peer.tell("fill", CAPACITY // 2)
        ids = [*one.hear()["value"], *other.hear()["value"]]
        assert len(set(ids)) == CAPACITY
        assert one.refused("send", HELLO)["error"] == "QueueFull"
        with OutboxPeer(path, "another") as stranger:
            assert stranger.refused("send", HELLO)["error"] == "QueueFull"
            assert stranger.refused("claim")["error"] == "QueueEmpty"
        for peer in (one, other):
            peer.tell("drain", str(log))
        counts = [one.hear()["value"], other.hear()["value"]]
        # Both handles are used again afterwards.
        one.ask("send", HELLO)
        leased = other.ask("claim")
        other.ask("acknowledge", leased["id"], leased["lease"])
    print(f"{time.monotonic() - began:.1f} s; acknowledged {counts}")
    assert sum(counts) == CAPACITY
    assert min(counts) > 0, "one had it all to itself"
    owners: dict[str, str] = {}
    acknowledged: list[str] = []
    for line in log.read_text().splitlines():
        who, what, message_id = line.split()
        if what == "claimed":
            assert owners.setdefault(message_id, who) == who, "two at a time"
        elif what == "ending":
            assert owners.pop(message_id) == who
        else:
            acknowledged.append(message_id)
    assert not owners
    assert sorted(acknowledged) == sorted(ids)
    check_sound(path)


def test_leases_survive_a_kill(path: Path) -> None:
    """And end when it was said; a worker that is late is refused."""
    with OutboxPeer(path) as first:
        message_id = first.ask("send", HELLO)
        before = int(time.time())
        leased = first.ask("claim")
        after = int(time.time())
        first.kill()
    expires_at = leased["lease_expires_at"]
    assert before + LEASE_SECONDS <= expires_at <= after + LEASE_SECONDS
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id, lease, lease_expires_at FROM messages").fetchall() == [
            (message_id, leased["lease"], expires_at)
        ]
    with OutboxPeer(path) as second:
        assert second.refused("claim")["error"] == "QueueEmpty"
        # The clock is read again by each operation, so a few seconds to spare.
        second.ask("shift", expires_at - time.time() - 5)
        assert second.refused("claim")["error"] == "QueueEmpty"
        second.ask("shift", expires_at - time.time())
        for verb in ("acknowledge", "release"):
            assert second.refused(verb, message_id, leased["lease"])["error"] == "LeaseLost"
        again = second.ask("claim")
        assert (again["id"], again["message"]) == (message_id, HELLO)
        with OutboxPeer(path) as late:
            for verb in ("acknowledge", "release"):
                assert late.refused(verb, message_id, leased["lease"])["error"] == "LeaseLost"
        second.ask("acknowledge", message_id, again["lease"])
        assert second.ask("outstanding") == 0


def test_kills_lose_nothing(path: Path) -> None:
    """What was said to be accepted is there, whole, with its mark; the file is sound, whenever it was."""
    accepted: list[str] = []
    for number in range(4):
        with OutboxPeer(path) as peer:
            for _ in range(5 * number):
                accepted.append(peer.ask("send", HELLO, [["told", f"{len(accepted)}", 1]]))
            before = count(path)
            peer.tell("fill", 900)
            eventually(lambda least=before + number: count(path) >= least)  # type: ignore[misc]
            peer.kill()
        with closing(sqlite3.connect(path)) as connection:
            found = [row[0] for row in connection.execute("SELECT id FROM messages ORDER BY seq")]
            assert [each for each in found if each in accepted] == accepted
            marks = connection.execute("SELECT state FROM marks").fetchall()
            assert marks == ([(f"{len(accepted) - 1}",)] if accepted else [])
        check_sound(path)
    with ExitStack() as stack:
        peer = stack.enter_context(OutboxPeer(path))
        assert peer.ask("outstanding") == len(found)
        leased = peer.ask("claim")
        assert leased["id"] == found[0]
