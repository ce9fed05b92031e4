"""What the Bot API may answer to a ``sendMessage``, and what ``POST /send`` makes of it (contract 2.1)."""

from __future__ import annotations

import gzip
from typing import Any

from attrs import field, frozen

from tests.support import bot_api_faults as faults
from tests.support.bot_api import Answer, failure, hang_up
from tests.support.bot_api_faults import chunked, envelope, page
from tests.support.http_server import response

MIB = 2**20
OK = b'{"ok":true,"result":{"message_id":7}}'


@frozen
class Row:
    """What the Bot API answers, and what the caller gets."""

    label: str
    answer: Answer
    status: int
    code: str | None = None
    retry_after: str | None = None
    body: bytes = b""
    """Of a success: Telegram's envelope, byte for byte."""
    error: dict[str, Any] = field(factory=dict)
    """Further members of ``error``; those of Telegram's that are not here must not be there."""


def done(label: str, answer: Answer, body: bytes = OK) -> Row:
    return Row(label, answer, 200, body=body)


def rejected(label: str, answer: Answer, **error: Any) -> Row:
    return Row(label, answer, 422, "TELEGRAM_REJECTED", error=error)


def limited(label: str, answer: Answer, retry_after: str | None = None) -> Row:
    return Row(label, answer, 429, "TELEGRAM_RATE_LIMITED", retry_after)


def wrong(label: str, answer: Answer) -> Row:
    return Row(label, answer, 502, "UPSTREAM_ERROR")


def gone(label: str, answer: Answer) -> Row:
    return Row(label, answer, 502, "UPSTREAM_UNAVAILABLE")


HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
CODE = b'{"ok":false,"error_code":%b,"description":"words"}'
LIMIT = b'{"ok":false,"error_code":429,"description":"x","parameters":{"retry_after":%b}}'
OTHERWISE = b' {"result" :{"t":"\\ud83d \xc3\xa9"} , "x":[1.0], "ok":true}\n '
BIG = b'{"ok":true,"result":{"text":"%b"}}'
FULL = BIG % (b"x" * (MIB - len(BIG) + 2))

ROWS = (
    done("ok", envelope(OK)),
    done("ok, in another way", envelope(OTHERWISE), OTHERWISE),
    done("ok, as something else", response(200, OK, "Content-Type: text/plain; charset=latin-1")),
    done("ok, in chunks", chunked(OK[:9], OK[9:])),
    done("ok, until the end", faults.broken_off(b"HTTP/1.0 200 OK\r\n\r\n" + OK)),
    done("ok, after hints", b"HTTP/1.1 100 Continue\r\n\r\n" + HINTS * 3 + envelope(OK)),
    done("ok, with another 2xx", envelope(OK, 201)),
    done("ok, as large as may be", envelope(FULL), FULL),
    done("ok, said twice", envelope(b'{"ok":false,' + OK[1:]), b'{"ok":false,' + OK[1:]),
    rejected("400", failure(400, "Bad Request: chat not found"), description="Bad Request: chat not found"),
    rejected("403", faults.blocked(), description="Forbidden: bot was blocked by the user"),
    rejected("403 without words", envelope(b'{"ok":false,"error_code":403}', 403)),
    rejected("400 by the status", envelope(b'{"ok":false,"description":"words"}', 400), description="words"),
    rejected("400 with 200", envelope(CODE % b"400"), description="words"),
    rejected("403 with 502", envelope(CODE % b"403", 502), description="words"),
    rejected(
        "upgraded",
        faults.upgraded(-1001557912345),
        description="Bad Request: group chat was upgraded to a supergroup chat",
        migrate_to_chat_id=-1001557912345,
    ),
    *(
        rejected(f"upgraded to {odd}", failure(400, "x", migrate_to_chat_id=odd), description="x")
        for odd in ("-100", 0, True, 1.5, 2**63, None, [1])
    ),
    limited("429", faults.too_many_requests(7), "7"),
    limited("429 in the body", envelope(LIMIT % b"8", 429), "8"),
    limited("429 in the header", envelope(CODE % b"429", 429, "Retry-After: 9"), "9"),
    limited("429 in both", envelope(LIMIT % b"8", 429, "Retry-After: 9"), "8"),
    limited("429 with 200", envelope(LIMIT % b"8"), "8"),
    limited("429 without an envelope", page(429, "Retry-After: 3"), "3"),
    limited("429 without a word", page(429)),
    limited("429 for a day", envelope(LIMIT % b"86400", 429), "86400"),
    *(
        limited(f"429 for {odd[:9]!r}", envelope(LIMIT % odd, 429))
        for odd in (b"0", b"-7", b"1.5", b"true", b'"7"', b"86401", b"1" + b"0" * 5000, b"null", b"[7]")
    ),
    *(
        limited(f"429, header {odd[:9]!r}", page(429, f"Retry-After: {odd}"))
        for odd in ("0", "-7", "+7", "1.5", "7s", "86401", "9" * 5000, "Wed, 21 Oct 2026 07:28:00 GMT")
    ),
    limited("429, two headers", page(429, "Retry-After: 3", "Retry-After: 4")),
    *(wrong(str(code), failure(code, "words")) for code in (401, 404, 409, 421, 500, 503)),
    *(wrong(f"page {status}", page(status)) for status in (200, 400, 403, 404, 500, 502, 503, 504)),
    *(
        wrong(f"redirect {status}", page(status, "Location: /elsewhere", "Set-Cookie: a=b"))
        for status in (301, 302, 303, 304, 307, 308)
    ),
    *(
        wrong(f"body {body[:40]!r}", envelope(body))
        for body in (
            b"",
            b"{",
            b"[]",
            b"null",
            b"\xff",
            b"\xef\xbb\xbf" + OK,
            OK + b"x",
            OK + OK,
            OK[:-1],
            b'{"ok":true}',
            b'{"ok":1,"result":{}}',
            b'{"ok":"true","result":{}}',
            b'{"result":{}}',
            b'{"ok":true,"result":[1]}',
            b'{"ok":true,"result":true}',
            b'{"ok":true,"result":null}',
            b'{"ok":false}',
            b'{"ok":false,"result":{}}',
            b'{"ok":false,"error_code":"400"}',
            b'{"ok":false,"error_code":400.0}',
            b'{"ok":false,"error_code":true}',
            b'{"ok":true,"result":{"x":NaN}}',
            b"[" * 200_000,
        )
    ),
    wrong("ok with 500", envelope(OK, 500)),
    wrong("ok with 400", envelope(OK, 400)),
    wrong("204", response(204)),
    wrong("gzip", response(200, gzip.compress(OK), "Content-Encoding: gzip")),
    wrong("too large by one", envelope(FULL + b" ")),
    wrong("too large by its word", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"),
    wrong("without end", faults.endless(chunked(end=b""), b"4000\r\n" + b" " * 0x4000 + b"\r\n")),
    wrong("a head without end", faults.endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 1000)),
    wrong("hints without end", faults.endless(b"", HINTS * 100)),
    wrong("no HTTP", b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    wrong("two lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 37\r\n\r\n" + OK),
    wrong("a length that is none", b"HTTP/1.1 200 OK\r\nContent-Length: -37\r\n\r\n" + OK),
    wrong("a chunk that is none", chunked(OK, end=b"zz\r\n")),
    gone("hung up", hang_up),
    gone("reset", faults.reset),
    gone("cut in the head", faults.broken_off(b"HTTP/1.1 200 OK\r\nContent-Le")),
    gone("cut in the body", faults.broken_off(b"HTTP/1.1 200 OK\r\nContent-Length: 37\r\n\r\n" + OK[:9])),
    gone("cut in a chunk", faults.broken_off(chunked(OK[:9], end=b"ff\r\nx"))),
)
