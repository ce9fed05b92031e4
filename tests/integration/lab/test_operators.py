"""Commands that meet the daemon, or one another, at the database: each does its work, or says why not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import define

from telegrammer.store.migrations import MIGRATIONS
from tests.support.barrier_daemon import barrier
from tests.support.daemon import PATIENCE, Daemon
from tests.support.gateway import Gateway, eventually
from tests.support.lab import FULL, full_only, repetitions
from tests.support.old_database import OLD_KEYS, old_database
from tests.support.operators import Done, Operator
from tests.support.oracle import Oracle

LOCKED = "telegrammer: another process has locked the database\n"
AT_ONCE = 3
WRITING = (
    ("add-key new", "delete-delivery 1"),
    ("delete-key test", "retry-delivery --all"),
    ("skip-update 5000", "retry-delivery 1"),
)


@pytest.fixture
def oracle(gateway: Gateway) -> Oracle:
    return Oracle(gateway)


@pytest.fixture(scope="module")
def hired() -> Iterator[list[Operator]]:
    """One for all tests, for each process that is started takes its time."""
    with ExitStack() as stack:
        nobody = Daemon(Path("/nonexistent"), "")
        operators = [stack.enter_context(Operator(nobody)) for _ in range(AT_ONCE)]
        for operator in operators:
            operator.warm_up()
        yield operators


@define(eq=False)
class Crew:
    operators: list[Operator]

    def at_once(self, *commands: Sequence[str]) -> list[Done]:
        """Each command by an operator of its own, all let go in the same moment; in their order."""
        start = threading.Barrier(len(commands))

        def give(operator: Operator, command: Sequence[str]) -> Done:
            start.wait(PATIENCE)
            return operator.run(*command)

        with ThreadPoolExecutor(len(commands)) as pool:
            given = [pool.submit(give, *both) for both in zip(self.operators, commands, strict=False)]
            return [each.result() for each in given]


@pytest.fixture
def crew(hired: list[Operator], gateway: Gateway) -> Crew:
    for operator in hired:
        operator.daemon = gateway.daemon
    return Crew(hired)


def one_of(done: Sequence[Done], refusal: str) -> Done:
    """The only one that did it; the others were told so in one line."""
    (well,) = (each for each in done if each.status == 0)
    for each in done:
        assert each is well or (each.status, each.out, each.err) == (1, "", f"telegrammer: {refusal}\n"), each
    return well


# -- the write lock -----------------------------------------------------------------------------------------


def opens(gateway: Gateway, pid: int) -> bool:
    """Whether the process has the database open."""
    held = Path("/proc", str(pid), "fd")
    links = []
    for descriptor in list(held.iterdir()):
        try:
            links.append(os.readlink(descriptor))
        except FileNotFoundError:  # closed meanwhile
            continue
    return str(gateway.daemon.db) in links


@full_only
@pytest.mark.parametrize("writing", WRITING, ids=" and ".join)
def test_while_the_daemon_holds_the_write_lock(
    gateway: Gateway, crew: Crew, oracle: Oracle, writing: tuple[str, str]
) -> None:
    """For as long as they wait, they are told that it is locked, and nothing is changed; reading goes on."""
    with barrier(gateway.daemon, "before the commit of: claim") as stand:
        gateway.start()
        oracle.subscribe()
        oracle.message("held up")
        stand.wait()
        done = crew.at_once(*(command.split() for command in writing), ("list-keys", "--json"))
        listing = done.pop().well()
        for each in done:
            assert (each.status, each.out, each.err) == (1, "", LOCKED), each
            assert 4.5 < each.seconds < PATIENCE, each
        assert [key["name"] for key in listing.json["keys"]] == ["test"]
        assert gateway.query("SELECT id, state FROM deliveries") == [(1, "PENDING")]
        stand.release()
    assert oracle.settle() == []
    assert gateway.query("SELECT name FROM keys") == [("test",)]


def test_once_the_daemon_gives_the_write_lock_back(gateway: Gateway, crew: Crew, oracle: Oracle) -> None:
    """A command that waits for it then does its work."""
    with barrier(gateway.daemon, "before the commit of: claim") as stand:
        gateway.start()
        oracle.subscribe()
        oracle.message("held up")
        stand.wait()
        operator = crew.operators[0]
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(operator.run, "retry-delivery", "--all")
            eventually(lambda: opens(gateway, operator.pid))
            assert not waits.done()
            stand.release()
            assert waits.result().well().out == "0 deliveries put back\n"
    assert oracle.settle() == []


# -- a migration --------------------------------------------------------------------------------------------


def test_while_the_daemon_migrates(gateway: Gateway, crew: Crew) -> None:
    """A command waits for the end of it, and is told who holds the lock when that takes too long."""
    daemon = gateway.daemon
    daemon.adopt(*old_database())
    point = f"after statement {len(MIGRATIONS[0])} of the migration"
    with barrier(daemon, point) as stand:
        daemon.launch()
        stand.wait()
        if FULL:
            listed, added = crew.at_once(("list-keys", "--json"), ("add-key", "new"))
            for each in (listed, added):
                assert (each.status, each.out, each.err.count("\n")) == (1, "", 1), each
                assert f"another process holds {daemon.db}.lock" in each.err, each
                assert 4 < each.seconds < PATIENCE, each
        with ThreadPoolExecutor(1) as pool:
            waits: Future[Done] = pool.submit(crew.operators[0].run, "list-keys", "--json")
            time.sleep(1)  # How much longer the migration takes.
            assert not waits.done(), waits.result()
            stand.release()
            assert len(waits.result().well().json["keys"]) == OLD_KEYS
    daemon.output.wait_for("listening on")
    assert gateway.query("SELECT count(*) FROM keys WHERE name = 'new'") == [(0,)]


@pytest.mark.parametrize("cycle", range(repetitions(1, 20)))
def test_commands_that_migrate_at_once(gateway: Gateway, crew: Crew, cycle: int) -> None:
    """One does, and says so; the others wait for it and find it done."""
    gateway.daemon.adopt(*old_database())
    done = crew.at_once(*[("list-keys", "--json")] * AT_ONCE)
    assert [each.status for each in done] == [0] * AT_ONCE, done
    assert [len(each.json["keys"]) for each in done] == [OLD_KEYS] * AT_ONCE
    (told,) = (each.err for each in done if each.err)
    (backup,) = gateway.daemon.state.glob("*.backup-*")
    assert told == f"telegrammer: the database was migrated from version 0; its backup is {backup}\n"


@pytest.mark.parametrize("cycle", range(repetitions(1, 20)))
def test_commands_that_make_the_database_at_once(gateway: Gateway, crew: Crew, cycle: int) -> None:
    """Each key is made, in one database."""
    names = [f"program {number}" for number in range(AT_ONCE)]
    done = crew.at_once(*(("add-key", name) for name in names))
    assert [each.status for each in done] == [0] * AT_ONCE, done
    assert len({each.out for each in done}) == AT_ONCE
    assert sorted(gateway.query("SELECT name FROM keys")) == [(name,) for name in names]


# -- the same command, by several ---------------------------------------------------------------------------


def test_the_same_command_at_once(gateway: Gateway, crew: Crew, oracle: Oracle) -> None:
    """It is done once; who came too late is told what he would have been told a minute later."""
    gateway.receiver.policy = lambda callback: 400
    gateway.start()
    oracle.subscribe()
    oracle.messages(3)
    oracle.settle()
    assert len(oracle.dead()) == 3

    done = crew.at_once(*[("add-key", "same")] * AT_ONCE)
    key = one_of_keys(done)
    assert gateway.daemon.request("GET", "/subscriptions", key=key).status == 200
    one_of(crew.at_once(*[("delete-key", "same")] * AT_ONCE), "no key is named same")
    assert gateway.daemon.request("GET", "/subscriptions", key=key).status == 401

    ((first,), *_) = gateway.query("SELECT id FROM deliveries ORDER BY id")
    done = crew.at_once(*[("delete-delivery", str(first))] * AT_ONCE)
    (well,) = (each for each in done if each.status == 0)
    assert well.out == "1 delivery deleted\n"
    for each in done:
        assert each is well or (each.status, str(first) in each.err) == (1, True), each
    assert len(oracle.dead()) == 2

    gateway.receiver.policy = lambda callback: 200
    done = crew.at_once(*[("retry-delivery", "--all")] * AT_ONCE)
    assert [each.status for each in done] == [0] * AT_ONCE
    assert sum(int(each.out.split()[0]) for each in done) == 2
    eventually(lambda: gateway.query("SELECT count(*) FROM payloads") == [(0,)])
    assert len(gateway.receiver.on("/hook")) == 3 + 2


def one_of_keys(done: Sequence[Done]) -> str:
    """The key that was made, and no other."""
    (well,) = (each for each in done if each.status == 0)
    for each in done:
        assert each is well or each.err == "telegrammer: a key of this name exists already\n", each
    return well.out.strip()
