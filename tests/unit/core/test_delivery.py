"""What an attempt's result means, lane by lane, and who is claimed next (contract 6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import (
    Again,
    Answered,
    AttemptResult,
    Claimed,
    Dead,
    Done,
    Finished,
    Slots,
    Unanswered,
    Undeliverable,
    Verdict,
    choose,
    delivery_id,
    moved,
    settle,
    shortened,
    sick_share,
)
from telegrammer.core.retry import LIFE, PATIENT, Schedule

NOW = 1_000_000.0
SCHEDULE = Schedule()


def job(attempt: int = 1, carried: int = 0, first_attempt_at: int = int(NOW)) -> Claimed:
    return Claimed(
        id=1,
        subscription_id=2,
        url="http://h/",
        body=b"{}",
        attempt=attempt,
        carried=carried,
        first_attempt_at=first_attempt_at,
    )


def verdict(
    result: AttemptResult,
    claimed: Claimed | None = None,
    *,
    took: float = 0.1,
    now: float = NOW,
    jitter: float = 0.0,
    schedule: Schedule = SCHEDULE,
) -> Verdict:
    return settle(claimed or job(), result, took=took, now=now, jitter=jitter, schedule=schedule)


class SettleTests(SynchronousTestCase):
    @pytest.mark.report("H1", "H10")
    def test_statuses(self) -> None:
        done = Done(slow=False)
        for status, meaning in [
            (200, done),
            (201, done),
            (204, done),
            (299, done),
            (408, Again(1_000_001, "HTTP 408")),
            (429, Again(1_000_001, "HTTP 429")),
            (500, Again(1_000_001, "HTTP 500")),
            (503, Again(1_000_001, "HTTP 503")),
            (599, Again(1_000_001, "HTTP 599")),
            (301, "redirect (HTTP 301)"),
            (303, "redirect (HTTP 303)"),
            (304, "HTTP 304"),
            (308, "redirect (HTTP 308)"),
            (400, "HTTP 400"),
            (404, "HTTP 404"),
            (410, "HTTP 410"),
            (101, "HTTP 101"),
            (600, "HTTP 600"),
            (999, "HTTP 999"),
        ]:
            expected = Dead(meaning, spent=False) if isinstance(meaning, str) else meaning
            self.assertEqual(verdict(Answered(status)), expected, str(status))

    def test_without_an_answer(self) -> None:
        self.assertEqual(verdict(Unanswered("connection refused")), Again(1_000_001, "connection refused"))
        self.assertEqual(
            verdict(Undeliverable("the URL does not parse")), Dead("the URL does not parse", spent=False)
        )

    def test_slow_is_more_than_a_second(self) -> None:
        self.assertEqual(verdict(Answered(200), took=1.0), Done(slow=False))
        self.assertEqual(verdict(Answered(200), took=1.01), Done(slow=True))
        self.assertEqual(verdict(Answered(404), took=1.01), Dead("HTTP 404", spent=False, slow=True))
        self.assertEqual(verdict(Undeliverable("x"), took=2), Dead("x", spent=False, slow=True))

    def test_the_schedule_is_followed_exactly_without_a_history(self) -> None:
        waits = [verdict(Answered(500), job(attempt)) for attempt in range(1, 8)]
        self.assertEqual(waits, [Again(1_000_000 + 2**n, "HTTP 500") for n in range(7)])

    def test_a_failing_lane_carries_its_wait_over(self) -> None:
        self.assertEqual(verdict(Answered(500), job(1, carried=3)), Again(1_000_008, "HTTP 500"))
        self.assertEqual(verdict(Answered(500), job(1, carried=8)), Again(1_000_256, "HTTP 500"))
        self.assertEqual(verdict(Answered(500), job(1, carried=9)), Again(1_000_300, "HTTP 500"))
        self.assertEqual(verdict(Answered(500), job(7, carried=1)), Again(1_000_064, "HTTP 500"))

    def test_jitter_adds_up_to_a_quarter(self) -> None:
        self.assertEqual(verdict(Answered(500), job(7), jitter=0.999), Again(1_000_079, "HTTP 500"))

    def test_a_spent_budget_leaves_its_wait_to_the_successor(self) -> None:
        self.assertEqual(
            verdict(Unanswered("connection refused"), job(8)),
            Dead("connection refused", spent=True, due=1_000_256),
        )
        self.assertEqual(
            verdict(Answered(503), job(8, carried=8)), Dead("HTTP 503", spent=True, due=1_000_300)
        )

    def test_one_attempt_only(self) -> None:
        self.assertEqual(
            verdict(Answered(503), schedule=Schedule(())), Dead("HTTP 503", spent=True, due=1_000_002)
        )

    def test_retry_after_is_a_lower_bound(self) -> None:
        self.assertEqual(verdict(Answered(503, (b"30",))), Again(1_000_030, "HTTP 503"))
        self.assertEqual(verdict(Answered(503, (b"0",))), Again(1_000_001, "HTTP 503"))
        self.assertEqual(verdict(Answered(503, (b"30",)), now=NOW + 0.5), Again(1_000_031, "HTTP 503"))
        self.assertEqual(verdict(Answered(503, (b"3",)), job(7)), Again(1_000_064, "HTTP 503"))
        self.assertEqual(verdict(Answered(429, (b"-5",))), Again(1_000_001, "HTTP 429"))
        self.assertEqual(verdict(Answered(429, (b"5", b"5"))), Again(1_000_001, "HTTP 429"))

    def test_retry_after_does_not_save_a_spent_budget(self) -> None:
        self.assertEqual(
            verdict(Answered(503, (b"30",)), job(8)), Dead("HTTP 503", spent=True, due=1_000_256)
        )

    def test_a_job_lives_for_a_day_from_its_first_attempt(self) -> None:
        self.assertEqual(verdict(Answered(503, (b"86400",))), Again(1_086_400, "HTTP 503"))
        self.assertEqual(
            verdict(Answered(503, (b"86401",))),
            Dead("HTTP 503; Retry-After is beyond 24 h", spent=True, due=1_000_002),
        )
        self.assertEqual(
            verdict(Answered(503, (b"99999999",))),
            Dead("HTTP 503; Retry-After is beyond 24 h", spent=True, due=1_000_002),
        )
        old = job(200, first_attempt_at=int(NOW) - LIFE + 299)
        self.assertEqual(
            verdict(Answered(500), old, schedule=PATIENT),
            Dead("HTTP 500; the next attempt would be beyond 24 h", spent=True, due=1_000_300),
        )

    @given(
        st.one_of(
            st.builds(
                Answered, st.integers(100, 999), st.lists(st.binary(max_size=30), max_size=2).map(tuple)
            ),
            st.builds(Unanswered, st.text(max_size=300)),
            st.builds(Undeliverable, st.text(max_size=300)),
        ),
        st.integers(1, 8),
        st.integers(0, 10**6),
        st.floats(0, 100, allow_nan=False),
        st.floats(0, 1, exclude_max=True, allow_nan=False),
    )
    def test_bounds(
        self, result: AttemptResult, attempt: int, carried: int, took: float, jitter: float
    ) -> None:
        settled = verdict(result, job(attempt, carried), took=took, jitter=jitter)
        match settled:
            case Again(due, reason):
                self.assertLess(attempt, 8)
                self.assertGreaterEqual(due, NOW + 2 ** (attempt - 1))
                self.assertLessEqual(due, NOW + LIFE)
            case Dead(reason, spent, _, due):
                self.assertTrue(reason.isascii() and reason.isprintable() and 0 < len(reason) <= 200)
                self.assertEqual(due > NOW, spent)
            case Done():
                self.assertIsInstance(result, Answered)


class ReasonTests(SynchronousTestCase):
    def test_foreign_text_becomes_one_short_visible_line(self) -> None:
        self.assertEqual(shortened("bad\r\n\x1b[31mthing\u2028"), "bad???[31mthing?")
        self.assertEqual(shortened("x" * 500), "x" * 120)
        self.assertEqual(shortened("  "), "unknown failure")


class ChooseTests(SynchronousTestCase):
    def run_of(self, healthy: int, sick: int, free: int, free_sick: int, run: int = 0) -> tuple[str, int]:
        chosen, after = choose("h" * healthy, "s" * sick, Slots(free, free_sick, run))
        return "".join(chosen), after

    def test_healthy_first(self) -> None:
        self.assertEqual(self.run_of(3, 2, 4, 2), ("hhhs", 0))
        self.assertEqual(self.run_of(5, 2, 4, 2), ("hhhh", 4))

    def test_one_in_eight_is_sick_when_both_wait(self) -> None:
        self.assertEqual(self.run_of(20, 20, 16, 8), ("hhhhhhhs" * 2, 0))
        self.assertEqual(self.run_of(20, 1, 3, 2, run=6), ("hsh", 0))

    def test_the_run_goes_on_from_turn_to_turn(self) -> None:
        claims, run = "", 0
        for _ in range(16):
            one, run = self.run_of(5, 5, 1, 1, run)
            claims += one
        self.assertEqual(claims, "hhhhhhhs" * 2)

    def test_the_run_counts_only_while_a_sick_lane_waits(self) -> None:
        self.assertEqual(self.run_of(9, 0, 9, 2, run=5), ("h" * 9, 0))

    def test_sick_lanes_have_their_share_and_no_more(self) -> None:
        self.assertEqual(self.run_of(0, 9, 4, 2), ("ss", 0))
        self.assertEqual(self.run_of(0, 9, 4, 0), ("", 0))
        self.assertEqual(self.run_of(9, 9, 4, 0, run=7), ("hhhh", 0))
        self.assertEqual(self.run_of(9, 9, 4, -1, run=7), ("hhhh", 0))
        self.assertEqual(self.run_of(9, 9, 0, 2, run=7), ("", 7))

    def test_share(self) -> None:
        self.assertEqual([sick_share(n) for n in (1, 2, 3, 4, 256)], [1, 1, 1, 2, 128])

    @pytest.mark.report("H2")
    @given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 7))
    def test_no_slot_idles_and_no_class_starves(
        self, healthy: int, sick: int, free: int, share: int, run: int
    ) -> None:
        claims, _ = self.run_of(healthy, sick, free, share, run)
        self.assertEqual(len(claims), min(free, healthy + min(sick, share)))
        self.assertLessEqual(claims.count("s"), share)
        if claims.count("s") < min(sick, share):
            self.assertNotIn("h" * 8, "h" * run + claims)


class ValueTests(SynchronousTestCase):
    def test_delivery_id(self) -> None:
        self.assertEqual(delivery_id(123456789, 17, 0, 42), "123456789-17-0-42")

    def test_a_result_moves_with_the_clock(self) -> None:
        claimed = job(first_attempt_at=100)
        table: list[tuple[Verdict, Verdict]] = [
            (Done(slow=False), Done(slow=False)),
            (Dead("x", spent=False), Dead("x", spent=False)),
            (Dead("x", spent=True, due=200), Dead("x", spent=True, due=250)),
            (Again(200, "x"), Again(250, "x")),
        ]
        for before, after in table:
            self.assertEqual(moved(Finished(claimed, before), 50), Finished(job(first_attempt_at=150), after))

    def test_a_payload_is_not_shown(self) -> None:
        self.assertNotIn("{}", repr(job()))
