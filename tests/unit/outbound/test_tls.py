from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast
from unittest import mock

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface.verify import verifyObject

from telegrammer.core.problems import StartRefused
from telegrammer.outbound import tls
from telegrammer.outbound.tls import (
    CertificateRefused,
    VerifiedConnections,
    VerifyingPolicy,
    policy_for_https,
)
from tests.support.certificates import Authority, Server
from tests.support.directories import temporary_directory


class Verdicts:
    """Stands for the TLS protocol, as far as a verify callback knows it."""

    def __init__(self) -> None:
        self.whys: list[str] = []

    def failVerification(self, reason: Failure) -> None:
        assert isinstance(reason.value, CertificateRefused)
        self.whys.append(reason.value.why)


class TlsTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.authority = Authority()
        self.directory = temporary_directory(self)
        self.ca_file = self.authority.write(self.directory / "ca.pem")

    def shake_hands(self, host: str, server: Server, ca_file: Path | None = None) -> list[str]:
        """Both ends in memory; why the client refused, or ``["ok", the name it asked for]``."""
        verdicts = Verdicts()
        creator = policy_for_https(ca_file or self.ca_file).creatorForNetloc(host.encode("ascii"), 443)
        client = creator.clientConnectionForTLS(cast(TLSMemoryBIOProtocol, verdicts))
        client.set_connect_state()
        accepted = SSL.Connection(server.context, None)
        accepted.set_accept_state()
        for _ in range(4):
            for near, far in ((client, accepted), (accepted, client)):
                try:
                    near.do_handshake()
                except SSL.WantReadError:
                    pass
                except SSL.Error:
                    return verdicts.whys
                try:
                    far.bio_write(near.bio_read(65536))
                except SSL.WantReadError:
                    pass
        name: Any = accepted.get_servername()
        return ["ok", "" if name is None else name.decode("ascii")]


class Verification(TlsTestCase):
    def test_names_and_addresses(self) -> None:
        for host, name in (
            ("hook.example", "hook.example"),
            ("a.wild.example", "*.wild.example"),
            ("my_service", "my_service"),
            ("xn--mnchen-3ya.example", "xn--mnchen-3ya.example"),
        ):
            self.assertEqual(self.shake_hands(host, self.authority.server(name)), ["ok", host])
        for host in ("127.0.0.1", "::1"):
            self.assertEqual(self.shake_hands(host, self.authority.server(host)), ["ok", ""])

    def test_a_final_dot_is_no_part_of_the_name(self) -> None:
        server = self.authority.server("hook.example")
        self.assertEqual(self.shake_hands("hook.example.", server), ["ok", "hook.example"])

    def test_another_host(self) -> None:
        for host, names in (
            ("hook.example", ["other.example"]),
            ("hook.example", ["192.0.2.1"]),
            ("192.0.2.1", ["hook.example"]),
            ("192.0.2.1", ["192.0.2.2"]),
            ("my_service", ["my-service"]),
            ("hook.example", []),
        ):
            server = self.authority.server(*names)
            self.assertEqual(
                self.shake_hands(host, server), ["certificate is for another host"], (host, names)
            )

    def test_not_trusted(self) -> None:
        server = Authority("Another CA").server("hook.example")
        self.assertEqual(self.shake_hands("hook.example", server), ["certificate not trusted"])

    def test_expired_and_not_valid_yet(self) -> None:
        for first, last, why in ((-3, -1, "certificate expired"), (1, 3, "certificate not valid yet")):
            server = self.authority.server("hook.example", first_day=first, last_day=last)
            self.assertEqual(self.shake_hands("hook.example", server), [why])

    def test_a_check_that_cannot_be_made_is_a_refusal(self) -> None:
        self.patch(tls, "extract_patterns", lambda cert: 1 / 0)
        server = self.authority.server("hook.example")
        self.assertEqual(self.shake_hands("hook.example", server), ["certificate not trusted"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_the_interfaces(self) -> None:
        policy = policy_for_https()
        assert isinstance(policy, VerifyingPolicy)
        verifyObject(IPolicyForHTTPS, policy)
        creator = policy.creatorForNetloc(b"hook.example", 443)
        assert isinstance(creator, VerifiedConnections)
        verifyObject(IOpenSSLClientConnectionCreator, creator)
        self.assertIs(creator.context, policy.context)


class TrustRoots(TlsTestCase):
    def test_several_in_a_file_with_comments(self) -> None:
        other = Authority("Another CA")
        both = self.directory / "both.pem"
        both.write_bytes(b"# ours\n" + self.authority.pem + b"\n# theirs\n" + other.pem)
        for authority in (self.authority, other):
            server = authority.server("hook.example")
            self.assertEqual(self.shake_hands("hook.example", server, both), ["ok", "hook.example"])

    def test_an_intermediate_is_trusted_as_it_is(self) -> None:
        intermediate = Authority("Intermediate CA", issuer=self.authority)
        path = intermediate.write(self.directory / "intermediate.pem")
        server = intermediate.server("hook.example")
        self.assertEqual(self.shake_hands("hook.example", server, path), ["ok", "hook.example"])

    def test_besides_the_system_store(self) -> None:
        """The store that ``SSL_CERT_FILE`` names stands for the system's."""
        system = Authority("System CA")
        path = system.write(self.directory / "system.pem")
        environment = mock.patch.dict(os.environ, {"SSL_CERT_FILE": str(path)})
        environment.start()
        self.addCleanup(environment.stop)
        for authority in (system, self.authority):
            server = authority.server("hook.example")
            self.assertEqual(self.shake_hands("hook.example", server), ["ok", "hook.example"])

    def test_files_that_will_not_do(self) -> None:
        empty, damaged = self.directory / "empty.pem", self.directory / "damaged.pem"
        empty.write_bytes(b"nothing here\n")
        damaged.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        for path, rule in (
            (self.directory / "missing.pem", "cannot be read: No such file or directory"),
            (self.directory, "cannot be read: Is a directory"),
            (empty, "holds no PEM certificate, or a damaged one"),
            (damaged, "holds no PEM certificate, or a damaged one"),
        ):
            refused = self.assertRaises(StartRefused, policy_for_https, path)
            self.assertEqual(str(refused), f"--ca-file {path} {rule}")
