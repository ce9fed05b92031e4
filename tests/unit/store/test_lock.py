"""One daemon a database (contract 1.3)."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import LockHeld, StartRefused
from telegrammer.store.lock import PAUSE, TRIES, ProcessLock, held_by_another, lock_path
from tests.support.directories import temporary_directory


class LockTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.db = temporary_directory(self) / "state" / "a.db"
        self.pauses: list[float] = []
        self.lock = ProcessLock(self.db, self.pauses.append)
        self.addCleanup(self.lock.release)

    def test_taken_and_given_back(self) -> None:
        self.assertFalse(held_by_another(self.db))
        self.assertFalse(self.db.parent.exists())
        self.lock.startService()
        self.assertEqual(lock_path(self.db).name, "a.db.lock")
        self.assertEqual(lock_path(self.db).stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.db.parent.stat().st_mode & 0o777, 0o700)
        self.assertTrue(held_by_another(self.db))
        self.lock.stopService()
        self.assertFalse(held_by_another(self.db))
        self.assertFalse(self.db.parent.exists())

    def test_a_directory_that_was_there_or_is_in_use_stays(self) -> None:
        self.db.parent.mkdir()
        deeper = ProcessLock(self.db.with_name("deeper") / "a.db")
        with deeper:
            lock_path(deeper.db).with_name("other").touch()
        self.assertEqual(os.listdir(deeper.db.parent), ["other"])
        with self.lock:
            pass
        self.assertTrue(self.db.parent.exists())

    def test_a_directory_made_for_nothing_goes(self) -> None:
        self.patch(fcntl, "flock", lambda descriptor, operation: os.open("/nonexistent", os.O_RDONLY))
        self.assertRaises(StartRefused, self.lock.acquire)
        self.assertFalse(self.db.parent.exists())

    def test_held_is_refused_after_a_few_tries(self) -> None:
        self.lock.acquire()
        second = ProcessLock(self.db, self.pauses.append)
        with self.assertRaises(LockHeld) as caught:
            second.startService()
        self.assertIn("a.db.lock", str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))
        self.assertEqual(self.pauses, [PAUSE] * (TRIES - 1))
        self.assertFalse(second.running)
        second.release()
        self.assertTrue(held_by_another(self.db))

    def test_a_look_at_the_lock_is_waited_for(self) -> None:
        self.lock.acquire()
        second = ProcessLock(self.db, lambda seconds: self.lock.release())
        self.addCleanup(second.release)
        second.acquire()
        self.assertTrue(held_by_another(self.db))

    def test_two_who_look_do_not_see_one_another(self) -> None:
        self.db.parent.mkdir(parents=True)
        lock_path(self.db).touch(0o600)
        descriptor = os.open(lock_path(self.db), os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        self.assertFalse(held_by_another(self.db))

    def test_a_lock_file_that_was_there_stays(self) -> None:
        self.db.parent.mkdir(parents=True)
        lock_path(self.db).touch(0o600)
        self.lock.acquire()
        self.lock.release()
        self.assertTrue(lock_path(self.db).exists())

    def test_a_lock_on_a_file_that_is_gone_is_none(self) -> None:
        """Whoever waited with the old file open must not share the name with a later holder."""
        self.lock.acquire()
        old = os.open(lock_path(self.db), os.O_RDWR)
        self.addCleanup(os.close, old)
        self.lock.release()
        fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.lock.acquire()
        self.assertEqual(self.pauses, [])

    def test_a_file_that_was_removed_and_is_anothers_by_now_stays(self) -> None:
        self.lock.acquire()
        lock_path(self.db).unlink()
        with ProcessLock(self.db) as other:
            self.lock.release()
            self.assertTrue(held_by_another(other.db))
        self.assertFalse(lock_path(self.db).exists())

    def test_a_file_that_cannot_be_removed_is_let_go_all_the_same(self) -> None:
        def unlink(path: Path, missing_ok: bool = False) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        self.lock.acquire()
        patch = self.patch(Path, "unlink", unlink)
        self.lock.release()
        patch.restore()
        self.assertTrue(lock_path(self.db).exists())
        self.assertFalse(held_by_another(self.db))
        self.lock.acquire()

    def test_a_file_replaced_while_it_was_being_locked(self) -> None:
        self.db.parent.mkdir(parents=True)
        path = lock_path(self.db)
        path.touch()
        real, replaced = fcntl.flock, False

        def flock(descriptor: int, operation: int) -> None:
            nonlocal replaced
            if not replaced:
                replaced = True
                path.unlink()
            real(descriptor, operation)

        self.patch(fcntl, "flock", flock)
        self.lock.acquire()
        self.assertEqual(self.pauses, [PAUSE])
        self.assertTrue(path.exists())

    def test_a_link_is_not_followed(self) -> None:
        self.db.parent.mkdir(parents=True)
        victim = self.db.with_name("victim")
        victim.touch()
        lock_path(self.db).symlink_to(victim)
        with self.assertRaises(StartRefused) as caught:
            self.lock.acquire()
        self.assertIn("cannot be used", str(caught.exception))

    def test_a_directory_of_its_name(self) -> None:
        lock_path(self.db).mkdir(parents=True)
        self.assertRaises(StartRefused, self.lock.acquire)

    def test_a_lock_that_cannot_be_looked_at(self) -> None:
        self.db.parent.mkdir(parents=True)
        lock_path(self.db).symlink_to(lock_path(self.db).absolute())
        self.assertRaises(StartRefused, held_by_another, self.db)

    def test_for_a_command(self) -> None:
        with ProcessLock(self.db):
            self.assertTrue(held_by_another(self.db))
        self.assertFalse(held_by_another(self.db))

    def test_a_parent_that_is_a_file(self) -> None:
        self.db.parent.touch()
        with self.assertRaises(StartRefused) as caught:
            self.lock.acquire()
        self.assertIn("state directory", str(caught.exception))
