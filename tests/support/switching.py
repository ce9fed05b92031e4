"""Has threads take turns after every few instructions, so that what is shared without care shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

INTERVAL = 1e-6
"""Seconds; the interpreter's own is 5 ms, in which most of what threads do is over."""


@pytest.fixture(autouse=True)
def eager_switching() -> Iterator[None]:
    """For every test of the module, or below the directory, that imports it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
