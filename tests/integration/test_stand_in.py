"""The demo's servers over sockets: whatever is open when they close, nothing of it is left."""

from __future__ import annotations

import time
from typing import Any

import pytest
import treq
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import Agent, ResponseNeverReceived
from twisted.web.http_headers import Headers

from telegrammer.demo import replies
from telegrammer.demo.chats import Chat
from telegrammer.demo.receiver import CallbackReceiver
from telegrammer.demo.serving import LocalServer
from telegrammer.demo.stand_in import StandInBotApi
from tests.support.bounded import bounded

TOKEN = "123456789:" + "A" * 35


class Idle(Protocol):
    """A client that says nothing."""

    def __init__(self) -> None:
        self.lost: Deferred[None] = Deferred()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost.callback(None)


@bounded(20)
async def test_a_close_with_everything_open(reactor: Any) -> None:
    api = StandInBotApi(token=TOKEN, clock=reactor, now=time.time)
    api.script("getMe", replies.silence())
    server = LocalServer.listen(reactor, api.resource())
    port = int(server.url.rpartition(":")[2])
    idle = await TCP4ClientEndpoint(reactor, "127.0.0.1", port).connect(Factory.forProtocol(Idle))
    assert isinstance(idle, Idle)
    agent = Agent(reactor)
    asked = [
        treq.get(f"{server.url}/bot{TOKEN}/{method}", agent=agent)
        for method in ("getUpdates?timeout=30", "getMe")
    ]
    while len(api.calls) < 2:
        turn: Deferred[None] = Deferred()
        reactor.callLater(0, turn.callback, None)
        await turn
    assert api.is_polled
    await server.close()
    await idle.lost
    for one in asked:
        with pytest.raises(ResponseNeverReceived):
            await one
    assert not api.is_polled
    with pytest.raises(ConnectionRefusedError):
        await treq.get(server.url, agent=agent)


@bounded(20)
async def test_a_message_ends_a_held_poll(reactor: Any) -> None:
    api = StandInBotApi(token=TOKEN, clock=reactor, now=time.time)
    server = LocalServer.listen(reactor, api.resource())
    poll = treq.get(f"{server.url}/bot{TOKEN}/getUpdates?timeout=30", agent=Agent(reactor))
    while not api.is_polled:
        turn: Deferred[None] = Deferred()
        reactor.callLater(0, turn.callback, None)
        await turn
    received = api.receive(Chat(1001, "Ada"), "hello")
    assert received is not None
    body: list[bytes] = []
    await treq.collect(await poll, body.append)
    assert received.message in b"".join(body)
    await server.close()


@bounded(20)
async def test_a_callback(reactor: Any) -> None:
    receiver = CallbackReceiver()
    receiver.answer_next(503)
    server = LocalServer.listen(reactor, receiver.resource())
    for status in (503, 200):
        response = await treq.post(
            f"{server.url}/hook",
            data=b"{}",
            headers=Headers({"X-Telegrammer-Delivery-Id": ["1-2-0-3"], "Content-Type": ["application/json"]}),
            agent=Agent(reactor),
        )
        assert response.code == status
        await treq.collect(response, lambda data: None)
        callback = await receiver.next()
        assert (callback.delivery_id, callback.body, callback.answered) == ("1-2-0-3", b"{}", status)
        assert callback.content_type == "application/json"
    await server.close()
