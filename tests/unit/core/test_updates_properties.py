"""
Telegram's answers beside a model of what the contract asks of them, read by the standard library.

The model knows no positions; so the JSON text of a message is compared by its meaning there, and byte for
byte where the answer is put together here.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.envelope import identity_outcome, sent_outcome, webhook_outcome
from telegrammer.core.telegram import (
    BadCredentials,
    Batch,
    Conflict,
    Identity,
    Malformed,
    Message,
    Misbehaved,
    RateLimited,
    Rejected,
    Sent,
    Update,
    UpstreamFailure,
    WebhookInfo,
)
from telegrammer.core.updates import poll_outcome

DAY = 86_400
odd: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, -1, 1.0, 1.5, "1", "", [], {}, 2**63, -(2**63) - 1, 10**30, 1e300]
)
ids = st.integers(-(2**64), 2**64) | st.integers(-5, 5)
chats = st.fixed_dictionaries(
    {},
    optional={
        "id": ids | odd,
        "type": st.sampled_from(["private", "group", "supergroup", "channel", ""]) | odd,
        "username": st.sampled_from(["Some_User", "x" * 64, "x" * 65, "é", "a b"]) | odd,
        "title": st.text(max_size=5),
    },
)
contents = st.fixed_dictionaries(
    {},
    optional={
        "chat": chats | odd,
        "text": st.text(max_size=8) | st.just("\ud83d"),
        "migrate_to_chat_id": ids | odd,
        "migrate_from_chat_id": ids | odd,
        "entities": st.recursive(st.none(), st.lists, max_leaves=5),
    },
)
elements = (
    st.fixed_dictionaries(
        {},
        optional={
            "update_id": st.integers(-5, 2**64) | odd,
            "message": contents | odd,
            "edited_message": contents,
            "poll": odd,
        },
    )
    | odd
)
envelopes = st.fixed_dictionaries(
    {},
    optional={
        "ok": st.booleans() | odd,
        "result": st.lists(elements, max_size=4) | contents | odd,
        "error_code": st.sampled_from([400, 401, 403, 404, 409, 421, 429, 500, 200]) | odd,
        "description": st.sampled_from(["Conflict: webhook is active", "Bad Request", "\x1b[31m\n"]) | odd,
        "parameters": st.fixed_dictionaries(
            {}, optional={"retry_after": st.integers(-5, 10**6) | odd, "migrate_to_chat_id": ids | odd}
        )
        | odd,
    },
)
statuses = st.sampled_from([200, 201, 204, 302, 400, 401, 403, 404, 409, 421, 429, 500, 502, 599])
spellings = st.sampled_from([{}, {"ensure_ascii": False}, {"indent": 2}, {"separators": (",", ":")}])


def is_chat_id(value: object) -> bool:
    return type(value) is int and value != 0 and -(2**63) <= value < 2**63


def modelled(element: Any) -> tuple[int | None, str]:
    """The id of an element, and what becomes of it."""
    if not isinstance(element, dict):
        return None, "malformed"
    update_id = element.get("update_id")
    if type(update_id) is not int or not 0 <= update_id < 2**63:
        return None, "malformed"
    if "message" not in element:
        return update_id, "unsupported"
    message = element["message"]
    chat = message.get("chat") if isinstance(message, dict) else None
    if not isinstance(chat, dict) or not is_chat_id(chat.get("id")) or not isinstance(chat.get("type"), str):
        return update_id, "malformed"
    return update_id, "supported"


def spelled(document: object, spelling: dict[str, Any]) -> bytes:
    """As JSON; a lone surrogate has no bytes of its own, only its escape."""
    try:
        return json.dumps(document, **spelling).encode()
    except UnicodeEncodeError:
        return json.dumps(document).encode()


class PollTests(SynchronousTestCase):
    @settings(max_examples=150)
    @given(st.lists(elements, max_size=5), spellings)
    def test_elements_are_what_the_contract_says(self, batch: list[object], spelling: dict[str, Any]) -> None:
        texts = [spelled(element, spelling) for element in batch]
        outcome = poll_outcome(200, (), b' {"ok":true , "result": [ ' + b" , ".join(texts) + b"]}\n")
        assert isinstance(outcome, Batch)
        found: list[tuple[int | None, str]] = []
        for got, element in zip(outcome.elements, batch, strict=True):
            match got:
                case Update(update_id, Message() as message):
                    found.append((update_id, "supported"))
                    self._check_message(message, element)
                case Update(update_id, None):
                    found.append((update_id, "unsupported"))
                case Malformed(malformed_id, _):
                    found.append((malformed_id, "malformed"))
        self.assertEqual(found, [modelled(element) for element in batch])

    def _check_message(self, message: Message, element: Any) -> None:
        original = element["message"]
        self.assertEqual(json.loads(message.text), json.loads(json.dumps(original)))
        self.assertEqual(
            (message.chat_id, message.chat_type), (original["chat"]["id"], original["chat"]["type"])
        )
        for name in ("migrate_to_chat_id", "migrate_from_chat_id"):
            other = original.get(name)
            usable = is_chat_id(other) and other != message.chat_id
            self.assertEqual(getattr(message, name), other if usable else None)
        if message.username is not None:
            self.assertEqual(message.chat_type, "private")
            self.assertEqual(message.username, original["chat"]["username"].lower())

    @settings(max_examples=100)
    @given(st.lists(st.tuples(contents, spellings), min_size=1, max_size=4))
    def test_a_message_is_cut_out_byte_for_byte(
        self, written: list[tuple[dict[str, Any], dict[str, Any]]]
    ) -> None:
        texts = [
            spelled(content | {"chat": {"id": 7, "type": "group"}}, spelling) for content, spelling in written
        ]
        wrapped = [b'{"message" : %b,"update_id":%d}' % (text, number) for number, text in enumerate(texts)]
        outcome = poll_outcome(200, (), b'{"result":[%b],"ok":true}' % b",".join(wrapped))
        assert isinstance(outcome, Batch)
        cut = [each.message.text for each in outcome.elements if isinstance(each, Update) and each.message]
        self.assertEqual(cut, texts)

    @settings(max_examples=150)
    @given(statuses, envelopes, spellings, st.sampled_from([(), (b"7",), (b"0",), (b"x",), (b"7", b"8")]))
    def test_whatever_the_envelope(
        self, status: int, envelope: dict[str, Any], spelling: dict[str, Any], header: tuple[bytes, ...]
    ) -> None:
        """One of the known outcomes, within its bounds; a batch for nothing but a success with an array."""
        body = spelled(envelope, spelling)
        outcome = poll_outcome(status, header, body)
        fine = 200 <= status < 300 and envelope.get("ok") is True
        self.assertEqual(isinstance(outcome, Batch), fine and isinstance(envelope.get("result"), list))
        match outcome:
            case RateLimited(seconds):
                self.assertTrue(seconds is None or 1 <= seconds <= DAY)
            case BadCredentials(code):
                self.assertIn(code, (401, 404, 421))
            case UpstreamFailure(why):
                self.assertLess(len(why), 80)
            case other:
                self.assertIsInstance(other, Batch | Conflict)
        for answered in (identity_outcome(status, header, body), webhook_outcome(status, header, body)):
            if isinstance(answered, Identity | WebhookInfo):
                self.assertTrue(fine)

    @settings(max_examples=100)
    @given(
        elements.map(json.dumps),
        st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5), st.binary(max_size=3))),
    )
    def test_a_garbled_answer_is_an_outcome(self, element: str, edits: list[tuple[int, int, bytes]]) -> None:
        """And a batch only if it is JSON, to the standard library too."""
        body = bytearray(f'{{"ok":true,"result":[{element}]}}'.encode())
        for at, length, new in edits:
            body[at : at + length] = new
        if isinstance(poll_outcome(200, (), bytes(body)), Batch):
            json.loads(bytes(body).decode())


class SendTests(SynchronousTestCase):
    @settings(max_examples=150)
    @given(statuses, envelopes, spellings, st.sampled_from([(), (b"7",), (b"0",), (b"86401",), (b"7", b"8")]))
    @example(200, {"ok": True, "result": {}}, {}, ())
    @example(429, {}, {}, (b"7",))
    def test_the_table(
        self, status: int, envelope: dict[str, Any], spelling: dict[str, Any], header: tuple[bytes, ...]
    ) -> None:
        body = spelled(envelope, spelling)
        outcome = sent_outcome(status, header, body)
        ok = envelope.get("ok")
        is_envelope = isinstance(ok, bool)
        code = (
            envelope.get("error_code") if is_envelope and type(envelope.get("error_code")) is int else status
        )
        if 200 <= status < 300 and ok is True:
            expected: object = Sent(body) if isinstance(envelope.get("result"), dict) else Misbehaved()
            self.assertEqual(outcome, expected)
        elif ok is True:
            self.assertEqual(outcome, Misbehaved())
        elif code == 429:
            assert isinstance(outcome, RateLimited)
            self.assertTrue(outcome.retry_after is None or 1 <= outcome.retry_after <= DAY)
        elif code in (400, 403) and is_envelope:
            assert isinstance(outcome, Rejected)
            self.assertLessEqual(len(outcome.description or ""), 256)
            self.assertTrue((outcome.description or "").isprintable())
            self.assertTrue(outcome.migrate_to_chat_id is None or is_chat_id(outcome.migrate_to_chat_id))
        else:
            self.assertEqual(outcome, Misbehaved())
