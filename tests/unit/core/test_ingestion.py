"""The plan of a batch: replays, resets, marks (contract 5.2, 5.3, 5.4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.ingestion import HIGHEST_OFFSET, Cursor, Plan, plan
from telegrammer.core.problems import MalformedUpdate
from telegrammer.core.telegram import Malformed, Message, Update

NONE: frozenset[int] = frozenset()
elements = st.builds(Update, st.integers(0, 5000))


def updates(*ids: int) -> list[Update | Malformed]:
    return [Update(update_id) for update_id in ids]


class PlanTests(SynchronousTestCase):
    def test_sorted_each_once_replays_left_out(self) -> None:
        planned = plan(updates(12, 9, 11, 12, 10), Cursor(10, 3), NONE)
        self.assertEqual(planned, Plan(Cursor(13, 3), tuple(map(Update, (10, 11, 12))), replayed=1))

    def test_nothing_came(self) -> None:
        self.assertEqual(plan([], Cursor(10, 3), NONE), Plan(Cursor(10, 3), ()))

    def test_only_replays(self) -> None:
        self.assertEqual(plan(updates(9, 8), Cursor(10, 3), NONE), Plan(Cursor(10, 3), (), replayed=2))

    def test_a_fresh_database(self) -> None:
        self.assertEqual(plan(updates(727334708), Cursor(), NONE).cursor, Cursor(727334709, 0))
        self.assertEqual(plan(updates(0), Cursor(), NONE), Plan(Cursor(1, 0), (Update(0),)))

    def test_a_gap_is_no_problem(self) -> None:
        self.assertEqual(plan(updates(5000), Cursor(10), NONE).cursor, Cursor(5001))

    @pytest.mark.report("A1")
    def test_reset(self) -> None:
        planned = plan(updates(117314200, 117314199), Cursor(727334708, 1), NONE)
        new = tuple(map(Update, (117314199, 117314200)))
        self.assertEqual(planned, Plan(Cursor(117314201, 2), new, reset=True))

    def test_the_edge_of_a_reset(self) -> None:
        self.assertTrue(plan(updates(8999), Cursor(10_000), NONE).reset)
        self.assertEqual(plan(updates(9000), Cursor(10_000), NONE), Plan(Cursor(10_000), (), replayed=1))
        self.assertFalse(plan(updates(5, 9000), Cursor(10_000), NONE).reset)
        self.assertFalse(plan(updates(5, 10_000), Cursor(10_000), NONE).reset)

    def test_malformed(self) -> None:
        bad = [Malformed(12, "b"), Malformed(11, "a"), *updates(10, 13)]
        error = self.assertRaises(MalformedUpdate, plan, bad, Cursor(10), NONE)
        self.assertEqual((error.update_id, error.why), (11, "a"))
        error = self.assertRaises(MalformedUpdate, plan, bad, Cursor(10), frozenset({11}))
        self.assertEqual(error.update_id, 12)

    def test_malformed_and_marked(self) -> None:
        bad = [Malformed(12, "b"), Malformed(11, "a"), *updates(10)]
        planned = plan(bad, Cursor(10), frozenset({11, 12, 10}))
        self.assertEqual(planned, Plan(Cursor(13), (Update(10),), skipped=(11, 12)))

    def test_malformed_but_seen(self) -> None:
        planned = plan([Malformed(9, "x"), Update(10)], Cursor(10), NONE)
        self.assertEqual(planned, Plan(Cursor(11), (Update(10),), replayed=1))

    def test_malformed_after_a_reset(self) -> None:
        self.assertRaises(MalformedUpdate, plan, [Malformed(9, "x")], Cursor(5000), NONE)
        planned = plan([Malformed(9, "x")], Cursor(5000), frozenset({9}))
        self.assertEqual(planned, Plan(Cursor(10, 1), (), reset=True, skipped=(9,)))

    def test_malformed_without_an_id(self) -> None:
        nameless = Malformed(None, "no id")
        error = self.assertRaises(MalformedUpdate, plan, [nameless, Update(10)], Cursor(10), NONE)
        self.assertEqual((error.update_id, error.why), (None, "no id"))
        error = self.assertRaises(MalformedUpdate, plan, [nameless, Malformed(11, "x")], Cursor(10), NONE)
        self.assertEqual(error.update_id, 11)
        # Whose ids are not all known is no proof of a reset.
        error = self.assertRaises(MalformedUpdate, plan, [nameless, Malformed(11, "x")], Cursor(5000), NONE)
        self.assertIsNone(error.update_id)

    def test_the_well_formed_twin_wins(self) -> None:
        good = Update(10, Message(7, "private", b"{}"))
        bad, other = Malformed(10, "x"), Update(10)
        twins: tuple[list[Update | Malformed], ...] = ([bad, good], [good, bad], [good, other])
        for pair in twins:
            self.assertEqual(plan(pair, Cursor(10), NONE).updates, (good,))

    def test_the_highest_id_of_all(self) -> None:
        top = updates(HIGHEST_OFFSET)
        planned = plan(top, Cursor(10), NONE)
        self.assertEqual((planned.cursor.next_offset, len(planned.updates)), (HIGHEST_OFFSET, 1))
        self.assertEqual(plan(top, planned.cursor, NONE), Plan(planned.cursor, (), replayed=1))
        self.assertTrue(plan(updates(5), planned.cursor, NONE).reset)

    def test_malformed_and_put_aside(self) -> None:
        bad = [Malformed(12, "b"), Malformed(11, "a"), Malformed(9, "seen"), *updates(10)]
        planned = plan(bad, Cursor(10), frozenset({12}), quarantine=True)
        expected = Plan(
            Cursor(13), (Update(10),), replayed=1, skipped=(12,), quarantined=(Malformed(11, "a"),)
        )
        self.assertEqual(planned, expected)

    def test_what_was_pushed_before(self) -> None:
        batch = [Malformed(10, "x"), *updates(11, 12, 9)]
        planned = plan(batch, Cursor(10), NONE, journaled=frozenset({10, 12}))
        self.assertEqual(planned, Plan(Cursor(13), (Update(11),), replayed=3))
        # After a restart the same ids are others.
        planned = plan(updates(7), Cursor(5000), NONE, journaled=frozenset({7}))
        self.assertEqual(planned, Plan(Cursor(8, 1), (Update(7),), reset=True))

    def test_malformed_without_an_id_cannot_be_put_aside(self) -> None:
        nameless = [Malformed(None, "no id"), Malformed(11, "x"), Malformed(None, "another")]
        error = self.assertRaises(MalformedUpdate, plan, nameless, Cursor(10), NONE, quarantine=True)
        self.assertEqual((error.update_id, error.why), (None, "no id"))

    def test_ids_known_to_have_been_restarted(self) -> None:
        planned = plan(updates(9_999), Cursor(10_000), NONE, restarted=True)
        self.assertEqual(planned, Plan(Cursor(10_000, 1), (Update(9_999),), reset=True))
        self.assertEqual(plan([], Cursor(10_000), NONE, restarted=True), Plan(Cursor(10_000), ()))

    def test_a_batch_ends_the_asking_from_the_head(self) -> None:
        before = Cursor(10, 2, from_head=True)
        for batch in (updates(), updates(9), updates(5, 9)):
            self.assertEqual(plan(batch, before, NONE).cursor, Cursor(10, 2))
        self.assertEqual(plan(updates(9, 11), before, NONE).cursor, Cursor(12, 2))

    @given(st.lists(elements, max_size=20), st.integers(0, 5000), st.integers(0, 3))
    def test_nothing_is_lost_or_taken_twice(self, batch: list[Update], offset: int, epoch: int) -> None:
        before = Cursor(offset, epoch)
        planned = plan(batch, before, NONE)
        ids = [update.update_id for update in planned.updates]
        self.assertEqual(ids, sorted(set(ids)))
        given_ids = {update.update_id for update in batch}
        self.assertEqual(len(given_ids), len(ids) + planned.replayed)
        if planned.reset:
            self.assertEqual(set(ids), given_ids)
        else:
            self.assertEqual(set(ids), {each for each in given_ids if each >= offset})
        again = plan(batch, planned.cursor, NONE)
        self.assertEqual((again.updates, again.cursor), ((), planned.cursor))
