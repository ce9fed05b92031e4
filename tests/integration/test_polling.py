"""The daemon's poller against a Bot API that misbehaves: what arrives all the same, how often it asks."""

from __future__ import annotations

import pytest

from tests.support.bot_api import Answer, failure, hang_up, success
from tests.support.gateway import CHAT, Gateway, eventually, in_order
from tests.support.http_server import response

CHAT_JSON = b'{"id":%d,"type":"private"}' % CHAT


def reason(gateway: Gateway) -> object:
    return gateway.daemon.health()["components"]["ingestion"]["reason"]


def text(body: bytes) -> bytes:
    """The whole of an HTTP answer with this envelope."""
    return response(200, body, "Content-Type: application/json")


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
def test_one_odd_answer(gateway: Gateway, answer: Answer) -> None:
    """It is contained, asked again about a second later, and what follows is delivered."""
    gateway.api.script("getUpdates", answer)
    gateway.start()
    gateway.subscribe()
    _, body = gateway.api.message(CHAT, "after it")
    (callback,) = gateway.receiver.wait_for(1)
    assert callback.body == body
    assert len(gateway.api.of("getUpdates")) <= 4
    assert gateway.api.most_open_polls == 1


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
    update = b'{"update_id":117314199,"message":{"chat":%b}}' % CHAT_JSON
    running.api.fallback["getUpdates"] = success(b"[%b]" % update)
    running.api.message(CHAT, "ends the held poll")
    running.receiver.wait_for(1)
    seen = len(running.api.of("getUpdates"))
    began = eventually(lambda: len(running.api.of("getUpdates")) >= seen + 3)
    assert began > 1.5
    assert len(running.receiver.on(None)) <= 2


def test_a_batch_that_does_not_fit(gateway: Gateway) -> None:
    """Nothing of it is written, then less is asked for, and all arrives in order once jobs have left."""
    gateway.daemon.arguments = ("--max-jobs", "3")
    gateway.receiver.policy = lambda callback: 503
    gateway.start()
    gateway.subscribe()
    bodies = [gateway.api.message(CHAT, f"number {n}")[1] for n in range(10)]
    eventually(lambda: reason(gateway) == "capacity")
    assert gateway.daemon.request("GET", "/health").status == 503
    eventually(lambda: gateway.api.of("getUpdates")[-1].arguments["limit"] == 1)
    assert gateway.query("SELECT count(*) FROM deliveries")[0][0] <= 3
    gateway.receiver.policy = lambda callback: 200
    arrived = gateway.receiver.wait_for(10 + len(gateway.receiver.on(None)), 60)
    in_order(arrived, bodies)
    eventually(lambda: reason(gateway) is None)
    gateway.api.message(CHAT, "less than was asked for: there is room")
    eventually(lambda: gateway.api.of("getUpdates")[-1].arguments["limit"] == 100)
