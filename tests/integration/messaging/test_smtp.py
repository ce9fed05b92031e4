"""Mail servers that stall, drop, lie or cannot be trusted, over real sockets and real TLS (contract 7.3)."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_twisted
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IListeningPort
from twisted.internet.task import deferLater
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher

from telegrammer.core.messages import Credentials
from telegrammer.core.problems import DeliveryFailed, MaybeDelivered
from telegrammer.messaging import (
    EmailConfig,
    EmailProvider,
    Message,
    Outbox,
    QueueEmpty,
    SQLiteMessagingConfig,
)
from telegrammer.outbound.resolver import ThreadedResolver
from tests.support.bounded import bounded
from tests.support.certificates import Authority, Server
from tests.support.network import Names
from tests.support.smtp_script import Deed, ScriptedServer, Visit, drop, stall

HOST = "mail.example.org"
MESSAGE = Message("Hello", "<b>\n.\n", ["ops@example.org"])
CREDENTIALS = Credentials("ops", "open sesame")


def hold_out_starttls(visit: Visit) -> None:
    """Agree to TLS, and then say nothing."""
    visit.say(b"220 go ahead\r\n")


class Rig:
    """A scripted server, and providers that take every name for its address."""

    def __init__(self, reactor: Any, directory: Path, authority: Authority) -> None:
        self.reactor, self.directory, self.authority = reactor, directory, authority
        self.listening: list[IListeningPort] = []

    def serve(
        self,
        tls: Server | None = None,
        implicit: bool = False,
        script: Mapping[str, Deed] | None = None,
        **more: Deed,
    ) -> ScriptedServer:
        server = ScriptedServer({**(script or {}), **more}, tls or self.authority.server(HOST))
        self.listening.append(server.listen(self.reactor, implicit))
        return server

    def provider(self, port: int, transport: str = "smtp", **settings: Any) -> EmailProvider:
        ca_file = self.authority.write(self.directory / "ca.pem")
        given: dict[str, Any] = {"host": HOST, "ca_file": ca_file, "port": port, "transport": transport}
        config = EmailConfig(name="ops", sender="gw@example.org", **{**given, **settings})
        return EmailProvider(config, self.reactor, resolver=Names({HOST: ["127.0.0.1"]}))


@pytest.fixture
def rig(reactor: Any, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(reactor, tmp_path, Authority())
    yield rig
    for listening in rig.listening:
        pytest_twisted.blockon(listening.stopListening())


STALLS = [
    *(("smtp", stage) for stage in ("connect", "EHLO", "MAIL", "RCPT", "DATA", "message", "QUIT")),
    *(("starttls", stage) for stage in ("STARTTLS", "handshake", "AUTH", "MAIL", "message", "QUIT")),
    *(("smtps", stage) for stage in ("handshake", "connect", "AUTH", "DATA", "message", "QUIT")),
]


def stalled(rig: Rig, transport: str, stage: str) -> tuple[EmailProvider, Deferred[Visit], dict[str, Any]]:
    """A provider whose server falls silent at ``stage``; when it has got there; what to send with."""
    secure = transport != "smtp"
    if stage == "handshake":
        # By smtps it is a server that does not speak TLS at all.
        server = rig.serve(connect=stall) if transport == "smtps" else rig.serve(STARTTLS=hold_out_starttls)
        reached = server.at("connect" if transport == "smtps" else "STARTTLS")
    else:
        server = rig.serve(implicit=transport == "smtps", script={stage: stall})
        reached = server.at("secured" if (transport, stage) == ("smtps", "connect") else stage)
    username = {"username": "ops"} if secure else {}
    provider = rig.provider(server.port, transport, **username)
    return provider, reached, {"credentials": CREDENTIALS} if secure else {}


@pytest.mark.parametrize(("transport", "stage"), STALLS)
@bounded(60)
async def test_cancelled_in_a_stall(rig: Rig, transport: str, stage: str) -> None:
    provider, reached, options = stalled(rig, transport, stage)
    sent = provider.send(MESSAGE, **options)
    visit = await reached
    sent.cancel()
    await visit.gone
    if stage == "QUIT":
        await sent
    else:
        with pytest.raises(MaybeDelivered if stage == "message" else CancelledError):
            await sent
    assert len(visit.server.visits) == 1
    assert len(visit.server.messages) == (stage in ("message", "QUIT"))


@pytest.mark.parametrize(
    ("transport", "stage"), [("smtp", "connect"), ("starttls", "handshake"), ("smtps", "message")]
)
@bounded(60)
async def test_the_deadline_in_a_stall(rig: Rig, transport: str, stage: str) -> None:
    provider, reached, options = stalled(rig, transport, stage)
    begun = rig.reactor.seconds()
    sent = provider.send(MESSAGE, seconds=1.0, **options)
    visit = await reached
    await visit.gone
    with pytest.raises(MaybeDelivered if stage == "message" else DeliveryFailed, match="time was up"):
        await sent
    assert 0.99 < rig.reactor.seconds() - begun < 3.0


@bounded(60)
async def test_cancelled_while_the_name_is_looked_up(rig: Rig) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def hanging(*arguments: Any) -> list[tuple[Any, ...]]:
        asked.set()
        go_on.wait(30)
        return []

    provider = rig.provider(1)
    provider.resolver = ThreadedResolver(rig.reactor, rig.reactor, 2, hanging)
    sent = provider.send(MESSAGE)
    assert asked.wait(30)
    sent.cancel()
    with pytest.raises(CancelledError):
        await sent
    go_on.set()


@bounded(60)
async def test_cancelled_while_connecting(rig: Rig) -> None:
    """A listener whose queue is full does not answer at all."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        sent = rig.provider(full.getsockname()[1]).send(MESSAGE)
        while not rig.reactor.getWriters():
            await deferLater(rig.reactor, 0, lambda: None)
        sent.cancel()
        with pytest.raises(CancelledError):
            await sent
        assert rig.reactor.getWriters() == []


@pytest.mark.parametrize("transport", ["smtp", "starttls", "smtps"])
@bounded(60)
async def test_a_drop_after_the_data(rig: Rig, transport: str) -> None:
    """The server has the message, or not; nobody knows, and it is not sent again."""
    server = rig.serve(implicit=transport == "smtps", message=drop)
    provider = rig.provider(server.port, transport)
    with pytest.raises(MaybeDelivered):
        await provider.send(MESSAGE)
    assert (len(server.messages), len(server.visits)) == (1, 1)
    await server.visits[0].gone


@bounded(60)
async def test_a_drop_after_the_data_under_a_lease(rig: Rig, tmp_path: Path) -> None:
    """The message stays leased: no worker sends it again before that has expired."""
    server = rig.serve(message=drop)
    tmp_path.chmod(0o700)
    config = SQLiteMessagingConfig("ops", tmp_path / "outbox.db", 5.0)
    outbox = await Outbox.open(config)
    try:
        await outbox.send(MESSAGE)
        leased = await outbox.claim()
        with pytest.raises(MaybeDelivered):
            await rig.provider(server.port).send(leased.message, message_id=leased.id, seconds=20.0)
        with pytest.raises(QueueEmpty):
            await outbox.claim()
    finally:
        await outbox.close()
    [message] = server.messages
    assert f"Message-ID: <{leased.id}@example.org>".encode() in message


@bounded(60)
async def test_the_deadline_is_inside_the_lease(rig: Rig, tmp_path: Path) -> None:
    """The worker gets its result while the message is still its own."""
    server = rig.serve(message=stall)
    tmp_path.chmod(0o700)
    config = SQLiteMessagingConfig("ops", tmp_path / "outbox.db", 5.0)
    ahead = 0.0

    def now() -> float:
        return time.time() + ahead

    outbox = await Outbox.open(config, now=now)
    try:
        await outbox.send(MESSAGE)
        leased = await outbox.claim()
        assert leased.lease is not None and leased.lease_expires_at is not None
        ahead = 55.0  # there was much to do before
        seconds = leased.lease_expires_at - now() - 3.0
        with pytest.raises(MaybeDelivered, match="time was up"):
            await rig.provider(server.port).send(leased.message, message_id=leased.id, seconds=seconds)
        assert now() < leased.lease_expires_at
        await outbox.release(leased.id, leased.lease)
    finally:
        await outbox.close()
    await server.visits[0].gone


@pytest.mark.parametrize("transport", ["smtp", "starttls", "smtps"])
@bounded(60)
async def test_a_quit_that_drops(rig: Rig, transport: str) -> None:
    server = rig.serve(implicit=transport == "smtps", QUIT=drop)
    await rig.provider(server.port, transport).send(MESSAGE)
    assert len(server.messages) == 1
    await server.visits[0].gone


@bounded(60)
async def test_a_quit_that_hangs(rig: Rig) -> None:
    server = rig.serve(QUIT=stall)
    begun = rig.reactor.seconds()
    await rig.provider(server.port).send(MESSAGE)
    assert rig.reactor.seconds() - begun < 5.0
    await server.visits[0].gone


Certificate = Callable[[Authority], Server]
BAD_CERTIFICATES: dict[str, Certificate] = {
    "certificate not trusted": lambda trusted: Authority("Somebody else's CA").server(HOST),
    "certificate expired": lambda trusted: trusted.server(HOST, first_day=-3, last_day=-1),
    "certificate not valid yet": lambda trusted: trusted.server(HOST, first_day=1, last_day=3),
    "certificate is for another host": lambda trusted: trusted.server("mail.example.com"),
}


@pytest.mark.parametrize("transport", ["starttls", "smtps"])
@pytest.mark.parametrize("why", BAD_CERTIFICATES)
@bounded(60)
async def test_a_certificate_that_is_no_good(rig: Rig, transport: str, why: str) -> None:
    server = rig.serve(BAD_CERTIFICATES[why](rig.authority), transport == "smtps")
    provider = rig.provider(server.port, transport, username="ops")
    with pytest.raises(DeliveryFailed, match=f"TLS handshake: {why}"):
        await provider.send(MESSAGE, credentials=CREDENTIALS)
    await server.visits[0].gone
    said = [command.split()[0] for command in server.commands]
    assert said == ([b"EHLO", b"STARTTLS"] if transport == "starttls" else [])


@pytest.mark.parametrize("transport", ["starttls", "smtps"])
@bounded(60)
async def test_a_certificate_for_an_address(rig: Rig, transport: str) -> None:
    implicit = transport == "smtps"
    server = rig.serve(rig.authority.server("127.0.0.1"), implicit)
    provider = rig.provider(server.port, transport, host="127.0.0.1")
    provider.resolver = None
    await provider.send(MESSAGE)
    assert len(server.messages) == 1
    other = rig.serve(rig.authority.server(HOST), implicit)
    provider = rig.provider(other.port, transport, host="127.0.0.1")
    provider.resolver = None
    with pytest.raises(DeliveryFailed, match="another host"):
        await provider.send(MESSAGE)


@bounded(60)
async def test_the_store_that_the_environment_names(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = rig.serve()
    with pytest.raises(DeliveryFailed, match="not trusted"):
        await rig.provider(server.port, "starttls", ca_file=None).send(MESSAGE)
    monkeypatch.setenv("SSL_CERT_FILE", str(rig.authority.write(tmp_path / "store.pem")))
    await rig.provider(server.port, "starttls", ca_file=None).send(MESSAGE)
    assert len(server.messages) == 1


@bounded(60)
async def test_starttls_that_is_not_offered(rig: Rig) -> None:
    """Or was struck out on the way."""
    server = rig.serve(EHLO=b"250-mail.example.org\r\n250 AUTH PLAIN\r\n")
    provider = rig.provider(server.port, "starttls", username="ops")
    with pytest.raises(DeliveryFailed, match="no STARTTLS"):
        await provider.send(MESSAGE, credentials=CREDENTIALS)
    assert [command.split()[0] for command in server.commands] == [b"EHLO", b"QUIT"]


@bounded(60)
async def test_words_put_in_before_tls(rig: Rig) -> None:
    """What stood in the stream before TLS is not read as if it had come in it."""

    def inject(visit: Visit) -> None:
        visit.say(b"220 go ahead\r\n250-mail.example.org\r\n250 AUTH PLAIN\r\n")

    server = rig.serve(STARTTLS=inject)
    with pytest.raises(DeliveryFailed):
        await rig.provider(server.port, "starttls").send(MESSAGE)
    await server.visits[0].gone


@pytest.mark.parametrize("transport", ["starttls", "smtps"])
@bounded(60)
async def test_nothing_is_logged(rig: Rig, transport: str) -> None:
    """Whatever comes of it: that is for whoever asked to say, and no secret gets out this way."""
    events: list[LogEvent] = []
    scripts: list[dict[str, Deed]] = [
        {},
        {"AUTH": b"535 not with open sesame\r\n"},
        {"MAIL": drop},
        {"message": drop},
    ]
    servers = [rig.serve(implicit=transport == "smtps", script=script) for script in scripts]
    globalLogPublisher.addObserver(cast(ILogObserver, events.append))
    try:
        for server in servers:
            provider = rig.provider(server.port, transport, username="ops")
            try:
                await provider.send(MESSAGE, credentials=CREDENTIALS)
            except (DeliveryFailed, MaybeDelivered) as failed:
                assert "sesame" not in "".join(traceback.format_exception(failed))
            await server.visits[0].gone
    finally:
        globalLogPublisher.removeObserver(cast(ILogObserver, events.append))
    assert events == []


@bounded(60)
async def test_many_at_once(rig: Rig) -> None:
    """Stalled ones hold up nobody."""
    silent, good = rig.serve(connect=stall), rig.serve()
    stuck = [rig.provider(silent.port).send(MESSAGE) for _ in range(20)]
    provider = rig.provider(good.port, "starttls")
    for _ in range(10):
        await provider.send(MESSAGE)
    assert len(good.messages) == 10
    for sent in stuck:
        sent.cancel()
        with pytest.raises(CancelledError):
            await sent
