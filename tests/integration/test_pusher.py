"""The tests' Telegram pushes as the real one does: against a webhook that answers as it is told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request as Question
from urllib.request import urlopen

import pytest

from tests.support.bot_api import BotApi
from tests.support.daemon import PATIENCE, TOKEN
from tests.support.http_server import HttpServer, Request, response
from tests.support.pusher import queue_of

URL = "https://bot.example/hook"
SECRET = "a-secret-of-the-webhook"


class Webhook(HttpServer):
    """Records the calls, and answers by a policy: bytes, or None for a closed connection."""

    def __init__(self) -> None:
        self.calls: list[Request] = []
        self.policy: Callable[[int], bytes | None] = lambda update_id: response(200)
        super().__init__()

    def respond(self, request: Request, wire: socket.socket) -> bool:
        update_id = json.loads(request.body)["update_id"]
        with self.changed:
            self.calls.append(request)
            self.changed.notify_all()
        answer = self.policy(update_id)
        if answer is not None:
            wire.sendall(answer)
        return answer is not None

    def ids(self) -> list[int]:
        with self.changed:
            return [json.loads(call.body)["update_id"] for call in self.calls]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as server:
        yield server


@pytest.fixture
def api(webhook: Webhook) -> Iterator[BotApi]:
    with BotApi() as server:
        server.pusher.route = lambda: webhook.url
        yield server


def ask(api: BotApi, method: str, **arguments: object) -> Any:
    body = json.dumps(arguments).encode()
    question = Question(f"{api.url}/bot{TOKEN}/{method}", body, {"Content-Type": "application/json"})
    with urlopen(question, timeout=PATIENCE) as answer:
        return json.load(answer)["result"]


def set_webhook(api: BotApi, **more: object) -> None:
    assert ask(api, "setWebhook", url=URL, secret_token=SECRET, **more) is True


@contextmanager
def held(webhook: Webhook) -> Iterator[threading.Event]:
    """Nothing is answered before the event, which is set at the end in any case."""
    go = threading.Event()

    def policy(update_id: int) -> bytes:
        assert go.wait(PATIENCE)
        return response(200)

    webhook.policy = policy
    try:
        yield go
    finally:
        go.set()


def test_what_waited_and_what_comes_is_pushed_as_it_is(api: BotApi, webhook: Webhook) -> None:
    first, text = api.message(1, "before")
    set_webhook(api)
    second, _ = api.message(1, "after")
    api.pusher.wait_for(first, second)
    assert webhook.ids() == [first, second]
    call = webhook.calls[0]
    assert call.body == b'{"update_id":%d,"message":%b}' % (first, text)
    assert (call.method, call.target) == ("POST", "/hook")
    assert call.headers["x-telegram-bot-api-secret-token"] == SECRET
    assert ask(api, "getWebhookInfo")["pending_update_count"] == 0


def test_a_chat_waits_for_itself_and_not_for_others(api: BotApi, webhook: Webhook) -> None:
    with held(webhook) as go:
        set_webhook(api, max_connections=3)
        ids = [api.message(chat, f"{number}")[0] for number in range(2) for chat in (1, 2, 3, 4)]
        webhook.wait_until(lambda: len(webhook.calls) == 3)
        assert sorted(webhook.ids()) == ids[:3]
        go.set()
        api.pusher.wait_for(*ids)
    assert api.pusher.most_in_flight == 3
    for chat in range(4):
        assert [number for number in webhook.ids() if number in ids[chat::4]] == ids[chat::4]


def test_what_is_not_taken_is_repeated_later_and_later(api: BotApi, webhook: Webhook) -> None:
    answers = [response(500), response(503, b"", "Retry-After: 7"), None, response(404), response(204)]
    webhook.policy = lambda update_id: answers.pop(0)
    set_webhook(api)
    update_id, _ = api.message(1, "Hello")
    api.pusher.wait_for(update_id)
    pushes = api.pusher.of(update_id)
    assert [push.status for push in pushes] == [500, 503, None, 404, 204]
    assert [push.wait for push in pushes] == [1, 7, 2, 4, None]
    assert ask(api, "getWebhookInfo")["last_error_message"] == "Wrong response from the webhook: 404"


def test_a_webhook_that_is_set_again_changes_nothing(api: BotApi, webhook: Webhook) -> None:
    """Neither what is under way nor what waits to be repeated."""
    answers = [500, 500, 200]
    webhook.policy = lambda update_id: response(answers.pop(0))
    set_webhook(api)
    update_id, _ = api.message(1, "Hello")
    api.pusher.wait_for_pushes(1, 500)
    set_webhook(api)
    api.pusher.wait_for(update_id)
    assert [push.wait for push in api.pusher.of(update_id)] == [1, 2, None]
    assert ask(api, "getWebhookInfo")["last_error_message"] == "Wrong response from the webhook: 500"


def test_what_is_not_taken_holds_up_its_chat_only(api: BotApi, webhook: Webhook) -> None:
    set_webhook(api)
    bad = api.queue.next_id
    webhook.policy = lambda update_id: response(500 if update_id == bad else 200)
    blocked = [api.message(1, "one")[0], api.message(1, "two")[0]]
    free = api.message(2, "elsewhere")[0]
    api.pusher.wait_for(free)
    api.pusher.wait_for_pushes(3, 500)
    assert set(webhook.ids()) == {bad, free}
    assert ask(api, "getWebhookInfo")["pending_update_count"] == 2
    webhook.policy = lambda update_id: response(200)
    api.pusher.wait_for(*blocked)


def test_what_was_under_way_at_a_delete_is_polled(api: BotApi, webhook: Webhook) -> None:
    with held(webhook):
        set_webhook(api)
        update_id, _ = api.message(1, "Hello")
        webhook.wait_until(lambda: len(webhook.calls) == 1)
        assert ask(api, "deleteWebhook") is True
    assert [update["update_id"] for update in ask(api, "getUpdates")] == [update_id]
    assert api.pusher.confirmed == set()


def test_each_update_is_in_the_queue_of_its_chat_or_user() -> None:
    chat, user = b'"chat":{"id":5}', b'"from":{"id":6}'
    message = b'{"update_id":1,"message":{%b,%b}}' % (user, chat)
    edited = b'{"update_id":2,"edited_message":{%b}}' % chat
    pressed = b'{"update_id":3,"callback_query":{"id":"9",%b,"message":{%b}}}' % (user, chat)
    assert queue_of(message) == queue_of(edited) == 5
    assert queue_of(pressed) == ("callback_query", 6)
