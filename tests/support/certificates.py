"""A certificate authority for tests; unlike trustme's it takes any name and any time."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attrs import Factory, define, field, frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.protocols.tls import TLSMemoryBIOProtocol
from zope.interface import implementer

DAY = datetime.timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@implementer(IOpenSSLServerConnectionCreator)
@frozen(eq=False)
class Server:
    """For a ``TLSMemoryBIOFactory``."""

    context: SSL.Context

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        return SSL.Connection(self.context, None)


@define(eq=False)
class Authority:
    """Signs certificates; trusted by who reads what ``write`` wrote."""

    name: str = "Test CA"
    issuer: Authority | None = None
    """Who signed this one, when it is an intermediate."""
    key: ec.EllipticCurvePrivateKey = Factory(_key)
    certificate: x509.Certificate = field(init=False)

    def __attrs_post_init__(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        issuer = self.issuer or self
        builder = x509.CertificateBuilder(_name(issuer.name), _name(self.name), self.key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - 9 * DAY).not_valid_after(now + 9 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = builder.sign(issuer.key, hashes.SHA256())

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.pem)
        return path

    def server(self, *names: str, first_day: int = -1, last_day: int = 1) -> Server:
        """
        What a TLS server for ``names`` (host names, addresses) needs; valid from and until so many days
        from now.
        """
        certificate, key = self._issue(names, first_day, last_day)
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.use_certificate(certificate)
        context.use_privatekey(key)
        return Server(context)

    def context(self, *names: str, first_day: int = -1, last_day: int = 1) -> ssl.SSLContext:
        """The same for the standard library's sockets; with our certificate, should it be an intermediate."""
        certificate, key = self._issue(names, first_day, last_day)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile() as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.write(certificate.public_bytes(Encoding.PEM) + (self.pem if self.issuer else b""))
            file.flush()
            context.load_cert_chain(file.name)
        return context

    def _issue(
        self, names: Sequence[str], first_day: int, last_day: int
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        now = datetime.datetime.now(datetime.UTC)
        key = _key()
        builder = x509.CertificateBuilder(_name(self.name), _name("server"), key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now + first_day * DAY).not_valid_after(now + last_day * DAY)
        if names:
            alternatives = x509.SubjectAlternativeName([_general(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(self.key, hashes.SHA256()), key


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
