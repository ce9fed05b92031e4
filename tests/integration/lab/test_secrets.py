"""No secret is in anything that any process of this run has said, whatever was done to it (contract 9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bot_api import failure
from tests.support.gateway import CHAT, Gateway, eventually, gateway
from tests.support.overheard import OVERHEARD, PAYLOAD, QUERY, Leak, Overheard, Said, read
from tests.support.receiver import Callback


def _misfortunes(three: Gateway) -> None:
    """Something of everything that has a reason to be talked about."""
    three.daemon.arguments = ("--retry-schedule", "1s", "--max-jobs", "1000")

    def policy(callback: Callback) -> int:
        return 410 if callback.path == "/gone" else 200

    three.receiver.policy = policy
    three.start()
    three.api.script("getUpdates", failure(502, f"Bad Gateway for bot{three.daemon.token}"))
    for path in ("/gone", "/hook"):
        three.subscribe(path)
    three.daemon.subscribe(CHAT, f"http://127.0.0.1:1/refused?{QUERY}")
    three.api.message(CHAT, "hello")
    three.receiver.wait_for(1, path="/hook")
    three.api.script("sendMessage", failure(400, f"Bad Request: {PAYLOAD}"))
    assert three.daemon.request("POST", "/send", {"chat_id": CHAT, "text": PAYLOAD}).status == 422
    three.daemon.request("POST", f"/send?{QUERY}", {"chat_id": CHAT, "text": PAYLOAD})
    assert three.daemon.request("POST", "/send", {"chat_id": PAYLOAD, "text": ""}).status == 400
    assert three.daemon.request("GET", "/health", key="a" * 64).status == 401
    eventually(lambda: three.daemon.health()["queue"]["dead"] == 2)
    three.daemon.run("list-failed-deliveries")
    three.daemon.run("retry-delivery", "--all")
    three.daemon.run("list-keys")
    three.daemon.run("check")


@pytest.mark.last
def test_nothing_that_was_said_holds_a_secret(tmp_path: Path) -> None:
    """Of this run: of all tests, when all of them run; of a scenario of its own in any case."""
    before = len(OVERHEARD.said)
    with gateway(tmp_path) as three:
        _misfortunes(three)
    assert len(OVERHEARD.said) > before, "nothing was heard"
    assert {"token", "key", "payload", "callback query"} <= set(OVERHEARD.secrets.values())
    assert not list(OVERHEARD.leaks())


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    overheard = Overheard(file=tmp_path / "1.jsonl")
    overheard.must_not_show("key", "k" * 64)
    overheard.hear("one", f"first line\nand {'k' * 64} in the second\n")
    overheard.hear("another", "nothing\n")
    assert overheard.said[0] == Said("one", f"first line\nand {'k' * 64} in the second\n")
    assert list(overheard.leaks()) == [Leak("key", "one", 2)]
    assert list(read(tmp_path).leaks()) == list(overheard.leaks())
