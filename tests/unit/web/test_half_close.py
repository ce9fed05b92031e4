"""A peer that sends no more: what it asked for it gets, and nothing else keeps its connection."""

from __future__ import annotations

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.web import admission
from telegrammer.web.half_close import NothingToRead, hung_up
from telegrammer.web.limits import RequestLimits
from tests.support.front import CALLER, Front, Peer, PeerTransport, chunked, get, post

LIMITS = RequestLimits()
BIG = b"x" * (200 * 1024)


class AnsweringTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.front = Front()
        self.handler = self.front.handler

    def finish(self, number: int = 0, body: bytes = b"{}") -> None:
        request, _ = self.handler.served[number]
        request.write(body)
        request.finish()

    def assert_over(self, peer: Peer, statuses: list[int]) -> None:
        """All is answered, and the connection closes without lingering."""
        self.assertEqual(peer.statuses, statuses)
        self.front.clock.advance(0)
        self.assertTrue(peer.transport.disconnecting or peer.transport.gone)
        self.assertFalse(peer.transport.half_closed)
        if not peer.transport.gone:
            peer.leave()
        self.assertEqual(len(self.front.site.connections), 0)
        self.assertEqual(self.front.site.workers.running, 0)
        self.assertEqual(self.front.clock.getDelayedCalls(), [])

    def test_the_channel_asks_to_be_told(self) -> None:
        self.assertTrue(IHalfCloseableProtocol.providedBy(self.front.connect().channel))

    def test_while_it_is_served(self) -> None:
        peer = self.front.call(post())
        peer.end_input()
        self.front.clock.pump([1] * 10)
        self.assertFalse(peer.transport.gone)
        self.finish()
        self.assert_over(peer, [200])

    def test_while_its_key_is_looked_up(self) -> None:
        self.handler.answers = b"{}"
        held: list[Deferred[int | None]] = []
        self.front.keys.held = held
        for request, statuses in ((get(), [200]), (post(), [200]), (post()[:-1], [])):
            peer = self.front.call(request)
            peer.end_input()
            held.pop().callback(CALLER)
            self.front.clock.advance(0)
            self.assert_over(peer, statuses)

    def test_while_its_answer_is_sent(self) -> None:
        peer = self.front.call(get())
        peer.transport.congested = True
        self.finish(body=BIG)
        peer.end_input()
        self.assertFalse(peer.closed)
        for _ in range(5):
            peer.transport.drain()
            self.front.clock.advance(0)
        self.assertEqual(len(peer.answers[0].body), len(BIG))
        self.assert_over(peer, [200])

    def test_while_its_refusal_is_sent(self) -> None:
        peer = self.front.connect()
        peer.transport.congested = True
        peer.send(b"nonsense\r\n")
        peer.end_input()
        self.assertFalse(peer.closed)
        peer.transport.drain()
        self.assert_over(peer, [400])

    def test_after_its_refusal(self) -> None:
        peer = self.front.call(b"nonsense\r\n")
        self.assertTrue(peer.transport.half_closed)
        peer.channel.writeConnectionLost()
        self.assertFalse(peer.transport.disconnecting)
        peer.end_input()
        self.assertTrue(peer.transport.disconnecting)

    def test_several_requests(self) -> None:
        peer = self.front.call(post(b"1") + chunked(b"2") + get())
        peer.end_input()
        for number in range(3):
            self.assertFalse(peer.closed)
            self.finish(number)
            self.front.clock.advance(0)
        self.assert_over(peer, [200, 200, 200])

    def test_a_request_and_a_part_of_another(self) -> None:
        for rest in (b"GET", get()[:-2], post(b"12")[:-1], chunked(b"12", end=b"")):
            peer = self.front.call(get(b"/health") + rest)
            peer.end_input()
            self.finish(-1)
            self.front.clock.advance(0)
            self.assert_over(peer, [200])

    def test_nothing_that_could_be_answered(self) -> None:
        for request in (b"", b"GET", get()[:-2], post(b"12")[:-1], chunked(b"12", end=b"")):
            peer = self.front.call(request)
            peer.end_input()
            self.assertTrue(peer.transport.gone)
            self.assert_over(peer, [])
        self.handler.answers = b"{}"
        peer = self.front.call(get())
        peer.end_input()
        self.assert_over(peer, [200])

    def test_one_that_is_gone_in_truth(self) -> None:
        gone: list[bool] = []
        self.patch(admission, "hung_up", lambda transport: bool(gone))
        peer, told = self.front.call(post()), []
        self.handler.left = lambda: told.append(True)
        peer.end_input()
        self.front.clock.advance(1)
        self.assertEqual(told, [])
        gone.append(True)
        self.front.clock.advance(1)
        self.assertEqual(told, [True])
        self.assert_over(peer, [])
        peer = self.front.call(post())
        peer.end_input()  # seen at once
        self.assert_over(peer, [])

    def test_the_stop(self) -> None:
        served, refused = self.front.call(get()), self.front.connect()
        refused.transport.congested = True
        refused.send(b"nonsense\r\n")
        for peer in (served, refused):
            peer.end_input()
        drained = self.front.site.drain()
        self.finish()
        refused.transport.drain()
        self.assertNoResult(drained)
        for peer in (served, refused):
            self.assertTrue(peer.transport.disconnecting)
            peer.leave()
        self.successResultOf(drained)
        self.assertEqual((served.statuses, refused.statuses), ([200], [400]))


class WaitingTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.front = Front(evolve(LIMITS, workers=1))
        self.front.call(post())

    def test_one_that_waits_for_a_worker_is_taken_to_be_gone(self) -> None:
        peer = self.front.call(post())
        peer.end_input()
        self.assertTrue(peer.transport.gone)
        self.assertEqual(self.front.site.workers.waiting, 0)
        self.assertEqual(len(self.front.handler.served), 1)

    def test_one_that_has_waited_is_not(self) -> None:
        peer = self.front.call(post())
        self.front.handler.served[0][0].finish()
        peer.end_input()
        self.assertFalse(peer.transport.gone)
        self.front.handler.served[1][0].finish()
        self.assertEqual(peer.statuses, [200])

    def test_one_whose_next_request_would_have_to_wait(self) -> None:
        peer = self.front.call(get(b"/health") + post())
        peer.end_input()
        self.front.handler.served[1][0].finish()
        self.front.clock.advance(0)
        self.assertTrue(peer.transport.gone)
        self.assertEqual(peer.statuses, [200])
        self.assertEqual(self.front.site.workers.waiting, 0)


class SocketTests(SynchronousTestCase):
    def test_without_a_socket_nobody_has_hung_up(self) -> None:
        self.assertFalse(hung_up(PeerTransport()))

    def test_nothing_to_read(self) -> None:
        transport = PeerTransport()
        transport.registerProducer(self, True)
        transport.input_ended = True
        producer = NothingToRead(transport)
        producer.resumeProducing()
        producer.pauseProducing()
        producer.unregisterProducer()
        self.assertIsNone(transport.producer)
