"""The Bot API's requests as they go out, and that nothing of the token comes back."""

import json

import pytest
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from telegrammer import __version__
from telegrammer.config import Token
from telegrammer.core.exchange import (
    BadReply,
    BodyTooLarge,
    ConnectionBroken,
    DeadlinePassed,
    ExchangeFailed,
    NotConnected,
    Reply,
)
from telegrammer.core.telegram import (
    BadCredentials,
    Batch,
    Done,
    Identity,
    Misbehaved,
    NetworkFailure,
    RateLimited,
    Rejected,
    Sent,
    TimedOut,
    Unavailable,
    Update,
    UpstreamFailure,
    WebhookInfo,
)
from telegrammer.ingest.bot_api import BotApi
from tests.support.telegram import FakeExchange, Request

SECRET = "AAF-secret_part"
TOKEN = Token(f"123456:{SECRET}")
MIB = 2**20
HOOK, HOOK_SECRET = "https://hooks.test/secret-path", "hook-secret_0123456789"


class BotApiTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.polling, self.sending = FakeExchange(), FakeExchange()
        self.api = BotApi(TOKEN, "https://api.test/prefix", self.polling, self.sending)

    def sent(self, answer: Reply | Exception, text: str = "hi") -> object:
        self.sending.answers.append(answer)
        return self.successResultOf(Deferred.fromCoroutine(self.api.send_message(5, text)))

    def polled(self, answer: Reply | Exception) -> object:
        self.polling.answers.append(answer)
        return self.successResultOf(Deferred.fromCoroutine(self.api.get_updates(7, 50)))

    def identified(self, answer: Reply | Exception) -> object:
        self.polling.answers.append(answer)
        return self.successResultOf(Deferred.fromCoroutine(self.api.get_me()))

    def webhook(self, answer: Reply | Exception) -> object:
        self.polling.answers.append(answer)
        return self.successResultOf(Deferred.fromCoroutine(self.api.get_webhook_info()))

    def hooked(self, answer: Reply | Exception) -> object:
        self.polling.answers.append(answer)
        return self.successResultOf(Deferred.fromCoroutine(self.api.set_webhook(HOOK, HOOK_SECRET)))

    def unhooked(self, answer: Reply | Exception) -> object:
        self.polling.answers.append(answer)
        return self.successResultOf(Deferred.fromCoroutine(self.api.delete_webhook()))

    def check_request(self, request: Request, method: str, seconds: float, limit: int, body: object) -> None:
        self.assertEqual(request.method, "POST")
        self.assertEqual(request.url, f"https://api.test/prefix/bot{TOKEN.text}/{method}")
        expected = {"Content-Type": "application/json", "User-Agent": f"telegrammer/{__version__}"}
        self.assertEqual(request.headers, expected)
        self.assertEqual((request.seconds, request.limit), (seconds, limit))
        self.assertEqual(json.loads(request.body), body)


class RequestTests(BotApiTestCase):
    @pytest.mark.report("B10")
    def test_get_updates(self) -> None:
        outcome = self.polled(Reply(200, (), b'{"ok":true,"result":[{"update_id":7}]}'))
        self.assertEqual(outcome, Batch((Update(7),)))
        question = {"offset": 7, "timeout": 30, "limit": 50, "allowed_updates": ["message"]}
        self.check_request(self.polling.requests[0], "getUpdates", 40, 16 * MIB, question)

    def test_get_me(self) -> None:
        outcome = self.identified(Reply(200, (), b'{"ok":true,"result":{"id":123456,"username":"x_bot"}}'))
        self.assertEqual(outcome, Identity(123456, "x_bot"))
        self.check_request(self.polling.requests[0], "getMe", 10, MIB, {})

    def test_get_webhook_info(self) -> None:
        outcome = self.webhook(Reply(200, (), b'{"ok":true,"result":{"url":"https://h.test/x"}}'))
        self.assertEqual(outcome, WebhookInfo("h.test", url="https://h.test/x"))
        self.check_request(self.polling.requests[0], "getWebhookInfo", 10, MIB, {})

    def test_set_webhook(self) -> None:
        self.assertEqual(self.hooked(Reply(200, (), b'{"ok":true,"result":true}')), Done())
        question = {"url": HOOK, "secret_token": HOOK_SECRET, "allowed_updates": ["message"]}
        self.check_request(self.polling.requests[0], "setWebhook", 30, MIB, question)

    def test_delete_webhook(self) -> None:
        self.assertEqual(self.unhooked(Reply(200, (), b'{"ok":true,"result":true}')), Done())
        self.check_request(self.polling.requests[0], "deleteWebhook", 30, MIB, {})

    def test_a_poll_from_the_head(self) -> None:
        """The key is absent: an offset of 0, or null, would not be the same to every server."""
        self.polling.answers.append(Reply(200, (), b'{"ok":true,"result":[]}'))
        self.successResultOf(Deferred.fromCoroutine(self.api.get_updates(None, 100)))
        self.assertEqual(
            json.loads(self.polling.requests[0].body),
            {"timeout": 30, "limit": 100, "allowed_updates": ["message"]},
        )

    @pytest.mark.report("E8")
    def test_send_message(self) -> None:
        body = b'{"ok":true,"result":{}}'
        text = "a <b> _x *y\r\n😀e\u0301"
        self.assertEqual(self.sent(Reply(200, (), body), text), Sent(body))
        self.check_request(self.sending.requests[0], "sendMessage", 20, MIB, {"chat_id": 5, "text": text})
        self.assertEqual(self.polling.requests, [])

    def test_ids_are_integers_of_64_bits(self) -> None:
        for chat_id in (2**63 - 1, -(2**63), -1001557912345):
            self.sending.answers.append(Reply(200))
            self.successResultOf(Deferred.fromCoroutine(self.api.send_message(chat_id, "x")))
            self.assertIn(f'"chat_id":{chat_id},'.encode(), self.sending.requests[-1].body)


class OutcomeTests(BotApiTestCase):
    def test_headers_reach_the_rules(self) -> None:
        limited = Reply(429, ((b"retry-after", b"7"),), b"")
        for outcome in (
            self.sent(limited),
            self.polled(limited),
            self.identified(limited),
            self.webhook(limited),
            self.hooked(limited),
            self.unhooked(limited),
        ):
            self.assertEqual(outcome, RateLimited(7))

    @pytest.mark.report("C3")
    def test_refusals(self) -> None:
        self.assertEqual(self.polled(Reply(401)), BadCredentials(401))
        self.assertEqual(self.identified(Reply(404)), BadCredentials(404))
        self.assertEqual(self.sent(Reply(401)), Misbehaved())
        self.assertEqual(self.sent(Reply(400, (), b'{"ok":false,"description":"no"}')), Rejected("no"))

    def test_failed_exchanges(self) -> None:
        for error, to_sender, to_poller in (
            (DeadlinePassed("late"), TimedOut(), NetworkFailure("late")),
            (NotConnected("name not found"), Unavailable(), NetworkFailure("name not found")),
            (ConnectionBroken("lost"), Unavailable(), NetworkFailure("lost")),
            (BodyTooLarge("long"), Misbehaved(), UpstreamFailure("long")),
            (BadReply("odd"), Misbehaved(), UpstreamFailure("odd")),
            (ExchangeFailed("x"), Unavailable(), NetworkFailure("x")),
        ):
            self.assertEqual(self.sent(error), to_sender)
            for ask in (self.polled, self.identified, self.webhook, self.hooked, self.unhooked):
                self.assertEqual(ask(error), to_poller)

    @pytest.mark.report("F1")
    def test_one_request_each(self) -> None:
        for answer in (Reply(500), Reply(302, ((b"location", b"/x"),)), ConnectionBroken("lost")):
            before = len(self.sending.requests)
            self.sent(answer)
            self.assertEqual(len(self.sending.requests), before + 1)


class SecretTests(BotApiTestCase):
    @pytest.mark.report("D5")
    def test_no_repr_tells_it(self) -> None:
        for told in (repr(self.api), str(self.api), repr(self.api.token)):
            self.assertNotIn(SECRET, told)

    @pytest.mark.report("D1")
    def test_no_outcome_tells_it(self) -> None:
        echo = Reply(500, (), f"no route for /bot{TOKEN.text}/getMe".encode())
        for outcome in (self.sent(echo), self.polled(echo), self.identified(echo), self.webhook(echo)):
            self.assertNotIn(SECRET, repr(outcome))

    @pytest.mark.report("D1")
    def test_no_refusal_tells_it(self) -> None:
        for words in (
            f"no route for /bot{TOKEN.text}/sendMessage",
            f"token {SECRET} is odd",
            "x" * 240 + TOKEN.text,
            f"at /bot{TOKEN.text.replace(':', '%3A')}/",
        ):
            answer = Reply(400, (), json.dumps({"ok": False, "description": words}).encode())
            outcome = self.sent(answer)
            assert isinstance(outcome, Rejected) and outcome.description is not None
            self.assertNotIn(SECRET[:8], outcome.description)
            self.assertIn("[rem", outcome.description)

    def test_nothing_tells_the_webhooks_secret(self) -> None:
        words = f"{HOOK}?x: {HOOK_SECRET} and {TOKEN.text} are odd"
        failure = json.dumps({"ok": False, "error_code": 400, "description": words}).encode()
        info = json.dumps({"ok": True, "result": {"url": HOOK, "last_error_message": words}}).encode()
        refused, looked = self.hooked(Reply(400, (), failure)), self.webhook(Reply(200, (), info))
        assert isinstance(refused, Rejected) and isinstance(looked, WebhookInfo)
        self.assertEqual(refused.description, "[removed]?x: [removed] and [removed] are odd")
        self.assertEqual(looked.last_error, refused.description)
        for told in (repr(refused), repr(looked)):
            self.assertNotIn(HOOK_SECRET, told)
            self.assertNotIn("secret-path", told)
