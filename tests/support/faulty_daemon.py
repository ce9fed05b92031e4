"""
The real daemon on storage that can be made to fail, and be mended, while it runs.

As ``python -m tests.support.faulty_daemon serve …`` it is ``telegrammer serve …``, but the system calls that
SQLite makes go through functions that first look at one byte of a file shared with the test, and fail when
that says so.  SQLite offers this for such tests (``xSetSystemCall`` of sqlite.org/c3ref/vfs.html).

What fails, and how, is what the kernel does: a file system that became read-only after an error of its disk
(ext4 with ``errors=remount-ro``) refuses writes on descriptors that are open, with EROFS; one cannot be
remounted like that while a file on it is open for writing, so nothing less shows it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from attrs import define

from tests.support.daemon import PYTHON, Daemon

CONTROL = "FAULTY_STORAGE"
Fault = Literal["none", "read-only", "writes fail", "the database file cannot be written"]
FAULTS: tuple[Fault, ...] = ("none", "read-only", "writes fail", "the database file cannot be written")
_ERRORS = {1: errno.EROFS, 2: errno.EIO, 3: errno.EIO}


def library() -> str | None:
    """The library that ``sqlite3`` uses, when it is one that is shared and can be told."""
    import sqlite3  # noqa: F401  # loads it

    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libsqlite3" in path:
            return path
    return None


def why_not() -> str | None:
    return None if library() else "SQLite is a part of the interpreter here"


# -- in the daemon ---------------------------------------------------------------------------------------

_HOOKS = (
    "xOpen xDelete xAccess xFullPathname xDlOpen xDlError xDlSym xDlClose xRandomness xSleep xCurrentTime "
    "xGetLastError xCurrentTimeInt64 xSetSystemCall xGetSystemCall xNextSystemCall"
).split()


class Vfs(ctypes.Structure):
    """``sqlite3_vfs``."""

    _fields_ = (
        ("iVersion", ctypes.c_int),
        ("szOsFile", ctypes.c_int),
        ("mxPathname", ctypes.c_int),
        ("pNext", ctypes.c_void_p),
        ("zName", ctypes.c_char_p),
        ("pAppData", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _HOOKS),
    )


@define(eq=False)
class FaultyCalls:
    """Stand before SQLite's system calls."""

    control: mmap.mmap
    kept: list[Any]
    """What C holds a pointer to."""

    def install(self, path: str) -> None:
        sqlite = ctypes.CDLL(path)
        sqlite.sqlite3_vfs_find.restype = ctypes.POINTER(Vfs)
        vfs = sqlite.sqlite3_vfs_find(None)
        at = ctypes.addressof(vfs.contents)
        get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(vfs.contents.xGetSystemCall)
        put = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
            vfs.contents.xSetSystemCall
        )
        number, text, size = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t
        shapes: tuple[tuple[bytes, tuple[Any, ...]], ...] = (
            (b"open", (number, text, number, number)),
            (b"write", (ctypes.c_ssize_t, number, ctypes.c_void_p, size)),
            (b"pwrite64", (ctypes.c_ssize_t, number, ctypes.c_void_p, size, ctypes.c_int64)),
            (b"ftruncate", (number, number, ctypes.c_int64)),
            (b"unlink", (number, text)),
        )
        for name, shape in shapes:
            kind = ctypes.CFUNCTYPE(*shape, use_errno=True)
            call = kind(self._before(name, kind(get(at, name))))
            self.kept.append(call)
            put(at, name, ctypes.cast(call, ctypes.c_void_p))

    def _before(self, name: bytes, real: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            fault = self.control[0]
            if fault and self._hits(fault, name, arguments):
                ctypes.set_errno(_ERRORS[fault])
                return -1
            return real(*arguments)

        return call

    def _hits(self, fault: int, name: bytes, arguments: tuple[Any, ...]) -> bool:
        if name == b"open":
            return fault == 1 and bool(arguments[1] & (os.O_RDWR | os.O_WRONLY | os.O_CREAT))
        if fault == 3:
            return name != b"unlink" and os.readlink(f"/proc/self/fd/{arguments[0]}").endswith(".db")
        return fault == 1 or name != b"unlink"


def serve() -> int:
    """Stand in the way, and be the command."""
    with open(os.environ[CONTROL], "r+b") as file:
        control = mmap.mmap(file.fileno(), 1)
    path = library()
    assert path is not None, why_not()
    calls = FaultyCalls(control, [])
    calls.install(path)
    from telegrammer.cli import main

    return main()


# -- in the test -----------------------------------------------------------------------------------------


@define(eq=False)
class Storage:
    """The test's end."""

    _control: Path

    def becomes(self, fault: Fault) -> None:
        """From now on, until told otherwise."""
        with open(self._control, "r+b", buffering=0) as file:
            file.write(bytes([FAULTS.index(fault)]))


@contextmanager
def faulty_storage(daemon: Daemon, control: Path) -> Iterator[Storage]:
    """The daemon that is started inside can be told how its storage does, by way of this new file."""
    control.write_bytes(b"\0")
    before = daemon.program, daemon.environment
    daemon.program = (*PYTHON, "-m", "tests.support.faulty_daemon", "serve")
    daemon.environment = dict(daemon.environment) | {CONTROL: str(control)}
    try:
        yield Storage(control)
    finally:
        daemon.program, daemon.environment = before


if __name__ == "__main__":
    sys.exit(serve())
