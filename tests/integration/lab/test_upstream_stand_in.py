"""The Bot API of these tests itself: that it does what the real one does, or the rest would show little."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.support import bot_api
from tests.support import bot_api_faults as faults
from tests.support.bot_api import OTHER_POLL, SET_WEBHOOK, WEBHOOK_ACTIVE, BotApi
from tests.support.daemon import TOKEN
from tests.support.gateway import CHAT

DELAY = 0.5


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[BotApi]:
    assert bot_api.REPEATED_CONFLICT_DELAY == 3.0
    monkeypatch.setattr(bot_api, "REPEATED_CONFLICT_DELAY", DELAY)
    with BotApi() as server:
        yield server


def call(api: BotApi, method: str, *, token: str = TOKEN, **arguments: object) -> tuple[int, Any, Any]:
    """HTTP status, envelope, headers."""
    try:
        with urlopen(f"{api.url}/bot{token}/{method}?{urlencode(arguments)}", timeout=30) as answer:
            return answer.status, json.loads(answer.read()), answer.headers
    except HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read()), refused.headers


def ids(api: BotApi, **arguments: Any) -> list[int]:
    _, envelope, _ = call(api, "getUpdates", **arguments)
    return [update["update_id"] for update in envelope["result"]]


def fill(api: BotApi, count: int) -> None:
    for number in range(count):
        api.message(CHAT, f"message {number}")


def test_offsets_confirm(api: BotApi) -> None:
    fill(api, 5)
    assert ids(api) == [1000, 1001, 1002, 1003, 1004]
    assert ids(api, offset=1002) == [1002, 1003, 1004]
    assert ids(api) == [1002, 1003, 1004], "what was confirmed is forgotten"
    assert ids(api, offset=-1) == [1004]
    assert ids(api) == [1004], "so is what a negative offset left out"


def test_offsets_in_the_future(api: BotApi) -> None:
    """Up to ten beyond the next id they swallow everything; further out they are taken for none."""
    fill(api, 2)
    assert ids(api, offset=1002 + 11) == [1000, 1001]
    assert ids(api, offset=1002 + 10) == []
    assert ids(api) == []


def test_ids_that_restart(api: BotApi) -> None:
    api.queue.restart_ids(500)
    fill(api, 1)
    assert ids(api, offset=1000) == [500]


@pytest.mark.parametrize(("limit", "count"), [(0, 1), (-5, 1), (7, 7), (100, 100), (101, 100), ("x", 1)])
def test_limits_are_cut(api: BotApi, limit: object, count: int) -> None:
    fill(api, 120)
    assert len(ids(api, limit=limit)) == count


def test_what_is_allowed_counts_when_it_is_made(api: BotApi) -> None:
    """And is remembered until another list is given."""
    assert api.arrive("edited_message", b"{}") == 1000
    assert api.arrive("chat_member", b"{}") is None
    assert ids(api, allowed_updates='["message"]') == [1000]
    assert api.arrive("edited_message", b"{}") is None
    assert api.arrive("message", b"{}") == 1001
    assert ids(api) == [1000, 1001], "what was made before still comes"
    assert ids(api, allowed_updates="[]", offset=1002) == []
    assert api.arrive("callback_query", b"{}") == 1002


def test_the_older_of_two_polls_ends(api: BotApi) -> None:
    """A second conflict soon after is answered late; a poll that does not wait ends no other."""
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(call, api, "getUpdates", timeout=50)
        api.wait_until(lambda: api.open_polls == 1)
        assert call(api, "getUpdates", timeout=0)[0] == 200
        second = pool.submit(call, api, "getUpdates", timeout=50)
        assert first.result()[:2] == (409, {"ok": False, "error_code": 409, "description": OTHER_POLL})
        began = time.monotonic()
        third = pool.submit(call, api, "getUpdates", timeout=50)
        assert second.result()[0] == 409
        assert time.monotonic() - began > DELAY - 0.1
        fill(api, 1)
        assert third.result()[0] == 200


def test_a_webhook_excludes_polls(api: BotApi) -> None:
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(call, api, "getUpdates", timeout=50)
        api.wait_until(lambda: api.open_polls == 1)
        call(api, "setWebhook", url="https://h/")
        assert held.result()[1]["description"] == SET_WEBHOOK
    assert call(api, "getWebhookInfo")[1]["result"]["url"] == "https://h/"
    status, envelope, _ = call(api, "getUpdates")
    assert (status, envelope["description"]) == (409, WEBHOOK_ACTIVE)
    call(api, "deleteWebhook")
    assert call(api, "getUpdates")[0] == 200


def test_tokens(api: BotApi) -> None:
    assert call(api, "getMe", token="123456789:AAAAAAAAAAAAAAAA")[0] == 401
    assert call(api, "getMe", token="none")[0] == 404
    assert call(api, "makeCoffee")[0] == 404


def test_refusals(api: BotApi) -> None:
    api.script("sendMessage", faults.too_many_requests(7), faults.upgraded(-1007), faults.restarting())
    status, envelope, headers = call(api, "sendMessage")
    assert (status, envelope["parameters"], headers["Retry-After"]) == (429, {"retry_after": 7}, "7")
    status, envelope, _ = call(api, "sendMessage")
    assert (status, envelope["parameters"]) == (400, {"migrate_to_chat_id": -1007})
    assert call(api, "sendMessage")[0] == 500
