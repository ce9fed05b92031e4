"""
The daemon is killed at the points where a queue loses or doubles: nothing may be lost or reordered, and at
most what was in flight comes twice, with its delivery id and its bytes.
"""

from __future__ import annotations

import json

import pytest

from tests.support.bot_api import success
from tests.support.gateway import CHAT, Gateway, in_order
from tests.support.receiver import Callback


def wait_for_cursor(gateway: Gateway, offset: int) -> None:
    """Wait until the database says that everything below ``offset`` is committed."""
    gateway.api.wait_until(lambda: gateway.query("SELECT next_offset FROM gateway") == [(offset,)])


def polls_since(gateway: Gateway, count: int) -> list[object]:
    """The offsets of the polls that follow the first ``count``."""
    calls = gateway.api.wait_for_calls("getUpdates", count + 1)
    return [call.arguments.get("offset") for call in calls[count:]]


@pytest.mark.report("anthropics/claude-plugins-official#3938")
def test_killed_after_the_commit_and_before_the_next_poll(running: Gateway) -> None:
    """Telegram sends the batch again, whatever offset is asked for: it makes no second job."""
    api, receiver = running.api, running.receiver
    receiver.policy = lambda callback: None
    running.subscribe()
    batch = [api.message(CHAT, f"message {number}") for number in range(5)]
    bodies = [body for _, body in batch]
    next_offset = batch[-1][0] + 1
    wait_for_cursor(running, next_offset)
    api.wait_until(lambda: api.open_polls == 1)
    (held,) = receiver.wait_for(1)
    api.withhold = True
    running.daemon.kill()

    seen = len(api.of("getUpdates"))
    again = [b'{"update_id":%d,"message":%b}' % (update_id, body) for update_id, body in batch]
    api.script("getUpdates", success(b"[%b]" % b",".join(again)))
    api.withhold = False
    receiver.policy = lambda callback: 200
    running.daemon.start()
    late, body = api.message(CHAT, "after the restart")
    arrived = receiver.wait_for(7)
    assert polls_since(running, seen)[0] == next_offset
    assert in_order(arrived, [*bodies, body]) == [held.delivery_id]


def test_killed_before_the_commit(running: Gateway) -> None:
    """The batch is asked for again, and every message comes once."""
    api, receiver = running.api, running.receiver
    running.subscribe()
    api.wait_until(lambda: api.open_polls == 1)
    before = running.query("SELECT next_offset FROM gateway")
    with running.write_lock():
        seen = len(api.of("getUpdates"))
        bodies = [api.message(CHAT, f"message {number}")[1] for number in range(3)]
        api.wait_until(lambda: api.open_polls == 0)  # the batch has been written to the daemon's socket
        running.daemon.kill()
    assert running.query("SELECT next_offset FROM gateway") == before
    assert running.query("SELECT count(*) FROM deliveries") == [(0,)]

    running.daemon.start()
    assert polls_since(running, seen)[0] == before[0][0]
    assert in_order(receiver.wait_for(3), bodies) == []


@pytest.mark.report("H5")
def test_killed_after_the_receiver_read_and_before_it_answered(running: Gateway) -> None:
    api, receiver = running.api, running.receiver
    receiver.policy = lambda callback: None
    paths = ("/a", "/b", "/c")
    for path in paths:
        running.subscribe(path)
    bodies = [api.message(CHAT, f"message {number}")[1] for number in range(4)]
    held = receiver.wait_for(3)
    assert sorted(callback.path for callback in held) == list(paths), "one lane has two in flight"
    running.daemon.kill()
    assert (
        running.query("SELECT state, attempt_count FROM deliveries WHERE state <> 'PENDING'")
        == [("IN_FLIGHT", 1)] * 3
    )

    receiver.policy = lambda callback: 200
    running.daemon.start()
    receiver.wait_for(3 + 4 * 3)
    for path in paths:
        (first,) = (callback for callback in held if callback.path == path)
        assert in_order(receiver.on(path), bodies) == [first.delivery_id]


def test_killed_after_the_200_and_before_the_completion_is_committed(running: Gateway) -> None:
    """The receiver has done its work, the daemon cannot know: once more, and equal."""
    api, receiver = running.api, running.receiver
    receiver.policy = lambda callback: None
    running.subscribe()
    bodies = [api.message(CHAT, f"message {number}")[1] for number in range(3)]
    (first,) = receiver.wait_for(1)
    with running.write_lock():
        first.answer(200)
        running.daemon.kill()
    assert running.query("SELECT attempt_count FROM deliveries WHERE state = 'IN_FLIGHT'") == [(1,)]

    receiver.policy = lambda callback: 200
    running.daemon.start()
    assert in_order(receiver.wait_for(4), bodies) == [first.delivery_id]


def test_killed_again_and_again_under_load(running: Gateway) -> None:
    """Wherever the kill falls: no loss, no disorder, repeats only of what was in flight."""
    api, receiver = running.api, running.receiver
    paths = ("/a", "/b", "/c")
    for path in paths:
        running.subscribe(path)
    bodies: list[bytes] = []
    lives = 3
    for life in range(lives):
        bodies += [api.message(CHAT, f"life {life}, message {number}")[1] for number in range(120)]
        done = len(receiver.on(None))
        receiver.wait_for(done + 90)
        running.daemon.kill()
        running.daemon.start()
    receiver.wait_until(
        lambda: len({callback.delivery_id for callback in receiver.arrived}) == 3 * len(bodies)
    )
    repeated: list[str] = []
    for path in paths:
        repeated += in_order(receiver.on(path), bodies)
    assert len(repeated) <= lives * 4, "more was repeated than four workers can have in flight"


def test_a_spent_budget_is_not_exceeded_by_a_crash(running: Gateway) -> None:
    """A job whose last attempt was in flight at the kill is dead; the one behind it goes."""
    api, receiver = running.api, running.receiver
    running.daemon.stop()
    running.daemon.arguments = ("--retry-schedule", "1s")  # two attempts

    def policy(callback: Callback) -> int | None:
        if json.loads(callback.body)["text"] == "next":
            return 200
        return 503 if len(receiver.arrived) == 1 else None

    receiver.policy = policy
    running.daemon.start()
    running.subscribe()
    api.message(CHAT, "doomed")
    api.message(CHAT, "next")
    receiver.wait_for(2)
    running.daemon.kill()

    running.daemon.start()
    *attempts, following = receiver.wait_for(3)
    assert [json.loads(callback.body)["text"] for callback in attempts] == ["doomed", "doomed"]
    assert json.loads(following.body)["text"] == "next"
    (dead,) = json.loads(running.daemon.run("list-failed-deliveries", "--json").stdout)["deliveries"]
    assert dead["attempts"] == 2
