"""The HTTP front without a network: a site on a Clock, callers on in-memory transports."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from attrs import define, field, frozen
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET
from werkzeug.routing import Map, Rule

from telegrammer.core.keys import digest
from telegrammer.ports import Keys
from telegrammer.web.admission import AdmissionChannel
from telegrammer.web.credentials import BearerKeys
from telegrammer.web.limits import RequestLimits
from telegrammer.web.request import AdmittedRequest
from telegrammer.web.screen import Area
from telegrammer.web.site import GatewaySite

KEY = b"k" * 64
CALLER = 7
AUTHORIZED = b"Authorization: Bearer " + KEY + b"\r\n"


def routes() -> Map:
    """A few of the product's routes."""
    return Map(
        [
            Rule("/send", methods=["POST"], endpoint="send"),
            Rule("/subscriptions", methods=["GET"], endpoint="list"),
            Rule("/subscriptions/<text>", methods=["DELETE"], endpoint="remove"),
            Rule("/health", methods=["GET"], endpoint="health"),
        ],
        merge_slashes=False,
    )


@define(eq=False)
class FakeKeys:
    """Knows ``KEY``; holds its answers back while ``held`` is a list, which collects them."""

    held: list[Deferred[int | None]] | None = None
    asked: int = 0

    def owner_of(self, wanted: bytes) -> Deferred[int | None]:
        self.asked += 1
        if self.held is None:
            return succeed(CALLER if wanted == digest(KEY) else None)
        answer: Deferred[int | None] = Deferred()
        self.held.append(answer)
        return answer


def area(
    keys: Keys, clock: IReactorTime, resource: IResource | None = None, served: Map | None = None
) -> Area:
    """An area of a site, for callers with a key; ``/health`` takes no worker."""
    return Area(
        Handler() if resource is None else resource,
        routes() if served is None else served,
        BearerKeys(keys, clock),
        immediate=frozenset({"/health"}),
    )


class Handler(Resource):
    """Collects the requests that reach it; the test answers them, or ``answers`` does at once."""

    isLeaf = True
    answers: bytes | None = None

    def __init__(self) -> None:
        super().__init__()
        self.served: list[tuple[AdmittedRequest, bytes]] = []
        self.left: Callable[[], object] = lambda: None

    def render(self, request: IRequest) -> int:
        admitted = cast(AdmittedRequest, request)
        admitted.notifyFinish().addErrback(lambda failure: self.left())
        self.served.append((admitted, admitted.content.read()))
        if self.answers is not None:
            admitted.write(self.answers)
            admitted.finish()
        return NOT_DONE_YET


class PeerTransport(StringTransport):
    """A connection whose peer can stop reading: while ``congested``, what is written stays with us."""

    producer: Any
    congested = False
    half_closed = False
    input_ended = False
    gone = False
    bytes_kept = 0
    lost: Callable[[], object] = staticmethod(lambda: None)

    def write(self, data: bytes) -> None:
        super().write(data)
        if self.congested:
            self.bytes_kept += len(data)
            self.producer.pauseProducing()

    def drain(self) -> None:
        """The peer takes what was kept, and nothing more."""
        if self.bytes_kept and not self.disconnected:
            self.bytes_kept = 0
            self.producer.resumeProducing()

    def loseWriteConnection(self) -> None:
        self.half_closed = True

    def resumeProducing(self) -> None:
        assert not self.input_ended, "this makes a reactor spin"
        super().resumeProducing()

    def connectionLost(self, reason: Failure) -> None:
        self.gone = True
        self.lost()


@frozen
class Answer:
    """One parsed answer."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


def parse_answers(stream: bytes, *, head_only: bool = False) -> list[Answer]:
    """Every answer in a byte stream; 1xx are answers too."""
    answers = []
    while stream:
        head, end, stream = stream.partition(b"\r\n\r\n")
        assert end, head
        status_line, *lines = head.split(b"\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(b": ")
            assert name.lower() not in headers, line
            headers[name.lower()] = value
        size = 0 if head_only else int(headers.get(b"content-length", b"0"))
        assert len(stream) >= size
        answers.append(Answer(int(status_line.split(b" ")[1]), headers, stream[:size]))
        stream = stream[size:]
    return answers


@define(eq=False)
class Peer:
    """One connection, from its far end."""

    channel: AdmissionChannel
    transport: PeerTransport
    clock: Clock

    def send(self, data: bytes) -> None:
        self.channel.dataReceived(data)
        self.clock.advance(0)

    @property
    def answers(self) -> list[Answer]:
        return parse_answers(self.transport.value())

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]

    @property
    def closed(self) -> bool:
        """Whether our side of it is closed, or cut."""
        return self.transport.half_closed or self.transport.disconnecting

    @property
    def cut(self) -> bool:
        return bool(self.transport.disconnected)

    def end_input(self) -> None:
        """The peer closes its half of the connection."""
        self.transport.pauseProducing()  # as the reactor does
        self.transport.input_ended = True
        self.transport.lost = self.leave
        self.channel.readConnectionLost()

    def leave(self) -> None:
        """The peer goes away, or what was closed is gone."""
        self.channel.connectionLost(Failure(ConnectionDone()))


@define(eq=False)
class Front:
    """A started site, and ways to call it."""

    limits: RequestLimits = RequestLimits()
    clock: Clock = field(factory=Clock)
    keys: FakeKeys = field(factory=FakeKeys)
    handler: Handler = field(factory=Handler)
    more: Sequence[Area] = ()
    """Served beside what the handler serves."""
    site: GatewaySite = field(init=False)

    def __attrs_post_init__(self) -> None:
        areas = [area(self.keys, self.clock, self.handler), *self.more]
        self.site = GatewaySite(areas, self.clock, self.limits)
        self.site.doStart()

    def connect(self, transport: PeerTransport | None = None) -> Peer:
        transport = PeerTransport() if transport is None else transport
        channel: Any = self.site.buildProtocol(None)
        channel.makeConnection(transport)
        return Peer(channel, transport, self.clock)

    def call(self, data: bytes) -> Peer:
        """A new connection that sends this."""
        peer = self.connect()
        peer.send(data)
        return peer


def post(body: bytes = b"{}", *, path: bytes = b"/send", headers: bytes = AUTHORIZED) -> bytes:
    """A whole POST with a declared length."""
    return (
        b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (path, headers, len(body), body)
    )


def get(path: bytes = b"/subscriptions", *, headers: bytes = AUTHORIZED, method: bytes = b"GET") -> bytes:
    return b"%b %b HTTP/1.1\r\nHost: x\r\n%b\r\n" % (method, path, headers)


def chunked(*chunks: bytes, headers: bytes = AUTHORIZED, end: bytes = b"0\r\n\r\n") -> bytes:
    """A POST whose body comes in these chunks."""
    head = (
        b"POST /send HTTP/1.1\r\nHost: x\r\n%bContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" % headers
    )
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end
