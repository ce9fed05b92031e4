"""One attempt by SMTP over transports in memory; TLS is for real sockets (tests/integration/messaging)."""

from __future__ import annotations

import gc
import sys
import weakref
from base64 import b64encode
from typing import Any, cast

from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.iweb import IPolicyForHTTPS

from telegrammer.core.messages import Credentials
from telegrammer.core.problems import CredentialsRefused, DeliveryFailed, MaybeDelivered
from telegrammer.core.smtp import TALK_LIMIT, Transport
from telegrammer.outbound.resolver import LookupFailed
from telegrammer.outbound.smtp import GOODBYE_SECONDS, SmtpClient
from telegrammer.outbound.smtp_channel import Interrupted, SmtpChannel
from telegrammer.outbound.smtp_conversation import Envelope, Relay
from telegrammer.outbound.tls import CertificateRefused
from tests.support.network import Names, Network, Wire, address

SECONDS = 30.0
CREDENTIALS = Credentials("ops", "open sesame")
HELLO = b"EHLO [10.0.0.1]\r\n"
"""By the address that a ``StringTransport`` has."""
TALK: tuple[tuple[str, bytes, bytes], ...] = (
    ("greeting", b"", b"220 hello\r\n"),
    ("EHLO", HELLO, b"250-hello\r\n250 SIZE\r\n"),
    ("MAIL", b"MAIL FROM:<gw@example.org>\r\n", b"250 ok\r\n"),
    ("RCPT", b"RCPT TO:<ops@example.org>\r\n", b"250 ok\r\n"),
    ("RCPT", b"RCPT TO:<boss@example.org>\r\n", b"251 will forward\r\n"),
    ("DATA", b"DATA\r\n", b"354 go\r\n"),
    ("after DATA", b"Subject: x\r\n\r\n..\r\nend\r\n.\r\n", b"250 taken\r\n"),
)
"""Stage by stage: what the client says, and what it is answered."""


class SmtpWire(Wire):
    """Goes as a real one does: a turn after it was aborted or left."""

    clock: Clock

    def abortConnection(self) -> None:
        if not self.aborted:
            super().abortConnection()
            self.clock.callLater(0, self.lose, ConnectionLost())

    def loseConnection(self) -> None:
        self.disconnecting = True

    def startTLS(self, creator: Any) -> None:
        """The test says how the handshake goes."""


class Trust:
    def creatorForNetloc(self, hostname: bytes, port: int) -> None:
        """The test says how the handshake goes."""


class SmtpCase(SynchronousTestCase):
    transport: Transport = "smtp"

    def setUp(self) -> None:
        self.clock, self.network = Clock(), Network()
        self.names = Names({"mail.example.org": ["192.0.2.1"]})
        self.trust: Any = Trust()
        self.wire: SmtpWire

    def attempt(
        self, seconds: float = SECONDS, credentials: Credentials | None = None, transport: Transport = "smtp"
    ) -> Deferred[None]:
        client = SmtpClient(self.network, self.clock, self.names, cast(IPolicyForHTTPS, self.trust))
        relay = Relay("mail.example.org", 25, transport)
        envelope = Envelope(
            "gw@example.org", ("ops@example.org", "boss@example.org"), b"Subject: x\n\n.\r\nend"
        )
        return client.send(relay, envelope, seconds=seconds, credentials=credentials)

    def connect(self) -> SmtpWire:
        attempt = self.network.attempts[-1]
        self.wire = SmtpWire()
        self.wire.clock = self.clock
        protocol = attempt.factory.buildProtocol(None)
        assert protocol is not None
        self.wire.protocol = protocol
        protocol.makeConnection(self.wire)
        return self.wire

    def talk(self, until: int = len(TALK)) -> None:
        """The conversation before stage ``until``; what the client says there has been said."""
        self.connect()
        for _, said, answer in TALK[:until]:
            self.assertEqual(self.wire.sent, said)
            self.wire.receive(answer)
        if until < len(TALK):
            self.assertEqual(self.wire.sent, TALK[until][1])

    def assert_closed(self) -> None:
        """And nothing goes on behind."""
        self.assertTrue(self.wire.aborted)
        self.clock.advance(0)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.wire.sent, b"")

    def failed(self, result: Deferred[None], kind: type[Exception]) -> str:
        return str(self.failureResultOf(result, kind).value)


class DeliveryTests(SmtpCase):
    def test_a_message(self) -> None:
        result = self.attempt()
        self.talk()
        self.assertEqual(self.wire.sent, b"QUIT\r\n")
        self.assertNoResult(result)
        self.wire.receive(b"221 bye\r\n")
        self.assertTrue(self.wire.disconnecting)
        self.wire.lose()
        self.successResultOf(result)
        self.assertFalse(self.wire.aborted)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(len(self.network.attempts), 1)

    def test_a_quit_that_hangs_is_no_failure(self) -> None:
        result = self.attempt()
        self.talk()
        self.clock.advance(GOODBYE_SECONDS)
        self.clock.advance(0)
        self.successResultOf(result)
        self.wire.clear()
        self.assert_closed()

    def test_a_peer_that_does_not_let_go(self) -> None:
        result = self.attempt()
        self.talk()
        self.wire.receive(b"221 bye\r\n")
        self.clock.advance(GOODBYE_SECONDS)
        self.clock.advance(0)
        self.successResultOf(result)

    def test_a_quit_that_drops_is_no_failure(self) -> None:
        result = self.attempt()
        self.talk()
        self.wire.lose(ConnectionLost())
        self.successResultOf(result)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nonsense_instead_of_a_goodbye(self) -> None:
        for answer in (b"500 what\r\n", b"what\r\n"):
            result = self.attempt()
            self.talk()
            self.wire.receive(answer)
            self.wire.lose()
            self.clock.advance(0)
            self.successResultOf(result)

    def test_cancelled_during_quit_it_is_delivered(self) -> None:
        result = self.attempt()
        self.talk()
        self.wire.clear()
        result.cancel()
        self.assert_closed()
        self.successResultOf(result)

    def test_the_deadline_during_quit(self) -> None:
        result = self.attempt()
        self.clock.advance(SECONDS - 0.5)
        self.talk()
        self.wire.clear()
        self.clock.advance(0.5)
        self.assert_closed()
        self.successResultOf(result)

    def test_an_old_server(self) -> None:
        result = self.attempt()
        self.talk(1)
        self.wire.receive(b"502 what\r\n")
        self.assertEqual(self.wire.sent, b"HELO [10.0.0.1]\r\n")
        self.wire.receive(b"250 hello\r\n")
        self.assertEqual(self.wire.sent, TALK[2][1])
        result.cancel()
        self.assert_closed()
        self.failureResultOf(result, CancelledError)


class CutOffTests(SmtpCase):
    """At every stage: cancelled, out of time, dropped, refused, nonsense."""

    def test_cancelled_while_resolving(self) -> None:
        self.names.table.clear()
        result = self.attempt()
        result.cancel()
        self.failureResultOf(result, CancelledError)
        self.assertEqual(self.names.cancelled, ["mail.example.org"])
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.network.attempts, [])

    def test_cancelled_while_connecting(self) -> None:
        result = self.attempt()
        result.cancel()
        self.failureResultOf(result, CancelledError)
        self.assertTrue(self.network.attempts[0].stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_cancelled_in_the_conversation(self) -> None:
        for number, (stage, _, _) in enumerate(TALK):
            result = self.attempt()
            self.talk(number)
            result.cancel()
            self.assertTrue(self.wire.aborted, stage)
            self.assert_closed()
            if stage == "after DATA":
                self.assertEqual(self.failed(result, MaybeDelivered), "after DATA: cancelled")
            else:
                self.failureResultOf(result, CancelledError)

    def test_cancelled_twice(self) -> None:
        result = self.attempt()
        self.talk(6)
        result.cancel()
        result.cancel()
        self.failureResultOf(result, MaybeDelivered)
        self.assert_closed()

    def test_out_of_time(self) -> None:
        self.names.table.clear()
        result = self.attempt()
        self.clock.advance(SECONDS)
        self.assertEqual(self.failed(result, DeliveryFailed), "looking up the server: time was up")
        self.names.table["mail.example.org"] = ["192.0.2.1"]
        result = self.attempt()
        self.clock.advance(SECONDS)
        self.assertIn("connecting: ", self.failed(result, DeliveryFailed))
        self.assertEqual(self.clock.getDelayedCalls(), [])
        for number, (stage, _, _) in enumerate(TALK):
            result = self.attempt()
            self.talk(number)
            self.clock.advance(SECONDS)
            self.assert_closed()
            kind = MaybeDelivered if stage == "after DATA" else DeliveryFailed
            self.assertEqual(self.failed(result, kind), f"{stage}: time was up")

    def test_progress_does_not_extend_the_deadline(self) -> None:
        result = self.attempt()
        self.connect()
        for _ in range(29):
            self.clock.advance(1.0)
            self.wire.receive(b"220-still here\r\n")
        self.clock.advance(1.0)
        self.clock.advance(0)
        self.failureResultOf(result, DeliveryFailed)

    def test_all_the_time_in_the_world(self) -> None:
        result = self.attempt(float("inf"))
        self.talk(3)
        self.clock.advance(86_400.0)
        self.assert_closed()
        self.failureResultOf(result, DeliveryFailed)

    def test_no_time_at_all(self) -> None:
        for seconds in (0.0, -1.0, float("nan")):
            self.failureResultOf(self.attempt(seconds), DeliveryFailed)
        self.assertEqual(self.names.asked, [])

    def test_dropped(self) -> None:
        for number, (stage, _, _) in enumerate(TALK):
            result = self.attempt()
            self.talk(number)
            self.wire.lose(ConnectionLost())
            kind = MaybeDelivered if stage == "after DATA" else DeliveryFailed
            self.assertEqual(self.failed(result, kind), f"{stage}: the connection was lost")
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_refused(self) -> None:
        for code, permanent in ((b"421", False), (b"452", False), (b"554", True)):
            for number, (stage, _, _) in enumerate(TALK):
                if stage == "EHLO" and permanent:
                    continue  # HELO is tried then
                result = self.attempt()
                self.talk(number)
                self.wire.receive(code + b" go\x1b away\r\n")
                if stage == "RCPT":
                    for _ in range(2 - TALK[number][1].count(b"boss") - 1):
                        self.assertEqual(self.wire.sent, TALK[4][1])
                        self.wire.receive(b"250 ok\r\n")
                self.assertEqual(self.wire.sent, b"QUIT\r\n", stage)
                self.wire.receive(b"221 bye\r\n")
                self.wire.lose()
                error = self.failureResultOf(result, DeliveryFailed).value
                assert isinstance(error, DeliveryFailed)
                self.assertEqual(error.permanent, permanent)
                self.assertIn(f"{code.decode()} go\\x1b away", str(error))
                self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_cancel_after_the_refusal_changes_nothing(self) -> None:
        result = self.attempt()
        self.talk(6)
        self.wire.receive(b"552 too big\r\n")
        self.wire.clear()
        result.cancel()
        self.assert_closed()
        self.assertEqual(self.failed(result, DeliveryFailed), "the server refuses the message: 552 too big")

    def test_nonsense(self) -> None:
        for number, (stage, _, _) in enumerate(TALK):
            for nonsense in (b"HTTP/1.1 400 what\r\n", b"250-x\r\n251 y\r\n", b"x" * 5000, b"334 \r\n"):
                result = self.attempt()
                self.talk(number)
                self.wire.receive(nonsense)
                self.wire.clear()
                self.clock.advance(SECONDS)
                self.assert_closed()
                self.failureResultOf(result, MaybeDelivered if stage == "after DATA" else DeliveryFailed)

    def test_a_flood(self) -> None:
        result = self.attempt()
        self.connect()
        for _ in range(TALK_LIMIT // 1200 + 1):
            self.wire.receive(b"220-%b\r\n" % (b"x" * 1194))
        self.assert_closed()
        self.failureResultOf(result, DeliveryFailed)

    def test_answers_to_what_was_not_asked(self) -> None:
        """Or a server's early words would be taken for the fate of the message."""
        for number, (stage, _, answer) in enumerate(TALK[:-1]):
            for extra in (b"250 ok\r\n", b"25"):
                result = self.attempt()
                self.talk(number)
                self.wire.receive(answer + extra)
                self.assert_closed()
                self.assertIn("what was not asked", self.failed(result, DeliveryFailed), stage)

    def test_a_refusal_that_was_not_asked_for(self) -> None:
        """A server that shuts down says 421 whenever it does; the data is not sent then."""
        for number in range(1, len(TALK) - 1):
            result = self.attempt()
            self.talk(number)
            self.wire.receive(TALK[number][2] + b"421 shutting down\r\n")
            while not result.called:
                self.assertNotIn(b"Subject", self.wire.sent)
                self.wire.receive(b"250 ok\r\n")
                self.clock.advance(GOODBYE_SECONDS)
            self.assertIn("421 shutting down", self.failed(result, DeliveryFailed))

    def test_words_after_the_end(self) -> None:
        result = self.attempt()
        self.talk(1)
        self.wire.receive(b"what\r\n250 ok\r\n")
        protocol = self.wire.protocol
        assert protocol is not None
        protocol.dataReceived(b"250 ok\r\n")
        self.assert_closed()
        self.failureResultOf(result, DeliveryFailed)


class ConnectingTests(SmtpCase):
    def test_no_such_name(self) -> None:
        self.names.table["mail.example.org"] = LookupFailed("name not found")
        self.assertEqual(self.failed(self.attempt(), DeliveryFailed), "looking up the server: name not found")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_refused(self) -> None:
        result = self.attempt()
        self.network.attempts[0].refuse()
        self.assertEqual(self.failed(result, DeliveryFailed), "connecting: connection refused")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_the_second_address(self) -> None:
        self.names.table["mail.example.org"] = ["192.0.2.1", "192.0.2.2"]
        result = self.attempt()
        self.network.attempts[0].refuse()
        self.talk()
        self.wire.lose()
        self.successResultOf(result)
        self.assertEqual(self.network.hosts, ["192.0.2.1", "192.0.2.2"])

    def test_our_own_address_is_our_name(self) -> None:
        for host, name in (("fe80::1%eth0", b"[IPv6:fe80::1]"), ("192.0.2.7", b"[192.0.2.7]")):
            result = self.attempt()
            self.connect()
            self.patch(self.wire, "getHost", lambda host=host: address(host))
            self.wire.receive(b"220 hello\r\n")
            self.assertEqual(self.wire.sent, b"EHLO " + name + b"\r\n")
            result.cancel()
            self.assert_closed()
            self.failureResultOf(result, CancelledError)


class RecipientTests(SmtpCase):
    def test_all_or_none(self) -> None:
        for answers, count, permanent in (
            ((b"250 ok\r\n", b"550 who\r\n"), "1 of 2", True),
            ((b"451 later\r\n", b"250 ok\r\n"), "1 of 2", False),
            ((b"451 later\r\n", b"550 who\r\n"), "2 of 2", True),
        ):
            result = self.attempt()
            self.talk(3)
            for answer in answers:
                self.wire.clear()
                self.wire.receive(answer)
            self.assertEqual(self.wire.sent, b"QUIT\r\n")
            self.wire.lose()
            error = self.failureResultOf(result, DeliveryFailed).value
            assert isinstance(error, DeliveryFailed)
            self.assertIn(f"refuses {count} recipients: ", str(error))
            self.assertEqual(error.permanent, permanent)


class CredentialsTests(SmtpCase):
    def test_never_in_clear(self) -> None:
        self.failureResultOf(self.attempt(credentials=CREDENTIALS), CredentialsRefused)
        self.assertEqual((self.names.asked, self.network.attempts), ([], []))

    def secured(self, offered: bytes) -> Deferred[None]:
        """Up to AUTH, by STARTTLS; no TLS here, just its being told of."""
        result = self.attempt(credentials=CREDENTIALS, transport="starttls")
        self.connect()
        self.wire.receive(b"220 hello\r\n")
        self.wire.receive(b"250-hello\r\n250-AUTH PLAIN\r\n250 STARTTLS\r\n")
        self.assertEqual(self.wire.sent, HELLO + b"STARTTLS\r\n")
        self.wire.receive(b"220 go\r\n")
        self.assertEqual(self.wire.sent, b"")
        self.channel.handshakeCompleted()
        self.assertEqual(self.wire.sent, HELLO)
        self.wire.receive(b"250-hello\r\n250 " + offered + b"\r\n")
        return result

    @property
    def channel(self) -> SmtpChannel:
        assert isinstance(self.wire.protocol, SmtpChannel)
        return self.wire.protocol

    def test_plain(self) -> None:
        result = self.secured(b"AUTH LOGIN PLAIN")
        told = b64encode(b"\0ops\0open sesame")
        self.assertEqual(self.wire.sent, b"AUTH PLAIN " + told + b"\r\n")
        self.wire.receive(b"334 \r\n")
        self.assertEqual(self.wire.sent, told + b"\r\n")
        self.wire.receive(b"235 welcome\r\n")
        self.assertEqual(self.wire.sent, TALK[2][1])
        self.wire.receive(b"550 not with " + told + b"\r\n")
        self.wire.lose()
        self.assertEqual(self.failed(result, DeliveryFailed), "the server refuses the sender: 550")

    def test_login(self) -> None:
        result = self.secured(b"AUTH LOGIN")
        for said, answer in (
            (b"AUTH LOGIN\r\n", b"334 VXNlcm5hbWU6\r\n"),
            (b"b3Bz\r\n", b"334 UGFzc3dvcmQ6\r\n"),
            (b"b3BlbiBzZXNhbWU=\r\n", b"535 open sesame is wrong\r\n"),
        ):
            self.assertEqual(self.wire.sent, said)
            self.wire.receive(answer)
        self.wire.lose()
        error = self.failureResultOf(result, DeliveryFailed).value
        self.assertEqual(str(error), "the server refuses the credentials: 535")
        self.assertNotIn("sesame", repr(error))

    def test_a_challenge_that_is_none(self) -> None:
        result = self.secured(b"AUTH CRAM-MD5")
        self.assertEqual(self.wire.sent, b"AUTH CRAM-MD5\r\n")
        self.wire.receive(b"334 !\r\n")
        self.wire.lose()
        self.assertIn("AUTH: ", self.failed(result, DeliveryFailed))

    def test_more_challenges_than_there_are_answers(self) -> None:
        result = self.secured(b"AUTH PLAIN")
        self.wire.receive(b"334 \r\n")
        self.wire.receive(b"334 \r\n")
        self.wire.lose()
        self.assertIn("334", self.failed(result, DeliveryFailed))

    def test_none_that_is_known(self) -> None:
        for offered in (b"AUTH XOAUTH2", b"SIZE"):
            result = self.secured(offered)
            self.assertEqual(self.wire.sent, b"QUIT\r\n")
            self.wire.lose()
            self.assertIn("no authentication", self.failed(result, DeliveryFailed))

    def test_cancelled_during_authentication(self) -> None:
        result = self.secured(b"AUTH PLAIN")
        self.wire.clear()
        result.cancel()
        self.assert_closed()
        self.failureResultOf(result, CancelledError)


class StartTlsTests(SmtpCase):
    def offered(self, line: bytes) -> Deferred[None]:
        result = self.attempt(transport="starttls")
        self.talk(1)
        self.wire.receive(b"250-hello\r\n250 " + line + b"\r\n")
        return result

    def test_never_in_clear(self) -> None:
        result = self.offered(b"SIZE")
        self.assertEqual(self.wire.sent, b"QUIT\r\n")
        self.wire.lose()
        self.assertIn("no STARTTLS", self.failed(result, DeliveryFailed))

    def test_ehlo_refused(self) -> None:
        result = self.attempt(transport="starttls")
        self.talk(1)
        self.wire.receive(b"502 what\r\n")
        self.assertEqual(self.wire.sent, b"QUIT\r\n")
        self.wire.lose()
        self.failureResultOf(result, DeliveryFailed)

    def test_refused(self) -> None:
        result = self.offered(b"STARTTLS")
        self.assertEqual(self.wire.sent, b"STARTTLS\r\n")
        self.wire.receive(b"454 not now\r\n")
        self.assertEqual(self.wire.sent, b"QUIT\r\n")
        self.wire.lose()
        self.assertIn("454 not now", self.failed(result, DeliveryFailed))

    def test_what_came_in_clear_is_not_read_as_if_it_had_come_in_tls(self) -> None:
        """CVE-2011-0411 and its kin."""
        result = self.offered(b"STARTTLS")
        self.wire.receive(b"220 go\r\n250 injected\r\n")
        self.wire.clear()
        self.assert_closed()
        self.failureResultOf(result, DeliveryFailed)

    def test_the_handshake(self) -> None:
        for reason, why in (
            (CertificateRefused("certificate expired"), "certificate expired"),
            (SSL.Error([("", "", "x")]), "the TLS handshake failed"),
            (ConnectionLost(), "the TLS handshake failed"),
        ):
            result = self.offered(b"STARTTLS")
            self.wire.receive(b"220 go\r\n")
            self.wire.lose(reason)
            self.assertEqual(self.failed(result, DeliveryFailed), f"TLS handshake: {why}")

    def test_cancelled_in_the_handshake(self) -> None:
        result = self.offered(b"STARTTLS")
        self.wire.receive(b"220 go\r\n")
        self.wire.clear()
        result.cancel()
        self.assert_closed()
        self.failureResultOf(result, CancelledError)

    def test_without_credentials_none_are_needed(self) -> None:
        result = self.offered(b"STARTTLS")
        self.wire.receive(b"220 go\r\n")
        assert isinstance(self.wire.protocol, SmtpChannel)
        self.wire.protocol.handshakeCompleted()
        self.wire.clear()
        self.wire.receive(b"250 hello\r\n")
        self.assertEqual(self.wire.sent, TALK[2][1])
        result.cancel()
        self.assert_closed()
        self.failureResultOf(result, CancelledError)


class BugTests(SmtpCase):
    def test_an_error_of_our_own_leaves_no_connection(self) -> None:
        class Broken(Exception):
            pass

        def creator(*_: object) -> None:
            raise Broken

        result = self.attempt(transport="starttls")
        self.trust.creatorForNetloc = creator
        self.talk(1)
        self.wire.receive(b"250-hello\r\n250 STARTTLS\r\n")
        self.wire.receive(b"220 go\r\n")
        self.wire.clear()
        self.assert_closed()
        self.failureResultOf(result, Broken)

    def test_left_behind_by_a_reactor_that_stops(self) -> None:
        """It is collected without a word."""
        said: list[object] = []
        self.patch(sys, "unraisablehook", said.append)
        left = weakref.ref(self.attempt())
        self.talk(3)
        del self.wire
        self.network, self.clock = Network(), Clock()
        gc.collect()
        self.assertIsNone(left())
        self.assertEqual(said, [])


class ChannelTests(SynchronousTestCase):
    def test_starting_tls_on_a_lost_connection(self) -> None:
        channel = SmtpChannel(lambda: None)
        wire = Wire()
        channel.makeConnection(wire)
        channel.connectionLost()
        self.failureResultOf(channel.start_tls(cast(Any, None)), Interrupted)
        self.failureResultOf(channel.command(b"NOOP"), Interrupted)
        channel.leave()
        channel.abort()
        self.assertFalse(wire.disconnecting)
        self.successResultOf(channel.gone())
