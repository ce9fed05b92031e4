"""Certificates that are not good enough, of receivers and of the Bot API: nothing is sent, why is said."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import frozen

from tests.support.bot_api import BotApi
from tests.support.certificates import Authority
from tests.support.gateway import CHAT, Gateway, eventually, gateway
from tests.support.lab import full_only
from tests.support.name_server import NameServer, why_not
from tests.support.oracle import Oracle
from tests.support.receiver import CallbackReceiver

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"names cannot be scripted: {why_not()}")

EXPIRED = "certificate expired"
NOT_YET = "certificate not valid yet"
NOT_TRUSTED = "certificate not trusted"
OTHER_HOST = "certificate is for another host"
NO_HANDSHAKE = "TLS handshake failed"

OURS = Authority("Ours")
STRANGER = Authority("Stranger")
BETWEEN = Authority("Between", OURS)
ORPHAN = Authority("Between", OURS)
ORPHAN.issuer = None
"""Its certificate is not sent along."""


@frozen
class Peer:
    """A TLS server, the host it is called by, and what that comes to; None when it is good enough."""

    label: str
    host: str
    names: Sequence[str]
    """Those in its certificate."""
    why: str | None = None
    authority: Authority = OURS
    days: tuple[int, int] = (-1, 1)
    """From and until when it is valid, from today."""
    demands_one_of_ours: bool = False
    """A certificate of the client's, which has none."""

    @property
    def path(self) -> str:
        return "/" + self.label.replace(" ", "-")

    def context(self) -> ssl.SSLContext:
        first, last = self.days
        context = self.authority.context(*self.names, first_day=first, last_day=last)
        if self.demands_one_of_ours:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def peers(host: str) -> list[Peer]:
    """Called by this name, or by an address of either family."""
    name = host.strip("[]")
    return [
        Peer(f"good at {host}", host, [name]),
        Peer(f"expired at {host}", host, [name], EXPIRED, days=(-3, -1)),
        Peer(f"of tomorrow at {host}", host, [name], NOT_YET, days=(1, 2)),
        Peer(f"of a stranger at {host}", host, [name], NOT_TRUSTED, STRANGER),
        Peer(f"of another at {host}", host, ["other.example", "127.0.0.2", "::2"], OTHER_HOST),
    ]


NAME = "receiver.lab.example"
PEERS = (
    *(peer for host in (NAME, "127.0.0.1", "[::1]") for peer in peers(host)),
    Peer("several names", NAME, ["a.example", NAME]),
    Peer("a wildcard", NAME, ["*.lab.example"]),
    Peer("a chain", NAME, [NAME], authority=BETWEEN),
    Peer("a chain with a gap", NAME, [NAME], NOT_TRUSTED, ORPHAN),
    Peer("a wildcard one level up", NAME, ["*.example"], OTHER_HOST),
    Peer("a wildcard for all", NAME, ["*"], OTHER_HOST),
    Peer("the name for the address", "127.0.0.1", [NAME], OTHER_HOST),
    Peer("the address for the name", NAME, ["127.0.0.1"], OTHER_HOST),
    Peer("no name at all", NAME, [], OTHER_HOST),
    Peer("demands a certificate", NAME, [NAME], NO_HANDSHAKE, demands_one_of_ours=True),
)


def trust(way: str, *, more: Sequence[str]) -> pytest.MarkDecorator:
    """How the daemon is told whom to trust; in more ways in the long form."""
    ways = [way, *(pytest.param(other, marks=full_only) for other in more)]
    return pytest.mark.parametrize("trusting", ways, indirect=True)


@pytest.fixture
def names() -> Iterator[NameServer]:
    with NameServer() as server:
        server.table[NAME] = ["127.0.0.1"]
        yield server


@pytest.fixture
def trusting(request: pytest.FixtureRequest, names: NameServer, tmp_path: Path) -> Iterator[Gateway]:
    """A daemon that trusts `OURS`, told so in either way; not yet started."""
    file = str(OURS.write(tmp_path / "ca.pem"))
    state = tmp_path / "state"
    state.mkdir()
    with gateway(state) as three:
        three.daemon.program = names.within(three.daemon.program)
        if request.param == "--ca-file":
            three.daemon.arguments = ("--ca-file", file)
        else:
            three.daemon.environment = {"SSL_CERT_FILE": file}
        yield three


@trust("--ca-file", more=["SSL_CERT_FILE"])
def test_callbacks(trusting: Gateway) -> None:
    """Retried, then dead with the reason; delivered once the certificate is mended and the operator asks."""
    trusting.daemon.arguments = (*trusting.daemon.arguments, "--retry-schedule", "1s")
    trusting.start()
    oracle = Oracle(trusting)
    by_subscription: dict[int, Peer] = {}
    receivers: dict[str, CallbackReceiver] = {}
    with ExitStack() as stack:
        for peer in PEERS:
            at = "::1" if peer.host == "[::1]" else "127.0.0.1"
            receiver = stack.enter_context(CallbackReceiver(host=at, tls=peer.context()))
            receiver.share(trusting.receiver)
            receivers[peer.label] = receiver
            url = f"https://{peer.host}:{receiver.port}{peer.path}"
            subscription = trusting.daemon.subscribe(CHAT, url)
            oracle.answered(subscription, peer.path)
            by_subscription[subscription] = peer

        oracle.message("to all")
        good = [peer.path for peer in PEERS if not peer.why]
        eventually(lambda: len(oracle.dead()) == len(PEERS) - len(good))
        trusting.receiver.wait_for(len(good))
        assert oracle.check() == []
        assert {callback.path for callback in trusting.receiver.on(None)} == set(good)
        listing = trusting.daemon.run("list-failed-deliveries", "--json")
        dead = json.loads(listing.stdout)["deliveries"]
        reasons = {by_subscription[each["subscription_id"]].label: each["reason"] for each in dead}
        assert reasons == {peer.label: peer.why for peer in PEERS if peer.why}
        assert {each["attempts"] for each in dead} == {2}

        for peer in PEERS:
            receivers[peer.label].tls = OURS.context(peer.host.strip("[]"))
        done = trusting.daemon.run("retry-delivery", "--all")
        assert done.returncode == 0, done.stderr
        assert oracle.settle() == []
        assert oracle.dead() == []


@pytest.mark.report("B4")
@pytest.mark.report("D1")
@trust("SSL_CERT_FILE", more=["--ca-file"])
@pytest.mark.parametrize("host", [NAME, pytest.param("127.0.0.1", marks=full_only)])
def test_the_bot_api(trusting: Gateway, host: str) -> None:
    """No request leaves, the token least of all; and once the certificate is mended all goes on by itself."""
    bad = [peer for peer in PEERS if peer.host == host and peer.why]
    with BotApi(tls=bad[0].context()) as api:
        trusting.api.close()
        trusting.api = api
        trusting.daemon.api_url = f"https://{host}:{api.port}"
        trusting.start()
        oracle = Oracle(trusting)
        oracle.subscribe()
        eventually(lambda: ingestion(trusting) == ("backing_off", "network"))
        trusting.daemon.output.wait_for(bad[0].why or "")
        for peer in bad:
            api.tls = peer.context()
            reply = trusting.daemon.request("POST", "/send", {"chat_id": CHAT, "text": "x"})
            assert (reply.status, reply.json["error"]["code"]) == (502, "UPSTREAM_UNAVAILABLE"), peer.label
        assert api.calls == []

        api.tls = OURS.context(host)
        oracle.message("at last")
        assert oracle.settle() == []
        eventually(lambda: ingestion(trusting) == ("polling", None))
        assert trusting.daemon.request("POST", "/send", {"chat_id": CHAT, "text": "x"}).status == 200
        assert len(api.of("sendMessage")) == 1


def ingestion(three: Gateway) -> tuple[str, str | None]:
    found = three.daemon.health()["components"]["ingestion"]
    return found["state"], found["reason"]
