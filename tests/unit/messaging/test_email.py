"""Declarations of mail servers, and the provider over a network in memory."""

from __future__ import annotations

import email
from email import policy
from typing import Any, cast

from attrs import define
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.iweb import IPolicyForHTTPS

from telegrammer.core.messages import Credentials, Message
from telegrammer.core.problems import (
    CredentialsRefused,
    DeliveryFailed,
    DirectiveRefused,
    MessageRefused,
)
from telegrammer.messaging.email import EmailConfig, EmailProvider
from telegrammer.outbound.resolver import LookupFailed
from telegrammer.ports import Mailer
from tests.support.directories import temporary_directory
from tests.support.network import Names, Network, Wire

NOW = 1_793_000_000.0
MESSAGE = Message("Hello", "<b>=C3=A4</b>\n.\n", ["ops@example.org", "boss@example.org"])
DIRECTIVES = ("name ops", "transport starttls", "host mail.example.org", "from gw@example.org")


def config(**changes: Any) -> EmailConfig:
    settings = {"name": "ops", "transport": "smtp", "host": "mail.example.org", "sender": "gw@example.org"}
    return EmailConfig(**{**settings, **changes})


class ConfigTests(SynchronousTestCase):
    def refused(self, **changes: Any) -> str:
        with self.assertRaises(DirectiveRefused) as caught:
            config(**changes)
        return str(caught.exception.directive)

    def test_defaults(self) -> None:
        for transport, port in (("smtp", 25), ("starttls", 587), ("smtps", 465)):
            self.assertEqual(config(transport=transport).port, port)
        plain = config()
        self.assertEqual((plain.body_format, plain.timeout, plain.ca_file), ("qp-html", 30.0, None))
        self.assertEqual((plain.kind, plain.username), ("email", None))

    def test_directives(self) -> None:
        self.assertEqual(EmailConfig.from_directives(DIRECTIVES), config(transport="starttls"))
        more = ("port 2587", "username ops", "body_format text", "ca_file /etc/ca.pem", "timeout 500ms")
        parsed = EmailConfig.from_directives((*DIRECTIVES, *more))
        self.assertEqual((parsed.port, parsed.username, parsed.body_format), (2587, "ops", "text"))
        self.assertEqual((str(parsed.ca_file), parsed.timeout), ("/etc/ca.pem", 0.5))

    def test_directives_that_are_refused(self) -> None:
        for number, name in enumerate(("name", "transport", "host", "from")):
            with self.assertRaises(DirectiveRefused) as caught:
                EmailConfig.from_directives(DIRECTIVES[:number] + DIRECTIVES[number + 1 :])
            self.assertEqual(caught.exception.directive, name)
        for line, name in (
            ("host other.example.org", "host"),
            ("password x", "password"),
            ("sender gw@example.org", "sender"),
            ("timeout 31s", "timeout"),
            ("port 1e3", "port"),
            ("ca_file ca.pem", "ca_file"),
            ("username", "username"),
        ):
            with self.assertRaises(DirectiveRefused) as caught:
                EmailConfig.from_directives((*DIRECTIVES, line))
            self.assertEqual(caught.exception.directive, name)

    def test_hosts(self) -> None:
        for given, host in (
            ("Mail.Example.ORG", "mail.example.org"),
            ("mail_server", "mail_server"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("192.0.2.1", "192.0.2.1"),
            ("[2001:DB8::1]", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
        ):
            self.assertEqual(config(host=given).host, host)
        for wrong in (
            "",
            "a b",
            "a:25",
            "user@a",
            "a/b",
            "a?b",
            "a#b",
            "a..b",
            "1.2.3",
            "a\n",
            "[a]",
            "x" * 300,
            5,
        ):
            self.assertEqual(self.refused(host=wrong), "host")

    def test_ports(self) -> None:
        for given, port in ((1, 1), (65535, 65535), ("25", 25)):
            self.assertEqual(config(port=given).port, port)
        for wrong in (0, 65536, -1, "x", "", "123456", None, True, 2.5, "٣"):
            self.assertEqual(self.refused(port=wrong), "port")

    def test_what_else_is_refused(self) -> None:
        for name, value in (
            ("name", "email"),
            ("name", "a b"),
            ("transport", "tls"),
            ("transport", None),
            ("body_format", "html"),
            ("timeout", 0),
            ("timeout", 31),
            ("username", ""),
            ("username", "a\nb"),
            ("username", "a" * 256),
            ("ca_file", "ca.pem"),
        ):
            self.assertEqual(self.refused(**{name: value}), name)
        for sender in ("Gateway <gw@example.org>", "gw", "gw@example.org\nBcc: x@y"):
            self.assertEqual(self.refused(sender=sender), "from")

    def test_no_password_in_clear(self) -> None:
        self.assertEqual(self.refused(username="ops"), "username")
        self.assertEqual(config(transport="smtps", username="ops").username, "ops")


@define(eq=False)
class Reactor:
    """A clock with a network; what ``EmailProvider`` asks of a reactor."""

    clock: Clock
    network: Network

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network if name == "connectTCP" else self.clock, name)


class ProviderTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock, self.network = Clock(), Network()
        self.names = Names({"mail.example.org": ["192.0.2.1"]})

    def provider(self, **changes: Any) -> EmailProvider:
        trust = changes.pop("trust", cast(IPolicyForHTTPS, object()))
        return EmailProvider(
            config(**changes),
            Reactor(self.clock, self.network),
            resolver=self.names,
            trust=trust,
            now=lambda: NOW,
            new_id=lambda: "made-up",
        )

    def converse(self) -> bytes:
        """All that a client says to a server that agrees to everything."""
        wire: Wire = self.network.attempts[-1].accept()
        said = b""
        for answer in (b"220 ", b"250 ", b"250 ", b"250 ", b"250 ", b"354 ", b"250 "):
            wire.receive(answer + b"x\r\n")
            said += wire.sent
        wire.receive(b"221 bye\r\n")
        wire.lose()
        return said

    def test_it_is_a_mailer(self) -> None:
        mailer: Mailer = self.provider()
        sent = mailer.send(MESSAGE, message_id="0a1b", seconds=10.0)
        said = self.converse()
        self.successResultOf(sent)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertIn(b"MAIL FROM:<gw@example.org>\r\nRCPT TO:<ops@example.org>\r\n", said)
        data = said.partition(b"DATA\r\n")[2].partition(b"\r\n.\r\n")[0]
        message = email.message_from_bytes(data, policy=policy.SMTP)
        self.assertEqual(message["Message-ID"], "<0a1b@example.org>")
        self.assertTrue(data.endswith(b"\r\n\r\n<b>=C3=A4</b>\r\n.."))

    def test_defaults(self) -> None:
        sent = self.provider(timeout=5).send(MESSAGE)
        self.assertIn(b"Message-ID: <made-up@example.org>\r\n", self.converse())
        self.successResultOf(sent)
        sent = self.provider(timeout=5).send(MESSAGE)
        self.clock.advance(5.0)
        self.failureResultOf(sent, DeliveryFailed)

    def test_the_deadline_of_the_call(self) -> None:
        sent = self.provider(timeout=5).send(MESSAGE, seconds=9)
        self.clock.advance(8.9)
        self.assertNoResult(sent)
        sent.cancel()
        self.failureResultOf(sent, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def assert_nobody_was_dialled(self, sent: Deferred[None], *kind: type[Exception]) -> str:
        failure = self.failureResultOf(sent, *kind)
        self.assertEqual((self.names.asked, self.network.attempts), ([], []))
        self.assertEqual(self.clock.getDelayedCalls(), [])
        return str(failure.value)

    def test_missing_credentials(self) -> None:
        provider = self.provider(transport="smtps", username="ops")
        self.assert_nobody_was_dialled(provider.send(MESSAGE), CredentialsRefused)

    def test_credentials_that_do_not_fit(self) -> None:
        with_username = self.provider(transport="smtps", username="ops")
        for provider, credentials in (
            (self.provider(), Credentials("ops", "secret")),
            (self.provider(transport="smtps"), Credentials("ops", "secret")),
            (with_username, Credentials("boss", "secret")),
            (with_username, Credentials("ops", "")),
            (with_username, Credentials("ops", "secret\0")),
            (with_username, Credentials("ops", "secret\ud800")),
        ):
            sent = provider.send(MESSAGE, credentials=credentials)
            self.assertNotIn("secret", self.assert_nobody_was_dialled(sent, CredentialsRefused))

    def test_credentials_are_kept_nowhere(self) -> None:
        provider = self.provider(transport="smtps", username="ops")
        self.names.table["mail.example.org"] = LookupFailed("name not found")
        sent = provider.send(MESSAGE, credentials=Credentials("ops", "open sesame"))
        error = self.failureResultOf(sent, DeliveryFailed).value
        self.assertNotIn("sesame", f"{error!r}{provider!r}{provider.config!r}")
        self.assertEqual(self.assert_only_the_lookup(provider.send(MESSAGE)), 1)

    def assert_only_the_lookup(self, sent: Deferred[None]) -> int:
        self.failureResultOf(sent, CredentialsRefused)
        return len(self.names.asked)

    def test_a_body_that_cannot_be_sent(self) -> None:
        for body in ("ä", "x" * 999):
            sent = self.provider().send(Message("x", body, ["ops@example.org"]))
            self.assert_nobody_was_dialled(sent, MessageRefused)

    def test_an_id_that_is_none(self) -> None:
        self.assert_nobody_was_dialled(self.provider().send(MESSAGE, message_id="a b"), ValueError)

    def test_a_file_of_certificates_that_cannot_be_read(self) -> None:
        directory = temporary_directory(self)
        provider = self.provider(transport="smtps", ca_file=directory / "ca.pem", trust=None)
        self.assert_nobody_was_dialled(provider.send(MESSAGE), DeliveryFailed)
        (directory / "ca.pem").write_text("nothing")
        self.assert_nobody_was_dialled(provider.send(MESSAGE), DeliveryFailed)
