"""The stand-in answers as the Bot API does."""

from __future__ import annotations

import json
from typing import Any

from treq.testing import StubTreq
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.client import ResponseFailed

from telegrammer.demo import replies
from telegrammer.demo.chats import Chat
from telegrammer.demo.stand_in import StandInBotApi

TOKEN = "123456789:" + "A" * 35
ADA = Chat(1001, "Ada", "ada")
GROUP = Chat(-4518810793, "Engines")


class StandInTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.api = StandInBotApi(token=TOKEN, clock=self.clock, now=lambda: 1_793_000_000.5)
        self.treq: Any = StubTreq(self.api.resource())

    def start(self, method: str, token: str = TOKEN, **arguments: Any) -> Deferred[Any]:
        posted: Deferred[Any] = self.treq.post(f"http://stand-in/bot{token}/{method}", json=arguments)
        return posted

    def answer(self, response: Any) -> Any:
        return json.loads(self.successResultOf(self.treq.content(response)))

    def call(self, method: str, token: str = TOKEN, **arguments: Any) -> tuple[int, Any]:
        response = self.successResultOf(self.start(method, token, **arguments))
        return response.code, self.answer(response)

    def updates(self, **arguments: Any) -> list[Any]:
        code, envelope = self.call("getUpdates", **arguments)
        self.assertEqual((code, envelope["ok"]), (200, True))
        return list(envelope["result"])

    def settled(self, poll: Deferred[Any]) -> tuple[int, Any]:
        self.treq.flush()
        response = self.successResultOf(poll)
        return response.code, self.answer(response)


class TokenTests(StandInTests):
    def test_who_the_bot_is(self) -> None:
        code, envelope = self.call("getMe")
        self.assertEqual(code, 200)
        self.assertEqual(envelope["result"]["id"], 123456789)
        self.assertEqual(envelope["result"]["username"], "demo_bot")
        self.assertIs(envelope["result"]["can_read_all_group_messages"], False)

    def test_refusals(self) -> None:
        for token, method, code, text in (
            ("123456789:" + "B" * 35, "getMe", 401, "Unauthorized"),
            ("nonsense", "getMe", 404, "Not Found"),
            (TOKEN, "getNothing", 404, "Not Found: method not found"),
        ):
            self.assertEqual(
                self.call(method, token), (code, {"ok": False, "error_code": code, "description": text})
            )

    def test_another_path(self) -> None:
        response = self.successResultOf(self.treq.get("http://stand-in/elsewhere/entirely"))
        self.assertEqual(response.code, 404)

    def test_every_road_for_arguments(self) -> None:
        self.api.receive(ADA, "hello")
        url = f"http://stand-in/bot{TOKEN}/SENDmessage"
        for given in (
            {"params": {"chat_id": "1001", "text": "é"}},
            {"data": {"chat_id": "1001", "text": "é"}},
            {"json": {"chat_id": 1001, "text": "é"}},
            {"json": {"chat_id": "1001", "text": "é"}},
        ):
            response = self.successResultOf(self.treq.post(url, **given))
            self.assertEqual(self.answer(response)["result"]["text"], "é")

    def test_a_body_that_is_no_object(self) -> None:
        as_json = {"Content-Type": "application/json"}
        for body in (b"[]", b"{", b"\xff"):
            response = self.successResultOf(
                self.treq.post(f"http://stand-in/bot{TOKEN}/getMe", data=body, headers=as_json)
            )
            self.assertEqual(response.code, 400)


class PollTests(StandInTests):
    def test_a_message_as_telegram_describes_it(self) -> None:
        received = self.api.receive(ADA, "é😀")
        assert received is not None
        self.assertEqual(
            received.message,
            b'{"message_id":1,"from":{"id":1001,"is_bot":false,"first_name":"Ada","username":"ada",'
            b'"language_code":"en"},"chat":{"id":1001,"first_name":"Ada","username":"ada","type":"private"},'
            b'"date":1793000000,"text":"\\u00e9\\ud83d\\ude00"}',
        )
        (update,) = self.updates(timeout=30)
        self.assertEqual(update, {"update_id": received.update_id, "message": json.loads(received.message)})

    def test_the_limit_is_clamped(self) -> None:
        for number in range(120):
            self.api.receive(ADA, str(number))
        for limit, count in ((0, 1), (-5, 1), ("x", 1), (7, 7), (100, 100), (1000, 100)):
            self.assertEqual(len(self.updates(limit=limit)), count)
        self.assertEqual(len(self.updates()), 100)

    def test_a_poll_is_held_until_news(self) -> None:
        poll = self.start("getUpdates", timeout=30)
        self.assertNoResult(poll)
        self.assertTrue(self.api.is_polled)
        self.api.receive(ADA, "hello")
        self.assertEqual(self.settled(poll)[1]["result"][0]["message"]["text"], "hello")
        self.assertFalse(self.api.is_polled)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_poll_is_held_no_longer_than_asked(self) -> None:
        poll = self.start("getUpdates", timeout=30)
        self.clock.advance(29.9)
        self.treq.flush()
        self.assertNoResult(poll)
        self.clock.advance(0.1)
        self.assertEqual(self.settled(poll), (200, {"ok": True, "result": []}))

    def test_news_below_the_offset_keeps_the_poll(self) -> None:
        first = self.api.receive(ADA, "one")
        assert first is not None
        self.updates(offset=first.update_id + 1)
        poll = self.start("getUpdates", timeout=30, offset=first.update_id + 3)
        self.api.receive(ADA, "swallowed")
        self.treq.flush()
        self.assertNoResult(poll)

    def test_a_client_that_leaves_takes_its_poll_along(self) -> None:
        poll = self.start("getUpdates", timeout=30)
        poll.cancel()
        self.failureResultOf(poll)
        self.treq.flush()
        self.assertFalse(self.api.is_polled)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_what_was_not_asked_for_is_not_made(self) -> None:
        self.assertEqual(self.updates(allowed_updates=["message"]), [])
        self.assertIsNone(self.api.receive_raw("edited_message", b"{}"))
        self.assertIsNotNone(self.api.receive_raw("message", b"{}"))

    def test_the_last_choice_stays_until_the_next(self) -> None:
        self.updates(allowed_updates='["callback_query"]')
        self.updates()
        self.assertIsNone(self.api.receive(ADA, "lost"))
        self.updates(allowed_updates=[])
        self.assertIsNotNone(self.api.receive_raw("edited_message", b"{}"))
        self.assertIsNone(self.api.receive_raw("message_reaction", b"{}"))

    def test_an_earlier_choice_still_arrives(self) -> None:
        self.api.receive_raw("edited_message", b"{}")
        self.assertEqual(len(self.updates(allowed_updates=["message"])), 1)


class ConflictTests(StandInTests):
    def test_the_older_poll_is_ended(self) -> None:
        older = self.start("getUpdates", timeout=30)
        newer = self.start("getUpdates", timeout=30)
        code, envelope = self.settled(older)
        self.assertEqual(code, 409)
        self.assertEqual(
            envelope["description"],
            "Conflict: terminated by other getUpdates request; "
            "make sure that only one bot instance is running",
        )
        self.assertNoResult(newer)
        self.assertTrue(self.api.is_polled)

    def test_a_short_poll_ends_nobodys(self) -> None:
        poll = self.start("getUpdates", timeout=30)
        self.updates(timeout=0)
        self.treq.flush()
        self.assertNoResult(poll)

    def test_a_second_conflict_is_answered_late(self) -> None:
        first, second, third = (self.start("getUpdates", timeout=30) for _ in range(3))
        self.assertEqual(self.settled(first)[0], 409)
        self.treq.flush()
        self.assertNoResult(second)
        self.clock.advance(3)
        self.assertEqual(self.settled(second)[0], 409)
        self.assertNoResult(third)
        self.clock.advance(0.1)
        self.start("getUpdates", timeout=30)
        self.assertEqual(self.settled(third)[0], 409)

    def test_a_webhook_excludes_polling(self) -> None:
        poll = self.start("getUpdates", timeout=30)
        self.assertEqual(
            self.call("setWebhook", url="https://example.org/x")[1]["description"], "Webhook was set"
        )
        self.assertEqual(self.settled(poll)[1]["description"], "Conflict: terminated by setWebhook request")
        self.clock.advance(3)
        code, envelope = self.call("getUpdates")
        self.assertEqual(code, 409)
        self.assertIn("use deleteWebhook to delete the webhook first", envelope["description"])
        late = self.start("getUpdates")
        self.assertNoResult(late)
        self.clock.advance(3)
        self.assertEqual(self.settled(late)[0], 409)

    def test_webhook_texts(self) -> None:
        url = "https://example.org/x"
        self.assertEqual(self.call("getWebhookInfo")[1]["result"]["url"], "")
        self.assertEqual(self.call("deleteWebhook")[1]["description"], "Webhook is already deleted")
        self.assertEqual(self.call("setWebhook", url="http://example.org")[0], 400)
        self.call("setWebhook", url=url)
        self.assertEqual(self.call("setWebhook", url=url)[1]["description"], "Webhook is already set")
        self.api.receive(ADA, "waits")
        self.assertEqual(
            self.call("getWebhookInfo")[1]["result"],
            {"url": url, "has_custom_certificate": False, "pending_update_count": 1},
        )
        self.call("setWebhook", url=url, allowed_updates=["callback_query"], drop_pending_updates=True)
        self.assertIsNone(self.api.receive(ADA, "unwanted"))
        self.assertEqual(self.call("getWebhookInfo")[1]["result"]["pending_update_count"], 0)
        self.assertEqual(
            self.call("setWebhook", url="", drop_pending_updates="true")[1]["description"],
            "Webhook was deleted",
        )
        self.assertEqual(self.updates(), [])

    def test_somebody_writes_by_hand(self) -> None:
        said = self.treq.post("http://stand-in/say", data={"text": "hello"})
        self.assertEqual(self.successResultOf(said).code, 400)
        self.api.receive(ADA, "first")
        said = self.treq.post("http://stand-in/say", data={"text": "hello"})
        self.assertEqual(self.successResultOf(said).code, 200)
        self.assertEqual([update["message"]["text"] for update in self.updates()], ["first", "hello"])


class SendTests(StandInTests):
    def setUp(self) -> None:
        super().setUp()
        self.api.receive(ADA, "hello")

    def refusal(self, **arguments: Any) -> Any:
        code, envelope = self.call("sendMessage", **arguments)
        self.assertEqual(code, envelope["error_code"])
        self.assertIs(envelope["ok"], False)
        return envelope["description"]

    def test_a_sent_message(self) -> None:
        code, envelope = self.call("sendMessage", chat_id=1001, text=" hi\r\n<b>\x01 ")
        self.assertEqual(code, 200)
        result = envelope["result"]
        self.assertEqual(result["text"], "hi\n<b>")
        self.assertEqual(result["chat"]["id"], 1001)
        self.assertEqual(result["from"]["username"], "demo_bot")
        sent = self.successResultOf(self.api.next_sent())
        self.assertEqual((sent.chat_id, sent.text), (1001, "hi\n<b>"))
        self.assertEqual(json.loads(sent.envelope), envelope)

    def test_4096_code_points(self) -> None:
        self.assertEqual(self.call("sendMessage", chat_id=1001, text="😀" * 4096)[0], 200)
        self.assertEqual(self.refusal(chat_id=1001, text="😀" * 4097), "Bad Request: message is too long")

    def test_refused_texts(self) -> None:
        for text, words in (
            ("", "message text is empty"),
            (" \r", "text must be non-empty"),
            ("\ud800", "strings must be encoded in UTF-8"),
        ):
            self.assertEqual(self.refusal(chat_id=1001, text=text), f"Bad Request: {words}")

    def test_refused_chats(self) -> None:
        self.assertEqual(self.refusal(text="x"), "Bad Request: chat_id is empty")
        for chat_id in (5, "@ada", "x"):
            self.assertEqual(self.refusal(chat_id=chat_id, text="x"), "Bad Request: chat not found")
        self.api.conversations.blocked.add(1001)
        self.assertEqual(self.refusal(chat_id=1001, text="x"), "Forbidden: bot was blocked by the user")

    def test_a_group_that_moved(self) -> None:
        self.api.receive(GROUP, "hello")
        self.api.move(GROUP, -1002471352452)
        code, envelope = self.call("sendMessage", chat_id=GROUP.id, text="x")
        self.assertEqual((code, envelope["parameters"]), (400, {"migrate_to_chat_id": -1002471352452}))
        self.assertEqual(self.call("sendMessage", chat_id=-1002471352452, text="x")[0], 200)
        before, after = (update["message"] for update in self.updates()[-2:])
        self.assertEqual((before["chat"]["type"], before["migrate_to_chat_id"]), ("group", -1002471352452))
        self.assertEqual((after["chat"]["type"], after["migrate_from_chat_id"]), ("supergroup", GROUP.id))


class FaultTests(StandInTests):
    def test_a_rate_limit_says_it_twice(self) -> None:
        self.api.script("sendMessage", replies.too_many_requests(7))
        response = self.successResultOf(self.start("sendMessage"))
        self.assertEqual(response.code, 429)
        self.assertEqual(response.headers.getRawHeaders("Retry-After"), ["7"])
        self.assertEqual(self.answer(response)["parameters"], {"retry_after": 7})
        self.assertEqual(self.call("sendMessage")[1]["description"], "Bad Request: chat_id is empty")

    def test_answers_that_are_none(self) -> None:
        for fault, status, body in (
            (replies.bad_gateway(), 502, b"<html>"),
            (replies.no_result(), 200, b'{"ok":true}'),
            (replies.truncated(), 200, b'"mess'),
            (replies.restarting(), 500, b"restart"),
        ):
            self.api.script("getMe", fault)
            response = self.successResultOf(self.start("getMe"))
            self.assertEqual(response.code, status)
            self.assertIn(body, self.successResultOf(self.treq.content(response)))

    def test_a_body_that_breaks_off(self) -> None:
        self.api.script("getMe", replies.broken_off())
        response = self.successResultOf(self.start("getMe"))
        reading = self.treq.content(response)
        self.treq.flush()
        self.failureResultOf(reading, ResponseFailed)

    def test_a_body_that_stalls(self) -> None:
        self.api.script("getMe", replies.stalled())
        response = self.successResultOf(self.start("getMe"))
        reading = self.treq.content(response)
        self.treq.flush()
        self.assertNoResult(reading)

    def test_silence(self) -> None:
        self.api.script("getMe", replies.silence())
        waiting = self.start("getMe")
        self.treq.flush()
        self.assertNoResult(waiting)
        waiting.cancel()
        self.failureResultOf(waiting)
