"""The route by which Telegram pushes, through the real channel (contract 8)."""

from __future__ import annotations

import json

from attrs import define, evolve, field
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers

from telegrammer.core.journal import Accepted
from telegrammer.core.problems import InvalidRequest, StorageUnavailable, StoreBusy
from telegrammer.web.credentials import Known, WebhookSecret
from telegrammer.web.limits import RequestLimits
from telegrammer.web.responses import SECRET_HEADER, WRONG_SECRET
from telegrammer.web.site import GatewaySite
from telegrammer.web.webhook import BODY_BYTES, Webhook
from tests.support.front import AUTHORIZED, Front, Peer, PeerTransport, get, parse_answers, post

SECRET = "correct_horse-battery-STAPLE"
SHOWN = b"%b: %b\r\n" % (SECRET_HEADER, SECRET.encode())
LIMITS = RequestLimits()
LARGEST = b"x" * BODY_BYTES


def push(body: bytes = b"{}", *, headers: bytes = SHOWN, path: bytes = b"/telegram/webhook") -> bytes:
    """One call, without a media type."""
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (
        path,
        headers,
        len(body),
        body,
    )


def push_chunked(*chunks: bytes, headers: bytes = SHOWN, end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"POST /telegram/webhook HTTP/1.1\r\nHost: x\r\n%bTransfer-Encoding: chunked\r\n\r\n" % headers
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


HUGE_HEAD = push(headers=b"").replace(b"Content-Length: 2", b"Content-Length: 10737418240")[:-2]


@define(eq=False)
class HeldIntake:
    """Keeps every body until the test says what became of it."""

    bodies: list[bytes] = field(factory=list)
    held: list[Deferred[Accepted]] = field(factory=list)

    def accept(self, body: bytes) -> Deferred[Accepted]:
        self.bodies.append(body)
        self.held.append(Deferred())
        return self.held[-1]


class WebhookCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.intake = HeldIntake()
        self.secret: str | None = SECRET
        self.area = Webhook(self.intake).area(lambda: self.secret)
        self.front = Front(evolve(LIMITS, workers=1, queue=0), more=[self.area])
        self.events = self.enterContext(capturedLogs())

    def call(self, data: bytes) -> Peer:
        return self.front.call(data)

    def lines(self, level: LogLevel = LogLevel.info) -> list[str]:
        return [formatEvent(event) for event in self.events if event["log_level"] >= level]


class SecretTests(WebhookCase):
    def test_without_the_right_one_in_the_one_header_nothing_is_taken(self) -> None:
        wrong = (b"x" * len(SECRET), SECRET[:-1].encode(), b"", b"\xff\xfe", SECRET.upper().encode(), b"a b")
        for headers in (
            b"",
            AUTHORIZED,
            SHOWN + SHOWN,
            SHOWN + b"%b: x\r\n" % SECRET_HEADER,
            b"X-Telegram-Bot-Api-Secret: %b\r\n" % SECRET.encode(),
            *(b"%b: %b\r\n" % (SECRET_HEADER, value) for value in wrong),
            b"%b: %b, %b\r\n" % (SECRET_HEADER, SECRET.encode(), SECRET.encode()),
        ):
            (answer,) = self.call(push(headers=headers)).answers
            self.assertEqual((answer.status, answer.code), (401, "UNAUTHORIZED"), headers)
            self.assertEqual(answer.headers[b"www-authenticate"], SECRET_HEADER)
            self.assertIn(SECRET_HEADER.decode(), json.loads(answer.body)["error"]["message"])
        self.assertEqual(self.intake.bodies, [])
        self.assertNotIn(SECRET, repr(self.events))

    def test_the_right_one_however_its_header_is_spelt(self) -> None:
        for headers in (SHOWN, SHOWN.lower().replace(SECRET.lower().encode(), SECRET.encode())):
            self.call(push(headers=headers + AUTHORIZED))
        self.assertEqual(len(self.intake.bodies), 2)
        self.assertEqual(self.front.keys.asked, 0)

    def test_while_there_is_none_nobody_has_it(self) -> None:
        self.secret = None
        for shown in (b"", b"None", SECRET.encode()):
            peer = self.call(push(headers=b"%b: %b\r\n" % (SECRET_HEADER, shown)))
            self.assertEqual(peer.statuses, [401])
        self.secret = SECRET
        self.call(push())
        self.assertEqual(self.intake.bodies, [b"{}"])

    def test_it_opens_no_other_door(self) -> None:
        self.assertEqual(self.call(post(headers=SHOWN)).statuses, [401])
        self.assertEqual(self.call(get(headers=SHOWN)).statuses, [401])
        self.assertEqual(self.front.handler.served, [])

    def test_it_is_in_no_repr(self) -> None:
        self.assertNotIn(SECRET, repr(self.area) + repr(self.area.credentials) + repr(WRONG_SECRET))
        checking = Deferred.fromCoroutine(
            WebhookSecret(lambda: SECRET).check(Headers({SECRET_HEADER: [SECRET.encode()]}), 0)
        )
        self.assertEqual(self.successResultOf(checking), Known(None))


class OrderTests(WebhookCase):
    def test_each_fault_is_told_although_every_later_one_is_there_too(self) -> None:
        huge = HUGE_HEAD
        shown = huge.replace(b"Host: x\r\n", b"Host: x\r\n" + SHOWN)
        for request, status in (
            (huge.replace(b"/telegram/webhook", b"/telegram/webhook/").replace(b"POST", b"PUT"), 404),
            (huge.replace(b"/telegram/webhook", b"//telegram/webhook"), 404),
            (huge.replace(b"/telegram/webhook", b"/telegram"), 404),
            (huge.replace(b"POST", b"PUT"), 405),
            (huge, 401),
            (shown, 413),
        ):
            peer = self.call(request)
            self.assertEqual(peer.statuses, [status], request)
        self.assertEqual(self.intake.bodies, [])

    def test_the_one_method_it_has(self) -> None:
        for method in (b"GET", b"HEAD", b"PUT", b"DELETE", b"post"):
            said = self.call(get(b"/telegram/webhook", headers=SHOWN, method=method)).transport.value()
            (answer,) = parse_answers(said, head_only=method == b"HEAD")
            self.assertEqual((answer.status, answer.headers[b"allow"]), (405, b"POST"))

    def test_an_upload_without_the_secret_is_refused_before_its_body(self) -> None:
        peer = self.call(HUGE_HEAD.replace(b"Host: x", b"Expect: 100-continue\r\nHost: x"))
        self.assertEqual(peer.statuses, [401])  # and no 100
        self.assertEqual(peer.answers[0].headers[b"connection"], b"close")
        self.assertTrue(peer.transport.half_closed)
        peer.send(LARGEST)
        self.assertFalse(peer.cut)
        peer.send(b"x")
        self.assertTrue(peer.cut)
        self.assertEqual(self.intake.bodies, [])

    def test_the_media_type_is_not_looked_at(self) -> None:
        for media_type in (b"text/plain", b"application/json; charset=koi8-r", b"x"):
            self.call(push(headers=SHOWN + b"Content-Type: %b\r\n" % media_type))
        self.assertEqual(len(self.intake.bodies), 3)

    def test_it_takes_no_turn_among_the_workers(self) -> None:
        busy = self.call(post())
        self.assertEqual(self.call(post()).statuses, [503])
        peers = [self.call(push()) for _ in range(5)]
        for each in self.intake.held:
            each.callback(Accepted(1, 0))
        self.assertEqual([peer.statuses for peer in (busy, *peers)], [[], *[[200]] * 5])
        self.assertEqual(self.front.site.workers.running, 1)


class BodyTests(WebhookCase):
    def test_declared_and_chunked_bodies_at_the_limit(self) -> None:
        for request in (
            push(LARGEST),
            push_chunked(LARGEST),
            push_chunked(*[LARGEST[:1000]] * 1048, LARGEST[:576]),
            push_chunked(LARGEST, end=b"0;x=y\r\nTrailer: 1\r\n\r\n"),
        ):
            peer = self.front.connect()
            for at in range(0, len(request), 65_536):
                peer.send(request[at : at + 65_536])
            self.assertEqual(peer.statuses, [])
            self.assertEqual(self.intake.bodies.pop(), LARGEST)

    def test_declared_and_chunked_bodies_beyond_it(self) -> None:
        for request in (
            push(LARGEST + b"x"),
            push_chunked(LARGEST, b"x"),
            push_chunked(LARGEST + b"x"),
            push_chunked(*[LARGEST] * 2, end=b""),
        ):
            peer = self.call(request)
            (answer,) = peer.answers
            self.assertEqual((answer.status, answer.code), (413, "BODY_TOO_LARGE"))
            self.assertIn(b"1048576 bytes", answer.body)
            self.assertTrue(peer.closed)
        self.assertEqual(self.intake.bodies, [])

    def test_the_limits_of_the_two_areas_are_their_own(self) -> None:
        size = 65_537
        peer = self.front.connect()
        peer.send(push(b"x" * size))
        self.intake.held[0].callback(Accepted(1, 0))
        peer.send(post(b"x" * size))
        self.assertEqual(peer.statuses, [200, 413])
        self.assertIn(b"at most 65536", peer.answers[1].body)

    def test_chunk_framing_out_of_proportion(self) -> None:
        peer = self.call(push_chunked(end=b""))
        chunk = b"1;" + b"e" * 1000 + b"\r\nx\r\n"
        sent = 0
        while not peer.answers:
            self.assertLess(sent, 10 * BODY_BYTES)
            peer.send(chunk * 500)
            sent += 500 * len(chunk)
        self.assertGreater(sent, 9 * BODY_BYTES)
        self.assertEqual(peer.statuses, [413])

    def test_expect_is_answered_after_the_secret(self) -> None:
        peer = self.call(push(b"hello", headers=SHOWN + b"Expect: 100-continue\r\n")[:-5])
        self.assertEqual(peer.transport.value(), b"HTTP/1.1 100 Continue\r\n\r\n")
        peer.send(b"hello")
        self.assertEqual(self.intake.bodies, [b"hello"])

    def test_a_slow_upload_has_the_channels_time_and_is_not_handed_on_before_its_end(self) -> None:
        peer = self.call(push(b"x" * 7)[:-7])
        for _ in range(7):
            self.front.clock.advance(4)
            self.assertEqual(self.intake.bodies, [])
            peer.send(b"x")
        self.assertEqual((self.intake.bodies, peer.statuses), ([b"x" * 7], []))
        late = self.call(push(b"x" * 8)[:-8])
        for _ in range(8):
            self.front.clock.advance(4)
            late.send(b"x")
        self.assertEqual(late.statuses, [408])
        self.assertEqual(len(self.intake.bodies), 1)


class AnswerTests(WebhookCase):
    def test_taken(self) -> None:
        peer = self.call(push(b'{"update_id":1}'))
        self.assertEqual(peer.statuses, [])
        self.intake.held[0].callback(Accepted(1, 0))
        (answer,) = peer.answers
        self.assertEqual((answer.status, answer.body), (200, b'{"ok":true}'))
        self.assertEqual(answer.headers[b"content-type"], b"application/json")
        self.assertEqual(answer.headers[b"cache-control"], b"no-store")
        self.assertFalse(peer.closed)
        self.assertEqual(self.lines(), ["POST /telegram/webhook 200 0 ms, key -"])

    def test_no_update(self) -> None:
        peer = self.call(push(b""))
        self.intake.held[0].errback(InvalidRequest("the rule"))
        (answer,) = peer.answers
        self.assertEqual((answer.status, answer.code), (400, "INVALID_REQUEST"))
        self.assertEqual(json.loads(answer.body)["error"]["message"], "the rule")
        self.assertFalse(peer.closed)

    def test_not_in_time(self) -> None:
        for error in (StoreBusy("x"), StorageUnavailable("x")):
            peer = self.call(push())
            self.intake.held[-1].errback(error)
            (answer,) = peer.answers
            self.assertEqual((answer.status, answer.code), (503, "STORAGE_UNAVAILABLE"))
            self.assertEqual(answer.headers[b"retry-after"], b"1")
        self.assertEqual(self.lines(LogLevel.warn), [])

    def test_a_fault_of_ours(self) -> None:
        peer = self.call(push())
        self.intake.held[0].errback(KeyError("hunter2"))
        self.assertEqual([answer.code for answer in peer.answers], ["INTERNAL_ERROR"])
        self.assertEqual(len(self.lines(LogLevel.error)), 1)
        self.assertNotIn("hunter2", repr(self.lines()))

    def test_one_after_the_other_on_a_connection(self) -> None:
        peer = self.call(push(b"1") + push(b"2") + push(b"3", headers=b""))
        for number in (0, 1):
            self.assertEqual(len(self.intake.held), number + 1)
            self.intake.held[number].callback(Accepted(1, 0))
            self.front.clock.advance(0)
        self.assertEqual((peer.statuses, self.intake.bodies), ([200, 200, 401], [b"1", b"2"]))


class LeavingTests(WebhookCase):
    def test_the_connection_is_lost_after_the_body(self) -> None:
        peer = self.call(push(b"1"))
        peer.leave()
        self.assertFalse(self.intake.held[0].called)
        self.intake.held[0].callback(Accepted(1, 0))
        told = [(each["what"], each["kind"]) for each in self.events if "what" in each]
        self.assertEqual(told, [("pushed update", "Accepted")])
        self.assertEqual(self.lines(LogLevel.warn), [])
        self.assertEqual(self.front.clock.getDelayedCalls(), [])

    def test_and_then_it_is_not_journaled_either(self) -> None:
        self.call(push(b"1")).leave()
        self.intake.held[0].errback(StoreBusy("x"))
        self.assertEqual(len(self.lines(LogLevel.warn)), 1)
        self.assertEqual(self.lines(LogLevel.error), [])

    def test_with_the_last_byte_of_the_body(self) -> None:
        """It has all come in one piece, and with it the end."""
        peer = self.front.connect()
        peer.channel.dataReceived(push(b"1"))
        peer.end_input()
        self.front.clock.advance(0)
        self.assertEqual(self.intake.bodies, [b"1"])
        self.intake.held[0].callback(Accepted(1, 0))
        self.assertEqual(peer.statuses, [200])

    def test_amid_the_body(self) -> None:
        for leave in (Peer.leave, Peer.end_input):
            peer = self.call(push(b"12")[:-1])
            leave(peer)
            if leave is Peer.end_input:
                self.assertTrue(peer.transport.gone)
        self.assertEqual(self.intake.bodies, [])
        self.assertEqual(self.lines(LogLevel.warn), [])

    def test_the_stop_waits_for_what_is_being_journaled(self) -> None:
        peer, idle, uploading = self.call(push(b"1")), self.front.connect(), self.call(push(b"12")[:-1])
        drained = self.front.site.drain()
        self.assertTrue(idle.closed)
        self.assertEqual(uploading.statuses, [503])
        idle.leave()
        uploading.leave()
        self.assertNoResult(drained)
        self.intake.held[0].callback(Accepted(1, 0))
        self.assertEqual(peer.statuses, [200])
        peer.leave()
        self.successResultOf(drained)


class OwnSiteTests(WebhookCase):
    """With a listener of its own, or without pushes at all."""

    def test_nothing_else_is_served_there(self) -> None:
        clock = Clock()
        site = GatewaySite([self.area], clock)
        for request, status in (
            (push(), None),
            (push(headers=b""), 401),
            (get(b"/health"), 404),
            (post(), 404),
            (get(b"/"), 404),
        ):
            channel = site.buildProtocol(None)
            peer = Peer(channel, PeerTransport(), clock)
            channel.makeConnection(peer.transport)
            peer.send(request)
            self.assertEqual(peer.statuses, [] if status is None else [status], request)
        self.assertEqual(len(self.intake.bodies), 1)

    def test_where_updates_are_polled_there_is_no_such_path(self) -> None:
        for headers in (SHOWN, AUTHORIZED):
            self.assertEqual(Front().call(push(headers=headers)).statuses, [404])
