"""
A daemon whose state lies on a small file system of its own, filled and freed from outside.

The file system is a tmpfs in a user and mount namespace that a process holds open; no rights are needed where
users may make namespaces.  From here it is reached through ``/proc/PID/root``, which the kernel follows and
SQLite, that resolves links by itself, does not: so its database is looked at in a copy, taken while the
daemon is stopped.  That is what a kill at this moment would leave behind.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from attrs import define, field

from tests.support.bot_api import BotApi
from tests.support.daemon import Daemon
from tests.support.gateway import Gateway, eventually
from tests.support.receiver import CallbackReceiver


@functools.cache
def why_no_broken_disk() -> str | None:
    """Why this machine cannot make a ``BrokenDisk``; None when it can."""
    if os.geteuid() != 0:
        return "only root can mount an image"
    for tool in ("unshare", "nsenter", "mkfs.ext4"):
        if shutil.which(tool) is None:
            return f"{tool} is missing"
    with tempfile.TemporaryDirectory() as directory:
        script = f'cd "$1" && mkdir m && {_IMAGE} && mount -o loop image m'
        tried = subprocess.run(
            [*_PRIVATE, "sh", "-c", script, "sh", directory], capture_output=True, text=True, check=False
        )
    return None if tried.returncode == 0 else f"no image can be mounted: {tried.stderr.strip()}"


@functools.cache
def why_not() -> str | None:
    """Why this machine cannot do it; None when it can."""
    for tool in ("unshare", "nsenter", "mount"):
        if shutil.which(tool) is None:
            return f"{tool} is missing"
    tried = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else f"no file system of its own: {tried.stderr.strip()}"


_PRIVATE = ("unshare", "--mount", "--propagation", "private")
_IMAGE = "truncate -s 24M image && mkfs.ext4 -q -F image"


@define(eq=False)
class SmallDisk:
    """The file system: at ``path`` for those inside, at ``outside`` for us."""

    path: Path
    pid: int

    @property
    def outside(self) -> Path:
        return Path(f"/proc/{self.pid}/root{self.path}")

    @property
    def prefix(self) -> list[str]:
        """The way in for a program."""
        target = f"--target={self.pid}"
        return ["nsenter", target, "--user", "--preserve-credentials", "--mount", "--"]

    def fill(self) -> None:
        """To the last byte."""
        descriptor = os.open(self.outside / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            for size in (65_536, 4096, 1):
                try:
                    while True:
                        os.write(descriptor, bytes(size))
                except OSError as error:
                    assert error.errno == 28, error  # ENOSPC
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Whatever ``fill`` took is there again."""
        (self.outside / "ballast").unlink()


@define(eq=False)
class BrokenDisk(SmallDisk):
    """An ext4 file system that can be made to find itself broken, and be mounted again."""

    @property
    def prefix(self) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--mount", "--"]

    def breaks(self) -> None:
        """Read-only from now on, for what is open too: as after an error, with ``errors=remount-ro``."""
        self._run("sync && mount -o remount,abort disk")

    def is_mended(self) -> None:
        """Mounted anew, when nobody uses it any more."""
        self._run("umount disk && mount -o loop image disk")

    def _run(self, script: str) -> None:
        argv = [*self.prefix, "sh", "-c", f'cd "$1" && {script}', "sh", str(self.path.parent)]
        subprocess.run(argv, check=True)


@contextmanager
def broken_disk(path: Path) -> Iterator[BrokenDisk]:
    """Whole at first; it is gone with its last user."""
    path.mkdir()
    script = f'cd "$1" && {_IMAGE} && mount -o loop image disk && chmod 700 disk && echo mounted && exec cat'
    with _held([*_PRIVATE, "sh", "-c", script, "sh", str(path.parent)]) as pid:
        yield BrokenDisk(path, pid)


@contextmanager
def _held(argv: list[str]) -> Iterator[int]:
    """While inside, the namespace that this makes is there; the process that holds it."""
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:  # Leaving closes its pipes and waits: cat ends.
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mounted\n"
        yield holder.pid


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[SmallDisk]:
    """A file system of this size; it is gone with its last user."""
    path.mkdir()
    script = f'mount -t tmpfs -o size={megabytes}m,mode=700 none "$1" && echo mounted && exec cat'
    with _held(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(path)]
    ) as pid:
        yield SmallDisk(path, pid)


@define(eq=False)
class DistantDaemon(Daemon):
    """A daemon in there."""

    disk: SmallDisk = field(kw_only=True)

    def adopt(self, database: bytes, key: str) -> None:
        (self.disk.outside / self.db.name).write_bytes(database)
        (self.disk.outside / self.db.name).chmod(0o600)
        self.know(key)

    @contextmanager
    def look(self) -> Iterator[sqlite3.Connection]:
        with tempfile.TemporaryDirectory() as directory:
            with self._standing_still():
                for suffix in ("", "-wal"):
                    source = self.disk.outside / (self.db.name + suffix)
                    if source.exists():
                        shutil.copyfile(source, Path(directory, self.db.name + suffix))
            copy = Path(directory, self.db.name)
            with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
                yield connection

    @contextmanager
    def _standing_still(self) -> Iterator[None]:
        if self._process is None or self._process.poll() is not None:
            yield
            return
        threads = Path("/proc", str(self._process.pid), "task")

        def stopped() -> bool:
            # proc_pid_stat(5): the state comes after the name, which may hold anything.
            states = [
                (thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads.iterdir()
            ]
            return set(states) == {"T"}

        self.send(signal.SIGSTOP)
        try:
            eventually(stopped)
            yield
        finally:
            self.send(signal.SIGCONT)


@contextmanager
def gateway_on(disk: SmallDisk) -> Iterator[Gateway]:
    """A gateway that is not started, its state in there."""
    directory = disk.path.parent
    with (
        BotApi() as api,
        CallbackReceiver() as receiver,
        DistantDaemon(disk.path, api.url, directory=directory, prefix=disk.prefix, disk=disk) as daemon,
    ):
        api.pusher.route = lambda: daemon.url
        yield Gateway(api, receiver, daemon)
