"""Retry-After, of receivers and of Telegram: written by the standard library and read back."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import formatdate, parsedate_to_datetime
from math import ceil

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.backoff import retry_after
from telegrammer.core.retry import retry_after_seconds

instants = st.integers(0, 4_000_000_000)
"""To the year 2096."""
splinters = st.sampled_from(
    [
        *(
            b"Sun, ",
            b"Sunday, ",
            b"Sun ",
            b"06",
            b" 6",
            b"Nov",
            b" ",
            b"-",
            b"1994",
            b"94",
            b"08:49:37",
            b"GMT",
        ),
        *(b",", b"99", b"24:00:00", b"+0000", b"0", b"\t", b"\xff", b"1e3", b"Feb", b"31", b"9" * 30),
    ]
)


def forms(instant: int) -> dict[str, bytes]:
    """The three forms of RFC 9110, 5.6.7."""
    moment = time.gmtime(instant)
    day = datetime.fromtimestamp(instant, UTC).strftime("%A")
    return {
        "fixdate": formatdate(instant, usegmt=True).encode(),
        "rfc850": time.strftime(f"{day}, %d-%b-%y %H:%M:%S GMT", moment).encode(),
        "asctime": time.asctime(moment).encode(),
    }


class ReceiverTests(SynchronousTestCase):
    @given(instants, st.floats(0, 4e9, allow_nan=False))
    @example(0, 0.5)
    def test_a_date_of_any_form_is_the_instant_it_was_made_of(self, instant: int, now: float) -> None:
        written = forms(instant)
        for form in ("fixdate", "asctime"):
            self.assertEqual(
                retry_after_seconds([written[form]], now), max(0, ceil(instant - now)), written[form]
            )
        # Two digits of a year mean another century when it would be more than 50 years ahead.
        year, this_year = time.gmtime(instant).tm_year, time.gmtime(now).tm_year
        if this_year - 49 <= year <= this_year + 50:
            seconds = retry_after_seconds([written["rfc850"]], now)
            self.assertEqual(seconds, max(0, ceil(instant - now)), written["rfc850"])

    @given(st.integers(0, 10**18 - 1), st.integers(0, 3), st.text(alphabet=" \t", max_size=3))
    def test_digits_are_seconds(self, seconds: int, zeros: int, around: str) -> None:
        digits = "0" * min(zeros, 18 - len(str(seconds))) + str(seconds)
        self.assertEqual(retry_after_seconds([f"{around}{digits}{around}".encode()], 0.0), seconds)

    @settings(max_examples=300)
    @given(st.lists(splinters, max_size=8).map(b"".join))
    @example(b"Sun, 06 Nov 1994 08:49:37 GMT")
    def test_what_is_taken_another_reader_takes_for_the_same(self, value: bytes) -> None:
        seconds = retry_after_seconds([value], 0.0)
        text = value.decode("latin-1").strip(" \t")
        if seconds is None or text.isdigit():
            return
        moment = parsedate_to_datetime(text)
        self.assertEqual(seconds, max(0, ceil(moment.replace(tzinfo=UTC).timestamp())))


class TelegramTests(SynchronousTestCase):
    @given(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.lists(st.none()),
        st.lists(st.binary(max_size=10) | st.from_regex(rb"[0-9]{1,30}", fullmatch=True), max_size=2),
    )
    @example(None, [b"9" * 5000])
    @example(None, [b"0" * 5000 + b"7"])
    def test_a_positive_integer_of_the_body_else_of_the_header(
        self, parameter: object, header: list[bytes]
    ) -> None:
        seconds = retry_after(parameter, header)
        if type(parameter) is int and parameter > 0:
            self.assertEqual(seconds, parameter)
        elif len(header) == 1 and header[0].isdigit() and len(header[0].lstrip(b"0")) <= 20:
            self.assertEqual(seconds, int(header[0].lstrip(b"0") or b"0") or None)
        elif len(header) == 1 and header[0].isdigit():
            assert seconds is not None
            self.assertGreater(seconds, 10**19)  # beyond every bound of whoever asks
        else:
            self.assertIsNone(seconds)
