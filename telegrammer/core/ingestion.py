"""The plan of a batch: what is new, what a replay, whether Telegram restarted its ids (contract 5.2, 5.3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from attrs import evolve, frozen

from telegrammer.core.problems import MalformedUpdate
from telegrammer.core.telegram import Malformed, Update

RESET_DISTANCE: Final = 1000
"""How far below the cursor all ids of a batch must lie to prove that Telegram restarted them."""

HIGHEST_OFFSET: Final = 2**63 - 1
"""What the database can hold.  As a cursor it means that the highest id there is has been seen too."""


@frozen
class Cursor:
    """The next ``offset`` to ask Telegram for (0 in a fresh database), and how often its ids restarted."""

    next_offset: int = 0
    epoch: int = 0
    from_head: bool = False
    """
    Updates were pushed since: Telegram may hold some above ``next_offset`` that it could not push, and others
    below what was pushed.  The next request names no offset, which confirms nothing (contract 8).
    """


@frozen
class Plan:
    """What one batch asks of the store, decided before anything is written."""

    cursor: Cursor
    """The cursor to store with the jobs."""
    updates: tuple[Update, ...]
    """The new ones, ascending, each id once."""
    replayed: int = 0
    reset: bool = False
    skipped: tuple[int, ...] = ()
    """Malformed updates passed over because the operator said so."""
    quarantined: tuple[Malformed, ...] = ()
    """Malformed updates to be put aside, ascending."""


@frozen
class Quarantined:
    """A malformed update that was put aside, as a failed entry of the journal."""

    update_id: int
    entry_id: int
    why: str


@frozen
class Ingested:
    """What a committed batch did."""

    cursor: Cursor
    fresh: int
    """Updates that were not replays, unsupported and skipped ones included."""
    replayed: int
    jobs: int
    migrated: int = 0
    """Subscriptions moved to another chat, or absorbed there."""
    reset: bool = False
    skipped: tuple[int, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    evicted: int = 0
    """The oldest dead jobs, that had to go for a message to fit."""


def plan(
    elements: Sequence[Update | Malformed],
    cursor: Cursor,
    skips: AbstractSet[int],
    *,
    journaled: AbstractSet[int] = frozenset(),
    quarantine: bool = False,
    restarted: bool = False,
) -> Plan:
    """
    Decide what a batch asks of the store.

    Ids below the cursor are replays and ignored, and so are those that were pushed before, malformed ones as
    well; one id counts once, and for it a well-formed element rather than a malformed one.  A batch whose ids
    *all* lie more than 1,000 below the cursor tells that Telegram restarted its ids (at random after a quiet
    week): then all of it is new, in a new epoch, and the cursor goes down.  In answer to a request without an
    offset that proves nothing.

    :param cursor: the stored one, read in the transaction that will write the plan.
    :param skips: ids the operator marked: a malformed update of such an id is passed over.
    :param journaled: those of the ids that came by webhook before, in the epoch of the cursor.
    :param quarantine: put other malformed updates aside, in place of holding up the batch.  One without an id
        cannot be: nothing says whether the cursor has passed it.
    :param restarted: by what came before, and when, the ids are known to have been restarted.
    :raises MalformedUpdate: a new element is malformed and neither of these; names the lowest such id.
    """
    by_id: dict[int, Update | Malformed] = {}
    nameless: Malformed | None = None
    for element in elements:
        if element.update_id is None:
            nameless = nameless or (element if isinstance(element, Malformed) else None)
        elif isinstance(element, Update) and isinstance(by_id.get(element.update_id), Malformed):
            by_id[element.update_id] = element
        else:
            by_id.setdefault(element.update_id, element)
    below = not cursor.from_head and bool(by_id) and _is_reset(by_id, cursor.next_offset)
    reset = nameless is None and bool(by_id) and (restarted or below)
    beyond = [update_id for update_id in by_id if reset or not was_polled(update_id, cursor.next_offset)]
    fresh = sorted(update_id for update_id in beyond if reset or update_id not in journaled)
    updates: list[Update] = []
    skipped: list[int] = []
    quarantined: list[Malformed] = []
    for update_id in fresh:
        element = by_id[update_id]
        if isinstance(element, Update):
            updates.append(element)
        elif update_id in skips:
            skipped.append(update_id)
        elif quarantine:
            quarantined.append(element)
        else:
            raise MalformedUpdate(update_id, element.why)
    if nameless is not None:
        raise MalformedUpdate(None, nameless.why)
    if not beyond:
        return Plan(evolve(cursor, from_head=False), (), replayed=len(by_id))
    return Plan(
        cursor=Cursor(min(max(beyond) + 1, HIGHEST_OFFSET), cursor.epoch + 1 if reset else cursor.epoch),
        updates=tuple(updates),
        replayed=len(by_id) - len(fresh),
        reset=reset,
        skipped=tuple(skipped),
        quarantined=tuple(quarantined),
    )


def was_polled(update_id: int, next_offset: int) -> bool:
    """Whether an update lies below the cursor of its epoch."""
    return update_id < next_offset or next_offset == HIGHEST_OFFSET


def _is_reset(ids: Collection[int], next_offset: int) -> bool:
    return max(ids) < next_offset - RESET_DISTANCE
