"""The daemon's poller against a Bot API that misbehaves: what arrives all the same, how often it asks."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from tests.support.bot_api import Answer, Call, failure, hang_up, success
from tests.support.gateway import CHAT, Gateway, eventually, in_order
from tests.support.gateway import gateway as gateway_in
from tests.support.http_server import response

CHAT_JSON = b'{"id":%d,"type":"private"}' % CHAT


def reason(gateway: Gateway) -> object:
    return gateway.daemon.health()["components"]["ingestion"]["reason"]


def text(body: bytes) -> bytes:
    """The whole of an HTTP answer with this envelope."""
    return response(200, body, "Content-Type: application/json")


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all the odd answers, with a subscription: each finds it polling, and leaves it so."""
    with gateway_in(tmp_path_factory.mktemp("patient")) as three:
        three.start()
        three.subscribe()
        yield three


@pytest.mark.report("anthropics/claude-plugins-official#1128")
@pytest.mark.parametrize(
    "answer",
    [
        hang_up,
        text(b""),
        text(b"{"),
        text(b"[]"),
        text(b'{"ok":true}'),
        text(b'{"ok":true,"result":{}}'),
        text(b'{"ok":"true","result":[]}'),
        text(b"\xff"),
        text(b'{"ok":true,"result":[' + b"[" * 50_000),
        text(b'{"ok":true,"result":[{"update_id":' + b"1" * 5000 + b"}]}"),
        text(b"x" * (17 * 2**20)),
        failure(500, "Internal Server Error: restart"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
    ids=range(13),
)
def test_one_odd_answer(patient: Gateway, answer: Answer) -> None:
    """It is contained, asked again about a second later, and what follows is delivered."""
    api = patient.api
    api.wait_until(lambda: api.open_polls == 1)
    seen = len(api.of("getUpdates"))
    began: list[float] = []

    def odd(call: Call, wire: socket.socket) -> bool:
        began.append(time.monotonic())
        if isinstance(answer, bytes):
            wire.sendall(answer)
            return True
        return answer(call, wire)

    api.script("getUpdates", odd)
    before, _ = api.message(CHAT, "ends the held poll; the next one gets the odd answer")
    api.wait_for_calls("getUpdates", seen + 1)
    after, body = api.message(CHAT, "after it")
    api.wait_for_offset(after + 1)
    assert time.monotonic() - began[0] > 0.9
    # The odd one, the one that brought the message, the one that confirms it.
    assert len(api.of("getUpdates")) == seen + 3
    patient.receiver.wait_until(lambda: patient.receiver.arrived[-1].delivery_id.endswith(f"-{after}"))
    assert patient.receiver.arrived[-1].body == body
    assert patient.receiver.arrived[-2].delivery_id.endswith(f"-{before}")
    assert api.most_open_polls == 1


def test_depth_and_length_are_no_fault(running: Gateway) -> None:
    """Nothing but ids, chat and type can make an update malformed."""
    running.subscribe()
    bodies = [
        b'{"chat":%b,"deep":%b}' % (CHAT_JSON, b"[" * 10_000 + b"]" * 10_000),
        b'{"chat":%b,"long":%b}' % (CHAT_JSON, b"7" * 5000),
        b'{"chat":%b,"username":"\\udc00","migrate_to_chat_id":"x"}' % CHAT_JSON,
    ]
    for body in bodies:
        running.api.push(b'"message":' + body)
    assert in_order(running.receiver.wait_for(3), bodies) == []


def test_the_highest_id_is_ingested_once(running: Gateway) -> None:
    running.subscribe()
    update = b'{"update_id":9223372036854775807,"message":{"chat":%b}}' % CHAT_JSON
    running.api.wait_until(lambda: running.api.open_polls == 1)
    running.api.fallback["getUpdates"] = success(b"[%b]" % update)
    running.api.message(CHAT, "ends the held poll")
    running.receiver.wait_for(2)
    running.api.wait_for_calls("getUpdates", 5)
    assert running.query("SELECT next_offset FROM gateway") == [(2**63 - 1,)]
    bodies = [callback.body for callback in running.receiver.on(None)]
    assert bodies.count(b'{"chat":%b}' % CHAT_JSON) == 1


@pytest.mark.report("go-telegram-bot-api/telegram-bot-api#156")
def test_an_update_that_comes_again_and_again(running: Gateway) -> None:
    """A server that ignores the offset: one job, and about one poll a second."""
    running.subscribe()
    running.api.wait_until(lambda: running.api.open_polls == 1)
    update = b'{"update_id":117314199,"message":{"chat":%b}}' % CHAT_JSON
    running.api.fallback["getUpdates"] = success(b"[%b]" % update)
    running.api.message(CHAT, "ends the held poll")
    # From the second reception on, whatever is polled is a repeat.
    running.receiver.wait_for(2)
    seen = len(running.api.of("getUpdates"))
    began = eventually(lambda: len(running.api.of("getUpdates")) >= seen + 3)
    assert began > 1.5
    assert len(running.receiver.on(None)) == 2


def is_full(gateway: Gateway, capacity: int) -> bool:
    """All places are taken, and the poller waits for one."""
    reply = gateway.daemon.ask_health()
    queue, ingestion = reply.json["queue"], reply.json["components"]["ingestion"]
    waits = (reply.status, ingestion["state"], ingestion["reason"]) == (503, "suspended", "capacity")
    return waits and queue["pending"] + queue["in_flight"] == capacity


def test_a_batch_that_does_not_fit(gateway: Gateway) -> None:
    """Nothing of it is written, then less is asked for, and all arrives in order once jobs have left."""
    gateway.daemon.arguments = ("--max-jobs", "3")
    gateway.receiver.policy = lambda callback: 503
    gateway.start()
    gateway.subscribe()
    bodies = [gateway.api.message(CHAT, f"number {n}")[1] for n in range(10)]
    # What fits goes in on the way, and the state with it: looked at in one report, for it comes and goes.
    eventually(lambda: is_full(gateway, 3))
    eventually(lambda: gateway.api.of("getUpdates")[-1].arguments["limit"] == 1)
    assert gateway.query("SELECT count(*) FROM deliveries") == [(3,)]
    gateway.receiver.policy = lambda callback: 200
    gateway.receiver.wait_until(lambda: bodies[-1] in [one.body for one in gateway.receiver.arrived], 60)
    in_order(gateway.receiver.on(None), bodies)
    eventually(lambda: reason(gateway) is None)
    gateway.api.message(CHAT, "less than was asked for: there is room")
    eventually(lambda: gateway.api.of("getUpdates")[-1].arguments["limit"] == 100)
