"""What the journal keeps, and what it lets go of when (contract 8)."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from telegrammer.store import journal_keeping
from telegrammer.store.journal import SqlJournal
from telegrammer.store.journal_keeping import IDENTITY_SECONDS
from tests.support.journal_case import CHAT, JournalCase
from tests.support.pushed import group, malformed, polled

HOUR, DAY = 3600, 86_400


class KeepingTests(JournalCase):
    def keep(self, retention: int) -> int:
        keeping = SqlJournal(self.database, lambda: self.now, retention)
        return self.successResultOf(Deferred.fromCoroutine(keeping.let_go()))

    def kept(self) -> dict[int, bool]:
        """Update id → is its body there?"""
        return dict(self.connection.execute("SELECT update_id, body IS NOT NULL FROM journal"))

    def test_bodies_for_their_retention(self) -> None:
        self.push(group(1, CHAT))
        self.now += 7 * DAY
        self.push(group(2, CHAT))
        self.keep(7 * DAY)
        self.assertEqual(self.kept(), {1: True, 2: True})
        self.now += 1
        self.keep(7 * DAY)
        self.assertEqual(self.kept(), {2: True})

    def test_identities_for_two_days_at_the_least(self) -> None:
        self.push(group(1, CHAT))
        self.now += HOUR + 1
        self.keep(HOUR)
        self.assertEqual(self.kept(), {1: False})
        self.now += IDENTITY_SECONDS - HOUR - 1
        self.keep(HOUR)
        self.assertEqual(self.kept(), {1: False})
        self.assertTrue(self.accept(group(1, CHAT)).is_repeat)
        self.now += 1
        self.keep(HOUR)
        self.assertEqual(self.kept(), {})

    def test_only_what_is_folded_goes(self) -> None:
        self.enter(malformed(1))
        self.successResultOf(self.journal.fail(1, "odd"))
        self.push(group(2, CHAT))
        self.enter(group(3, CHAT))
        self.now += 100 * DAY
        self.keep(HOUR)
        self.assertEqual(self.kept(), {1: True, 3: True})

    def test_in_portions(self) -> None:
        self.patch(journal_keeping, "PORTION", 3)
        self.push(*(group(number, CHAT) for number in range(10)))
        self.now += 3 * DAY
        self.push(group(10, CHAT))
        self.database.urgent.clear()
        self.keep(HOUR)
        self.assertEqual(self.kept(), {10: True})
        # What is too young ends it; one more looks for the failed.
        self.assertEqual(self.database.urgent, [False] * 5)

    def test_behind_one_accepted_while_the_clock_was_ahead(self) -> None:
        self.now += 1000 * DAY
        self.push(group(1, CHAT))
        self.now -= 1000 * DAY
        self.push(group(2, CHAT))
        self.now += 8 * DAY
        self.keep(7 * DAY)
        self.assertEqual(self.kept(), {1: True})
        self.now += 1000 * DAY
        self.keep(7 * DAY)
        self.assertEqual(self.kept(), {})

    def test_failed_ones_up_to_a_bound(self) -> None:
        self.patch(journal_keeping, "MOST_FAILED", 5)
        self.patch(journal_keeping, "PORTION", 2)
        self.poll(*polled(*(malformed(number) for number in range(12))))
        self.assertEqual(self.keep(HOUR), 7)
        self.assertEqual(list(self.kept()), [7, 8, 9, 10, 11])
        self.assertEqual(self.keep(HOUR), 0)
