"""
The process lock: one daemon a database (contract 1.3).

``flock`` on ``<db>.lock``, kept open for life.  Not ``lockf``, which a fork loses; not a pid file, for pids
are used again.  The file goes with the one that made it, so that a refused start leaves nothing behind;
hence whoever gets the lock looks whether the file he has locked is still the one of that name.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from attrs import define, field
from twisted.application.service import Service
from twisted.logger import Logger

from telegrammer.core.problems import LockHeld, StartRefused
from telegrammer.store.files import create_private, make_state_directory, real_path, remove_directories

log = Logger()

TRIES = 4
"""Another process may hold the lock for a moment, to look who has it."""
PAUSE = 0.05
"""Seconds between tries."""


def lock_path(db: Path) -> Path:
    """Where the lock of this database lies."""
    db = real_path(db)
    return db.with_name(f"{db.name}.lock")


def held_by_another(db: Path) -> bool:
    """
    Does a process hold the lock of this database?  Creates and writes nothing.

    :raises StartRefused: the lock file is there and cannot be opened.
    """
    try:
        descriptor = os.open(lock_path(db), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unusable(db, error) from None
    try:
        # Shared, so that two who look do not see one another.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _unusable(db: Path, error: OSError) -> StartRefused:
    return StartRefused(f"the lock file {lock_path(db)} cannot be used: {error.strerror}")


@define(eq=False)
class ProcessLock(Service):
    """
    The lock of one database: a service for the daemon, a context manager for commands.

    :param pause: waits so many seconds between tries.
    """

    db: Path
    pause: Callable[[float], None] = time.sleep
    _descriptor: int | None = field(default=None, init=False)
    _made: bool = field(default=False, init=False)
    _directories: list[Path] = field(factory=list, init=False)
    """What was made for the lock file to lie in; it goes with it when nothing else has come there."""

    def acquire(self) -> None:
        """
        Take the lock; the state directory is made when missing.

        :raises LockHeld: another process has it.
        :raises StartRefused: directory or file cannot be made.
        """
        try:
            self._take()
        except BaseException:
            self._remove_directories()
            raise

    def _take(self) -> None:
        for left in reversed(range(TRIES)):
            # At each try: whoever made it for nothing has taken it away again.
            self._directories = make_state_directory(self.db) + self._directories
            try:
                if self._try():
                    return
            except BlockingIOError:
                pass
            except OSError as error:
                raise _unusable(self.db, error) from None
            if left:
                self.pause(PAUSE)
        raise LockHeld(f"the database {self.db} is in use: another process holds {lock_path(self.db)}")

    def _try(self) -> bool:
        path = lock_path(self.db)
        made = False
        try:
            descriptor = create_private(path)
            made = True
        except FileExistsError:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_still_there(descriptor, path):
                os.close(descriptor)
                return False
        except BlockingIOError:
            os.close(descriptor)
            raise
        except BaseException:
            os.close(descriptor)
            if made:
                path.unlink(missing_ok=True)
            raise
        self._descriptor, self._made = descriptor, made
        return True

    def release(self) -> None:
        """Give the lock back; does nothing when it is not held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            path = lock_path(self.db)
            if self._made and _is_still_there(descriptor, path):
                # While it is still held: nobody else can take over the name but one who found it removed.
                path.unlink(missing_ok=True)
        except OSError as error:
            # As on a file system that became read-only.  A file that stays is no lock: the next one takes it.
            log.warn("the lock file stays where it is: {reason}", reason=error.strerror)
        finally:
            os.close(descriptor)
        self._remove_directories()

    def _remove_directories(self) -> None:
        directories, self._directories = self._directories, []
        remove_directories(directories)

    def __enter__(self) -> ProcessLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def startService(self) -> None:
        self.acquire()
        super().startService()

    def stopService(self) -> None:
        super().stopService()
        self.release()


def _is_still_there(descriptor: int, path: Path) -> bool:
    mine = os.fstat(descriptor)
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (named.st_dev, named.st_ino)
