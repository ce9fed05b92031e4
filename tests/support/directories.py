"""A directory for one test, gone with it (``mktemp`` leaves its own in the working directory)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase


def temporary_directory(test: SynchronousTestCase) -> Path:
    """An empty directory that is removed with all its contents when the test has ended."""
    directory = tempfile.TemporaryDirectory(prefix="telegrammer-test-")
    test.addCleanup(directory.cleanup)
    return Path(directory.name)
