"""
What the operator is told, and when (contract 7.4).

``due`` compares what is observed with the marks of what was told; a mark is stored with its notice in one
transaction, so that a restart neither repeats nor loses one.  A *matter* (the ``subject`` of a mark) gets one
notice in ten minutes; the end of a trouble that was told of is always told, at once, so whatever flaps makes
two notices in ten minutes.

A clock that was set back leaves marks in the future: such a mark silences nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import floor
from typing import Final, Literal

from attrs import field, frozen

from telegrammer.core import notice_texts as texts
from telegrammer.core.delivery import QueueCounts
from telegrammer.core.health import (
    PERSISTENT_FAILURES,
    PERSISTENT_SECONDS,
    FoldingStatus,
    IngestionStatus,
)
from telegrammer.core.journal import JournalCounts
from telegrammer.core.messages import Mark
from telegrammer.core.notice_texts import Deaths

QUIET: Final = 600
"""Seconds between a notice of a matter and the next trouble of the same."""
DEATHS_QUIET: Final = 3600
"""Seconds between two notices that name the same subscription."""
OLDEST: Final = 86_400
"""Seconds: an older notice is no news, and is dropped."""
MOST_APART: Final = 1000
"""When more subscriptions than these were told of within the hour, the hour is that of all of them."""
HIGH: Final = 0.8
"""Share of ``--max-jobs`` from which the queue counts as high."""
DRAINED: Final = 0.6
"""Share below which it has drained; in between it stays what it was, or it would flap at the border."""

Matter = Literal["ingestion", "queue", "updates", "deaths", "purges", "backup"]

WELL: Final = "ok"
_RANKS: Final[Mapping[str, int]] = {WELL: 0, "failing": 1, "suspended": 2, "high": 1, "full": 2}
"""How bad a state is, within its matter; what a later version may have written is as bad as can be."""
_WORST: Final = 9


@frozen
class Observed:
    """What the daemon looks like at one moment."""

    ingestion: IngestionStatus
    capacity: int
    """``--max-jobs``."""
    folding: FoldingStatus = FoldingStatus()
    counts: QueueCounts | None = None
    """None: they could not be looked at."""
    journal: JournalCounts | None = None
    """The same."""
    deaths: Sequence[Deaths] = ()
    """What `deaths_wanted` asked for."""
    purged: int = 0
    """Dead deliveries that were purged, and not yet told of."""
    backups: Sequence[str] = ()
    """Names of the backups that migrations left beside the database."""


@frozen
class Notice:
    """Something to tell, and the mark to be stored with it."""

    subject: str
    body: str = field(repr=False)
    mark: Mark
    recovery: bool = False
    """The end of a trouble; pointless to who was not told of its begin."""


@frozen
class DeathsWanted:
    """Which dead deliveries are news: those that died after ``since``, or after what ``apart`` says."""

    since: int
    before: int
    """Unix seconds, as all here.  The second that still runs is left for the next time."""
    apart: Mapping[int, int]
    """By subscription: after this second, in place of ``since``."""


def due(observed: Observed, marks: Mapping[str, Mark], now: float) -> list[Notice]:
    """
    The notices to send now, with their marks.

    :param marks: the last mark of each matter.
    :param now: wall-clock Unix seconds.
    """
    found = (
        _ingestion(observed.ingestion, marks.get("ingestion"), now),
        _queue(observed, marks.get("queue"), now),
        _updates(observed.journal, marks.get("updates"), now),
        _deaths(observed.deaths, marks.get("deaths"), now),
        _purges(observed.purged, marks.get("purges"), now),
        _backups(observed.backups, marks.get("backup"), now),
    )
    return [notice for notice in found if notice is not None]


def _notice(
    words: tuple[str, str], matter: Matter, state: str, now: float, *, recovery: bool = False
) -> Notice:
    return Notice(*words, Mark(matter, state, floor(now)), recovery)


def _silenced(mark: Mark | None, now: float, seconds: int = QUIET) -> bool:
    return mark is not None and mark.at <= now < mark.at + seconds


def _rank(mark: Mark | None) -> int:
    return 0 if mark is None else _RANKS.get(mark.state, _WORST)


# -- each matter ---------------------------------------------------------------------------------------


def _ingestion(status: IngestionStatus, mark: Mark | None, now: float) -> Notice | None:
    trouble = ingestion_trouble(status)
    if trouble is None:
        # "Alive" is no success: only a batch that was committed is, or what the webhook's keeper has found,
        # after a restart as well.
        succeeds = status.consecutive_failures == 0 and status.last_success_at is not None
        if _rank(mark) > 0 and succeeds and status.state in ("polling", "listening"):
            return _notice(texts.ingestion_well(now), "ingestion", WELL, now, recovery=True)
        return None
    if _RANKS[trouble] <= _rank(mark) or _silenced(mark, now):
        return None
    words = texts.ingestion_trouble(status, trouble == "suspended", now)
    return _notice(words, "ingestion", trouble, now)


def ingestion_trouble(status: IngestionStatus) -> Literal["failing", "suspended"] | None:
    """Whether it is one that the operator is told of: suspended, or failing persistently (contract 2.3)."""
    if status.state == "suspended":
        return "suspended"
    if status.state == "stopped":
        return None
    if status.consecutive_failures >= PERSISTENT_FAILURES or status.quiet_seconds >= PERSISTENT_SECONDS:
        return "failing"
    return None


def _queue(observed: Observed, mark: Mark | None, now: float) -> Notice | None:
    if observed.counts is None:
        return None
    counts, capacity = observed.counts, observed.capacity
    used = counts.pending + counts.in_flight + counts.dead
    # A batch goes in whole or not at all, and so does a message; so a full queue may have a little room.
    full = used >= capacity or observed.ingestion.reason == "capacity" or observed.folding.lacks_room
    if full or used >= HIGH * capacity:
        level = "full" if full else "high"
        if _RANKS[level] <= _rank(mark) or _silenced(mark, now):
            return None
        words = texts.queue_filled(full, used, capacity, observed.ingestion.mode, now)
        return _notice(words, "queue", level, now)
    if _rank(mark) > 0 and used < DRAINED * capacity:
        return _notice(texts.queue_drained(used, capacity, now), "queue", WELL, now, recovery=True)
    return None


def _updates(counts: JournalCounts | None, mark: Mark | None, now: float) -> Notice | None:
    """Of updates that cannot be folded; the mark is the last entry that was told of."""
    if counts is None or counts.newest_failed is None or _silenced(mark, now):
        return None
    if mark is not None and mark.state.isdecimal() and counts.newest_failed <= int(mark.state):
        return None
    return _notice(texts.updates_failed(counts.failed, now), "updates", str(counts.newest_failed), now)


def deaths_wanted(marks: Mapping[str, Mark], now: float) -> DeathsWanted | None:
    """Which dead deliveries to look for; None while none of them would be told of."""
    mark, second = marks.get("deaths"), floor(now)
    if mark is None:
        return DeathsWanted(-1, second, {})
    told = _told(mark)
    if _silenced(mark, now, DEATHS_QUIET if isinstance(told, int) else QUIET):
        return None
    if mark.at > now:
        # Nothing is known of it but that it is wrong: better told twice than never.
        return DeathsWanted(second - DEATHS_QUIET, second, {})
    if isinstance(told, int):
        return DeathsWanted(told - 1, second, {})
    apart = {number: second if now < at + DEATHS_QUIET else at - 1 for number, at in told.items()}
    return DeathsWanted(mark.at - 1, second, apart)


def _deaths(found: Sequence[Deaths], mark: Mark | None, now: float) -> Notice | None:
    if not found:
        return None
    second, before = floor(now), {} if mark is None else _told(mark)
    # Who was told of longer ago than an hour is covered by the mark's own time from now on.
    told = {}
    if not isinstance(before, int):
        told = {number: at for number, at in before.items() if at <= now < at + DEATHS_QUIET}
    oldest = min(told.values(), default=second)
    told |= {each.subscription_id: second for each in found}
    if len(told) > MOST_APART:
        return _notice(texts.deaths(found, now), "deaths", str(oldest), now)
    state = json.dumps({str(number): told[number] for number in sorted(told)}, separators=(",", ":"))
    return _notice(texts.deaths(found, now), "deaths", state, now)


def _told(mark: Mark) -> dict[int, int] | int:
    """
    When each subscription was told of last, as a mark of deaths says.

    A number: all of them are covered up to that second, and are told of together.
    """
    try:
        state = json.loads(mark.state)
        return state if type(state) is int else {int(number): int(at) for number, at in state.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _purges(count: int, mark: Mark | None, now: float) -> Notice | None:
    if not count or _silenced(mark, now):
        return None
    return _notice(texts.purged(count, now), "purges", str(count), now)


def _backups(names: Sequence[str], mark: Mark | None, now: float) -> Notice | None:
    # A mark is a list of lines, so none of them may have what ends one, or what is no text.
    present = {"".join(char if " " <= char <= "~" else "?" for char in name) for name in names}
    known = set() if mark is None else set(mark.state.split("\n"))
    new = sorted(present - known)
    if not new:
        return None
    # Those that were deleted meanwhile are forgotten: a name has its second in it and does not come again.
    return _notice(texts.backed_up(new, now), "backup", "\n".join(sorted(present)), now)
