"""Ports of the store in memory, for tests of rooms; held to the same suites as the SQL (tests/contract)."""

from __future__ import annotations

from math import floor

from attrs import define, field
from twisted.internet.defer import Deferred, fail, succeed

from telegrammer.core.journal import (
    BEGINNING,
    Accepted,
    JournalCounts,
    Late,
    ParseStatus,
    Pending,
    Place,
    restarts_ids,
)
from telegrammer.core.problems import SubscriptionLimit, UnknownKey
from telegrammer.core.subscriptions import Subscription, SubscriptionLimits
from telegrammer.ports import Now


@define(eq=False)
class MemoryKeys:
    """Implements ``ports.Keys`` for the digests it is given."""

    owners: dict[bytes, int] = field(factory=dict)

    def owner_of(self, digest: bytes) -> Deferred[int | None]:
        return succeed(self.owners.get(digest))


@define(eq=False)
class MemorySubscriptions:
    """Implements ``ports.Subscriptions``."""

    limits: SubscriptionLimits = SubscriptionLimits()
    owners: set[int] = field(factory=lambda: {1})
    rows: dict[int, tuple[int, Subscription]] = field(factory=dict)
    last_id: int = 0

    def add(self, owner: int, chat_id: int, callback_url: str) -> Deferred[int]:
        if owner not in self.owners:
            return fail(UnknownKey("the key was deleted"))
        mine = [row for its_owner, row in self.rows.values() if its_owner == owner]
        for row in mine:
            if (row.chat_id, row.callback_url) == (chat_id, callback_url):
                return succeed(row.id)
        for limit, used in ((self.limits.per_key, len(mine)), (self.limits.total, len(self.rows))):
            if used >= limit:
                return fail(SubscriptionLimit(f"the limit of {limit} subscriptions is reached"))
        self.last_id += 1
        self.rows[self.last_id] = (owner, Subscription(self.last_id, chat_id, callback_url))
        return succeed(self.last_id)

    def of(self, owner: int) -> Deferred[list[Subscription]]:
        return succeed([row for its_owner, row in self.rows.values() if its_owner == owner])

    def remove(self, owner: int, subscription_id: int) -> Deferred[bool]:
        if self.rows.get(subscription_id, (None,))[0] != owner:
            return succeed(False)
        del self.rows[subscription_id]
        return succeed(True)


@define(eq=False)
class MemoryUsernames:
    """Implements ``ports.Usernames`` for the names it is given."""

    chats: dict[str, int] = field(factory=dict)

    def chat_of(self, username: str) -> Deferred[int | None]:
        return succeed(self.chats.get(username))


@define(eq=False)
class MemoryEntry:
    """An update that was pushed."""

    place: Place
    accepted_at: int
    epoch: int
    update_id: int
    body: bytes
    status: ParseStatus = "pending"
    reason: str | None = None


@define(eq=False)
class MemoryJournal:
    """Implements ``ports.Journal``; it keeps everything.  `folded` is what the ingestion's fold would do."""

    now: Now
    entries: dict[int, MemoryEntry] = field(factory=dict)
    epoch: int = 0
    """Of the last entry."""

    def accept(self, update_id: int, body: bytes) -> Deferred[Accepted]:
        now, last = floor(self.now()), max(self.entries, default=0)
        highest = max((each.update_id for each in self._of_epoch()), default=None)
        quiet = now - self.entries[last].accepted_at if last else None
        restarted = restarts_ids(update_id, highest, quiet)
        if restarted:
            self.epoch += 1
        elif any(each.update_id == update_id for each in self._of_epoch()):
            return succeed(Accepted(None, self.epoch))
        place = Place(max(now, self.entries[last].place.received_at if last else 0), last + 1)
        self.entries[place.entry_id] = MemoryEntry(place, now, self.epoch, update_id, body)
        return succeed(Accepted(place.entry_id, self.epoch, restarted))

    def folded(self, entry_id: int) -> None:
        self.entries[entry_id].status = "folded"

    def fail(self, entry_id: int, reason: str) -> Deferred[int | None]:
        entry = self.entries.get(entry_id)
        if entry is None or entry.status == "folded":
            return succeed(None)
        entry.status, entry.reason = "failed", reason
        return succeed(entry.update_id)

    def pending(self, after: Place = BEGINNING, limit: int = 100) -> Deferred[list[Pending]]:
        behind = [each for each in self._waiting() if each.place > after]
        return succeed([Pending(each.place, each.accepted_at) for each in behind[:limit]])

    def counts(self) -> Deferred[JournalCounts]:
        waiting = self._waiting()
        failed = [number for number, each in self.entries.items() if each.status == "failed"]
        oldest = waiting[0].accepted_at if waiting else None
        return succeed(JournalCounts(len(waiting), len(failed), oldest, max(failed, default=None)))

    def late(self, accepted_until: int) -> Deferred[Late]:
        late = [each.accepted_at for each in self._waiting() if each.accepted_at <= accepted_until]
        return succeed(Late(len(late), min(late, default=None)))

    def let_go(self) -> Deferred[int]:
        return succeed(0)

    def _of_epoch(self) -> list[MemoryEntry]:
        return [each for each in self.entries.values() if each.epoch == self.epoch]

    def _waiting(self) -> list[MemoryEntry]:
        return sorted(
            (each for each in self.entries.values() if each.status == "pending"), key=lambda each: each.place
        )
