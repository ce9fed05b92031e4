"""Files that are no private outbox, seen by a user without rights; disks that fill up (contract 7.2)."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from telegrammer.messaging.outbox_file import create
from tests.support import small_disk, unprivileged
from tests.support.outbox_peer import OutboxPeer

HELLO = ["subject", "body", ["operator@example.org"]]
LARGE = ["subject", "x" * 50_000, ["operator@example.org"]]

as_nobody = pytest.mark.skipif(bool(unprivileged.why_not()), reason=str(unprivileged.why_not()))
on_a_small_disk = pytest.mark.skipif(bool(small_disk.why_not()), reason=str(small_disk.why_not()))


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the user without rights, to which that user can get."""
    directory = Path(tempfile.mkdtemp(prefix="telegrammer-test-"))
    os.chown(directory, unprivileged.UID, unprivileged.UID)
    yield directory
    shutil.rmtree(directory)


def own(path: Path) -> None:
    os.chown(path, unprivileged.UID, unprivileged.UID, follow_symlinks=False)


def made(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    path.chmod(0o600)
    own(path)


def outbox(path: Path, *statements: str) -> None:
    create(path)
    made(path, *statements)


def group_writable(path: Path) -> None:
    outbox(path)
    path.parent.chmod(0o770)


def linked(path: Path) -> None:
    real = path.parent / "real"
    real.mkdir(mode=0o700)
    own(real)
    outbox(real / path.name)
    path.symlink_to(real / path.name)
    own(path)


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))
    own(path)


def foreign(path: Path) -> None:
    outbox(path)
    os.chown(path, 0, 0)


def readable(path: Path) -> None:
    outbox(path)
    path.chmod(0o644)


def text(path: Path) -> None:
    path.write_bytes(b"to whom it may concern\n" * 100)
    path.chmod(0o600)
    own(path)


def another(path: Path) -> None:
    made(path, "CREATE TABLE t(x)")


def newer(path: Path) -> None:
    outbox(path, "PRAGMA user_version=7")


BAD: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a directory that its group writes": (group_writable, "InsecurePath", "can be written by others"),
    "a symbolic link": (linked, "InsecurePath", "symbolic link"),
    "a dangling link": (dangling, "InsecurePath", "symbolic link"),
    "another owner": (foreign, "InsecurePath", "belongs to another user"),
    "a file that others read": (readable, "InsecurePath", "has mode 0644; it must be 0600"),
    "no database": (text, "NotAnOutbox", "no SQLite database"),
    "another program's": (another, "NotAnOutbox", "another program"),
    "a newer version": (newer, "NotAnOutbox", "has version 7"),
}


def snapshot(directory: Path) -> list[object]:
    found: list[object] = []
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found.append((path, content, status.st_mtime_ns, status.st_mode, status.st_ino, status.st_uid))
    return found


@pytest.fixture(scope="module")
def nobody() -> Iterator[OutboxPeer]:
    """A process of the user without rights."""
    with OutboxPeer(Path("/unused"), prefix=unprivileged.unprivileged([]), opened=False) as peer:
        yield peer


@as_nobody
@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_refused_untouched(nobody: OutboxPeer, home: Path, what: str) -> None:
    make, kind, said = BAD[what]
    path = home / "outbox.db"
    make(path)
    before = snapshot(home)
    answer = nobody.refused("open", str(path))
    assert (answer["error"], said in answer["said"]) == (kind, True), answer
    assert snapshot(home) == before


@as_nobody
def test_a_good_file(nobody: OutboxPeer, home: Path) -> None:
    """What the others lack is what makes the difference."""
    nobody.ask("open", str(home / "outbox.db"))
    message_id = nobody.ask("send", HELLO)
    assert nobody.ask("claim")["id"] == message_id
    nobody.ask("close")


@as_nobody
def test_a_directory_of_another_user(nobody: OutboxPeer, home: Path) -> None:
    """Root's may hold it, but where nothing can be written nothing is made."""
    home.chmod(0o755)
    os.chown(home, 0, 0)
    assert nobody.refused("open", str(home / "outbox.db"))["error"] == "OutboxFailing"
    os.chown(home, 1, 1)
    assert nobody.refused("open", str(home / "outbox.db"))["error"] == "InsecurePath"
    assert list(home.iterdir()) == []


@as_nobody
def test_a_file_system_that_turns_read_only(nobody: OutboxPeer, home: Path) -> None:
    """Refused, rolled back; and all goes on when the directory can be written again."""
    path = home / "outbox.db"
    nobody.ask("open", str(path))
    nobody.ask("send", HELLO)
    home.chmod(0o500)
    answer = nobody.refused("send", HELLO)
    assert answer["error"] in ("OutboxFailing", "CommitUncertain"), answer
    assert answer["said"] == "the outbox or its directory cannot be written"
    home.chmod(0o700)
    nobody.ask("send", HELLO)
    assert nobody.ask("outstanding") == 2
    nobody.ask("close")


@on_a_small_disk
def test_a_full_disk(tmp_path: Path) -> None:
    """
    Whichever page is the last that the disk takes: rolled back, and the handle goes on; or the COMMIT failed,
    and the handle is closed.  Then all of it or nothing is there, message and mark.
    """
    with small_disk.small_disk(tmp_path / "disk", 4) as disk:
        path = disk.path / "outbox.db"
        ballast = disk.outside / "ballast"
        seen: list[str] = []
        with OutboxPeer(path, prefix=disk.prefix) as peer:
            count = 0
            for _ in range(3):
                assert "value" in send_large(peer, count)
                count += 1
            for pages in range(0, 60, 3):
                disk.fill()
                os.truncate(ballast, ballast.stat().st_size - 4096 * pages)
                answer = send_large(peer, count)
                disk.free()
                if "value" in answer:
                    break
                seen.append(answer["error"])
                if answer["error"] == "CommitUncertain":
                    assert peer.refused("outstanding")["error"] == "OutboxClosed"
                    peer.ask("open")
                count = check_all_or_nothing(peer, count)
            else:
                raise AssertionError("there was room enough")
            assert set(seen) == {"OutboxFailing", "CommitUncertain"}, seen
            leased = peer.ask("claim")
            peer.ask("acknowledge", leased["id"], leased["lease"])
            assert peer.ask("outstanding") == count
            print(f"failed {len(seen)} times, {seen.count('CommitUncertain')} of them in COMMIT")


def send_large(peer: OutboxPeer, number: int) -> dict[str, Any]:
    peer.tell("send", LARGE, [["told", str(number), 1]])
    return peer.hear()


def check_all_or_nothing(peer: OutboxPeer, accepted: int) -> int:
    """How many there are: those accepted, and perhaps one more."""
    count = peer.ask("outstanding")
    assert isinstance(count, int)
    assert accepted <= count <= accepted + 1
    assert peer.ask("marks") == [["told", str(count - 1), 1]]
    return count
