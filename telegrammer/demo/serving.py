"""An HTTP server on a loopback port that goes away without a trace."""

from __future__ import annotations

from typing import Any

from attrs import define
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IListeningPort
from twisted.protocols.policies import WrappingFactory
from twisted.web.http import Request
from twisted.web.resource import IResource
from twisted.web.server import Site


class _SilentSite(Site):
    """Keeps no access log: the paths of a Bot API hold the token."""

    def log(self, request: Request) -> None:
        """Nothing."""


@define(eq=False)
class LocalServer:
    """Serves one resource on ``127.0.0.1``, on a port of the system's choice."""

    url: str
    """``http://127.0.0.1:PORT``, without a slash at its end."""
    _factory: WrappingFactory
    _port: IListeningPort
    _reactor: Any

    @classmethod
    def listen(cls, reactor: Any, resource: IResource) -> LocalServer:
        """Serve ``resource`` from now on."""
        factory = WrappingFactory(_SilentSite(resource, reactor=reactor))
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        return cls(f"http://127.0.0.1:{port.getHost().port}", factory, port, reactor)

    async def close(self) -> None:
        """Listen no more and abort every connection; returns when all of them have gone."""
        await maybeDeferred(self._port.stopListening)
        while self._factory.protocols:
            for protocol in list(self._factory.protocols):
                protocol.transport.abortConnection()
            turn: Deferred[None] = Deferred()
            self._reactor.callLater(0, turn.callback, None)
            await turn
