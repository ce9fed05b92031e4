"""The routes behind the site that judges heads: where the two have to fit (contract 2)."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from telegrammer.core.keys import digest
from telegrammer.core.telegram import Sent
from telegrammer.web.credentials import BearerKeys
from telegrammer.web.site import GatewaySite
from tests.support.api import ENVELOPE, ApiCase
from tests.support.http import Answer


class FakeKeys:
    def owner_of(self, key_digest: bytes) -> Deferred[int | None]:
        return succeed(7 if key_digest == digest("key") else None)


class AdmittedTests(ApiCase):
    def through(self, head: str, body: bytes = b"") -> Answer:
        clock = Clock()
        site = GatewaySite([self.api.area(BearerKeys(FakeKeys(), clock))], clock)
        transport = StringTransport()
        channel = site.buildProtocol(None)
        channel.makeConnection(transport)
        channel.dataReceived(head.encode("latin-1") + b"Authorization: Bearer key\r\n\r\n" + body)
        clock.pump([0] * 10)
        answer = self.checked(Answer.of(transport.value()))
        channel.connectionLost(Failure(ConnectionDone()))
        return answer

    def test_a_message(self) -> None:
        self.telegram.outcome.callback(Sent(ENVELOPE))
        body = b'{"chat_id":1,"text":"x"}'
        fields = f"Host: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        answer = self.through("POST /send HTTP/1.1\r\n" + fields, body)
        self.assertEqual((answer.status, answer.body), (200, ENVELOPE))

    def test_no_content(self) -> None:
        self.subscriptions.removed.callback(True)
        answer = self.through("DELETE /subscriptions/17 HTTP/1.1\r\nHost: h\r\n")
        self.assertEqual((answer.status, answer.body), (204, b""))

    def test_the_head_of_health(self) -> None:
        answer = self.through("HEAD /health HTTP/1.1\r\nHost: h\r\n")
        self.assertEqual((answer.status, answer.body), (200, b""))
        self.assertGreater(int(answer.headers["content-length"]), 0)

    def test_paths_that_klein_and_werkzeug_forgive(self) -> None:
        for path in (
            "//send",
            "/%FF",
            "/subscriptions/%FF",
            "/subscriptions/1%2F2",
            "/subscriptions//1",
            "/a//b",
        ):
            self.refused(self.through(f"DELETE {path} HTTP/1.1\r\nHost: h\r\n"), 404, "NOT_FOUND")

    def test_whatever_the_host_is_called(self) -> None:
        for host in ("a..b", "x" * 300, "xn--a", "127.1"):
            self.assertEqual(self.through(f"GET /health HTTP/1.1\r\nHost: {host}\r\n").status, 200)
