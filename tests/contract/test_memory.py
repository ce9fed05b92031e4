"""The stores in memory keep the contracts of their ports."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.subscriptions import SubscriptionLimits
from telegrammer.ports import Journal, Keys, Now, Subscriptions, Usernames
from tests.contract.accounts import KeysSuite, SubscriptionsSuite, UsernamesSuite
from tests.contract.journals import JournalSuite
from tests.support.memory_stores import MemoryJournal, MemoryKeys, MemorySubscriptions, MemoryUsernames


class MemoryKeysTests(KeysSuite, SynchronousTestCase):
    def make_keys(self, known: dict[bytes, str]) -> Keys:
        return MemoryKeys({digest: number for number, digest in enumerate(known, 1)})


class MemorySubscriptionsTests(SubscriptionsSuite, SynchronousTestCase):
    def make_subscriptions(self, owners: int, limits: SubscriptionLimits) -> Subscriptions:
        return MemorySubscriptions(limits, set(range(1, owners + 1)))


class MemoryUsernamesTests(UsernamesSuite, SynchronousTestCase):
    def make_usernames(self, known: dict[str, int]) -> Usernames:
        return MemoryUsernames(dict(known))


class MemoryJournalTests(JournalSuite, SynchronousTestCase):
    def make_journal(self, now: Now) -> Journal:
        self.journal = MemoryJournal(now)
        return self.journal

    def fold(self, entry_id: int) -> None:
        self.journal.folded(entry_id)
