"""Elements of getUpdates: what makes one malformed, and that nothing else does."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import MalformedUpdate
from telegrammer.core.telegram import Batch, Malformed, Message, RateLimited, Update, UpstreamFailure
from telegrammer.core.updates import poll_outcome, read_update, update_id_of

PRIVATE = b'{"id":7,"type":"private"}'


def body(*elements: bytes) -> bytes:
    return b'{"ok":true,"result":[' + b",".join(elements) + b"]}"


def element(message: bytes, update_id: bytes = b"5") -> bytes:
    return b'{"update_id":' + update_id + b',"message":' + message + b"}"


def batch(*elements: bytes) -> tuple[Update | Malformed, ...]:
    outcome = poll_outcome(200, (), body(*elements))
    assert isinstance(outcome, Batch), outcome
    return outcome.elements


def message_of(text: bytes) -> Message:
    (update,) = batch(element(text))
    assert isinstance(update, Update) and update.message is not None, update
    return update.message


def chat(members: str) -> bytes:
    return ('{"chat":{"id":7,"type":"private"' + members + "}}").encode()


class EnvelopeTests(SynchronousTestCase):
    def test_empty(self) -> None:
        self.assertEqual(batch(), ())
        self.assertEqual(poll_outcome(200, (), b' { "result" : [ ] , "ok" : true } '), Batch())

    def test_in_order_of_arrival(self) -> None:
        found = batch(b'{"update_id":3}', b'{"update_id":1,"edited_message":{"chat":5}}', b'{"update_id":3}')
        self.assertEqual(found, (Update(3), Update(1), Update(3)))

    def test_no_batches(self) -> None:
        for answer in (
            b"",
            b"[]",
            b"{",
            b'{"ok":true}',
            b'{"ok":true,"result":{}}',
            b'{"ok":true,"result":null}',
            b'{"ok":true,"result":[]',
            b'{"ok":true,"result":[{"update_id":1},]}',
            b'{"ok":true,"result":[{"update_id":1,"message":{"chat":' + PRIVATE + b"}",
            b'{"ok":1,"result":[]}',
            body(element(b'{"chat":' + PRIVATE + b',"text":"\xff"}')),
            body(element(b'{"chat":' + PRIVATE + b',"n":NaN}')),
            body(element(b'{"chat":' + PRIVATE + b"}"))[:-30],
        ):
            self.assertIsInstance(poll_outcome(200, (), answer), UpstreamFailure, answer)
        self.assertIsInstance(poll_outcome(500, (), body()), UpstreamFailure)

    def test_refusals(self) -> None:
        self.assertEqual(poll_outcome(429, (b"4",), b""), RateLimited(4))


class MalformedTests(SynchronousTestCase):
    @pytest.mark.report("E4")
    def test_the_id(self) -> None:
        for update_id in (
            "-1",
            "9223372036854775808",
            "1.0",
            "1e3",
            "true",
            "null",
            '"5"',
            "[1]",
            "1" * 5000,
        ):
            (found,) = batch(f'{{"update_id":{update_id}}}'.encode())
            self.assertIsInstance(found, Malformed, update_id)
            self.assertIsNone(found.update_id)
        for whole in (b"{}", b"[]", b"null", b"5", b'"x"'):
            self.assertEqual([type(found) for found in batch(whole)], [Malformed])

    def test_ids_at_the_edge(self) -> None:
        self.assertEqual(
            batch(b'{"update_id":0}', b'{"update_id":9223372036854775807}')[1], Update(2**63 - 1)
        )

    @pytest.mark.report("A6")
    def test_the_message(self) -> None:
        for message in (
            "null",
            "[]",
            "5",
            '"x"',
            "{}",
            '{"chat":null}',
            '{"chat":[]}',
            '{"chat":{}}',
            '{"chat":{"id":7}}',
            '{"chat":{"type":"private"}}',
            '{"chat":{"id":"7","type":"private"}}',
            '{"chat":{"id":0,"type":"private"}}',
            '{"chat":{"id":-0,"type":"private"}}',
            '{"chat":{"id":true,"type":"private"}}',
            '{"chat":{"id":7.0,"type":"private"}}',
            '{"chat":{"id":1e3,"type":"private"}}',
            '{"chat":{"id":9223372036854775808,"type":"private"}}',
            '{"chat":{"id":-9223372036854775809,"type":"private"}}',
            '{"chat":{"id":7,"type":null}}',
            '{"chat":{"id":7,"type":5}}',
            '{"chat":{"id":' + "1" * 5000 + ',"type":"private"}}',
            '{"chat":' + "[" * 20_000 + "]" * 20_000 + "}",
        ):
            (found,) = batch(element(message.encode()))
            self.assertIsInstance(found, Malformed, message)
            self.assertEqual(found.update_id, 5)

    def test_one_does_not_hide_the_others(self) -> None:
        found = batch(b'{"update_id":1}', element(b"null", b"2"), b'{"update_id":3}')
        self.assertEqual([type(each) for each in found], [Update, Malformed, Update])

    def test_nothing_of_the_payload_is_told(self) -> None:
        (found,) = batch(element(b'{"chat":{"id":"SECRET","type":"private"}}'))
        assert isinstance(found, Malformed)
        self.assertNotIn("SECRET", found.why)


class MessageTests(SynchronousTestCase):
    @pytest.mark.report("E2")
    def test_byte_for_byte(self) -> None:
        for text in (
            b'{"chat":{"id":-9223372036854775808,"type":"x"},"id":9007199254740993,"a":1.0,"b":1e3,"c":-0}',
            b'{ "chat" : {"id":7,"type":"private"} ,\r\n\t"t":"\\u00e9\\/\\ud83d\\ude00" }',
            '{"chat":{"id":7,"type":"private"},"text":"😀 é \\ud83d"}'.encode(),
            b'{"chat":{"id":7,"type":"private"},"text":"\xe2\x80\xa8\x7f"}',
            b'{"n":' + b"1" * 5000 + b',"chat":{"id":7,"type":"private"}}',
            b'{"n":' + b"[" * 20_000 + b"]" * 20_000 + b',"chat":{"id":7,"type":"private"}}',
            b'{"chat":{"id":7,"type":"private","photo":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001 + b"}",
            b'{"chat":{"id":7,"type":"\\ud83d"}}',
        ):
            self.assertEqual(message_of(text).text, text)

    def test_slice_and_meaning_agree_on_repeated_members(self) -> None:
        first, last = (
            b'{"chat":{"id":1,"type":"x"}}',
            b'{"chat":{"id":2,"type":"x"},"chat":{"id":3,"type":"y"}}',
        )
        (found,) = batch(b'{"update_id":9,"message":' + first + b',"update_id":5,"message":' + last + b"}")
        self.assertEqual(found, Update(5, Message(3, "y", last)))

    def test_escaped_names(self) -> None:
        (found,) = batch(b'{"\\u0075pdate_id":5,"mess\\u0061ge":{"chat":{"\\u0069d":7,"type":"x"}}}')
        self.assertIsInstance(found, Update)

    @pytest.mark.report("E2")
    def test_usernames(self) -> None:
        for members, username, odd in (
            ("", None, False),
            (',"username":"Some_User9"', "some_user9", False),
            (',"username":"\\u0041b"', "ab", False),
            (',"username":null', None, True),
            (',"username":""', None, True),
            (',"username":5', None, True),
            (',"username":"a b"', None, True),
            (',"username":"a\\n"', None, True),
            (',"username":"\\udc00"', None, True),
            (',"username":"\u212a"', None, True),
            (',"username":"' + "a" * 64 + '"', "a" * 64, False),
            (',"username":"' + "a" * 65 + '"', None, True),
            (',"username":' + "1" * 5000, None, True),
        ):
            message = message_of(chat(members))
            self.assertEqual((message.username, message.username_is_odd), (username, odd), members)

    def test_only_private_chats_have_one(self) -> None:
        message = message_of(b'{"chat":{"id":-7,"type":"supergroup","username":"group"}}')
        self.assertEqual((message.username, message.username_is_odd), (None, False))

    def test_migrations(self) -> None:
        for members, to, since in (
            (',"migrate_to_chat_id":-100', -100, None),
            (',"migrate_from_chat_id":-5', None, -5),
            (',"migrate_to_chat_id":0', None, None),
            (',"migrate_to_chat_id":"1"', None, None),
            (',"migrate_to_chat_id":true', None, None),
            (',"migrate_to_chat_id":1.0', None, None),
            (',"migrate_to_chat_id":9223372036854775808', None, None),
            (',"migrate_to_chat_id":7', None, None),
            (',"migrate_from_chat_id":{}', None, None),
        ):
            message = message_of(b'{"chat":{"id":7,"type":"group"}' + members.encode() + b"}")
            self.assertEqual((message.migrate_to_chat_id, message.migrate_from_chat_id), (to, since), members)

    @given(
        st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.lists(st.text()), max_size=5)
    )
    def test_whatever_else_a_message_holds(self, members: dict[str, object]) -> None:
        text = json.dumps({**members, "chat": {"id": 7, "type": "private"}}).encode()
        self.assertEqual(message_of(text).text, text)

    @given(st.binary(max_size=80))
    def test_never_raises(self, junk: bytes) -> None:
        poll_outcome(200, (), junk)
        poll_outcome(200, (), body(element(b'{"chat":' + junk)))
        poll_outcome(200, (), body(junk))


class CostTests(SynchronousTestCase):
    def test_a_full_batch_does_not_stall_the_reactor(self) -> None:
        entities = ",".join(f'{{"offset":{n},"length":3,"type":"bold"}}' for n in range(1500))
        message = ('{"chat":{"id":7,"type":"private"},"entities":[' + entities + "]}").encode()
        whole = body(*(element(message, str(n).encode()) for n in range(100)))
        began = time.process_time()
        outcome = poll_outcome(200, (), whole)
        spent = time.process_time() - began
        assert isinstance(outcome, Batch)
        self.assertEqual(len(outcome.elements), 100)
        # About 0.1 s; a scanner in Python alone takes ten times as long.
        self.assertLess(spent, 0.5)


class AloneTests(SynchronousTestCase):
    """An update that is a whole body, as it is pushed."""

    def test_the_same_as_an_element(self) -> None:
        for text in (
            b'{"update_id":5}',
            b'{"poll":{"id":1},"update_id":5}',
            element(b'{"chat":' + PRIVATE + b',"n":1.0,"x":"\\ud83d \xc3\xa9"}'),
            element(b'{"chat":{"id":-7,"type":"group"},"migrate_to_chat_id":-8}'),
        ):
            [expected] = batch(text)
            self.assertEqual(read_update(text), expected)
            self.assertEqual(read_update(b" \r\n\t" + text + b"\n"), expected)
            self.assertEqual(update_id_of(b" \r\n\t" + text + b"\n"), 5)

    def test_malformed_ones_say_why(self) -> None:
        for message in (b"[]", b"{}", b'{"chat":{"id":0,"type":"group"}}', b'{"chat":{"id":7}}'):
            [expected] = batch(element(message))
            assert isinstance(expected, Malformed)
            self.assertEqual(expected.text, element(message))
            error = self.assertRaises(MalformedUpdate, read_update, element(message))
            self.assertEqual((error.update_id, error.why), (5, expected.why))
            # It can be journaled, for it has an id.
            self.assertEqual(update_id_of(element(message)), 5)

    def test_what_is_no_update(self) -> None:
        for text in (
            b"[]",
            b"5",
            b"null",
            b"{}",
            b'{"update_id":"5"}',
            b'{"update_id":5.0}',
            b'{"update_id":-1}',
            b'{"update_id":true}',
            b'{"update_id":9223372036854775808}',
            b'{"UPDATE_ID":5}',
        ):
            self.assertIsNone(update_id_of(text), text)
            self.assertIsNone(self.assertRaises(MalformedUpdate, read_update, text).update_id)

    def test_what_is_no_json(self) -> None:
        for text in (
            b"",
            b" ",
            b'{"update_id":5',
            b'{"update_id":5}}',
            b'{"update_id":5} {"update_id":6}',
            b'{"update_id":5,}',
            b'\xef\xbb\xbf{"update_id":5}',
            b'{"update_id":5,"x":"\xff"}',
            b'{"update_id":NaN}',
            b'{"update_id":5,"x":' + b"[" * 100_000,
        ):
            self.assertIsNone(update_id_of(text), text[:50])
            error = self.assertRaises(MalformedUpdate, read_update, text)
            self.assertEqual((error.update_id, error.why), (None, "the body is not a JSON text in UTF-8"))

    def test_the_ends_of_the_range(self) -> None:
        for update_id in (0, 2**63 - 1):
            self.assertEqual(update_id_of(b'{"update_id":%d}' % update_id), update_id)

    @given(st.binary(max_size=40))
    def test_any_bytes(self, text: bytes) -> None:
        self.assertIsNone(update_id_of(text))
