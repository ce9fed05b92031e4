"""Starts that are refused, stops that are clean, and what operator and Telegram do to a running daemon."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.bot_api import Answer, BotApi, failure, hang_up, success
from tests.support.daemon import COMMAND, PATIENCE, TOKEN, TWISTD, Daemon, Reply
from tests.support.gateway import CHAT, Gateway, eventually, in_order
from tests.support.http_server import response

PROGRAMS = {"serve": (*COMMAND, "serve"), "twistd": TWISTD}
SOON = 3.5
"""Two seconds by contract 1.1, and more for a machine that is busy with other tests."""
AT_ONCE = 5.0
"""A stop that waits for nothing takes under a second (contract 1.3); what it might wait for is far longer."""


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Both ways to run the daemon."""
    return PROGRAMS[request.param]


@pytest.fixture
def api() -> Iterator[BotApi]:
    with BotApi() as server:
        yield server


def ingestion(daemon: Daemon) -> Any:
    return daemon.health()["components"]["ingestion"]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# -- stop ---------------------------------------------------------------------------------------------


@pytest.mark.report("B10")
def test_an_idle_daemon_stops_at_once_although_a_poll_is_held(running: Gateway) -> None:
    """In under a second (contract 1.3): the best of three, for other programs want the processor too."""
    took: list[float] = []
    while len(took) < 3 and min(took, default=1) >= 1:
        if took:
            running.daemon.start()
        running.api.wait_until(lambda: running.api.open_polls == 1)
        began = time.monotonic()
        assert running.daemon.stop() == 0
        took.append(time.monotonic() - began)
    assert min(took) < 1, took
    running.api.wait_until(lambda: running.api.open_polls == 0)
    assert running.api.most_open_polls == 1
    assert sorted(contents(running.daemon.state)) == ["telegrammer.db"], "the files of a clean close"


def test_under_twistd(gateway: Gateway) -> None:
    """The same product; a signalled stop has the status that Twisted gives it."""
    gateway.daemon.program = TWISTD
    gateway.start()
    gateway.subscribe()
    _, body = gateway.api.message(CHAT, "hello")
    (callback,) = gateway.receiver.wait_for(1)
    assert callback.body == body
    gateway.api.wait_until(lambda: gateway.api.open_polls == 1)
    assert gateway.daemon.stop() == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_changes_nothing(running: Gateway, number: signal.Signals) -> None:
    """The callback in flight ends well, its job is gone; what waits behind it is not begun."""
    running.receiver.policy = lambda callback: None
    running.subscribe()
    running.api.message(CHAT, "in flight")
    running.api.message(CHAT, "waits")
    (callback,) = running.receiver.wait_for(1)
    eventually(lambda: running.query("SELECT count(*) FROM deliveries") == [(2,)])
    running.daemon.send(number)
    eventually(lambda: refuses_connections(running.daemon))
    running.daemon.send(signal.SIGTERM)
    running.daemon.send(signal.SIGINT)
    assert running.daemon.process.poll() is None
    callback.answer(200)
    assert running.daemon.wait() == 0
    assert running.query("SELECT state, attempt_count FROM deliveries") == [("PENDING", 0)]
    assert len(running.receiver.arrived) == 1


def test_past_its_budget_it_ends_all_the_same(gateway: Gateway) -> None:
    gateway.daemon.arguments = ("--shutdown-timeout", "1s")
    gateway.start()
    gateway.receiver.policy = lambda callback: None
    gateway.subscribe()
    gateway.api.message(CHAT, "in flight")
    gateway.receiver.wait_for(1)
    seen = len(gateway.daemon.output.lines)
    assert gateway.daemon.stop(10) == 0
    assert len(gateway.daemon.output.lines) > seen, "it says what it left"


def test_a_database_that_is_locked_does_not_keep_it_from_ending(gateway: Gateway) -> None:
    """The result that could not be committed is lost with the process: its job goes once more, equal."""
    gateway.daemon.arguments = ("--shutdown-timeout", "1s")
    gateway.start()
    gateway.receiver.policy = lambda callback: None
    gateway.subscribe()
    bodies = [gateway.api.message(CHAT, f"message {number}")[1] for number in range(2)]
    (first,) = gateway.receiver.wait_for(1)
    with gateway.write_lock():
        first.answer(200)
        assert gateway.daemon.stop(10) == 0
    gateway.receiver.policy = lambda callback: 200
    gateway.daemon.start()
    assert in_order(gateway.receiver.wait_for(3), bodies) == [first.delivery_id]


def test_clients_of_every_kind_hold_up_no_stop(running: Gateway) -> None:
    """Idle, in the middle of a head, in the middle of a body, and one that reads no answer."""
    head = f"POST /send HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {running.daemon.key}\r\n"
    body = f"{head}Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{{"
    asked = f"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {running.daemon.key}\r\n\r\n"
    host, _, port = running.daemon.url.removeprefix("http://").rpartition(":")
    with contextlib.ExitStack() as open_ones:
        for text in ("", head, body, asked) * 5:
            wire = open_ones.enter_context(socket.create_connection((host, int(port)), timeout=10))
            wire.sendall(text.encode())
        assert wire.recv(12) == b"HTTP/1.1 200"
        began = time.monotonic()
        assert running.daemon.stop() == 0
        assert time.monotonic() - began < AT_ONCE


def refuses_connections(daemon: Daemon) -> bool:
    host, _, port = daemon.url.removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return True
    return False


def test_a_request_in_progress_finishes(running: Gateway) -> None:
    answer_now = threading.Event()

    def slowly(call: object, wire: socket.socket) -> bool:
        answer_now.wait(PATIENCE)
        wire.sendall(success({"message_id": 5}))
        return True

    running.api.script("sendMessage", slowly)
    replies: list[Reply] = []

    def ask() -> None:
        replies.append(running.daemon.request("POST", "/send", {"chat_id": 5, "text": "x"}))

    caller = threading.Thread(target=ask)
    caller.start()
    running.api.wait_for_calls("sendMessage", 1)
    running.daemon.send(signal.SIGTERM)
    eventually(lambda: refuses_connections(running.daemon))
    answer_now.set()
    caller.join(PATIENCE)
    (reply,) = replies
    assert (reply.status, reply.body) == (200, b'{"ok":true,"result":{"message_id": 5}}')
    assert running.daemon.wait() == 0


def test_a_signal_during_the_start(api: BotApi, tmp_path: Path, program: tuple[str, ...]) -> None:
    """Whenever it comes: no traceback, no hang."""
    with Daemon(tmp_path, api.url, program=program) as daemon:
        for delay in (0.2, 0.5, 0.8):
            daemon.launch()
            time.sleep(delay)
            daemon.send(signal.SIGTERM)
            assert daemon.wait() in (0, -signal.SIGTERM)


# -- starts that are refused --------------------------------------------------------------------------


def refused(daemon: Daemon, *words: str) -> str:
    """The one line with which it refuses; status 1, quickly."""
    began = time.monotonic()
    status, text = daemon.refused()
    assert status == 1, text
    assert time.monotonic() - began < 5
    assert "Traceback" not in text
    (line,) = (line for line in text.splitlines() if all(word in line for word in words))
    return line


def test_port_taken(api: BotApi, tmp_path: Path, program: tuple[str, ...]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        with Daemon(tmp_path, api.url, ("--port", port), program=program) as daemon:
            refused(daemon, port)
            refused(daemon, port)
    assert api.calls == []


def test_lock_held(running: Gateway, program: tuple[str, ...]) -> None:
    with Daemon(running.daemon.state, running.api.url, program=program) as second:
        refused(second, f"{running.daemon.db}.lock")
    assert running.daemon.health()["ok"] is True


def test_the_database_of_another_bot(running: Gateway, program: tuple[str, ...]) -> None:
    eventually(lambda: running.daemon.health()["bot_id"] == 123456789)
    assert running.daemon.stop() == 0
    before = contents(running.daemon.state)
    other = "987654321:" + TOKEN.partition(":")[2][::-1]
    with Daemon(running.daemon.state, running.api.url, program=program, token=other) as daemon:
        refused(daemon, "123456789", "987654321")
    assert contents(running.daemon.state) == before


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE recipes(name TEXT); INSERT INTO recipes VALUES ('soup')",
        "CREATE TABLE api_keys(name TEXT, key TEXT)",
        "PRAGMA user_version = 999",
    ],
)
def test_a_database_of_unknown_layout(
    api: BotApi, tmp_path: Path, program: tuple[str, ...], sql: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "telegrammer.db")) as connection:
        connection.executescript(sql)
    before = contents(tmp_path)
    with Daemon(tmp_path, api.url, program=program) as daemon:
        refused(daemon, str(daemon.db))
    assert contents(tmp_path) == before


def test_a_file_that_is_no_database(api: BotApi, tmp_path: Path, program: tuple[str, ...]) -> None:
    (tmp_path / "telegrammer.db").write_bytes(b"Dear diary, " * 100)
    before = contents(tmp_path)
    with Daemon(tmp_path, api.url, program=program) as daemon:
        refused(daemon, str(daemon.db))
    assert contents(tmp_path) == before


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv")
@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_a_state_directory_that_cannot_be_written(
    api: BotApi, tmp_path: Path, program: tuple[str, ...], mode: int
) -> None:
    """Without root's right to ignore modes, which would make this test empty."""
    state = tmp_path / "state"
    state.mkdir(mode=mode)
    bound = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
    with Daemon(tmp_path, api.url, program=(*bound, *program)) as daemon:
        daemon.state = state
        daemon.directory = tmp_path
        refused(daemon, str(state))
    state.chmod(0o700)
    assert contents(state) == {}


def test_every_wrong_setting_is_named_with_its_source(api: BotApi, tmp_path: Path) -> None:
    with Daemon(tmp_path, api.url, ("--max-jobs", "none"), {"TELEGRAMMER_HTTP_WORKERS": "0"}) as daemon:
        status, text = daemon.refused()
    assert status in (1, 2)
    assert "--max-jobs" in text
    assert "TELEGRAMMER_HTTP_WORKERS" in text
    assert contents(tmp_path) == {}


def test_the_database_of_the_old_program(api: BotApi, tmp_path: Path, program: tuple[str, ...]) -> None:
    """Taken over with a private backup; its keys stay valid and are marked."""
    key = "ab" * 32
    with closing(sqlite3.connect(tmp_path / "telegrammer.db")) as connection:
        connection.execute("CREATE TABLE api_keys(name TEXT PRIMARY KEY, key TEXT, created_at INTEGER)")
        connection.execute("INSERT INTO api_keys VALUES ('old', ?, 1600000000)", (key,))
        connection.commit()
    (tmp_path / "telegrammer.db").chmod(0o644)
    with Daemon(tmp_path, api.url, program=program) as daemon:
        daemon.start()
        assert daemon.request("GET", "/subscriptions", key=key).status == 200
        (listed,) = json.loads(daemon.run("list-keys", "--json").stdout)["keys"]
        assert listed == {"name": "old", "created_at": 1600000000, "legacy": True}
        daemon.stop()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    (backup,) = (path for path in tmp_path.iterdir() if path.name != "telegrammer.db")
    with closing(sqlite3.connect(backup)) as connection:
        assert connection.execute("SELECT key FROM api_keys").fetchall() == [(key,)]
    assert key.encode() not in (tmp_path / "telegrammer.db").read_bytes()


# -- beside a running daemon --------------------------------------------------------------------------


def test_a_key_works_soon_and_its_deletion_at_once(running: Gateway) -> None:
    key = running.daemon.add_key("second")
    took = eventually(lambda: running.daemon.request("GET", "/subscriptions").status == 200)
    assert took < SOON
    assert running.daemon.run("delete-key", "second").returncode == 0
    assert running.daemon.request("GET", "/subscriptions", key=key).status == 401


def test_a_retried_delivery_wakes_an_idle_daemon(running: Gateway) -> None:
    """Ahead of what its lane has not delivered; the others are not touched."""
    running.receiver.policy = lambda callback: 404
    running.subscribe()
    running.api.message(CHAT, "refused")
    running.receiver.wait_for(1)
    eventually(lambda: running.daemon.health()["queue"]["dead"] == 1)
    (dead,) = json.loads(running.daemon.run("list-failed-deliveries", "--json").stdout)["deliveries"]
    assert (dead["attempts"], dead["reason"], dead["chat_id"]) == (1, "HTTP 404", CHAT)

    running.receiver.policy = lambda callback: 200
    assert running.daemon.run("retry-delivery", str(dead["id"])).returncode == 0
    began = time.monotonic()
    first, again = running.receiver.wait_for(2)
    assert time.monotonic() - began < SOON
    assert first.as_job == again.as_job
    eventually(lambda: running.daemon.health()["queue"]["dead"] == 0)


def test_a_retried_delivery_wakes_one_that_sleeps_until_a_distant_retry(running: Gateway) -> None:
    running.daemon.stop()
    running.daemon.arguments = ("--retry-schedule", "1h")
    running.daemon.start()
    running.receiver.policy = lambda callback: 404 if callback.path == "/dead" else 503
    running.subscribe("/dead")
    running.subscribe("/sleeps")
    running.api.message(CHAT, "hello")
    running.receiver.wait_for(2)
    eventually(lambda: running.daemon.health()["queue"]["dead"] == 1)
    assert running.daemon.run("retry-delivery", "--all").returncode == 0
    began = time.monotonic()
    running.receiver.wait_for(2, path="/dead")
    assert time.monotonic() - began < SOON
    assert len(running.receiver.on("/sleeps")) == 1


def test_a_deleted_key_takes_its_jobs_along(running: Gateway) -> None:
    running.receiver.policy = lambda callback: 503
    running.subscribe()
    running.api.message(CHAT, "hello")
    running.receiver.wait_for(1)
    assert running.daemon.run("delete-key", "test").returncode == 0
    for table in ("keys", "subscriptions", "deliveries", "payloads", "lanes"):
        assert running.query(f"SELECT count(*) FROM {table}") == [(0,)], table


def test_skipping_an_update_ends_the_back_off(running: Gateway) -> None:
    running.subscribe()
    bad = running.api.push(b'"message":{"chat":{"id":"x","type":"private"}}')
    _, body = running.api.message(CHAT, "behind it")
    eventually(lambda: ingestion(running.daemon)["reason"] == "malformed_update")
    # From then on it would wait for four seconds.
    eventually(lambda: ingestion(running.daemon)["consecutive_failures"] == 3)
    assert running.daemon.run("skip-update", str(bad)).returncode == 0
    began = time.monotonic()
    (callback,) = running.receiver.wait_for(1)
    assert time.monotonic() - began < SOON
    assert callback.body == body
    assert running.daemon.run("skip-update", str(bad)).returncode == 1, "it is below the cursor now"


# -- what Telegram does -------------------------------------------------------------------------------

PAGE = response(502, b"<html>Bad Gateway</html>", "Content-Type: text/html")
WEBHOOK = failure(
    409,
    "Conflict: can't use getUpdates method while webhook is active;"
    " use deleteWebhook to delete the webhook first",
)
OTHER = failure(
    409, "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
)


@pytest.mark.parametrize(
    ("method", "answer", "state", "reason", "http"),
    [
        ("getUpdates", failure(401, "Unauthorized"), "suspended", "credentials", 503),
        ("getUpdates", failure(404, "Not Found"), "suspended", "credentials", 503),
        ("getMe", failure(401, "Unauthorized"), "suspended", "credentials", 503),
        ("getMe", failure(421, "Misdirected Request"), "suspended", "credentials", 503),
        ("getUpdates", WEBHOOK, "suspended", "conflict_webhook", 503),
        ("getUpdates", OTHER, "suspended", "conflict_poller", 503),
        ("getUpdates", PAGE, "backing_off", "upstream", 200),
        ("getMe", PAGE, "backing_off", "upstream", 200),
        ("getUpdates", hang_up, "backing_off", "network", 200),
        ("getMe", hang_up, "backing_off", "network", 200),
        ("getUpdates", failure(429, "Too Many Requests", retry_after=77), "backing_off", "rate_limited", 200),
        ("getUpdates", response(200, b'{"ok":true,"res'), "backing_off", "upstream", 200),
        ("getMe", success({"id": 555, "is_bot": True, "first_name": "x"}), "suspended", "wrong_bot", 503),
    ],
)
def test_health_tells_what_telegram_does(
    gateway: Gateway, method: str, answer: Answer, state: str, reason: str, http: int
) -> None:
    gateway.api.fallback[method] = answer
    gateway.start()
    eventually(lambda: ingestion(gateway.daemon)["reason"] == reason)
    reply = gateway.daemon.ask_health()
    report = reply.json
    assert report["components"]["ingestion"]["state"] == state
    assert reply.status == http
    assert report["status"] == ("unavailable" if http == 503 else "degraded")
    assert report["ok"] is (http == 200)
    began = time.monotonic()
    assert gateway.daemon.stop() == 0, "a back-off holds up no stop"
    assert time.monotonic() - began < AT_ONCE
    assert gateway.api.of("deleteWebhook") == []


@pytest.mark.report("B3")
def test_only_a_validated_batch_clears_failures(gateway: Gateway) -> None:
    """And the log has one line for a change, none for each try."""
    gateway.api.script("getUpdates", hang_up, hang_up)
    gateway.start()
    eventually(lambda: ingestion(gateway.daemon)["consecutive_failures"] == 2)
    assert gateway.daemon.health()["status"] == "degraded"
    gateway.api.wait_for_calls("getUpdates", 3)
    assert gateway.daemon.health()["status"] == "degraded", "a poll that is held has not succeeded yet"
    gateway.api.message(CHAT, "ends the held poll")
    eventually(lambda: gateway.daemon.health()["status"] == "ok")
    assert ingestion(gateway.daemon) | {"last_success_at": 0} == {
        "mode": "poll",
        "state": "polling",
        "reason": None,
        "consecutive_failures": 0,
        "last_success_at": 0,
    }
    assert len(gateway.api.of("getUpdates")) <= 5
    assert gateway.daemon.stop() == 0
    lines = [line for line in gateway.daemon.output.lines if "back" in line and "poll" in line]
    assert len(lines) == 1, lines


@pytest.mark.report("home-assistant/core#79374")
def test_telegram_is_unreachable_at_the_start(gateway: Gateway) -> None:
    """The API comes up; what a bound database holds is delivered; polling begins by itself."""
    gateway.receiver.policy = lambda callback: 503
    gateway.start()
    gateway.subscribe()
    gateway.api.message(CHAT, "waits")
    gateway.receiver.wait_for(1)
    gateway.daemon.kill()

    gateway.receiver.policy = lambda callback: 200
    gateway.api.script("getMe", hang_up)
    seen = len(gateway.api.of("getMe"))
    gateway.daemon.start()
    gateway.receiver.wait_for(2)
    assert gateway.daemon.health()["status"] in ("ok", "degraded")
    gateway.api.wait_for_calls("getMe", seen + 2)
    gateway.api.message(CHAT, "ends the held poll")
    eventually(lambda: ingestion(gateway.daemon)["state"] == "polling")


def test_five_failures_in_a_row_are_persistent(gateway: Gateway) -> None:
    """Of whatever kind: the first two waits are the doubling back-off's, the others Telegram's."""
    began: list[float] = []

    def at(answer: bytes) -> Answer:
        def respond(call: object, wire: socket.socket) -> bool:
            began.append(time.monotonic())
            wire.sendall(answer)
            return True

        return respond

    def limited(seconds: int) -> Answer:
        return at(failure(429, "Too Many Requests", retry_after=seconds))

    gateway.api.script("getUpdates", at(PAGE), at(PAGE), limited(1), limited(1), limited(77))
    gateway.start()
    reports: list[Reply] = []

    def failed_five_times() -> bool:
        reports.append(gateway.daemon.ask_health())
        return bool(reports[-1].json["components"]["ingestion"]["consecutive_failures"] == 5)

    eventually(failed_five_times)
    for reply in reports:
        report = reply.json
        five = report["components"]["ingestion"]["consecutive_failures"] == 5
        assert (reply.status, report["ok"]) == ((503, False) if five else (200, True))
        assert (report["status"] == "unavailable") is five
    waits = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert [wait > least - 0.1 for wait, least in zip(waits, (1, 2, 1, 1), strict=True)] == [True] * 4, waits


def test_json_lines(gateway: Gateway) -> None:
    gateway.daemon.arguments = ("--log-format", "json")
    gateway.start()
    gateway.daemon.health()
    gateway.daemon.stop()
    for line in gateway.daemon.output.lines:
        assert isinstance(json.loads(line), dict)


def test_a_descriptor_shortage_is_survived(gateway: Gateway) -> None:
    """Connections beyond --max-connections are closed; afterwards everything is as before."""
    gateway.daemon.arguments = ("--max-connections", "4")
    gateway.start()
    host, _, port = gateway.daemon.url.removeprefix("http://").rpartition(":")
    with contextlib.ExitStack() as open_ones:
        wires = [
            open_ones.enter_context(socket.create_connection((host, int(port)), timeout=10)) for _ in range(6)
        ]
        assert [wire.recv(1) for wire in wires[4:]] == [b"", b""]
    eventually(lambda: _answers(gateway.daemon))
    gateway.subscribe()
    _, body = gateway.api.message(CHAT, "hello")
    assert gateway.receiver.wait_for(1)[0].body == body


def _answers(daemon: Daemon) -> bool:
    try:
        return daemon.request("GET", "/subscriptions").status == 200
    except OSError:
        return False


def test_no_reactor_is_needed_to_ask_for_help() -> None:
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "serve" in done.stdout
    assert sys.executable not in done.stderr
