"""Which file is taken for an outbox, and that no other is touched (contract 7.2)."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import InsecurePath, NotAnOutbox, OutboxFailing
from telegrammer.messaging import outbox_file
from telegrammer.messaging.outbox_file import check_place, create, recognise
from tests.support.outbox import LOCAL, Desk


def snapshot(path: Path) -> tuple[object, ...]:
    found = path.lstat()
    content = path.read_bytes() if path.is_file() else None
    return content, found.st_mtime_ns, found.st_mode, found.st_ino, sorted(os.listdir(path.parent))


class PlaceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.desk = Desk(self)
        self.path = self.desk.path

    def refused(self, said: str, path: Path | None = None, kind: type[Exception] = InsecurePath) -> None:
        error = self.assertRaises(kind, check_place, path or self.path, self.desk.mounts)
        self.assertIn(said, str(error))

    def test_private(self) -> None:
        self.assertFalse(check_place(self.path, self.desk.mounts))
        create(self.path)
        self.assertTrue(check_place(self.path, self.desk.mounts))

    def test_a_directory_that_others_write(self) -> None:
        for mode in (0o770, 0o702, 0o1777):
            self.path.parent.chmod(mode)
            self.refused("can be written by others")
        self.path.parent.chmod(0o755)
        self.assertFalse(check_place(self.path, self.desk.mounts))

    def test_an_ancestor_that_anybody_writes(self) -> None:
        inner = self.path.parent / "inner"
        inner.mkdir(mode=0o700)
        self.path.parent.chmod(0o777)
        self.refused("anybody may replace", inner / "outbox.db")
        self.path.parent.chmod(0o1777)
        self.assertFalse(check_place(inner / "outbox.db", self.desk.mounts))

    def test_modes(self) -> None:
        create(self.path)
        for mode in (0o640, 0o604, 0o400, 0o700, 0o4600):
            self.path.chmod(mode)
            self.refused(f"has mode {mode:04o}")

    def test_symbolic_links(self) -> None:
        real = self.path.with_name("real")
        real.mkdir(mode=0o700)
        self.path.symlink_to(real / "outbox.db")
        self.refused("is a symbolic link")
        create(real / "outbox.db")
        self.refused("is a symbolic link")
        link = self.path.with_name("link")
        link.symlink_to(real)
        self.refused(f"{link} is a symbolic link", link / "outbox.db")
        (real / "deeper").mkdir(mode=0o700)
        self.refused(f"{link} is a symbolic link", link / "deeper" / "outbox.db")

    def test_other_kinds_of_files(self) -> None:
        self.path.mkdir()
        self.refused("is no regular file")
        self.refused("is no directory", self.desk.mounts / "outbox.db")
        os.mkfifo(self.path.with_name("fifo"), 0o600)
        self.refused("is no regular file", self.path.with_name("fifo"))

    def test_no_directory(self) -> None:
        self.refused("No such file or directory", self.path.parent / "none" / "outbox.db", OutboxFailing)

    def test_another_owner(self) -> None:
        create(self.path)
        with mock.patch("os.geteuid", return_value=os.geteuid() + 1):
            self.refused("belongs to another user")

    def test_a_directory_of_another_user(self) -> None:
        found = list(self.path.parent.stat())
        found[4] = os.geteuid() + 1
        with mock.patch.object(Path, "lstat", return_value=os.stat_result(found)):
            self.refused("belongs to another user")

    def test_what_cannot_be_looked_at(self) -> None:
        lstat = Path.lstat

        def look(path: Path) -> os.stat_result:
            if path == self.path:
                raise PermissionError(13, "Permission denied")
            return lstat(path)

        with mock.patch.object(Path, "lstat", look):
            self.refused("Permission denied", kind=OutboxFailing)

    def test_a_network_file_system(self) -> None:
        self.desk.mounts.write_bytes(LOCAL + f"40 22 0:9 / {self.path.parent} rw - nfs4 a:/b rw\n".encode())
        self.refused("is on a file system of type nfs4")

    def test_no_table_of_mounts(self) -> None:
        self.desk.mounts.write_bytes(b"")
        self.refused("cannot be told")
        self.desk.mounts.unlink()
        self.refused("No such file or directory", kind=OutboxFailing)


class RecogniseTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.desk = Desk(self)
        self.path = self.desk.path

    def refused(self, said: str) -> None:
        self.path.chmod(0o600)
        before = snapshot(self.path)
        error = self.assertRaises(NotAnOutbox, recognise, self.path)
        self.assertIn(said, str(error))
        self.assertEqual(snapshot(self.path), before, "untouched")

    def execute(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def test_ours(self) -> None:
        create(self.path)
        before = snapshot(self.path)
        recognise(self.path)
        self.assertEqual(snapshot(self.path), before)

    def test_no_database(self) -> None:
        for content in (b"x", b"no database" * 1000):
            self.path.write_bytes(content)
            self.refused("is no SQLite database, or damaged")

    def test_empty(self) -> None:
        self.path.write_bytes(b"")
        self.refused("is empty")

    def test_another_programs(self) -> None:
        self.execute("CREATE TABLE t(x)")
        self.refused("another program")
        self.execute("PRAGMA journal_mode=WAL", "PRAGMA user_version=1")
        self.refused("another program")

    def test_a_newer_version(self) -> None:
        create(self.path)
        self.execute("PRAGMA user_version=2")
        self.refused("has version 2; this program knows version 1")

    def test_beside_another_programs_journal(self) -> None:
        self.execute("CREATE TABLE t(x)")
        self.path.with_name("outbox.db-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"x" * 600)
        self.refused("another program")

    def test_what_cannot_be_read(self) -> None:
        create(self.path)
        problem = sqlite3.OperationalError("unable to open database file")
        problem.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        with mock.patch("sqlite3.connect", side_effect=problem):
            self.assertRaises(OutboxFailing, recognise, self.path)

    def test_while_it_grows(self) -> None:
        """A commit writes the first page, which tells the new size, before those at the end."""
        create(self.path)
        with open(self.path, "r+b") as file:
            file.seek(28)
            file.write((1000).to_bytes(4, "big"))
        recognise(self.path)


class CreateTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.path = Desk(self).path

    def test_whatever_the_umask(self) -> None:
        before = os.umask(0)
        try:
            create(self.path)
        finally:
            os.umask(before)
        self.assertEqual(self.path.stat().st_mode & 0o7777, 0o600)

    def test_one_that_is_there_meanwhile_stays(self) -> None:
        self.path.write_bytes(b"theirs")
        create(self.path)
        self.assertEqual(self.path.read_bytes(), b"theirs")
        self.assertEqual(sorted(os.listdir(self.path.parent)), ["mountinfo", "outbox.db"])

    def test_a_link_is_not_followed(self) -> None:
        elsewhere = self.path.with_name("elsewhere")
        self.path.symlink_to(elsewhere)
        create(self.path)
        self.assertFalse(elsewhere.exists())

    def test_a_failure_leaves_nothing(self) -> None:
        for call in ("os.link", "os.fsync", "os.fchmod"):
            with mock.patch(call, side_effect=OSError(28, "No space left on device")):
                error = self.assertRaises(OutboxFailing, create, self.path)
            self.assertIn("No space left", str(error))
            self.assertEqual(os.listdir(self.path.parent), ["mountinfo"])

    def test_a_crash_leaves_none_of_its_name(self) -> None:
        """Killed before the link: what lies beside harms nobody, and the next one makes it."""
        with mock.patch.object(Path, "unlink"), mock.patch("os.link", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, create, self.path)
        self.assertFalse(self.path.exists())
        create(self.path)
        recognise(self.path)

    def test_the_layout(self) -> None:
        create(self.path)
        with closing(sqlite3.connect(self.path)) as connection:
            plan = connection.execute(
                "EXPLAIN QUERY PLAN SELECT seq, lease, lease_expires_at FROM messages"
                " WHERE queue = 'a' ORDER BY seq"
            ).fetchall()
            self.assertEqual(len(plan), 1, "no sorting")
            self.assertIn("SEARCH messages USING INDEX messages_queue", plan[0][3])
            self.assertRaises(
                sqlite3.IntegrityError,
                connection.execute,
                "INSERT INTO messages(id, queue, created_at, record) VALUES ('a', 'b', 'text', x'00')",
            )
        self.assertEqual(outbox_file.VERSION, 1)
