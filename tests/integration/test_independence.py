"""Polling and delivery go at their own pace: what one of them suffers is no matter to the other."""

from __future__ import annotations

import pytest

from tests.support.gateway import CHAT, Gateway
from tests.support.receiver import Callback


@pytest.mark.report("A8")
def test_polling_never_waits_for_callbacks(running: Gateway) -> None:
    """One receiver fails, one hangs: every update is confirmed all the same, each batch as it comes."""
    api, receiver = running.api, running.receiver

    def policy(callback: Callback) -> int | None:
        return 500 if callback.path == "/fails" else None

    receiver.policy = policy
    for path in ("/fails", "/hangs"):
        running.subscribe(path)
    for number in range(5):
        update_id, _ = api.message(CHAT, f"message {number}")
        api.wait_for_offset(update_id + 1)
    (held,) = receiver.wait_for(1, path="/hangs")
    receiver.wait_for(1, path="/fails")
    report = running.daemon.health()
    assert report["components"]["ingestion"]["state"] == "polling"
    assert report["components"]["ingestion"]["consecutive_failures"] == 0
    queue = report["queue"]
    assert queue["pending"] + queue["in_flight"] == 10, "confirmed, and not kept"
    receiver.policy = lambda callback: 200
    held.answer(200)
