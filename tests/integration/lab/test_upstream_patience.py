"""What polling waits long for: refused credentials, and a Bot API that hangs.  Minutes, side by side."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import frozen

from tests.support import bot_api_faults as faults
from tests.support.bot_api import Answer, failure
from tests.support.gateway import Gateway, eventually, gateway
from tests.support.lab import full_only
from tests.support.oracle import Oracle


@frozen
class Trouble:
    """Once the database is bound and a message has come through."""

    label: str
    method: str
    answer: Answer
    state: str
    reason: str
    http: int
    seen_after: tuple[float, float]
    """Seconds from the poll to when health says so."""
    over_after: tuple[float, float]
    """Seconds from then until the next try."""


SUSPENDED = ("suspended", "credentials", 503, (0, 10), (55, 75))
TROUBLES = (
    Trouble("revoked", "getUpdates", failure(401, "Unauthorized"), *SUSPENDED),
    Trouble("malformed", "getUpdates", failure(404, "Not Found"), *SUSPENDED),
    Trouble("elsewhere", "getUpdates", failure(421, "Misdirected Request"), *SUSPENDED),
    Trouble("silent", "getUpdates", faults.stalled(), "backing_off", "network", 200, (38, 50), (0, 12)),
    Trouble(
        "dripping",
        "getUpdates",
        faults.dripping(b'HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"ok":true,'),
        "backing_off",
        "network",
        200,
        (38, 50),
        (0, 12),
    ),
)


def ingestion(three: Gateway) -> tuple[str, str | None, int]:
    reply = three.daemon.ask_health()
    found = reply.json["components"]["ingestion"]
    return found["state"], found["reason"], reply.status


def bear(trouble: Trouble, state: Path) -> None:
    with gateway(state) as three:
        three.start()
        oracle = Oracle(three)
        oracle.subscribe()
        three.api.wait_until(lambda: three.api.open_polls == 1)
        three.api.script(trouble.method, trouble.answer)
        polls = len(three.api.of("getUpdates"))
        identities = len(three.api.of("getMe"))
        oracle.message("ends the held poll")
        oracle.settle()
        three.api.wait_for_calls(trouble.method, polls + 1)
        began = time.monotonic()
        eventually(lambda: ingestion(three) == (trouble.state, trouble.reason, trouble.http), 60)
        seen = time.monotonic()
        assert trouble.seen_after[0] <= seen - began <= trouble.seen_after[1], trouble.label
        oracle.message("after it")
        oracle.settle(100)
        assert trouble.over_after[0] <= time.monotonic() - seen <= trouble.over_after[1], trouble.label
        eventually(lambda: ingestion(three) == ("polling", None, 200))
        asked_again = len(three.api.of("getMe")) - identities
        assert asked_again == (1 if trouble.reason == "credentials" else 0), "who the bot is comes first"
        assert three.api.most_open_polls == 1
        assert three.daemon.stop() == 0


@full_only
@pytest.mark.report("B1")
@pytest.mark.report("B2")
@pytest.mark.report("C3")
def test_it_comes_back_by_itself(tmp_path: Path) -> None:
    """After a minute with credentials that were refused; at the deadline of 40 s with a peer that hangs."""
    with ThreadPoolExecutor(len(TROUBLES)) as pool:
        states = [tmp_path / trouble.label for trouble in TROUBLES]
        for state in states:
            state.mkdir()
        list(pool.map(bear, TROUBLES, states))
