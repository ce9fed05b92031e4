"""Names that hang, lie, move or do not exist: the real daemon over the system's own resolver."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bot_api import BotApi, hang_up
from tests.support.certificates import Authority
from tests.support.gateway import CHAT, Gateway, eventually, gateway
from tests.support.lab import FULL, full_only
from tests.support.name_server import BROKEN, SILENT, NameServer, why_not
from tests.support.oracle import Footprint, Oracle
from tests.support.receiver import CallbackReceiver

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"names cannot be scripted: {why_not()}")

HANGING = 20
AT_ONCE = 5.0
"""Seconds, on a machine that is busy with other tests, for what takes no time; no look-up hangs so short."""
ELSEWHERE = CHAT + 1


@pytest.fixture
def names() -> Iterator[NameServer]:
    with NameServer() as server:
        yield server


@pytest.fixture
def named(names: NameServer, tmp_path: Path) -> Iterator[Gateway]:
    """A daemon that asks ``names``, not yet started."""
    with gateway(tmp_path) as three:
        three.daemon.program = names.within(three.daemon.program)
        yield three


def subscribe(oracle: Oracle, host: str, path: str, chat_id: int = CHAT) -> int:
    """Subscribe a path of the receiver under another name."""
    three = oracle.gateway
    subscription = three.daemon.subscribe(chat_id, f"http://{host}:{three.receiver.port}{path}")
    oracle.answered(subscription, path, chat_id)
    return subscription


def in_flight(three: Gateway) -> int:
    ((count,),) = three.query("SELECT count(*) FROM deliveries WHERE state = 'IN_FLIGHT'")
    return int(count)


def errors(three: Gateway) -> list[str]:
    """What the last attempts of the jobs that are there came to."""
    return [error for (error,) in three.query("SELECT last_error FROM deliveries") if error is not None]


def quickest(three: Gateway, method: str, path: str, document: object = None) -> float:
    """Seconds that the quickest of three requests took: the others may have waited for the machine."""
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert three.daemon.request(method, path, document).status == 200
        took.append(time.monotonic() - began)
    return min(took)


def subscribe_hanging_and_healthy(oracle: Oracle, names: NameServer) -> tuple[list[str], list[str]]:
    """Lanes whose names hang, and behind them some that are healthy; the hosts and the healthy paths."""
    hanging = [f"hanging-{number}.example" for number in range(HANGING)]
    names.table.update(dict.fromkeys(hanging, SILENT))
    for number, host in enumerate(hanging):
        subscribe(oracle, host, f"/hanging-{number}", ELSEWHERE)
    names.table["healthy.example"] = ["127.0.0.1"]
    healthy = ["/by-name", "/by-address", "/localhost"]
    for host, path in zip(("healthy.example", "127.0.0.1", "localhost"), healthy, strict=True):
        subscribe(oracle, host, path)
    return hanging, healthy


@pytest.mark.report("H16")
@pytest.mark.report("H2")
def test_names_that_hang_delay_nobody(named: Gateway, names: NameServer) -> None:
    """
    Twenty at once, with four workers, and none of the lanes known to be sick: no message of another lane is
    late, not even the first; and the API answers.
    """
    oracle = Oracle(named)
    named.start()
    hanging, healthy = subscribe_hanging_and_healthy(oracle, names)
    named.api.wait_until(lambda: named.api.open_polls == 1)
    named.api.withhold = True
    oracle.message("for the hanging", ELSEWHERE)
    late: list[float] = []
    for round_number in range(25):
        oracle.message(f"round {round_number}")
        began = time.monotonic()
        named.api.withhold = False
        for path in healthy:
            named.receiver.wait_for(round_number + 1, path=path)
            late.append(time.monotonic() - began)
        if round_number == 0:
            names.wait_for(*hanging)
    print(f"with {HANGING} names hanging: first {max(late[:3]):.3f} s, later at most {max(late[3:]):.3f} s")
    eventually(lambda: in_flight(named) == HANGING)
    # A hung name's own deadline is 10 s; on an idle machine none of these is near a second.
    assert max(late) < AT_ONCE
    assert statistics.median(late) < 1
    assert quickest(named, "GET", "/health") < 0.1
    assert named.daemon.health()["components"]["delivery"]["busy"] <= 4
    for path, document in (
        ("/send", {"chat_id": CHAT, "text": "x"}),
        ("/subscribe", {"chat_id": CHAT + 2, "callback_url": f"{named.receiver.url}/more"}),
    ):
        assert quickest(named, "POST", path, document) < 1

    named.daemon.kill()
    oracle.check()


@full_only
@pytest.mark.report("H16")
def test_look_ups_that_hang_hold_up_no_stop(named: Gateway, names: NameServer) -> None:
    """The attempts have ended at their deadline; their threads go on, and nobody waits for them."""
    named.daemon.arguments = ("--retry-schedule", "1h")
    oracle = Oracle(named)
    named.start()
    hanging, _ = subscribe_hanging_and_healthy(oracle, names)
    threads = Footprint.of(named.daemon.process.pid).threads
    oracle.message("to all", ELSEWHERE)
    names.wait_for(*hanging)
    eventually(lambda: errors(named) == ["timeout after 10 s"] * HANGING)
    assert in_flight(named) == 0
    oracle.check()
    assert Footprint.of(named.daemon.process.pid).threads >= threads + HANGING
    began = time.monotonic()
    assert named.daemon.stop() == 0
    assert time.monotonic() - began < AT_ONCE


@full_only
@pytest.mark.report("B6")
def test_names_that_come_back_are_called(named: Gateway, names: NameServer) -> None:
    """Nobody restarts anything; and the threads that hung are gone."""
    named.daemon.arguments = ("--retry-schedule", "1s,1s,1s,1s,1s,1s")
    names.options("timeout:5 attempts:2")
    oracle = Oracle(named)
    named.start()
    hanging, _ = subscribe_hanging_and_healthy(oracle, names)
    oracle.message("before")
    oracle.settle()
    oracle.base_line()
    oracle.message("to all", ELSEWHERE)
    names.wait_for(*hanging)
    eventually(lambda: in_flight(named) <= HANGING // 2)
    names.table.update(dict.fromkeys(hanging, ["127.0.0.1"]))
    assert oracle.settle(90) == []
    oracle.check_base_line()


@pytest.mark.report("J4")
def test_a_name_that_moves(named: Gateway, names: NameServer) -> None:
    """From one receiver to another, to nowhere, and back: looked up anew each time, and nothing lost."""
    named.daemon.arguments = ("--retry-schedule", ",".join(["1s"] * 30))
    oracle = Oracle(named)
    reached: list[str] = []

    def take_note_of(receiver: CallbackReceiver) -> None:
        def note(request: object) -> bytes:
            reached.append(receiver.host)
            # Closed, so that the next one has to ask for the name.
            return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

        receiver.policy = note

    with CallbackReceiver(host="127.0.0.2", port=named.receiver.port) as second:
        second.share(named.receiver)
        take_note_of(named.receiver)
        take_note_of(second)
        named.start()
        names.table["moving.example"] = ["127.0.0.1"]
        subscribe(oracle, "moving.example", "/moving")
        for addresses, receiver in (
            (["127.0.0.1"], "127.0.0.1"),
            (["127.0.0.2"], "127.0.0.2"),
            # Nobody is there, or no road leads there: the next address is tried in the same attempt.
            (["127.0.0.9", "::1", "2001:db8::1", "127.0.0.1"], "127.0.0.1"),
        ):
            names.table["moving.example"] = addresses
            oracle.message(f"to {receiver}")
            assert oracle.settle() == []
            assert reached[-1] == receiver
        assert errors(named) == []

        del names.table["moving.example"]
        oracle.message("to nowhere")
        eventually(lambda: errors(named) == ["name not found"])
        names.table["moving.example"] = BROKEN
        eventually(lambda: errors(named) == ["name look-up failed"])
        if FULL:
            # It exists, and leads nowhere.
            names.table["moving.example"] = []
            eventually(lambda: errors(named) == ["name not found"])
        names.table["moving.example"] = ["127.0.0.2"]
        assert oracle.settle() == []
        assert reached[-1] == "127.0.0.2"
        oracle.base_line()
        oracle.message("once more")
        assert oracle.settle() == []
        oracle.check_base_line()


@pytest.mark.report("B5")
@pytest.mark.report("B6")
def test_the_name_of_the_bot_api(names: NameServer, tmp_path: Path) -> None:
    """It does not exist, cannot be told, is there, hangs: the API stays up, and polling begins by itself."""
    authority = Authority()
    trusted = ("--ca-file", str(authority.write(tmp_path / "ca.pem")))
    state = tmp_path / "state"
    state.mkdir()
    with gateway(state, *trusted) as three, BotApi(tls=authority.context("api.example")) as api:
        three.api.close()
        three.api = api
        three.daemon.api_url = f"https://api.example:{api.port}"
        three.daemon.program = names.within(three.daemon.program)
        oracle = Oracle(three)

        three.start()
        eventually(lambda: ingestion(three) == ("backing_off", "network"))
        assert three.daemon.ask_health().status == 200
        oracle.subscribe()
        refused_at_once(three)
        names.table["api.example"] = BROKEN
        names.wait_for("api.example", times=6)
        refused_at_once(three)

        names.table["api.example"] = ["127.0.0.9", "::1", "127.0.0.1"]
        oracle.message("through the name")
        assert oracle.settle() == []
        eventually(lambda: ingestion(three) == ("polling", None))
        request = api.of("getUpdates")[0].request
        assert request.headers["host"] == f"api.example:{api.port}"
        assert three.daemon.request("POST", "/send", {"chat_id": CHAT, "text": "x"}).status == 200

        names.table["api.example"] = SILENT
        asked = names.asked["api.example"]
        api.fallback["getUpdates"] = hang_up
        oracle.message("ends the held poll")
        names.wait_for("api.example", times=asked + 1)
        assert quickest(three, "GET", "/health") < 0.1
        began = time.monotonic()
        assert three.daemon.stop() == 0, "a look-up that hangs holds up no stop"
        assert time.monotonic() - began < AT_ONCE
        oracle.check()


def ingestion(three: Gateway) -> tuple[str, str | None]:
    found = three.daemon.health()["components"]["ingestion"]
    return found["state"], found["reason"]


def refused_at_once(three: Gateway) -> None:
    began = time.monotonic()
    reply = three.daemon.request("POST", "/send", {"chat_id": CHAT, "text": "x"})
    assert (reply.status, reply.json["error"]["code"]) == (502, "UPSTREAM_UNAVAILABLE")
    assert time.monotonic() - began < AT_ONCE


@full_only
@pytest.mark.report("F1")
def test_a_send_whose_name_hangs(named: Gateway, names: NameServer) -> None:
    """It ends at its deadline, and the next one works once the name does."""
    authority = Authority()
    named.daemon.arguments = ("--ca-file", str(authority.write(named.daemon.state.parent / "ca.pem")))
    names.table["api.example"] = SILENT
    with BotApi(tls=authority.context("api.example")) as api:
        named.daemon.api_url = f"https://api.example:{api.port}"
        named.start()
        began = time.monotonic()
        reply = named.daemon.request("POST", "/send", {"chat_id": CHAT, "text": "x"})
        assert (reply.status, reply.json["error"]["code"]) == (504, "UPSTREAM_TIMEOUT")
        assert 19 < time.monotonic() - began < 20 + AT_ONCE
        names.table["api.example"] = ["127.0.0.1"]
        eventually(
            lambda: named.daemon.request("POST", "/send", {"chat_id": CHAT, "text": "x"}).status == 200, 60
        )
        assert len(api.of("sendMessage")) == 1
        eventually(lambda: ingestion(named)[0] == "polling", 90)
