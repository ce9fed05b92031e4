"""The routes, over real HTTP in memory (contract 2)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from attrs import define, field
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import LogEvent, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import QueueCounts
from telegrammer.core.health import DeliveryStatus, IngestionStatus
from telegrammer.core.problems import (
    CapacityReached,
    DatabaseState,
    StoreBusy,
    SubscriptionLimit,
)
from telegrammer.core.subscriptions import Subscription
from telegrammer.core.telegram import (
    IdentityOutcome,
    PollOutcome,
    Rejected,
    SendOutcome,
    Sent,
    WebhookOutcome,
)
from telegrammer.web.api import Api
from telegrammer.web.health import Health
from tests.support.http import Answer, Conversation

ENVELOPE = b'{"ok":true,"result":{"message_id":42}}'


@define(eq=False)
class FakeTelegram:
    sends: list[tuple[int, str]] = field(factory=list)
    outcome: Deferred[SendOutcome] = field(factory=Deferred)

    def send_message(self, chat_id: int, text: str) -> Deferred[SendOutcome]:
        self.sends.append((chat_id, text))
        return self.outcome

    def get_me(self) -> Deferred[IdentityOutcome]:
        raise AssertionError("the API does not ask who it is")

    def get_webhook_info(self) -> Deferred[WebhookOutcome]:
        raise AssertionError("the API does not ask for webhooks")

    def get_updates(self, offset: int, limit: int) -> Deferred[PollOutcome]:
        raise AssertionError("the API does not poll")


@define(eq=False)
class FakeUsernames:
    asked: list[str] = field(factory=list)
    answer: Deferred[int | None] = field(factory=Deferred)

    def chat_of(self, username: str) -> Deferred[int | None]:
        self.asked.append(username)
        return self.answer


@define(eq=False)
class FakeSubscriptions:
    calls: list[tuple[object, ...]] = field(factory=list)
    added: Deferred[int] = field(factory=Deferred)
    removed: Deferred[bool] = field(factory=Deferred)

    def add(self, owner: int, chat_id: int, callback_url: str) -> Deferred[int]:
        self.calls.append(("add", owner, chat_id, callback_url))
        return self.added

    def of(self, owner: int) -> Deferred[Sequence[Subscription]]:
        self.calls.append(("of", owner))
        return succeed([Subscription(17, -5, "http://h/?k"), Subscription(18, 6, "http://i/")])

    def remove(self, owner: int, subscription_id: int) -> Deferred[bool]:
        self.calls.append(("remove", owner, subscription_id))
        return self.removed


class OkStorage:
    def state(self) -> DatabaseState:
        return "ok"


class ApiCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.telegram = FakeTelegram()
        self.usernames = FakeUsernames()
        self.subscriptions = FakeSubscriptions()
        self.ingestion = IngestionStatus(state="polling")
        health = Health(
            bot=lambda: None,
            ingestion=lambda: self.ingestion,
            delivery=DeliveryStatus,
            storage=OkStorage(),
            counts=lambda: succeed(QueueCounts(pending=3)),
            capacity=50,
            clock=Clock(),
            now=lambda: 1000.0,
        )
        self.api = Api(self.subscriptions, self.usernames, self.telegram, health)
        self.events = self.enterContext(capturedLogs())

    def begin(self, method: str, path: str, document: object = None) -> Conversation:
        conversation = Conversation(self.api.resource())
        conversation.ask(method, path, b"" if document is None else json.dumps(document).encode())
        return conversation

    def raw(self, request: bytes) -> Answer:
        conversation = Conversation(self.api.resource())
        conversation.raw(request)
        return self.checked(conversation.answer)

    def ask(self, method: str, path: str, document: object = None) -> Answer:
        return self.checked(self.begin(method, path, document).answer)

    def checked(self, answer: Answer) -> Answer:
        """What holds for every answer."""
        self.assertEqual(answer.headers["cache-control"], "no-store")
        self.assertEqual(answer.headers["server"], "telegrammer")
        self.assertNotIn("transfer-encoding", answer.headers)
        if answer.status != 204:
            self.assertEqual(answer.headers["content-type"], "application/json")
            self.assertIn("content-length", answer.headers)
        return answer

    def refused(self, answer: Answer, status: int, code: str, field: str | None = None) -> None:
        self.assertEqual(answer.status, status)
        self.assertEqual(int(answer.headers["content-length"]), len(answer.body))
        self.assertEqual(answer.json["ok"], False)
        self.assertEqual((answer.json["error"]["code"], answer.json["error"].get("field")), (code, field))

    def errors(self) -> list[LogEvent]:
        return [each for each in self.events if each["log_level"].name in ("error", "critical")]


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
            "%FF",
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
            "//send",
            "/send//",
            "/subscriptions/",
            "/subscriptions//17",
            "/Send",
            "/%FF",
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

    def test_whatever_the_host_is_called(self) -> None:
        for host in (b"a..b", b"\xff", b"x" * 300, b"[::1", b"", b"h:99999"):
            self.assertEqual(self.raw(b"GET /health HTTP/1.1\r\nHost: " + host + b"\r\n\r\n").status, 200)
        self.assertEqual(self.raw(b"GET /health HTTP/1.1\r\n\r\n").status, 200)

    def test_the_routes_are_open_to_who_judges_heads(self) -> None:
        rules = {rule.rule for rule in self.api.routes.iter_rules()}
        self.assertEqual(rules, {"/send", "/subscribe", "/subscriptions", "/subscriptions/<text>", "/health"})


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
