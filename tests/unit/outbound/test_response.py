from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import Answered, Unanswered
from telegrammer.outbound.response import HEAD_TOO_LARGE, MALFORMED, UPGRADE, ResponseReader, Stage

LIMIT = 65536
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
TWICE = b"HTTP/1.1 200 x\r\n" + b"Transfer-Encoding: chunked\r\n" * 2


def reader(head: int = LIMIT, body: int = LIMIT) -> ResponseReader:
    made = ResponseReader(head, body)
    made.begin()
    return made


def read(*pieces: bytes) -> ResponseReader:
    made = reader()
    for piece in pieces:
        made.feed(piece)
    return made


def bytewise(data: bytes) -> ResponseReader:
    return read(*(data[i : i + 1] for i in range(len(data))))


class WholeMessages(SynchronousTestCase):
    """(response, status, Retry-After, may the connection be used again)"""

    table: tuple[tuple[bytes, int, tuple[bytes, ...], bool], ...] = (
        (OK, 200, (), True),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, (), True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, (), True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, (), True),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", 302, (), True),
        (
            b"HTTP/1.1 299 x\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nhi\r\n0\r\nT: x\r\n\r\n",
            299,
            (),
            True,
        ),
        (b"HTTP/1.1 200 x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", 200, (), False),
        (b"HTTP/1.0 200 x\r\nContent-Length: 2\r\n\r\nok", 200, (), False),
        (b"HTTP/1.0 200 x\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 200, (), True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 x\r\nX: y\r\n\r\n" + OK, 200, (), True),
        (b"\r\n" + OK, 200, (), True),
        (TWICE + b"\r\n0\r\n\r\n", 200, (), False),
        (b"HTTP/1.1 103 x\r\nTransfer-Encoding: chunked\r\n\r\n" + OK, 200, (), True),
        (b"HTTP/1.1 200 x\r\nTransfer-Encoding: CHUNKED \r\n\r\n0\r\n\r\n", 200, (), True),
        (b"HTTP/1.1 200 x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 200, (), False),
        (
            b"HTTP/1.1 503 x\r\nReTRY-after:  5 \t\r\nRetry-After: 6\r\nContent-Length: 0\r\n\r\n",
            503,
            (b"5", b"6"),
            True,
        ),
        (
            b"HTTP/1.1 100 x\r\nRetry-After: 9\r\n\r\nHTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n",
            503,
            (),
            True,
        ),
        (
            b"HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nRetry-After: 5\r\n\r\n",
            503,
            (),
            True,
        ),
    )

    def test_answers(self) -> None:
        for response, status, retry_after, again in self.table:
            for made in (read(response), bytewise(response)):
                self.assertEqual(made.stage, Stage.COMPLETE, response)
                self.assertEqual(made.result, Answered(status, retry_after), response)
                self.assertEqual(made.keep_alive, again, response)

    def test_each_response_stands_alone(self) -> None:
        made = read(
            b"HTTP/1.1 503 x\r\nRetry-After: 5\r\nKeep-Alive: timeout=3\r\nContent-Length: 1\r\n\r\na"
        )
        self.assertEqual(made.keep_alive_seconds, 3)
        made.begin()
        self.assertIsNone(made.answer)
        made.feed(OK)
        self.assertEqual(made.result, Answered(200))
        self.assertIsNone(made.keep_alive_seconds)
        self.assertTrue(made.keep_alive)

    def test_keep_alive_times(self) -> None:
        for value, seconds in (
            (b"timeout=5, max=100", 5),
            (b'max=3,Timeout="7"', 7),
            (b"timeout=", None),
            (b"timeout=999999", None),
            (b"mytimeout=5", None),
        ):
            made = read(b"HTTP/1.1 200 x\r\nKeep-Alive: %b\r\nContent-Length: 0\r\n\r\n" % value)
            self.assertEqual(made.keep_alive_seconds, seconds, value)


class Unfinished(SynchronousTestCase):
    def test_no_answer_before_the_head_is_whole(self) -> None:
        made = read(OK[:-5])
        self.assertEqual(made.stage, Stage.READING)
        self.assertIsNone(made.answer)

    def test_the_head_answers_while_the_body_is_awaited(self) -> None:
        for head in (b"Content-Length: 10", b"Transfer-Encoding: chunked", b"Server: reads-to-the-end"):
            made = read(b"HTTP/1.1 200 x\r\n" + head + b"\r\n\r\n")
            self.assertEqual(made.stage, Stage.READING, head)
            self.assertEqual(made.answer, Answered(200), head)


class Limits(SynchronousTestCase):
    def head_of(self, size: int) -> bytes:
        start, end = b"HTTP/1.1 200 x\r\nContent-Length: 0\r\nX: ", b"\r\n\r\n"
        return start + b"x" * (size - len(start) - len(end)) + end

    def test_a_head_of_the_limit_passes_and_one_byte_more_does_not(self) -> None:
        self.assertEqual(read(self.head_of(LIMIT)).result, Answered(200))
        self.assertEqual(read(self.head_of(LIMIT + 1)).result, Unanswered(HEAD_TOO_LARGE))

    def test_a_body_in_the_same_piece_does_not_count_as_head(self) -> None:
        made = reader(head=100)
        made.feed(b"HTTP/1.1 200 x\r\nContent-Length: 5000\r\n\r\n" + b"b" * 5000)
        self.assertEqual(made.stage, Stage.COMPLETE)

    def test_a_head_is_refused_before_its_end_is_seen(self) -> None:
        made = reader()
        made.feed(b"HTTP/1.1 200 x\r\n")
        fed = 0
        while made.stage is Stage.READING:
            fed += 1000
            made.feed(b"X-Header: yyyyyyy\r\n" * 50)
            self.assertLess(fed, 100 * LIMIT)
        self.assertEqual(made.result, Unanswered(HEAD_TOO_LARGE))
        self.assertEqual(len(made._head), 0)

    def test_interim_heads_count(self) -> None:
        made = reader()
        for _ in range(LIMIT // 25 + 1):
            made.feed(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.assertEqual(made.result, Unanswered(HEAD_TOO_LARGE))

    def test_a_body_of_the_limit_is_reusable_and_a_larger_one_not(self) -> None:
        for size, stage in ((LIMIT, Stage.COMPLETE), (LIMIT + 1, Stage.BROKEN)):
            made = read(b"HTTP/1.1 200 x\r\nContent-Length: %d\r\n\r\n" % size, b"b" * size)
            self.assertEqual((made.stage, made.result), (stage, Answered(200)))
            self.assertEqual(made.keep_alive, stage is Stage.COMPLETE)

    def test_a_flood_of_chunk_framing_ends(self) -> None:
        made = read(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n")
        pieces = 0
        while made.stage is Stage.READING and pieces < 1000:
            made.feed(b"1;" + b"e" * 1000 + b"\r\nx\r\n")
            pieces += 1
        self.assertEqual((made.stage, made.result), (Stage.BROKEN, Answered(200)))


class BrokenBodies(SynchronousTestCase):
    """The status has been said: what follows only decides about the connection."""

    def test_the_answer_stands_and_the_connection_goes(self) -> None:
        for response in (
            b"HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\nokgarbage",
            OK + OK,
            OK + b"H",
            b"HTTP/1.1 200 x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nokmore",
            b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\nhello",
            b"HTTP/1.1 200 x\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\nhello",
            b"HTTP/1.1 200 x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 x\r\nContent-Length: -5\r\n\r\n",
            b"HTTP/1.1 200 x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
            b"HTTP/1.1 200 x\nContent-Length: 2\n\nok",
            b"HTTP/1.1 200 x\r\nFolded: a\r\n b\r\n\r\n",
            b"HTTP/1.1 100 x\r\nConnection: close\r\n\r\n" + OK,
        ):
            for made in (read(response), bytewise(response)):
                self.assertEqual(made.result, Answered(200), response)
                self.assertEqual(made.stage, Stage.BROKEN, response)
                self.assertFalse(made.keep_alive, response)

    def test_a_mended_head_keeps_its_retry_after(self) -> None:
        made = bytewise(
            b"HTTP/1.1 103 x\nRetry-After: 1\n\n"
            b"HTTP/1.1 503 x\nretry-after: 7 \nX-Retry-After: 8\nRetry-After:9\n\nRetry-After: 10\n"
        )
        self.assertEqual(made.result, Answered(503, (b"7", b"9")))

    def test_a_mended_head_must_be_whole(self) -> None:
        made = read(b"HTTP/1.1 200 x\nContent-Length: 2\n")
        self.assertEqual((made.stage, made.answer), (Stage.READING, None))

    def test_a_head_that_cannot_be_mended_has_a_limit_too(self) -> None:
        made = read(b"HTTP/1.1 200 x\n", b"X: y\n" * LIMIT)
        self.assertEqual(made.result, Unanswered(HEAD_TOO_LARGE))

    def test_a_folded_wait_is_none(self) -> None:
        for fold in (b"\r\n 0", b"\r\n\tminutes", b"\n 0"):
            made = read(b"HTTP/1.1 503 x\r\nRetry-After: 5" + fold + b"\r\nX: y\r\n\r\n")
            assert made.answer is not None
            self.assertEqual([value.isdigit() for value in made.answer.retry_after], [False])


class NoAnswer(SynchronousTestCase):
    def test_malformed(self) -> None:
        for response in (
            b"SSH-2.0-OpenSSH_9\r\n",
            b"ICY 200 OK\r\n\r\n",
            b"garbage",
            b"\x16\x03\x01\x02\x00",
            b"HTTP/1.1 2000 x\r\n\r\n",
            b"HTTP/1.1 20 x\r\n\r\n",
            b"HTTP/1.1 abc x\r\n\r\n",
            b"HTTP/1.1 099 x\r\n\r\n",
            b"HTTP/1.1 000 x\nX: y\n\n",
            b"HTTP/1.1 100 x\r\nConnection: close\r\n\r\nNOISE",
        ):
            for made in (read(response), bytewise(response)):
                self.assertEqual(made.stage, Stage.BROKEN, response)
                self.assertEqual(made.result, Unanswered(MALFORMED), response)

    def test_a_protocol_switch(self) -> None:
        for response in (
            b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x05",
            b"HTTP/1.1 101 Switching\r\n\r\n",
            b"HTTP/1.1 101 Switching\n\n",
        ):
            for made in (read(response), bytewise(response)):
                self.assertEqual((made.stage, made.result), (Stage.BROKEN, Unanswered(UPGRADE)), response)

    def test_nothing_is_read_after_the_end(self) -> None:
        made = reader()
        made.end()
        made.feed(OK)
        self.assertIsNone(made.answer)


PIECES = st.lists(
    st.sampled_from(
        [
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 503 x\n",
            b"Content-Length: 3\r\n",
            b"Content-Length: 4\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Connection: close\r\n",
            b"Retry-After: 5\r\n",
            b"\r\n",
            b"\n",
            b"abc",
            b"3\r\nabc\r\n",
            b"0\r\n\r\n",
            b"\x00\xff",
        ]
    ),
    max_size=12,
).map(b"".join) | st.binary(max_size=200)


class Hostile(SynchronousTestCase):
    @settings(max_examples=300)
    @given(PIECES, st.lists(st.integers(1, 40), max_size=20))
    def test_pieces_do_not_matter(self, data: bytes, sizes: list[int]) -> None:
        whole = read(data)
        parts, start = reader(), 0
        for size in [*sizes, len(data) + 1]:
            if parts.stage is not Stage.BROKEN:
                parts.feed(data[start : start + size])
            start += size
        self.assertEqual(parts.answer, whole.answer)
        if whole.stage is Stage.BROKEN and whole.answer is None:
            self.assertEqual(parts.result, whole.result)
        self.assertEqual(parts.keep_alive, whole.keep_alive)
        self.assertLessEqual(len(parts._head), LIMIT)
