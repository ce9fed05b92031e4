"""The bounded exchange over real sockets: whatever the peer does, one outcome and no connection left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import define, field
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IListeningPort
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from telegrammer.config import Token
from telegrammer.core.exchange import (
    BadReply,
    BodyTooLarge,
    ConnectionBroken,
    DeadlinePassed,
    ExchangeFailed,
    NotConnected,
    Reply,
)
from telegrammer.core.telegram import Batch, Identity, TimedOut
from telegrammer.ingest.bot_api import BotApi
from telegrammer.outbound.exchange import Exchange, api_exchange
from telegrammer.outbound.resolver import ThreadedResolver, reactor_with_resolver
from telegrammer.outbound.tls import policy_for_https
from tests.integration.conftest import bounded
from tests.support.certificates import Authority, Server

LIMIT = 2**20
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
Script = Callable[["Caller"], None]


class Caller(Protocol):
    """One connection at the server's end; its script runs when a whole request has arrived."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.received = b""

    def connectionMade(self) -> None:
        self.host.connections.append(self)
        self.host.open += 1

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        if self.received.endswith(b"{}"):
            request, self.received = self.received, b""
            self.host.requests.append(request)
            self.host.script(self)

    def says(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def hangs_up(self) -> None:
        assert self.transport is not None
        self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.host.open -= 1
        if not self.host.open and self.host.alone is not None:
            alone, self.host.alone = self.host.alone, None
            alone.callback(None)


@define(eq=False)
class Host:
    """A server on loopback."""

    script: Script
    connections: list[Caller] = field(factory=list)
    requests: list[bytes] = field(factory=list)
    open: int = 0
    alone: Deferred[None] | None = None

    def left_alone(self) -> Deferred[None]:
        """Fires when nobody is connected."""
        gone: Deferred[None] = Deferred()
        if self.open:
            self.alone = gone
        else:
            gone.callback(None)
        return gone


@define(eq=False)
class Bench:
    reactor: Any
    ca_file: Path
    authority: Authority
    listening: list[IListeningPort] = field(factory=list)
    exchanges: list[Exchange] = field(factory=list)
    resolvers: list[ThreadedResolver] = field(factory=list)

    def serve(
        self, script: Script, tls: Server | None = None, interface: str = "127.0.0.1"
    ) -> tuple[Host, int]:
        host = Host(script)
        factory: Factory[Any] = Factory.forProtocol(lambda: Caller(host))
        factory.noisy = False
        if tls is not None:
            factory = TLSMemoryBIOFactory(tls, False, factory, self.reactor)
        port = self.reactor.listenTCP(0, factory, interface=interface)
        self.listening.append(port)
        return host, port.getHost().port

    def exchange(self, *, trusting: bool = True, idle_connections: int = 0) -> Exchange:
        resolver = ThreadedResolver(self.reactor, self.reactor)
        self.resolvers.append(resolver)
        made = api_exchange(
            reactor_with_resolver(self.reactor, self.reactor, resolver),
            policy_for_https(self.ca_file if trusting else None),
            idle_connections=idle_connections,
        )
        self.exchanges.append(made)
        return made


@pytest.fixture
def bench(reactor: Any, tmp_path: Path) -> Iterator[Bench]:
    authority = Authority()
    made = Bench(reactor, authority.write(tmp_path / "ca.pem"), authority)
    yield made

    async def clean() -> None:
        for exchange in made.exchanges:
            await exchange.close()
        for resolver in made.resolvers:
            resolver.stop()
        for port in made.listening:
            await maybeDeferred(port.stopListening)

    pytest_twisted.blockon(Deferred.fromCoroutine(clean()))


def ask(exchange: Exchange, url: str, seconds: float = 5.0) -> Deferred[Reply]:
    return exchange.exchange(
        "POST", url, {"Content-Type": "application/json"}, b"{}", seconds=seconds, limit=LIMIT
    )


def silent(caller: Caller) -> None:
    """Says nothing, and keeps the connection."""


def stalling(caller: Caller) -> None:
    caller.says(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}{")


def flooding(caller: Caller) -> None:
    caller.says(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (4 * LIMIT))


def heading(caller: Caller) -> None:
    caller.says(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * LIMIT)


def leaving(caller: Caller) -> None:
    caller.hangs_up()


def breaking_off(caller: Caller) -> None:
    stalling(caller)
    caller.hangs_up()


def babbling(caller: Caller) -> None:
    caller.says(b"SSH-2.0-OpenSSH_9.2\r\n")


FAULTS: list[tuple[Script, type[ExchangeFailed]]] = [
    (silent, DeadlinePassed),
    (stalling, DeadlinePassed),
    (flooding, BodyTooLarge),
    (heading, BadReply),
    (leaving, ConnectionBroken),
    (breaking_off, ConnectionBroken),
    (babbling, BadReply),
]


@pytest.mark.report("B1", "D5")
@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(("script", "kind"), FAULTS, ids=[script.__name__ for script, _ in FAULTS])
@bounded(20)
async def test_a_faulty_peer(
    bench: Bench, script: Script, kind: type[ExchangeFailed], over_tls: bool
) -> None:
    """One outcome, and the connection is gone though the peer would have kept it."""
    tls = bench.authority.server("127.0.0.1") if over_tls else None
    host, port = bench.serve(script, tls)
    url = f"{'https' if over_tls else 'http'}://127.0.0.1:{port}/bot1:SECRET/getMe"
    for idle_connections in (0, 2):
        exchange = bench.exchange(idle_connections=idle_connections)
        with pytest.raises(kind) as caught:
            await ask(exchange, url, seconds=0.5 if kind is DeadlinePassed else 10)
        assert "SECRET" not in repr((caught.value, vars(caught.value), caught.value.__context__))
        await host.left_alone()
    assert len(host.requests) == 2


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])
@bounded(20)
async def test_an_ipv6_address(bench: Bench, over_tls: bool) -> None:
    tls = bench.authority.server("::1") if over_tls else None
    host, port = bench.serve(lambda caller: caller.says(OK), tls, interface="::1")
    scheme = "https" if over_tls else "http"
    reply = await ask(bench.exchange(), f"{scheme}://[::1]:{port}/bot1:SECRET/getMe")
    assert reply.body == b"{}"
    [request] = host.requests
    assert request.startswith(b"POST /bot1:SECRET/getMe HTTP/1.1\r\n")
    assert f"Host: [::1]:{port}\r\n".encode() in request


@bounded(20)
async def test_a_peer_that_never_finishes_the_handshake(bench: Bench) -> None:
    host, port = bench.serve(silent)
    with pytest.raises(DeadlinePassed):
        await ask(bench.exchange(), f"https://127.0.0.1:{port}/", seconds=0.5)
    await host.left_alone()


@bounded(20)
async def test_certificates(bench: Bench) -> None:
    right, other = bench.authority.server("localhost"), bench.authority.server("other.test")
    host, port = bench.serve(lambda caller: caller.says(OK), right)
    reply = await ask(bench.exchange(), f"https://localhost:{port}/")
    assert (reply.status, reply.body) == (200, b"{}")
    _, elsewhere = bench.serve(silent, other)
    for exchange, at, why in (
        (bench.exchange(trusting=False), port, "certificate not trusted"),
        (bench.exchange(), elsewhere, "certificate is for another host"),
    ):
        with pytest.raises(NotConnected) as caught:
            await ask(exchange, f"https://localhost:{at}/")
        assert caught.value.why == why
    await host.left_alone()
    assert len(host.requests) == 1


@bounded(20)
async def test_nobody_there(bench: Bench) -> None:
    host, port = bench.serve(silent)
    await maybeDeferred(bench.listening.pop().stopListening)
    with pytest.raises(NotConnected) as caught:
        await ask(bench.exchange(), f"http://localhost:{port}/")
    assert caught.value.why == "connection refused"
    with pytest.raises(NotConnected) as caught:
        await ask(bench.exchange(), "http://no-such-host.invalid/")
    assert caught.value.why in ("name not found", "cannot connect")


@pytest.mark.report("B1")
@bounded(20)
async def test_connections_are_kept_for_sends_and_not_for_polls(bench: Bench) -> None:
    kept = OK.replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1)
    host, port = bench.serve(lambda caller: caller.says(kept))
    for idle_connections, expected in ((0, 3), (2, 1)):
        del host.connections[:]
        exchange = bench.exchange(idle_connections=idle_connections)
        for _ in range(3):
            await ask(exchange, f"http://127.0.0.1:{port}/")
        assert len(host.connections) == expected
        await exchange.close()
        await host.left_alone()


@bounded(30)
async def test_a_cancelled_poll_is_gone_at_once(bench: Bench) -> None:
    arrived: Deferred[None] = Deferred()
    host, port = bench.serve(lambda caller: arrived.callback(None), bench.authority.server("127.0.0.1"))
    poll = ask(bench.exchange(), f"https://127.0.0.1:{port}/", seconds=60)
    await arrived
    poll.cancel()
    with pytest.raises(CancelledError):
        await poll
    await host.left_alone()


@bounded(30)
async def test_a_hundred_failures_leave_no_descriptor(bench: Bench) -> None:
    host, port = bench.serve(leaving)
    exchange = bench.exchange()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        with pytest.raises(ConnectionBroken):
            await ask(exchange, f"http://127.0.0.1:{port}/")
    await host.left_alone()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


@bounded(20)
async def test_the_bot_api_over_it(bench: Bench) -> None:
    """The whole way: a bot's identity, a batch, and a send that nobody answers."""
    answers = {
        b"getMe": b'{"ok":true,"result":{"id":1,"username":"x_bot"}}',
        b"getUpdates": b'{"ok":true,"result":[]}',
    }

    def script(caller: Caller) -> None:
        for method, body in answers.items():
            if method in host.requests[-1]:
                caller.says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    class Question(Caller):
        def dataReceived(self, data: bytes) -> None:
            self.host.requests.append(data)
            self.host.script(self)

    host = Host(script)
    factory: Factory[Any] = Factory.forProtocol(lambda: Question(host))
    factory.noisy = False
    port = bench.reactor.listenTCP(0, factory, interface="127.0.0.1")
    bench.listening.append(port)
    api = BotApi(
        Token("1:SECRET_part"),
        f"http://127.0.0.1:{port.getHost().port}",
        bench.exchange(),
        Impatient(bench.exchange(idle_connections=2)),
    )
    assert await api.get_me() == Identity(1, "x_bot")
    assert await api.get_updates(5, 100) == Batch()
    assert await api.send_message(7, "hello") == TimedOut()
    assert sum(b"sendMessage" in request for request in host.requests) == 1
    await host.left_alone()


@define(eq=False)
class Impatient:
    """An exchange whose deadlines come early."""

    exchange_of: Exchange

    def exchange(self, *args: Any, seconds: float, limit: int) -> Deferred[Reply]:
        return self.exchange_of.exchange(*args, seconds=seconds / 40, limit=limit)
