"""
A wall clock that the test sets, for the daemon and the commands beside it, by libfaketime.

Only the wall clock: the monotonic one, and whatever waits by it, goes on as it is, as on a machine whose
clock is set.  libfaketime comes with the requirements of the tests, or as Debian's ``faketime``.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import define, field

HOUR = 3600
YEAR = 365 * 24 * HOUR


def _library() -> Path | None:
    package = importlib.util.find_spec("libfaketime")
    places = [Path("/usr/lib"), Path("/usr/lib64")]
    candidates = [path for place in places for path in place.glob("*/faketime/libfaketime.so.1")]
    if package is not None and package.origin is not None:
        # Its Python module would fake this very process, and is of no use here.
        candidates.insert(0, Path(package.origin).with_name("vendor") / "libfaketime/src/libfaketime.so.1")
    return next((path for path in candidates if path.exists()), None)


LIBRARY = _library()

needs_shifted_clock = pytest.mark.skipif(
    LIBRARY is None, reason="there is no libfaketime; pip install libfaketime, or apt-get install faketime"
)
"""Marks what sets the clock of a process."""


@define(eq=False)
class ClockShift:
    """
    The wall clock of every process that is started with ``environment``; it is right until ``set``.

    :param file: where it is written how wrong the clock is; the processes read it at each look.
    """

    file: Path
    seconds: int = field(default=0, init=False)
    """How wrong it is."""

    def __attrs_post_init__(self) -> None:
        self.set(0)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # With it, whoever waits for Python's lock until a time waits far too long.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
        }

    def set(self, seconds: int) -> None:
        """From now on the clock is wrong by so much; at once, in every process."""
        written = self.file.with_name(f"{self.file.name}.new")
        written.write_text(f"{seconds:+d}")
        os.replace(written, self.file)
        self.seconds = seconds

    def tidy(self, pid: int) -> None:
        """Remove what the library of a process that was killed has left behind."""
        for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
            Path("/dev/shm", name).unlink(missing_ok=True)

    def now(self) -> float:
        """What it shows."""
        return time.time() + self.seconds
