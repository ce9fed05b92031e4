"""
Heads and chunks beside another parser (h11): what is served is what it reads, and it reads no request more.

The other way round does not hold: here more is refused.
"""

from __future__ import annotations

import contextlib

import h11
from attrs import frozen
from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.web.framing import origin_form, well_formed_trailer
from tests.support.front import AUTHORIZED, Front, chunked, get, parse_answers, post


@frozen
class Read:
    """A request as it was understood."""

    method: bytes
    target: bytes
    body: bytes


def served(data: bytes) -> tuple[list[Read], int]:
    """What reaches a handler, and how many answers there are in all."""
    front = Front()
    front.handler.answers = b"{}"
    peer = front.call(data)
    reads = [Read(request.method, request.uri, body) for request, body in front.handler.served]
    return reads, len([status for status in peer.statuses if status != 100])


def read_elsewhere(data: bytes) -> list[Read]:
    """The whole requests that another parser finds, until it refuses something or the connection ends."""
    reads: list[Read] = []
    with contextlib.suppress(h11.RemoteProtocolError):
        while True:
            connection = h11.Connection(h11.SERVER, max_incomplete_event_size=200_000)
            # One empty line before a request is forgiven (RFC 9112, 2.2); that parser does not.
            connection.receive_data(data.removeprefix(b"\r\n"))
            head, body = connection.next_event(), bytearray()
            if not isinstance(head, h11.Request):
                break
            while isinstance(piece := connection.next_event(), h11.Data):
                body += piece.data
            if not isinstance(piece, h11.EndOfMessage):
                break
            reads.append(Read(head.method, head.target, bytes(body)))
            if connection.their_state is h11.MUST_CLOSE:
                break
            data = connection.trailing_data[0]
    return reads


FIELDS = st.sampled_from(
    [
        *(
            b"Host: x",
            b"Host: y",
            b"Host : x",
            b"X: a",
            b"X:",
            b"X",
            b" folded",
            b"\tfolded",
            b"X: a\tb",
            b"X: \xff",
        ),
        *(b"Content-Length: 2", b"Content-Length: 5", b"Content-Length: 02", b"Content-Length: 2, 2"),
        *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: Chunked", b"Transfer-Encoding: identity"),
        *(b"Transfer-Encoding : chunked", b"Content-Length: +2", b"Connection: close", b"Trailer: X"),
        *(b"Connection: keep-alive", b"Expect: 100-continue", AUTHORIZED[:-2]),
    ]
)
STARTS = st.sampled_from(
    [
        *(b"POST /send HTTP/1.1", b"POST /send HTTP/1.0", b"GET /health HTTP/1.1", b"GET * HTTP/1.1"),
        *(b"POST  /send HTTP/1.1", b"POST /send", b"post /send HTTP/1.1", b"POST http://x/send HTTP/1.1"),
        *(b"POST /send HTTP/1.10", b"DELETE /subscriptions/1 HTTP/1.1", b""),
    ]
)
CHUNKS = st.sampled_from(
    [
        *(b"2\r\n{}\r\n", b"02;a=b\r\n{}\r\n", b"2\r\n{}", b"2\n{}\n", b"0\r\n\r\n", b"0\r\n", b"\r\n"),
        *(b"X: a\r\n", b"X: a\n", b"X\r\n", b"0x2\r\n{}\r\n", b"-1\r\n", b"3\r\n{}\r\n", b"{}", b"\n"),
        *(b" X: a\r\n", b"Content-Length: 3\r\n", b"+2\r\n{}\r\n", b"2;\r\n{}\r\n", b"2 \r\n{}\r\n"),
        b'2;a="\r\n"\r\n{}\r\n',
    ]
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Nearly a request, or several."""
    parts: list[bytes] = []
    for _ in range(draw(st.integers(1, 2))):
        usual = [b"Host: x", AUTHORIZED[:-2], b"Content-Type: application/json"]
        fields = draw(st.permutations(usual + draw(st.lists(FIELDS, max_size=3))))
        parts += [b"\r\n".join([draw(STARTS), *fields, b"", b""]), *draw(st.lists(CHUNKS, max_size=5))]
    return b"".join(parts)


class AgreementTests(SynchronousTestCase):
    @settings(max_examples=400)
    @given(messages())
    @example(post() + post())
    @example(chunked(b"{}", b"{}") + get())
    @example(chunked(b"{}", end=b"0\r\nX: a\r\n\r\n") + get())
    @example(get().replace(b" /", b" http://x/"))
    def test_what_is_served_another_parser_reads_the_same(self, data: bytes) -> None:
        ours, answers = served(data)
        theirs = read_elsewhere(data)
        # Refused ones are not served, but every answer is to a request: theirs holds ours in the same order.
        place = iter(theirs)
        for read in ours:
            self.assertTrue(
                any((other.method, other.body) == (read.method, read.body) for other in place),
                (data, read, theirs),
            )
        self.assertLessEqual(len(ours), len(theirs))
        self.assertLessEqual(len(ours), answers)

    @settings(max_examples=100)
    @given(
        st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(1, 30), max_size=10)
    )
    def test_chunks_and_pieces_do_not_matter(self, chunks: list[bytes], sizes: list[int]) -> None:
        front = Front()
        front.handler.answers = b"{}"
        peer = front.connect()
        data = chunked(*chunks) + post(b"next")
        at = 0
        for size in [*sizes, len(data)]:
            peer.send(data[at : at + size])
            at += size
        self.assertEqual([body for _, body in front.handler.served], [b"".join(chunks), b"next"])
        self.assertEqual(peer.statuses, [200, 200])
        self.assertEqual(parse_answers(peer.transport.value())[0].body, b"{}")


class PieceTests(SynchronousTestCase):
    @given(st.binary(max_size=60) | st.text(alphabet="htps:/?#@[]x.", max_size=30).map(str.encode))
    @example(b"http://")
    @example(b"http://x")
    @example(b"HTTP://x?y")
    def test_a_target_becomes_a_path_once_and_for_all(self, target: bytes) -> None:
        form = origin_form(b"GET", target)
        if form is not None:
            self.assertTrue(form.startswith(b"/"))
            self.assertTrue(target.endswith(form.lstrip(b"/")), (target, form))
            if not form.startswith(b"//"):
                self.assertEqual(origin_form(b"GET", form), form)

    @given(st.lists(st.binary(max_size=20), max_size=3))
    def test_a_trailer_that_is_taken_is_a_head_that_another_parser_takes(self, lines: list[bytes]) -> None:
        if not well_formed_trailer(lines):
            return
        self.assertFalse(any(set(line) & set(b"\r\n\x00") for line in lines))
        for line in lines:
            name, colon, _ = line.partition(b":")
            self.assertTrue(name and colon and not set(name) & set(b" \t"), line)
