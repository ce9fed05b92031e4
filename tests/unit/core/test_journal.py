"""Whether a pushed update tells that Telegram restarted its ids (contract 8)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.journal import BEGINNING, QUIET_BEFORE_RESTART, Accepted, Place, restarts_ids


class RestartTests(SynchronousTestCase):
    def test_both_conditions(self) -> None:
        quiet = QUIET_BEFORE_RESTART
        for update_id, highest, seconds, expected in (
            (8999, 10_000, quiet, True),
            (9000, 10_000, quiet, False),
            (8999, 10_000, quiet - 1, False),
            (8999, 10_000, quiet - 0.001, False),
            (0, 10_000, 10 * quiet, True),
            (0, 1000, 10 * quiet, False),
            (0, 1001, quiet, True),
            (10_000, 10_000, quiet, False),
            (2**63 - 1, 5, quiet, False),
            # The clock was set back since.
            (0, 10_000, -5, False),
            (0, None, None, False),
            (0, None, quiet, False),
            (0, 10_000, None, False),
        ):
            self.assertIs(restarts_ids(update_id, highest, seconds), expected, (update_id, highest, seconds))

    @given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 10**7))
    def test_never_for_an_id_that_may_have_been_overtaken(
        self, update_id: int, highest: int, quiet: int
    ) -> None:
        if restarts_ids(update_id, highest, quiet):
            self.assertGreater(highest - update_id, 1000)
            self.assertGreaterEqual(quiet, 6 * 24 * 3600)


class ValueTests(SynchronousTestCase):
    def test_places_are_in_the_order_of_folding(self) -> None:
        places = [Place(2, 1), Place(1, 3), Place(1, 2), BEGINNING]
        self.assertEqual(sorted(places), [BEGINNING, Place(1, 2), Place(1, 3), Place(2, 1)])

    def test_a_repeat_has_no_entry(self) -> None:
        self.assertTrue(Accepted(None, 0).is_repeat)
        self.assertFalse(Accepted(1, 0).is_repeat)
