"""
TLS outwards: whom we trust, and that the peer is who its name says (contract 1.2, 6).

One context serves all connections: Twisted's own policy loads the trust store anew for each.  It also
refuses names with an underscore, which are no host names by IDNA but usual in container networks.
"""

from __future__ import annotations

from pathlib import Path

import service_identity
from attrs import define, frozen
from cryptography.x509 import load_pem_x509_certificates
from OpenSSL import SSL
from OpenSSL.crypto import X509, X509StoreFlags
from service_identity.exceptions import CertificateError
from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
from service_identity.pyopenssl import extract_patterns
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.ssl import CertificateOptions, platformTrust
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from telegrammer.bounded_tls import BoundedConnection
from telegrammer.core.problems import StartRefused

log = Logger()

NOT_TRUSTED = "certificate not trusted"
OTHER_HOST = "certificate is for another host"
_WHY = {
    SSL.X509VerificationCodes.ERR_CERT_NOT_YET_VALID: "certificate not valid yet",
    SSL.X509VerificationCodes.ERR_CERT_HAS_EXPIRED: "certificate expired",
    SSL.X509VerificationCodes.ERR_CERT_REVOKED: "certificate revoked",
}
"""By verify result; the others are NOT_TRUSTED."""


class CertificateRefused(Exception):
    """The peer's certificate is not good enough; ``why`` is short and ours.  Nothing was sent to it."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@implementer(IOpenSSLClientConnectionCreator)
@frozen(eq=False)
class VerifiedConnections:
    """Makes TLS connections to one host, whose name or address its certificate has to bear."""

    context: SSL.Context
    host: str
    """A name in ASCII, or the text of an IP address."""

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        # No final dot: neither SNI (RFC 6066, section 3) nor certificates know one.
        name = self.host.rstrip(".")
        is_ip = isIPAddress(name) or isIPv6Address(name)
        identity: DNS_ID | IPAddress_ID = IPAddress_ID(name) if is_ip else DNS_ID(name)
        connection = BoundedConnection(self.context)
        if not is_ip:
            connection.set_tlsext_host_name(name.encode("ascii"))
        checks = _Checks(tlsProtocol, identity)
        connection.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, checks)
        return connection


@define(eq=False)
class _Checks:
    """OpenSSL's verify callback for one connection, called for each certificate of the chain."""

    _tls: TLSMemoryBIOProtocol | None
    _identity: DNS_ID | IPAddress_ID

    def __call__(self, connection: SSL.Connection, cert: X509, error: int, depth: int, ok: int) -> bool:
        try:
            why = self._objection(cert, error, depth, ok)
        except Exception:
            # Raised into OpenSSL it would be lost.
            log.failure("a certificate could not be checked")
            why = NOT_TRUSTED
        if why is not None and self._tls is not None:
            self._tls.failVerification(Failure(CertificateRefused(why)))
        if depth == 0 or why is not None:
            self._tls = None  # or it and its connection keep one another alive
        return why is None

    def _objection(self, cert: X509, error: int, depth: int, ok: int) -> str | None:
        if not ok:
            return _WHY.get(error, NOT_TRUSTED)
        if depth == 0:
            try:
                verify_service_identity(extract_patterns(cert), [self._identity], [])
            except (service_identity.VerificationError, CertificateError):
                return OTHER_HOST
        return None


@implementer(IPolicyForHTTPS)
@frozen(eq=False)
class VerifyingPolicy:
    """For an ``Agent`` and for the callback client alike."""

    context: SSL.Context

    def creatorForNetloc(self, hostname: bytes, port: int) -> IOpenSSLClientConnectionCreator:
        return VerifiedConnections(self.context, hostname.decode("ascii"))


def policy_for_https(ca_file: Path | None = None) -> IPolicyForHTTPS:
    """
    Trust in the system's store (or what ``SSL_CERT_FILE`` names), and in ``ca_file`` besides.

    Certificates in ``ca_file`` are trusted as they are, intermediate and self-signed ones too.

    :raises StartRefused: ``ca_file`` cannot be read, or holds no certificate.
    """
    context: SSL.Context = CertificateOptions(trustRoot=platformTrust()).getContext()
    if ca_file is not None:
        store = context.get_cert_store()
        assert store is not None
        for certificate in _certificates(ca_file):
            store.add_cert(certificate)
        store.set_flags(X509StoreFlags.PARTIAL_CHAIN)
    return VerifyingPolicy(context)


def _certificates(ca_file: Path) -> list[X509]:
    try:
        pem = ca_file.read_bytes()
    except OSError as error:
        raise StartRefused(f"--ca-file {ca_file} cannot be read: {error.strerror}") from None
    try:
        return [X509.from_cryptography(certificate) for certificate in load_pem_x509_certificates(pem)]
    except ValueError:
        raise StartRefused(f"--ca-file {ca_file} holds no PEM certificate, or a damaged one") from None
