"""
TLS connections that a peer can neither flood nor end in a way that Twisted stumbles over.

Whoever reads what a TLS connection decrypts bounds only that.  A peer that sends records without data (hello
requests, tickets, alerts, empty ones) is read, and costs the reactor its time, for as long as the connection
may last.  And one that takes leave amid the handshake makes OpenSSL raise an error without a cause, over
which Twisted's own handling of it raises another, into the reactor and the log.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.ssl import ContextFactory
from twisted.protocols.tls import TLSMemoryBIOProtocol
from zope.interface import implementer

ALLOWANCE = 256 * 1024
"""Bytes without data: more than the longest handshake, in which OpenSSL takes 100 KiB of certificates."""
OVERHEAD = 32
"""A record of a single byte of data is not longer; so many more are allowed for each byte that comes."""


class BoundedConnection(SSL.Connection):
    """For Twisted, which gives it bytes by ``bio_write`` and asks for the rest; over no socket of its own."""

    def __init__(self, context: SSL.Context, allowance: int = ALLOWANCE) -> None:
        super().__init__(context, None)
        self._allowed = allowance

    def bio_write(self, buf: Any) -> int:
        self._allowed -= len(buf)
        return super().bio_write(buf)

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except SSL.WantReadError:
            self._check()
            raise
        except SSL.ZeroReturnError:
            raise _error("the peer took leave during the handshake") from None

    def recv(self, bufsiz: int, flags: int | None = None) -> bytes:
        try:
            data = super().recv(bufsiz, flags)
        except SSL.WantReadError:
            self._check()
            raise
        self._allowed += len(data) * (1 + OVERHEAD)
        return data

    def _check(self) -> None:
        if self._allowed < 0:
            raise _error("the peer sends too much that is no data")


def _error(reason: str) -> SSL.Error:
    """As OpenSSL's errors come: a queue of library, function and reason."""
    return SSL.Error([("", "", reason)])


@implementer(IOpenSSLServerConnectionCreator)
@frozen(eq=False)
class BoundedServerConnections:
    """What clients connect to, with the certificate and the settings of ``contexts``."""

    contexts: ContextFactory

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        return BoundedConnection(self.contexts.getContext())
