"""The callback client against real sockets: scripted peers, TLS, hostile floods, hanging names."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_twisted
from attrs import define, field
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IPushProducer
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from twisted.web.client import Agent, ResponseNeverReceived
from twisted.web.http_headers import Headers

from telegrammer.core.delivery import Answered, AttemptResult, Claimed, Unanswered
from telegrammer.outbound.callbacks import CallbackClient, CallbackLimits
from telegrammer.outbound.resolver import ThreadedResolver, reactor_with_resolver
from telegrammer.outbound.tls import CertificateRefused, policy_for_https
from tests.integration.conftest import bounded
from tests.support.certificates import Authority, Server

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Responder = Callable[["Peer", bytes], None]


class Peer(Protocol):
    """The receiver's end of one connection; ``respond`` sees each request that has arrived whole."""

    def __init__(self, host: Receiver) -> None:
        self.host = host
        self.buffer = b""

    def connectionMade(self) -> None:
        self.host.connections += 1
        self.host.open.add(self)

    def dataReceived(self, data: bytes) -> None:
        self.buffer += data
        head, blank, body = self.buffer.partition(b"\r\n\r\n")
        if blank and len(body) >= int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0]):
            request, self.buffer = self.buffer, b""
            self.host.requests.append(request)
            self.host.respond(self, request)

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def close(self) -> None:
        assert self.transport is not None
        self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.host.open.discard(self)
        if not self.host.open:
            waiting, self.host.waiting = self.host.waiting, []
            for deferred in waiting:
                deferred.callback(None)


@define(eq=False)
class Receiver:
    """A callback receiver on loopback."""

    respond: Responder
    connections: int = 0
    requests: list[bytes] = field(factory=list)
    open: set[Peer] = field(factory=set)
    waiting: list[Deferred[None]] = field(factory=list)
    port: int = 0

    def listen(self, reactor: Any, tls: Server | None = None, interface: str = "127.0.0.1") -> IListeningPort:
        factory: Factory[Any] = Factory.forProtocol(lambda: Peer(self))
        factory.noisy = False
        if tls is not None:
            factory = TLSMemoryBIOFactory(tls, False, factory, reactor)
        listening: IListeningPort = reactor.listenTCP(0, factory, interface=interface)
        self.port = cast(IPv4Address | IPv6Address, listening.getHost()).port
        return listening

    def all_closed(self) -> Deferred[None]:
        """Fires when the client has let go of every connection."""
        gone: Deferred[None] = Deferred()
        if self.open:
            self.waiting.append(gone)
        else:
            gone.callback(None)
        return gone


def answering(response: bytes) -> Responder:
    return lambda peer, request: peer.send(response)


def job(url: str, body: bytes = b"{}") -> Claimed:
    return Claimed(id=1, subscription_id=1, url=url, body=body, delivery_id="1-2-0-3")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@define(eq=False)
class Bench:
    """A client and its receivers."""

    reactor: Any
    authority: Authority
    ca_file: Path
    clients: list[CallbackClient] = field(factory=list)
    listening: list[IListeningPort] = field(factory=list)
    resolvers: list[ThreadedResolver] = field(factory=list)

    def client(
        self, limits: CallbackLimits | None = None, getaddrinfo: Callable[..., Any] = socket.getaddrinfo
    ) -> CallbackClient:
        resolver = ThreadedResolver(self.reactor, self.reactor, getaddrinfo=getaddrinfo)
        client = CallbackClient(
            self.reactor,
            self.reactor,
            resolver,
            policy_for_https(self.ca_file),
            "telegrammer/test",
            limits or CallbackLimits(),
        )
        self.resolvers.append(resolver)
        self.clients.append(client)
        return client

    def receiver(
        self, respond: Responder, tls: Server | None = None, interface: str = "127.0.0.1"
    ) -> Receiver:
        made = Receiver(respond)
        self.listening.append(made.listen(self.reactor, tls, interface))
        return made

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        for resolver in self.resolvers:
            resolver.stop()
        for port in self.listening:
            stopped = port.stopListening()
            if stopped is not None:
                await stopped
        await deferLater(self.reactor, 0, lambda: None)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def bench(reactor: Any, authority: Authority, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(reactor, authority, authority.write(tmp_path / "ca.pem"))
    yield made
    pytest_twisted.blockon(Deferred.fromCoroutine(made.close()))


@bounded(20)
async def test_posts_share_a_connection_and_nothing_is_left(bench: Bench) -> None:
    receiver = bench.receiver(answering(OK))
    client = bench.client()
    before = descriptors()
    for number in range(5):
        body = b"%d" % number
        assert await client.post(job(f"http://127.0.0.1:{receiver.port}/a?b=%2f", body)) == Answered(200)
    assert receiver.connections == 1
    assert receiver.requests[3] == (
        b"POST /a?b=%2f HTTP/1.1\r\nHost: 127.0.0.1:" + str(receiver.port).encode() + b"\r\n"
        b"User-Agent: telegrammer/test\r\nContent-Type: application/json\r\n"
        b"X-Telegrammer-Delivery-Id: 1-2-0-3\r\nContent-Length: 1\r\n\r\n3"
    )
    await client.close()
    await receiver.all_closed()
    assert descriptors() == before


@pytest.mark.report("bewdes/LSPanel#51")
@bounded(20)
async def test_names_and_literals(bench: Bench) -> None:
    receiver = bench.receiver(answering(OK))
    assert await bench.client().post(job(f"http://localhost:{receiver.port}/")) == Answered(200)
    six = bench.receiver(answering(OK), interface="::1")
    assert await bench.client().post(job(f"http://[::1]:{six.port}/")) == Answered(200)
    assert b"Host: [::1]:" in six.requests[0]


@bounded(20)
async def test_a_large_body_arrives_whole(bench: Bench) -> None:
    receiver = bench.receiver(answering(OK))
    body = os.urandom(3_000_000)
    client = bench.client()
    url = f"http://127.0.0.1:{receiver.port}/"
    assert await client.post(job(url, body)) == Answered(200)
    assert receiver.requests[0].endswith(b"Content-Length: 3000000\r\n\r\n" + body)
    assert await client.post(job(url)) == Answered(200)
    assert receiver.connections == 1


@bounded(20)
async def test_an_answer_before_the_request_was_read(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        posting = bench.client().post(job(f"http://127.0.0.1:{listener.getsockname()[1]}/", b"x" * 9_000_000))
        peer, _ = await deferToThread(listener.accept)
        peer.sendall(b"HTTP/1.1 413 x\r\nContent-Length: 0\r\n\r\n")
        assert await posting == Answered(413)
        peer.close()


@bounded(20)
async def test_refused_and_unknown(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = bench.client()
    assert await client.post(job(f"http://127.0.0.1:{port}/")) == Unanswered("connection refused")

    def unknown(*_: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "secret.example")

    client = bench.client(getaddrinfo=unknown)
    assert await client.post(job("http://secret.example/")) == Unanswered("name not found")


@bounded(20)
async def test_the_peer_closes_early(bench: Bench) -> None:
    receiver = bench.receiver(lambda peer, request: peer.close())
    client = bench.client()
    url = f"http://127.0.0.1:{receiver.port}/"
    assert await client.post(job(url)) == Unanswered("connection lost")

    def half_an_answer(peer: Peer, request: bytes) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhel")
        peer.close()

    receiver.respond = half_an_answer
    assert await client.post(job(url)) == Answered(200)
    assert receiver.connections == 2


@pytest.mark.report("windkh/node-red-contrib-telegrambot#442")
@pytest.mark.parametrize("end", ["closed", "reset", "surplus"])
@bounded(20)
async def test_an_idle_connection_that_ended_unnoticed_is_not_used(bench: Bench, end: str) -> None:
    """The end of the stream lies in the socket; the reactor has had no turn to read it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = bench.client()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        for _ in range(2):
            posting = client.post(job(url))
            peer, _ = await deferToThread(listener.accept)
            await deferToThread(peer.recv, 65536)
            peer.sendall(OK)
            assert await posting == Answered(200)
            if end == "reset":
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif end == "surplus":
                peer.sendall(OK)
            peer.close()


@bounded(20)
async def test_an_idle_connection_is_closed_soon(bench: Bench) -> None:
    receiver = bench.receiver(answering(OK))
    client = bench.client(CallbackLimits(idle=0.05))
    assert await client.post(job(f"http://127.0.0.1:{receiver.port}/")) == Answered(200)
    await receiver.all_closed()


@pytest.mark.report("twisted/treq#83")
@bounded(20)
async def test_silence_ends_at_the_deadline(bench: Bench) -> None:
    receiver = bench.receiver(lambda peer, request: None)
    client = bench.client(CallbackLimits(total=0.6))
    url = f"http://127.0.0.1:{receiver.port}/"
    assert await client.post(job(url)) == Unanswered("timeout after 0.6 s")
    for status in (200, 503):
        receiver.respond = answering(b"HTTP/1.1 %d x\r\nContent-Length: 10\r\n\r\nabc" % status)
        assert await client.post(job(url)) == Answered(status)
    await receiver.all_closed()


@pytest.mark.report("NousResearch/hermes-agent#88333")
@bounded(20)
async def test_an_address_that_swallows_packets_does_not_hide_the_good_one(bench: Bench) -> None:
    receiver = bench.receiver(answering(OK))
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        # A listener with a full backlog drops what comes next.
        full.bind(("127.0.0.2", receiver.port))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.2", receiver.port))

        def both(*_: Any) -> Any:
            return [(None, None, 0, "", ("127.0.0.2", 0)), (None, None, 0, "", ("127.0.0.1", 0))]

        client = bench.client(getaddrinfo=both)
        assert await client.post(job(f"http://two.example:{receiver.port}/")) == Answered(200)
        client = bench.client(CallbackLimits(connect=0.2))
        result = await client.post(job(f"http://127.0.0.2:{receiver.port}/"))
        assert result == Unanswered("connect timeout")


FLOOD = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
start, piece = (part.encode("latin-1").decode("unicode_escape").encode("latin-1") for part in sys.argv[1:])
while True:
    peer, _ = listener.accept()
    try:
        peer.sendall(start)
        while True:
            peer.sendall(piece * 64)
    except OSError:
        peer.close()
"""


@pytest.mark.parametrize(
    "start, piece, result",
    [
        (r"HTTP/1.1 200 OK\r\n\r\n", "x" * 1024, Answered(200)),
        (
            r"HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n",
            r"1;" + "e" * 900 + r"\r\nx\r\n",
            Answered(503),
        ),
        (r"HTTP/1.1 200 OK\r\n", "X-Header: " + "y" * 900 + r"\r\n", Unanswered("response head too large")),
        (r"HTTP/1.1 200 OK\r\nX: ", "y" * 1024, Unanswered("response head too large")),
        (r"HTTP/1.1 ", "2" * 1024, Unanswered("malformed response")),
        ("", r"HTTP/1.1 100 Continue\r\n\r\n", Unanswered("response head too large")),
        ("", r"\r\n", Unanswered("response head too large")),
    ],
)
@bounded(30)
async def test_floods_cost_little_memory(bench: Bench, start: str, piece: str, result: AttemptResult) -> None:
    client = bench.client()
    with subprocess.Popen([sys.executable, "-c", FLOOD, start, piece], stdout=subprocess.PIPE) as flood:
        assert flood.stdout is not None
        url = f"http://127.0.0.1:{int(flood.stdout.readline())}/"
        try:
            await client.post(job(url))
            tracemalloc.start()
            for _ in range(5):
                assert await client.post(job(url)) == result
            assert tracemalloc.get_traced_memory()[1] < 2_000_000
        finally:
            tracemalloc.stop()
            flood.kill()


@pytest.mark.report("twisted/twisted#8190")
@bounded(30)
async def test_tls(bench: Bench) -> None:
    def here(*_: Any) -> Any:
        return [(None, None, 0, "", ("127.0.0.1", 0))]

    ours, other = bench.authority, Authority("Another CA")
    for host, certificate, result in (
        ("hook.example", ours.server("hook.example"), Answered(200)),
        ("127.0.0.1", ours.server("127.0.0.1"), Answered(200)),
        ("my_service", ours.server("my_service"), Answered(200)),
        ("xn--mnchen-3ya.example", ours.server("xn--mnchen-3ya.example"), Answered(200)),
        ("hook.example", ours.server("other.example"), Unanswered("certificate is for another host")),
        ("127.0.0.1", ours.server("127.0.0.2"), Unanswered("certificate is for another host")),
        ("hook.example", other.server("hook.example"), Unanswered("certificate not trusted")),
        (
            "hook.example",
            ours.server("hook.example", first_day=-3, last_day=-2),
            Unanswered("certificate expired"),
        ),
    ):
        receiver = bench.receiver(answering(OK), certificate)
        client = bench.client(getaddrinfo=here)
        before = descriptors()
        for _ in range(2):
            assert await client.post(job(f"https://{host}:{receiver.port}/")) == result, host
        assert len(receiver.requests) == (2 if isinstance(result, Answered) else 0)
        if isinstance(result, Answered):
            assert receiver.connections == 1
        await client.close()
        await receiver.all_closed()
        assert descriptors() == before


@bounded(20)
async def test_tls_with_a_large_body(bench: Bench) -> None:
    receiver = bench.receiver(answering(OK), bench.authority.server("127.0.0.1"))
    body = os.urandom(1_000_000)
    client = bench.client()
    for size in (1_000_000, 65_500, 2):
        assert await client.post(job(f"https://127.0.0.1:{receiver.port}/", body[:size])) == Answered(200)
        assert receiver.requests[-1].endswith(b"\r\n\r\n" + body[:size])
    assert receiver.connections == 1


@bounded(20)
async def test_an_agent_with_the_same_names_and_trust(bench: Bench) -> None:
    def here(*_: Any) -> Any:
        return [(None, None, 0, "", ("127.0.0.1", 0))]

    receiver = bench.receiver(answering(OK), bench.authority.server("api.example"))
    resolver = ThreadedResolver(bench.reactor, bench.reactor, getaddrinfo=here)
    bench.resolvers.append(resolver)
    agent = Agent(
        reactor_with_resolver(bench.reactor, bench.reactor, resolver), policy_for_https(bench.ca_file)
    )
    receiver.respond = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    headers = Headers({b"Content-Length": [b"0"]})
    response = await agent.request(b"POST", b"https://api.example:%d/" % receiver.port, headers)
    assert response.code == 200
    with pytest.raises(ResponseNeverReceived) as refused:
        await agent.request(b"POST", b"https://other.example:%d/" % receiver.port, headers)
    [reason] = refused.value.reasons
    assert reason.check(CertificateRefused)
    await receiver.all_closed()


@bounded(20)
async def test_peers_that_do_not_speak_tls(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        silent = await bench.client(CallbackLimits(total=0.6)).post(job(url))
        assert silent == Unanswered("timeout after 0.6 s")
        peer, _ = listener.accept()
        peer.close()
        for first_words in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""):
            posting = bench.client().post(job(url))
            peer, _ = await deferToThread(listener.accept)
            assert b"telegrammer" not in await deferToThread(peer.recv, 65536)
            peer.sendall(first_words)
            peer.close()
            assert await posting == Unanswered("TLS handshake failed")


@bounded(20)
async def test_a_tls_peer_that_does_not_take_leave(bench: Bench) -> None:
    """It answers with ``Connection: close``, and never replies to our close."""
    response = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

    def answer_and_freeze(peer: Peer, request: bytes) -> None:
        peer.send(response)
        cast(IPushProducer, peer.transport).pauseProducing()

    receiver = bench.receiver(answer_and_freeze, bench.authority.server("127.0.0.1"))
    client = bench.client()
    assert await client.post(job(f"https://127.0.0.1:{receiver.port}/")) == Answered(200)
    await client.close()
    for peer in receiver.open:
        cast(IPushProducer, peer.transport).resumeProducing()
    await receiver.all_closed()


@pytest.mark.report("mic1on/onestep#104")
@bounded(20)
async def test_hanging_names_delay_nobody(bench: Bench) -> None:
    receiver = bench.receiver(answering(OK))
    released = threading.Event()

    def hanging(host: str, *rest: Any) -> Any:
        if host.startswith("hanging"):
            released.wait(15)
        return [(None, None, 0, "", ("127.0.0.1", 0))]

    client = bench.client(CallbackLimits(total=2.0), getaddrinfo=hanging)
    try:
        stuck = [client.post(job(f"http://hanging{n}.example:{receiver.port}/")) for n in range(40)]
        for n in range(5):
            assert await client.post(job(f"http://healthy{n}.example:{receiver.port}/")) == Answered(200)
        assert not any(result.called for result in stuck)
        for result in stuck:
            assert await result == Unanswered("timeout after 2 s")
    finally:
        released.set()


def test_a_hanging_name_does_not_keep_the_process() -> None:
    script = """
        import time
        from twisted.internet import reactor
        from telegrammer.outbound.resolver import ThreadedResolver

        resolver = ThreadedResolver(reactor, reactor, getaddrinfo=lambda *_: time.sleep(600))
        resolver.resolve("hanging.example", 80).addErrback(lambda failure: reactor.stop())
        reactor.callLater(0.1, resolver.stop)
        reactor.run()
        print("stopped")
    """
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        timeout=15,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"stopped\n", b"")
