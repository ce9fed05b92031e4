"""The rules of getUpdates' queue: confirmation, the offsets out of range, ids that restart."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.demo.update_queue import UpdateQueue


def ids(batch: list[bytes]) -> list[int]:
    return [int(update.partition(b":")[2].partition(b",")[0]) for update in batch]


class UpdateQueueTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.queue = UpdateQueue(next_id=10)
        for _ in range(5):
            self.queue.push(b'"message":{}')

    def test_an_update_is_its_bytes(self) -> None:
        self.assertEqual(self.queue.take(0, 1), [b'{"update_id":10,"message":{}}'])

    def test_without_offset_nothing_is_confirmed(self) -> None:
        self.assertEqual(ids(self.queue.take(0, 100)), [10, 11, 12, 13, 14])
        self.assertEqual(ids(self.queue.take(0, 100)), [10, 11, 12, 13, 14])

    def test_an_offset_confirms_what_is_below_it(self) -> None:
        self.assertEqual(ids(self.queue.take(12, 2)), [12, 13])
        self.assertEqual(ids(self.queue.take(0, 100)), [12, 13, 14])

    def test_a_negative_offset_forgets_all_but_the_last(self) -> None:
        self.assertEqual(ids(self.queue.take(-2, 100)), [13, 14])
        self.assertEqual(len(self.queue), 2)

    def test_a_negative_offset_beyond_the_head_keeps_all(self) -> None:
        self.assertEqual(len(self.queue.take(-9, 100)), 5)

    def test_an_offset_a_little_ahead_swallows_everything(self) -> None:
        self.assertEqual(self.queue.take(15 + 10, 100), [])
        self.assertEqual(len(self.queue), 0)

    def test_an_offset_in_the_future_starts_at_the_head(self) -> None:
        self.assertEqual(ids(self.queue.take(15 + 11, 100)), [10, 11, 12, 13, 14])

    def test_one_alone_is_confirmed(self) -> None:
        self.queue.confirm(12)
        self.queue.confirm(12)
        self.assertEqual([update_id for update_id, _ in self.queue.waiting()], [10, 11, 13, 14])
        self.assertEqual(self.queue.waiting()[0][1], b'{"update_id":10,"message":{}}')

    def test_restarted_ids_come_below_an_old_offset(self) -> None:
        self.queue.restart_ids(3)
        self.assertEqual(self.queue.push(b'"message":{}'), 3)
        self.assertEqual(ids(self.queue.take(15, 100)), [3])

    def test_raw_bytes_move_the_next_id(self) -> None:
        self.queue.push_raw(99, b"not even JSON")
        self.assertEqual(self.queue.take(99, 100), [b"not even JSON"])
        self.assertEqual(self.queue.next_id, 100)
