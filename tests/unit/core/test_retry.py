"""The schedule's grammar, rounding, carried waits, and every form of Retry-After."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.retry import (
    LIFE,
    PATIENT,
    Schedule,
    carried_wait,
    due_after,
    parse_schedule,
    retry_after_seconds,
)

NOW = 784_111_777.25
"""A quarter of a second after Sun, 06 Nov 1994 08:49:37 GMT."""


class ScheduleTests(SynchronousTestCase):
    def test_the_default_is_the_documented_one(self) -> None:
        self.assertEqual(parse_schedule("1s,2s,4s,8s,16s,32s,64s"), Schedule())
        self.assertEqual(Schedule().attempts, 8)

    def test_units_and_spaces(self) -> None:
        self.assertEqual(parse_schedule("30, 5s ,2m,1h").waits, (30, 5, 120, 3600))
        self.assertEqual(parse_schedule("1d").waits, (86_400,))

    def test_patient(self) -> None:
        patient = parse_schedule(" patient ")
        self.assertIs(patient, PATIENT)
        self.assertEqual(patient.waits[:8], (1, 2, 5, 15, 60, 120, 300, 300))
        self.assertEqual(set(patient.waits[6:]), {300})
        self.assertTrue(LIFE - 300 < sum(patient.waits) <= LIFE)
        self.assertLessEqual(len(patient.waits), 400)

    def test_refused(self) -> None:
        for text, why in [
            ("", "wait 1 is not"),
            ("1s,", "wait 2 is not"),
            ("1s,,2s", "wait 2 is not"),
            ("-1s", "wait 1 is not"),
            ("1.5s", "wait 1 is not"),
            ("1w", "wait 1 is not"),
            ("+1s", "wait 1 is not"),
            ("\u0661s", "wait 1 is not"),
            ("1 s", "wait 1 is not"),
            ("impatient", "wait 1 is not"),
            ("9" * 5000, "wait 1 is not"),
            ("1s,0s", "wait 2 is shorter"),
            (",".join(["1s"] * 401), "401 waits"),
            ("24h,1s", "86401 s"),
        ]:
            with self.assertRaises(ValueError, msg=text[:20]) as caught:
                parse_schedule(text)
            self.assertIn(why, str(caught.exception))

    def test_the_limits_themselves_are_allowed(self) -> None:
        self.assertEqual(parse_schedule(",".join(["1s"] * 400)).attempts, 401)
        self.assertEqual(sum(parse_schedule("24h").waits), LIFE)


class WaitTests(SynchronousTestCase):
    def test_carried(self) -> None:
        table = {0: 0, 1: 2, 2: 4, 8: 256, 9: 300, 10**9: 300, -1: 0}
        self.assertEqual({fails: carried_wait(fails) for fails in table}, table)

    @given(
        st.floats(0, 4e9, allow_nan=False),
        st.integers(0, LIFE),
        st.floats(0, 1, exclude_max=True, allow_nan=False),
    )
    def test_due_is_never_early_and_at_most_a_quarter_late(
        self, now: float, wait: int, jitter: float
    ) -> None:
        due = due_after(now, wait, jitter)
        self.assertGreaterEqual(due, now + wait)
        self.assertLessEqual(due, max(now + wait + 1, now + wait * 1.25 + 0.001))

    def test_due(self) -> None:
        self.assertEqual(due_after(100.0, 1, 0.0), 101)
        self.assertEqual(due_after(100.3, 1, 0.0), 102)
        self.assertEqual(due_after(100.3, 64, 0.0), 165)
        self.assertEqual(due_after(100.3, 64, 0.99), 180)


class RetryAfterTests(SynchronousTestCase):
    @pytest.mark.report("H4")
    def test_values(self) -> None:
        for value, seconds in [
            (b"0", 0),
            (b"7", 7),
            (b" 7\t", 7),
            (b"007", 7),
            (b"99999999", 99_999_999),
            (b"-5", None),
            (b"+3", None),
            (b"1.5", None),
            (b"1e3", None),
            (b"1_000", None),
            (b"", None),
            (b"7 8", None),
            (b"7, 8", None),
            ("\u0661\u0662".encode(), None),
            (b"9" * 400, None),
            (b"9" * 5000, None),
            (b"soon", None),
            # One instant in the three forms of RFC 9110 section 5.6.7: 60 s after 08:49:37.
            (b"Sun, 06 Nov 1994 08:50:37 GMT", 60),
            (b"Sunday, 06-Nov-94 08:50:37 GMT", 60),
            (b"Sun Nov  6 08:50:37 1994", 60),
            (b"Wed Nov 16 08:49:38 1994", 864_001),
            (b"Sun, 06 Nov 1994 08:49:60 GMT", 23),
            (b"Sun, 06 Nov 1993 08:49:37 GMT", 0),
            # Exactly 50 years ahead is the future, 51 the past.
            (b"Sunday, 06-Nov-44 08:50:37 GMT", 1_577_923_260),
            (b"Sunday, 06-Nov-45 08:50:37 GMT", 0),
            (b"Sun, 06 Nov 1994 08:50:37 UTC", None),
            (b"Sun, 06 Nov 1994 08:50:37", None),
            (b"sun, 06 nov 1994 08:50:37 gmt", None),
            (b"Sun, 31 Feb 1994 08:50:37 GMT", None),
            (b"Sun, 06 Nov 0000 08:50:37 GMT", None),
            (b"Sun, 06 Nov 1994 24:50:37 GMT", None),
            (b"Sun, 06 Nov 1994 08:50:61 GMT", None),
            (b"Sun, 6 Nov 1994 08:50:37 GMT", None),
            (b"1994-11-06T08:50:37Z", None),
        ]:
            self.assertEqual(retry_after_seconds([value], NOW), seconds, value[:40])

    @pytest.mark.report("H4")
    def test_a_repeated_field_says_nothing(self) -> None:
        self.assertIsNone(retry_after_seconds([b"7", b"7"], NOW))
        self.assertIsNone(retry_after_seconds([], NOW))

    @given(st.lists(st.binary(max_size=60), max_size=2), st.floats(0, 4e9, allow_nan=False))
    @example([b"Sun, 06 Nov 9999 23:59:60 GMT"], 0.0)
    def test_anything_is_none_or_a_wait(self, values: list[bytes], now: float) -> None:
        seconds = retry_after_seconds(values, now)
        self.assertTrue(seconds is None or seconds >= 0)
