from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.messages import Credentials
from telegrammer.core.smtp import (
    LINE_LIMIT,
    LINES_LIMIT,
    SHOWN,
    TALK_LIMIT,
    BrokenReply,
    Reply,
    ReplyReader,
    as_data,
    challenge_of,
    extensions,
    mechanism,
    secrets_of,
    with_crlf,
)

CREDENTIALS = Credentials("ops", "open sesame")


class ReplyTests(SynchronousTestCase):
    def test_classes(self) -> None:
        for code, positive, refused, permanent in (
            (250, True, False, False),
            (354, False, False, False),
            (451, False, True, False),
            (550, False, True, True),
        ):
            reply = Reply(code, (b"",))
            self.assertEqual((reply.positive, reply.refused, reply.permanent), (positive, refused, permanent))

    def test_the_words_are_made_fit_to_be_shown(self) -> None:
        self.assertEqual(Reply(250, (b"",)).said(), "250")
        self.assertEqual(Reply(550, (b"no", b" such user \x1b[31m")).said(), "550 no such user \\x1b[31m")
        self.assertEqual(Reply(550, (b"\xff\xe2\x80\xae",)).said(), "550 \\xff\\u202e")
        self.assertEqual(len(Reply(550, (b"x" * 2000,)).said()), 4 + SHOWN)

    def test_words_that_hold_a_secret_are_not_shown(self) -> None:
        for secret in secrets_of(CREDENTIALS):
            self.assertEqual(Reply(535, (b"no: " + secret.encode(),)).said(secrets_of(CREDENTIALS)), "535")
        self.assertEqual(Reply(535, (b"no",)).said(secrets_of(CREDENTIALS)), "535 no")

    def test_nothing_foreign_in_its_repr(self) -> None:
        self.assertEqual(repr(Reply(250, (b"secret",))), "Reply(code=250)")


class ReaderTests(SynchronousTestCase):
    def replies(self, data: bytes) -> list[tuple[int, tuple[bytes, ...]]]:
        return [(reply.code, reply.lines) for reply in ReplyReader().feed(data)]

    def test_replies(self) -> None:
        self.assertEqual(self.replies(b"220 hello\r\n"), [(220, (b"hello",))])
        self.assertEqual(self.replies(b"250\r\n"), [(250, (b"",))])
        self.assertEqual(self.replies(b"250 ok\n"), [(250, (b"ok",))])
        self.assertEqual(
            self.replies(b"250-one\r\n250-two\r\n250 three\r\n354 go\r\n"),
            [(250, (b"one", b"two", b"three")), (354, (b"go",))],
        )
        self.assertEqual(self.replies(b"250-one\r\n250\r\n"), [(250, (b"one", b""))])

    def test_what_is_no_reply(self) -> None:
        for data in (
            b"\r\n",
            b"hello\r\n",
            b"25\r\n",
            b"2500\r\n",
            b"150 soon\r\n",
            b"650 what\r\n",
            b"000 nothing\r\n",
            b"250-one\r\n251 two\r\n",
            b"250_ok\r\n",
            b"\xd9\xa250 ok\r\n",
        ):
            self.assertRaises(BrokenReply, self.replies, data)

    def test_lines_are_bounded(self) -> None:
        longest = b"250 " + b"x" * (LINE_LIMIT - 4)
        self.assertEqual(len(self.replies(longest + b"\n")), 1)
        self.assertRaises(BrokenReply, self.replies, longest + b"x\n")
        self.assertRaises(BrokenReply, self.replies, longest + b"x")

    def test_replies_are_bounded(self) -> None:
        line = b"250-x\r\n"
        self.assertEqual(len(self.replies(line * (LINES_LIMIT - 1) + b"250 x\r\n")), 1)
        self.assertRaises(BrokenReply, self.replies, line * LINES_LIMIT + b"250 x\r\n")

    def test_a_conversation_is_bounded(self) -> None:
        reader = ReplyReader()
        line = b"250 " + b"x" * 1018 + b"\r\n"
        for _ in range(TALK_LIMIT // len(line)):
            reader.feed(line)
        self.assertRaises(BrokenReply, reader.feed, line)

    def test_amid_a_reply(self) -> None:
        reader = ReplyReader()
        self.assertFalse(reader.amid)
        for data, amid in ((b"25", True), (b"0-x\r\n", True), (b"250 x\r\n", False)):
            reader.feed(data)
            self.assertEqual(reader.amid, amid)

    @given(st.lists(st.integers(0, 40), max_size=12))
    def test_however_it_is_cut(self, cuts: list[int]) -> None:
        whole = b"250-one\r\n250 two\r\n354 go\r\n550 5.1.1 no\r\n"
        reader, replies = ReplyReader(), []
        places = [0, *sorted(cuts), len(whole)]
        for start, end in zip(places, places[1:], strict=False):
            replies += reader.feed(whole[start:end])
        self.assertEqual([reply.code for reply in replies], [250, 354, 550])
        self.assertFalse(reader.amid)

    @given(st.lists(st.binary(max_size=40) | st.sampled_from([b"250 ok\r\n", b"250-ok\r\n"]), max_size=8))
    def test_any_bytes(self, pieces: list[bytes]) -> None:
        reader = ReplyReader()
        try:
            for piece in pieces:
                for reply in reader.feed(piece):
                    self.assertTrue(200 <= reply.code < 600)
                    reply.said().encode("ascii", "strict") if reply.lines == (b"",) else reply.said().encode()
        except BrokenReply as broken:
            self.assertTrue(broken.why)


class ExtensionTests(SynchronousTestCase):
    def test_keywords_and_parameters(self) -> None:
        lines = (b"mail.example.org at your service", b"starttls", b"AUTH plain LOGIN", b"SIZE 1000", b"")
        self.assertEqual(
            extensions(Reply(250, lines)),
            {"STARTTLS": (), "AUTH": ("PLAIN", "LOGIN"), "SIZE": ("1000",), "": ()},
        )

    def test_the_old_way_to_offer_authentication(self) -> None:
        offered = extensions(Reply(250, (b"x", b"AUTH PLAIN", b"AUTH=LOGIN \xff")))
        self.assertEqual(offered["AUTH"], ("PLAIN", "LOGIN", "�"))


class DataTests(SynchronousTestCase):
    def test_line_ends(self) -> None:
        self.assertEqual(with_crlf(b"a\nb\rc\r\nd\n\r\n\re"), b"a\r\nb\r\nc\r\nd\r\n\r\n\r\ne\r\n")
        self.assertEqual(with_crlf(b"a\r\n"), b"a\r\n")

    def test_dots(self) -> None:
        self.assertEqual(as_data(b".\r\n..x\r\na.b\r\n"), b"..\r\n...x\r\na.b\r\n.\r\n")
        self.assertEqual(as_data(b"a\r.\rb"), b"a\r\n..\r\nb\r\n.\r\n")

    @given(st.lists(st.sampled_from([b".", b"\r", b"\n", b"\r\n", b"x"]), max_size=30).map(b"".join))
    def test_the_end_is_the_only_one_there_is(self, message: bytes) -> None:
        data = as_data(message)
        lines = data.split(b"\r\n")
        self.assertEqual((lines[-2], lines[-1]), (b".", b""))
        self.assertNotIn(b".", lines[:-2])
        for line in lines:
            self.assertNotIn(b"\r", line)
            self.assertNotIn(b"\n", line)
        received = b"".join(line.removeprefix(b".") + b"\r\n" for line in lines[:-2])
        self.assertEqual(received, with_crlf(message))


class AuthenticationTests(SynchronousTestCase):
    def test_the_first_that_is_known(self) -> None:
        for offered, name in (
            (["CRAM-MD5", "LOGIN", "PLAIN"], "PLAIN"),
            (["CRAM-MD5", "LOGIN"], "LOGIN"),
            (["XOAUTH2", "CRAM-MD5"], "CRAM-MD5"),
        ):
            chosen = mechanism(offered, CREDENTIALS)
            assert chosen is not None
            self.assertEqual(chosen.name, name)
            self.assertNotIn("sesame", repr(chosen))
        self.assertIsNone(mechanism(["XOAUTH2"], CREDENTIALS))

    def answers(self, name: str, *challenges: bytes) -> list[bytes]:
        chosen = mechanism([name], CREDENTIALS)
        assert chosen is not None
        initial = [] if chosen.initial is None else [chosen.initial]
        return initial + [
            answer(challenge) for answer, challenge in zip(chosen.answers, challenges, strict=True)
        ]

    def test_plain(self) -> None:
        self.assertEqual(self.answers("PLAIN", b""), [b"\0ops\0open sesame"] * 2)

    def test_login(self) -> None:
        self.assertEqual(self.answers("LOGIN", b"Username:", b"Password:"), [b"ops", b"open sesame"])

    def test_cram_md5(self) -> None:
        expected = hmac.new(b"open sesame", b"<1@x>", hashlib.md5).hexdigest()
        self.assertEqual(self.answers("CRAM-MD5", b"<1@x>"), [b"ops " + expected.encode()])

    def test_challenges(self) -> None:
        self.assertEqual(challenge_of(Reply(334, (b" " + b64encode(b"<1@x>"),))), b"<1@x>")
        self.assertEqual(challenge_of(Reply(334, (b"",))), b"")
        for line in (b"!", b"abc", b"\xff"):
            self.assertRaises(BrokenReply, challenge_of, Reply(334, (line,)))

    def test_the_forms_of_a_password(self) -> None:
        self.assertIn(b64encode(b"open sesame").decode(), secrets_of(CREDENTIALS))
        self.assertIn(b64encode(b"\0ops\0open sesame").decode(), secrets_of(CREDENTIALS))
        self.assertNotIn("", secrets_of(Credentials("ops", "")))
