"""The bounded exchange, byte for byte, against a peer that is the test."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest
from OpenSSL import SSL
from twisted.internet import error as neterror
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IProtocol, IReactorFromThreads
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.client import RequestTransmissionFailed, ResponseFailed, ResponseNeverReceived
from zope.interface import implementer

from telegrammer.core.exchange import (
    BadReply,
    BodyTooLarge,
    ConnectionBroken,
    DeadlinePassed,
    ExchangeFailed,
    NotConnected,
    Reply,
)
from telegrammer.outbound.api_connections import HEAD_LIMIT
from telegrammer.outbound.exchange import IDLE_SECONDS, Exchange, api_exchange, translated
from telegrammer.outbound.resolver import Addresses, ThreadedResolver, reactor_with_resolver
from telegrammer.outbound.tls import CertificateRefused, policy_for_https

SECRET = "AAF-secret"
URL = f"http://127.0.0.1:8081/bot123:{SECRET}/getMe"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
KEPT = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}"
LIMIT = 1000


@implementer(IReactorFromThreads)
class Threadless:
    """Addresses need no look-up, and so no thread."""

    def callFromThread(self, callable: Callable[..., object], *args: object, **kwargs: object) -> None:
        raise AssertionError("a thread was used")


class Peer:
    """The far end of one connection."""

    def __init__(self, protocol: IProtocol) -> None:
        # Lenient as sockets are: they may be resumed after they were aborted.
        self.protocol, self.transport = protocol, StringTransport(lenient=True)
        protocol.makeConnection(self.transport)

    def says(self, data: bytes) -> None:
        self.protocol.dataReceived(data)

    def hangs_up(self, reason: Exception | None = None) -> None:
        self.protocol.connectionLost(Failure(reason or neterror.ConnectionDone()))

    @property
    def was_told(self) -> bytes:
        told: bytes = self.transport.value()
        return told

    @property
    def is_aborted(self) -> bool:
        return bool(self.transport.disconnected)


class ExchangeTestCase(SynchronousTestCase):
    idle_connections = 0

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        resolver = ThreadedResolver(Threadless(), self.reactor)
        self.exchange: Exchange = api_exchange(
            reactor_with_resolver(self.reactor, self.reactor, resolver),
            policy_for_https(),
            idle_connections=self.idle_connections,
        )

    def ask(self, body: bytes = b"{}", url: str = URL) -> Deferred[Reply]:
        headers = {"Content-Type": "application/json", "User-Agent": "telegrammer/0"}
        return self.exchange.exchange("POST", url, headers, body, seconds=10, limit=LIMIT)

    def connect(self) -> Peer:
        host, port, factory, timeout, _ = self.reactor.tcpClients.pop(0)
        self.assertEqual((host, port, timeout), ("127.0.0.1", 8081, 5))
        protocol = factory.buildProtocol(IPv4Address("TCP", host, port))
        assert protocol is not None
        return Peer(protocol)

    def check_failure(self, asked: Deferred[Reply], kind: type[ExchangeFailed], why: str) -> None:
        failed = self.failureResultOf(asked, kind)
        self.assertEqual(failed.value.why, why)
        # Nothing of the URL, however deep one digs.
        error: BaseException | None = failed.value
        while error is not None:
            self.assertNotIn(SECRET, repr((error, error.args, vars(error))))
            error = error.__cause__ or error.__context__
        self.assertNotIn(SECRET, failed.getTraceback())
        self.check_nothing_left()

    def check_nothing_left(self) -> None:
        self.assertEqual([call for call in self.reactor.getDelayedCalls() if call.active()], [])


class RequestTests(ExchangeTestCase):
    def test_request_and_reply(self) -> None:
        asked, peer = self.ask(b'{"a":1}'), self.connect()
        head, _, body = peer.was_told.partition(b"\r\n\r\n")
        line, *headers = head.split(b"\r\n")
        self.assertEqual(line, f"POST /bot123:{SECRET}/getMe HTTP/1.1".encode())
        self.assertEqual(
            sorted(headers),
            [
                b"Connection: close",
                b"Content-Length: 7",
                b"Content-Type: application/json",
                b"Host: 127.0.0.1:8081",
                b"User-Agent: telegrammer/0",
            ],
        )
        self.assertEqual(body, b'{"a":1}')
        peer.says(b"HTTP/1.1 201 OK\r\nContent-Length: 2\r\nRetry-After: 1\r\nretry-after: 2\r\n\r\nhi")
        reply = self.successResultOf(asked)
        self.assertEqual((reply.status, reply.body), (201, b"hi"))
        self.assertEqual(reply.values(b"retry-after"), (b"1", b"2"))
        self.assertTrue(peer.is_aborted)
        self.check_nothing_left()

    def test_bodies_that_end_in_every_way(self) -> None:
        for response, body in (
            (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", b"abcd"),
            (b"Content-Length: 0\r\n\r\n", b""),
            (b"\r\nuntil the end", b"until the end"),
        ):
            asked, peer = self.ask(), self.connect()
            peer.says(b"HTTP/1.1 200 OK\r\n" + response)
            if not asked.called:
                peer.hangs_up()
            self.assertEqual(self.successResultOf(asked).body, body)

    def test_without_tls_only_to_loopback_addresses(self) -> None:
        class Liar(ThreadedResolver):
            def resolve(self, host: str, port: int) -> Deferred[Addresses]:
                return succeed([IPv4Address("TCP", "192.0.2.1", port), IPv6Address("TCP", "::1", port)])

        liar = reactor_with_resolver(self.reactor, self.reactor, Liar(Threadless(), self.reactor))
        self.exchange = api_exchange(liar, policy_for_https())
        self.ask(url="http://localhost:8081/x")
        self.assertEqual([client[0] for client in self.reactor.tcpClients], ["::1"])
        self.ask(url="https://localhost:8081/x")
        self.assertEqual([client[0] for client in self.reactor.tcpClients][1:], ["192.0.2.1"])

    def test_redirects_are_answers(self) -> None:
        asked, peer = self.ask(), self.connect()
        peer.says(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:8081/x\r\nContent-Length: 0\r\n\r\n")
        self.assertEqual(self.successResultOf(asked).status, 302)
        self.assertEqual(self.reactor.tcpClients, [])

    def test_content_codings_are_not_undone(self) -> None:
        bomb = gzip.compress(b"x" * 100_000)
        asked, peer = self.ask(), self.connect()
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
        peer.says(head.encode() + bomb)
        self.assertEqual(self.successResultOf(asked).body, bomb)

    @pytest.mark.report("D3")
    def test_nothing_is_logged(self) -> None:
        with capturedLogs() as events:
            asked, peer = self.ask(), self.connect()
            peer.says(OK)
            self.successResultOf(asked)
            peer.hangs_up(neterror.ConnectionAborted())
        self.assertEqual(events, [])


class LimitTests(ExchangeTestCase):
    def test_at_the_limit(self) -> None:
        asked, peer = self.ask(), self.connect()
        peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * LIMIT)
        self.assertEqual(len(self.successResultOf(asked).body), LIMIT)

    def test_declared_too_long(self) -> None:
        asked, peer = self.ask(), self.connect()
        peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n")
        self.check_failure(asked, BodyTooLarge, "an answer of over 1000 bytes")
        self.assertTrue(peer.is_aborted)

    def test_too_long_undeclared(self) -> None:
        for head in (b"\r\n", b"Transfer-Encoding: chunked\r\n\r\n5dc\r\n"):
            asked, peer = self.ask(), self.connect()
            peer.says(b"HTTP/1.1 200 OK\r\n" + head)
            peer.says(b"x" * 900)
            self.assertNoResult(asked)
            peer.says(b"x" * 101)
            self.check_failure(asked, BodyTooLarge, "an answer of over 1000 bytes")
            self.assertTrue(peer.is_aborted)
            peer.says(b"more")
            peer.hangs_up(neterror.ConnectionAborted())

    def test_heads_without_an_end(self) -> None:
        interim = b"HTTP/1.1 100 Continue\r\n\r\n"
        for beginning, endless in (
            (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
            (b"HTTP/1.1 200 OK\n", b"X: y\n"),
            (b"", interim),
            (interim + b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        ):
            asked, peer = self.ask(), self.connect()
            peer.says(beginning)
            fed = len(beginning)
            while not peer.is_aborted and fed < 2 * HEAD_LIMIT:
                # Its end lies across two deliveries.
                peer.says(endless[:-1])
                peer.says(endless[-1:])
                fed += len(endless)
            self.assertTrue(HEAD_LIMIT < fed <= HEAD_LIMIT + len(endless))
            peer.hangs_up(neterror.ConnectionAborted())
            self.failureResultOf(asked, BadReply)

    def test_a_long_head_in_one_delivery(self) -> None:
        for filler, fits in ((HEAD_LIMIT - 100, True), (HEAD_LIMIT, False)):
            lines = b"X: " + b"y" * 1019 + b"\r\n"
            asked, peer = self.ask(), self.connect()
            head = b"HTTP/1.1 200 OK\r\n" + lines * (filler // len(lines)) + b"Content-Length: 2\r\n\r\n"
            peer.says(head + b"{}")
            self.assertEqual(len(head) <= HEAD_LIMIT, fits)
            if fits:
                self.assertEqual(self.successResultOf(asked).body, b"{}")
            else:
                peer.hangs_up(neterror.ConnectionAborted())
                self.check_failure(asked, BadReply, "the head of the answer is too long")

    def test_a_line_without_an_end(self) -> None:
        asked, peer = self.ask(), self.connect()
        peer.says(b"HTTP/1.1 200 OK\r\nX: " + b"y" * HEAD_LIMIT)
        self.assertTrue(peer.is_aborted)
        peer.hangs_up(neterror.ConnectionAborted())
        self.check_failure(asked, BadReply, "the head of the answer is too long")

    def test_informational_answers_are_passed_over_in_silence(self) -> None:
        interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\n\n"
        for size in (1, 7, 1000):
            asked, peer = self.ask(), self.connect()
            answer = interim + OK
            with capturedLogs() as lines:
                for start in range(0, len(answer), size):
                    peer.says(answer[start : start + size])
            self.assertEqual(self.successResultOf(asked).status, 200)
            self.assertEqual(list(lines), [])

    def test_bodies_are_not_taken_for_heads(self) -> None:
        asked, peer = self.ask(), self.connect()
        peer.says(b"HTTP/1.1 100 Continue\r\n\r")
        peer.says(b"\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(LIMIT):
            peer.says(b"1;" + b"e" * 100 + b"\r\nx\r\n")
        peer.says(b"0\r\n\r\n")
        self.assertEqual(self.successResultOf(asked).body, b"x" * LIMIT)


class DeadlineTests(ExchangeTestCase):
    def late(self, asked: Deferred[Reply]) -> None:
        self.reactor.advance(9.9)
        self.assertNoResult(asked)
        self.reactor.advance(0.2)

    @pytest.mark.report("B1")
    def test_while_waiting_for_the_head(self) -> None:
        asked, peer = self.ask(), self.connect()
        self.late(asked)
        self.check_failure(asked, DeadlinePassed, "no answer in 10 s")
        self.assertTrue(peer.is_aborted)

    @pytest.mark.report("B2")
    def test_while_the_body_drips(self) -> None:
        asked, peer = self.ask(), self.connect()
        peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        for _ in range(9):
            self.reactor.advance(1)
            peer.says(b"x")
        self.assertNoResult(asked)
        self.reactor.advance(1)
        self.check_failure(asked, DeadlinePassed, "no answer in 10 s")
        self.assertTrue(peer.is_aborted)
        peer.says(b"x")
        peer.hangs_up(neterror.ConnectionAborted())

    def test_while_connecting(self) -> None:
        asked = self.exchange.exchange("POST", URL, {}, b"{}", seconds=3, limit=LIMIT)
        self.reactor.advance(3)
        self.check_failure(asked, DeadlinePassed, "no answer in 3 s")

    def test_while_the_name_is_looked_up(self) -> None:
        class NoThreads(ThreadedResolver):
            def resolve(self, host: str, port: int) -> Deferred[object]:  # type: ignore[override]
                return Deferred()

        exchange = api_exchange(
            reactor_with_resolver(self.reactor, self.reactor, NoThreads(Threadless(), self.reactor)),
            policy_for_https(),
        )
        asked = exchange.exchange("POST", "https://api.test/x", {}, b"{}", seconds=3, limit=LIMIT)
        self.reactor.advance(3)
        self.check_failure(asked, DeadlinePassed, "no answer in 3 s")

    def test_cancelled_in_every_phase(self) -> None:
        for said in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx"):
            asked, peer = self.ask(), self.connect()
            peer.says(said) if said else None
            asked.cancel()
            self.failureResultOf(asked, CancelledError)
            self.assertTrue(peer.is_aborted)
            self.check_nothing_left()


class BrokenTests(ExchangeTestCase):
    def test_refused(self) -> None:
        asked = self.ask()
        *_, factory, _, _ = self.reactor.tcpClients.pop()
        connector = self.reactor.connectors.pop()
        factory.clientConnectionFailed(connector, Failure(neterror.ConnectionRefusedError()))
        self.reactor.advance(0.3)
        self.check_failure(asked, NotConnected, "connection refused")

    def test_lost(self) -> None:
        for said in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx"):
            for reason in (neterror.ConnectionDone(), neterror.ConnectionLost()):
                asked, peer = self.ask(), self.connect()
                peer.says(said) if said else None
                peer.hangs_up(reason)
                self.check_failure(asked, ConnectionBroken, "connection lost")

    def test_lost_within_a_chunked_body(self) -> None:
        asked, peer = self.ask(), self.connect()
        peer.says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
        peer.hangs_up()
        self.check_failure(asked, ConnectionBroken, "connection lost")

    def test_not_http(self) -> None:
        for said in (
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"\x15\x03\x01\r\n",
            b"HTTP/1.1 abc OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        ):
            asked, peer = self.ask(), self.connect()
            peer.says(said)
            self.check_failure(asked, BadReply, "the answer is not HTTP")
            self.assertTrue(peer.is_aborted)

    def test_urls_that_cannot_be_called(self) -> None:
        for url in (f"ftp://127.0.0.1/{SECRET}", f"http://exa mple/{SECRET}"):
            failed = self.failureResultOf(self.ask(url=url), ExchangeFailed)
            self.assertNotIn(SECRET, failed.getTraceback())
            self.assertIsNone(failed.value.__context__)


class KeptConnectionTests(ExchangeTestCase):
    idle_connections = 2

    def test_is_used_again(self) -> None:
        asked, peer = self.ask(), self.connect()
        self.assertNotIn(b"Connection: close", peer.was_told)
        peer.says(
            b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}"
        )
        self.successResultOf(asked)
        peer.transport.clear()
        asked = self.ask()
        self.assertEqual(self.reactor.tcpClients, [])
        self.assertIn(b"POST /bot", peer.was_told)
        self.assertNotIn(b"Cookie", peer.was_told)
        peer.says(KEPT)
        self.assertEqual(self.successResultOf(asked).body, b"{}")
        self.successResultOf(self.close(peer))

    def close(self, peer: Peer) -> Deferred[None]:
        closing = self.exchange.close()
        self.assertTrue(peer.is_aborted)
        peer.hangs_up(neterror.ConnectionAborted())
        self.check_nothing_left()
        return closing

    def test_is_closed_when_idle_for_long(self) -> None:
        asked, peer = self.ask(), self.connect()
        peer.says(KEPT)
        self.successResultOf(asked)
        self.reactor.advance(IDLE_SECONDS - 1)
        self.assertFalse(peer.is_aborted)
        self.reactor.advance(1)
        self.assertTrue(peer.is_aborted)
        self.check_nothing_left()

    @pytest.mark.report("B6", "F1")
    def test_a_stale_one_costs_the_request_and_is_not_tried_again(self) -> None:
        asked, peer = self.ask(), self.connect()
        peer.says(KEPT)
        self.successResultOf(asked)
        asked = self.ask()
        peer.hangs_up()
        self.assertEqual(self.reactor.tcpClients, [])
        self.check_failure(asked, ConnectionBroken, "connection lost")

    def test_only_one_that_the_peer_promises_to_keep(self) -> None:
        for first, kept in (
            (b"HTTP/1.1 200 OK\r\n", False),
            (b"HTTP/1.0 200 OK\r\n", False),
            (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
            (b"HTTP/1.1 200 OK\r\nConnection: keep-alive, close\r\n", False),
            (b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nConnection: close\r\n", False),
            (b"HTTP/1.1 200 OK\r\nX-Connection: keep-alive\r\n", False),
            (b"HTTP/1.1 200 OK\r\nCONNECTION:Keep-Alive\r\n", True),
            (b"HTTP/1.1 200 OK\nconnection: x , keep-alive \n", True),
        ):
            asked, peer = self.ask(), self.connect()
            peer.says(first + b"Content-Length: 36\r\n\r\n")
            # Nothing in the body is taken for a promise.
            peer.says(b"\r\nConnection: keep-alive\r\n" + b"x" * 10)
            self.assertEqual(self.successResultOf(asked).status, 200)
            self.assertEqual(not peer.is_aborted, kept, first)
            if kept:
                self.successResultOf(self.close(peer))
            self.check_nothing_left()

    def test_the_limit_is_for_each_head(self) -> None:
        asked, peer = self.ask(), self.connect()
        for _ in range(5):
            peer.says(
                b"HTTP/1.1 200 OK\r\n"
                + b"X: y\r\n" * 2000
                + b"Connection: keep-alive\r\nContent-Length: 2\r\n\r\n{}"
            )
            self.successResultOf(asked)
            asked = self.ask()
        self.assertFalse(peer.is_aborted)
        peer.says(KEPT)
        self.successResultOf(asked)
        self.successResultOf(self.close(peer))

    def test_one_that_failed_is_not(self) -> None:
        asked, peer = self.ask(), self.connect()
        peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n")
        self.failureResultOf(asked, BodyTooLarge)
        asked = self.ask()
        self.assertEqual(len(self.reactor.tcpClients), 1)
        asked.cancel()
        self.failureResultOf(asked)


class TranslatedTests(SynchronousTestCase):
    def test_what_twisted_wraps(self) -> None:
        for cause, kind, why in (
            (CertificateRefused("certificate expired"), NotConnected, "certificate expired"),
            (SSL.Error([("SSL routines", "", "wrong version number")]), NotConnected, "TLS failed"),
            (neterror.DNSLookupError(), NotConnected, "name not found"),
            (neterror.TimeoutError(), NotConnected, "connect timeout"),
            (neterror.TCPTimedOutError(), NotConnected, "cannot connect"),
            (neterror.NoRouteError(), NotConnected, "cannot connect"),
            (neterror.ConnectionLost(), ConnectionBroken, "connection lost"),
        ):
            for wrapped in (
                cause,
                ResponseNeverReceived([Failure(cause)]),
                ResponseFailed([Failure(neterror.ConnectionDone()), Failure(cause)]),
                RequestTransmissionFailed([Failure(cause)]),
                ResponseFailed([Failure(ResponseNeverReceived([Failure(cause)]))]),
            ):
                found = translated(wrapped)
                assert isinstance(found, kind)
                self.assertEqual(found.why, why)

    def test_a_cancellation_stays_one(self) -> None:
        self.assertIsInstance(translated(ResponseNeverReceived([Failure(CancelledError())])), CancelledError)

    def test_what_nobody_foresaw(self) -> None:
        found = translated(ValueError("SECRET"))
        assert isinstance(found, BadReply)
        self.assertEqual(found.why, "an unexpected ValueError")
