"""What the scenarios of failing storage share: how a trouble shows, what goes on, when it is over."""

from __future__ import annotations

from typing import Any

from tests.support.daemon import Reply
from tests.support.gateway import CHAT, Gateway, eventually

SHOWN = 2.0
"""Seconds in which a trouble shows (contract 2.3)."""
RECOVERY = 10.0
"""Seconds in which all goes on when its cause has gone."""


def database_state(gateway: Gateway) -> str:
    state: str = gateway.daemon.health()["components"]["database"]["state"]
    return state


def shows(gateway: Gateway, state: str) -> float:
    """Wait until the health report says so of the database, 2 s at most; how long that took."""
    return eventually(lambda: database_state(gateway) == state, SHOWN)


def works_again(gateway: Gateway, seconds: float = RECOVERY) -> Any:
    """Wait until the health report is all well; the report."""
    eventually(lambda: bool(gateway.daemon.health()["status"] == "ok"), seconds)
    return gateway.daemon.health()


def ask_to_subscribe(gateway: Gateway, path: str, chat_id: int = CHAT) -> Reply:
    wanted = {"chat_id": chat_id, "callback_url": gateway.receiver.url + path}
    return gateway.daemon.request("POST", "/subscribe", wanted)


def refused_write(gateway: Gateway) -> str:
    """Ask for a write, which must be refused with 503; the code that says why."""
    reply = ask_to_subscribe(gateway, "/refused")
    assert reply.status == 503, reply
    code: str = reply.json["error"]["code"]
    return code


def check_reads(gateway: Gateway) -> None:
    """What needs no write is done."""
    assert gateway.daemon.request("GET", "/subscriptions").status == 200
    sent = gateway.daemon.request("POST", "/send", {"chat_id": CHAT, "text": "while it lasts"})
    assert sent.status == 200, sent
