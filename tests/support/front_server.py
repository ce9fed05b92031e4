"""
The HTTP front in a process of its own: ``python -m tests.support.front_server LIMITS ENDPOINT…``.

Prints the ports, one line for each endpoint.  ``POST /send`` answers the size of its body, or, when that is
``hold``, once ``GET /health?release`` is asked; ``/health`` counts.  ``GET /subscriptions?N`` answers N
bytes.  On SIGTERM it drains, prints how many connections are left, and exits.
"""

from __future__ import annotations

import json
import sys
from typing import Any, ClassVar

from attrs import define, field
from klein import Klein
from twisted.application import strports
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.python import log

from telegrammer.core.keys import digest
from telegrammer.web.limits import RequestLimits
from telegrammer.web.site import GatewaySite
from tests.support.front import CALLER, KEY, area


@define(eq=False)
class FrontServer:
    reactor: Any
    limits: RequestLimits
    endpoints: list[str]
    site: GatewaySite = field(init=False)
    held: list[Deferred[None]] = field(factory=list, init=False)
    running: int = 0
    most: int = 0
    begun: int = 0

    app: ClassVar[Klein] = Klein()
    app.url_map.merge_slashes = False

    def __attrs_post_init__(self) -> None:
        self.site = GatewaySite(
            [area(self, self.reactor, self.app.resource(), self.app.url_map)], self.reactor, self.limits
        )

    async def owner_of(self, wanted: bytes) -> int | None:
        """As from a database that takes 20 ms for an answer."""
        await deferLater(self.reactor, 0.02)
        return CALLER if wanted == digest(KEY) else None

    @app.route("/send", methods=["POST"])
    async def send(self, request: Any) -> bytes:
        body: bytes = request.content.read()
        self.begun += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if body == b"hold":
                release: Deferred[None] = Deferred()
                self.held.append(release)
                await release
        finally:
            self.running -= 1
        return b"%d" % len(body)

    @app.route("/subscriptions", methods=["GET"])
    def big(self, request: Any) -> bytes:
        return b"x" * int(request.uri.partition(b"?")[2] or b"2")

    @app.route("/health", methods=["GET"])
    def health(self, request: Any) -> bytes:
        if request.uri.endswith(b"?release"):
            held, self.held = self.held, []
            for each in held:
                each.callback(None)
        state = {
            "running": self.running,
            "most": self.most,
            "begun": self.begun,
            "slots": self.site.workers.running,
            "waiting": self.site.workers.waiting,
            "connections": len(self.site.connections),
        }
        return json.dumps(state).encode()

    def run(self) -> None:
        services: list[Any] = [strports.service(endpoint, self.site) for endpoint in self.endpoints]
        for service in services:
            service.startService()
            where = service._waitingForPort.result.getHost()
            print(getattr(where, "port", 0), flush=True)

        async def stop() -> None:
            for service in services:
                await service.stopService()
            await self.site.drain()
            print(len(self.site.connections), flush=True)

        self.reactor.addSystemEventTrigger("before", "shutdown", lambda: Deferred.fromCoroutine(stop()))
        self.reactor.run()


if __name__ == "__main__":
    from twisted.internet import reactor

    log.startLogging(sys.stderr, setStdout=False)
    FrontServer(reactor, RequestLimits(**json.loads(sys.argv[1])), sys.argv[2:]).run()
