from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import (
    ILogObserver,
    LegacyLogObserverWrapper,
    LogEvent,
    Logger,
    LogLevel,
    LogPublisher,
    eventAsText,
)
from twisted.python import log as legacy
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from telegrammer.logs import (
    REMOVED,
    LineObserver,
    RedactingFilter,
    Redactor,
    escaped,
    json_line,
    line_observer,
    text_lines,
    whence,
)

TOKEN = "123456789:AAF-fake_token"
KEY = "0123456789abcdef" * 4


def event(text: str = "{word}", **fields: Any) -> LogEvent:
    return {
        "log_format": text,
        "log_time": 1_793_000_000.25,
        "log_level": LogLevel.warn,
        "log_namespace": "telegrammer.x",
        "log_logger": None,
        "log_source": None,
    } | fields


def failure_of(text: str) -> Failure:
    try:
        raise ValueError(text)
    except ValueError:
        return Failure()


class WhenceTests(SynchronousTestCase):
    def test_kind_and_place_without_the_text(self) -> None:
        try:
            raise ValueError(KEY)
        except ValueError as error:
            self.assertRegex(whence(error), r"\AValueError at test_logs\.py:[0-9]+\Z")

    def test_never_raised(self) -> None:
        self.assertEqual(whence(ValueError(KEY)), "ValueError")


class EscapingTests(SynchronousTestCase):
    def test_controls_and_marks_that_turn_text_around(self) -> None:
        self.assertEqual(escaped("a\nb\r\x1b[31m\x00\x7f\x85"), r"a\nb\r\x1b[31m\x00\x7f\x85")
        self.assertEqual(escaped("\u202etxt\u2028\u2069\ufeff"), r"\u202etxt\u2028\u2069\ufeff")
        self.assertEqual(escaped("\ud800\\n"), r"\ud800\\n")
        self.assertEqual(escaped("gr\u00fc\u00df \U0001f600"), "gr\u00fc\u00df \U0001f600")

    def test_the_length_is_capped_after_escaping(self) -> None:
        self.assertEqual(escaped("a" * 10, 10), "a" * 10)
        self.assertEqual(escaped("a" * 11, 10), "a" * 10 + "...")
        self.assertEqual(escaped("\n" * 6, 10), r"\n" * 5 + "...")

    @given(st.text(st.characters()), st.integers(1, 50))
    def test_one_line_that_can_be_written(self, text: str, limit: int) -> None:
        line = escaped(text, limit)
        self.assertLessEqual(len(line), limit + 3)
        self.assertEqual(len((line + "x").splitlines()), 1)
        line.encode("utf-8")


class RedactorTests(SynchronousTestCase):
    def test_what_it_learns_later(self) -> None:
        redact = Redactor([TOKEN])
        both = f"{TOKEN} and found/later"
        self.assertEqual(redact(both), f"{REMOVED} and found/later")
        redact.learn("found/later")
        for text in (both, f"{TOKEN} and found%2Flater"):
            self.assertEqual(redact(text), f"{REMOVED} and {REMOVED}")
        self.assertNotIn("found", repr(redact))

    def test_what_it_was_given_in_every_spelling(self) -> None:
        redact = Redactor([TOKEN])
        for text in (
            TOKEN,
            f"https://api.telegram.org/bot{TOKEN}/getMe",
            TOKEN.replace(":", "%3A"),
            "part AAF-fake_token alone",
        ):
            self.assertNotIn("AAF", redact(text))
            self.assertIn(REMOVED, redact(text))
        self.assertNotIn("AAF", repr(redact))

    def test_what_has_the_shape_of_a_secret(self) -> None:
        redact = Redactor()
        for secret in (KEY, "987654321:" + "A" * 35, "987654321%3A" + "b" * 35):
            self.assertEqual(redact(f"<{secret}>"), f"<{REMOVED}>")
        self.assertEqual(redact("/bot12:short/x"), f"/bot{REMOVED}/x")
        self.assertEqual(redact("Authorization: bearer abcdefgh1"), f"Authorization: bearer {REMOVED}")

    def test_the_rest_stays(self) -> None:
        text = "job 123-4-0-99 at 12:30:45, HTTP 503, cursor 117314200, bearer of news"
        self.assertEqual(Redactor([])(text), text)


class LineTests(SynchronousTestCase):
    def text(self, event: LogEvent, *secrets: str) -> str:
        return text_lines(event, Redactor(secrets))

    def json(self, event: LogEvent, *secrets: str) -> dict[str, Any]:
        line = json_line(event, Redactor(secrets))
        self.assertEqual(line.count("\n"), 1)
        document: dict[str, Any] = json.loads(line, parse_constant=self.fail)
        return document

    def test_text(self) -> None:
        self.assertEqual(
            self.text(event("{n} updates", n=3)),
            "2026-10-26T07:33:20.250Z WARN     telegrammer.x: 3 updates\n",
        )

    def test_json(self) -> None:
        self.assertEqual(
            self.json(event("{n} updates", n=3, ratio=0.5, ok=True, none=None, path=object())),
            {
                "time": "2026-10-26T07:33:20.250Z",
                "level": "warn",
                "namespace": "telegrammer.x",
                "message": "3 updates",
                "n": 3,
                "ratio": 0.5,
                "ok": True,
                "none": None,
            },
        )

    def test_json_has_no_nan_and_no_field_displaces_ours(self) -> None:
        document = self.json(event("x", level="mine", odd=float("nan"), big=float("inf")))
        self.assertEqual((document["level"], document["odd"], document["big"]), ("warn", "nan", "inf"))

    def test_foreign_text_stays_in_its_line(self) -> None:
        hostile = "a\nTIME ERROR forged\x1b[2J"
        self.assertEqual(self.text(event(word=hostile)).count("\n"), 1)
        document = self.json(event(word=hostile))
        self.assertEqual(document["message"], r"a\nTIME ERROR forged\x1b[2J")
        self.assertEqual(document["word"], document["message"])
        self.assertLess(len(self.text(event(word="x" * 10_000))), 4200)

    def test_foreign_text_is_no_format(self) -> None:
        self.assertIn("{log_source.__class__}", self.text(event(word="{log_source.__class__}")))

    def test_a_failure_in_text_is_lines_of_the_same_form(self) -> None:
        lines = self.text(event("crashed", log_failure=failure_of(f"a\nb {TOKEN}")), TOKEN).splitlines()
        self.assertTrue(lines[0].endswith("telegrammer.x: crashed (ValueError)"))
        self.assertTrue(all(line.startswith("2026-10-26T07:33:20.250Z WARN     ") for line in lines))
        self.assertIn("test_logs.py", "".join(lines))
        self.assertNotIn("AAF", "".join(lines))

    def test_a_failure_in_json(self) -> None:
        document = self.json(event("crashed", log_failure=failure_of(TOKEN)), TOKEN)
        self.assertEqual((document["error"], document["message"]), ("ValueError", "crashed"))
        self.assertIn("test_logs.py", document["traceback"])
        self.assertNotIn("AAF", json.dumps(document))

    def test_secrets_leave_messages_and_fields(self) -> None:
        for rendered in (
            self.text(event(word=f"see {TOKEN}"), TOKEN),
            json.dumps(self.json(event(word=f"see {TOKEN}", other="AAF-fake_token"), TOKEN)),
        ):
            self.assertNotIn("AAF", rendered)

    def test_an_event_of_twisted_s_old_log(self) -> None:
        seen: list[LogEvent] = []

        @implementer(ILogObserver)
        def see(event: LogEvent) -> None:
            seen.append(event)

        publisher = legacy.LogPublisher(publishPublisher=LogPublisher(see))
        publisher.msg("old", "words", TOKEN)
        publisher.msg(failure=failure_of("x"), why="why", isError=1)
        first, second = (self.json(one, TOKEN) for one in seen)
        self.assertEqual(first["message"], f"old words {REMOVED}")
        found = second["message"], second["error"], second["level"]
        self.assertEqual(found, ("why", "ValueError", "critical"))

    def test_a_bare_event(self) -> None:
        self.assertEqual(self.json({})["message"], "")
        self.assertEqual(self.json({"log_failure": failure_of("x")})["message"], "unexpected failure")

    @given(st.text(), st.text())
    def test_whatever_is_logged_is_one_line(self, text: str, name: str) -> None:
        for one in (event(word=text), event(text), event("x", **{name: text})):
            self.assertEqual(len(text_lines(one, Redactor()).splitlines()), 1)
            json.loads(json_line(one, Redactor()))


class ObserverTests(SynchronousTestCase):
    def test_levels_from_info_up_are_written_at_once(self) -> None:
        stream = io.StringIO()
        log = Logger("ns", observer=line_observer("text", stream))
        log.debug("quiet")
        log.info("heard")
        self.assertEqual(stream.getvalue().count("\n"), 1)
        self.assertTrue(stream.getvalue().endswith("ns: heard\n"))

    def test_a_stream_of_another_encoding(self) -> None:
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="ascii")
        Logger("ns", observer=line_observer("json", stream)).info("\u00e9")
        self.assertIn(b"\\xe9", raw.getvalue())

    def test_a_stream_that_is_gone_stops_nothing(self) -> None:
        class Gone(io.StringIO):
            def write(self, text: str) -> int:
                raise BrokenPipeError

        Logger("ns", observer=line_observer("text", Gone())).info("x")

    def test_an_event_that_cannot_be_shown(self) -> None:
        def render(event: LogEvent, redact: Redactor) -> str:
            raise RuntimeError("secret")

        stream = io.StringIO()
        Logger("ns", observer=LineObserver(stream, render, Redactor())).info("x")
        self.assertIn("could not be shown: RuntimeError", stream.getvalue())
        self.assertNotIn("secret", stream.getvalue())


@implementer(ILogObserver)
class NewTexts:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, event: LogEvent) -> None:
        self.texts.append(eventAsText(event))


@implementer(legacy.ILogObserver)
class OldTexts:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, eventDict: dict[str, Any]) -> None:
        self.texts.append(str(legacy.textFromEventDict(eventDict)))


class FilterTests(SynchronousTestCase):
    """The filter in front of an observer that is not ours."""

    def seen(self, act: Callable[[LogPublisher], None], wrapped: bool = False) -> list[str]:
        old, new = OldTexts(), NewTexts()
        observer = LegacyLogObserverWrapper(old) if wrapped else new
        act(LogPublisher(RedactingFilter(Redactor([TOKEN])), observer))
        return old.texts + new.texts

    def test_message_and_failure(self) -> None:
        for wrapped in (False, True):

            def act(chain: LogPublisher) -> None:
                log = Logger("ns", observer=chain)
                log.error("at {where}", where=f"/bot{TOKEN}/x")
                log.failure("crashed", failure_of(TOKEN))

            first, second = self.seen(act, wrapped)
            self.assertIn(f"at /bot{REMOVED}/x", first)
            self.assertNotIn("AAF", second)
            self.assertIn("crashed", second)
            self.assertIn("ValueError", second)

    def test_old_events(self) -> None:
        def act(chain: LogPublisher) -> None:
            publisher = legacy.LogPublisher(publishPublisher=chain)
            publisher.msg(f"see {TOKEN}")
            publisher.msg(format="see %(what)s", what=TOKEN)
            publisher.msg(failure=failure_of(TOKEN), why=f"why {TOKEN}", isError=1)

        texts = self.seen(act, wrapped=True)
        self.assertEqual(len(texts), 3)
        self.assertNotIn("AAF", "".join(texts))
        self.assertEqual(texts[0], f"see {REMOVED}")

    def test_an_event_without_secrets_is_untouched(self) -> None:
        given_event = event("{n} {word}", n=1, word="x", log_failure=failure_of("y"))
        copy = dict(given_event)
        RedactingFilter(Redactor([TOKEN]))(given_event)
        self.assertEqual(given_event, copy)

    def test_it_never_raises(self) -> None:
        RedactingFilter(Redactor([TOKEN]))({"log_format": 5})
        RedactingFilter(Redactor([TOKEN]))({})
