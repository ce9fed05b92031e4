"""
Whatever the Bot API does, to the real daemon: what ``/send`` answers, what polling does about it, what
``/health`` says, and that all goes on by itself (contract 2.1, 5.4).

Sends that hang are begun first and looked at last: they take their 20 s while the rest is tested.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from attrs import define, field, frozen

from tests.support import bot_api_faults as faults
from tests.support.bot_api import Answer, BotApi, Call, failure, hang_up
from tests.support.bot_api_faults import envelope, page
from tests.support.daemon import TOKEN, Reply
from tests.support.gateway import CHAT, Gateway, eventually, gateway
from tests.support.http_server import response
from tests.support.lab import FULL, full_only
from tests.support.oracle import Oracle
from tests.support.send_outcomes import MIB, OK, ROWS, Row

AT_ONCE = 5.0
"""Seconds, on a machine that is busy with other tests, for what waits for nothing."""


@define(eq=False)
class Upstream:
    """A daemon whose Bot API answers each ``sendMessage`` as the text in it says."""

    gateway: Gateway
    oracle: Oracle
    answers: dict[str, Answer] = field(factory=dict)

    def respond(self, call: Call, wire: socket.socket) -> bool:
        answer = self.answers[call.arguments["text"]]
        if isinstance(answer, bytes):
            wire.sendall(answer)
            return True
        return answer(call, wire)

    def send(self, label: str, answer: Answer) -> Reply:
        self.answers[label] = answer
        return self.gateway.daemon.request("POST", "/send", {"chat_id": CHAT, "text": label})

    def sent(self, label: str) -> int:
        """How often this message has reached the Bot API."""
        return sum(call.arguments["text"] == label for call in self.gateway.api.of("sendMessage"))

    def ingestion(self) -> tuple[str, str | None, int]:
        return ingestion_of(self.gateway)


def ingestion_of(three: Gateway) -> tuple[str, str | None, int]:
    """State and reason, and the HTTP status that goes with them."""
    reply = three.daemon.ask_health()
    found = reply.json["components"]["ingestion"]
    return found["state"], found["reason"], reply.status


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with gateway(tmp_path_factory.mktemp("upstream")) as three:
        three.start()
        oracle = Oracle(three)
        oracle.subscribe()
        oracle.message("first")
        oracle.settle()
        found = Upstream(three, oracle)
        three.api.fallback["sendMessage"] = found.respond
        assert found.send("warm", envelope(OK)).status == 200
        with ThreadPoolExecutor(16) as pool:
            # More at once than there will be, of every kind, so that every thread it may have is there.
            list(pool.map(lambda _: (three.daemon.health(), found.send("warm", envelope(OK))), range(64)))
        three.api.wait_until(lambda: three.api.open_polls == 1)
        oracle.base_line()
        yield found
        assert three.daemon.stop() == 0


HANGS: dict[str, Answer] = {
    "silence": faults.stalled(),
    "a head that stalls": faults.stalled(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "a body that stalls": faults.stalled(b'HTTP/1.1 200 OK\r\nContent-Length: 37\r\n\r\n{"ok":true,'),
    "a body that drips": faults.dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"),
    "a head that drips": faults.dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
}


@pytest.fixture(scope="module", autouse=True)
def hanging(upstream: Upstream) -> Iterator[dict[str, Future[tuple[Reply, float]]]]:
    """One send for each way to hang, all at once, begun before anything else."""

    def send(label: str) -> tuple[Reply, float]:
        began = time.monotonic()
        reply = upstream.send(label, HANGS[label])
        return reply, time.monotonic() - began

    with ThreadPoolExecutor(len(HANGS)) as pool:
        yield {label: pool.submit(send, label) for label in HANGS}


# -- POST /send ------------------------------------------------------------------------------------------


@pytest.mark.report("F1")
@pytest.mark.report("F2")
@pytest.mark.report("F4")
@pytest.mark.report("F6")
@pytest.mark.report("D1")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_send(upstream: Upstream, row: Row) -> None:
    """At most one ``sendMessage``, and of the upstream's nothing but what the contract passes on."""
    calls = len(upstream.gateway.api.calls)
    reply = upstream.send(row.label, row.answer)
    assert reply.status == row.status, reply
    if row.code is None:
        assert reply.body == row.body
    else:
        error = reply.json["error"]
        assert error.pop("code") == row.code
        assert error.pop("message")
        assert error == row.error
    assert reply.headers.get("retry-after") == row.retry_after
    assert upstream.sent(row.label) == 1
    assert {call.method for call in upstream.gateway.api.calls[calls:]} <= {"sendMessage", "getUpdates"}


def test_words_of_telegram_are_made_harmless(upstream: Upstream) -> None:
    """Also when whatever stands in front of it has put the URL into them."""
    words = f"Bad Request:\r\n\x1b[31m\u202e https://x/bot{TOKEN}/sendMessage {'é' * 300}"
    said = upstream.send("odd words", failure(400, words)).json["error"]["description"]
    assert said.startswith("Bad Request:")
    assert len(said) <= 256
    assert said.isprintable()
    assert TOKEN.partition(":")[2] not in said


@pytest.mark.report("F1")
@pytest.mark.parametrize("end", [faults.reset_at_once, lambda wire: False], ids=["reset", "closed"])
def test_a_send_that_was_not_even_read(upstream: Upstream, end: Callable[[socket.socket], bool]) -> None:
    """Nothing is tried again; the next one works."""
    upstream.gateway.api.greet = faults.times(1, end)
    reply = upstream.send("unread", envelope(OK))
    assert (reply.status, reply.json["error"]["code"]) == (502, "UPSTREAM_UNAVAILABLE")
    assert upstream.sent("unread") == 0
    assert upstream.send("read", envelope(OK)).status == 200


# -- polling ---------------------------------------------------------------------------------------------

BACKING_OFF, SUSPENDED = "backing_off", "suspended"
WEBHOOK = "https://hooks.example:8443/secret-path?secret=query"


@frozen
class Fault:
    """What one poll comes to, and what health says of it."""

    label: str
    answer: Answer
    reason: str
    is_quick: bool = False
    """Shown in the quick form too."""


FAULTS = (
    Fault("hung up", hang_up, "network"),
    Fault("reset", faults.reset, "network", is_quick=True),
    Fault("cut in the head", faults.broken_off(b"HTTP/1.1 200 OK\r\nCont"), "network"),
    Fault("cut in the body", faults.broken_off(envelope(b'{"ok":true,"result":[]}')[:-3]), "network", True),
    Fault("restarting", faults.restarting(), "upstream"),
    Fault("page", page(502), "upstream", is_quick=True),
    Fault("redirect", page(302, "Location: /elsewhere"), "upstream"),
    Fault("page with 200", page(200), "upstream"),
    Fault("ok with 500", envelope(b'{"ok":true,"result":[]}', 500), "upstream"),
    Fault("not ok with 200", envelope(b'{"ok":false,"error_code":400}'), "upstream"),
    Fault("no result", envelope(b'{"ok":true}'), "upstream"),
    Fault("truncated", envelope(b'{"ok":true,"result":[{"update_id":1,"mess'), "upstream"),
    Fault("empty", envelope(b""), "upstream"),
    Fault("no length", response(204), "upstream"),
    Fault("too large", faults.endless(b"HTTP/1.1 200 OK\r\n\r\n", b" " * MIB), "upstream", is_quick=True),
    Fault("a head without end", faults.endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 1000), "upstream"),
    Fault("no HTTP", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "upstream"),
    Fault("limited in the body", failure(429, "x", retry_after=1), "rate_limited"),
    Fault("limited in the header", page(429, "Retry-After: 1"), "rate_limited", is_quick=True),
    Fault("limited without a word", page(429), "rate_limited"),
)


@pytest.mark.report("B3")
@pytest.mark.report("B4")
@pytest.mark.report("B8")
@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if FULL or fault.is_quick], ids=lambda fault: fault.label
)
def test_one_poll(upstream: Upstream, fault: Fault) -> None:
    """It is contained and seen, not met with a storm; then all goes on, and nothing is lost."""
    api, oracle = upstream.gateway.api, upstream.oracle
    api.wait_until(lambda: api.open_polls == 1)
    polls = len(api.of("getUpdates"))
    began: list[float] = []

    def fail(call: Call, wire: socket.socket) -> bool:
        began.append(time.monotonic())
        if isinstance(fault.answer, bytes):
            wire.sendall(fault.answer)
            return True
        return fault.answer(call, wire)

    api.script("getUpdates", fail)
    oracle.message(f"before {fault.label}")
    eventually(lambda: upstream.ingestion() == (BACKING_OFF, fault.reason, 200))
    # The fault, and the poll that is held until there is something.
    api.wait_for_calls("getUpdates", polls + 2)
    assert time.monotonic() - began[0] > 0.9, "a wait of a second lies between"
    assert upstream.ingestion() == (BACKING_OFF, fault.reason, 200), "alive is not taken for succeeding"
    oracle.message(f"after {fault.label}")
    assert oracle.settle() == []
    eventually(lambda: upstream.ingestion() == ("polling", None, 200))
    # And the one that is held now.
    assert len(api.of("getUpdates")) <= polls + 3
    assert api.most_open_polls == 1


@pytest.mark.report("C2")
def test_a_webhook_that_somebody_sets(upstream: Upstream) -> None:
    """Said once with the host alone, left where it is, and polling goes on once it is gone."""
    three, api = upstream.gateway, upstream.gateway.api
    api.wait_until(lambda: api.open_polls == 1)
    lines = len(three.daemon.output.lines)
    by_hand(api, "setWebhook", url=WEBHOOK)
    eventually(lambda: upstream.ingestion() == (SUSPENDED, "conflict_webhook", 503))
    upstream.oracle.message("while it is set")
    three.daemon.output.wait_for(r"hooks\.example", after=lines)
    by_hand(api, "deleteWebhook")
    assert upstream.oracle.settle() == []
    eventually(lambda: upstream.ingestion() == ("polling", None, 200))
    assert "secret-path" not in three.daemon.output.text
    assert [call.method for call in api.calls].count("deleteWebhook") == 1, "not by us"


@pytest.mark.report("C1")
@full_only
def test_a_poll_by_hand(upstream: Upstream) -> None:
    """One debugging curl knocks ours over once; it comes back by itself."""
    api = upstream.gateway.api
    api.wait_until(lambda: api.open_polls == 1)
    by_hand(api, "getUpdates", timeout=1)
    eventually(lambda: upstream.ingestion() == (SUSPENDED, "conflict_poller", 503))
    upstream.oracle.message("after the conflict")
    assert upstream.oracle.settle() == []
    eventually(lambda: upstream.ingestion() == ("polling", None, 200))


def by_hand(api: BotApi, method: str, **arguments: object) -> None:
    """A call with the bot's token that is not the daemon's."""
    query = urlencode(arguments)
    with urlopen(f"{api.url}/bot{TOKEN}/{method}?{query}", timeout=20) as answer:
        assert answer.status == 200


@pytest.mark.report("B5")
def test_a_bot_api_that_is_not_there_yet(tmp_path: Path) -> None:
    """Nobody listens; what a bound database holds is delivered all the same; then somebody does."""
    with gateway(tmp_path) as three:
        three.receiver.policy = lambda callback: 503
        three.start()
        oracle = Oracle(three)
        oracle.subscribe()
        oracle.message("waits")
        three.receiver.wait_for(1)
        port, calls = three.api.port, three.api.calls
        three.daemon.kill()
        three.api.close()
        three.receiver.policy = lambda callback: 200
        three.daemon.start()
        three.receiver.wait_for(2)
        eventually(lambda: ingestion_of(three) == (BACKING_OFF, "network", 200))
        began = time.monotonic()
        reply = three.daemon.request("POST", "/send", {"chat_id": CHAT, "text": "x"})
        assert (reply.status, reply.json["error"]["code"]) == (502, "UPSTREAM_UNAVAILABLE")
        assert time.monotonic() - began < AT_ONCE
        with BotApi(port=port, first_id=2000) as api:
            api.calls.extend(calls)
            three.api = api
            oracle.message("at last")
            # The first message was answered 503 once.
            assert len(oracle.settle()) == 1
            eventually(lambda: ingestion_of(three) == ("polling", None, 200))
            assert three.daemon.stop() == 0


# -- what hangs ------------------------------------------------------------------------------------------


@pytest.mark.report("B2")
@pytest.mark.report("F1")
@pytest.mark.parametrize("label", HANGS)
def test_a_send_that_hangs(
    upstream: Upstream, hanging: dict[str, Future[tuple[Reply, float]]], label: str
) -> None:
    """504 at the deadline, which says that the message may have been sent; once is enough."""
    reply, took = hanging[label].result()
    assert (reply.status, reply.json["error"]["code"]) == (504, "UPSTREAM_TIMEOUT")
    assert "may have been sent" in reply.json["error"]["message"]
    assert 19 < took < 20 + AT_ONCE
    assert upstream.sent(label) == 1


def test_nothing_is_left_of_all_that(upstream: Upstream) -> None:
    assert upstream.oracle.settle() == []
    upstream.oracle.check_base_line()
    assert upstream.gateway.daemon.health()["status"] == "ok"
