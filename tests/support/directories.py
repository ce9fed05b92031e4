"""A directory for one test, gone with it (``mktemp`` leaves its own in the working directory)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase


def temporary_directory(test: SynchronousTestCase) -> Path:
    """An empty directory that is removed with all its contents when the test has ended."""
    directory = tempfile.TemporaryDirectory(prefix="telegrammer-test-")
    test.addCleanup(directory.cleanup)
    return Path(directory.name)


@contextmanager
def quick_directory() -> Iterator[Path]:
    """
    A private directory on a file system in memory, where there is one: for what makes thousands of commits,
    and would measure the disk else.
    """
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="telegrammer-test-", dir=where) as directory:
        yield Path(directory)
