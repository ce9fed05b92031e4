"""The channel and its requests, on a Clock and in-memory transports."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.abstract import FileDescriptor
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http import HTTPChannel

from telegrammer.core.problems import StartRefused
from telegrammer.web import twisted_names
from telegrammer.web.admission import Stage
from telegrammer.web.limits import RequestLimits
from telegrammer.web.request import AdmittedRequest
from tests.support.front import (
    AUTHORIZED,
    CALLER,
    Front,
    PeerTransport,
    chunked,
    get,
    parse_answers,
    post,
)

LIMITS = RequestLimits()
BIG = b"x" * (64 * 1024)
HUGE_HEAD = post(headers=b"").replace(b"Content-Length: 2", b"Content-Length: 10737418240")
CHUNKED_HEAD = chunked(headers=b"", end=b"")


class JudgingTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.front = Front()

    def test_reads_nothing_while_the_key_is_looked_up(self) -> None:
        held: list[Deferred[int | None]] = []
        self.front.keys.held = held
        peer = self.front.call(post(b"hello")[:-5])
        self.assertEqual(peer.transport.producerState, "paused")
        peer.channel.dataReceived(b"he")  # what the kernel had given us already
        held[0].callback(CALLER)
        self.front.clock.advance(0)
        self.assertEqual(peer.transport.producerState, "producing")
        peer.send(b"llo")
        [(request, body)] = self.front.handler.served
        self.assertEqual((request.caller, request.route, body), (CALLER, "/send", b"hello"))

    def test_a_drained_buffer_does_not_resume_reading_while_judging(self) -> None:
        self.front.keys.held = []
        peer = self.front.call(HUGE_HEAD.replace(b"\r\n\r\n", b"\r\n" + AUTHORIZED + b"\r\n"))
        peer.channel.resumeProducing()
        self.assertEqual(peer.transport.producerState, "paused")

    @pytest.mark.report("J2")
    def test_refuses_an_upload_before_its_body_and_is_deaf_from_then_on(self) -> None:
        for head in (HUGE_HEAD, CHUNKED_HEAD):
            peer = self.front.call(head + b"5\r\nhello\r\n")
            self.assertEqual(peer.statuses, [401])
            self.assertEqual(peer.answers[0].headers[b"connection"], b"close")
            self.assertTrue(peer.transport.half_closed)
            self.assertEqual(peer.transport.producerState, "producing")
            peer.send(get())  # smuggled in the body
            peer.send(b"0\r\n\r\n" + get())
            self.assertEqual(peer.statuses, [401])
            self.assertFalse(peer.cut)
            self.front.clock.advance(LIMITS.linger_seconds)
            self.assertTrue(peer.cut)
        self.assertEqual(self.front.handler.served, [])

    def test_discards_so_much_after_a_refusal_and_no_more(self) -> None:
        peer = self.front.call(HUGE_HEAD)
        for _ in range(LIMITS.linger_bytes // len(BIG)):
            peer.send(BIG)
        self.assertFalse(peer.cut)
        peer.send(b"x")
        self.assertTrue(peer.cut)

    def test_a_refusal_without_a_body_keeps_the_connection(self) -> None:
        peer = self.front.call(get(headers=b"") + get(b"/nowhere") + get(b"/send") + post(b""))
        self.assertEqual(peer.statuses, [401, 404, 405])
        self.assertEqual(peer.answers[2].headers[b"allow"], b"POST")
        self.assertFalse(peer.closed)
        self.assertEqual(len(self.front.handler.served), 1)

    def test_declared_and_chunked_bodies_at_the_limit(self) -> None:
        for request in (
            post(BIG),
            chunked(BIG),
            chunked(*[b"x"] * len(BIG)),
            chunked(BIG, end=b"0;x=y\r\nTrailer: 1\r\n\r\n"),
        ):
            served = len(self.front.handler.served)
            peer = self.front.call(request)
            self.assertEqual(peer.statuses, [])
            self.assertEqual(self.front.handler.served[served][1], BIG)

    @pytest.mark.report("J2")
    def test_declared_and_chunked_bodies_beyond_it(self) -> None:
        for request in (post(BIG + b"x"), chunked(BIG, b"x"), chunked(BIG + b"x"), chunked(*[BIG] * 4)):
            peer = self.front.call(request)
            self.assertEqual([answer.code for answer in peer.answers], ["BODY_TOO_LARGE"])
            self.assertTrue(peer.closed)
        self.assertEqual(self.front.handler.served, [])

    def test_bodies_of_other_methods_are_read_within_the_limit_and_ignored(self) -> None:
        head = b"DELETE /subscriptions/1 HTTP/1.1\r\nHost: x\r\n" + AUTHORIZED
        peer = self.front.call(head + b"Content-Length: 3\r\n\r\nxyz" + get())
        self.assertEqual([body for _, body in self.front.handler.served], [b"xyz"])
        self.assertEqual(peer.statuses, [])
        for framing in (
            b"Content-Length: 65537\r\n\r\n",
            b"Transfer-Encoding: chunked\r\n\r\n10001\r\n" + BIG + b"x",
        ):
            self.assertEqual(self.front.call(head + framing).statuses, [413])

    def test_chunk_framing_out_of_proportion(self) -> None:
        peer = self.front.call(chunked(end=b""))
        chunk = b"1;" + b"e" * 1000 + b"\r\nx\r\n"
        for _ in range(20):
            peer.send(chunk * 60)
        self.assertEqual(peer.statuses, [413])

    def test_expect_is_answered_after_the_verdict(self) -> None:
        expecting = post(b"hello").replace(b"Host:", b"Expect: 100-Continue\r\nHost:")
        peer = self.front.call(expecting[:-5])
        self.assertEqual(peer.transport.value(), b"HTTP/1.1 100 Continue\r\n\r\n")
        peer.send(b"hello")
        self.assertEqual(len(self.front.handler.served), 1)
        refused = self.front.call(expecting.replace(AUTHORIZED, b"")[:-5])
        self.assertEqual(refused.statuses, [401])
        impatient = self.front.call(expecting)  # the body came along
        self.assertEqual(impatient.transport.value(), b"")
        old = self.front.call(expecting.replace(b"HTTP/1.1", b"HTTP/1.0")[:-5])
        self.assertEqual(old.transport.value(), b"")

    def test_a_crash_of_the_screen_is_a_500(self) -> None:
        self.front.site.screen = None  # type: ignore[assignment]  # a bug of ours, for once
        peer = self.front.call(get())
        self.assertEqual([answer.code for answer in peer.answers], ["INTERNAL_ERROR"])
        self.assertEqual(len(self.flushLoggedErrors(AttributeError)), 1)

    def test_a_screen_that_passes_the_cancellation_on(self) -> None:
        class Hanging:
            async def judge(self, head: object) -> None:
                await Deferred()

        self.front.site.screen = Hanging()  # type: ignore[assignment]
        peer = self.front.call(get())
        peer.leave()
        self.assertEqual(self.flushLoggedErrors(), [])
        self.assertEqual(self.front.clock.getDelayedCalls(), [])

    def test_one_refusal_is_enough(self) -> None:
        peer = self.front.call(chunked(BIG, b"x", end=b"malformed\r\n"))
        self.assertEqual(peer.statuses, [413])
        peer.channel.loseConnection()
        self.assertFalse(peer.transport.disconnecting)

    def test_leaving_cancels_the_look_up(self) -> None:
        held: list[Deferred[int | None]] = []
        self.front.keys.held = held
        peer = self.front.call(post())
        peer.leave()
        self.assertTrue(held[0].called)
        self.front.clock.advance(60)
        self.assertEqual((peer.statuses, self.front.handler.served), ([], []))


class MalformedTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.front = Front()

    def assert_bad(self, data: bytes) -> None:
        peer = self.front.call(data)
        [answer] = peer.answers
        self.assertEqual((answer.status, answer.code), (400, "BAD_REQUEST"), data)
        self.assertEqual(answer.headers[b"cache-control"], b"no-store")
        self.assertEqual(answer.headers[b"server"], b"telegrammer")
        self.assertTrue(peer.closed)
        peer.send(get())
        self.assertEqual(len(peer.answers), 1)
        self.assertEqual(self.front.handler.served, [])

    def test_request_lines(self) -> None:
        for line in (
            b"GET /health\r\n\r\n",
            b"GET /health HTTP/2.0\r\n\r\n",
            b"GET  /health HTTP/1.1\r\n\r\n",
            b"G\x00T / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            b" GET / HTTP/1.1\r\n\r\n",
            b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET health HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
            b"x" * 20_000,
        ):
            self.assert_bad(line)

    def test_headers(self) -> None:
        for headers in (
            b"Host x\r\n",
            b"Host : x\r\n",
            b": x\r\n",
            b"X: a\x00b\r\n",
            b"X: a\rb\r\n",
            b"X: 1\r\n y\r\n",
            b"X: 1\r\n\ty\r\n",
            b" X: 1\r\n",
            b"X: " + b"y" * 17_000 + b"\r\n",
            b"".join(b"X-%d: y\r\n" % number for number in range(600)),
            b"".join(b"X-%d: %b\r\n" % (number, b"y" * 1000) for number in range(20)),
        ):
            self.assert_bad(get(headers=headers + AUTHORIZED))

    def test_host(self) -> None:
        plain = get()
        self.assert_bad(plain.replace(b"Host: x\r\n", b""))
        self.assert_bad(plain.replace(b"Host: x\r\n", b"Host: x\r\nHost: x\r\n"))
        self.assert_bad(plain.replace(b"Host: x\r\n", b"Host: a b\r\n"))
        self.assert_bad(plain.replace(b"Host: x\r\n", b"Host: \xff\r\n"))
        for fine in (b"Host: [::1]:8080\r\n", b"Host: my_service\r\n", b"Host:\r\n", b"Host: a..b\r\n"):
            self.assertEqual(self.front.call(plain.replace(b"Host: x\r\n", fine)).statuses, [])
        old = plain.replace(b"HTTP/1.1\r\nHost: x", b"HTTP/1.0\r\nX: y")
        self.assertEqual(self.front.call(old).statuses, [])

    def test_line_feeds_without_carriage_return(self) -> None:
        self.assert_bad(get().replace(b"\r\n", b"\n"))
        self.assert_bad(get().replace(b"Host: x\r\n", b"Host: x\n"))
        self.assert_bad(b"GET / HTTP/1.1\r\nHost: x\n\n")

    def test_lengths(self) -> None:
        for headers in (
            b"Content-Length: -1\r\n",
            b"Content-Length: +1\r\n",
            b"Content-Length: 1_0\r\n",
            b"Content-Length: 0x10\r\n",
            b"Content-Length: 2, 2\r\n",
            b"Content-Length: \r\n",
            b"Content-Length: \xd9\xa1\r\n",
            b"Content-Length: " + b"9" * 5000 + b"\r\n",
            b"Content-Length: 2\r\nContent-Length: 2\r\n",
            b"Content-Length: 2\r\nX: y\r\nContent-Length: 3\r\n",
            b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n",
            b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n",
            b"Transfer-Encoding: identity\r\n",
            b"Transfer-Encoding: gzip, chunked\r\n",
            b"Transfer-Encoding: chunked, chunked\r\n",
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: xchunked\r\n",
        ):
            request = b"POST /send HTTP/1.1\r\nHost: x\r\n" + AUTHORIZED + headers + b"\r\n{}"
            self.assert_bad(request)
        old = chunked(b"{}").replace(b"HTTP/1.1", b"HTTP/1.0")
        self.assert_bad(old)

    def test_chunks(self) -> None:
        for body in (b"x\r\n", b"-1\r\n", b"5\r\nhelloxy", b"5 \r\nhello\r\n", b"5;\x00\r\n", b"f" * 2000):
            self.assert_bad(chunked(end=body))

    def test_trailers(self) -> None:
        self.front.handler.answers = b"{}"
        for trailer in (b"", b"X: a\r\n", b"Content-Length: 9\r\nX:\r\nY: \xff\r\n"):
            peer = self.front.call(chunked(b"{}", end=b"0\r\n" + trailer + b"\r\n"))
            self.assertEqual(peer.statuses, [200], trailer)
        self.front.handler.served.clear()
        # To whoever takes a bare line feed for the end, the last of these are requests of their own.
        for trailer in (
            b"X : a\r\n",
            b" X: a\r\n",
            b"X: a\r\n b\r\n",
            b"X\r\n",
            b": a\r\n",
            b"X: a\x00\r\n",
            b"X: a\rY: b\r\n",
            b"X: a\nY: b\r\n",
            b"\nGET / HTTP/1.1\r\n",
            b"\nX: a\r\n",
        ):
            self.assert_bad(chunked(b"{}", end=b"0\r\n" + trailer + b"\r\n"))

    def test_targets(self) -> None:
        self.front.handler.answers = b"{}"
        close = AUTHORIZED + b"Connection: close\r\n"
        for target, status in (
            (b"http://x/subscriptions", 200),
            (b"HTTPS://[::1]:8080/subscriptions?y", 200),
            (b"http://x?y", 404),
            (b"http://x", 404),
            (b"http:///subscriptions", 400),
            (b"http://user@x/subscriptions", 400),
            (b"http://x\\y/subscriptions", 400),
            (b"ftp://x/subscriptions", 400),
            (b"subscriptions", 400),
            (b"*", 400),
        ):
            self.assertEqual(self.front.call(get(target, headers=close)).statuses, [status], target)

    def test_a_trailer_without_end(self) -> None:
        peer = self.front.call(chunked(b"{}", end=b"0\r\n"))
        for _ in range(70):
            peer.send(b"x: " + b"y" * 1000 + b"\r\n")
        self.assertEqual(peer.statuses, [400])

    def test_one_empty_line_before_a_request_is_forgiven(self) -> None:
        peer = self.front.call(b"\r\n" + get())
        self.assertEqual((peer.statuses, len(self.front.handler.served)), ([], 1))

    def test_a_length_of_many_digits_is_too_large(self) -> None:
        peer = self.front.call(post().replace(b"Length: 2", b"Length: " + b"9" * 4000))
        self.assertEqual(peer.statuses, [413])

    @settings(max_examples=300)
    @given(
        st.lists(
            st.one_of(
                st.binary(max_size=40),
                st.sampled_from(
                    [
                        get(),
                        post(),
                        chunked(b"{}"),
                        HUGE_HEAD,
                        CHUNKED_HEAD,
                        b"\r\n",
                        b"\n",
                        b"GET /",
                        b"%ff HTTP/1.1\r\n",
                        b"Host: x\r\n",
                        AUTHORIZED,
                        b"Content-Length: 1\r\n",
                        b"Transfer-Encoding: chunked\r\n",
                        b"5\r\nhello\r\n",
                        b"0\r\n\r\n",
                    ]
                ),
            ),
            max_size=12,
        )
    )
    def test_whatever_comes_is_answered_well_formed_or_not_at_all(self, pieces: list[bytes]) -> None:
        front = Front()
        front.handler.answers = b"{}"
        peer = front.connect()
        for piece in pieces:
            peer.send(piece)
        for answer in peer.answers:
            self.assertIn(answer.headers.get(b"cache-control", b"no-store"), b"no-store")
            self.assertIn(answer.status, (100, 200, 400, 401, 404, 405, 413, 415))
        for _ in range(40):  # whatever it was: it ends
            front.clock.advance(1)
        self.assertTrue(peer.closed)
        peer.leave()
        self.assertEqual(front.clock.getDelayedCalls(), [])
        self.assertEqual(len(front.site.connections), 0)
        self.assertEqual(self.flushLoggedErrors(), [])


class StageTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.front = Front()
        self.clock = self.front.clock

    def test_a_head_ends_after_five_seconds_whatever_trickles_in(self) -> None:
        peer = self.front.connect()
        for byte in b"GET ":
            peer.send(bytes([byte]))
            self.clock.advance(1)
        self.assertFalse(peer.closed)
        self.clock.advance(1)
        self.assertEqual([answer.code for answer in peer.answers], ["REQUEST_TIMEOUT"])
        self.assertTrue(peer.closed)

    def test_a_connection_that_says_nothing_is_closed_in_silence(self) -> None:
        peer = self.front.connect()
        self.clock.advance(LIMITS.head_seconds)
        self.assertEqual((peer.transport.value(), peer.closed), (b"", True))
        self.clock.advance(LIMITS.answer_stall_seconds)
        self.assertTrue(peer.cut)

    def test_an_idle_connection_is_closed_and_a_new_head_has_its_own_time(self) -> None:
        self.front.handler.answers = b"{}"
        peer = self.front.call(get())
        self.clock.advance(LIMITS.idle_seconds - 0.1)
        peer.send(b"GET")
        self.clock.advance(LIMITS.head_seconds - 0.1)
        peer.send(get()[3:])
        self.assertEqual(peer.statuses, [200, 200])
        self.clock.advance(LIMITS.idle_seconds - 0.1)
        self.assertFalse(peer.closed)
        self.clock.advance(0.1)
        self.assertEqual((peer.statuses, peer.closed), ([200, 200], True))

    def test_a_body_without_progress(self) -> None:
        peer = self.front.call(post(b"hello")[:-5])
        self.clock.advance(4.9)
        peer.send(b"h")
        self.clock.advance(4.9)
        self.assertEqual(peer.statuses, [])
        self.clock.advance(0.1)
        self.assertEqual(peer.statuses, [408])
        self.assertEqual(peer.answers[0].headers[b"connection"], b"close")

    def test_a_body_has_thirty_seconds_in_all(self) -> None:
        for start in (post(b"x" * 100)[:-100], chunked(b"x", end=b"")):
            peer = self.front.call(start)
            for second in range(30):
                self.assertEqual(peer.statuses, [], second)
                peer.send(b"x" if start.startswith(b"POST") and b"chunked" not in start else b"1\r\nx\r\n")
                self.clock.advance(1)
            self.assertEqual(peer.statuses, [408])

    def test_a_handler_may_take_its_time(self) -> None:
        peer = self.front.call(get())
        self.clock.advance(120)
        request, _ = self.front.handler.served[0]
        request.write(b"{}")
        request.finish()
        self.assertEqual(peer.statuses, [200])

    def test_an_answer_that_nobody_reads_is_cut(self) -> None:
        peer = self.front.call(get())
        peer.transport.congested = True
        request, _ = self.front.handler.served[0]
        request.write(b"x" * 300_000)
        request.finish()
        self.assertEqual(peer.transport.bytes_kept, 64 * 1024)
        self.clock.advance(LIMITS.answer_stall_seconds - 0.1)
        self.assertFalse(peer.cut)
        self.clock.advance(0.1)
        self.assertTrue(peer.cut)

    def test_a_slow_reader_is_served_while_it_reads_and_for_thirty_seconds_at_most(self) -> None:
        for size, cut in ((300_000, False), (1_000_000, True)):
            peer = self.front.call(get())
            peer.transport.congested = True
            request, _ = self.front.handler.served[-1]
            request.write(b"x" * size)
            request.finish()
            while peer.transport.bytes_kept and not peer.cut:
                self.clock.advance(3)
                peer.transport.drain()
            self.assertEqual(peer.cut, cut)
            if not cut:
                self.assertEqual(len(peer.answers[0].body), size)

    def test_no_request_begins_before_the_answer_before_it_has_left(self) -> None:
        self.front.handler.answers = b"x" * 100_000
        peer = self.front.connect()
        peer.transport.congested = True
        peer.send(get() * 50)
        self.assertEqual(len(self.front.handler.served), 1)
        peer.transport.drain()
        peer.send(b"")
        self.assertEqual(len(self.front.handler.served), 1)
        peer.transport.drain()
        peer.send(b"")
        self.assertEqual(len(self.front.handler.served), 2)

    def test_nothing_is_read_while_an_answer_is_stuck(self) -> None:
        self.front.handler.answers = b"x" * 100_000
        peer = self.front.connect()
        peer.transport.congested = True
        peer.send(get())
        self.assertEqual(peer.transport.producerState, "paused")
        peer.transport.drain()
        self.assertEqual(peer.transport.producerState, "paused")
        peer.transport.drain()
        self.assertEqual(peer.transport.producerState, "producing")

    def test_nothing_is_read_after_the_verdict_while_an_earlier_answer_is_stuck(self) -> None:
        self.front.keys.held = held = list[Deferred[int | None]]()
        peer = self.front.call(get())
        peer.channel.pauseProducing()
        held[0].callback(CALLER)
        self.front.clock.advance(0)
        self.assertEqual(len(self.front.handler.served), 1)
        self.assertEqual(peer.transport.producerState, "paused")
        peer.channel.resumeProducing()
        self.assertEqual(peer.transport.producerState, "producing")

    def test_reading_goes_on_when_an_earlier_answer_gets_unstuck(self) -> None:
        """Under TLS the transport says that it keeps bytes only after the next request has begun."""
        peer = self.front.call(get())
        peer.channel.pauseProducing()
        self.assertEqual(peer.transport.producerState, "paused")
        peer.channel.resumeProducing()
        self.assertEqual(peer.transport.producerState, "producing")

    def test_leaving_with_an_answer_half_sent(self) -> None:
        self.front.handler.answers = b"x" * 100_000
        peer = self.front.connect()
        peer.transport.congested = True
        peer.send(get())
        peer.leave()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.front.site.workers.running, 0)

    def test_a_refusal_that_nobody_reads_is_cut(self) -> None:
        peer = self.front.connect()
        peer.transport.congested = True
        peer.send(HUGE_HEAD)
        self.assertFalse(peer.transport.half_closed)
        self.clock.advance(LIMITS.answer_stall_seconds)
        self.assertTrue(peer.cut)


class AnswerTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.front = Front()
        self.front.handler.answers = b'{"ok":true}'

    def test_what_every_answer_has(self) -> None:
        [answer] = self.front.call(get()).answers
        self.assertEqual(answer.body, b'{"ok":true}')
        self.assertEqual(
            {name: value for name, value in answer.headers.items() if name != b"date"},
            {
                b"server": b"telegrammer",
                b"cache-control": b"no-store",
                b"content-type": b"application/json",
                b"content-length": b"11",
            },
        )
        self.assertIn(b"GMT", answer.headers[b"date"])

    def test_head_has_the_length_and_no_body(self) -> None:
        for request, length in ((get(method=b"HEAD"), b"11"), (get(method=b"HEAD", headers=b""), None)):
            peer = self.front.call(request)
            [answer] = parse_answers(peer.transport.value(), head_only=True)
            self.assertEqual(answer.body, b"")
            self.assertEqual(answer.headers[b"content-length"], length or answer.headers[b"content-length"])
        peer = self.front.call(HUGE_HEAD.replace(b"POST /send", b"HEAD /health"))
        self.assertTrue(peer.transport.value().endswith(b"\r\n\r\n"))

    def test_no_content_has_no_length_and_no_type(self) -> None:
        self.front.handler.answers = None
        peer = self.front.call(get())
        request, _ = self.front.handler.served[0]
        request.setResponseCode(204)
        request.finish()
        [answer] = peer.answers
        self.assertEqual(set(answer.headers), {b"server", b"date", b"cache-control"})

    def test_persistence(self) -> None:
        for request, closes in (
            (get(), False),
            (get(headers=AUTHORIZED + b"Connection: keep-alive\r\n"), False),
            (get(headers=AUTHORIZED + b"Connection: close\r\n"), True),
            (get(headers=AUTHORIZED + b"Connection: keep-alive,Close\r\n"), True),
            (get(headers=AUTHORIZED + b"Connection: x\r\nConnection: close\r\n"), True),
            (get().replace(b"HTTP/1.1", b"HTTP/1.0"), True),
        ):
            peer = self.front.call(request)
            [answer] = peer.answers
            self.assertEqual((answer.status, peer.closed), (200, closes), request)
            self.assertEqual(answer.headers.get(b"connection"), b"close" if closes else None)

    def test_a_close_with_more_behind_it_lingers(self) -> None:
        peer = self.front.call(get(headers=AUTHORIZED + b"Connection: close\r\n") + get())
        self.assertEqual(len(peer.answers), 1)
        self.assertTrue(peer.transport.half_closed)

    def test_pipelined_requests_are_answered_in_order(self) -> None:
        self.front.handler.answers = None
        peer = self.front.call(get() + post(b"1") + chunked(b"2") + get(b"/health"))
        for number in range(4):
            self.front.clock.advance(0)
            request, _ = self.front.handler.served[number]
            request.write(b"%d" % number)
            request.finish()
        self.assertEqual([answer.body for answer in peer.answers], [b"0", b"1", b"2", b"3"])
        self.assertEqual([body for _, body in self.front.handler.served], [b"", b"1", b"2", b""])

    def test_targets(self) -> None:
        for target in (b"/subscriptions?x=1", b"http://other/subscriptions", b"HTTP://h:1/subscriptions?y"):
            self.assertEqual(self.front.call(get(target)).statuses, [200], target)
        for target in (b"http://host", b"https://host?x", b"/subscriptions/", b"http://host//subscriptions"):
            self.assertEqual(self.front.call(get(target)).statuses, [404], target)
        self.assertEqual(self.front.call(get(b"*", method=b"OPTIONS")).statuses, [404])

    def test_a_handler_that_crashes(self) -> None:
        def crash(request: object) -> int:
            raise ZeroDivisionError

        self.front.handler.render = crash  # type: ignore[method-assign]
        peer = self.front.call(get() + get())
        self.assertEqual([answer.code for answer in peer.answers], ["INTERNAL_ERROR"] * 2)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)
        self.assertEqual(self.front.site.workers.running, 0)

    def test_a_crash_takes_back_what_was_written(self) -> None:
        self.front.handler.answers = None
        peer = self.front.call(get())
        request, _ = self.front.handler.served[0]
        request.setHeader(b"X-Half", b"1")
        request.write(b"half")
        request.processingFailed(Failure(ZeroDivisionError()))
        [answer] = peer.answers
        self.assertEqual(answer.code, "INTERNAL_ERROR")
        self.assertNotIn(b"x-half", answer.headers)
        request.finish()  # once more: nothing
        self.assertEqual(len(peer.answers), 1)
        self.flushLoggedErrors(ZeroDivisionError)

    def test_an_answer_to_one_who_left_goes_nowhere(self) -> None:
        self.front.handler.answers = None
        peer = self.front.call(get())
        request, _ = self.front.handler.served[0]
        peer.leave()
        request.write(b"{}")
        request.finish()
        self.assertEqual(peer.transport.value(), b"")

    def test_a_transport_without_halves_is_closed_whole(self) -> None:
        transport: Any = PeerTransport()
        transport.loseWriteConnection = None
        peer = self.front.connect(transport)
        peer.send(HUGE_HEAD)
        self.assertTrue(transport.disconnecting)

    def test_only_admitted_requests_have_a_caller(self) -> None:
        peer = self.front.call(get()[:-2])
        request: AdmittedRequest = peer.channel.requests[0]
        self.assertRaises(LookupError, lambda: request.caller)
        self.assertIsNone(request.caller_or_none)
        self.assertEqual(request.getRequestHostname(), b"localhost")


class TurnTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.front = Front(evolve(LIMITS, workers=1, queue=1))
        self.handler = self.front.handler

    def finish(self, number: int) -> None:
        request, _ = self.handler.served[number]
        request.write(b"{}")
        request.finish()

    def test_one_runs_one_waits_the_next_is_refused(self) -> None:
        first, second, third = (self.front.call(post()) for _ in range(3))
        self.assertEqual(len(self.handler.served), 1)
        [answer] = third.answers
        self.assertEqual((answer.status, answer.code), (503, "OVERLOADED"))
        self.assertEqual(answer.headers[b"retry-after"], b"1")
        self.assertFalse(third.closed)
        self.finish(0)
        self.assertEqual(len(self.handler.served), 2)
        self.finish(1)
        self.assertEqual((first.statuses, second.statuses), ([200], [200]))
        self.assertEqual(self.front.site.workers.running, 0)

    def test_waiting_too_long(self) -> None:
        self.front.call(post())
        waiting = self.front.call(post())
        self.front.clock.advance(5)
        self.assertEqual([answer.code for answer in waiting.answers], ["OVERLOADED"])
        self.finish(0)
        self.assertEqual(len(self.handler.served), 1)

    def test_health_takes_no_turn(self) -> None:
        self.front.call(post())
        self.front.call(post())
        self.front.call(get(b"/health"))
        self.assertEqual([request.route for request, _ in self.handler.served], ["/send", "/health"])

    def test_who_leaves_while_waiting_is_never_started(self) -> None:
        self.front.call(post())
        waiting = self.front.call(post())
        waiting.leave()
        self.assertEqual(self.front.site.workers.waiting, 0)
        self.finish(0)
        self.assertEqual(len(self.handler.served), 1)
        self.assertEqual(self.front.site.workers.running, 0)

    def test_who_leaves_while_served_gives_the_turn_on_after_the_handler_was_told(self) -> None:
        events: list[str] = []
        self.handler.left = lambda: events.append(f"told, {len(self.handler.served)} served")
        leaving = self.front.call(post())
        self.front.call(post())
        leaving.leave()
        self.assertEqual(events, ["told, 1 served"])
        self.assertEqual(len(self.handler.served), 2)

    def test_work_that_goes_on_keeps_its_turn(self) -> None:
        work: Deferred[str] = Deferred()
        leaving = self.front.call(post())
        request, _ = self.handler.served[0]
        request.hold_turn(work)
        self.front.call(post())
        leaving.leave()
        self.assertEqual(len(self.handler.served), 1)
        work.callback("sent")
        self.assertEqual(self.successResultOf(work), "sent")
        self.assertEqual(len(self.handler.served), 2)

    def test_work_without_a_turn_keeps_none(self) -> None:
        self.front.call(get(b"/health"))
        work: Deferred[None] = Deferred()
        self.handler.served[0][0].hold_turn(work)
        work.callback(None)
        self.assertEqual(self.front.site.workers.running, 0)


class TwistedNamesTests(SynchronousTestCase):
    def test_this_twisted_has_them_all(self) -> None:
        self.assertEqual(list(twisted_names.missing_names()), [])

    def test_another_is_refused_by_name(self) -> None:
        class Changed(HTTPChannel):
            def lineReceived(self, line: bytes) -> None: ...

            _send100Continue: Any = None

        class Descriptor:
            pass

        refused = self.assertRaises(StartRefused, twisted_names.check, Changed, Descriptor)
        for name in (
            "_command in Changed.lineReceived",
            "Changed._send100Continue",
            "Descriptor._isSendBufferFull",
        ):
            self.assertIn(name, str(refused))
        self.assertNotIn("requestDone", str(refused))
        for decoder in (None, Descriptor):
            refused = self.assertRaises(
                StartRefused, twisted_names.check, HTTPChannel, FileDescriptor, decoder
            )
            self.assertIn("_ChunkedTransferDecoder._trailerHeaders", str(refused))
        twisted_names.check(HTTPChannel, FileDescriptor)

    def test_stages_are_named_for_people(self) -> None:
        self.assertEqual(Front().connect().channel.stage, Stage.HEAD)
