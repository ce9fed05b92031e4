"""What the measurements share: other processes, a filled database, a line for each figure."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from attrs import define, field, frozen
from twisted.internet.defer import Deferred

from telegrammer.core.keys import digest
from telegrammer.core.subscriptions import SubscriptionLimits
from telegrammer.core.telegram import Batch, Message, Update
from telegrammer.store import ingestion, keys, subscriptions
from telegrammer.store.engine import connect, immediate
from telegrammer.store.opening import open_state

BOT_ID = 4242
TOKEN = f"{BOT_ID}:AAHbenchbenchbenchbenchbenchbenchbench"
KEY = "5" * 64
CHAT = 5
BODY = b'{"message_id":1,"date":1793000000,"chat":{"id":5,"type":"private"},"text":"' + b"x" * 700 + b'"}'


@frozen
class Figure:
    """One measurement, as a ratio or in seconds, and what is asked of it."""

    name: str
    value: float
    wanted: str
    holds: bool
    detail: str
    is_off: bool = False
    """It misses by more than a third: no matter of a noisy machine."""

    def __str__(self) -> str:
        verdict = "ok" if self.holds else "SHORT"
        return f"{verdict:5}  {self.name:34} {self.value:8.3f}  (wanted {self.wanted})  {self.detail}"


def at_least(name: str, value: float, bound: float, detail: str) -> Figure:
    return Figure(name, value, f">= {bound:g}", value >= bound, detail, value < bound * 2 / 3)


def at_most(name: str, value: float, bound: float, detail: str) -> Figure:
    return Figure(name, value, f"<= {bound:g}", value <= bound, detail, value > bound * 3 / 2)


def middle(values: list[float]) -> float:
    return median(values)


@define(eq=False)
class Peer:
    """A process of ``benchmarks.peers`` that serves; ``port`` is where."""

    process: subprocess.Popen[str]
    port: int


@contextmanager
def peer(*arguments: str) -> Iterator[Peer]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Peer(process, int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


@define(eq=False)
class State:
    """A new database in a directory of its own, with one key."""

    folder: Path
    path: Path = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.path = self.folder / "bench.db"
        open_state(self.path, bot_digits=BOT_ID, now=time.time)
        with self.writing() as cursor:
            ingestion.bind(cursor, BOT_ID)
            keys.add(cursor, "bench", digest(KEY), time.time())

    @contextmanager
    def writing(self) -> Iterator[Any]:
        with closing(connect(self.path)) as connection, immediate(connection) as cursor:
            yield cursor

    def subscribe(self, urls: list[str], chat: int = CHAT) -> None:
        limits = SubscriptionLimits(10**6, 10**6)
        with self.writing() as cursor:
            for url in urls:
                subscriptions.add(cursor, 1, chat, url, limits, time.time())

    def ingest(self, first: int, count: int, chat: int = CHAT) -> int:
        with self.writing() as cursor:
            return ingestion.accept(cursor, batch(first, count, chat), 10**7, int(time.time())).jobs


@contextmanager
def state() -> Iterator[State]:
    with tempfile.TemporaryDirectory(prefix="telegrammer-bench-") as folder:
        yield State(Path(folder))


def batch(first: int, count: int, chat: int = CHAT) -> Batch:
    return Batch(tuple(Update(first + n, Message(chat, "private", BODY)) for n in range(count)))


def pause(reactor: Any, seconds: float) -> Deferred[None]:
    waited: Deferred[None] = Deferred()
    reactor.callLater(seconds, waited.callback, None)
    return waited
