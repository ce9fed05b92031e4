"""
Requests whose end is in doubt: none of them has a second request hidden in it.

Whoever stands in front of the daemon may read such bytes in another way.  So each is refused, or read in
the only way there is (RFC 9112); and whatever follows a refusal is never taken for a request.
"""

from __future__ import annotations

import contextlib

from tests.support.daemon import Daemon
from tests.support.gateway import Gateway
from tests.support.lab import repetitions
from tests.support.oracle import Oracle
from tests.support.wire import (
    WireAnswer,
    ask,
    chunked,
    connect,
    first_answered,
    head,
    post,
    read_answers,
    read_to_end,
    send_body,
    warm_up,
    write,
)

BODY = send_body("outer")
HIDDEN = "hidden"
JSON = b"Content-Type: application/json"
LENGTH = b"Content-Length: %d" % len(BODY)
CODED = b"%x\r\n%b\r\n" % (len(BODY), BODY)


def hidden(key: str) -> bytes:
    """What an attacker would have us take for a second request."""
    return post(b"/send", key, send_body(HIDDEN))


def refused(key: str) -> dict[str, bytes]:
    """Requests that are not well-formed, each with another behind it or within."""
    behind = hidden(key)

    def with_fields(*fields: bytes, body: bytes = BODY) -> bytes:
        return head(b"POST", b"/send", key, JSON, *fields) + body + behind

    whole = post(b"/send", key, BODY)
    plain = head(b"POST", b"/send", key, JSON, LENGTH)

    def edited(old: bytes, new: bytes) -> bytes:
        assert old in whole
        return whole.replace(old, new, 1) + behind

    def in_chunks(coded: bytes) -> bytes:
        return chunked(b"/send", key, coded) + behind

    coding = b"Transfer-Encoding: chunked"
    last = b"0\r\n\r\n"
    return {
        "length, then coding": with_fields(LENGTH, coding, body=CODED + last),
        "coding, then length": with_fields(coding, LENGTH, body=CODED + last),
        "coding twice": with_fields(coding, coding, body=CODED + last),
        "coding twice in a list": with_fields(coding + b", chunked", body=CODED + last),
        "another coding": with_fields(b"Transfer-Encoding: gzip", LENGTH),
        "another coding before": with_fields(b"Transfer-Encoding: gzip, chunked", body=CODED + last),
        "identity": with_fields(b"Transfer-Encoding: identity", LENGTH),
        "identity alone": with_fields(b"Transfer-Encoding: identity"),
        "an empty coding": with_fields(b"Transfer-Encoding:", LENGTH),
        "a vertical tab before the coding": with_fields(b"Transfer-Encoding: \x0bchunked", LENGTH),
        "a quoted coding": with_fields(b'Transfer-Encoding: "chunked"', LENGTH),
        "a coding with a parameter": with_fields(coding + b";q=1", body=CODED + last),
        "coding in HTTP/1.0": with_fields(coding, body=CODED + last).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
        "two lengths": with_fields(LENGTH, b"Content-Length: 0"),
        "two equal lengths": with_fields(LENGTH, LENGTH),
        "two lengths in a list": with_fields(LENGTH + b", %d" % len(BODY)),
        "a length with a sign": with_fields(b"Content-Length: +%d" % len(BODY)),
        "a negative length": with_fields(b"Content-Length: -1"),
        "a length in hexadecimal": with_fields(b"Content-Length: 0x10"),
        "a length with an underscore": with_fields(b"Content-Length: 1_0"),
        "a length of other digits": with_fields("Content-Length: ٣".encode()),
        "an empty length": with_fields(b"Content-Length:"),
        "a length with a fraction": with_fields(b"Content-Length: 3.0"),
        "space before the colon": with_fields(b"Content-Length : %d" % len(BODY)),
        "space before the coding's colon": with_fields(b"Transfer-Encoding : chunked", LENGTH),
        "a tab before the colon": with_fields(b"Content-Length\t: %d" % len(BODY)),
        "space before a name": with_fields(b" Transfer-Encoding: chunked", LENGTH),
        "a folded line": with_fields(LENGTH, b"X: a", b" folded"),
        "a folded coding": with_fields(LENGTH, b"X: a", b"\tTransfer-Encoding: chunked"),
        "a line without a colon": with_fields(LENGTH, b"Transfer-Encoding"),
        "a name that is empty": with_fields(LENGTH, b": chunked"),
        "a name that is no token": with_fields(LENGTH, b"Transfer(Encoding): chunked"),
        "a line feed in a value": with_fields(LENGTH, b"X: a\nTransfer-Encoding: chunked"),
        "a carriage return in a value": with_fields(LENGTH, b"X: a\rTransfer-Encoding: chunked"),
        "a zero byte in a value": with_fields(LENGTH, b"X: a\x00b"),
        "bare line feeds": plain.replace(b"\r\n", b"\n") + BODY + behind,
        "a bare line feed at the head's end": plain[:-2] + b"\n" + BODY + behind,
        "two Hosts": with_fields(LENGTH, b"Host: other"),
        "a Host with a path": edited(b"Host: gateway", b"Host: gateway/x"),
        "no Host": edited(b"Host: gateway\r\n", b""),
        "two spaces": edited(b"POST /", b"POST  /"),
        "a tab in the request line": edited(b"POST /", b"POST\t/"),
        "a space in the target": edited(b"/send", b"/send x"),
        "no version": edited(b" HTTP/1.1", b""),
        "another version": edited(b"HTTP/1.1", b"HTTP/1.2"),
        "a version in small letters": edited(b"HTTP/1.1", b"http/1.1"),
        "a longer version": edited(b"HTTP/1.1", b"HTTP/1.10"),
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + behind,
        "a target that is an authority": edited(b"POST /send", b"CONNECT gateway:80"),
        "a target without a slash": edited(b"/send", b"send"),
        "an absolute target of another scheme": edited(b"/send", b"ftp://gateway/send"),
        "an absolute target without a host": edited(b"/send", b"http:///send"),
        "an absolute target with credentials": edited(b"/send", b"http://user@gateway/send"),
        "an asterisk": edited(b"/send", b"*"),
        "a chunk's size in another base": in_chunks(b"0x%b" % CODED + last),
        "a chunk's size with a sign": in_chunks(b"+%b" % CODED + last),
        "a chunk's size with an underscore": in_chunks(b"0_%b" % CODED + last),
        "a chunk's size behind a space": in_chunks(b" %b" % CODED + last),
        "a chunk without a size": in_chunks(b"\r\n" + CODED + last),
        "a chunk's size that is negative": in_chunks(b"-1\r\n" + CODED + last),
        "a chunk longer than its size": in_chunks(CODED[:-2] + b"x\r\n" + last),
        "a chunk without its end": in_chunks(CODED[:-2] + last),
        "a bare line feed behind a chunk": in_chunks(CODED[:-2] + b"\n" + last),
        "a bare line feed behind a size": in_chunks(CODED.replace(b"\r\n", b"\n", 1) + last),
        "a line feed in an extension": in_chunks(CODED.replace(b"\r\n", b";a\nb\r\n", 1) + last),
        "a carriage return in an extension": in_chunks(CODED.replace(b"\r\n", b";a\rb\r\n", 1) + last),
        "an extension without an end": in_chunks(b"1;" + b"x" * 2000 + b"\r\n"),
        "a bare line feed at the trailer's end": in_chunks(CODED + b"0\r\n\n"),
        "a line feed in a trailer": in_chunks(CODED + b"0\r\nX: a\n\r\n\r\n"),
        "a blank line of bare line feeds in a trailer": in_chunks(CODED + b"0\r\nX: a\n\n\r\n\r\n"),
        "a carriage return in a trailer": in_chunks(CODED + b"0\r\nX: a\rb\r\n\r\n"),
        "a trailer without a colon": in_chunks(CODED + b"0\r\n" + behind),
        "a trailer with space before the colon": in_chunks(CODED + b"0\r\nX : a\r\n\r\n"),
        "a folded trailer": in_chunks(CODED + b"0\r\nX: a\r\n b\r\n\r\n"),
        "a trailer with a zero byte": in_chunks(CODED + b"0\r\nX: \x00\r\n\r\n"),
        "a trailer without an end": in_chunks(CODED + b"0\r\nX: " + b"x" * 70_000),
    }


def read(key: str) -> dict[str, bytes]:
    """Requests that are unusual and well-formed: read in their one way, and so is what follows."""
    behind = hidden(key)
    coding = b"Transfer-Encoding: chunked"
    return {
        "an absolute target": post(b"http://gateway/send", key, BODY) + behind,
        "an absolute target of another host": post(b"HTTPS://other:1/send", key, BODY) + behind,
        "an absolute target and a query": post(b"http://gateway/send?x", key, BODY) + behind,
        "the coding in capitals": head(b"POST", b"/send", key, JSON, coding.upper())
        + CODED
        + b"0\r\n\r\n"
        + behind,
        "an extension": chunked(b"/send", key, CODED.replace(b"\r\n", b';a="b";c\r\n', 1) + b"0;x\r\n\r\n")
        + behind,
        "leading zeros": chunked(b"/send", key, b"000" + CODED + b"000\r\n\r\n") + behind,
        "chunks of one byte": chunked(
            b"/send", key, b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
        )
        + behind,
        "a trailer": chunked(b"/send", key, CODED + b"0\r\nX: a\r\nContent-Length: 9999\r\n\r\n") + behind,
        "leading zeros of a length": head(b"POST", b"/send", key, JSON, b"Content-Length: 000%d" % len(BODY))
        + BODY
        + behind,
        "an empty line before": b"\r\n" + post(b"/send", key, BODY) + behind,
        "white space around a value": head(
            b"POST", b"/send", key, JSON, b"Content-Length: \t %d \t" % len(BODY)
        )
        + BODY
        + behind,
    }


def sent(gateway: Gateway) -> list[str]:
    return [call.arguments["text"] for call in gateway.api.of("sendMessage")]


def ask_on(daemon: Daemon, data: bytes, more: bytes) -> list[WireAnswer]:
    """What comes back for these bytes, when there are more once an answer has come."""
    with contextlib.closing(connect(daemon)) as peer:
        peer.sendall(data)
        first_answered([peer], 1)
        write(peer, more)
        return read_answers(read_to_end(peer))


def test_requests_in_doubt_are_refused_and_hide_nothing(running: Gateway) -> None:
    """One answer, a 400, and nothing is sent: neither what was asked nor what was hidden."""
    oracle = Oracle(running)
    oracle.subscribe()
    faults: list[str] = []
    for name, data in refused(running.daemon.key).items():
        answers = ask_on(running.daemon, data, hidden(running.daemon.key))
        found = [(answer.status, answer.code if answer.status >= 400 else None) for answer in answers]
        texts = sent(running)
        running.api.calls.clear()
        if found != [(400, "BAD_REQUEST")] or texts:
            faults.append(f"{name}: {found}, sent {texts}")
    assert not faults, "\n".join(faults)
    oracle.message("still there")
    assert oracle.settle() == []


def test_unusual_requests_are_read_in_their_one_way(running: Gateway) -> None:
    faults: list[str] = []
    for name, data in read(running.daemon.key).items():
        statuses = [answer.status for answer in ask(running.daemon, data)]
        texts = sent(running)
        running.api.calls.clear()
        if statuses != [200, 200] or texts != ["outer", HIDDEN]:
            faults.append(f"{name}: {statuses}, sent {texts}")
    assert not faults, "\n".join(faults)


def test_a_thousand_in_a_row(running: Gateway) -> None:
    """Written at once, without waiting for an answer: each is served, one after the other, in their order."""
    oracle, key = Oracle(running), running.daemon.key
    oracle.subscribe()
    oracle.messages(1)
    assert oracle.settle() == []
    warm_up(running.daemon)
    running.api.calls.clear()
    oracle.base_line()
    count = repetitions(250, 2500)
    requests, expected = bytearray(), []
    for number in range(count):
        requests += post(b"/send", key, send_body(f"number {number}"))
        requests += head(b"GET", b"/nowhere", "") + head(b"GET", b"/subscriptions", "")
        requests += chunked(b"/send", key, b"5\r\nwrong\r\n0\r\n\r\n")
        expected += [200, 404, 401, 400]
    answers = ask(running.daemon, bytes(requests))
    assert [answer.status for answer in answers] == expected
    assert sent(running) == [f"number {number}" for number in range(count)]
    oracle.check_base_line()
    assert oracle.settle() == []
