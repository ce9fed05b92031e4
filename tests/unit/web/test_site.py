"""The site: its port, its access line, its stop."""

from __future__ import annotations

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.logger import LogEvent, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.web.limits import RequestLimits
from tests.support.front import AUTHORIZED, CALLER, KEY, Front, Peer, chunked, get, post

LIMITS = RequestLimits()


class PortTests(SynchronousTestCase):
    def test_connections_beyond_the_limit_are_closed(self) -> None:
        front = Front(evolve(LIMITS, connections=2))
        first, _ = front.connect(), front.connect()
        with capturedLogs() as logged:
            beyond = [front.connect() for _ in range(3)]
        self.assertEqual([peer.closed for peer in beyond], [True] * 3)
        self.assertEqual(len(logged), 1)
        self.assertEqual(len(front.site.connections), 2)
        first.leave()
        again = front.connect()
        self.assertFalse(again.closed)
        again.send(get())
        self.assertEqual(len(front.handler.served), 1)

    def test_speaks_only_http_1(self) -> None:
        self.assertEqual(Front().site.acceptableProtocols(), [b"http/1.1"])

    def test_keeps_no_timer_and_says_nothing_when_it_starts_and_stops(self) -> None:
        with capturedLogs() as logged:
            front = Front()
            front.site.doStop()
        self.assertEqual((logged, front.clock.getDelayedCalls()), ([], []))


class AccessLineTests(SynchronousTestCase):
    def lines(self, front: Front, *requests: bytes) -> list[str]:
        with capturedLogs() as logged:
            for request in requests:
                front.call(request)
        self.events: list[LogEvent] = list(logged)
        return [formatEvent(event) for event in logged]

    def test_method_route_status_milliseconds_key(self) -> None:
        front = Front()
        front.handler.answers = b"{}"
        requests_and_lines = (
            (get(), f"GET /subscriptions 200 0 ms, key {CALLER}"),
            (
                get(b"/subscriptions/99", method=b"DELETE"),
                f"DELETE /subscriptions/<text> 200 0 ms, key {CALLER}",
            ),
            (get(headers=b""), "GET /subscriptions 401 0 ms, key -"),
            (post(headers=b""), "POST /send 401 0 ms, key -"),
            (post(b"x" * 65537), f"POST /send 413 0 ms, key {CALLER}"),
            (chunked(b"x" * 65537), f"POST /send 413 0 ms, key {CALLER}"),
            (get(b"/secret?token=x"), "GET - 404 0 ms, key -"),
            (get(method=b"SECRET"), "- - 405 0 ms, key -"),
            (b"GET /secret\r\n\r\n", "- - 400 0 ms, key -"),
            (get(headers=b"Secret\r\n"), "GET - 400 0 ms, key -"),
            (b"secret" * 4000, "- - 400 0 ms, key -"),
        )
        lines = self.lines(front, *(request for request, _ in requests_and_lines))
        self.assertEqual(lines, [line for _, line in requests_and_lines])
        for secret in (KEY.decode(), "secret", "SECRET"):
            self.assertNotIn(secret, repr(self.events))

    def test_milliseconds_are_from_the_first_line_to_the_answer(self) -> None:
        front = Front()
        peer = front.call(get())
        front.clock.advance(1.5)
        request, _ = front.handler.served[0]
        with capturedLogs() as logged:
            request.finish()
        self.assertEqual(logged[0]["milliseconds"], 1500)
        self.assertEqual(peer.statuses, [200])


class DrainTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.front = Front(evolve(LIMITS, workers=1))

    def finish(self, number: int) -> None:
        request, _ = self.front.handler.served[number]
        request.write(b"{}")
        request.finish()

    def drain(self, *peers: Peer) -> Deferred[None]:
        """Begin the stop; what is closed by it is gone at once."""
        drained = self.front.site.drain()
        for peer in peers:
            if peer.closed:
                peer.leave()
        return drained

    def test_nothing_open(self) -> None:
        self.successResultOf(self.front.site.drain())

    def test_idle_connections_close_at_once(self) -> None:
        self.front.handler.answers = b"{}"
        used, fresh, begun = self.front.call(get()), self.front.connect(), self.front.call(b"GET /")
        drained = self.drain(used, fresh, begun)
        self.successResultOf(drained)
        self.assertEqual(self.front.clock.getDelayedCalls(), [])
        self.assertEqual(self.front.connect().closed, True)

    def test_one_that_does_not_go_is_cut_soon(self) -> None:
        idle = self.front.connect()
        self.front.site.drain()
        self.front.clock.advance(0.5)
        self.assertTrue(idle.cut)

    def test_running_requests_finish_and_waiting_ones_are_refused(self) -> None:
        running, waiting = self.front.call(post()), self.front.call(post())
        drained = self.drain()
        [answer] = waiting.answers
        self.assertEqual((answer.code, answer.headers[b"connection"]), ("OVERLOADED", b"close"))
        self.assertTrue(waiting.closed)
        waiting.leave()
        self.assertEqual((running.statuses, running.closed), ([], False))
        self.finish(0)
        self.assertEqual(running.statuses, [200])
        self.assertEqual(running.answers[0].headers[b"connection"], b"close")
        self.assertTrue(running.closed)
        self.assertNoResult(drained)
        running.leave()
        self.successResultOf(drained)
        self.assertEqual(len(self.front.handler.served), 1)

    def test_requests_behind_a_running_one_are_not_begun(self) -> None:
        peer = self.front.call(get() + get())
        drained = self.drain()
        self.finish(0)
        self.assertEqual((peer.statuses, peer.closed), ([200], True))
        peer.leave()
        self.successResultOf(drained)

    def test_requests_still_coming_in_are_refused(self) -> None:
        uploading = self.front.call(post(b"hello")[:-1])
        self.front.keys.held = []
        judging = self.front.call(get())
        drained = self.drain(uploading, judging)
        for peer in (uploading, judging):
            self.assertEqual([answer.code for answer in peer.answers], ["OVERLOADED"])
        self.successResultOf(drained)
        self.assertEqual(self.front.handler.served, [])

    def test_a_verdict_that_comes_with_the_stop(self) -> None:
        peer = self.front.connect()
        peer.channel.dataReceived(get())  # judged, and to be acted upon in the next turn
        self.drain()
        self.front.clock.advance(0)
        self.assertEqual([answer.code for answer in peer.answers], ["OVERLOADED"])

    def test_goodbyes_are_cut_short(self) -> None:
        refused = self.front.call(post(headers=b"")[:-1])
        self.front.site.drain()
        self.front.clock.advance(0.5)
        self.assertTrue(refused.cut)

    def test_an_answer_on_its_way_arrives(self) -> None:
        self.front.handler.answers = b"x" * 100_000
        peer = self.front.connect()
        peer.transport.congested = True
        peer.send(get(headers=AUTHORIZED))
        drained = self.drain()
        self.assertFalse(peer.closed)
        peer.transport.drain()
        peer.transport.drain()
        self.assertEqual(len(peer.answers[0].body), 100_000)
        self.assertTrue(peer.closed)
        peer.leave()
        self.successResultOf(drained)

    def test_waits_for_work_whose_caller_has_left(self) -> None:
        work: Deferred[None] = Deferred()
        peer = self.front.call(post())
        self.front.handler.served[0][0].hold_turn(work)
        peer.leave()
        drained = self.drain()
        self.assertNoResult(drained)
        work.callback(None)
        self.successResultOf(drained)

    def test_abort_cuts_what_is_left(self) -> None:
        peer = self.front.call(get())
        self.front.site.drain()
        self.front.site.abort()
        self.assertTrue(peer.cut)
