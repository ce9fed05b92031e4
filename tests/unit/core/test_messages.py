"""What a notification may be (contract 7.1)."""

from __future__ import annotations

import json
from email.utils import parseaddr
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.messages import (
    BODY_LIMIT,
    RECIPIENT_LIMIT,
    RECORD_LIMIT,
    SUBJECT_LIMIT,
    Credentials,
    Mark,
    Message,
    check_address,
    decode,
    encode,
)
from telegrammer.core.problems import MessageRefused

TO = ("operator@example.org",)
VALID = st.text(st.characters(codec="utf-8"))


class MessageTests(SynchronousTestCase):
    def refused(self, limit: str, subject: str = "s", body: str = "b", recipients: object = TO) -> str:
        error = self.assertRaises(MessageRefused, Message, subject, body, recipients)
        self.assertEqual(error.limit, limit)
        return str(error)

    def test_at_the_limits(self) -> None:
        Message("s", "b", TO)
        Message("ä" * (SUBJECT_LIMIT // 2), "ä" * (BODY_LIMIT // 2), TO * 16)
        Message("a\u2028b", "\r\n\t\x01\u2028", ("a.b+c@[192.0.2.1]", "x_y@my_host"))

    def test_subject(self) -> None:
        for subject in (
            "",
            "s" * 513,
            "ä" * 257,
            " s",
            "s ",
            "s\n",
            "\u00a0s",
            "a\nb",
            "a\x7fb",
            "a\x85b",
            "\ud800",
        ):
            self.refused("subject", subject=subject)
        self.assertRaises(MessageRefused, Message, b"bytes", "b", TO)

    def test_body(self) -> None:
        for body in ("", "b" * 60_001, "ä" * 30_001, "a\0b", "\udc80"):
            self.refused("body", body=body)

    def test_recipients(self) -> None:
        for recipients in ((), TO * 17, "operator@example.org"):
            self.refused("recipients", recipients=recipients)

    def test_a_recipient(self) -> None:
        for address in (
            "",
            "nobody",
            "@example.org",
            "a@",
            "a@b@c",
            "A <a@example.org>",
            "<a@example.org>",
            "a@example.org,b@example.org",
            "a b@example.org",
            "a@example.org ",
            "a@example.org\n",
            "a@example.org\r\nBcc: b@example.org",
            ".a@example.org",
            "a..b@example.org",
            '"a"@example.org',
            "a@-example.org",
            "a@example..org",
            "ä@example.org",
            "a@exämple.org",
            "a" * (RECIPIENT_LIMIT - 1) + "@b",
            "\ud800@example.org",
        ):
            said = self.refused("recipient", recipients=(address,))
            self.assertNotIn("example", said, "an address is not repeated")
        self.assertRaises(MessageRefused, Message, "s", "b", (7,))
        self.assertEqual(check_address("a" * 318 + "@b"), "a" * 318 + "@b")

    def test_the_whole_record(self) -> None:
        self.refused("record", body='"' * 40_000)

    def test_a_snapshot(self) -> None:
        recipients = ["a@example.org"]
        message = Message("s", "b", recipients)
        recipients.append("b@example.org")
        self.assertEqual(message.recipients, ("a@example.org",))

    def test_no_text_is_shown(self) -> None:
        self.assertEqual(repr(Message("secret", "secret", TO)), "Message()")
        self.assertNotIn("secret", repr(Credentials("user", "secret")))

    @given(VALID, VALID, st.lists(st.one_of(st.emails(), VALID), max_size=20))
    def test_what_is_accepted_comes_back(self, subject: str, body: str, recipients: list[str]) -> None:
        try:
            message = Message(subject, body, recipients)
        except MessageRefused as refused:
            self.assertIn(refused.limit, ("subject", "body", "recipients", "recipient", "record"))
            return
        record = encode(message)
        self.assertLessEqual(len(record), RECORD_LIMIT)
        again = decode(record)
        self.assertEqual((again.subject, again.body, again.recipients), (subject, body, tuple(recipients)))
        for recipient in recipients:
            self.assertEqual(parseaddr(recipient), ("", recipient))


class DecodeTests(SynchronousTestCase):
    def test_what_is_no_record(self) -> None:
        whole = {"subject": "s", "body": "b", "recipients": list(TO)}
        for record in (
            b"",
            b"\xff",
            b"7",
            b"null",
            b"[]",
            b"[" * 100_000,
            b"{}",
            json.dumps(whole | {"sender": "x"}).encode(),
            json.dumps(whole | {"recipients": "operator@example.org"}).encode(),
            json.dumps(whole | {"subject": None}).encode(),
        ):
            error = self.assertRaises(MessageRefused, decode, record)
            self.assertEqual(error.limit, "record", record[:80])


class MarkTests(SynchronousTestCase):
    def test_kept(self) -> None:
        for at in (-(2**63), 0, 2**63 - 1):
            self.assertEqual(Mark("ingestion", "", at).at, at)

    def test_what_cannot_be_stored(self) -> None:
        bad: list[tuple[Any, Any, Any]] = [
            ("\ud800", "down", 0),
            ("ingestion", "\udfff", 0),
            (None, "down", 0),
            ("ingestion", b"down", 0),
            ("ingestion", "down", 1.5),
            ("ingestion", "down", True),
            ("ingestion", "down", 2**63),
            ("ingestion", "down", -(2**63) - 1),
        ]
        for arguments in bad:
            refused = self.assertRaises(MessageRefused, Mark, *arguments)
            self.assertEqual(refused.limit, "mark")
