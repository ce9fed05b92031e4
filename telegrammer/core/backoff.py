"""Waiting for Telegram: doubling back-off, re-probes, what a ``retry_after`` may be (contract 5.4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

LONGEST_RETRY_AFTER: Final = 86_400
"""Seconds; a day is the longest wait that is believed (contract 2.1, 5.4)."""

_digits = re.compile(rb"[0-9]+").fullmatch
_MAX_DOUBLINGS: Final = 32
"""Beyond this a doubling changes nothing any more, and must not build a number of millions of digits."""


def doubled(first: float, times: int, longest: float) -> float:
    """``first`` doubled ``times`` times, at most ``longest``; all in seconds."""
    return min(longest, first * (1 << min(times, _MAX_DOUBLINGS)))


def backoff(failures_before: int, jitter: float) -> float:
    """
    Seconds to wait after a failure: 1 doubling to 60, plus 0 to 25 %.

    :param failures_before: how many came before this one since the last success.
    :param jitter: in [0, 1), the share of the largest jitter to add.
    """
    return doubled(1.0, failures_before, 60.0) * (1 + 0.25 * jitter)


def storage_wait(failures_before: int, jitter: float) -> float:
    """
    Seconds until a database that failed is tried again: 1 doubling to 6, plus 0 to 25 %.

    No peer has to be spared, and what was sent meanwhile is to be with its receivers within 10 s of the
    trouble's end.
    """
    return doubled(1.0, failures_before, 6.0) * (1 + 0.25 * jitter)


def conflict_wait(conflicts_before: int) -> float:
    """Seconds until polling is tried again after a 409: 5, 15, 30, then 60."""
    return (5.0, 15.0, 30.0, 60.0)[min(conflicts_before, 3)]


def identity_wait(refusals_before: int) -> float:
    """Seconds until ``getMe`` is asked again of a token that was refused: 60 growing to 600."""
    return doubled(60.0, refusals_before, 600.0)


def room_wait(refusals_before: int) -> float:
    """Seconds to wait at most for room for a single update: 1 doubling to 60."""
    return doubled(1.0, refusals_before, 60.0)


def retry_after(parameter: object, header: Sequence[bytes]) -> int | None:
    """
    How many seconds a 429 asks to wait, 1 or more.  Callers decide what to do beyond a day.

    :param parameter: ``parameters.retry_after`` of the envelope, as decoded (None when absent).
    :param header: the raw values of ``Retry-After``; consulted when the parameter is no positive integer.
    :return: None when neither says it validly: not a string, a fraction, a sign, a zero.
    """
    if type(parameter) is int and parameter > 0:
        return parameter
    if len(header) == 1 and _digits(header[0]):
        # Cut before int() is asked: it refuses, and takes long over, thousands of digits.
        seconds = int(header[0].lstrip(b"0")[:20] or b"0")
        return seconds if seconds > 0 else None
    return None
