"""
The daemon whose updates are pushed, and its change from polling and back (contract 8): what it says to
Telegram and of itself, and that no change loses, doubles or reorders anything, whenever it is killed.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import define, field

from tests.support.barrier_daemon import barrier
from tests.support.bot_api import Call, failure
from tests.support.daemon import PATIENCE, TOKEN
from tests.support.gateway import CHAT, WEBHOOK, WEBHOOK_URL, Gateway, eventually
from tests.support.gateway import gateway as gateway_in
from tests.support.oracle import Oracle

Ingestion = tuple[str, str, object]


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)


def ingestion(gateway: Gateway) -> Ingestion:
    """Mode, state and reason."""
    report = gateway.daemon.health()["components"]["ingestion"]
    return report["mode"], report["state"], report["reason"]


def delete_webhook(gateway: Gateway) -> subprocess.CompletedProcess[str]:
    """The operator's command, with what it needs."""
    token = gateway.daemon.state / "token"
    token.write_text(TOKEN)
    return gateway.daemon.run("delete-webhook", "--token-file", str(token), "--api-url", gateway.api.url)


def poll(gateway: Gateway) -> None:
    """From the next start on."""
    gateway.daemon.arguments = ()


def push(gateway: Gateway) -> None:
    """From the next start on."""
    gateway.daemon.arguments = WEBHOOK


def offsets(gateway: Gateway, after: int = 0) -> list[object]:
    """What the polls since then asked for; "absent" where they named none."""
    return [call.arguments.get("offset", "absent") for call in gateway.api.of("getUpdates")[after:]]


# -- what it says --------------------------------------------------------------------------------------------


@define(eq=False)
class Held:
    """An answer of the Bot API that is given when the test says so, by what holds then."""

    answer: Callable[[Call, socket.socket], bool]
    asked: threading.Event = field(factory=threading.Event, init=False)
    _free: threading.Event = field(factory=threading.Event, init=False)

    def __call__(self, call: Call, wire: socket.socket) -> bool:
        self.asked.set()
        return self._free.wait(PATIENCE) and self.answer(call, wire)

    def wait(self) -> None:
        assert self.asked.wait(PATIENCE)

    def release(self) -> None:
        self._free.set()


def test_what_telegram_is_told(gateway: Gateway) -> None:
    """Exactly this, at each start with the same secret, and nothing at a stop."""
    held = Held(gateway.api._setWebhook)
    gateway.api.script("setWebhook", held)
    push(gateway)
    gateway.start()
    held.wait()
    assert ingestion(gateway) == ("webhook", "starting", None)
    held.release()
    gateway.api.wait_for_calls("getWebhookInfo", 1)
    eventually(lambda: ingestion(gateway) == ("webhook", "listening", None))
    assert gateway.daemon.health()["status"] == "ok"
    assert gateway.daemon.stop() == 0
    gateway.start_with_webhook()
    first, second = (call.arguments for call in gateway.api.wait_for_calls("setWebhook", 2))
    assert first == {
        "url": WEBHOOK_URL,
        "secret_token": gateway.api.pusher.secret,
        "allowed_updates": ["message"],
    }
    assert second == first
    assert len(first["secret_token"]) >= 32
    assert {call.method for call in gateway.api.calls} == {"getMe", "setWebhook", "getWebhookInfo"}
    gateway.daemon.output.wait_for(
        "listening for bot 123456789, @test_bot: the webhook is set, on host bot.ex"
    )


def test_a_webhook_that_telegram_does_not_take(gateway: Gateway) -> None:
    """Telegram's own words, once; what is pushed by an earlier webhook is taken all the same."""
    held = Held(gateway.api._setWebhook)
    gateway.api.script("setWebhook", failure(400, "Bad Request: bad webhook: no such host\n"), held)
    push(gateway)
    gateway.api.webhook = WEBHOOK_URL
    gateway.start()
    held.wait()
    assert ingestion(gateway) == ("webhook", "backing_off", "upstream")
    gateway.api.pusher.secret = gateway.daemon.webhook_secret()
    assert gateway.api.pusher.call(b'{"update_id":5}').status == 200
    held.release()
    eventually(lambda: ingestion(gateway) == ("webhook", "listening", None))
    told = [line for line in gateway.daemon.output.lines if "does not take the webhook" in line]
    assert len(told) == 1 and "no such host" in told[0]


def test_what_a_second_look_finds(gateway: Gateway, tmp_path: Path) -> None:
    """
    Another than the first, which comes right after the setting and forgives what was before.  Two daemons
    at once, for it comes some seconds later: the webhook of one is deleted, the other's cannot be called.
    """
    deleted = Held(gateway.api._getWebhookInfo)

    def first_look(call: Call, wire: socket.socket) -> bool:
        gateway.api.script("getWebhookInfo", deleted)
        return gateway.api._getWebhookInfo(call, wire)

    gateway.api.script("getWebhookInfo", first_look)
    (tmp_path / "other").mkdir()
    with gateway_in(tmp_path / "other") as other:
        route, other.api.pusher.route = other.api.pusher.route, lambda: ""
        other.api.message(CHAT, "waits")
        other.start_with_webhook()
        eventually(lambda: ingestion(other) == ("webhook", "listening", None))
        gateway.start_with_webhook()

        deleted.wait()
        gateway.api.pusher.pause()
        for text in ("these two", "wait at Telegram"):
            gateway.api.message(CHAT, text)
        done = delete_webhook(gateway)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "webhook at bot.example deleted; 2 updates wait at Telegram\n"
        deleted.release()
        eventually(lambda: ingestion(gateway) == ("webhook", "suspended", "conflict_webhook"))
        assert gateway.daemon.ask_health().status == 503
        gateway.daemon.output.wait_for("the webhook was deleted at Telegram")
        assert gateway.api.webhook == "", "it was not fought for"
        assert [call.arguments for call in gateway.api.of("deleteWebhook")] == [{}]

        eventually(lambda: ingestion(other) == ("webhook", "backing_off", "network"))
        other.daemon.output.wait_for("Telegram cannot deliver: Connection refused")
        other.api.pusher.route = route
        eventually(lambda: ingestion(other) == ("webhook", "listening", None))
        other.daemon.output.wait_for("listening again, after 1 failure")


def test_a_token_that_is_refused(gateway: Gateway) -> None:
    gateway.api.script("deleteWebhook", failure(401, "Unauthorized"))
    gateway.api.webhook = WEBHOOK_URL
    done = delete_webhook(gateway)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == "telegrammer: the webhook may not be deleted: the token is not accepted (HTTP 401)\n"
    )


def test_an_idle_daemon_stops_at_once(gateway: Gateway) -> None:
    """Also while a question is in hand."""
    held = Held(gateway.api._getWebhookInfo)
    gateway.api.script("getWebhookInfo", held)
    gateway.start_with_webhook()
    held.wait()
    began = time.monotonic()
    assert gateway.daemon.stop() == 0
    assert time.monotonic() - began < 1
    assert gateway.api.webhook == WEBHOOK_URL
    held.release()


# -- the change of the mode ----------------------------------------------------------------------------------


def test_from_polling_to_a_webhook_and_back(gateway: Gateway, oracle: Oracle) -> None:
    """With updates that wait on each side of each change, and a kill at each."""
    api, pusher = gateway.api, gateway.api.pusher
    gateway.start()
    oracle.subscribe()
    oracle.messages(2, "polled")
    assert oracle.settle() == []
    gateway.daemon.kill()
    oracle.messages(2, "waits for the webhook")

    # Killed when Telegram has set the webhook, and the daemon does not know.
    taken = threading.Event()

    def unanswered(call: Call, wire: socket.socket) -> bool:
        with api.changed:
            pusher.set(call.arguments["url"], call.arguments["secret_token"])
        taken.set()
        return False

    push(gateway)
    pusher.pause()
    api.script("setWebhook", unanswered)
    gateway.start()
    assert taken.wait(PATIENCE)
    gateway.daemon.kill()
    pusher.go_on()
    api.wait_until(lambda: pusher.last_error is not None)
    assert oracle.check() == []
    gateway.start_with_webhook()
    assert oracle.settle() == []
    oracle.messages(3, "pushed")
    assert oracle.settle() == []

    # Killed when an update is in the journal, and Telegram has not heard of it.
    pusher.wait_for(*(sent.update_id for sent in oracle.sent[2:]))
    gateway.daemon.stop()
    with barrier(gateway.daemon, "after the commit of: accept") as stand:
        gateway.start_with_webhook()
        oracle.messages(2, "waits for polling")
        stand.wait()
        gateway.daemon.kill()
    assert oracle.check() == []
    pusher.pause()
    assert gateway.query("SELECT update_id, parse_status FROM journal WHERE parse_status <> 'folded'") == [
        (oracle.sent[-2].update_id, "pending")
    ]
    assert "2 updates wait at Telegram" in delete_webhook(gateway).stdout

    # Killed when the first batch has come, and is not committed.  What was pushed was folded before it was
    # asked for, and is in it once more: Telegram was not answered.
    poll(gateway)
    seen = len(api.of("getUpdates"))
    unfolded: list[object] = []

    def first_poll(call: Call, wire: socket.socket) -> bool:
        unfolded.extend(gateway.query("SELECT id FROM journal WHERE parse_status <> 'folded'"))
        return api._getUpdates(call, wire)

    api.script("getUpdates", first_poll)
    api.withhold = True
    with barrier(gateway.daemon, "before the commit of: cursor") as stand:
        gateway.start()
        api.wait_for_calls("getUpdates", seen + 1)
        api.wait_until(lambda: gateway.query("SELECT count(*) FROM deliveries") == [(0,)])
        api.withhold = False
        stand.wait()
        gateway.daemon.kill()
    assert (unfolded, offsets(gateway, seen)) == ([], ["absent"])
    assert oracle.check() == []
    assert len(api.queue) == 2, "nothing was confirmed"

    # Killed when it is committed, and not yet confirmed.
    with barrier(gateway.daemon, "after the commit of: cursor") as stand:
        gateway.start()
        stand.wait()
        gateway.daemon.kill()
    assert offsets(gateway, seen) == ["absent", "absent"]
    assert oracle.check() == []

    gateway.start()
    oracle.messages(2, "polled again")
    assert oracle.settle() == []
    third = offsets(gateway, seen)[2]
    assert third == oracle.sent[-3].update_id + 1
    assert ingestion(gateway) == ("poll", "polling", None)
    assert [call.method for call in api.calls].count("deleteWebhook") == 1, "by the command alone"
