"""The SQL stores keep the contracts of their ports, over the inline database."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.observations import Observation
from telegrammer.core.subscriptions import SubscriptionLimits
from telegrammer.ports import Journal, Keys, Now, Subscriptions, Usernames
from telegrammer.store import keys, usernames
from telegrammer.store.engine import immediate
from telegrammer.store.ingestion import SqlIngestion
from telegrammer.store.journal import SqlJournal
from telegrammer.store.keys import SqlKeys
from telegrammer.store.subscriptions import SqlSubscriptions
from telegrammer.store.usernames import SqlUsernames
from tests.contract.accounts import KeysSuite, SubscriptionsSuite, UsernamesSuite
from tests.contract.journals import JournalSuite
from tests.support.inline_database import InlineDatabase
from tests.support.queue_checks import add_key


def _database(test: SynchronousTestCase) -> InlineDatabase:
    database = InlineDatabase()
    test.addCleanup(database.close)
    return database


class SqlKeysTests(KeysSuite, SynchronousTestCase):
    def make_keys(self, known: dict[bytes, str]) -> Keys:
        database = _database(self)
        with immediate(database.connection) as cursor:
            for digest, name in known.items():
                keys.add(cursor, name, digest, 0)
        return SqlKeys(database)


class SqlSubscriptionsTests(SubscriptionsSuite, SynchronousTestCase):
    def make_subscriptions(self, owners: int, limits: SubscriptionLimits) -> Subscriptions:
        database = _database(self)
        for number in range(1, owners + 1):
            self.assertEqual(add_key(database.connection, f"key {number}"), number)
        return SqlSubscriptions(database, limits, lambda: 1000.9, self.room_was_made)

    def room_was_made(self) -> None:
        self.rooms += 1

    rooms = 0

    def test_room_is_told_when_one_goes(self) -> None:
        mine = self.add(1, 5)
        self.result(self.port.remove(2, mine))
        self.assertEqual(self.rooms, 0)
        self.result(self.port.remove(1, mine))
        self.assertEqual(self.rooms, 1)


class SqlUsernamesTests(UsernamesSuite, SynchronousTestCase):
    def make_usernames(self, known: dict[str, int]) -> Usernames:
        database = _database(self)
        with immediate(database.connection) as cursor:
            for username, chat_id in known.items():
                usernames.observe(cursor, Observation(chat_id, username), 0)
        return SqlUsernames(database)


class SqlJournalTests(JournalSuite, SynchronousTestCase):
    def make_journal(self, now: Now) -> Journal:
        self.database = _database(self)
        return SqlJournal(self.database, now)

    def fold(self, entry_id: int) -> None:
        self.result(SqlIngestion(self.database, 10, lambda: self.now).fold(entry_id))
