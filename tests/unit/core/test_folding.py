"""What became of an entry, and whether an error tells of it or of the circumstances (contract 8)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.folding import (
    ALREADY,
    DEFERRED,
    FAILED,
    Folded,
    Outcome,
    circumstance_of,
    is_circumstance,
    outcome_of,
    reason_of,
)
from telegrammer.core.problems import (
    CapacityReached,
    MalformedUpdate,
    OutOfTurn,
    StorageUnavailable,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreFailing,
    StoreFull,
    StoreMoved,
    StoreReadOnly,
    UnknownEntry,
)

CIRCUMSTANCES: tuple[tuple[Exception, str], ...] = (
    (StorageUnavailable(), "the database is failing"),
    (StoreBusy("x"), "the database is busy"),
    (StoreFull(), "the database is full"),
    (StoreReadOnly(), "the database is readonly"),
    (StoreFailing(), "the database is failing"),
    (StoreDamaged(), "the database is failing"),
    (StoreMoved(), "the database is failing"),
    (StoreClosed(), "the database is failing"),
    (CapacityReached("x"), "the queue has no room for its message"),
    (OutOfTurn("x"), "an older update waits"),
    (MemoryError("x"), "MemoryError"),
)
CONTENT: tuple[tuple[Exception, str], ...] = (
    (MalformedUpdate(5, "message is not an object"), "message is not an object"),
    (MalformedUpdate(None, "it is none"), "it is none"),
    (ValueError("what the update held"), "unexpected ValueError"),
    (KeyError("what the update held"), "unexpected KeyError"),
    (RecursionError(), "unexpected RecursionError"),
    (UnknownEntry(), "unexpected UnknownEntry"),
)

outcomes = st.builds(Outcome, *(st.integers(0, 9),) * 7)


class FoldingTests(SynchronousTestCase):
    def test_each_kind_of_a_fold_is_a_class_of_its_own(self) -> None:
        for folded, outcome in (
            (Folded("folded", 7, jobs=3, migrated=2, evicted=9), Outcome(folded=1, jobs=3, migrated=2)),
            (Folded("folded", 7), Outcome(folded=1)),
            (Folded("unsupported", 7), Outcome(unsupported=1)),
            (Folded("already", 7), Outcome(already=1)),
        ):
            self.assertEqual(outcome_of(folded), outcome)
            self.assertEqual(outcome.taken, 1)
        self.assertEqual([each.taken for each in (ALREADY, DEFERRED, FAILED)], [1, 1, 1])

    @given(outcomes, outcomes)
    def test_outcomes_add_up_field_by_field(self, one: Outcome, other: Outcome) -> None:
        both = one + other
        for name in ("folded", "already", "unsupported", "failed", "deferred", "jobs", "migrated", "taken"):
            self.assertEqual(getattr(both, name), getattr(one, name) + getattr(other, name))
        self.assertEqual(one + Outcome(), one)

    def test_circumstances_say_nothing_of_an_entry(self) -> None:
        for error, why in CIRCUMSTANCES:
            self.assertTrue(is_circumstance(error), error)
            self.assertEqual(circumstance_of(error), why)

    def test_all_else_is_its_failure_for_a_reason_without_foreign_words(self) -> None:
        for error, reason in CONTENT:
            self.assertFalse(is_circumstance(error), error)
            self.assertEqual(reason_of(error), reason)
