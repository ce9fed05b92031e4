"""Request bodies (contract 2, 2.1, 2.2)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import InvalidRequest
from telegrammer.core.requests import (
    INT64_MAX,
    INT64_MIN,
    SendText,
    Subscribe,
    parse_id,
    parse_send,
    parse_subscribe,
)


class RequestCase(SynchronousTestCase):
    def refusal(self, body: bytes, parse: Callable[[bytes], object] = parse_send) -> InvalidRequest:
        problem: InvalidRequest = self.assertRaises(InvalidRequest, parse, body)
        return problem


class SendTests(RequestCase):
    def test_to_a_chat(self) -> None:
        self.assertEqual(parse_send(b'{"chat_id":-100123,"text":"Hello"}'), SendText(-100123, None, "Hello"))

    def test_to_a_username(self) -> None:
        self.assertEqual(parse_send(b'{"username":"@Ann_1","text":"x"}'), SendText(None, "ann_1", "x"))

    def test_chat_ids_at_the_ends_of_their_range(self) -> None:
        for chat_id in (INT64_MIN, INT64_MAX, 1, -1):
            self.assertEqual(parse_send(b'{"chat_id":%d,"text":"x"}' % chat_id).chat_id, chat_id)

    @pytest.mark.report("aleph-im/pyaleph#476")
    def test_refused_chat_ids(self) -> None:
        for spelled in (
            *("9223372036854775808", "18446744073709551615", "-9223372036854775809", "1" * 5000),
            *("0", "-0", "1.0", "1e3", "1E400", "-1E400", "true", "false", "null"),
            *('"1"', "[1]", "{}", "1." + "0" * 5000),
        ):
            with self.subTest(spelled[:30]):
                self.assertEqual(
                    self.refusal(f'{{"chat_id":{spelled},"text":"x"}}'.encode()).field, "chat_id"
                )

    def test_a_refusal_says_what_was_found_instead(self) -> None:
        for spelled, kind in (
            ("null", "null"),
            ("true", "boolean"),
            ("1.5", "fraction"),
            ('"1"', "string"),
            ("[]", "array"),
            ("{}", "object"),
        ):
            self.assertIn(kind, self.refusal(f'{{"chat_id":{spelled},"text":"x"}}'.encode()).message)
        self.assertIn("integer", self.refusal(b'{"chat_id":1,"text":5}').message)

    @pytest.mark.report("E7")
    @pytest.mark.report("FerroxLabs/wayland#934")
    def test_text_is_measured_in_code_points(self) -> None:
        for text in ("\U0001f600" * 4096, "e\u0301" * 2048, "\r\n" * 2048, "\0", " ", "\u200b"):
            body = json.dumps({"chat_id": 1, "text": text}).encode()
            self.assertEqual(parse_send(body).text, text)
            self.assertEqual(
                parse_send(json.dumps({"chat_id": 1, "text": text}, ensure_ascii=False).encode()).text, text
            )

    @pytest.mark.report("E7")
    @pytest.mark.report("muety/telepush#66")
    def test_text_of_a_wrong_length(self) -> None:
        for text in ("", "a" * 4097, "\U0001f600" * 4097, "\r\n" * 2048 + "a"):
            problem = self.refusal(json.dumps({"chat_id": 1, "text": text}).encode())
            self.assertEqual(problem.field, "text")
            self.assertIn("4096", problem.message)
            self.assertIn(str(len(text)), problem.message)

    def test_text_of_a_wrong_kind(self) -> None:
        for spelled in ("null", "1", "true", '["x"]', '{"x":"y"}', "[" * 40 + "]" * 40):
            self.assertEqual(self.refusal(f'{{"chat_id":1,"text":{spelled}}}'.encode()).field, "text")

    def test_exactly_one_destination(self) -> None:
        self.assertEqual(self.refusal(b'{"chat_id":1,"username":"a","text":"x"}').field, "username")
        self.assertEqual(self.refusal(b'{"chat_id":null,"username":"a","text":"x"}').field, "username")
        self.assertEqual(self.refusal(b'{"text":"x"}').field, "chat_id")

    def test_what_is_missing_is_named(self) -> None:
        self.assertEqual(self.refusal(b'{"chat_id":1}').field, "text")

    @pytest.mark.report("caronc/apprise-api#167")
    def test_unknown_fields_are_named(self) -> None:
        self.assertEqual(self.refusal(b'{"chat_id":1,"text":"x","parse_mode":"HTML"}').field, "parse_mode")
        self.assertEqual(self.refusal(b'{"chat_id":1,"text":"x","Text":"y"}').field, "Text")

    def test_the_name_of_an_unknown_field_is_cut(self) -> None:
        field = self.refusal(b'{"%s":1}' % (b"x" * 60_000)).field
        assert field is not None
        self.assertEqual((len(field), field[-1]), (64, "…"))

    def test_usernames_of_a_wrong_kind(self) -> None:
        for spelled in ("5", "null", '"@"', '"a b"'):
            self.assertEqual(self.refusal(f'{{"username":{spelled},"text":"x"}}'.encode()).field, "username")

    def test_the_text_is_in_no_repr(self) -> None:
        self.assertNotIn("secret", repr(parse_send(b'{"chat_id":1,"text":"secret"}')))


class StrictJsonTests(RequestCase):
    def test_white_space_around_and_escapes(self) -> None:
        body = b' \t\r\n{ "chat_id" : 1 , "te\\u0078t" : "\\ud83d\\ude00\\n" } \n'
        self.assertEqual(parse_send(body), SendText(1, None, "\U0001f600\n"))

    def test_what_is_no_json_object(self) -> None:
        for body in (
            *(b"", b" ", b"null", b"true", b"[]", b'"x"', b"1", b"{", b"{}x", b"{'chat_id':1}", b'"\\ud83d"'),
            *(b'{"chat_id":1,"text":"x",}', b'{"chat_id":01,"text":"x"}', b'{"chat_id":+1,"text":"x"}'),
            *(b'{"chat_id":1,"text":"x"}{}', b'{"chat_id":1,"text":"a\nb"}', b'{"chat_id":1,"text":"\\x41"}'),
            *(b'{"chat_id":1/**/,"text":"x"}', b'{"chat_id":0x1,"text":"x"}', b'{"chat_id":1_0,"text":"x"}'),
        ):
            with self.subTest(body):
                self.refusal(body)

    def test_what_is_not_utf8(self) -> None:
        for text in (b"\xff", b"\xc0\xaf", b"\xed\xa0\xbd", b"\xf4\x90\x80\x80", b"caf\xe9"):
            self.assertIn("UTF-8", self.refusal(b'{"chat_id":1,"text":"' + text + b'"}').message)
        self.refusal('{"chat_id":1,"text":"x"}'.encode("utf-16"))

    def test_a_byte_order_mark(self) -> None:
        self.assertIn("byte order mark", self.refusal(b'\xef\xbb\xbf{"chat_id":1,"text":"x"}').message)

    def test_constants_that_are_not_json(self) -> None:
        for name in ("NaN", "Infinity", "-Infinity"):
            self.assertIn(name, self.refusal(f'{{"chat_id":{name},"text":"x"}}'.encode()).message)

    def test_a_repeated_field_at_any_depth(self) -> None:
        self.assertEqual(self.refusal(b'{"chat_id":1,"text":"x","chat_id":1}').field, "chat_id")
        self.assertEqual(self.refusal(b'{"chat_id":1,"text":"x","t\\u0065xt":"y"}').field, "text")
        self.assertEqual(self.refusal(b'{"chat_id":1,"text":{"a":[{"b":1,"b":2}]}}').field, "b")

    @pytest.mark.report("python-telegram-bot/python-telegram-bot#3458")
    def test_a_half_surrogate_anywhere(self) -> None:
        for body in (
            b'{"chat_id":1,"text":"\\ud83d"}',
            b'{"chat_id":1,"text":"a\\ude00b"}',
            b'{"chat_id":1,"text":"\\ude00\\ud83d"}',
            b'{"chat_id":1,"text":"x","\\ud83d":1}',
            b'{"chat_id":1,"text":["\\ud83d"]}',
            b'{"chat_id":1,"text":{"\\udc00":1}}',
            b'{"username":"\\ud83d","text":"x"}',
        ):
            problem = self.refusal(body)
            (problem.message + (problem.field or "")).encode("utf-8")

    @pytest.mark.report("flop-labs/technocore-chat#130")
    def test_nesting_that_would_exhaust_the_stack(self) -> None:
        for nested in (
            b"[" * 20_000 + b"]" * 20_000,
            b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
            b"[" * 60_000,
        ):
            self.refusal(nested)
            self.refusal(b'{"chat_id":1,"text":' + nested + b"}")

    def test_many_names_cost_no_more_than_their_number(self) -> None:
        # Quadratic work on 64 KiB of short names would hold the reactor for a second.
        names = b",".join(b'"%d":1' % number for number in range(6000))
        self.assertEqual(self.refusal(b"{" + names + b',"5999":1}').field, "5999")

    @given(st.binary(max_size=200))
    def test_bytes_are_refused_or_read_but_never_crash(self, body: bytes) -> None:
        for parse in (parse_send, parse_subscribe):
            try:
                parse(body)
            except InvalidRequest as problem:
                (problem.message + (problem.field or "")).encode("utf-8")

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ),
        st.sampled_from(["chat_id", "username", "text"]),
    )
    @example(float("inf"), "chat_id")
    def test_any_json_value_in_any_field(self, value: object, name: str) -> None:
        try:
            sent = parse_send(json.dumps({"chat_id": 1, "text": "x", name: value}).encode())
        except InvalidRequest:
            return
        self.assertIn(name, ("chat_id", "text"))
        self.assertEqual(getattr(sent, name), value)
        self.assertIs(type(getattr(sent, name)), type(value))


class SubscribeTests(RequestCase):
    def test_the_url_comes_out_canonical(self) -> None:
        body = b'{"chat_id":5,"callback_url":"HTTP://Receiver:80?k=v"}'
        self.assertEqual(parse_subscribe(body), Subscribe(5, "http://receiver/?k=v"))

    def test_exactly_these_fields(self) -> None:
        self.assertEqual(self.refusal(b'{"chat_id":5}', parse_subscribe).field, "callback_url")
        self.assertEqual(self.refusal(b'{"callback_url":"http://h/"}', parse_subscribe).field, "chat_id")
        body = b'{"chat_id":5,"callback_url":"http://h/","text":"x"}'
        self.assertEqual(self.refusal(body, parse_subscribe).field, "text")

    def test_a_bad_url_is_the_fault_of_its_field(self) -> None:
        for spelled in (b"null", b"5", b'"ftp://h/"', b'"\\ud83d"'):
            body = b'{"chat_id":5,"callback_url":' + spelled + b"}"
            self.assertEqual(self.refusal(body, parse_subscribe).field, "callback_url")

    def test_the_url_is_in_no_repr(self) -> None:
        body = b'{"chat_id":5,"callback_url":"http://h/?secret"}'
        self.assertNotIn("secret", repr(parse_subscribe(body)))


class IdTests(SynchronousTestCase):
    def test_the_one_spelling_of_an_id(self) -> None:
        self.assertEqual(parse_id("17"), 17)
        self.assertEqual(parse_id(str(INT64_MAX)), INT64_MAX)

    @pytest.mark.report("MemPalace/mempalace#2556")
    def test_what_no_subscription_can_have(self) -> None:
        for text in (
            "",
            "0",
            "017",
            "-1",
            "+1",
            " 1",
            "1 ",
            "1\n",
            "1.0",
            "1_0",
            "١",
            "x",
            str(INT64_MAX + 1),
            "9" * 5000,
        ):
            self.assertIsNone(parse_id(text), text[:20])
