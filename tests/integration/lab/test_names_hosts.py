"""Every kind of host that a callback URL may have, really called, over http and https (contract 2.2)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.support.certificates import Authority
from tests.support.gateway import CHAT, Gateway, gateway
from tests.support.http_server import Request
from tests.support.name_server import NameServer, why_not
from tests.support.oracle import Oracle
from tests.support.receiver import CallbackReceiver

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"names cannot be scripted: {why_not()}")


@frozen
class Host:
    """As it is subscribed, and as it is called."""

    given: str
    called: str
    at: str = "127.0.0.1"
    """Where it leads."""

    @property
    def name(self) -> str | None:
        """What a resolver is asked for, and a TLS server told; None of an address."""
        return None if self.called.startswith("[") or self.called[-1].isdecimal() else self.called


HOSTS = (
    Host("127.0.0.1", "127.0.0.1"),
    Host("[::1]", "[::1]", at="::1"),
    Host("[0000:0::0.0.0.1]", "[::1]", at="::1"),
    Host("[::FFFF:7f00:1]", "[::ffff:127.0.0.1]"),
    Host("LocalHost", "localhost"),
    Host("my_service", "my_service"),
    Host("_hook._tcp.my_service.example", "_hook._tcp.my_service.example"),
    Host("BÜCHER.example", "xn--bcher-kva.example"),
    Host("faß.example", "xn--fa-hia.example"),
    Host("例え。テスト", "xn--r8jz45g.xn--zckzah", at="::1"),
    Host("XN--MNCHEN-3YA.Example", "xn--mnchen-3ya.example"),
    Host("3com.example", "3com.example", at="::1"),
    Host("a" * 63 + ".example", "a" * 63 + ".example"),
)


@frozen
class Reached:
    """How one callback came."""

    host: str
    """The header ``Host``."""
    name: str | None
    """The name in the TLS handshake (SNI)."""
    at: str


class Receiver(CallbackReceiver):
    """Notes for each path how its callbacks came."""

    def __init__(self, host: str, tls: ssl.SSLContext | None, port: int = 0) -> None:
        self.reached: dict[str, set[Reached]] = {}
        super().__init__(host=host, tls=tls, port=port)

    def respond(self, request: Request, wire: socket.socket) -> bool:
        name = getattr(wire, "asked_for", None)
        reached = Reached(request.headers["host"], name, wire.getsockname()[0])
        with self.changed:
            self.reached.setdefault(request.target, set()).add(reached)
        return super().respond(request, wire)


def note_name(wire: Any, name: str | None, context: ssl.SSLContext) -> None:
    wire.asked_for = name


@pytest.fixture
def names() -> Iterator[NameServer]:
    with NameServer() as server:
        server.table = {host.name: [host.at] for host in HOSTS if host.name}
        yield server


@pytest.fixture(params=["http", "https"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ssl.SSLContext | None, dict[str, str]]:
    """The receivers' side, and the environment of a daemon that trusts it."""
    if request.param == "http":
        return None, {}
    authority = Authority()
    known = dict.fromkeys(host.called.strip("[]") for host in HOSTS)
    context = authority.context(*known, "default.example")
    context.sni_callback = note_name
    return context, {"SSL_CERT_FILE": str(authority.write(tmp_path / "ca.pem"))}


@pytest.mark.report("H12")
@pytest.mark.report("H13")
def test_whatever_is_accepted_is_called(
    names: NameServer, tls: tuple[ssl.SSLContext | None, dict[str, str]], tmp_path: Path
) -> None:
    """By the right address, with the right ``Host`` and, in TLS, the right name or none."""
    context, environment = tls
    scheme, default_port = ("https", 443) if context else ("http", 80)
    state = tmp_path / "state"
    state.mkdir()
    with ExitStack() as stack:
        three: Gateway = stack.enter_context(gateway(state))
        first = stack.enter_context(Receiver("127.0.0.1", context))
        others = [
            stack.enter_context(Receiver("::1", context, first.port)),
            stack.enter_context(Receiver(names.address, context, default_port)),
        ]
        for other in others:
            other.share(first)
            other.reached = first.reached
        three.receiver = first
        three.daemon.program = names.within(three.daemon.program)
        three.daemon.environment = environment
        three.start()

        oracle = Oracle(three)
        expected: dict[str, Reached] = {}
        urls: dict[int, str] = {}
        for number, host in enumerate(HOSTS):
            path = f"/{number}"
            expected[path] = Reached(f"{host.called}:{first.port}", host.name if context else None, host.at)
            subscription = three.daemon.subscribe(CHAT, f"{scheme}://{host.given}:{first.port}{path}")
            urls[subscription] = f"{scheme}://{host.called}:{first.port}{path}"
            oracle.answered(subscription, path)
        # The port that goes without saying.
        names.table["default.example"] = [names.address]
        subscription = three.daemon.subscribe(CHAT, f"{scheme}://default.example:{default_port}/default")
        urls[subscription] = f"{scheme}://default.example/default"
        oracle.answered(subscription, "/default")
        expected["/default"] = Reached(
            "default.example", "default.example" if context else None, names.address
        )

        oracle.messages(2)
        assert oracle.settle() == []
        assert oracle.dead() == []
        assert first.reached == {path: {reached} for path, reached in expected.items()}
        listed = three.daemon.request("GET", "/subscriptions").json["subscriptions"]
        assert {each["subscription_id"]: each["callback_url"] for each in listed} == urls
        assert three.daemon.stop() == 0
