"""The routes, over real HTTP in memory (contract 2)."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from telegrammer.core.health import IngestionStatus
from telegrammer.core.problems import CapacityReached, StoreBusy, SubscriptionLimit
from telegrammer.core.telegram import Rejected, Sent
from tests.support.api import ENVELOPE, ApiCase


class SendTests(ApiCase):
    def test_to_a_chat(self) -> None:
        self.telegram.outcome.callback(Sent(ENVELOPE))
        answer = self.ask("POST", "/send", {"chat_id": -100123, "text": "Hello"})
        self.assertEqual((answer.status, answer.body), (200, ENVELOPE))
        self.assertEqual(self.telegram.sends, [(-100123, "Hello")])
        self.assertEqual(self.usernames.asked, [])

    def test_to_a_username(self) -> None:
        self.usernames.answer.callback(77)
        self.telegram.outcome.callback(Sent(ENVELOPE))
        self.assertEqual(self.ask("POST", "/send", {"username": "@Ann", "text": "x"}).status, 200)
        self.assertEqual(self.usernames.asked, ["ann"])
        self.assertEqual(self.telegram.sends, [(77, "x")])

    @pytest.mark.report("G1")
    def test_to_a_username_nobody_has(self) -> None:
        self.usernames.answer.callback(None)
        self.refused(
            self.ask("POST", "/send", {"username": "ghost", "text": "x"}),
            404,
            "USERNAME_NOT_FOUND",
            "username",
        )
        self.assertEqual(self.telegram.sends, [])

    def test_a_rejection(self) -> None:
        self.telegram.outcome.callback(Rejected("Bad Request: upgraded", -1001557912345))
        answer = self.ask("POST", "/send", {"chat_id": 1, "text": "x"})
        self.refused(answer, 422, "TELEGRAM_REJECTED")
        self.assertEqual(answer.json["error"]["migrate_to_chat_id"], -1001557912345)

    def test_nothing_is_done_for_an_invalid_request(self) -> None:
        self.refused(
            self.ask("POST", "/send", {"username": "ann", "text": ""}), 400, "INVALID_REQUEST", "text"
        )
        self.refused(self.ask("POST", "/send"), 400, "INVALID_REQUEST")
        self.refused(self.ask("POST", "/send", {"\ud83d": 1}), 400, "INVALID_REQUEST")
        self.assertEqual((self.usernames.asked, self.telegram.sends), ([], []))

    def test_a_caller_who_hangs_up_does_not_tear_the_send(self) -> None:
        conversation = self.begin("POST", "/send", {"chat_id": 1, "text": "x"})
        conversation.hang_up()
        self.assertFalse(self.telegram.outcome.called)
        (held,) = conversation.request.held
        self.assertNoResult(held)
        self.telegram.outcome.callback(Sent(ENVELOPE))
        self.assertEqual(conversation.transport.value(), b"")
        told = [each for each in self.events if each.get("what") == "send"]
        self.assertEqual([each["kind"] for each in told], ["Sent"])
        self.assertEqual(self.errors(), [])

    def test_a_send_that_fails_after_the_caller_left_is_no_traceback(self) -> None:
        self.begin("POST", "/send", {"chat_id": 1, "text": "x"}).hang_up()
        self.telegram.outcome.errback(ZeroDivisionError("hunter2"))
        self.assertEqual(
            [each["kind"] for each in self.events if each.get("what") == "send"], ["ZeroDivisionError"]
        )
        self.assertEqual(self.errors(), [])

    def test_a_caller_who_hangs_up_during_the_look_up_sends_nothing(self) -> None:
        self.begin("POST", "/send", {"username": "ann", "text": "x"}).hang_up()
        self.assertTrue(self.usernames.answer.called)
        self.assertEqual(self.telegram.sends, [])
        self.assertEqual(self.errors(), [])


class SubscriptionTests(ApiCase):
    def test_subscribe(self) -> None:
        self.subscriptions.added.callback(17)
        answer = self.ask("POST", "/subscribe", {"chat_id": -5, "callback_url": "HTTP://H:80?k=v"})
        self.assertEqual((answer.status, answer.body), (200, b'{"ok":true,"subscription_id":17}'))
        self.assertEqual(self.subscriptions.calls, [("add", 7, -5, "http://h/?k=v")])

    def test_beyond_a_limit(self) -> None:
        self.subscriptions.added.errback(SubscriptionLimit("a key may have 100 subscriptions"))
        answer = self.ask("POST", "/subscribe", {"chat_id": -5, "callback_url": "http://h/"})
        self.refused(answer, 409, "SUBSCRIPTION_LIMIT")

    def test_nothing_is_registered_for_an_invalid_request(self) -> None:
        answer = self.ask("POST", "/subscribe", {"chat_id": 1, "callback_url": "http://u@h/"})
        self.refused(answer, 400, "INVALID_REQUEST", "callback_url")
        self.assertEqual(self.subscriptions.calls, [])

    def test_a_caller_who_hangs_up_does_not_tear_the_commit(self) -> None:
        self.begin("POST", "/subscribe", {"chat_id": 1, "callback_url": "http://h/"}).hang_up()
        self.assertFalse(self.subscriptions.added.called)
        self.subscriptions.added.callback(17)
        self.begin("DELETE", "/subscriptions/17").hang_up()
        self.assertFalse(self.subscriptions.removed.called)
        self.subscriptions.removed.callback(True)
        self.assertEqual(self.errors(), [])

    def test_list(self) -> None:
        answer = self.ask("GET", "/subscriptions")
        self.assertEqual(answer.status, 200)
        self.assertEqual([each["subscription_id"] for each in answer.json["subscriptions"]], [17, 18])
        self.assertEqual(self.subscriptions.calls, [("of", 7)])

    def test_remove(self) -> None:
        self.subscriptions.removed.callback(True)
        answer = self.ask("DELETE", "/subscriptions/17")
        self.assertEqual((answer.status, answer.body), (204, b""))
        self.assertNotIn("content-length", answer.headers)
        self.assertEqual(self.subscriptions.calls, [("remove", 7, 17)])

    def test_remove_what_the_caller_does_not_have(self) -> None:
        self.subscriptions.removed.callback(False)
        self.refused(self.ask("DELETE", "/subscriptions/17"), 404, "NOT_FOUND")

    def test_remove_what_no_subscription_can_be(self) -> None:
        for text in (
            "x",
            "0",
            "017",
            "-1",
            "1.0",
            "9223372036854775808",
            "9" * 5000,
            "%31%0a",
            "%D9%A1",
            "1%2F2",
        ):
            self.refused(self.ask("DELETE", "/subscriptions/" + text), 404, "NOT_FOUND")
        self.assertEqual(self.subscriptions.calls, [])


class HealthTests(ApiCase):
    def test_ok(self) -> None:
        answer = self.ask("GET", "/health")
        self.assertEqual((answer.status, answer.json["status"], answer.json["ok"]), (200, "ok", True))
        self.assertEqual(answer.json["queue"]["pending"], 3)

    def test_unavailable(self) -> None:
        self.ingestion = IngestionStatus(state="suspended", reason="credentials")
        answer = self.ask("GET", "/health")
        self.assertEqual(
            (answer.status, answer.json["status"], answer.json["ok"]), (503, "unavailable", False)
        )

    def test_head_has_the_head_of_get_and_no_body(self) -> None:
        for path in ("/health", "/subscriptions"):
            full, head = self.ask("GET", path), self.ask("HEAD", path)
            self.assertEqual((head.status, head.body), (full.status, b""))
            self.assertEqual(head.headers["content-length"], str(len(full.body)))


class UnroutedTests(ApiCase):
    def test_unknown_paths(self) -> None:
        for path in (
            "/",
            "/x",
            "/send/",
            "/send//",
            "/subscriptions/",
            "/subscriptions//17",
            "/Send",
            "/a//b",
        ):
            for method in ("GET", "POST", "DELETE"):
                self.refused(self.ask(method, path), 404, "NOT_FOUND")

    def test_methods_a_path_does_not_have(self) -> None:
        for method, path, allowed in (
            ("GET", "/send", "POST"),
            ("OPTIONS", "/send", "POST"),
            ("BREW", "/subscribe", "POST"),
            ("POST", "/subscriptions", "GET, HEAD"),
            ("GET", "/subscriptions/17", "DELETE"),
            ("DELETE", "/health", "GET, HEAD"),
        ):
            answer = self.ask(method, path)
            self.refused(answer, 405, "METHOD_NOT_ALLOWED")
            self.assertEqual(answer.headers["allow"], allowed)

    def test_the_routes_are_open_to_who_judges_heads(self) -> None:
        rules = {rule.rule for rule in self.api.app.url_map.iter_rules()}
        self.assertEqual(
            rules, {"/send", "/subscribe", "/subscriptions", "/subscriptions/<subscription_id>", "/health"}
        )


class FailureTests(ApiCase):
    def test_storage_that_cannot(self) -> None:
        self.subscriptions.added.errback(StoreBusy("database is locked"))
        answer = self.ask("POST", "/subscribe", {"chat_id": 1, "callback_url": "http://h/"})
        self.refused(answer, 503, "STORAGE_UNAVAILABLE")
        self.assertEqual(self.errors(), [])

    def test_the_unexpected_is_logged_once_and_leaks_nowhere(self) -> None:
        for error in (ZeroDivisionError("hunter2"), CapacityReached("hunter2")):
            seen = len(self.errors())
            self.usernames.answer = Deferred()
            self.usernames.answer.errback(error)
            answer = self.ask("POST", "/send", {"username": "ann", "text": "x"})
            self.refused(answer, 500, "INTERNAL_ERROR")
            self.assertNotIn(b"hunter2", answer.body)
            (event,) = self.errors()[seen:]
            self.assertEqual(event["kind"], type(error).__name__)
            self.assertRegex(event["where"], r"api\.py:\d+")
            self.assertNotIn("hunter2", repr(event))
