"""Being pushed to: the answer to an update, against a bare INSERT behind HTTP, for 100 callers at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any
from urllib.request import urlopen

from twisted.internet.defer import Deferred, gatherResults

from benchmarks.callers import Tally, pushed
from benchmarks.daemon import daemon
from benchmarks.harness import KEY, Figure, State, at_most, middle, pause, peer, state
from telegrammer.core.subscriptions import SubscriptionLimits
from telegrammer.store import journal, subscriptions
from telegrammer.store.database import Database
from telegrammer.store.engine import connect
from telegrammer.store.journal import SqlJournal

CHATS = 100
SECRET = "benchbenchbenchbench"
WEBHOOK = ("--ingest", "webhook", "--webhook-url", "https://bot.example/telegram/webhook")


def push(port: int, path: str, first: int, each: int, key: str = "") -> dict[str, Any]:
    """Every chat's messages from number ``first`` on; all must be taken."""
    arguments = map(str, (port, path, SECRET, key, first, CHATS, each))
    output = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "push", *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    report: dict[str, Any] = json.loads(output)
    assert report["statuses"] == {"200": CHATS * each}, report["statuses"]
    return report


async def in_process(reactor: Any, each: int) -> Tally:
    """The journal alone: as many callers at once, without HTTP and without folding."""
    tally = Tally()
    with state() as made:
        database = Database(made.path, reactor)
        database.startService()
        accepting = SqlJournal(database, time.time)

        async def caller(chat: int) -> None:
            for number in range(1, each + 1):
                update_id = number * CHATS + chat
                began = time.perf_counter()
                accepted = await accepting.accept(update_id, pushed(update_id, chat, number))
                tally.times.append(time.perf_counter() - began)
                assert not accepted.is_repeat

        await gatherResults([Deferred.fromCoroutine(caller(chat)) for chat in range(CHATS)])
        await database.stopService()
    return tally


def prepare(made: State, receiver: int) -> None:
    """A subscription for each chat; and the secret is known."""
    limits = SubscriptionLimits(10**6, 10**6)
    with made.writing() as cursor:
        journal.enter_webhook_mode(cursor, SECRET)
        for chat in range(CHATS):
            url = f"http://127.0.0.1:{receiver}/chat/{chat}"
            subscriptions.add(cursor, 1, 1000 + chat, url, limits, time.time())


async def folded(reactor: Any, made: State, total: int) -> None:
    """Wait until the journal holds so many entries, and all are folded."""
    connection = connect(made.path)
    counts: dict[str, int] = {}
    until = time.monotonic() + 120
    while counts != {"folded": total}:
        assert time.monotonic() < until and "failed" not in counts, counts
        await pause(reactor, 0.02)
        counts = dict(connection.execute("SELECT parse_status, COUNT(*) FROM journal GROUP BY parse_status"))
    connection.close()


async def delivered(reactor: Any, receiver: int, total: int) -> None:
    """Wait until the receiver has had every message; the order is right."""
    came, out_of_order = 0, 0
    until = time.monotonic() + 120
    while came < total:
        assert time.monotonic() < until, came
        await pause(reactor, 0.05)
        with urlopen(f"http://127.0.0.1:{receiver}/chats", timeout=10) as answer:
            came, out_of_order = json.load(answer)
    assert (came, out_of_order) == (total, 0), (came, out_of_order)


async def a_burst(reactor: Any, quick: bool) -> list[Figure]:
    """10,000 updates over 100 connections, folded and delivered as well: p99 at most 5 bare INSERTs'."""
    rounds, each = (3, 15) if quick else (3, 100)
    ratios, ours, theirs, folds, loads = [], [], [], [], []
    with (
        state() as made,
        peer("upstream") as upstream,
        peer("receiver") as receiver,
        peer("inserter", str(made.folder / "bare.db")) as bare,
    ):
        prepare(made, receiver.port)
        with daemon(made, upstream.port, *WEBHOOK) as running:
            total = 0
            for number in range(rounds):
                first = 1 + number * each
                theirs.append(push(bare.port, "/", first, each))
                began, used = time.perf_counter(), running.cpu_seconds()
                ours.append(push(running.port, "/telegram/webhook", first, each, KEY))
                taken = time.perf_counter() - began
                loads.append((running.cpu_seconds() - used) / taken)
                total += CHATS * each
                await folded(reactor, made, total)
                folds.append(CHATS * each / (time.perf_counter() - began))
                await delivered(reactor, receiver.port, total)
                ratios.append(ours[-1]["p99"] / theirs[-1]["p99"])
    alone = (await in_process(reactor, each)).p99
    rate, bare_rate = (middle([report["rate"] for report in reports]) for reports in (ours, theirs))
    p99, bare_p99 = (middle([report["p99"] for report in reports]) * 1000 for reports in (ours, theirs))
    detail = (
        f"{rate:,.0f}/s (p99 {p99:.0f} ms) against {bare_rate:,.0f}/s (p99 {bare_p99:.0f} ms); folded"
        f" {middle(folds):,.0f}/s, {middle(loads):.2f} CPUs; the journal alone p99"
        f" {alone * 1000:.0f} ms"
    )
    health = [report["health"] for report in ours]
    asked = f"median {middle([each['p50'] for each in health]) * 1000:.0f} ms, worst"
    asked += f" {max(each['worst'] for each in health) * 1000:.0f} ms"
    return [
        at_most("pushed update p99 / bare INSERT", middle(ratios), 5, detail),
        at_most("/health p99 beside that (s)", middle([each["p99"] for each in health]), 0.5, asked),
    ]
