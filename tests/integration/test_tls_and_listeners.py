"""TLS on every side, verified; and the other endpoints a daemon may listen on."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trustme
from attrs import frozen

from tests.support.bot_api import BotApi
from tests.support.daemon import PYTHON, TWISTD, Daemon
from tests.support.gateway import CHAT, Gateway, eventually
from tests.support.hostile import TAKES_LEAVE
from tests.support.receiver import CallbackReceiver


@frozen
class Authority:
    """A CA of the test's own, and its certificate as a file."""

    ca: trustme.CA
    file: Path

    def context(self, *names: str) -> ssl.SSLContext:
        """For a server that is known under these names and addresses."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*names).configure_cert(context)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    ca = trustme.CA()
    file = tmp_path_factory.mktemp("ca") / "ca.pem"
    ca.cert_pem.write_to_path(str(file))
    return Authority(ca, file)


@pytest.fixture
def secure(authority: Authority, tmp_path: Path) -> Iterator[Gateway]:
    """Bot API and receiver over https; the daemon trusts the test's CA."""
    trusted = ("--ca-file", str(authority.file))
    with (
        BotApi(tls=authority.context("127.0.0.1")) as api,
        CallbackReceiver(tls=authority.context("127.0.0.1", "localhost")) as receiver,
        Daemon(tmp_path, api.url, trusted) as daemon,
    ):
        yield Gateway(api, receiver, daemon)


def test_https_on_both_sides(secure: Gateway) -> None:
    """By address and by name; the reverse way too."""
    secure.start()
    secure.subscribe("/by-address")
    secure.daemon.subscribe(CHAT, f"https://localhost:{secure.receiver.port}/by-name")
    bodies = [secure.api.message(CHAT, f"message {number}")[1] for number in range(3)]
    for path in ("/by-address", "/by-name"):
        assert [callback.body for callback in secure.receiver.wait_for(3, path=path)] == bodies
    assert secure.daemon.request("POST", "/send", {"chat_id": CHAT, "text": "x"}).status == 200


def test_a_certificate_of_nobody_we_trust(secure: Gateway, tmp_path: Path) -> None:
    """Neither token nor message leaves us."""
    stranger = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    stranger.issue_cert("127.0.0.1").configure_cert(context)
    secure.start()
    with CallbackReceiver(tls=context) as untrusted, BotApi(tls=context) as imposter:
        secure.daemon.subscribe(CHAT, f"{untrusted.url}/hook")
        secure.api.message(CHAT, "for nobody")
        eventually(lambda: attempts(secure) >= 1)
        assert untrusted.arrived == []

        secure.daemon.stop()
        secure.daemon.api_url = imposter.url
        secure.daemon.start()
        eventually(
            lambda: secure.daemon.health()["components"]["ingestion"]["reason"] in ("network", "upstream")
        )
        reply = secure.daemon.request("POST", "/send", {"chat_id": CHAT, "text": "x"})
        assert (reply.status, reply.json["error"]["code"]) == (502, "UPSTREAM_UNAVAILABLE")
        assert imposter.calls == []


def test_a_certificate_for_another_name(secure: Gateway, authority: Authority) -> None:
    secure.start()
    with CallbackReceiver(tls=authority.context("example.org")) as other:
        secure.daemon.subscribe(CHAT, f"https://localhost:{other.port}/hook")
        secure.api.message(CHAT, "for nobody")
        eventually(lambda: attempts(secure) >= 1)
        assert other.arrived == []


def attempts(three: Gateway) -> int:
    (attempted,) = three.query("SELECT max(attempt_count) FROM deliveries WHERE state <> 'IN_FLIGHT'")
    return int(attempted[0] or 0)


@pytest.mark.parametrize("program", [None, TWISTD], ids=["serve", "twistd"])
def test_a_unix_socket(gateway: Gateway, tmp_path: Path, program: tuple[str, ...] | None) -> None:
    """Nobody but the daemon's user can reach it, unless its mode says so; it goes with the daemon."""
    path = tmp_path / "api.sock"
    gateway.daemon.arguments = ("--listen", f"unix:{path}:mode=600")
    gateway.daemon.program = program or gateway.daemon.program
    gateway.daemon.add_key()
    gateway.daemon.launch()
    gateway.daemon.output.wait_for(f"listening on .*{path}")
    assert path.stat().st_mode & 0o777 == 0o600
    with closing(http.client.HTTPConnection("localhost")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(20)
        connection.sock.connect(str(path))
        connection.request("GET", "/subscriptions", headers={"Authorization": f"Bearer {gateway.daemon.key}"})
        answer = json.loads(connection.getresponse().read())
    assert answer == {"ok": True, "subscriptions": []}
    gateway.daemon.stop()
    assert not path.exists()


def test_our_own_tls(gateway: Gateway, authority: Authority, tmp_path: Path) -> None:
    """``ssl:`` speaks HTTP/1.1, whatever the client would like; and a plain port beside it."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    issued = authority.ca.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(key))
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    endpoint = f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={certificate}"
    gateway.daemon.arguments = ("--listen", "tcp:0:interface=127.0.0.1", "--listen", endpoint)
    # Twisted's own, in its ssl: endpoint; it would end a daemon that was told to be strict.
    twisteds = "-Wignore:Passing pyOpenSSL:DeprecationWarning"
    gateway.daemon.program = (*PYTHON, twisteds, "-m", "telegrammer", "serve")
    gateway.start()
    assert gateway.daemon.health()["ok"] is True
    port = int(gateway.daemon.output.wait_for(r"listening on https://127\.0\.0\.1:(\d+)")[1])
    context = ssl.create_default_context(cafile=str(authority.file))
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wire,
    ):
        assert wire.selected_alpn_protocol() == "http/1.1"
        head = f"GET /subscriptions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.daemon.key}\r\n"
        wire.sendall(f"{head}Connection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: wire.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    # One that takes leave amid the handshake is let go, without a traceback in the log.
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        plain.sendall(outgoing.read())
        assert plain.recv(1), "no answer to the hello"
        plain.sendall(TAKES_LEAVE)
        while plain.recv(65536):
            pass
    assert gateway.daemon.health()["ok"] is True


def test_a_socket_from_systemd(gateway: Gateway) -> None:
    """Socket activation: the descriptor is passed, the port stays open across restarts."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        starter = (
            "import os, sys\n"
            f"os.dup2({listener.fileno()}, 3)\n"
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES='http')\n"
            "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
        )
        os.set_inheritable(listener.fileno(), True)
        interpreter, *rest = gateway.daemon.program
        gateway.daemon.program = (interpreter, "-c", starter, *rest)
        gateway.daemon.passed = (listener.fileno(),)
        gateway.daemon.arguments = ("--listen", "systemd:domain=INET:index=0")
        gateway.start()
        assert gateway.daemon.url == f"http://127.0.0.1:{port}"
        assert gateway.daemon.health()["ok"] is True


def test_a_listener_beyond_loopback_is_warned_about(gateway: Gateway) -> None:
    gateway.daemon.arguments = ("--host", "0.0.0.0")
    gateway.start()
    gateway.daemon.stop()
    warnings = [line for line in gateway.daemon.output.lines if "WARN" in line and "TLS" in line]
    assert len(warnings) == 1, gateway.daemon.output.text
