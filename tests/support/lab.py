"""
How long the fault laboratory takes: seconds, as a part of every run of the tests, or minutes.

``TELEGRAMMER_LAB=full`` asks for the long form: more repetitions of the same scenarios, and those scenarios
that are long by nature.  Unset or empty is the quick form; any other word is a mistake, and said to be one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

VARIABLE = "TELEGRAMMER_LAB"


def asks_for_full(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for the long form; raises ValueError for a word that means nothing."""
    value = environment.get(VARIABLE, "")
    if value not in ("", "quick", "full"):
        raise ValueError(f"{VARIABLE} is quick or full, not {value!r}")
    return value == "full"


FULL = asks_for_full(os.environ)
"""Whether this run is the long form."""


def repetitions(quick: int, full: int) -> int:
    """How often to repeat a scenario in this run."""
    return full if FULL else quick


full_only = pytest.mark.skipif(not FULL, reason=f"minutes long: runs with {VARIABLE}=full")
"""Marks a scenario that is long by nature."""
