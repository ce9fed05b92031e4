"""
What each outcome of a callback means: whether it is tried again, when, and what is listed when it is dead.

Every row is a receiver with a script, one answer for each attempt; all of them hang on one daemon, each a
lane of its own, and get one message.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import trustme
from attrs import evolve, frozen

from tests.support.gateway import CHAT, Gateway
from tests.support.hostile import Blurts, InTurn, Shut, head, says
from tests.support.http_server import response
from tests.support.oracle import Oracle
from tests.support.receiver import CallbackReceiver, Conduct

WAITS = (1, 2)
ATTEMPTS = len(WAITS) + 1
ARGUMENTS = (
    *("--retry-schedule", ",".join(f"{wait}s" for wait in WAITS)),
    *("--delivery-workers", "64"),
    *("--max-subscriptions-per-key", "200"),
)
CLOCKS = 0.01
"""Seconds by which two clocks may differ."""
Answer = int | bytes | Conduct


@frozen
class Row:
    """What the receiver does at each attempt, the last of it over and over, and what must come of it."""

    name: str
    script: Sequence[Answer]
    attempts: int = 1
    dead: str | None = None
    """The reason, when the message ends as dead."""
    waits: Sequence[float] = WAITS
    """Seconds that must lie between two attempts, at least."""
    not_before: float | None = None
    """By the monotonic clock: no second attempt comes earlier."""


def done(name: str, answer: Answer) -> Row:
    return Row(name, [answer])


def final(name: str, answer: Answer, reason: str) -> Row:
    return Row(name, [answer], 1, reason)


def again(name: str, answer: Answer, reason: str) -> Row:
    """Tried until the budget is spent."""
    return Row(name, [answer], ATTEMPTS, reason)


def asks(name: str, status: int, *values: str, waits: float = WAITS[0]) -> Row:
    """Once refused with these ``Retry-After`` fields, then taken."""
    fields = [f"Retry-After: {value}" for value in values]
    return Row(name, [response(status, b"", *fields), 200], 2, None, [waits])


OK = response(200, b"ok")
TRAP = "/trap"
"""Where redirects lead; nobody may come here."""

STATUSES = [
    *(done(f"{status}", status) for status in (200, 201, 202, 203, 206, 226, 299)),
    done("204", head(b"204 No Content")),
    done("205", response(205)),
    done("200 without a reason", head(b"200", b"Content-Length: 0")),
    done("HTTP 1.0", says(b"HTTP/1.0 200 OK\r\n\r\nok", then="closes")),
    done("100, then 200", head(b"100 Continue") + OK),
    done("102, 103, then 200", head(b"102 x") + head(b"103 x", b"Link: </a>") + OK),
    *(
        final(f"{status}", response(status, b"", f"Location: {TRAP}"), f"redirect (HTTP {status})")
        for status in (300, 301, 302, 303, 305, 307, 308)
    ),
    final("304", head(b"304 Not Modified"), "HTTP 304"),
    *(
        final(f"{status}", status, f"HTTP {status}")
        for status in (
            400,
            401,
            402,
            403,
            404,
            405,
            406,
            407,
            409,
            410,
            411,
            413,
            415,
            417,
            421,
            422,
            425,
            451,
            499,
        )
    ),
    *(
        again(f"{status}", status, f"HTTP {status}")
        for status in (408, 429, 500, 501, 502, 503, 504, 507, 599)
    ),
    again(
        "101",
        head(b"101 Switching Protocols", b"Upgrade: x", b"Connection: upgrade"),
        "unexpected protocol switch",
    ),
]

RETRY_AFTER = [
    asks("3 s at 503", 503, "3", waits=3),
    asks("3 s at 429", 429, "3", waits=3),
    asks("3 s at 408", 408, "3", waits=3),
    asks("white space around it", 503, " \t3 \t", waits=3),
    asks("none", 503),
    asks("zero", 503, "0"),
    asks("a date that is past", 503, "Sun, 06 Nov 1994 08:49:37 GMT"),
    *(
        # Taken for a number or a date, any of them would be a wait beyond the test's patience.
        asks(f"not one: {value[:31]!r}", 503, value)
        for value in (
            *("-9999", "+9999", "9999.5", "9e3", "9999s", "0x9999", "9999 9", "9999, 9999", "9_999"),
            *("9\xb2\xb3\xb2", "", "soon", "9" * 400),
            "Sun, 06 Nov 2094 08:49:37",
            "Sun, 06 Nov 2094 08:49:37 +0000",
            "Sun, 31 Feb 2094 08:49:37 GMT",
            "2094-11-06T08:49:37Z",
        )
    ),
    asks("two of them", 503, "9999", "9999"),
    Row(
        "beyond the day",
        [response(503, b"", "Retry-After: 99999999")],
        1,
        "HTTP 503; Retry-After is beyond 24 h",
    ),
    Row(
        "a date beyond the day",
        [response(429, b"", "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT")],
        1,
        "HTTP 429; Retry-After is beyond 24 h",
    ),
    final("at 404", response(404, b"", "Retry-After: 1"), "HTTP 404"),
    final("at 301", response(301, b"", "Retry-After: 1", f"Location: {TRAP}"), "redirect (HTTP 301)"),
    done("at 200", response(200, b"", "Retry-After: 1")),
]

NETWORK = [
    again("closes before the head", says(then="closes"), "connection lost"),
    again("closes within the head", says(b"HTTP/1.1 200 OK\r\nContent-Le", then="closes"), "connection lost"),
    again("resets before the head", says(then="resets"), "connection lost"),
    again("resets within the head", says(b"HTTP/1.1 200 OK\r\nConte", then="resets"), "connection lost"),
    done("closes within the body", says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", then="closes")),
    done("resets within the body", says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", then="resets")),
    done(
        "closes within a chunk",
        says(head(b"200 x", b"Transfer-Encoding: chunked") + b"5\r\nx", then="closes"),
    ),
    again(
        "503, closes within the body",
        says(head(b"503 x", b"Content-Length: 9") + b"x", then="closes"),
        "HTTP 503",
    ),
    final(
        "404, resets within the body", says(head(b"404 x", b"Content-Length: 9"), then="resets"), "HTTP 404"
    ),
    again("an ssh server", says(b"SSH-2.0-OpenSSH_9.2\r\n", then="closes"), "malformed response"),
    again(
        "an HTTP/2 server", says(b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x80", then="closes"), "malformed response"
    ),
    again("a status of two digits", says(b"HTTP/1.1 20 OK\r\n\r\n", then="closes"), "malformed response"),
    again("no status", says(b"HTTP/1.1 OK\r\n\r\n", then="closes"), "malformed response"),
]

SEQUENCES = [
    Row("recovers at the last attempt", [503, 500, 200], 3),
    Row("fails in three ways", [429, says(then="resets"), 502], 3, "HTTP 502"),
    Row("is refused after a failure", [500, 410], 2, "HTTP 410"),
    Row(
        "is redirected after a failure",
        [says(then="closes"), response(302, b"", f"Location: {TRAP}")],
        2,
        "redirect (HTTP 302)",
    ),
    Row("asks for time, then refuses", [response(429, b"", "Retry-After: 2"), 403], 2, "HTTP 403", [2]),
    Row("asks for less than the schedule", [503, response(503, b"", "Retry-After: 1"), 200], 3),
]


ROWS = [*STATUSES, *RETRY_AFTER, *NETWORK, *SEQUENCES]


def dates() -> list[Row]:
    """The three forms of a date some seconds ahead, none of which may be anticipated."""
    then = int(time.time()) + 6
    when = datetime.fromtimestamp(then, UTC)
    forms = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", f"%a %b {when.day:2} %H:%M:%S %Y")
    not_before = time.monotonic() + then - time.time()
    return [
        evolve(asks(f"a date: {when:{form}}", 503, when.strftime(form)), not_before=not_before)
        for form in forms
    ]


@contextmanager
def nowhere() -> Iterator[dict[str, str]]:
    """URLs where nothing listens, nobody answers, or somebody else does; and why it is tried again."""
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(stranger)
    with (
        Shut() as shut,
        Blurts(head(b"400 Bad Request"), leaves=True) as plain,
        Blurts(leaves=True) as leaves,
        CallbackReceiver(tls=stranger) as untrusted,
    ):
        yield {
            f"http://127.0.0.1:{shut.port}/?key=hush": "connection refused",
            f"https://127.0.0.1:{shut.port}/?key=hush": "connection refused",
            f"https://127.0.0.1:{plain.port}/?key=hush": "TLS handshake failed",
            f"https://127.0.0.1:{leaves.port}/?key=hush": "TLS handshake failed",
            f"http://127.0.0.1:{leaves.port}/?key=hush": "connection lost",
            f"{untrusted.url}/?key=hush": "certificate not trusted",
        }
        assert plain.met == ATTEMPTS
        assert leaves.met == 2 * ATTEMPTS
        assert untrusted.on(None) == [], "posted to a stranger"


@pytest.mark.report("H1")
@pytest.mark.report("H4")
@pytest.mark.report("H10")
def test_what_each_outcome_means(gateway: Gateway) -> None:
    """How often each is tried, not before when, and with which reason it is listed; no secret is told."""
    rows = {f"/{number}?key=hush": row for number, row in enumerate([*ROWS, *dates()])}
    gateway.daemon.arguments = ARGUMENTS
    gateway.receiver.policy = InTurn({path: row.script for path, row in rows.items()})
    gateway.start()
    oracle = Oracle(gateway)
    with nowhere() as unreached:
        subscriptions = {oracle.subscribe(path): row for path, row in rows.items()}
        lost = {gateway.daemon.subscribe(CHAT, url): why for url, why in unreached.items()}
        oracle.message("hello")
        oracle.settle()

    jobs = failed(gateway)
    reasons = {job["subscription_id"]: job["reason"] for job in jobs}
    assert {number: reasons.pop(number, None) for number in lost} == lost
    assert {job["attempts"] for job in jobs if job["subscription_id"] in lost} == {ATTEMPTS}
    came = {path: gateway.receiver.on(path) for path in rows}
    assert {
        row.name: (len(came[path]), reasons.get(number))
        for (path, row), number in zip(rows.items(), subscriptions, strict=True)
    } == {row.name: (row.attempts, row.dead) for row in rows.values()}
    for path, row in rows.items():
        times = [callback.at for callback in came[path]]
        for earlier, later, wait in zip(times, times[1:], row.waits, strict=False):
            assert later - earlier > wait - CLOCKS, f"{row.name}: after {later - earlier:.3f} s"
        assert row.not_before is None or times[1] > row.not_before - CLOCKS, row.name
    assert "hush" not in gateway.daemon.output.text


def failed(gateway: Gateway) -> list[dict[str, Any]]:
    """What the operator is shown of the dead."""
    done = gateway.daemon.run("list-failed-deliveries", "--json")
    assert done.returncode == 0, done.stderr
    assert "hush" not in done.stdout
    deliveries: list[dict[str, Any]] = json.loads(done.stdout)["deliveries"]
    return deliveries
