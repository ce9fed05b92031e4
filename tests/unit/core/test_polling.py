"""The table of contract 5.4."""

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.polling import (
    Committed,
    Event,
    Held,
    JournalDrained,
    JournalWaits,
    NoRoom,
    PollState,
    after_poll,
    may_be_woken,
)
from telegrammer.core.standing import Crashed, Identified, OtherBot, StorageFailed
from telegrammer.core.telegram import (
    BadCredentials,
    Conflict,
    NetworkFailure,
    RateLimited,
    UpstreamFailure,
)

POLLING = PollState(ask="updates", state="polling")
GOOD = Committed(fresh=1, received=1, seconds=20)
EVENTS: tuple[Event, ...] = (
    Identified(),
    JournalWaits(),
    JournalDrained(),
    OtherBot(42, 43),
    GOOD,
    Committed(fresh=0, received=0, seconds=0.2),
    Committed(fresh=100, received=100, seconds=0.2),
    NoRoom(),
    Held(),
    StorageFailed(),
    StorageFailed(unforeseen=True),
    Crashed(),
    NetworkFailure("x"),
    UpstreamFailure("x"),
    RateLimited(5),
    RateLimited(None),
    BadCredentials(401),
    Conflict(True),
    Conflict(False),
)


def run(state: PollState, *events: Event, jitter: float = 0.0) -> tuple[PollState, list[float]]:
    rests = []
    for event in events:
        state, rest = after_poll(event, state, jitter)
        rests.append(rest)
    return state, rests


class StartTests(SynchronousTestCase):
    def test_identity_comes_first(self) -> None:
        start = PollState()
        self.assertEqual((start.ask, start.state), ("identity", "starting"))
        state, rests = run(start, Identified())
        self.assertEqual((state.ask, state.state, rests), ("journal", "starting", [0]))

    def test_what_was_pushed_is_folded_before_anything_is_polled(self) -> None:
        state, rests = run(PollState(), Identified(), JournalWaits(), JournalWaits())
        self.assertEqual((state.ask, state.state, rests), ("journal", "starting", [0, 1, 1]))
        self.assertEqual(run(state, JournalDrained()), (POLLING, [0.0]))

    def test_unreachable_at_start(self) -> None:
        state, rests = run(PollState(), *[NetworkFailure("x")] * 3)
        self.assertEqual(rests, [1, 2, 4])
        self.assertEqual((state.ask, state.state, state.reason), ("identity", "backing_off", "network"))
        state, rests = run(state, Identified(), JournalWaits(), JournalDrained())
        # getMe answered, but nothing was achieved yet.
        self.assertEqual((state.ask, state.state, state.failures), ("updates", "backing_off", 3))
        self.assertEqual(rests, [0, 1, 0])
        self.assertEqual(run(state, GOOD)[0], POLLING)


class CommittedTests(SynchronousTestCase):
    def test_news_are_followed_up_at_once(self) -> None:
        for seconds in (0.0, 0.3, 25.0):
            self.assertEqual(run(POLLING, Committed(3, 3, seconds)), (POLLING, [0.0]))

    def test_nothing_new_too_quickly(self) -> None:
        for received in (0, 2):
            _, rests = run(POLLING, *[Committed(0, received, seconds) for seconds in (0.0, 0.25, 1.0, 30.0)])
            self.assertEqual(rests, [1.0, 0.75, 0.0, 0.0])

    def test_forgets_every_failure(self) -> None:
        for event in EVENTS:
            state, _ = run(POLLING, event, event, GOOD)
            self.assertEqual(state, POLLING)


class BackOffTests(SynchronousTestCase):
    def test_doubling(self) -> None:
        for event, reason in (
            (NetworkFailure("x"), "network"),
            (UpstreamFailure("x"), "upstream"),
            (Crashed(), "upstream"),
            (StorageFailed(unforeseen=True), "storage"),
            (Held(), "malformed_update"),
            (RateLimited(None), "rate_limited"),
        ):
            state, rests = run(POLLING, *[event] * 8)
            self.assertEqual(rests, [1, 2, 4, 8, 16, 32, 60, 60], event)
            self.assertEqual((state.ask, state.state, state.reason), ("updates", "backing_off", reason))
            self.assertEqual(state.failures, 8)

    def test_storage(self) -> None:
        state, rests = run(POLLING, *[StorageFailed()] * 6, jitter=0.999)
        self.assertEqual(sorted(rests), rests)
        self.assertTrue(1 <= rests[0] < 1.25 and 7.4 < rests[-1] < 7.5, rests)
        self.assertEqual((state.state, state.reason, state.failures), ("backing_off", "storage", 6))
        self.assertEqual(run(state, NetworkFailure("x"))[1], [60])

    def test_jitter(self) -> None:
        self.assertEqual(run(POLLING, *[NetworkFailure("x")] * 2, jitter=1.0)[1], [1.25, 2.5])

    def test_kinds_share_the_doubling(self) -> None:
        events: list[Event] = [NetworkFailure("x"), UpstreamFailure("x"), StorageFailed(), Held(), Crashed()]
        self.assertEqual(run(POLLING, *events)[1], [1, 2, 4, 8, 16])

    def test_rate_limit(self) -> None:
        state, rests = run(POLLING, RateLimited(7), RateLimited(86_400), jitter=0.9)
        self.assertEqual(rests, [7, 86_400])
        self.assertEqual((state.state, state.reason, state.failures), ("backing_off", "rate_limited", 2))
        self.assertEqual(run(state, NetworkFailure("x"))[1], [1])


class SuspendedTests(SynchronousTestCase):
    def test_credentials(self) -> None:
        state, rests = run(POLLING, *[BadCredentials(401)] * 6)
        self.assertEqual(rests, [60, 120, 240, 480, 600, 600])
        self.assertEqual((state.ask, state.state, state.reason), ("identity", "suspended", "credentials"))

    def test_get_me_alone_does_not_resume(self) -> None:
        state, rests = run(
            POLLING,
            BadCredentials(404),
            Identified(),
            JournalDrained(),
            BadCredentials(404),
            Identified(),
            JournalDrained(),
        )
        self.assertEqual(rests, [60, 0, 0, 120, 0, 0])
        self.assertEqual((state.ask, state.state, state.reason), ("updates", "suspended", "credentials"))

    def test_wrong_bot(self) -> None:
        state, rests = run(PollState(), OtherBot(42, 43), OtherBot(42, 43))
        self.assertEqual(rests, [60, 120])
        self.assertEqual((state.ask, state.state, state.reason), ("identity", "suspended", "wrong_bot"))
        self.assertEqual(state.failures, 2)

    def test_conflicts(self) -> None:
        for webhook, reason in ((True, "conflict_webhook"), (False, "conflict_poller")):
            state, rests = run(POLLING, *[Conflict(webhook)] * 6)
            self.assertEqual(rests, [5, 15, 30, 60, 60, 60])
            self.assertEqual((state.ask, state.state, state.reason), ("updates", "suspended", reason))


class CapacityTests(SynchronousTestCase):
    def test_halves_then_waits(self) -> None:
        state, limits, rests = POLLING, [], []
        for _ in range(9):
            limits.append(state.limit)
            state, (rest,) = run(state, NoRoom())
            rests.append(rest)
            self.assertEqual((state.state, state.reason), ("suspended", "capacity"))
        self.assertEqual(limits, [100, 50, 25, 12, 6, 3, 1, 1, 1])
        self.assertEqual(rests, [0, 0, 0, 0, 0, 0, 1, 2, 4])

    def test_the_limit_comes_back(self) -> None:
        squeezed = evolve(POLLING, limit=1)
        limits = []
        for _ in range(8):
            squeezed, _ = after_poll(Committed(squeezed.limit, squeezed.limit, 0.1), squeezed, 0.0)
            limits.append(squeezed.limit)
        self.assertEqual(limits, [2, 4, 8, 16, 32, 64, 100, 100])

    def test_a_batch_that_left_nothing_behind_restores_it(self) -> None:
        self.assertEqual(run(evolve(POLLING, limit=12), Committed(3, 3, 0.1))[0].limit, 100)

    def test_other_troubles_keep_the_limit(self) -> None:
        squeezed, _ = run(evolve(POLLING, limit=12), NetworkFailure("x"))
        self.assertEqual(squeezed.limit, 12)


class WakingTests(SynchronousTestCase):
    def test_who_may_be_woken(self) -> None:
        for event in EVENTS:
            state, _ = run(POLLING, event)
            self.assertEqual(may_be_woken(state, room=True), state.reason == "capacity", event)
            self.assertEqual(
                may_be_woken(state, room=False), state.reason in ("capacity", "malformed_update"), event
            )


class PropertyTests(SynchronousTestCase):
    @given(st.lists(st.sampled_from(EVENTS), max_size=40), st.floats(0, 1, exclude_max=True))
    def test_invariants(self, events: list[Event], jitter: float) -> None:
        state = PollState()
        for event in events:
            state, rest = after_poll(event, state, jitter)
            self.assertGreaterEqual(rest, 0)
            self.assertLessEqual(rest, 86_400)
            self.assertTrue(1 <= state.limit <= 100)
            self.assertEqual(state.reason is None, state.failures == 0)
            if state.ask == "updates":
                self.assertEqual(state.state == "polling", state.failures == 0)
            if state.failures:
                self.assertNotEqual(state.state, "polling")
