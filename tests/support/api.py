"""The API over ports that a test answers, and what holds for every answer of its."""

from __future__ import annotations

import json
from collections.abc import Sequence

from attrs import define, field
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import LogEvent, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import QueueCounts
from telegrammer.core.health import DeliveryStatus, FoldingStatus, IngestionStatus
from telegrammer.core.journal import JournalCounts
from telegrammer.core.problems import (
    DatabaseState,
)
from telegrammer.core.subscriptions import Subscription
from telegrammer.core.telegram import (
    IdentityOutcome,
    PollOutcome,
    SendOutcome,
    SettingOutcome,
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

    def set_webhook(self, url: str, secret: str) -> Deferred[SettingOutcome]:
        raise AssertionError("the API sets no webhook")

    def delete_webhook(self) -> Deferred[SettingOutcome]:
        raise AssertionError("the API deletes no webhook")

    def get_updates(self, offset: int | None, limit: int) -> Deferred[PollOutcome]:
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
            folding=FoldingStatus,
            journal=lambda: succeed(JournalCounts()),
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
