"""
A daemon whose state lies on a small file system of its own, filled and freed from outside.

The file system is a tmpfs in a user and mount namespace that a process holds open; no rights are needed where
users may make namespaces.  From here it is reached through ``/proc/PID/root``, which the kernel follows and
SQLite, that resolves links by itself, does not: so its database is looked at in a copy, taken while the
daemon is stopped.  That is what a kill at this moment would leave behind.
"""

from __future__ import annotations

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


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[SmallDisk]:
    """A file system of this size; it is gone with its last user."""
    path.mkdir()
    script = f'mount -t tmpfs -o size={megabytes}m,mode=700 none "$1" && echo mounted && exec cat'
    holder = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:  # Leaving closes its pipes and waits: cat ends.
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mounted\n"
        yield SmallDisk(path, holder.pid)


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
def gateway_on_a_small_disk(directory: Path, megabytes: int) -> Iterator[tuple[Gateway, SmallDisk]]:
    """A gateway that is not started, and the disk its state is on."""
    with (
        small_disk(directory / "disk", megabytes) as disk,
        BotApi() as api,
        CallbackReceiver() as receiver,
        DistantDaemon(disk.path, api.url, directory=directory, prefix=disk.prefix, disk=disk) as daemon,
    ):
        yield Gateway(api, receiver, daemon), disk
