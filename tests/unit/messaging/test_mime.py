from __future__ import annotations

from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from email.utils import parsedate_to_datetime
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.messages import Message
from telegrammer.core.problems import MessageRefused
from telegrammer.core.smtp import with_crlf
from telegrammer.messaging.mime import LINE_LIMIT, BodyFormat, check_id, render

NOW = 1_793_000_000.5


def rendered(message: Message, body_format: BodyFormat = "text", sender: str = "gw@example.org") -> bytes:
    return render(message, sender=sender, message_id="0a1b", now=NOW, body_format=body_format)


def parsed(data: bytes) -> EmailMessage:
    """By the standard library, which knows nothing of how it was written."""
    return BytesParser(policy=policy.SMTP).parsebytes(data)


def note(subject: str = "Hello", body: str = "Text", *recipients: str) -> Message:
    return Message(subject, body, recipients or ("ops@example.org",))


def accepted(subject: str) -> bool:
    try:
        note(subject)
    except MessageRefused:
        return False
    return True


SUBJECTS = st.text(max_size=170).filter(accepted)
BODIES = st.text(
    st.characters(codec="utf-8", exclude_characters="\0")
    | st.sampled_from(["\r", "\n", " ", ".", "=", "\t", "\x85", "\u2028", "\x0c"]),
    min_size=1,
    max_size=400,
)
ATOM = st.text("abcXYZ019!#$%&'*+/=?^_`{|}~-", min_size=1, max_size=30)
ADDRESSES = st.builds(
    lambda atoms, domain: f"{'.'.join(atoms)}@{domain}",
    st.lists(ATOM, min_size=1, max_size=3),
    st.sampled_from(["example.org", "a.b.c.example", "localhost", "[192.0.2.1]", "[IPv6:2001:db8::1]"]),
)


class HeaderTests(SynchronousTestCase):
    def test_all_of_it(self) -> None:
        data = rendered(note("Hello", "Text", "ops@example.org", "boss@example.org"))
        self.assertEqual(
            data,
            b"From: gw@example.org\r\n"
            b"To: ops@example.org,\r\n boss@example.org\r\n"
            b"Subject: Hello\r\n"
            b"Date: Mon, 26 Oct 2026 07:33:20 +0000\r\n"
            b"Message-ID: <0a1b@example.org>\r\n"
            b"MIME-Version: 1.0\r\n"
            b'Content-Type: text/plain; charset="utf-8"\r\n'
            b"Content-Transfer-Encoding: quoted-printable\r\n"
            b"\r\n"
            b"Text\r\n",
        )
        self.assertEqual(parsedate_to_datetime(parsed(data)["Date"]).timestamp(), int(NOW))

    @given(SUBJECTS)
    def test_the_subject_arrives(self, subject: str) -> None:
        data = rendered(note(subject))
        message = parsed(data)
        self.assertEqual(message["Subject"], subject)
        self.assertEqual(message["Message-ID"], "<0a1b@example.org>")
        self.assertEqual(len(message.keys()), 8)
        head = data.partition(b"\r\n\r\n")[0]
        self.assertTrue(all(len(line) <= 76 for line in head.split(b"\r\n")))

    def test_subjects_that_would_be_something_else(self) -> None:
        for subject in (
            "=?utf-8?q?x?=",
            "a =?utf-8?b?QQ==?= b",
            "x\u2028Bcc: all@example.org",
            "x\u2029y",
            "a  b",
            "a" * 512,
            "ä" * 256,
            "\U0001f600" * 128,
            "e\u0301" * 100,
            "a " * 250 + "a",
            "\u202eright to left",
        ):
            message = parsed(rendered(note(subject)))
            self.assertEqual(message["Subject"], subject)
            self.assertIsNone(message["Bcc"])

    def test_no_header_can_be_put_in(self) -> None:
        for subject in ("x\nBcc: a@b", "x\rBcc: a@b", "x\x85Bcc: a@b", "x\r\n\r\nbody", "x\0"):
            self.assertFalse(accepted(subject))
        for recipient in ("a@b\nBcc: c@d", "a@b, c@d", "<a@b>", "a@b\u2028", "A <a@b>", "a@b\x85"):
            self.assertRaises(MessageRefused, note, "x", "x", recipient)
        for message_id in ("", "a b", "a>\r\nX: y", "../a", "a/b", "a..b", "a.", ".a", "a\n", "ä", "x" * 129):
            self.assertRaises(ValueError, check_id, message_id)

    @given(st.lists(ADDRESSES, min_size=1, max_size=16), ADDRESSES)
    def test_addresses_arrive(self, recipients: list[str], sender: str) -> None:
        data = rendered(note("x", "x", *recipients), sender=sender)
        lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
        self.assertEqual(lines[0], b"From: " + sender.encode())
        to = b"".join(lines[1 : 1 + len(recipients)]).decode().removeprefix("To: ").split(", ")
        self.assertEqual(to, recipients)
        self.assertTrue(all(len(line) <= LINE_LIMIT for line in lines))

    def test_addresses_by_the_standard_library(self) -> None:
        message = parsed(rendered(note("x", "x", "a.b+c@example.org", "boss@[192.0.2.1]")))
        self.assertEqual(
            [address.addr_spec for address in message["To"].addresses],
            ["a.b+c@example.org", "boss@[192.0.2.1]"],
        )
        self.assertEqual([address.addr_spec for address in message["From"].addresses], ["gw@example.org"])


class TextTests(SynchronousTestCase):
    @given(BODIES)
    def test_the_text_arrives(self, body: str) -> None:
        data = rendered(note("x", body))
        self.assertTrue(data.isascii())
        message = parsed(data)
        self.assertEqual(message.get_content_type(), "text/plain")
        got = cast(bytes, message.get_payload(decode=True)).decode().replace("\r\n", "\n")
        self.assertEqual(got.removesuffix("\n"), body.replace("\r\n", "\n").removesuffix("\n"))
        raw = data.partition(b"\r\n\r\n")[2]
        self.assertTrue(all(len(line) <= 76 for line in raw.split(b"\r\n")))
        self.assertEqual(raw, with_crlf(raw))

    def test_the_shorter_encoding(self) -> None:
        for body, encoding in (("Plain = English.", "quoted-printable"), ("Кириллица", "base64")):
            self.assertEqual(parsed(rendered(note("x", body)))["Content-Transfer-Encoding"], encoding)

    def test_line_ends(self) -> None:
        self.assertTrue(rendered(note("x", "one\ntwo\r\n\n")).endswith(b"\r\n\r\none\r\ntwo\r\n\r\n"))
        self.assertTrue(rendered(note("x", "one\rtwo")).endswith(b"one=0Dtwo\r\n"))


class HtmlTests(SynchronousTestCase):
    def body(self, body: str) -> bytes:
        head, _, content = rendered(note("x", body), "qp-html").partition(b"\r\n\r\n")
        self.assertIn(b'Content-Type: text/html; charset="utf-8"', head)
        self.assertIn(b"Content-Transfer-Encoding: quoted-printable", head)
        return content

    def test_it_stays_as_it_is(self) -> None:
        self.assertEqual(self.body("<b>=C3=A4</b> =\n.\n &amp;"), b"<b>=C3=A4</b> =\r\n.\r\n &amp;\r\n")
        self.assertEqual(self.body("a\r\nb\r\n"), b"a\r\nb\r\n")

    @given(st.text(st.characters(max_codepoint=127, exclude_characters="\0"), min_size=1, max_size=300))
    def test_any_ascii(self, body: str) -> None:
        self.assertEqual(self.body(body), with_crlf(body.encode()))

    def test_lines_are_bounded(self) -> None:
        self.assertEqual(self.body("x\n" + "y" * LINE_LIMIT), b"x\r\n" + b"y" * LINE_LIMIT + b"\r\n")
        for body in ("y" * (LINE_LIMIT + 1), "x\r" + "y" * (LINE_LIMIT + 1) + "\nx"):
            with self.assertRaises(MessageRefused) as caught:
                self.body(body)
            self.assertEqual(caught.exception.limit, "body")

    def test_what_is_no_quoted_printable(self) -> None:
        with self.assertRaises(MessageRefused) as caught:
            self.body("<b>ä</b>")
        self.assertEqual(caught.exception.limit, "body")
