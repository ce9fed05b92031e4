"""The table of answers (contract 2, 2.1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core import problems, telegram
from telegrammer.core.health import HealthReport
from telegrammer.core.problems import TelegrammerError
from telegrammer.core.subscriptions import Subscription
from telegrammer.core.telegram import SendOutcome
from telegrammer.web import responses
from telegrammer.web.responses import Response


def error_of(response: Response) -> Any:
    document = json.loads(response.body)
    assert set(document) == {"ok", "error"} and document["ok"] is False
    return document["error"]


class FakeHead:
    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}

    def setResponseCode(self, code: int) -> None:
        self.status = code

    def setHeader(self, name: bytes, value: bytes) -> None:
        self.headers[name] = value


class ProblemTests(SynchronousTestCase):
    def test_the_form_of_an_error(self) -> None:
        refused = responses.problem(
            400, "INVALID_REQUEST", "why", "chat_id", [(b"X", b"y")], more=1, none=None
        )
        self.assertEqual(
            refused.body,
            b'{"ok":false,"error":{"code":"INVALID_REQUEST","message":"why","field":"chat_id","more":1}}',
        )
        self.assertEqual(
            refused.headers,
            ((b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store"), (b"X", b"y")),
        )

    def test_a_field_is_left_out_when_there_is_none(self) -> None:
        self.assertEqual(error_of(responses.problem(400, "X", "why")), {"code": "X", "message": "why"})

    def test_whatever_a_field_is_called_the_answer_is_ascii(self) -> None:
        refused = responses.problem(400, "X", "why", field='"\ud83d\n\x00é')
        refused.body.decode("ascii")
        self.assertEqual(error_of(refused)["field"], '"\ud83d\n\x00é')

    def test_the_refusals_of_the_http_layer(self) -> None:
        for refused, status, code in (
            (responses.BAD_REQUEST, 400, "BAD_REQUEST"),
            (responses.UNAUTHORIZED, 401, "UNAUTHORIZED"),
            (responses.NOT_FOUND, 404, "NOT_FOUND"),
            (responses.SUBSCRIPTION_NOT_FOUND, 404, "NOT_FOUND"),
            (responses.USERNAME_NOT_FOUND, 404, "USERNAME_NOT_FOUND"),
            (responses.method_not_allowed(["POST"]), 405, "METHOD_NOT_ALLOWED"),
            (responses.REQUEST_TIMEOUT, 408, "REQUEST_TIMEOUT"),
            (responses.body_too_large(65536), 413, "BODY_TOO_LARGE"),
            (responses.body_too_large(65536, 65537), 413, "BODY_TOO_LARGE"),
            (responses.unsupported_media_type([]), 415, "UNSUPPORTED_MEDIA_TYPE"),
            (responses.INTERNAL_ERROR, 500, "INTERNAL_ERROR"),
            (responses.OVERLOADED, 503, "OVERLOADED"),
            (responses.AUTH_UNAVAILABLE, 503, "AUTH_UNAVAILABLE"),
            (responses.STORAGE_UNAVAILABLE, 503, "STORAGE_UNAVAILABLE"),
        ):
            self.assertEqual((refused.status, error_of(refused)["code"]), (status, code))
            self.assertIn((b"Cache-Control", b"no-store"), refused.headers)
            self.assertIn((b"Content-Type", b"application/json"), refused.headers)

    def test_refusals_say_what_was_wrong(self) -> None:
        self.assertIn("has 65537 bytes", error_of(responses.body_too_large(65536, 65537))["message"])
        for given, kind in (
            ([], "this request has none"),
            ([b"a/b", b"a/b"], "this request has 2"),
            ([b" "], "this one is empty"),
            ([b"text/plain\t\xff\x80"], "this one is text/plain\\t\xff\\x80"),
            ([b"x" * 9000], "this one is " + "x" * 59 + "\u2026"),
        ):
            message = error_of(responses.unsupported_media_type(given))["message"]
            self.assertTrue(message.endswith("; " + kind), message)

    def test_headers_that_say_how_to_do_better(self) -> None:
        self.assertIn((b"WWW-Authenticate", b"Bearer"), responses.UNAUTHORIZED.headers)
        self.assertIn((b"Retry-After", b"1"), responses.OVERLOADED.headers)
        self.assertIn((b"Allow", b"GET, HEAD"), responses.method_not_allowed({"HEAD", "GET"}).headers)

    def test_what_an_exception_means_to_the_caller(self) -> None:
        cases: tuple[tuple[TelegrammerError, int, str], ...] = (
            (problems.InvalidRequest("why", "text"), 400, "INVALID_REQUEST"),
            (problems.SubscriptionLimit(), 409, "SUBSCRIPTION_LIMIT"),
            (problems.StoreBusy("x"), 503, "STORAGE_UNAVAILABLE"),
            (problems.StoreFull("x"), 503, "STORAGE_UNAVAILABLE"),
            (problems.StoreReadOnly("x"), 503, "STORAGE_UNAVAILABLE"),
            (problems.StoreFailing("x"), 503, "STORAGE_UNAVAILABLE"),
            (problems.StoreClosed("x"), 503, "STORAGE_UNAVAILABLE"),
            (problems.CapacityReached("x"), 500, "INTERNAL_ERROR"),
            (problems.UnknownKey("gone"), 401, "UNAUTHORIZED"),
            (problems.WrongBot(1, 2), 500, "INTERNAL_ERROR"),
        )
        for error, status, code in cases:
            answer = responses.from_problem(error)
            self.assertEqual((answer.status, error_of(answer)["code"]), (status, code))

    def test_an_invalid_request_names_its_field_and_the_rule(self) -> None:
        error = error_of(responses.from_problem(problems.InvalidRequest("why", "text")))
        self.assertEqual((error["field"], error["message"]), ("text", "why"))

    def test_a_limit_says_which(self) -> None:
        error = error_of(responses.from_problem(problems.SubscriptionLimit("100 a key")))
        self.assertEqual(error["message"], "100 a key")


class SendTests(SynchronousTestCase):
    def test_sent_is_telegrams_own_envelope(self) -> None:
        envelope = b'{ "ok" : true, "result":{"text":"\\ud83d"} }\n'
        sent = responses.from_send(telegram.Sent(envelope))
        self.assertEqual((sent.status, sent.body), (200, envelope))
        self.assertIn((b"Content-Type", b"application/json"), sent.headers)
        self.assertIn((b"Cache-Control", b"no-store"), sent.headers)

    def test_what_was_not_sent(self) -> None:
        cases: tuple[tuple[SendOutcome, int, str], ...] = (
            (telegram.Rejected(), 422, "TELEGRAM_REJECTED"),
            (telegram.RateLimited(), 429, "TELEGRAM_RATE_LIMITED"),
            (telegram.Misbehaved(), 502, "UPSTREAM_ERROR"),
            (telegram.Unavailable(), 502, "UPSTREAM_UNAVAILABLE"),
            (telegram.TimedOut(), 504, "UPSTREAM_TIMEOUT"),
        )
        for outcome, status, code in cases:
            answer = responses.from_send(outcome)
            self.assertEqual((answer.status, error_of(answer)["code"]), (status, code))
            self.assertNotIn(b"Retry-After", dict(answer.headers))

    @pytest.mark.report("TwiN/gatus#179")
    def test_a_rejection_carries_telegrams_words_and_the_new_chat(self) -> None:
        error = error_of(responses.from_send(telegram.Rejected("Forbidden: kicked", -1001557912345)))
        self.assertEqual(error["description"], "Forbidden: kicked")
        self.assertEqual(error["migrate_to_chat_id"], -1001557912345)
        bare = error_of(responses.from_send(telegram.Rejected()))
        self.assertEqual(set(bare), {"code", "message"})

    @pytest.mark.report("F2")
    def test_a_rate_limit_says_how_long(self) -> None:
        limited = responses.from_send(telegram.RateLimited(7))
        self.assertEqual(dict(limited.headers)[b"Retry-After"], b"7")

    @pytest.mark.report("python-telegram-bot/python-telegram-bot#1045")
    def test_a_timeout_says_that_the_message_may_have_been_sent(self) -> None:
        self.assertIn("may have been sent", error_of(responses.from_send(telegram.TimedOut()))["message"])


class RouteTests(SynchronousTestCase):
    def test_subscriptions(self) -> None:
        self.assertEqual(responses.subscribed(17).body, b'{"ok":true,"subscription_id":17}')
        self.assertEqual(
            responses.subscription_list([Subscription(17, -5, "http://h/?k")]).body,
            b'{"ok":true,"subscriptions":[{"subscription_id":17,"chat_id":-5,"callback_url":"http://h/?k"}]}',
        )
        self.assertEqual(responses.subscription_list([]).body, b'{"ok":true,"subscriptions":[]}')

    def test_health(self) -> None:
        for ok, status in ((True, 200), (False, 503)):
            answer = responses.from_health(HealthReport(ok, "degraded", {"ok": ok}))
            self.assertEqual((answer.status, json.loads(answer.body)), (status, {"ok": ok}))


class HeadTests(SynchronousTestCase):
    def test_the_head_is_complete(self) -> None:
        head = FakeHead()
        self.assertEqual(responses.put_head(head, responses.NOT_FOUND), responses.NOT_FOUND.body)
        self.assertEqual(head.status, 404)
        self.assertEqual(
            head.headers,
            {
                b"Server": b"telegrammer",
                b"Content-Type": b"application/json",
                b"Cache-Control": b"no-store",
                b"Content-Length": b"%d" % len(responses.NOT_FOUND.body),
            },
        )

    def test_no_content_has_neither_type_nor_length(self) -> None:
        head = FakeHead()
        self.assertEqual(responses.put_head(head, responses.REMOVED), b"")
        self.assertEqual(head.status, 204)
        self.assertEqual(head.headers, {b"Server": b"telegrammer", b"Cache-Control": b"no-store"})
