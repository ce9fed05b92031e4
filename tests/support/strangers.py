"""
Requests of every kind, made by chance, each with what contract 2 says to it: a model of the HTTP front.

The model knows the order of the checks and nothing of the code.  A ``Case`` says which statuses are right,
and whether anything behind it on its connection is still heard.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from attrs import define, field, frozen

T = TypeVar("T")

LIMIT: Final = 65536
_METHODS = {
    "/send": {b"POST"},
    "/subscribe": {b"POST"},
    "/subscriptions": {b"GET", b"HEAD"},
    "/subscriptions/": {b"DELETE"},
    "/health": {b"GET", b"HEAD"},
}
_TOKEN_BYTES = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NO_PATHS = (
    *(b"/", b"/Send", b"/send/", b"//send", b"/send//", b"/%2Fsend", b"/send%2f", b"/./send", b"/../send"),
    *(b"/subscriptions/", b"/subscriptions/1/2", b"/subscriptions//1", b"/health;x", b"/health%3fx", b"/%ff"),
    *(b"/send%00", b"/%", b"/%zz", b"/" + b"x" * 4000, b"/{}", b"/<id>", b"/favicon.ico", b"/metrics"),
    *(b"/send%20", b"/%e2%82%ac", b"/telegram/webhook", b"/send%0d%0aX:%20y"),
)
_IDS = (
    *(b"1", b"0", b"-1", b"01", b"x", b"9" * 19, b"9" * 5000, b"%31", b"%d9%a1", b"1.0", b"1%0d%0aX:%20y"),
    *(b"..", b"%00", b"1;x", b"%3f", b"'--", b"%"),
)
_TYPES = (b"application/json", b"Application/JSON; charset=UTF-8", b'application/json;charset="utf-8"')
_NO_TYPES = (
    (),
    (b"",),
    (b"text/plain",),
    (b"application/json", b"application/json"),
    (b"application/json, text/html",),
    (b"application/json; charset=latin-1",),
    (b"application/x-www-form-urlencoded",),
    (b"multipart/form-data; boundary=x",),
    (b"application/json\xff",),
    (b"application/json" + b";" * 3000 + b"x",),
)
_NO_CREDENTIALS: tuple[tuple[bytes, ...], ...] = (
    (),
    (b"",),
    (b"Bearer",),
    (b"Bearer ",),
    (b"Bearer \xff\xfe",),
    (b"Bearer " + b"0" * 64,),
    (b"Bearer " + b"x" * 5000,),
    (b"Basic YTpi",),
    (b"Bearer a b",),
    (b"Bearer a,Bearer b",),
    (b'Digest username="x"',),
)
_NO_DOCUMENTS = (
    *(b"", b" ", b"null", b"[]", b'"x"', b"1", b"{", b"{}", b"{}{}", b"\xff", b"\xef\xbb\xbf{}", b"{'a':1}"),
    *(b'{"chat_id":5,"text":"x",}', b'{"chat_id":NaN,"text":"x"}', b"[" * 30_000, b'{"a":' * 8_000),
    *(
        b'{"chat_id":5,"text":"x","text":"y"}',
        b'{"chat_id":5,"text":"\\ud800"}',
        b"{}".decode().encode("utf-16"),
    ),
    *(b'{"chat_id":' + b"9" * 6000 + b',"text":"x"}', b'{"chat_id":5,"text":"a\nb"}', b'{"chat_id":05}'),
    *(b'{"chat_id":1e3,"text":"x"}', b'{"chat_id":true,"text":"x"}', b'{"chat_id":-0,"text":"x"}'),
    *(b'{"chat_id":5,"text":""}', b'{"chat_id":5,"text":"x","parse_mode":"HTML"}', b'{"__proto__":1}'),
    *(b'{"chat_id":9223372036854775808,"text":"x"}', b'{"chat_id":5,"username":"u","text":"x"}'),
    *(b'{"chat_id":5,"callback_url":"ftp://h/"}', b'{"chat_id":5,"callback_url":"http://u:p@h/"}'),
    *(
        b'{"chat_id":5,"callback_url":"http://h/ x"}',
        b'{"chat_id":5,"callback_url":"http://\xe2\x98\x83\xff/"}',
    ),
    *(b'{"chat_id":5,"callback_url":"http://xn--a/"}', b'{"chat_id":5,"callback_url":"http://[::1/"}'),
)


@frozen
class Case:
    """One request and what is right."""

    data: bytes = field(repr=lambda data: repr(data[:400]))
    method: bytes
    statuses: frozenset[int]
    """Which of them may be answered."""
    ends: bool
    """Nothing behind it on its connection is heard any more."""
    send: tuple[int, str] | None = None
    """What is sent if, and only if, it is answered 200."""


@define(eq=False)
class Stranger:
    """Makes cases; the same ones for the same seed."""

    seed: str
    key: bytes
    _chance: random.Random = field(init=False)
    _made: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    # -- cases with an answer that is known ----------------------------------------------------------------

    def case(self) -> Case:
        """Most of it right, so that every check is come to."""
        route, target = self._target()
        methods = _METHODS.get(route or "", {b"GET"})
        method = self._one(sorted(methods)) if self._mostly() else self._method()
        right_key = self._mostly()
        credentials = self._credentials() if right_key else self._one(_NO_CREDENTIALS)
        long = self._chance.random() < 0.06
        right_type = self._mostly() and (
            not long or self._chance.random() < 0.4
        )  # what is wrong twice tells of the order
        types = (self._one(_TYPES),) if right_type else self._one(_NO_TYPES)
        body, statuses, send = self._body(route or "")
        if long:
            body, statuses, send = b" " * self._one((LIMIT + 1, 70_000, 200_000)), frozenset(), None
        coded = method != b"CONNECT" and self._chance.random() < 0.25
        too_long = len(body) > LIMIT
        has_body = coded or bool(body)
        ends = False
        answer: frozenset[int]
        if route is None:
            answer, ends = frozenset({404}), has_body
        elif method not in methods:
            answer, ends = frozenset({405}), has_body
        elif not right_key:
            answer, ends = frozenset({401}), has_body
        elif too_long and not coded:
            answer, ends = frozenset({413}), True
        elif method == b"POST" and not right_type:
            answer, ends = frozenset({415}), has_body
        elif too_long:
            answer, ends = frozenset({413}), True
        elif method == b"POST":
            answer = statuses
        else:
            answer = frozenset({200, 204, 404} if method == b"DELETE" else {200})
        if route == "/health" and method in methods:
            answer |= {503}  # the key was not found within its 100 ms, on a machine that is busy
        if 200 not in answer:
            send = None
        if old := self._chance.random() < 0.03 and not coded:
            ends = True
        fields = [b"Authorization: " + value for value in credentials]
        fields += [b"Content-Type: " + value for value in types]
        fields += self._noise()
        self._chance.shuffle(fields)
        if coded:
            fields.append(b"Transfer-Encoding: chunked")
        elif body or method == b"POST":
            fields.append(b"Content-Length: %d" % len(body))
        version = b"HTTP/1.0" if old else b"HTTP/1.1"
        lines = [b"%b %b %b" % (method, target, version), b"Host: gateway", *fields, b"", b""]
        data = b"\r\n".join(lines) + (self._in_chunks(body) if coded else body)
        return Case(data, method, answer, ends, send)

    def _target(self) -> tuple[str | None, bytes]:
        route: str | None = self._one(sorted(_METHODS))
        if not self._mostly():
            route, target = None, self._one(_NO_PATHS)
        elif route == "/subscriptions/":
            target = b"/subscriptions/" + self._one((*_IDS, *[b"%d" % self._chance.randrange(1, 150)] * 9))
        else:
            assert route is not None
            target = route.encode()
            if self._rarely():  # an escape for what need not have one means the same
                at = self._chance.randrange(1, len(target))
                target = target[:at] + b"%%%02x" % target[at] + target[at + 1 :]
        if self._rarely():
            target += self._one((b"?", b"?x=y", b"?" + b"q" * 3000, b"?/send", b"?%ff", b"?a?b"))
        if self._rarely() and target.startswith(b"/"):
            target = self._one((b"http://gateway", b"HTTPS://other:99", b"http://[::1]")) + target
        return route, target

    def _method(self) -> bytes:
        if self._rarely():
            return bytes(self._chance.choices(_TOKEN_BYTES, k=self._one((1, 2, 3, 300))))
        return self._one(
            (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"post")
        )

    def _credentials(self) -> tuple[bytes, ...]:
        return (self._one((b"Bearer ", b"bearer ", b"BEARER   ")) + self.key,)

    def _body(self, route: str) -> tuple[bytes, frozenset[int], tuple[int, str] | None]:
        """A body, what is answered to it once it comes to that, and what is sent if it is 200."""
        if not self._mostly():
            return self._one(_NO_DOCUMENTS), frozenset({400}), None
        chat_id = self.chat_id()
        if route == "/send":
            text = self.text()
            if self._rarely():
                document: dict[str, object] = {"username": "@nobody_" + str(self._made), "text": text}
                return self._spelled(document), frozenset({404}), None
            return self._spelled({"chat_id": chat_id, "text": text}), frozenset({200}), (chat_id, text)
        if route == "/subscribe":
            url = self._one(
                ("http://127.0.0.1:9/{}", "HTTPS://Host.example/{}?q", "http://[::1]/{}", "http://a_b/{}")
            )
            document = {"chat_id": chat_id, "callback_url": url.format(self._chance.randrange(50))}
            return self._spelled(document), frozenset({200, 409}), None
        return b"", frozenset({400}), None

    def chat_id(self) -> int:
        """One that no test of ours subscribes, whatever becomes of some of its digits."""
        sign = self._one((1, -1, 1, -100))
        return sign * int("".join(self._chance.choices("56789", k=9)))

    def text(self) -> str:
        """One that is unlike any other, of one to 4096 code points."""
        self._made += 1
        unique = f"{self.seed} {self._made} "
        kinds: tuple[Callable[[], str], ...] = (
            lambda: "<b>x</b> {format} %s \\",
            lambda: "white space that is meant to be there: \r\n\t\u00a0 \n",
            lambda: "\x00\x01\x7f\u2028\ufeff\U0001f600",
            lambda: "🙂" * (4096 - len(unique)),
            lambda: "".join(map(chr, self._chance.choices(range(0x20, 0xD7FF), k=40))),
        )
        return unique + self._one(kinds)()

    def _spelled(self, document: dict[str, object]) -> bytes:
        ascii_only, indent = self._rarely(), 2 if self._rarely() else None
        return json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()

    def _noise(self) -> list[bytes]:
        """Fields that mean nothing here."""
        if not self._rarely():
            return []
        every = (
            *(
                b"Cookie: a; b=c;; =",
                b"X-Forwarded-For: 1.2.3.4",
                b"Accept-Encoding: gzip",
                b"Range: bytes=0-1",
            ),
            *(b"X: " + b"y" * 5000, b"X:", b"Upgrade: websocket", b"Origin: null", b"If-None-Match: *"),
            *(
                b"X: \xff\xfe",
                b"Connection: keep-alive, Upgrade",
                b"TE: trailers",
                b"Trailer: X",
                b"X: %s {x}",
            ),
            *(b"Proxy-Authorization: Bearer x", b"X-HTTP-Method-Override: DELETE", b"Expect: 200-ok"),
        )
        return self._chance.sample(every, self._chance.randrange(1, 5))

    def _in_chunks(self, body: bytes) -> bytes:
        pieces = []
        while body:
            size = self._one((1, 7, 100, 4096, 65536)) if len(body) < 5000 else 65536
            piece, body = body[:size], body[size:]
            extension = b";a=b" if self._rarely() else b""
            pieces.append(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece))
        return b"".join([*pieces, b"0\r\n", b"X: y\r\n" if self._rarely() else b"", b"\r\n"])

    # -- bytes of which nothing is known -------------------------------------------------------------------

    def garbled(self) -> bytes:
        """What has become of one or several requests on a bad day."""
        data = bytearray(b"".join(self.case().data[:9000] for _ in range(self._one((1, 1, 2)))))
        for _ in range(self._one((1, 1, 2, 5, 20))):
            at = self._chance.randrange(len(data) + 1)
            to = min(len(data), at + self._one((0, 1, 1, 4, 50)))
            match self._chance.randrange(5):
                case 0:
                    data[at:to] = self._chance.randbytes(to - at)
                case 1:
                    del data[at:to]
                case 2:
                    data[at:at] = data[at:to] * 2
                case 3:
                    data[at:to] = self._one(_SPLINTERS)
                case _:
                    del data[at + self._chance.randrange(1000) :]
        return bytes(data)

    # -- chance --------------------------------------------------------------------------------------------

    def pieces(self, data: bytes) -> list[bytes]:
        """The same bytes, in the pieces in which they are written."""
        if not self._rarely() or not data:
            return [data]
        cuts = sorted(self._chance.randrange(len(data)) for _ in range(3))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def _one(self, choices: Sequence[T]) -> T:
        return self._chance.choice(choices)

    def _mostly(self) -> bool:
        return self._chance.random() < 0.85

    def _rarely(self) -> bool:
        return self._chance.random() < 0.15


_SPLINTERS = (
    *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\x00", b" ", b"\t", b":", b"\r\n ", b";", b"%", b"//", b"\xff"),
    *(b"\r\nContent-Length: 5\r\n", b"\r\nTransfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n"),
    *(
        b"\r\nConnection: close\r\n",
        b"0\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b"HTTP/1.1",
        b"GET /health HTTP/1.1\r\n",
    ),
    *(
        b"\r\nHost: x",
        b"Authorization: Bearer ",
        b'"',
        b"{",
        b"}",
        b"[",
        b"\\ud800",
        b"\\u0000",
        b"-",
        b"1e999",
    ),
)
