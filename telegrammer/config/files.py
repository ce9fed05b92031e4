"""Reading the files that settings name, without waiting for anybody."""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG


def read(file: Path, most: int = -1) -> bytes:
    """
    The file's first ``most`` bytes, or all of it.

    Only a regular file is read: a FIFO would hold up the start until somebody writes, a device may never end.

    :raises OSError: it cannot be read, or is a directory.
    :raises ValueError: it is of another kind.
    """
    with open(file, "rb", opener=_opened_at_once) as stream:
        if not S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise ValueError("is not a regular file")
        return stream.read(most)


def may_wait(name: str) -> bool:
    """Whether there is something of this name that others, who just open it, might wait for."""
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError):
        return False
    return not (S_ISREG(mode) or S_ISDIR(mode))


def _opened_at_once(path: str, flags: int) -> int:
    # Opening a FIFO waits for its writer; opening a terminal may make it the process's own.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
