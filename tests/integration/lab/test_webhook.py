"""Pushed to as Telegram pushes: many chats at once, no worker, a stop amid a burst, a standstill."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pytest import TempPathFactory as Factory

from tests.support.clock_shift import HOUR, YEAR, ClockShift, needs_shifted_clock
from tests.support.daemon import PATIENCE
from tests.support.gateway import CHAT, WEBHOOK_URL, Gateway, eventually
from tests.support.held import Held
from tests.support.lab import FULL, full_only, repetitions
from tests.support.lame_daemon import Lameness, lame_worker
from tests.support.oracle import Oracle
from tests.support.pusher import SECRET, Push
from tests.support.wire import connect, read_answers, read_to_end


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)


def test_many_chats_at_once(gateway: Gateway, oracle: Oracle) -> None:
    """As many calls at once as the webhook allows; each chat in order, nothing asked for twice."""
    gateway.start_with_webhook()
    pusher, chats = gateway.api.pusher, 60
    for number in range(12):
        oracle.subscribe(f"/{number}", CHAT + number)
    pusher.pause()
    for number in range(repetitions(300, 6000)):
        oracle.message(f"{number}", CHAT + number % chats)
    pusher.go_on()
    assert oracle.settle() == []
    pusher.wait_for(*(sent.update_id for sent in oracle.sent))
    assert pusher.most_in_flight == pusher.max_connections
    assert set(pusher.statuses()) == {200}
    assert len(pusher.pushes) == len(oracle.sent)
    assert gateway.api.of("getUpdates") == []
    eventually(lambda: gateway.daemon.health()["journal"]["pending"] == 0)
    report = gateway.daemon.health()
    assert (report["status"], report["components"]["ingestion"]["mode"]) == ("ok", "webhook")


def test_what_telegram_holds_from_before_a_stop(gateway: Gateway, oracle: Oracle) -> None:
    """While the daemon is down Telegram keeps the updates and the webhook; an idle stop takes no second."""
    gateway.start_with_webhook()
    oracle.subscribe()
    oracle.message("before")
    assert oracle.settle() == []
    began = time.monotonic()
    assert gateway.daemon.stop() == 0
    assert time.monotonic() - began < 1
    assert gateway.api.webhook == WEBHOOK_URL
    oracle.messages(3, "while it is down")
    gateway.api.wait_until(lambda: gateway.api.pusher.last_error is not None)
    gateway.start_with_webhook()
    assert oracle.settle() == []
    assert {call.arguments["secret_token"] for call in gateway.api.of("setWebhook")} == {
        gateway.api.pusher.secret
    }


@pytest.mark.parametrize("lameness", ["hangs", "raises"] if FULL else ["raises"])
def test_acceptance_does_without_the_worker(gateway: Gateway, oracle: Oracle, lameness: Lameness) -> None:
    """It is answered 200 all the same, what waits is shown, and the next start folds it."""
    gateway.daemon.may_show_tracebacks = lameness == "raises"
    with lame_worker(gateway.daemon, lameness):
        gateway.start_with_webhook()
        oracle.subscribe()
        oracle.messages(5)
        gateway.api.pusher.wait_for(*(sent.update_id for sent in oracle.sent))
        eventually(lambda: gateway.daemon.health()["journal"]["pending"] == 5)
        eventually(lambda: gateway.daemon.health()["journal"]["oldest_pending_age_s"] >= 1)
        state = gateway.daemon.health()["components"]["journal"]["state"]
        assert state == ("stopped" if lameness == "raises" else "ok")
        assert gateway.receiver.on(None) == []
        assert gateway.daemon.stop() == 0
    seen = len(gateway.daemon.output.lines)
    gateway.start_with_webhook()
    gateway.daemon.output.wait_for("5 updates of the journal wait to be folded", after=seen)
    assert oracle.settle() == []


@needs_shifted_clock
def test_a_clock_that_is_set_between_two(gateway: Gateway, oracle: Oracle, tmp_path_factory: Factory) -> None:
    """The order of acceptance stays the order of folding, and no clock raises the epoch by itself."""
    clock = ClockShift(tmp_path_factory.mktemp("clock") / "shift")
    gateway.daemon.environment = clock.environment
    with lame_worker(gateway.daemon, "hangs"):
        gateway.start_with_webhook()
        oracle.subscribe()
        for shift in (0, -YEAR, HOUR, 0, YEAR, -HOUR):
            clock.set(shift)
            oracle.messages(3, f"by {shift}")
            gateway.api.pusher.wait_for(*(sent.update_id for sent in oracle.sent))
        assert gateway.daemon.stop() == 0
    clock.set(0)
    entries = gateway.query("SELECT received_at, update_id, epoch FROM journal ORDER BY received_at, id")
    assert [entry[1:] for entry in entries] == [(sent.update_id, 0) for sent in oracle.sent]
    gateway.start_with_webhook()
    assert oracle.settle() == []
    clock.tidy(gateway.daemon.process.pid)


def test_the_route_takes_no_turn(gateway: Gateway, oracle: Oracle) -> None:
    """While every worker waits for Telegram and the next caller is refused, updates are taken."""
    gateway.daemon.arguments = ("--http-workers", "1", "--http-queue", "0")
    gateway.start_with_webhook()
    oracle.subscribe()
    held = Held(gateway)
    gateway.api.fallback["sendMessage"] = held
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(gateway.daemon.request, "POST", "/send", {"chat_id": CHAT, "text": "Hello"})
        gateway.api.wait_until(lambda: held.under_way == 1)
        assert gateway.daemon.request("POST", "/send", {"chat_id": CHAT, "text": "too"}).status == 503
        oracle.messages(3)
        assert oracle.settle() == []
        held.let_go()
        assert sending.result().status == 200


def test_a_queue_that_is_full(gateway: Gateway, oracle: Oracle) -> None:
    """Acceptance goes on, the journal keeps what does not fit, and it moves up as callbacks are taken."""
    gateway.daemon.arguments = ("--max-jobs", "5")
    gateway.receiver.policy = lambda callback: None
    gateway.start_with_webhook()
    oracle.subscribe()
    oracle.messages(30)
    gateway.api.pusher.wait_for(*(sent.update_id for sent in oracle.sent))
    eventually(lambda: gateway.query("SELECT count(*) FROM deliveries") == [(5,)])
    eventually(lambda: gateway.daemon.health()["components"]["journal"]["state"] == "backing_off")
    report = gateway.daemon.health()
    assert (report["journal"]["pending"], report["journal"]["failed"]) == (25, 0)
    assert report["status"] == "degraded"
    assert oracle.check() == []
    gateway.receiver.policy = lambda callback: 200
    for held in gateway.receiver.on(None):
        held.answer()
    assert oracle.settle() == []
    eventually(lambda: gateway.daemon.health()["status"] == "ok")


def test_a_stop_amid_a_burst(gateway: Gateway, oracle: Oracle) -> None:
    """What was answered 200 is in the journal, the rest is repeated; no callback comes twice."""
    gateway.start_with_webhook()
    pusher = gateway.api.pusher
    for number in range(4):
        oracle.subscribe(f"/{number}", CHAT + number)
    for stop in range(repetitions(1, 20)):
        before = len(pusher.confirmed)

        def heard(push: Push, last: int = before + 100) -> None:
            if push.status == 200 and len(pusher.confirmed) == last:
                gateway.daemon.send(signal.SIGTERM)

        pusher.heard = heard
        pusher.pause()
        for number in range(600):
            oracle.message(f"stop {stop}, message {number}", CHAT + number % 40)
        pusher.go_on()
        pusher.wait_for_count(before + 100)
        began = time.monotonic()
        assert gateway.daemon.wait() == 0
        assert time.monotonic() - began < 5
        assert len(pusher.confirmed) < before + 600, "the burst was over before the stop"
        assert oracle.check() == []
        gateway.start_with_webhook()
    assert oracle.settle() == []
    pusher.wait_for(*(sent.update_id for sent in oracle.sent))
    ((count,),) = gateway.query("SELECT count(*) FROM journal")
    assert count == len(oracle.sent)


@full_only
@pytest.mark.parametrize(("seconds", "status"), [(8, 200), (40, 408)])
def test_a_machine_that_stands_still_over_an_upload(
    gateway: Gateway, oracle: Oracle, seconds: int, status: int
) -> None:
    """Over the 5 s without progress it is held against nobody; over the 30 s in all, Telegram repeats it."""
    gateway.start_with_webhook()
    oracle.subscribe()
    pusher = gateway.api.pusher
    pusher.pause()
    body = b'{"update_id":%d,"message":%b}' % (gateway.api.queue.next_id, oracle.message("x" * 500_000))
    head = (
        f"POST /telegram/webhook HTTP/1.1\r\nHost: bot.example\r\n{SECRET}: {pusher.secret}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    with connect(gateway.daemon) as peer:
        peer.sendall(head + body[:100_000])
        time.sleep(0.5)
        gateway.daemon.send(signal.SIGSTOP)
        time.sleep(seconds)
        gateway.daemon.send(signal.SIGCONT)
        peer.sendall(body[100_000:])
        peer.settimeout(PATIENCE)
        assert [answer.status for answer in read_answers(read_to_end(peer))] == [status]
    pusher.go_on()
    assert oracle.settle() == []
    assert gateway.query("SELECT count(*) FROM journal") == [(1,)]
