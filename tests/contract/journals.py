"""What every implementation of ``ports.Journal`` does; see ``test_sql`` and ``test_memory`` for these."""

from __future__ import annotations

from telegrammer.core.journal import BEGINNING, Accepted, JournalCounts, Late, Pending, Place
from telegrammer.ports import Journal, Now
from tests.contract.accounts import PortSuite

START = 1_000_000
DAY = 86_400


class JournalSuite(PortSuite):
    def make_journal(self, now: Now) -> Journal:
        """An empty one."""
        raise NotImplementedError

    def fold(self, entry_id: int) -> None:
        """Have the entry folded, by whoever does."""
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()
        self.now = START + 0.5
        self.port = self.make_journal(lambda: self.now)

    def accept(self, update_id: int) -> Accepted:
        return self.result(self.port.accept(update_id, b'{"update_id":%d}' % update_id))

    def enter(self, update_id: int) -> int:
        entry_id = self.accept(update_id).entry_id
        assert entry_id is not None
        return entry_id

    def waiting(self, after: Place = BEGINNING, limit: int = 100) -> list[int]:
        return [entry.place.entry_id for entry in self.result(self.port.pending(after, limit))]

    def counts(self) -> JournalCounts:
        return self.result(self.port.counts())

    def test_an_empty_one(self) -> None:
        self.assertEqual(self.waiting(), [])
        self.assertEqual(self.counts(), JournalCounts())
        self.assertEqual(self.result(self.port.late(START + DAY)), Late())
        self.assertEqual(self.result(self.port.let_go()), 0)

    def test_an_update_is_entered_once(self) -> None:
        first = self.accept(7)
        self.assertEqual((first.is_repeat, first.epoch, first.restarted), (False, 0, False))
        self.assertEqual(self.accept(7), Accepted(None, 0))
        self.fold(first.entry_id or 0)
        self.assertTrue(self.accept(7).is_repeat)
        self.assertEqual(self.counts().pending, 0)

    def test_what_waits_is_in_the_order_of_acceptance(self) -> None:
        entries = [self.enter(update_id) for update_id in (5, 3, 9, 1)]
        self.assertEqual(self.waiting(), entries)
        self.assertEqual(self.waiting(limit=2), entries[:2])
        self.assertEqual(self.waiting(Place(START, entries[1])), entries[2:])
        self.fold(entries[0])
        self.assertEqual(self.waiting(), entries[1:])

    def test_a_clock_that_is_set_back(self) -> None:
        first = self.enter(1)
        self.now -= 100
        second = self.enter(2)
        self.assertEqual(
            list(self.result(self.port.pending())),
            [Pending(Place(START, first), START), Pending(Place(START, second), START - 100)],
        )
        self.assertEqual(self.waiting(Place(START, first)), [second])

    def test_ids_that_were_restarted(self) -> None:
        self.enter(5000)
        self.now += 6 * DAY - 1
        self.assertEqual(self.accept(1).epoch, 0)
        self.now += 6 * DAY
        self.assertEqual(self.accept(2), Accepted(3, 1, restarted=True))
        self.assertFalse(self.accept(5000).is_repeat)

    def test_one_that_failed_waits_no_longer(self) -> None:
        first, second = self.enter(1), self.enter(2)
        self.assertEqual(self.result(self.port.fail(first, "odd")), 1)
        self.assertEqual(self.waiting(), [second])
        self.assertEqual(self.counts(), JournalCounts(1, 1, START, first))
        self.assertEqual(self.result(self.port.fail(first, "odder")), 1)

    def test_one_that_was_folded_or_is_not_there_cannot_fail(self) -> None:
        entry = self.enter(1)
        self.fold(entry)
        self.assertIsNone(self.result(self.port.fail(entry, "odd")))
        self.assertIsNone(self.result(self.port.fail(99, "odd")))
        self.assertEqual(self.counts(), JournalCounts())

    def test_the_late_ones(self) -> None:
        for update_id in (1, 2, 3):
            self.enter(update_id)
            self.now += 10
        self.assertEqual(self.result(self.port.late(START - 1)), Late())
        self.assertEqual(self.result(self.port.late(START + 10)), Late(2, START))
        self.fold(1)
        self.assertEqual(self.result(self.port.late(START + 99)), Late(2, START + 10))
        self.assertEqual(self.counts().oldest_pending_at, START + 10)

    def test_what_waits_is_never_let_go(self) -> None:
        self.enter(1)
        self.now += 1000 * DAY
        self.assertEqual(self.result(self.port.let_go()), 0)
        self.assertEqual(self.counts().pending, 1)
