"""The journal in a real database: many acceptances at once, and folds by several processes."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred, gatherResults

from telegrammer.core.folding import Outcome
from telegrammer.core.journal import Accepted
from telegrammer.core.subscriptions import SubscriptionLimits
from telegrammer.core.updates import update_id_of
from telegrammer.ingest.ingestor import Ingestor
from telegrammer.ingest.journal_worker import JournalWorker
from telegrammer.ingest.player import Player
from telegrammer.store import journal
from telegrammer.store.engine import connect, immediate
from telegrammer.store.ingestion import SqlIngestion
from telegrammer.store.journal import SqlJournal
from telegrammer.store.opening import connect_for_command
from telegrammer.store.recovery import violations
from telegrammer.store.subscriptions import SqlSubscriptions
from tests.integration.conftest import bounded
from tests.integration.test_cli import run, start
from tests.integration.test_database import database
from tests.support.daemon import PATIENCE
from tests.support.gateway import CHAT, Gateway, eventually, in_order
from tests.support.gateway import gateway as gateway_in
from tests.support.pushed import group, malformed, messages, statuses
from tests.support.queue_checks import add_key, subscribe
from tests.support.switching import eager_switching

__all__ = ["eager_switching"]

CHATS = 8
EACH = 40
WITHIN = 2.0
"""Seconds after which a daemon has acted on what another process committed (contract 1.1)."""


def number(body: bytes) -> int:
    found = update_id_of(body)
    assert found is not None
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.db"


# -- one process --------------------------------------------------------------------------------------


@bounded(60)
async def test_the_order_of_commits_is_the_order_of_folding(path: Path, reactor: Any) -> None:
    """Chats side by side, each in its order, a clock that jumps, folds and subscriptions in between."""
    order = Random(1)
    clock = Random(2)
    async with database(path, reactor) as service:
        with closing(connect(path)) as connection:
            owner = add_key(connection, "key")
            for chat in range(CHATS):
                subscribe(connection, owner, chat + 1)
        subscriptions = SqlSubscriptions(service, SubscriptionLimits(10_000, 10_000), time.time)
        keeper = SqlJournal(service, lambda: time.time() + clock.uniform(-50, 50))
        ingestor = Ingestor(SqlIngestion(service, 100_000, time.time), lambda: None)
        worker = JournalWorker(Player(ingestor, keeper), keeper, reactor, time.time, portion=7)

        async def one_chat(chat: int) -> list[Accepted]:
            accepted = []
            for step in range(EACH):
                body = group(step * CHATS + chat, chat + 1)
                accepted.append(await keeper.accept(number(body), body))
                if order.random() < 0.1:
                    worker.notify()
                if order.random() < 0.1:
                    # Too late for what is in the journal by now.
                    await subscriptions.add(owner, 99, f"http://h/{chat}/{step}")
            return accepted

        running = Deferred.fromCoroutine(worker.run())
        by_chat = await gatherResults([Deferred.fromCoroutine(one_chat(chat)) for chat in range(CHATS)])
        while (await keeper.counts()).pending:
            await worker.fold_pass()
        running.addErrback(lambda _: None).cancel()
        await running

        rows = await service.read(
            lambda cursor: cursor.execute(
                "SELECT id, received_at, update_id FROM journal ORDER BY id"
            ).fetchall()
        )
        assert len(rows) == CHATS * EACH
        # The answers came in the order of the ids within a chat, and neither column goes back.
        for accepted in by_chat:
            ids = [each.entry_id for each in accepted if each.entry_id is not None]
            assert len(ids) == EACH and ids == sorted(ids)
        assert [received for _, received, _ in rows] == sorted(received for _, received, _ in rows)
        # Jobs were made in that order, each once, whoever was faster.
        made = await service.read(
            lambda cursor: cursor.execute("SELECT update_id FROM deliveries ORDER BY id").fetchall()
        )
        assert [update_id for (update_id,) in made] == [update_id for _, _, update_id in rows]
        assert await service.read(lambda cursor: violations(cursor)) == []


# -- the command --------------------------------------------------------------------------------------


def test_a_replay_that_is_killed_leaves_whole_entries(tmp_path: Path, path: Path) -> None:
    """What it had folded is folded, and the next goes on behind it."""
    with closing(connect_for_command(path, create=True)) as connection:
        lane = subscribe(connection, add_key(connection, "key"), CHAT)
        with immediate(connection) as cursor:
            for update_id in range(3000):
                journal.accept(cursor, update_id, group(update_id, CHAT), 1_000_000)

        def count(status: str) -> int:
            return list(statuses(connection).values()).count(status)

        with start(tmp_path, "replay", "--db", str(path)) as command:
            eventually(lambda: count("folded") > 10)
            command.kill()
            command.communicate()
        done = count("folded")
        assert 10 < done < 3000
        assert violations(connection.cursor()) == []
        assert [job[2] for job in messages(connection)] == list(range(done))
        status, out, err = run(tmp_path, "replay", "--db", str(path))
        assert (status, err) == (0, "")
        assert out.startswith(f"folded {3000 - done}, already {done}, ")
        assert [job[:3] for job in messages(connection)] == [(lane, 0, number) for number in range(3000)]
        assert violations(connection.cursor()) == []


# -- beside the daemon --------------------------------------------------------------------------------


@pytest.fixture
def quarantining(tmp_path: Path) -> Iterator[Gateway]:
    with gateway_in(tmp_path, "--on-malformed", "quarantine") as three:
        three.start()
        three.subscribe()
        yield three


def replay(gateway: Gateway, *arguments: str) -> tuple[int, Outcome, str]:
    """Status, outcome, standard error of the command."""
    done = gateway.daemon.run("replay", "--json", *arguments)
    return done.returncode, Outcome(**json.loads(done.stdout)), done.stderr


def test_what_was_put_aside_is_delivered_after_an_upgrade(quarantining: Gateway) -> None:
    gateway = quarantining
    bad = gateway.api.push(b'"message":{"chat":{"id":0,"type":"group"}}')
    _, body = gateway.api.message(CHAT, "after it")
    [callback] = gateway.receiver.wait_for(1)
    assert callback.body == body
    assert gateway.daemon.health()["components"]["ingestion"]["reason"] is None, "it holds nothing up"
    status, outcome, err = replay(gateway, "--failed")
    assert (status, outcome) == (1, Outcome(failed=1))
    assert err.startswith(f"telegrammer: 1 cannot be folded: entry 1 (update {bad}: message.chat.id ")
    # What the new version understands.
    understood = b'{"chat":{"id":%d,"type":"group"},"n":1.0}' % CHAT
    with closing(connect(gateway.daemon.db)) as connection, immediate(connection) as cursor:
        whole = b'{"update_id":%d,"message":%b}' % (bad, understood)
        cursor.execute("UPDATE journal SET body = ?", (whole,))
    assert replay(gateway, "--failed") == (0, Outcome(folded=1, jobs=1), "")
    began = time.monotonic()
    callback = gateway.receiver.wait_for(2)[1]
    assert time.monotonic() - began < WITHIN
    assert callback.body == understood and callback.delivery_id.endswith(f"-{bad}")
    assert replay(gateway) == (0, Outcome(already=1), "")
    assert replay(gateway, "--id", str(bad)) == (0, Outcome(already=1), "")


def test_the_command_and_the_daemon_go_in_order_together(quarantining: Gateway) -> None:
    """Entries come while three commands and the worker fold: each is folded once, in its order."""
    gateway = quarantining
    bodies = [
        malformed(update_id) if update_id % 50 == 7 else group(update_id, CHAT) for update_id in range(400)
    ]
    commands: list[subprocess.Popen[str]] = []
    arrived = threading.Event()

    def push() -> None:
        with closing(connect(gateway.daemon.db)) as connection:
            for count, body in enumerate(bodies):
                with immediate(connection) as cursor:
                    journal.accept(cursor, number(body), body, int(time.time()))
                if count == len(bodies) // 4:
                    arrived.set()

    pushing = threading.Thread(target=push)
    pushing.start()
    try:
        assert arrived.wait(PATIENCE)
        commands += [start(gateway.daemon.state, "replay", "--db", str(gateway.daemon.db)) for _ in range(3)]
        for command in commands:
            out, err = command.communicate(timeout=PATIENCE)
            # It met the malformed, or an entry that was another's turn.
            assert command.returncode in (0, 1), err
            assert out.startswith("folded "), err
    finally:
        pushing.join()
        for command in commands:
            command.kill()
            command.communicate()
    sound = [body for body in bodies if b'"id":0' not in body]

    def folded() -> bool:
        with gateway.daemon.look() as connection:
            return "pending" not in statuses(connection).values()

    eventually(folded)
    expected = [body[body.index(b'"message":') + 10 : -1] for body in sound]
    assert in_order(gateway.receiver.wait_for(len(sound)), expected) == []
    assert replay(gateway)[1] == Outcome(already=len(sound), failed=len(bodies) - len(sound))


def test_the_text_of_what_is_folded_is_kept_for_its_retention(tmp_path: Path) -> None:
    """Its identity for longer, so that a repeat makes no second job; a failed one keeps its text."""
    with gateway_in(tmp_path, "--journal-retention", "1s") as gateway:
        gateway.start_with_webhook()
        gateway.subscribe()
        update_id, body = gateway.api.message(CHAT, "once")
        # Chats are pushed beside one another: the second only when the first is through.
        gateway.receiver.wait_for(1)
        bad = gateway.api.push(b'"message":{"chat":{"id":0,"type":"group"}}')
        kept = "SELECT update_id, parse_status, body IS NOT NULL FROM journal ORDER BY id"
        eventually(lambda: gateway.query(kept) == [(update_id, "folded", 0), (bad, "failed", 1)])
        repeat = b'{"update_id":%d,"message":%b}' % (update_id, body)
        assert gateway.api.pusher.call(repeat).status == 200
        assert replay(gateway, "--since", "0") == (
            1,
            Outcome(already=1, failed=1),
            f"telegrammer: 1 cannot be folded: entry 2 (update {bad}: message.chat.id is not a 64-bit integer"
            " other than 0)\n",
        )
        _, last = gateway.api.message(CHAT, "and then")
        assert [callback.body for callback in gateway.receiver.wait_for(2)] == [body, last]
