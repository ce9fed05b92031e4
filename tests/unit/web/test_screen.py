"""What a head alone decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers
from werkzeug.routing import Map, Rule

from telegrammer.core.problems import StoreBusy
from telegrammer.web.framing import origin_form
from telegrammer.web.screen import Admission, Head, Refusal, Screen, Verdict, decoded_path, is_json
from tests.support.front import CALLER, KEY, FakeKeys, area

AUTHORIZATION = {b"Authorization": [b"Bearer " + KEY]}
JSON = {**AUTHORIZATION, b"Content-Type": [b"application/json"]}


def head(
    method: bytes = b"POST",
    target: bytes = b"/send",
    headers: dict[bytes, list[bytes]] = JSON,
    length: int | None = 2,
) -> Head:
    return Head(method, target, Headers(headers), length)


class ScreenTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock, self.keys = Clock(), FakeKeys()
        self.area = area(self.keys, self.clock)
        self.screen = Screen([self.area])

    def judge(self, judged: Head) -> Deferred[Verdict]:
        return Deferred.fromCoroutine(self.screen.judge(judged))

    def refused(self, judged: Head) -> Refusal:
        verdict = self.successResultOf(self.judge(judged))
        assert isinstance(verdict, Refusal), verdict
        return verdict

    def test_admits(self) -> None:
        for judged, route, takes_turn in (
            (head(), "/send", True),
            (head(length=65536), "/send", True),
            (head(length=None), "/send", True),
            (head(b"GET", b"/subscriptions?a=b", AUTHORIZATION, 0), "/subscriptions", True),
            (head(b"GET", b"/health", AUTHORIZATION, 0), "/health", False),
            (head(b"HEAD", b"/health", AUTHORIZATION, 0), "/health", False),
            (head(b"DELETE", b"/subscriptions/7", AUTHORIZATION, 0), "/subscriptions/<text>", True),
            (head(target=b"/%73end"), "/send", True),
        ):
            self.assertEqual(
                self.successResultOf(self.judge(judged)),
                Admission(CALLER, route, 65536, takes_turn, self.area.resource),
            )

    def test_order_of_checks(self) -> None:
        """Each fault is reported although every later one is there too."""
        wrong: dict[bytes, list[bytes]] = {}
        steps = (
            (head(b"PUT", b"/nowhere", wrong, 10**10), 404, "-"),
            (head(b"PUT", b"/send", wrong, 10**10), 405, "-"),
            (head(b"POST", b"/send", wrong, 10**10), 401, "/send"),
            (head(b"POST", b"/send", AUTHORIZATION, 10**10), 413, "/send"),
            (head(b"POST", b"/send", AUTHORIZATION, 10), 415, "/send"),
            (head(b"POST", b"/send", AUTHORIZATION, None), 415, "/send"),
            (head(b"POST", b"/send", AUTHORIZATION, 0), 415, "/send"),
            (head(b"GET", b"/subscriptions", AUTHORIZATION, 65537), 413, "/subscriptions"),
        )
        for judged, status, route in steps:
            refusal = self.refused(judged)
            self.assertEqual((refusal.response.status, refusal.route), (status, route))
            self.assertEqual(refusal.caller, CALLER if status in (413, 415) else None)

    def test_paths_that_are_none(self) -> None:
        for target in (
            b"/",
            b"//send",
            b"/send/",
            b"/send//",
            b"/%2Fsend",
            b"/%2fsend",
            b"/subscriptions%2f7",
            b"/%ff",
            b"/send%00",
            b"/Send",
            b"/send#x",
            b"*",
            b"/subscriptions/1/2",
            b"/subscriptions//1",
            b"/./send",
            b"/x/../send",
        ):
            self.assertEqual(self.refused(head(target=target)).response.status, 404, target)

    def test_allow(self) -> None:
        for method, target, allow in (
            (b"GET", b"/send", b"POST"),
            (b"HEAD", b"/send", b"POST"),
            (b"post", b"/send", b"POST"),
            (b"OPTIONS", b"/subscriptions", b"GET, HEAD"),
            (b"BREW", b"/health", b"GET, HEAD"),
            (b"GET", b"/subscriptions/7", b"DELETE"),
        ):
            refusal = self.refused(head(method, target))
            self.assertEqual(refusal.response.status, 405)
            self.assertIn((b"Allow", allow), refusal.response.headers)

    @pytest.mark.report("E4")
    def test_a_number_of_absurd_length_in_the_path(self) -> None:
        served = Map([Rule("/n/<int:number>", methods=["POST"], endpoint="n")])
        screen = Screen([area(self.keys, self.clock, served=served)])
        verdict = self.successResultOf(
            Deferred.fromCoroutine(screen.judge(head(target=b"/n/" + b"9" * 5000)))
        )
        assert isinstance(verdict, Refusal)
        self.assertEqual(verdict.response.status, 404)

    def test_credentials(self) -> None:
        for values in (
            [],
            [b"Basic eDp5"],
            [b"Bearer"],
            [b"Bearer nobody"],
            [b"Bearer " + KEY] * 2,
            [b"Bearer " + KEY + b", Bearer x"],
        ):
            refusal = self.refused(head(headers={b"Authorization": values}))
            self.assertEqual(refusal.response.status, 401, values)
            self.assertIn((b"WWW-Authenticate", b"Bearer"), refusal.response.headers)
        self.assertEqual(self.keys.asked, 1)
        self.assertIsInstance(
            self.successResultOf(self.judge(head(headers={**JSON, b"Authorization": [b"bEARER " + KEY]}))),
            Admission,
        )

    def test_the_key_is_looked_up_for_every_request(self) -> None:
        for _ in range(3):
            self.successResultOf(self.judge(head()))
        self.assertEqual(self.keys.asked, 3)

    def test_a_look_up_that_takes_too_long(self) -> None:
        for judged, seconds in ((head(), 5.0), (head(b"GET", b"/health", AUTHORIZATION, 0), 0.06)):
            held: list[Deferred[int | None]] = []
            self.keys.held = held
            judging = self.judge(judged)
            self.clock.advance(seconds * 0.99)
            self.assertNoResult(judging)
            self.clock.advance(seconds * 0.02)
            verdict = self.successResultOf(judging)
            assert isinstance(verdict, Refusal)
            self.assertEqual(verdict.response.status, 503)
            self.assertIn(b"AUTH_UNAVAILABLE", verdict.response.body)
            self.assertTrue(held[0].called)
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def fail_look_up(self, error: Exception) -> None:
        held: list[Deferred[int | None]] = []
        self.keys.held = held
        judging = self.judge(head())
        held[0].errback(error)
        self.keys.held = None
        verdict = self.successResultOf(judging)
        assert isinstance(verdict, Refusal)
        self.assertEqual(verdict.response.status, 503)

    def test_a_look_up_that_fails_is_logged_when_that_changes(self) -> None:
        with capturedLogs() as logged:
            for _ in range(3):
                self.fail_look_up(StoreBusy("secret"))
            self.assertIsInstance(self.successResultOf(self.judge(head())), Admission)
            self.assertIsInstance(self.successResultOf(self.judge(head())), Admission)
        self.assertEqual([event["log_level"] for event in logged], [LogLevel.warn, LogLevel.info])
        self.assertEqual(logged[0]["reason"], "StoreBusy")

    def test_a_look_up_that_crashes_shows_its_traceback_once(self) -> None:
        for _ in range(3):
            self.fail_look_up(ZeroDivisionError())
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_a_cancelled_look_up_is_no_failure_of_the_database(self) -> None:
        self.keys.held = []
        with capturedLogs() as logged:
            self.judge(head()).cancel()
        self.assertEqual(logged, [])


class MediaTypeTests(SynchronousTestCase):
    def test_json(self) -> None:
        for value in (
            b"application/json",
            b"Application/JSON",
            b" application/json\t",
            b"application/json;charset=utf-8",
            b'application/json ; Charset="UTF-8"',
            b"application/json;",
            b"application/json; ; charset=utf-8 ;",
            b'application/json; version=1; note="a b"',
        ):
            self.assertTrue(is_json([value]), value)

    def test_not_json(self) -> None:
        for values in (
            [],
            [b""],
            [b"application/json", b"application/json"],
            [b"application/json, text/plain"],
            [b"text/json"],
            [b"application/jsonp"],
            [b"application/json+x"],
            [b"application/problem+json"],
            [b"application /json"],
            [b"application/json charset=utf-8"],
            [b"application/json; charset=latin-1"],
            [b"application/json; charset=utf8"],
            [b"application/json; charset="],
            [b"application/json; charset"],
            [b'application/json; charset="utf-8'],
            [b"application/json; charset=utf-8; charset=utf-8"],
            [b"application/json; charset = utf-8"],
            [b"application/x-www-form-urlencoded"],
        ):
            self.assertFalse(is_json(values), values)

    def test_no_value_takes_long(self) -> None:
        self.assertFalse(is_json([b"application/json" + b"; " * 8000 + b"!"]))

    @given(st.binary(max_size=60))
    def test_any_bytes(self, tail: bytes) -> None:
        is_json([b"application/json" + tail])
        is_json([tail])


class PathTests(SynchronousTestCase):
    @given(st.binary(max_size=60))
    def test_any_bytes(self, target: bytes) -> None:
        path = decoded_path(target)
        self.assertTrue(path is None or "//" not in path)
        form = origin_form(b"GET", target)
        self.assertTrue(form is None or form.startswith(b"/"))
