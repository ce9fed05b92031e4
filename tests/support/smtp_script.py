"""A mail server that follows a script: it answers well, or as badly as it is told, and sees who leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from attrs import define, field
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHandshakeListener, IListeningPort
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.support.certificates import Server

Deed = bytes | Callable[["Visit"], object]
"""What a stage is answered with: bytes (nothing, when there are none), or whatever a function does."""

GOOD: Mapping[str, Deed] = {
    "connect": b"220 mail.example.org ESMTP\r\n",
    "EHLO": b"250-mail.example.org\r\n250-STARTTLS\r\n250 AUTH PLAIN LOGIN CRAM-MD5\r\n",
    "STARTTLS": lambda visit: visit.start_tls(),
    "AUTH": b"235 you are\r\n",
    "MAIL": b"250 ok\r\n",
    "RCPT": b"250 ok\r\n",
    "DATA": b"354 go\r\n",
    "message": b"250 taken\r\n",
    "QUIT": lambda visit: visit.say(b"221 bye\r\n", close=True),
}
"""By stage: ``connect``, ``secured`` (the TLS handshake is done), a command, ``message`` (the final dot)."""


def stall(visit: Visit) -> None:
    """Say nothing."""


def drop(visit: Visit) -> None:
    """Hang up."""
    visit.stream.loseConnection()


@implementer(IHandshakeListener)
class Visit(Protocol):
    """One connection of a client."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.commands: list[bytes] = []
        self.message: bytes | None = None
        """As it was sent, dots doubled; None until the final dot."""
        self.gone: Deferred[None] = Deferred()
        self._buffer = b""
        self._taking = False

    @property
    def stream(self) -> Any:
        return self.transport

    def say(self, data: bytes, close: bool = False) -> None:
        self.stream.write(data)
        if close:
            self.stream.loseConnection()

    def start_tls(self) -> None:
        self.say(b"220 go ahead\r\n")
        assert self.server.tls is not None
        self.stream.startTLS(self.server.tls)

    def reach(self, stage: str) -> None:
        deed = {**GOOD, **self.server.script}.get(stage, b"")
        if isinstance(deed, bytes):
            self.say(deed)
        else:
            deed(self)
        self.server.reached(stage, self)

    def connectionMade(self) -> None:
        self.server.visits.append(self)
        self.reach("connect")

    def handshakeCompleted(self) -> None:
        self.reach("secured")

    def dataReceived(self, data: bytes) -> None:
        self._buffer += data
        if self._taking:
            message, end, rest = (b"\r\n" + self._buffer).partition(b"\r\n.\r\n")
            if end:
                self._taking, self._buffer = False, rest
                self.message = message[2:] + b"\r\n"
                self.reach("message")
            return
        while b"\r\n" in self._buffer and not self._taking:
            line, _, self._buffer = self._buffer.partition(b"\r\n")
            self.commands.append(line)
            verb = line.split(b" ")[0].decode("ascii", "replace").upper()
            self._taking = verb == "DATA"
            self.reach(verb if verb in GOOD else "answer")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self.gone.called:
            self.gone.callback(None)


@define(eq=False)
class ScriptedServer:
    """Listens on loopback; ``script`` replaces what is done at some stages."""

    script: Mapping[str, Deed] = field(factory=dict)
    tls: Server | None = None
    visits: list[Visit] = field(factory=list)
    port: int = 0
    _awaited: dict[str, Deferred[Visit]] = field(factory=dict)

    def listen(self, reactor: Any, implicit_tls: bool = False) -> IListeningPort:
        factory: Factory[Any] = Factory.forProtocol(lambda: Visit(self))
        factory.noisy = False
        if implicit_tls:
            assert self.tls is not None
            factory = TLSMemoryBIOFactory(self.tls, False, factory, reactor)
        listening: IListeningPort = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.port = cast(IPv4Address, listening.getHost()).port
        return listening

    def at(self, stage: str) -> Deferred[Visit]:
        """Fires when a client has got there the next time."""
        awaited = self._awaited[stage] = Deferred()
        return awaited

    def reached(self, stage: str, visit: Visit) -> None:
        awaited = self._awaited.pop(stage, None)
        if awaited is not None:
            awaited.callback(visit)

    @property
    def messages(self) -> list[bytes]:
        return [visit.message for visit in self.visits if visit.message is not None]

    @property
    def commands(self) -> list[bytes]:
        return [command for visit in self.visits for command in visit.commands]
