"""Waits: the retry schedule, jitter, what a failing lane carries over, ``Retry-After`` (contract 1.2, 6)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil, floor

from attrs import frozen

LIFE = 86_400
"""Seconds from a job's first attempt within which its last one must begin (contract 6)."""

MOST_WAITS = 400
LONGEST_CARRIED = 300
"""Seconds; where the wait that a failing lane carries from job to job stops doubling."""

LARGEST_JITTER = 0.25


@frozen
class Schedule:
    """``--retry-schedule``: the waits between attempts, in whole seconds; N waits make N + 1 attempts."""

    waits: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)

    @property
    def attempts(self) -> int:
        """How many attempts a job gets."""
        return len(self.waits) + 1


_OPENING = (1, 2, 5, 15, 60, 120)
PATIENT = Schedule(_OPENING + (300,) * ((LIFE - sum(_OPENING)) // 300))
"""What the word ``patient`` stands for: every five minutes up to 24 h, after a quick opening."""

_WAIT = re.compile(r"([0-9]{1,9})([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_schedule(text: str) -> Schedule:
    """
    Read ``1s,2s,5m`` (units s, m, h, d; none: seconds) or the word ``patient``.

    :raises ValueError: the message says which rule is broken, and fits into a line about the setting.
    """
    if text.strip() == "patient":
        return PATIENT
    waits = []
    for number, part in enumerate(text.split(","), 1):
        match = _WAIT.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"wait {number} is not a duration like 30s, 5m or 1h")
        seconds = int(match[1]) * _UNITS[match[2]]
        if seconds < 1:
            raise ValueError(f"wait {number} is shorter than 1s")
        waits.append(seconds)
    if len(waits) > MOST_WAITS:
        raise ValueError(f"{len(waits)} waits; at most {MOST_WAITS} are allowed")
    if sum(waits) > LIFE:
        raise ValueError(f"the waits add up to {sum(waits)} s, which is more than 24 h")
    return Schedule(tuple(waits))


def carried_wait(fails: int) -> int:
    """The shortest wait, in seconds, of a lane with so many failures in a row behind it: min(300, 2^F)."""
    if fails < 1:
        return 0
    return LONGEST_CARRIED if fails > 8 else min(LONGEST_CARRIED, 2**fails)


def due_after(now: float, wait: float, jitter: float) -> int:
    """
    The whole second at which a wait that begins at ``now`` has passed.

    ``jitter`` in [0, 1) adds up to a quarter.  Rounding never makes the wait shorter than ``wait``.
    """
    return max(ceil(now + wait), floor(now + wait * (1 + LARGEST_JITTER * jitter)))


# -- Retry-After (RFC 9110 section 10.2.3) -------------------------------------------------------------

# More digits than any date needs are garbage, and never reach int().
_DELTA = re.compile(rb"[0-9]{1,18}")
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_MONTH = rb"(?P<month>" + rb"|".join(_MONTHS) + rb")"
_CLOCK = rb"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_DAY = rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY = rb"(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)"
# The three forms of RFC 9110 section 5.6.7, in its order.
_DATES = (
    re.compile(_DAY + rb", (?P<day>[0-9]{2}) " + _MONTH + rb" (?P<year>[0-9]{4}) " + _CLOCK + rb" GMT"),
    re.compile(_LONG_DAY + rb", (?P<day>[0-9]{2})-" + _MONTH + rb"-(?P<year>[0-9]{2}) " + _CLOCK + rb" GMT"),
    re.compile(_DAY + rb" " + _MONTH + rb" (?P<day>[0-9]{2}| [0-9]) " + _CLOCK + rb" (?P<year>[0-9]{4})"),
)


def retry_after_seconds(values: Sequence[bytes], now: float) -> int | None:
    """
    What a ``Retry-After`` field asks for, in whole seconds from ``now``; None when it says nothing valid.

    ``values`` are the field's raw values: two of them contradict each other, so neither counts.
    """
    if len(values) != 1:
        return None
    value = values[0].strip(b" \t")
    if _DELTA.fullmatch(value):
        return int(value)
    for form in _DATES:
        match = form.fullmatch(value)
        if match is not None:
            instant = _instant(match, now)
            return None if instant is None else max(0, ceil(instant - now))
    return None


def _instant(match: re.Match[bytes], now: float) -> float | None:
    """The Unix time of a matched date; None when the calendar has no such day or hour."""
    year, second = int(match["year"]), int(match["second"])
    month = _MONTHS.index(match["month"]) + 1
    try:
        if len(match["year"]) == 2:
            # Of the years that end so, the latest that is not more than 50 ahead (RFC 9110 section 5.6.7).
            latest = datetime.fromtimestamp(now, UTC).year + 50
            year = latest - (latest - year) % 100
        # A leap second is valid, and datetime knows none.
        whole = datetime(
            year,
            month,
            int(match["day"]),
            int(match["hour"]),
            int(match["minute"]),
            min(second, 59),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    return whole.timestamp() + second - whole.second if second <= 60 else None
