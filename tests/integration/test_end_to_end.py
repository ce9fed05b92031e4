"""A message's whole way through the real daemon, both directions, over real sockets."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import telegrammer
from tests.support.bot_api import Call, failure, hang_up, success
from tests.support.gateway import CHAT, Gateway, eventually, gateway, in_order
from tests.support.http_server import response
from tests.support.receiver import Callback, CallbackReceiver

MARKER = "c0ffee-in-the-query"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One daemon for all tests that leave nothing behind for the next."""
    with gateway(tmp_path_factory.mktemp("shared")) as three:
        three.start()
        yield three
        assert MARKER not in three.daemon.output.text, "a callback's query is in the output"


_chats = itertools.count(5000)


@pytest.fixture
def chat() -> int:
    """A chat of the test's own."""
    return next(_chats)


# -- Telegram to the callback -------------------------------------------------------------------------

HARD = (
    b'{ "message_id":9007199254740993 , "date": 1.0, "edit_date":1e3,"x":-0, "chat":{"type":"private",'
    b'"id":%d,"first_name":"\\u0041da \\ud83d\\ude00"},"text":"a\\/b \\ud800 \\u0000 \xc3\xa9 '
    b'\xf0\x9f\x98\x80","from":{"id":-9223372036854775808},"deep":[[[{"":[]}]]],"same":1,"same":2,'
    b'"big":1e400 }'
)


def test_byte_for_byte(shared: Gateway, chat: int) -> None:
    """64-bit ids, number spellings, escapes, a lone surrogate, white space, repeated names: all of it."""
    message = HARD % chat
    shared.subscribe(chat_id=chat)
    update_id = shared.api.push(b'"message": ' + message)
    (callback,) = arrived(shared, f"-{update_id}")
    assert callback.body == message
    headers = dict(callback.request.headers)
    assert callback.request.method == "POST"
    assert headers.pop("content-type") == "application/json"
    assert headers.pop("user-agent") == f"telegrammer/{telegrammer.__version__}"
    assert headers.pop("content-length") == str(len(message))
    assert headers.pop("host") == f"127.0.0.1:{shared.receiver.port}"
    assert headers.pop("x-telegrammer-delivery-id").startswith("123456789-")
    assert set(headers) <= {"connection", "accept"}


def arrived(three: Gateway, ending: str, count: int = 1) -> list[Callback]:
    """Wait for callbacks whose delivery id ends so."""

    def found() -> list[Callback]:
        return [callback for callback in three.receiver.on(None) if callback.delivery_id.endswith(ending)]

    three.receiver.wait_until(lambda: len(found()) >= count)
    return found()


def test_every_accepted_url_is_called_as_registered(shared: Gateway, chat: int) -> None:
    port = shared.receiver.port
    with CallbackReceiver(host="::1") as over_ipv6:
        for target in ("/a%2Fb/../c?x=%7e&y=a+b&secret=" + MARKER, "/?", "/a;b=c//d?a=b?c"):
            shared.daemon.subscribe(chat, f"HTTP://LOCALHOST:{port}{target}")
            shared.daemon.subscribe(chat, f"http://[0:0:0:0:0:0:0:1]:{over_ipv6.port}{target}")
        shared.daemon.subscribe(chat, f"http://127.0.0.1:{port}")
        update_id, body = shared.api.message(chat, "hello")
        callbacks = arrived(shared, f"-{update_id}", 4)
        assert sorted(callback.path for callback in callbacks) == sorted(
            ["/", "/?", "/a;b=c//d?a=b?c", f"/a%2Fb/../c?x=%7e&y=a+b&secret={MARKER}"]
        )
        assert len(over_ipv6.wait_for(3)) == 3
        assert over_ipv6.arrived[0].request.headers["host"] == f"[::1]:{over_ipv6.port}"
        assert {callback.body for callback in callbacks + over_ipv6.arrived} == {body}


def test_a_lane_keeps_its_order_and_holds_up_no_other(gateway: Gateway) -> None:
    """The first message of one lane fails twice: its successors wait, the other lane does not."""
    running = gateway
    running.daemon.arguments = ("--retry-schedule", "1s,1s")
    running.start()
    fails = [503, 500]

    def policy(callback: Callback) -> int:
        return fails.pop(0) if callback.path == "/slow" and fails else 200

    running.receiver.policy = policy
    running.subscribe("/slow")
    running.subscribe("/fast")
    bodies = [running.api.message(CHAT, f"message {number}")[1] for number in range(10)]
    fast = running.receiver.wait_for(10, path="/fast")
    assert in_order(fast, bodies) == []
    assert len(running.receiver.on("/slow")) <= 2, "the fast lane waited for the slow one"
    slow = running.receiver.wait_for(12, path="/slow")
    assert len(in_order(slow, bodies)) == 2
    assert len({callback.as_job for callback in slow[:3]}) == 1


@pytest.mark.report("eternnoir/pyTelegramBotAPI#14")
def test_more_than_one_batch(running: Gateway) -> None:
    running.api.withhold = True
    running.subscribe()
    bodies = [running.api.message(CHAT, str(number))[1] for number in range(250)]
    running.api.withhold = False
    assert in_order(running.receiver.wait_for(250), bodies) == []
    last = running.api.queue.next_id
    running.api.wait_for_offset(last)
    offsets = sorted({call.arguments["offset"] for call in running.api.of("getUpdates")})
    assert offsets[-3:] == [last - 150, last - 50, last]
    for call in running.api.of("getUpdates"):
        assert call.arguments["timeout"] == 30
        assert call.arguments["limit"] == 100
        allowed = call.arguments["allowed_updates"]
        assert (json.loads(allowed) if isinstance(allowed, str) else allowed) == ["message"]
    assert running.api.most_open_polls == 1


def nothing_is_due(three: Gateway) -> bool:
    queue = three.daemon.health()["queue"]
    return (queue["pending"], queue["in_flight"]) == (0, 0)


def test_what_the_receivers_answers_mean(running: Gateway) -> None:
    """2xx is done, whatever follows; redirects and other 4xx are final; 408, 429 and 5xx come again."""
    answers: dict[str, Any] = {
        "/204": 204,
        "/cut": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\ncut",
        "/302": response(302, b"", f"Location: {running.receiver.url}/elsewhere"),
        "/404": 404,
        "/408": 408,
        "/429": response(429, b"", "Retry-After: 2"),
        "/500": 500,
    }
    began: dict[str, float] = {}

    def policy(callback: Callback) -> int | bytes:
        repeated = callback.path in began
        began.setdefault(callback.path, time.monotonic())
        chosen: int | bytes = 200 if repeated else answers[callback.path]
        return chosen

    running.receiver.policy = policy
    for path in answers:
        running.subscribe(path)
    running.api.message(CHAT, "hello")
    running.receiver.wait_for(len(answers) + 3)
    assert time.monotonic() - began["/429"] > 1.9, "Retry-After is not waited for"
    eventually(lambda: nothing_is_due(running))
    counts = {path: len(running.receiver.on(path)) for path in (*answers, "/elsewhere")}
    assert counts == {
        **{"/204": 1, "/cut": 1, "/302": 1, "/404": 1},
        **{"/408": 2, "/429": 2, "/500": 2, "/elsewhere": 0},
    }
    dead = json.loads(running.daemon.run("list-failed-deliveries", "--json").stdout)["deliveries"]
    refused, redirected = sorted(job["reason"] for job in dead)
    assert refused == "HTTP 404"
    assert "302" in redirected
    assert "elsewhere" not in redirected


@pytest.mark.report("go-telegram-bot-api/telegram-bot-api#156")
def test_ids_that_restart_lower(running: Gateway) -> None:
    """The old cursor comes down with them, and delivery ids of another epoch cannot be confused."""
    running.api.queue.restart_ids(727_334_708)
    running.subscribe()
    first = running.api.message(CHAT, "before the quiet week")
    running.api.wait_for_offset(first[0] + 1)
    running.api.queue.restart_ids(117_314_199)
    second = running.api.message(CHAT, "after it")
    before, after = running.receiver.wait_for(2)
    assert (before.body, after.body) == (first[1], second[1])
    assert before.delivery_id.endswith("-0-727334708")
    assert after.delivery_id.endswith("-1-117314199")
    running.api.wait_until(lambda: running.api.of("getUpdates")[-1].arguments["offset"] == 117_314_200)


@pytest.mark.report("anthropics/claude-plugins-official#3938")
def test_cursor_and_usernames_survive_a_restart(running: Gateway) -> None:
    running.subscribe()
    update_id, _ = running.api.message(CHAT, "once", username="Alice")
    running.receiver.wait_for(1)
    running.api.wait_for_offset(update_id + 1)
    running.daemon.stop()
    seen = len(running.api.of("getUpdates"))
    running.daemon.start()
    calls = running.api.wait_for_calls("getUpdates", seen + 1)
    assert calls[seen].arguments["offset"] == update_id + 1
    assert len(running.receiver.arrived) == 1
    assert running.daemon.request("POST", "/send", {"username": "alice", "text": "x"}).status == 200
    assert last_send(running).arguments["chat_id"] == CHAT


@pytest.mark.report("defstudio/telegraph#692")
def test_a_group_that_becomes_a_supergroup(running: Gateway) -> None:
    old, new = -4518810793, -1002471352452
    subscription = running.subscribe(chat_id=old)
    running.api.message(old, "still here")
    service = b'"message":{"chat":{"id":%d,"type":"supergroup"},"%b":%d}'
    running.api.push(service % (old, b"migrate_to_chat_id", new))
    running.api.push(service % (new, b"migrate_from_chat_id", old))
    running.api.message(new, "moved")
    callbacks = running.receiver.wait_for(4)
    assert {callback.delivery_id.split("-")[1] for callback in callbacks} == {str(subscription)}
    (listed,) = running.daemon.request("GET", "/subscriptions").json["subscriptions"]
    assert (listed["subscription_id"], listed["chat_id"]) == (subscription, new)


@pytest.mark.report("TelegramBots/Telegram.Bot#485")
def test_unsupported_updates_move_the_cursor(shared: Gateway, chat: int) -> None:
    shared.subscribe(chat_id=chat)
    for member in (b'"edited_message":{"chat":{"id":%d,"type":"private"}}' % chat, b'"future":{}'):
        shared.api.push(member)
    update_id, body = shared.api.message(chat, "a message")
    assert [callback.body for callback in arrived(shared, f"-{update_id}")] == [body]
    shared.api.wait_for_offset(update_id + 1)


def test_two_keys_do_not_see_one_another(shared: Gateway, chat: int) -> None:
    first = shared.daemon.key
    second = shared.daemon.add_key(f"other {chat}")
    shared.daemon.key = first
    mine = shared.daemon.subscribe(chat, f"{shared.receiver.url}/mine")
    eventually(lambda: shared.daemon.request("GET", "/subscriptions", key=second).status == 200)
    theirs = shared.daemon.subscribe(chat, f"{shared.receiver.url}/mine", key=second)
    assert mine != theirs
    assert shared.daemon.subscribe(chat, f"{shared.receiver.url}/mine") == mine, "the same again"
    assert [
        one["subscription_id"]
        for one in shared.daemon.request("GET", "/subscriptions", key=second).json["subscriptions"]
    ] == [theirs]
    assert shared.daemon.request("DELETE", f"/subscriptions/{theirs}").status == 404
    gone = shared.daemon.request("DELETE", f"/subscriptions/{theirs}", key=second)
    assert (gone.status, gone.body) == (204, b"")
    update_id, _ = shared.api.message(chat, "hello")
    (callback,) = arrived(shared, f"-{update_id}")
    assert callback.delivery_id.split("-")[1] == str(mine)


# -- a program to Telegram ----------------------------------------------------------------------------


def last_send(three: Gateway) -> Call:
    return three.api.of("sendMessage")[-1]


def test_sent_and_answered_byte_for_byte(shared: Gateway) -> None:
    envelope = b'{ "ok" : true,"result":{"message_id":9007199254740993,"x":1.0,"t":"\\ud83d \xc3\xa9"} }'
    shared.api.script("sendMessage", response(200, envelope, "Content-Type: application/json"))
    text = " a <b@c.d> _x *y [z \u0000\r\n".ljust(4096, "😀")
    reply = shared.daemon.request("POST", "/send", {"chat_id": -9223372036854775808, "text": text})
    assert (reply.status, reply.body) == (200, envelope)
    assert reply.headers["content-type"].startswith("application/json")
    assert reply.headers["cache-control"] == "no-store"
    sent = dict(last_send(shared).arguments)
    assert sent == {"chat_id": -9223372036854775808, "text": text}


@pytest.mark.report("wiz0u/WTelegramBot#24")
def test_usernames_are_learnt_swapped_and_forgotten(running: Gateway) -> None:
    running.api.withhold = True
    for chat_id, name in ((1, "alice"), (2, "Bob"), (3, "carol"), (1, "bob"), (2, "Alice")):
        running.api.message(chat_id, "hello", username=name)
    update_id, _ = running.api.message(3, "nameless now")
    running.api.withhold = False
    running.api.wait_for_offset(update_id + 1)
    for name, chat_id in (("ALICE", 2), ("@bob", 1)):
        assert running.daemon.request("POST", "/send", {"username": name, "text": "x"}).status == 200
        assert last_send(running).arguments["chat_id"] == chat_id
    reply = running.daemon.request("POST", "/send", {"username": "carol", "text": "x"})
    assert (reply.status, reply.json["error"]["code"]) == (404, "USERNAME_NOT_FOUND")
    assert len(running.api.of("sendMessage")) == 2


NOT_JSON = "Content-Type: text/html"


@pytest.mark.parametrize(
    ("answer", "status", "code", "retry_after"),
    [
        (failure(403, "Forbidden: bot was blocked by the user"), 422, "TELEGRAM_REJECTED", None),
        (failure(429, "Too Many Requests", retry_after=7), 429, "TELEGRAM_RATE_LIMITED", "7"),
        (failure(429, "Too Many Requests", "Retry-After: 9"), 429, "TELEGRAM_RATE_LIMITED", "9"),
        (failure(429, "Too Many Requests", retry_after=-7), 429, "TELEGRAM_RATE_LIMITED", None),
        (response(429, b"slow", NOT_JSON, "Retry-After: 3"), 429, "TELEGRAM_RATE_LIMITED", "3"),
        (response(502, b"<html>", NOT_JSON), 502, "UPSTREAM_ERROR", None),
        (response(400, b"<html>", NOT_JSON), 502, "UPSTREAM_ERROR", None),
        (response(302, b"", "Location: http://127.0.0.1:1/"), 502, "UPSTREAM_ERROR", None),
        (response(200, b'{"ok":true}'), 502, "UPSTREAM_ERROR", None),
        (response(200, b'{"ok":true,"result":[1]}'), 502, "UPSTREAM_ERROR", None),
        (response(500, b'{"ok":true,"result":{}}'), 502, "UPSTREAM_ERROR", None),
        (failure(401, "Unauthorized"), 502, "UPSTREAM_ERROR", None),
        (hang_up, 502, "UPSTREAM_UNAVAILABLE", None),
    ],
)
def test_upstream_refusals(
    shared: Gateway, answer: Any, status: int, code: str, retry_after: str | None
) -> None:
    """Each in one ``sendMessage``, and nothing of the upstream's but what the contract passes on."""
    before = len(shared.api.of("sendMessage"))
    shared.api.script("sendMessage", answer)
    reply = shared.daemon.request("POST", "/send", {"chat_id": 5, "text": "x"})
    assert (reply.status, reply.json["error"]["code"]) == (status, code)
    assert reply.headers.get("retry-after") == retry_after
    assert len(shared.api.of("sendMessage")) == before + 1


@pytest.mark.report("TwiN/gatus#179")
def test_the_new_id_of_a_group_is_passed_on(shared: Gateway) -> None:
    words = "Bad Request: group chat was upgraded to a supergroup chat"
    shared.api.script("sendMessage", failure(400, words, migrate_to_chat_id=-1001557912345))
    error = shared.daemon.request("POST", "/send", {"chat_id": -5, "text": "x"}).json["error"]
    assert error["migrate_to_chat_id"] == -1001557912345
    assert error["description"] == words


def test_a_caller_who_hangs_up_does_not_cancel_the_send(shared: Gateway) -> None:
    before = len(shared.api.of("sendMessage"))
    finished: list[bool] = []
    host, _, port = shared.daemon.url.removeprefix("http://").rpartition(":")
    wire = socket.create_connection((host, int(port)), timeout=10)

    def slowly(call: Call, upstream: socket.socket) -> bool:
        wire.close()
        eventually(lambda: shared.daemon.health()["components"]["delivery"]["busy"] == 0)
        upstream.sendall(success({"message_id": 1}))
        finished.append(True)
        with shared.api.changed:
            shared.api.changed.notify_all()
        return True

    shared.api.script("sendMessage", slowly)
    body = b'{"chat_id":5,"text":"hang up"}'
    head = (
        f"POST /send HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {shared.daemon.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    wire.sendall(head.encode() + body)
    shared.api.wait_until(lambda: bool(finished))
    assert len(shared.api.of("sendMessage")) == before + 1
    assert shared.daemon.request("POST", "/send", {"chat_id": 5, "text": "x"}).status == 200


# -- the API's manners --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "key", "body", "status", "code"),
    [
        ("GET", "/nowhere", None, None, 404, "NOT_FOUND"),
        ("GET", "/send", None, None, 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/health", "", None, 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/health", "", None, 401, "UNAUTHORIZED"),
        ("GET", "/subscriptions", "0" * 64, None, 401, "UNAUTHORIZED"),
        ("POST", "/send", None, b"x" * 65_537, 413, "BODY_TOO_LARGE"),
        ("POST", "/send", None, b"[" * 20_000, 400, "INVALID_REQUEST"),
        ("POST", "/send", None, b'{"chat_id":1e3,"text":"x"}', 400, "INVALID_REQUEST"),
        ("POST", "/send", None, b'{"chat_id":1,"text":"x","parse_mode":"HTML"}', 400, "INVALID_REQUEST"),
        ("POST", "/send", None, b'{"chat_id":1,"text":"\\ud83d"}', 400, "INVALID_REQUEST"),
        ("DELETE", "/subscriptions/" + "9" * 5000, None, None, 404, "NOT_FOUND"),
    ],
)
def test_refusals(
    shared: Gateway, method: str, path: str, key: str | None, body: bytes | None, status: int, code: str
) -> None:
    reply = shared.daemon.request(method, path, key=key, body=body)
    assert reply.status == status
    assert reply.json["ok"] is False
    assert reply.json["error"]["code"] == code
    assert reply.headers["content-type"].startswith("application/json")
    assert reply.headers["cache-control"] == "no-store"
    assert ("www-authenticate" in reply.headers) is (status == 401)
    assert ("allow" in reply.headers) is (status == 405)


def test_files_are_private_and_hold_no_secret(shared: Gateway) -> None:
    for path in Path(shared.daemon.state).iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
        for secret in (shared.daemon.token, shared.daemon.token.partition(":")[2], shared.daemon.key):
            assert secret.encode() not in path.read_bytes(), path
