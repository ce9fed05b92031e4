"""
Operators, callers and a backup at work on the database from other processes, while messages flow.

Some seconds in the quick form, a minute in the full one.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from attrs import define, field, frozen

from telegrammer.store.recovery import violations
from tests.support.gateway import CHAT, Gateway, eventually
from tests.support.lab import FULL
from tests.support.operators import Operator
from tests.support.oracle import Oracle
from tests.support.receiver import Callback

SECONDS = 60.0 if FULL else 6.0
AHEAD = 30
"""Messages that may be under way: enough that there is always work, little enough that all of it ends."""

SLOW_CHAT = CHAT + 1
MALFORMED = b'"message":{"chat":{"id":"x","type":"private"}}'


@frozen
class Ended:
    """A subscription of the chat that has come and gone."""

    path: str
    owed_from: int
    """How many messages had been sent when it was answered: those after it were owed."""
    before: int
    """Receptions when its end was committed."""


@define(eq=False)
class Scene:
    """All who work, each in a thread, until the time is over."""

    gateway: Gateway
    oracle: Oracle
    until: float = field(factory=lambda: time.monotonic() + SECONDS)
    ended: list[Ended] = field(factory=list, init=False)
    stale: list[Callback] = field(factory=list, init=False)
    """Whose jobs were removed while their POSTs were under way."""
    moved: dict[str, tuple[int, list[bytes]]] = field(factory=dict, init=False)
    """By path: the subscription that is left, and what it and its twin are owed."""
    operators: list[Operator] = field(factory=list, init=False)
    all_else_ended: threading.Event = field(factory=threading.Event, init=False)

    def rounds(self) -> Iterator[int]:
        for number in itertools.count(1):
            if time.monotonic() > self.until:
                return
            yield number

    @contextmanager
    def operator(self) -> Iterator[Operator]:
        with Operator(self.gateway.daemon) as operator:
            operator.warm_up()
            self.operators.append(operator)
            yield operator

    def request(self, method: str, path: str, status: int, document: object = None) -> None:
        reply = self.gateway.daemon.request(method, path, document)
        assert reply.status == status, (method, path, reply)

    # -- who works ---------------------------------------------------------------------------------------

    def send(self) -> None:
        """Messages for the chat, a few ahead of what the well lane has received, until all others end."""
        for number in itertools.count(1):
            if self.all_else_ended.is_set():
                return
            self.oracle.message(f"message {number}")
            self.gateway.receiver.wait_for(number - AHEAD, path="/well")

    def come_and_go(self) -> None:
        for number in self.rounds():
            path = f"/come-and-go-{number}"
            self.oracle.elsewhere.add(path)
            subscription = self.gateway.subscribe(path)
            owed_from = len(self.oracle.sent)
            self.gateway.receiver.wait_for(2, path=path)
            self.request("DELETE", f"/subscriptions/{subscription}", 204)
            self.ended.append(Ended(path, owed_from, len(self.gateway.receiver.on(path))))

    def revoke(self) -> None:
        """Keys with a subscription each are made and deleted."""
        with self.operator() as operator:
            for number in self.rounds():
                path = f"/revoked-{number}"
                self.oracle.elsewhere.add(path)
                made = operator.run("add-key", f"program {number}")
                assert made.status == 0, made
                self.gateway.daemon.subscribe(CHAT, self.gateway.callback_url(path), key=made.out.strip())
                owed_from = len(self.oracle.sent)
                self.gateway.receiver.wait_for(2, path=path)
                operator.run("delete-key", f"program {number}").well()
                self.ended.append(Ended(path, owed_from, len(self.gateway.receiver.on(path))))

    def retry_and_list(self) -> None:
        with self.operator() as operator:
            for _ in self.rounds():
                operator.run("retry-delivery", "--all").well()
                operator.run("list-failed-deliveries", "--json").well()
                operator.run("list-keys", "--json").well()

    def remove_in_flight(self) -> None:
        """The very job whose POST is held; what then comes of the POST, well or ill, is too late."""
        receiver, path = self.gateway.receiver, "/slow"
        self.oracle.elsewhere.add(path)
        lane = self.gateway.subscribe(path, SLOW_CHAT)
        with self.operator() as operator:
            for number in self.rounds():
                self.gateway.api.message(SLOW_CHAT, f"slow {number}")
                held = receiver.wait_for(number, path=path)[number - 1]
                ((job,),) = self.gateway.query(
                    "SELECT id FROM deliveries WHERE subscription_id = ? AND state = 'IN_FLIGHT'", lane
                )
                refused = operator.run("retry-delivery", str(job))
                assert (refused.status, str(job) in refused.err) == (1, True), refused
                operator.run("delete-delivery", str(job)).well()
                self.stale.append(held)
                held.answer((200, 503, 400)[number % 3])

    def move(self) -> None:
        """Groups become supergroups, with one program in both chats of each."""
        service = b'"message":{"chat":{"id":%d,"type":"supergroup"},"%b":%d}'
        for number in self.rounds():
            old, new, path = -1000 - number, -1_000_000 - number, f"/moved-{number}"
            self.oracle.elsewhere.add(path)
            stays = self.gateway.subscribe(path, old)
            self.gateway.subscribe(path, new)
            _, before = self.gateway.api.message(old, "in the group")
            _, early = self.gateway.api.message(new, "in the supergroup, early")
            self.gateway.api.push(service % (old, b"migrate_to_chat_id", new))
            self.gateway.api.push(service % (new, b"migrate_from_chat_id", old))
            _, after = self.gateway.api.message(new, "in the supergroup")
            self.gateway.receiver.wait_for(5, path=path)
            self.moved[path] = (stays, [before, early, after])

    def skip(self) -> None:
        """An update that cannot be parsed holds all up until it is stepped over."""
        with self.operator() as operator:
            for number in self.rounds():
                if number > 1:
                    arrived = len(self.gateway.receiver.on("/well"))
                    self.gateway.receiver.wait_for(arrived + 50, path="/well")
                update_id = self.gateway.api.push(MALFORMED)
                self.gateway.daemon.output.wait_for(rf"update {update_id}\b.*skip-update {update_id}")
                operator.run("skip-update", str(update_id)).well()
                self.gateway.api.wait_for_offset(update_id + 1)

    def back_up(self, directory: Path) -> None:
        """Both of SQLite's ways; each copy is sound."""
        for number in self.rounds():
            copy = directory / f"copy-{number}.db"
            with self.gateway.daemon.look() as source:
                if number % 2:
                    source.execute("VACUUM INTO ?", (str(copy),))
                else:
                    with closing(sqlite3.connect(copy)) as target:
                        source.backup(target, pages=8, sleep=0.001)
            with closing(sqlite3.connect(copy)) as copied:
                assert copied.execute("PRAGMA quick_check").fetchall() == [("ok",)]
                assert violations(copied.cursor()) == []
            copy.unlink()

    # -- what has to hold --------------------------------------------------------------------------------

    def judge_ended(self) -> None:
        """What was owed came in order and without a gap; after the end nothing but what was in flight."""
        ids = [sent.update_id for sent in self.oracle.sent if sent.chat_id == CHAT]
        place = {update_id: number for number, update_id in enumerate(ids)}
        for ended in self.ended:
            arrived = self.gateway.receiver.on(ended.path)
            assert len(arrived) <= ended.before + 1, f"posted after its end: {ended}"
            places = [place[number_of(callback)] for callback in arrived]
            assert places == list(range(places[0], places[0] + len(places))), (ended, places)
            assert places[0] <= ended.owed_from, f"missed what was sent after it was answered: {ended}"

    def judge_stale(self) -> None:
        """Each was posted once, though some were answered with failures: nobody brought them back."""
        arrived = self.gateway.receiver.on("/slow")
        assert arrived == self.stale
        numbers = [number_of(callback) for callback in arrived]
        assert numbers == sorted(set(numbers))

    def judge_moved(self) -> None:
        for path, (stays, bodies) in self.moved.items():
            arrived = self.gateway.receiver.on(path)
            lanes: dict[int, list[Callback]] = {}
            for callback in arrived:
                lanes.setdefault(int(callback.delivery_id.split("-")[1]), []).append(callback)
            for lane in lanes.values():
                numbers = [number_of(callback) for callback in lane]
                assert numbers == sorted(set(numbers)), (path, numbers)
            assert sorted(len(lane) for lane in lanes.values()) == [1, 4], path
            before, early, after = bodies
            assert [lanes[stays][0].body, lanes[stays][-1].body] == [before, after]
            (twin,) = (lane for number, lane in lanes.items() if number != stays)
            assert twin[0].body == early


def number_of(callback: Callback) -> int:
    return int(callback.delivery_id.rpartition("-")[2])


def policy(callback: Callback) -> int | None:
    """One lane's every tenth is refused for good at its first attempts; another's are held."""
    if callback.path == "/slow":
        return None
    if callback.path == "/refusing" and number_of(callback) % 10 == 0:
        return 400
    return 200


def together(scene: Scene, *works: Callable[[], None]) -> None:
    """All at once, and messages as long as one of them works; one that fails ends the others' time too."""
    with ThreadPoolExecutor(len(works) + 1) as pool:
        sending = pool.submit(scene.send)
        running = [pool.submit(work) for work in works]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        scene.until = 0.0
        wait(running)
        scene.all_else_ended.set()
        for each in (*done, *running, sending):
            each.result()


def rows(gateway: Gateway, table: str) -> int:
    ((count,),) = gateway.query(f"SELECT count(*) FROM {table}")
    return int(count)


def test_while_messages_flow(
    gateway: Gateway, oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nobody is told that the database is locked, and what has to hold of the queue holds all along."""
    gateway.receiver.policy = policy
    gateway.daemon.arguments = ("--max-subscriptions-per-key", "1000")
    gateway.start()
    for path in ("/well", "/refusing", "/other"):
        oracle.subscribe(path)
    scene = Scene(gateway, oracle)
    together(
        scene,
        scene.come_and_go,
        scene.revoke,
        scene.retry_and_list,
        scene.remove_in_flight,
        scene.move,
        scene.skip,
        lambda: scene.back_up(tmp_path_factory.mktemp("copies")),
    )
    gateway.receiver.policy = lambda callback: 200
    oracle.settle()
    scene.judge_ended()
    scene.judge_stale()
    scene.judge_moved()

    commands = [done for operator in scene.operators for done in operator.done]
    counts = {"commands": len(commands), "ended": len(scene.ended), "removed in flight": len(scene.stale)}
    longest = max(commands, key=lambda done: done.seconds)
    print(
        json.dumps(counts | {"moved": len(scene.moved), "sent": len(oracle.sent)}),
        f"longest command: {longest.command}, {longest.seconds:.2f} s",
    )
    assert min(counts.values()) > 0 and scene.moved
    said = gateway.daemon.output.text
    for word in ("locked", "busy", "not available", "backs off, the database"):
        assert word not in said, said
    eventually(lambda: bool(gateway.daemon.health()["status"] == "ok"))

    # All that is left is what is dead; without it nothing is.
    with Operator(gateway.daemon) as operator:
        dead = operator.run("list-failed-deliveries", "--json").well().json["deliveries"]
        if dead:
            operator.run("delete-delivery", *(str(job["id"]) for job in dead)).well()
    assert (rows(gateway, "deliveries"), rows(gateway, "payloads"), rows(gateway, "skip_marks")) == (0, 0, 0)
    assert rows(gateway, "lanes") == rows(gateway, "subscriptions") == 4 + len(scene.moved)


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)
