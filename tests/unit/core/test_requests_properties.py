"""Request bodies, whatever their spelling: read as they were meant, or refused in our own words."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.jsontext import NotJson, read_object, skip_space
from telegrammer.core.problems import InvalidRequest
from telegrammer.core.requests import INT64_MAX, INT64_MIN, TEXT_LIMIT, SendText, parse_send, parse_subscribe

texts = st.text(min_size=1, max_size=60)
chances = st.randoms(use_true_random=False)
chat_ids = st.integers(INT64_MIN, INT64_MAX).filter(bool)
SHORT = {
    "\n": "\\n",
    "\t": "\\t",
    '"': '\\"',
    "\\": "\\\\",
    "/": "\\/",
    "\b": "\\b",
    "\f": "\\f",
    "\r": "\\r",
}
EDGES = st.sampled_from(
    [0, 1, -1, 2**31, 2**53, 2**53 + 1, INT64_MAX, INT64_MAX + 1, INT64_MIN, INT64_MIN - 1, 10**20]
)


def spelled_string(chance: Random, text: str) -> str:
    """A JSON string that means ``text``: each character as it is, by its short escape, or by its number."""
    pieces = []
    for character in text:
        units = character.encode("utf-16-be")
        numbers = "".join(f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2))
        ways = [numbers, SHORT.get(character, numbers)]
        if character >= " " and character not in '"\\':
            ways.append(character)
        pieces.append(chance.choice(ways))
    return '"' + "".join(pieces) + '"'


def spelled_object(chance: Random, members: dict[str, object]) -> bytes:
    """A JSON object with these members, in any order, spelling and white space."""
    parts = []
    for name, value in chance.sample(list(members.items()), len(members)):
        spelled = spelled_string(chance, value) if isinstance(value, str) else str(value)
        parts.append(spelled_string(chance, name) + space(chance) + ":" + space(chance) + spelled)
    commas = f"{space(chance)},{space(chance)}".join(parts)
    return f"{space(chance)}{{{space(chance)}{commas}{space(chance)}}}{space(chance)}".encode()


def space(chance: Random) -> str:
    return "".join(chance.choices(" \t\r\n", k=chance.choice((0, 0, 1, 2))))


def refusal(body: bytes, parse: Callable[[bytes], object] = parse_send) -> InvalidRequest | None:
    """Why it is refused; None when it is not."""
    try:
        parse(body)
    except InvalidRequest as problem:
        return problem
    return None


def read_elsewhere(body: bytes) -> dict[str, object] | None:
    """The members by the scanner that reads Telegram's answers; None for what is no JSON object to it."""
    try:
        text = body.decode()
        members, end = read_object(text, skip_space(text, 0))
        return members if skip_space(text, end) == len(text) else None
    except (NotJson, UnicodeDecodeError):
        return None


SPLINTERS = (
    *(b'"', b"\\", b"{", b"}", b"[", b",", b":", b"NaN", b"\\ud83d", b"\\u0000", b"\xef\xbb\xbf", b"e9"),
    *(b"\xed\xa0\x80", b'"text":', b"\x00", b"\n", b".0", b"-", b"0", b"true", b"null", b"/*"),
)


class SpellingTests(SynchronousTestCase):
    @given(chances, chat_ids, texts)
    def test_every_spelling_of_a_send_means_the_same(self, chance: Random, chat_id: int, text: str) -> None:
        body = spelled_object(chance, {"chat_id": chat_id, "text": text})
        self.assertEqual(parse_send(body), SendText(chat_id, None, text))

    @given(chances, st.from_regex(r"@?[A-Za-z0-9_]{1,64}", fullmatch=True), texts)
    def test_every_spelling_of_a_username_means_the_same(
        self, chance: Random, username: str, text: str
    ) -> None:
        body = spelled_object(chance, {"username": username, "text": text})
        self.assertEqual(parse_send(body), SendText(None, username.removeprefix("@").lower(), text))

    @given(chances, chat_ids)
    def test_every_spelling_of_a_subscription_means_the_same(self, chance: Random, chat_id: int) -> None:
        body = spelled_object(chance, {"chat_id": chat_id, "callback_url": "http://h/a?b=%41"})
        wanted = parse_subscribe(body)
        self.assertEqual((wanted.chat_id, wanted.callback_url), (chat_id, "http://h/a?b=%41"))

    @given(chances, st.sampled_from(["chat_id", "text"]))
    def test_a_name_given_twice_is_named(self, chance: Random, name: str) -> None:
        first = spelled_object(chance, {"chat_id": 5, "text": "x"}).strip()
        value = {"chat_id": "5", "text": '"x"'}[name]
        again = spelled_string(chance, name)
        problem = refusal(first[:-1] + f",{again}:{value}}}".encode())
        assert problem is not None
        self.assertEqual(problem.field, name)


class BoundTests(SynchronousTestCase):
    @given(st.integers() | EDGES | st.integers(-(10**40), 10**40))
    def test_a_chat_id_is_any_integer_of_64_bits_but_zero(self, chat_id: int) -> None:
        problem = refusal(b'{"chat_id":%d,"text":"x"}' % chat_id)
        self.assertEqual(problem is None, chat_id != 0 and INT64_MIN <= chat_id <= INT64_MAX)
        if problem is not None:
            self.assertEqual(problem.field, "chat_id")

    @given(st.from_regex(r"[-+]?[0-9]{0,25}(\.[0-9]{0,3})?([eE][-+]?[0-9]{0,3})?", fullmatch=True))
    @example("-0")
    @example("-")
    @example("1e400")
    @example("9" * 30_000)
    def test_a_number_is_taken_in_one_spelling_only(self, number: str) -> None:
        """Nothing else may reach Telegram as an integer: not 1.0, not 1e3, not 007."""
        body = b'{"chat_id":%b,"text":"x"}' % number.encode()
        if refusal(body) is None:
            self.assertEqual(str(parse_send(body).chat_id), number)

    @given(st.integers(0, 2 * TEXT_LIMIT), st.sampled_from(["x", "é", "€", "😀", "\u0301"]))
    @example(TEXT_LIMIT, "😀")
    @example(TEXT_LIMIT + 1, "x")
    def test_a_text_is_measured_in_code_points(self, length: int, character: str) -> None:
        problem = refusal(json.dumps({"chat_id": 5, "text": character * length}, ensure_ascii=False).encode())
        self.assertEqual(problem is None, 1 <= length <= TEXT_LIMIT)
        if problem is not None:
            self.assertEqual(problem.field, "text")
            self.assertIn(str(length), problem.message)
            self.assertIn(str(TEXT_LIMIT), problem.message)

    @given(
        st.integers(0xD800, 0xDFFF),
        st.text(max_size=3),
        st.sampled_from(["chat_id", "text", "username", "x"]),
    )
    def test_half_a_surrogate_pair_is_refused_wherever_it_stands(
        self, half: int, around: str, name: str
    ) -> None:
        alone = json.dumps(around)[:-1] + f'x\\u{half:04x}"'
        named = {"chat_id": "5", "text": '"x"', name: alone}
        for members in (named, {alone: "1"} | named):
            body = ",".join(f'"{name}":{value}' for name, value in members.items()).replace('""', '"')
            self.assertIsNotNone(refusal(f"{{{body}}}".encode()))


class HostileTests(SynchronousTestCase):
    @given(
        chances,
        chat_ids,
        texts,
        st.lists(
            st.tuples(
                st.integers(0, 80),
                st.integers(0, 4),
                st.binary(max_size=4) | st.sampled_from(SPLINTERS),
            ),
            min_size=1,
            max_size=4,
        ),
    )
    def test_a_garbled_body_is_refused_or_means_what_it_says(
        self, chance: Random, chat_id: int, text: str, edits: list[tuple[int, int, bytes]]
    ) -> None:
        """A second reader of another make agrees on what is taken."""
        body = bytearray(spelled_object(chance, {"chat_id": chat_id, "text": text}))
        for at, length, new in edits:
            body[at : at + length] = new
        try:
            sent = parse_send(bytes(body))
        except InvalidRequest as problem:
            (problem.message + (problem.field or "")).encode()
            self.assertLess(len(problem.message), 400)
            return
        members = read_elsewhere(bytes(body))
        assert members is not None, bytes(body)
        self.assertEqual(members.get("chat_id"), sent.chat_id)
        self.assertEqual(members["text"], sent.text)
        sent.text.encode()

    @given(st.integers(1, 60_000), st.sampled_from(["[", '{"a":', '[{"text":', '{"text":[']))
    @example(60_000, "[")
    def test_depth_is_refused_or_read(self, depth: int, opening: str) -> None:
        self.assertIsNotNone(refusal((opening * depth)[:65_536].encode()))
        self.assertIsNotNone(refusal(('{"chat_id":5,"text":' + opening * depth)[:65_536].encode()))
