"""A queue that is full: what does not fit stays with Telegram, and comes in as soon as jobs have left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.gateway import CHAT, Gateway, eventually, gateway
from tests.support.lab import FULL, repetitions
from tests.support.oracle import Oracle


@contextmanager
def limited(state: Path, max_jobs: int, *arguments: str) -> Iterator[Oracle]:
    """A gateway whose queue holds so many jobs, not started."""
    with gateway(state, "--max-jobs", str(max_jobs), *arguments) as three:
        yield Oracle(three)


def polls(three: Gateway) -> list[tuple[int, int]]:
    """Offset and limit of each ``getUpdates`` so far."""
    return [(call.arguments["offset"], call.arguments["limit"]) for call in three.api.of("getUpdates")]


def expected_polls(first: int, waiting: int, room: int, limit: int = 100) -> list[tuple[int, int]]:
    """What is asked for with one subscription, until a single update is refused."""
    asked = [(first, limit)]
    while True:
        batch = min(limit, waiting)
        if batch <= room:
            first, waiting, room = first + batch, waiting - batch, room - batch
            limit = min(100, limit * 2) if batch == limit else 100
        elif limit == 1:
            return asked
        else:
            limit //= 2
        asked.append((first, limit))


def in_queue(three: Gateway) -> int:
    ((count,),) = three.query("SELECT count(*) FROM deliveries")
    return int(count)


def wait_of(three: Gateway, seconds: int) -> float:
    """
    Wait until two polls that asked for one update lay so far apart; when the second was (monotonic).

    Without news the next one comes after twice the time.
    """
    moments: list[float] = []

    def waited() -> bool:
        asked = three.api.of("getUpdates")[-2:]
        moments[:] = [call.at for call in asked]
        return [call.arguments["limit"] for call in asked] == [1, 1] and moments[1] - moments[
            0
        ] > seconds - 0.5

    eventually(waited)
    return moments[1]


def suspended(three: Gateway) -> bool:
    """Ingestion waits for room, and health says so in full."""
    reply = three.daemon.ask_health()
    report = reply.json
    ingestion = report["components"]["ingestion"]
    if (ingestion["state"], ingestion["reason"]) != ("suspended", "capacity"):
        return False
    assert (reply.status, report["ok"], report["status"]) == (503, False, "unavailable")
    return True


def healthy(three: Gateway) -> bool:
    reply = three.daemon.ask_health()
    return reply.status == 200 and reply.json["status"] == "ok"


@contextmanager
def kept_back(three: Gateway) -> Iterator[int]:
    """
    What is sent inside comes as one batch, to the poll that is held then; its number among the polls.

    That poll is answered when the context is left.
    """
    api = three.api
    api.withhold = True
    api.wait_until(lambda: api.open_polls == 1)
    yield len(polls(three)) - 1
    api.withhold = False


def test_a_batch_that_does_not_fit(tmp_path: Path) -> None:
    """The offset stays, smaller batches are tried at once; one job leaves and one update comes in."""
    room, messages = 10, 25
    with limited(tmp_path, room) as oracle:
        three = oracle.gateway
        receiver = three.receiver
        receiver.policy = lambda callback: None
        three.start()
        oracle.subscribe()
        oracle.message("so that there is a cursor")
        (held,) = receiver.wait_for(1)
        held.answer()
        eventually(lambda: in_queue(three) == 0)
        with kept_back(three) as poll:
            oracle.messages(messages)
            first = oracle.sent[1].update_id
        eventually(lambda: suspended(three) and polls(three)[-1] == (first + room, 1))
        asked, wanted = polls(three)[poll:], expected_polls(first, messages, room)
        assert asked[: len(wanted)] == wanted
        assert set(asked[len(wanted) :]) <= {(first + room, 1)}, "while it waits it asks for one"
        assert in_queue(three) == room
        queue = three.daemon.health()["queue"]
        assert (queue["pending"] + queue["in_flight"], queue["capacity"]) == (room, room)
        oracle.check()

        last = wait_of(three, 2)
        receiver.wait_for(2)[-1].answer()
        three.api.wait_for_offset(first + room + 1)
        taken = next(
            call.at for call in three.api.of("getUpdates") if call.arguments["offset"] > first + room
        )
        assert taken - last < 4, "it was not the room that ended the wait"
        eventually(lambda: suspended(three) and in_queue(three) == room)
        oracle.check()

        receiver.policy = lambda callback: 200
        receiver.wait_for(3)[-1].answer()
        assert oracle.settle() == []
        eventually(lambda: healthy(three) and polls(three)[-1] == (first + messages, 100))
        said = three.daemon.output.text
        assert said.count("polling is suspended") == said.count("polling again") == 1, said


@pytest.mark.parametrize("lanes", [1000] if FULL else [50])
def test_a_hundred_updates_for_everybody(tmp_path: Path, lanes: int) -> None:
    """Many times what the queue holds comes in piece by piece, and all of it arrives once."""
    room = lanes * 5 // 2 if FULL else lanes * 10
    with limited(tmp_path, room, "--delivery-workers", "16") as oracle:
        three = oracle.gateway
        paths = [f"/{number}" for number in range(lanes)]
        for path, subscription_id in zip(paths, three.prepare(paths), strict=True):
            oracle.answered(subscription_id, path)
        oracle.messages(100)
        most = 0
        three.start()

        def all_here() -> bool:
            nonlocal most
            most = max(most, in_queue(three))
            return len(three.receiver.arrived) >= 100 * lanes

        three.receiver.wait_until(all_here, 110)
        assert oracle.settle() == []
        assert room - lanes < most <= room, "it has to have been full"
        arrived = three.receiver.arrived
        took = arrived[-1].at - arrived[0].at
        print(f"{len(arrived)} callbacks in {took:.1f} s, {len(polls(three))} polls")
        said = three.daemon.output.text
        assert said.count("polling is suspended") == 1, said


@pytest.mark.report("H8")
def test_the_share_of_the_dead(tmp_path: Path) -> None:
    """Receivers that refuse everything never have more than a quarter of the queue; it is never full."""
    with limited(tmp_path, 40) as oracle:
        three = oracle.gateway
        three.receiver.policy = lambda callback: 404 if callback.path.startswith("/refuses") else 200
        three.start()
        for path in ("/well", "/refuses/1", "/refuses/2", "/refuses/3"):
            oracle.subscribe(path)
        for _ in range(repetitions(6, 60)):
            oracle.messages(10)
            oracle.settle()
            assert len(oracle.dead()) <= 10
            assert three.daemon.health()["queue"]["dead"] == len(oracle.dead())
        assert len(oracle.dead()) == 10
        newest = {(lane, sent.update_id) for lane, _ in oracle.dead() for sent in oracle.sent[-4:]}
        assert set(oracle.dead()) <= newest, "the oldest go first"


@pytest.mark.report("H8")
def test_the_dead_leave_room_for_one_message(tmp_path: Path) -> None:
    """A message for nearly as many subscriptions as the queue holds jobs goes in beside the dead."""
    with limited(tmp_path, 10) as oracle:
        three = oracle.gateway
        three.receiver.policy = lambda callback: 404 if callback.path.startswith("/refuses") else 200
        three.start()
        for path in ("/well", *(f"/refuses/{number}" for number in range(8))):
            oracle.subscribe(path)
        oracle.messages(5)
        oracle.settle()
        assert len(three.receiver.on("/well")) == 5
        assert len(oracle.dead()) <= 2


def test_a_removed_subscription_makes_room(tmp_path: Path) -> None:
    """Its jobs are gone with it, and what waits comes in at once, however long the waits have become."""
    longest = 8 if FULL else 2
    with limited(tmp_path, 5) as oracle:
        three = oracle.gateway
        three.receiver.policy = lambda callback: None if callback.path == "/hangs" else 200
        three.start()
        hangs = three.subscribe("/hangs", CHAT + 1)
        three.subscribe("/well")
        for _ in range(5):
            three.api.message(CHAT + 1, "one that waits")
        eventually(lambda: in_queue(three) == 5)
        three.api.message(CHAT, "one that has no room")

        last = wait_of(three, longest)
        assert suspended(three)
        assert three.daemon.request("DELETE", f"/subscriptions/{hangs}").status == 204
        (callback,) = three.receiver.wait_for(1, path="/well")
        print(f"{callback.at - last:.2f} s after a poll that had waited {longest} s")
        assert callback.at - last < 2 * longest, "it was not the room that ended the wait"
        eventually(lambda: in_queue(three) == 0)
        assert three.query("SELECT count(*) FROM payloads") == [(0,)]
        three.daemon.kill()
        assert len(three.receiver.on("/well")) == 1
