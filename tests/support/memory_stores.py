"""The account ports in memory, for tests of rooms; held to the same suites as the SQL (tests/contract)."""

from __future__ import annotations

from attrs import define, field
from twisted.internet.defer import Deferred, fail, succeed

from telegrammer.core.problems import SubscriptionLimit, UnknownKey
from telegrammer.core.subscriptions import Subscription, SubscriptionLimits


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
