from __future__ import annotations

import pytest
from attrs import evolve
from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.client import BrowserLikePolicyForHTTPS

from telegrammer.core.delivery import Answered, AttemptResult, Claimed, Unanswered, Undeliverable
from telegrammer.outbound.callbacks import LOOKUP_PATIENCE, CallbackClient, CallbackLimits
from telegrammer.outbound.connections import Peer
from telegrammer.outbound.pool import LINGER
from telegrammer.outbound.resolver import LookupFailed
from telegrammer.ports import Callbacks
from tests.support.network import Names, Network, Wire, address

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
JOB = Claimed(
    id=1,
    subscription_id=2,
    url="http://hook.example/in?key=secret",
    body=b'{"text":"hi"}',
    delivery_id="123-2-0-77",
)
IDLE = CallbackLimits().idle


class ClientTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock, self.network = Clock(), Network()
        self.names = Names({"hook.example": ["192.0.2.1"], "other.example": ["192.0.2.2"]})
        self.client = self.make_client(CallbackLimits())

    def make_client(self, limits: CallbackLimits) -> CallbackClient:
        return CallbackClient(
            self.network, self.clock, self.names, BrowserLikePolicyForHTTPS(), "telegrammer/9.9", limits
        )

    def post(self, url: str = JOB.url, body: bytes = JOB.body) -> Deferred[AttemptResult]:
        return self.client.post(evolve(JOB, url=url, body=body))

    def connected(self, url: str = JOB.url, body: bytes = JOB.body) -> tuple[Deferred[AttemptResult], Wire]:
        """A POST on a new connection."""
        result = self.post(url, body)
        return result, self.network.attempts[-1].accept()

    def assertClean(self) -> None:
        self.assertEqual(self.clock.getDelayedCalls(), [])


class Requests(ClientTestCase):
    def test_the_request(self) -> None:
        result, wire = self.connected()
        self.assertEqual(
            wire.sent,
            b"POST /in?key=secret HTTP/1.1\r\nHost: hook.example\r\nUser-Agent: telegrammer/9.9\r\n"
            b"Content-Type: application/json\r\nX-Telegrammer-Delivery-Id: 123-2-0-77\r\n"
            b'Content-Length: 13\r\n\r\n{"text":"hi"}',
        )
        self.assertNoResult(result)
        wire.receive(OK)
        self.assertEqual(self.successResultOf(result), Answered(200))

    def test_the_port(self) -> None:
        callbacks: Callbacks = self.client
        self.assertIsNotNone(callbacks)

    def test_nothing_is_held_back(self) -> None:
        _, wire = self.connected()
        self.assertTrue(wire.no_delay)

    def test_where_it_goes(self) -> None:
        for url, host, port, header, target in (
            ("http://hook.example:8080/", "192.0.2.1", 8080, b"hook.example:8080", b"/"),
            ("http://[::1]:81/a%2Fb/../c", "::1", 81, b"[::1]:81", b"/a%2Fb/../c"),
            ("http://127.0.0.1/", "127.0.0.1", 80, b"127.0.0.1", b"/"),
            ("http://my_service/", "10.0.0.5", 80, b"my_service", b"/"),
        ):
            self.names.table = {
                "hook.example": ["192.0.2.1"],
                "my_service": ["10.0.0.5"],
                "::1": ["::1"],
                "127.0.0.1": ["127.0.0.1"],
            }
            _, wire = self.connected(url)
            attempt = self.network.attempts[-1]
            self.assertEqual((attempt.host, attempt.port), (host, port))
            self.assertIn(b"POST " + target + b" HTTP/1.1\r\nHost: " + header + b"\r\n", wire.sent)

    def test_a_url_that_is_none(self) -> None:
        result = self.successResultOf(self.post("ftp://secret.example/"))
        self.assertIsInstance(result, Undeliverable)
        self.assertNotIn("secret", repr(result))
        self.assertEqual(self.names.asked, [])
        self.assertClean()


class Answers(ClientTestCase):
    def test_status_and_retry_after(self) -> None:
        result, wire = self.connected()
        wire.receive(b"HTTP/1.1 503 x\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n")
        self.assertEqual(self.successResultOf(result), Answered(503, (b"7",)))

    @pytest.mark.report("H1")
    def test_redirects_are_answers(self) -> None:
        result, wire = self.connected()
        wire.receive(b"HTTP/1.1 303 x\r\nLocation: http://other.example/\r\nContent-Length: 0\r\n\r\n")
        self.assertEqual(self.successResultOf(result), Answered(303))
        self.assertEqual(len(self.network.attempts), 1)

    def test_a_body_that_ends_with_the_connection(self) -> None:
        result, wire = self.connected()
        wire.receive(b"HTTP/1.0 200 x\r\n\r\nhello")
        self.assertNoResult(result)
        wire.lose()
        self.assertEqual(self.successResultOf(result), Answered(200))
        self.assertClean()

    @pytest.mark.report("H10")
    def test_a_body_cut_short(self) -> None:
        result, wire = self.connected()
        wire.receive(b"HTTP/1.1 200 x\r\nContent-Length: 10\r\n\r\nhel")
        wire.lose(ConnectionLost())
        self.assertEqual(self.successResultOf(result), Answered(200))
        self.assertClean()

    @pytest.mark.report("B2")
    def test_a_stalled_body_is_cut_at_the_deadline_and_the_answer_stands(self) -> None:
        for status in (200, 503):
            result, wire = self.connected()
            wire.receive(b"HTTP/1.1 %d x\r\nContent-Length: 10\r\n\r\nhel" % status)
            self.clock.advance(9.9)
            self.assertNoResult(result)
            self.clock.advance(0.1)
            self.assertEqual(self.successResultOf(result), Answered(status))
            self.assertTrue(wire.aborted)
            wire.lose()
            self.assertClean()

    @pytest.mark.report("H10")
    def test_an_oversized_body_is_cut_and_the_answer_stands(self) -> None:
        result, wire = self.connected()
        wire.receive(b"HTTP/1.1 200 x\r\n\r\n" + b"b" * 65537)
        self.assertEqual(self.successResultOf(result), Answered(200))
        self.assertTrue(wire.aborted)

    def test_bytes_after_an_abort_are_ignored(self) -> None:
        _, wire = self.connected()
        wire.receive(b"HTTP/1.1 200 x\r\n\r\n" + b"b" * 65537)
        wire.receive(b"more")
        wire.lose()
        self.assertClean()


class NoAnswers(ClientTestCase):
    def test_malformed_and_too_large(self) -> None:
        for data, why in (
            (b"SSH-2.0-x\r\n", "malformed response"),
            (b"HTTP/1.1 200 x\r\nX: " + b"y" * 65536, "response head too large"),
            (b"HTTP/1.1 101 x\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "unexpected protocol switch"),
        ):
            result, wire = self.connected()
            wire.receive(data)
            self.assertEqual(self.successResultOf(result), Unanswered(why))
            self.assertTrue(wire.aborted)
            wire.lose()
            self.assertClean()

    def test_the_connection_ends_without_an_answer(self) -> None:
        for sent in (b"", b"HTTP/1.1 200 OK\r\nContent-"):
            result, wire = self.connected()
            if sent:
                wire.receive(sent)
            wire.lose()
            self.assertEqual(self.successResultOf(result), Unanswered("connection lost"))
            self.assertClean()

    def test_refused(self) -> None:
        result = self.post()
        self.network.attempts[0].refuse()
        self.assertEqual(self.successResultOf(result), Unanswered("connection refused"))
        self.assertClean()

    def test_connect_timeout(self) -> None:
        result = self.post()
        self.clock.advance(2.9)
        self.assertNoResult(result)
        self.clock.advance(0.1)
        self.assertEqual(self.successResultOf(result), Unanswered("connect timeout"))
        self.assertTrue(self.network.attempts[0].stopped)
        self.assertClean()

    def test_name_not_found(self) -> None:
        self.names.table["hook.example"] = LookupFailed("name not found")
        self.assertEqual(self.successResultOf(self.post()), Unanswered("name not found"))
        self.assertClean()

    def test_the_deadline_holds_in_every_phase(self) -> None:
        looking_up = self.post("http://hanging.example/")
        answering, wire = self.connected()
        dripping, slow_wire = self.connected()
        for _ in range(10):
            slow_wire.receive(b"\r\n")
            self.clock.advance(1)
        for result in (looking_up, answering, dripping):
            self.assertEqual(self.successResultOf(result), Unanswered("timeout after 10 s"))
        self.assertEqual(self.names.cancelled, ["hanging.example"])
        self.assertTrue(wire.aborted)
        self.assertTrue(slow_wire.aborted)
        self.assertClean()

    def test_a_slow_look_up_eats_into_the_deadline(self) -> None:
        result = self.post("http://hanging.example/")
        self.clock.advance(9)
        self.names.table["hanging.example"] = ["192.0.2.9"]
        self.clock.advance(1)
        self.assertEqual(self.successResultOf(result), Unanswered("timeout after 10 s"))
        self.assertEqual(self.network.attempts, [])

    def test_stuck_in_the_look_up(self) -> None:
        told: list[set[int]] = []
        self.client.on_stuck = lambda: told.append(set(self.client.stuck()))
        result = self.post("http://late.example/")
        self.assertEqual(self.client.stuck(), set())
        self.clock.advance(LOOKUP_PATIENCE)
        self.assertEqual((told, self.client.stuck()), ([{JOB.id}], {JOB.id}))
        self.names.pending["late.example"].callback([address("192.0.2.1")])
        self.assertEqual(self.client.stuck(), set())
        self.network.attempts[-1].accept().receive(CLOSING)
        self.assertEqual(self.successResultOf(result), Answered(200))
        self.clock.advance(LINGER)
        self.assertClean()

    def test_stuck_until_the_deadline(self) -> None:
        result = self.post("http://hanging.example/")
        self.clock.advance(LOOKUP_PATIENCE)
        self.assertEqual(self.client.stuck(), {JOB.id})
        self.clock.advance(10)
        self.assertEqual(self.successResultOf(result), Unanswered("timeout after 10 s"))
        self.assertEqual(self.client.stuck(), set())
        self.assertClean()

    def test_a_quick_look_up_is_not_stuck(self) -> None:
        self.post("http://soon.example/")
        self.names.pending["soon.example"].errback(LookupFailed("name not found"))
        self.clock.advance(LOOKUP_PATIENCE)
        self.assertEqual(self.client.stuck(), set())
        self.assertClean()

    def test_cancelled(self) -> None:
        result, wire = self.connected()
        result.cancel()
        self.failureResultOf(result, CancelledError)
        self.assertTrue(wire.aborted)
        wire.lose()
        self.assertClean()

    def test_cancelled_with_the_answer_in(self) -> None:
        result, wire = self.connected()
        wire.receive(b"HTTP/1.1 200 x\r\nContent-Length: 10\r\n\r\n")
        result.cancel()
        self.assertEqual(self.successResultOf(result), Answered(200))

    def test_tls_errors_after_the_handshake(self) -> None:
        result, wire = self.connected()
        wire.lose(SSL.Error([]))
        self.assertEqual(self.successResultOf(result), Unanswered("TLS handshake failed"))


class Reuse(ClientTestCase):
    def done(self, result: Deferred[AttemptResult], wire: Wire, response: bytes = OK) -> None:
        wire.receive(response)
        self.assertEqual(self.successResultOf(result), Answered(200))

    def test_the_same_connection_again(self) -> None:
        self.done(*self.connected())
        wire = self.network.attempts[0]
        self.assertEqual(self.names.asked, ["hook.example"])
        again = self.post("http://hook.example/other/path")
        self.assertEqual(len(self.network.attempts), 1)
        self.assertNoResult(again)
        self.assertEqual(self.names.asked, ["hook.example"])
        self.assertFalse(wire.stopped)

    def test_several_in_a_row(self) -> None:
        result, wire = self.connected()
        for _ in range(5):
            self.done(result, wire)
            wire.clear()
            result = self.post()
            self.assertIn(b"POST /in", wire.sent)
        self.done(result, wire)
        self.assertEqual(len(self.network.attempts), 1)

    def test_a_busy_connection_is_not_shared(self) -> None:
        self.connected()
        self.connected()
        self.assertEqual(len(self.network.attempts), 2)

    def test_not_for_another_host_port_or_scheme(self) -> None:
        self.done(*self.connected())
        self.names.table["hook.example"] = ["192.0.2.1"]
        for url in ("http://other.example/", "http://hook.example:81/", "https://hook.example:80/"):
            before = len(self.network.attempts)
            self.post(url)
            self.assertEqual(len(self.network.attempts), before + 1, url)

    def test_not_when_the_peer_closes(self) -> None:
        for response in (CLOSING, b"HTTP/1.0 200 x\r\nContent-Length: 0\r\n\r\n"):
            result, wire = self.connected()
            self.done(result, wire, response)
            self.assertTrue(wire.disconnecting)
            self.assertFalse(wire.aborted)
            wire.lose()
            self.assertClean()

    def test_a_peer_that_does_not_take_leave_is_cut_off(self) -> None:
        result, wire = self.connected()
        self.done(result, wire, CLOSING)
        self.clock.advance(LINGER)
        self.assertTrue(wire.aborted)
        wire.lose()
        self.assertClean()

    def test_not_after_surplus_bytes(self) -> None:
        for response in (OK + b"surplus", OK + OK):
            result, wire = self.connected()
            self.done(result, wire, response)
            self.assertTrue(wire.aborted)

    def test_not_after_bytes_while_idle(self) -> None:
        result, wire = self.connected()
        self.done(result, wire)
        wire.receive(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        self.assertTrue(wire.aborted)
        self.post()
        self.assertEqual(len(self.network.attempts), 2)

    def test_not_after_the_peer_left(self) -> None:
        result, wire = self.connected()
        self.done(result, wire)
        wire.lose()
        self.assertClean()
        self.post()
        self.assertEqual(len(self.network.attempts), 2)

    def test_not_for_long(self) -> None:
        result, wire = self.connected()
        self.done(result, wire)
        self.clock.advance(IDLE)
        self.assertTrue(wire.disconnecting)
        wire.lose()
        self.assertClean()

    def test_each_use_renews_the_idle_time(self) -> None:
        result, wire = self.connected()
        self.done(result, wire)
        self.clock.advance(IDLE - 0.5)
        result = self.post()
        self.done(result, wire)
        self.clock.advance(IDLE - 0.5)
        self.assertFalse(wire.disconnecting)
        self.clock.advance(0.5)
        self.assertTrue(wire.disconnecting)

    def test_the_peers_own_limit_is_kept(self) -> None:
        result, wire = self.connected()
        self.done(result, wire, b"HTTP/1.1 200 x\r\nKeep-Alive: timeout=2\r\nContent-Length: 0\r\n\r\n")
        self.clock.advance(1.0)
        self.post()
        self.assertEqual(len(self.network.attempts), 2)
        self.assertTrue(wire.disconnecting)

    def test_a_limit_too_short_to_be_of_use(self) -> None:
        result, wire = self.connected()
        self.done(result, wire, b"HTTP/1.1 200 x\r\nKeep-Alive: timeout=1\r\nContent-Length: 0\r\n\r\n")
        self.assertTrue(wire.disconnecting)

    def test_a_stale_connection_is_not_made_up_for(self) -> None:
        """The receiver may have read the request: one claim, one POST."""
        result, wire = self.connected()
        self.done(result, wire)
        again = self.post()
        wire.lose()
        self.assertEqual(self.successResultOf(again), Unanswered("connection lost"))
        self.assertEqual(len(self.network.attempts), 1)

    def test_the_longest_idle_gives_way(self) -> None:
        self.client = self.make_client(CallbackLimits(idle_connections=2))
        pairs = [self.connected() for _ in range(3)]
        for result, wire in pairs:
            self.done(result, wire)
        self.assertEqual([wire.disconnecting for _, wire in pairs], [True, False, False])

    def test_an_answer_before_the_whole_request_was_taken(self) -> None:
        result, wire = self.connected(body=b"x" * 100_000)
        assert wire.producer is not None
        wire.producer.pauseProducing()
        self.done(result, wire)
        self.assertTrue(wire.disconnecting)
        self.assertIsNone(wire.producer)

    def test_a_large_request_that_was_taken_whole(self) -> None:
        result, wire = self.connected(body=b"x" * 100_000)
        assert wire.producer is not None
        wire.producer.pauseProducing()
        wire.producer.resumeProducing()
        self.done(result, wire)
        self.assertFalse(wire.disconnecting)
        self.assertIsNone(wire.producer)
        self.done(self.post(body=b"x" * 100_000), wire)
        self.assertEqual(len(self.network.attempts), 1)

    def test_not_while_the_transport_is_closing(self) -> None:
        """So it is for a turn when a TLS peer has taken leave."""
        result, wire = self.connected()
        self.done(result, wire)
        wire.disconnecting = True
        self.post()
        self.assertEqual(len(self.network.attempts), 2)

    def test_a_transport_that_closes_under_a_large_request(self) -> None:
        result, wire = self.connected(body=b"x" * 100_000)
        assert wire.producer is not None
        wire.producer.pauseProducing()
        wire.producer.stopProducing()
        wire.lose()
        self.assertEqual(self.successResultOf(result), Unanswered("connection lost"))


class Closing(ClientTestCase):
    def test_nothing_open(self) -> None:
        self.successResultOf(self.client.close())
        self.successResultOf(self.client.close())
        self.assertClean()

    def test_all_kinds(self) -> None:
        idle_result, idle = self.connected()
        idle.receive(OK)
        closing_result, closing = self.connected("http://other.example/")
        closing.receive(CLOSING)
        busy_result, busy = self.connected("http://other.example/")
        answered_result, answered = self.connected("http://other.example/")
        answered.receive(b"HTTP/1.1 200 x\r\nContent-Length: 10\r\n\r\n")
        hanging = self.post("http://hanging.example/")
        closed = self.client.close()
        self.assertEqual(self.successResultOf(busy_result), Unanswered("gateway stopped"))
        self.assertEqual(self.successResultOf(hanging), Unanswered("gateway stopped"))
        self.assertEqual(self.successResultOf(answered_result), Answered(200))
        self.assertTrue(idle.disconnecting)
        self.assertTrue(busy.aborted)
        self.assertNoResult(closed)
        for wire in (idle, closing, busy, answered):
            wire.lose()
        self.successResultOf(closed)
        self.assertEqual(self.successResultOf(idle_result), Answered(200))
        self.assertEqual(self.successResultOf(closing_result), Answered(200))
        self.assertClean()

    def test_no_post_afterwards(self) -> None:
        self.client.close()
        self.assertEqual(self.successResultOf(self.post()), Unanswered("gateway stopped"))
        self.assertEqual(self.names.asked, [])
        self.assertClean()

    def test_urls_stay_out_of_repr(self) -> None:
        self.assertNotIn("secret", repr(self.client) + repr(self.client._route(JOB.url)))
        self.assertEqual(self.client._route(JOB.url).peer, Peer("http", "hook.example", 80))
