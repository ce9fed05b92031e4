"""
``POST /telegram/webhook`` of the real daemon, called as Telegram does; the Bot API is down (contract 8).

What becomes of the updates later is told elsewhere: here they have to be in the journal once they are
answered, and not when they are refused.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from attrs import frozen

from tests.support.barrier_daemon import barrier
from tests.support.bot_api import BotApi
from tests.support.daemon import PATIENCE, Daemon, Reply
from tests.support.gateway import Gateway, eventually, gateway
from tests.support.lab import full_only
from tests.support.overheard import PAYLOAD
from tests.support.pusher import SECRET
from tests.support.receiver import CallbackReceiver
from tests.support.vital_signs import HEALTH, TURNS, percentile
from tests.support.wire import WireAnswer, many, read_answers, read_to_end, reset, write

WEBHOOK = ("--ingest", "webhook", "--webhook-url", "https://bot.example.org")
OWN_LISTENER = ("--webhook-listen", "tcp:0:interface=127.0.0.1")
PATH = "/telegram/webhook"
LARGEST = 2**20


def update(update_id: int, text: str = PAYLOAD) -> bytes:
    """One that makes no job: nobody subscribes."""
    chat = {"id": 5, "type": "private", "username": "ann"}
    message = {"message_id": update_id, "date": 1_793_000_000, "chat": chat, "text": text}
    return json.dumps({"update_id": update_id, "message": message}).encode()


@frozen
class Telegram:
    """Calls the webhook of a daemon at an address, and looks into the journal."""

    daemon: Daemon
    url: str
    secret: str

    @property
    def where(self) -> tuple[str, int]:
        address = urlsplit(self.url)
        assert address.hostname is not None and address.port is not None
        return address.hostname, address.port

    def ask(self, method: str, path: str, body: bytes | None = None, secret: str | None = None) -> Reply:
        connection = http.client.HTTPConnection(*self.where, timeout=PATIENCE)
        headers = {SECRET: self.secret if secret is None else secret, "Connection": "close"}
        with closing(connection):
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())

    def push(self, body: bytes, secret: str | None = None) -> Reply:
        return self.ask("POST", PATH, body, secret)

    def head(self, *fields: bytes, secret: str | None = None) -> bytes:
        shown = (self.secret if secret is None else secret).encode()
        lines = (b"POST /telegram/webhook HTTP/1.1", b"Host: bot", SECRET.encode() + b": " + shown, *fields)
        return b"\r\n".join((*lines, b"", b""))

    def call(self, update_id: int, *fields: bytes) -> bytes:
        """A whole push, as bytes."""
        body = update(update_id)
        return self.head(b"Content-Length: %d" % len(body), *fields) + body

    def wire(self, data: bytes) -> list[WireAnswer]:
        """What comes back for these bytes, until the daemon closes."""
        with closing(socket.create_connection(self.where, PATIENCE)) as peer:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(write, peer, data)
                return read_answers(read_to_end(peer))

    def journal(self) -> list[int]:
        """The ids of all that is in it, in its order."""
        with self.daemon.look() as connection:
            return [row[0] for row in connection.execute("SELECT update_id FROM journal ORDER BY id")]

    def bodies(self) -> list[bytes]:
        with self.daemon.look() as connection:
            return [bytes(row[0]) for row in connection.execute("SELECT body FROM journal ORDER BY id")]


def telegram_of(daemon: Daemon, listening: str = "listening", after: int = 0) -> Telegram:
    found = daemon.output.wait_for(rf": {listening} on (http://[^\s\"]+)", after=after)
    return Telegram(daemon, found[1], daemon.webhook_secret())


@contextmanager
def nobody_at_telegram(state: Path, *arguments: str) -> Iterator[Gateway]:
    """A gateway whose Bot API has gone, not started."""
    with BotApi() as api:
        gone = api.url
    with CallbackReceiver() as receiver, Daemon(state, gone, arguments) as daemon:
        yield Gateway(api, receiver, daemon)


@pytest.fixture
def pushed(tmp_path: Path) -> Iterator[Gateway]:
    with nobody_at_telegram(tmp_path, *WEBHOOK) as three:
        three.start()
        yield three


def test_beside_the_api(pushed: Gateway) -> None:
    """Once for each update; before any of it the secret, which a restart keeps."""
    daemon = pushed.daemon
    telegram = telegram_of(daemon)
    assert telegram.push(update(7), secret="").status == 401
    refused = telegram.push(update(7), secret=telegram.secret[:-1])
    assert (refused.status, refused.headers["www-authenticate"]) == (401, SECRET)
    assert telegram.journal() == []
    for _ in range(2):
        taken = telegram.push(update(7))
        assert (taken.status, taken.body) == (200, b'{"ok":true}')
    assert telegram.bodies() == [update(7)]
    # Later ones overtake: other chats, other connections.
    assert [telegram.push(update(update_id)).status for update_id in (12, 9, 10)] == [200] * 3
    for body in (b"", b"[]", b'{"update_id":"7"}', b'{"update_id":8'):
        answer = telegram.push(body)
        assert (answer.status, answer.json["error"]["code"]) == (400, "INVALID_REQUEST")
    assert telegram.ask("GET", PATH).headers["allow"] == "POST"
    assert daemon.request("POST", "/send", {}, key=telegram.secret).status == 401

    seen = len(daemon.output.lines)
    daemon.stop()
    daemon.start()
    again = telegram_of(daemon, after=seen)
    assert again.secret == telegram.secret
    assert again.push(update(9)).status == 200
    assert again.push(update(11)).status == 200
    assert again.journal() == [7, 12, 9, 10, 11]
    for line in (f"POST {PATH} 401", f"POST {PATH} 200", f"POST {PATH} 400"):
        daemon.output.wait_for(rf"{line} \d+ ms, key -")
    assert len(re.findall("pushed that is no update", daemon.output.text)) == 1


def test_behind_a_door_of_its_own(tmp_path: Path) -> None:
    with nobody_at_telegram(tmp_path, *WEBHOOK, *OWN_LISTENER) as three:
        three.start()
        telegram = telegram_of(three.daemon, "webhook listening")
        assert telegram.url != three.daemon.url
        listening = [line for line in three.daemon.output.lines if "listening on http" in line]
        assert [line.partition(": ")[2].partition(" on ")[0] for line in listening] == [
            "listening",
            "webhook listening",
        ]
        assert telegram.push(update(1)).status == 200
        assert telegram.push(update(2), secret="x").status == 401
        assert telegram.ask("GET", "/health").status == 404
        assert telegram.ask("POST", "/send", b"{}").status == 404
        assert three.daemon.request("POST", PATH, headers={SECRET: telegram.secret}).status == 404
        assert telegram.journal() == [1]

        taken = f"tcp:{telegram.where[1]}:interface=127.0.0.1"
        (tmp_path / "other").mkdir()
        with Daemon(tmp_path / "other", three.daemon.api_url, (*WEBHOOK, "--webhook-listen", taken)) as other:
            status, said = other.refused()
            assert (status, other.db.exists()) == (1, False), said
            assert f"cannot listen on 127.0.0.1:{telegram.where[1]}: address already in use" in said

        # A call in hand at the stop has its answer, behind this door too.
        with closing(socket.create_connection(telegram.where, PATIENCE)) as peer:
            with three.write_lock():
                peer.sendall(telegram.call(3))
                three.daemon.ask_health()
                three.daemon.process.terminate()
                three.daemon.output.wait_for("Received SIGTERM")
            (answer,) = read_answers(read_to_end(peer))
        assert answer.status == 200
        assert three.daemon.wait() == 0
        assert telegram.journal() == [1, 3]


def test_where_updates_are_polled_there_is_no_such_path(tmp_path: Path) -> None:
    with gateway(tmp_path) as three:
        three.start()
        reply = three.daemon.request("POST", PATH, {"update_id": 1}, headers={SECRET: "x" * 43})
        assert (reply.status, reply.json["error"]["code"]) == (404, "NOT_FOUND")


def test_bodies_within_and_beyond_the_limit(pushed: Gateway) -> None:
    telegram = telegram_of(pushed.daemon)
    largest = update(1, "x" * (LARGEST - len(update(1, ""))))
    assert len(largest) == LARGEST
    assert telegram.push(largest).status == 200
    pieces = [largest.replace(b"1", b"2", 1)[at : at + 5000] for at in range(0, LARGEST, 5000)]
    coded = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = telegram.head(b"Transfer-Encoding: chunked", b"Connection: close")
    (answer,) = telegram.wire(head + coded)
    assert answer.status == 200
    assert telegram.journal() == [1, 2]

    long = telegram.head(b"Content-Length: %d" % (LARGEST + 1))
    longer = telegram.head(b"Transfer-Encoding: chunked") + b"%x\r\n" % (2 * LARGEST) + largest + largest
    for data in (long, longer):
        (answer,) = telegram.wire(data)
        assert (answer.status, answer.code) == (413, "BODY_TOO_LARGE")
    # 10 GB without the secret: the answer comes before the body would.
    (answer,) = telegram.wire(telegram.head(b"Content-Length: 10737418240", secret="x") + largest)
    assert answer.status == 401
    assert telegram.journal() == [1, 2]


def test_the_caller_leaves_once_the_body_has_arrived(pushed: Gateway) -> None:
    """However it goes, and also while the database waits: what arrived whole is journaled."""
    telegram = telegram_of(pushed.daemon)
    with pushed.write_lock():
        for update_id, leave in ((1, reset), (2, socket.socket.close)):
            peer = socket.create_connection(telegram.where, PATIENCE)
            peer.sendall(telegram.call(update_id))
            # Whoever came after it has been answered, so it was read.
            pushed.daemon.ask_health()
            leave(peer)
        with closing(socket.create_connection(telegram.where, PATIENCE)) as peer:
            peer.sendall(telegram.call(3)[:-1])
        pushed.daemon.ask_health()
    eventually(lambda: telegram.journal() == [1, 2])
    pushed.daemon.output.wait_for("pushed update: the caller left, it ended all the same: Accepted")


def test_a_database_that_another_process_holds(pushed: Gateway) -> None:
    """503 in time, and really nothing was stored; the repeat is."""
    telegram = telegram_of(pushed.daemon)
    with pushed.write_lock():
        began = time.monotonic()
        refused = telegram.push(update(7))
        took = time.monotonic() - began
    assert (refused.status, refused.json["error"]["code"]) == (503, "STORAGE_UNAVAILABLE")
    assert refused.headers["retry-after"] == "1"
    assert took < 10
    assert telegram.push(update(8)).status == 200
    assert telegram.journal() == [8]
    assert telegram.push(update(7)).status == 200
    assert telegram.push(update(7)).status == 200
    assert telegram.journal() == [8, 7]


def test_health_answers_amid_a_burst(pushed: Gateway) -> None:
    """A hundred connections, as many as Telegram may open, each with one update after the other."""
    daemon, each = pushed.daemon, 20
    telegram = telegram_of(daemon)
    asked: list[float] = []
    late: list[float] = []

    def calls(number: int) -> bytes:
        first = 1 + number * each
        first_ones = [telegram.call(update_id) for update_id in range(first, first + each - 1)]
        return b"".join((*first_ones, telegram.call(first + each - 1, b"Connection: close")))

    daemon.ask_health()
    with many(daemon, 100) as peers, ThreadPoolExecutor(1) as pool:

        def push() -> list[WireAnswer]:
            for number, peer in enumerate(peers):
                peer.sendall(calls(number))
            return [answer for peer in peers for answer in read_answers(read_to_end(peer))]

        burst = time.monotonic()
        pushing = pool.submit(push)
        while not pushing.done():
            began = time.monotonic()
            reply = daemon.request("GET", "/health")
            ended = time.monotonic()
            assert reply.status in (200, 503), reply
            asked.append(ended - began)
            time.sleep(0.01)
            late.append(time.monotonic() - ended - 0.01)
        answers = pushing.result()
        burst = time.monotonic() - burst
    assert [answer.status for answer in answers] == [200] * 100 * each
    assert sorted(telegram.journal()) == list(range(1, 100 * each + 1))
    # Whoever asks may have to wait for one update of each connection; and for the machine.
    most, allowed = percentile(asked, 90), burst / each + TURNS * max(late)
    print(f"{len(asked)} looks at health: p90 {most:.3f} s; allowed for the machine {allowed:.3f} s")
    assert most < HEALTH + allowed, f"health takes {most:.3f} s"


@full_only
def test_a_commit_that_hangs(tmp_path: Path) -> None:
    """The answer does not wait for it: 503 after 10 s; it may be stored, and the repeat finds it."""
    with nobody_at_telegram(tmp_path, *WEBHOOK) as three:
        with barrier(three.daemon, "before the commit of: accept") as hanging:
            three.start()
            telegram = telegram_of(three.daemon)
            with ThreadPoolExecutor(1) as pool:
                began = time.monotonic()
                pushing = pool.submit(telegram.push, update(7))
                hanging.wait()
                refused = pushing.result()
                took = time.monotonic() - began
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert 9.9 < took < 15
            hanging.release()
            eventually(lambda: telegram.journal() == [7])
            assert telegram.push(update(7)).status == 200
            assert telegram.journal() == [7]
