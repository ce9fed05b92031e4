"""
Responses beside another parser (h11): a connection is used again only where that one, too, sees a whole one.

And an answer that stands is the one that it reads, as far as it reads at all: here a head with two lengths is
still an answer, there it is none.
"""

from __future__ import annotations

import contextlib

import h11
from attrs import frozen
from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import Answered
from telegrammer.outbound.response import ResponseReader, Stage

LIMIT = 2000


@frozen
class Read:
    answer: Answered
    whole: bool
    """It has ended, and nothing follows."""


def read_elsewhere(data: bytes) -> Read | None:
    """The final response to a POST; None as long as there is none."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=200_000)
    request = h11.Request(method="POST", target="/", headers=[("Host", "x"), ("Content-Length", "0")])
    connection.send(request)
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    found: Read | None = None
    with contextlib.suppress(h11.RemoteProtocolError):
        while True:
            match connection.next_event():
                case h11.Response(status_code=status, headers=headers):
                    waits = (b" ".join(value.split()) for name, value in headers if name == b"retry-after")
                    found = Read(Answered(status, tuple(waits)), False)
                case h11.InformationalResponse() | h11.Data():
                    pass
                case h11.EndOfMessage():
                    assert found is not None
                    # Empty lines in front of the next response do no harm.
                    surplus = connection.trailing_data[0].strip(b"\r\n")
                    # That parser keeps no connection of HTTP/1.0, even one that the peer offers to keep.
                    kept = connection.their_state is h11.DONE or connection.their_http_version == b"1.0"
                    found = Read(found.answer, kept and not surplus)
                    break
                case _:
                    break
    return found


STATUSES = st.sampled_from(
    [
        *(
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 503 x\r\n",
            b"HTTP/1.0 200 OK\r\n",
            b"HTTP/1.1 204 No Content\r\n",
        ),
        *(b"HTTP/1.1 304 x\r\n", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 x\r\n", b"HTTP/1.1 200\r\n"),
    ]
)
FIELDS = st.sampled_from(
    [
        *(b"Content-Length: 3", b"Content-Length: 4", b"Content-Length: 03", b"Content-Length: +3", b"X: a"),
        b"Transfer-Encoding: chunked",
        *(b"Transfer-Encoding: chunked, gzip", b"Retry-After: 5", b"retry-after:\t6 ", b"Connection: close"),
        *(
            b"Connection: keep-alive",
            b"Content-Length : 3",
            b"X",
            b" folded",
            b"Content-Length: 3, 3",
            b"X: \xff",
        ),
        b"Retry-After: 7",
    ]
)
BODIES = st.sampled_from(
    [
        *(
            b"abc",
            b"3\r\nabc\r\n",
            b"3;a=b\r\nabc\r\n",
            b"0\r\n\r\n",
            b"0\r\nX: a\r\n\r\n",
            b"\r\n",
            b"\n",
            b"d",
        ),
        *(
            b"3\nabc\n",
            b"0x3\r\nabc\r\n",
            b"-1\r\n",
            b"3 \r\nabc\r\n",
            b"4\r\nabc\r\n",
            b"0\r\n\n",
            b"x" * 3000,
        ),
        b"0\r\nRetry-After: 9\r\n\r\n",
    ]
)


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    fields = draw(st.lists(FIELDS, max_size=3))
    head = draw(STATUSES) + b"".join(field + b"\r\n" for field in fields) + b"\r\n"
    return head + b"".join(draw(st.lists(BODIES, max_size=4)))


class AgreementTests(SynchronousTestCase):
    @settings(max_examples=300)
    @given(responses())
    @example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nRetry-After: 9\r\n\r\n")
    @example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    @example(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd")
    @example(b"HTTP/1.1 503 x\r\nRetry-After: 5\r\n 0\r\n\r\n")
    def test_another_parser_reads_the_same(self, data: bytes) -> None:
        reader = ResponseReader(LIMIT, LIMIT)
        reader.begin()
        reader.feed(data)
        other = read_elsewhere(data)
        if other is not None:
            assert reader.answer is not None, data
            # How much space is left of a folded line is anybody's choice.
            spelled = tuple(b" ".join(value.split()) for value in reader.answer.retry_after)
            self.assertEqual(Answered(reader.answer.status, spelled), other.answer, data)
        # A 204 or 304 has no body, whatever its head says; the other one refuses what it cannot undo.
        bodiless = reader.answer is not None and reader.answer.status in (204, 304)
        if reader.stage is Stage.COMPLETE and reader.keep_alive and not (other is None and bodiless):
            assert other is not None, data
            self.assertTrue(other.whole, data)
