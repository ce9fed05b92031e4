"""
``telegrammer replay``: entries of the journal are folded again from their raw bodies (contract 8).

By the same player as the daemon's worker, so that an error means the same to both; over one connection of its
own, in the order of the journal, each entry in a transaction.  The store lets nobody fold an entry that waits
before an older one that does, so the command and a running daemon go in order together.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, TypeVar

from attrs import asdict, define, field
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from telegrammer.cli.arguments import WrongUsage
from telegrammer.cli.operator import NotFound, tell_of_migration
from telegrammer.config import folding_for_command
from telegrammer.core.folding import ALREADY, Outcome
from telegrammer.core.problems import UnknownEntry
from telegrammer.core.requests import INT64_MAX
from telegrammer.ingest.ingestor import Ingestor
from telegrammer.ingest.player import Player
from telegrammer.logs import escaped
from telegrammer.store import replaying
from telegrammer.store.engine import snapshot
from telegrammer.store.ingestion import SqlIngestion
from telegrammer.store.inline import InlineTransactions
from telegrammer.store.journal import SqlJournal
from telegrammer.store.opening import connect_for_command

T = TypeVar("T")

PORTION = 500
"""Entries that one selection brings."""
MOST_NAMED = 5
"""Failed entries that the line of the end names."""


def replay(arguments: argparse.Namespace) -> int:
    """
    Print the outcome.

    :returns: 1 when something failed or was deferred, else 0.
    :raises NotFound: there is no entry ``--id``.
    """
    chosen = (arguments.failed, arguments.since is not None, arguments.id is not None)
    if chosen.count(True) > 1:
        raise WrongUsage("replay takes one of --failed, --since T and --id N, or none")
    since = 0 if arguments.since is None else _moment(arguments.since)
    number = None if arguments.id is None else _number(arguments.id)
    path, max_jobs, fold_timeout = folding_for_command(arguments.flags, os.environ)
    with closing(connect_for_command(path, create=False, migrated=tell_of_migration)) as connection:
        run = _Replay(connection, max_jobs, fold_timeout)
        if number is None:
            run.play(run.kept(failed=arguments.failed, since=since))
        else:
            run.play(iter([run.find(number)]))
        if arguments.json:
            json.dump(asdict(run.done), sys.stdout)
            print()
        else:
            print(_shown(run.done))
        trouble = run.trouble()
    if trouble:
        print(f"telegrammer: {trouble}", file=sys.stderr)
    return 1 if trouble else 0


@define(eq=False)
class _Replay:
    """One run of the command."""

    connection: sqlite3.Connection
    max_jobs: int
    fold_timeout: float
    done: Outcome = field(default=Outcome(), init=False)
    _player: Player = field(init=False)
    _failed: list[int] = field(factory=list, init=False)
    """The first of those that failed."""
    _deferred: int | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        database = InlineTransactions(self.connection)
        ingestion = SqlIngestion(database, self.max_jobs, time.time, fold_seconds=self.fold_timeout)
        # A running daemon sees for itself that there are jobs: another process has committed.
        self._player = Player(Ingestor(ingestion, lambda: None), SqlJournal(database, time.time))

    def find(self, number: int) -> int:
        """:raises NotFound: there is none."""
        with snapshot(self.connection) as cursor:
            entry_id = replaying.find(cursor, number)
        if entry_id is None:
            raise NotFound(f"the journal has no entry {number}, and none of an update {number}")
        return entry_id

    def kept(self, *, failed: bool, since: int) -> Iterator[int]:
        """By portions, up to the last there is now: what comes later is the worker's."""
        with snapshot(self.connection) as cursor:
            until = replaying.last_entry(cursor)
        after = 0
        while True:
            with snapshot(self.connection) as cursor:
                if failed:
                    portion = replaying.failed(cursor, after, until, PORTION)
                else:
                    portion = replaying.kept(cursor, after, until, PORTION, since)
            yield from portion
            if len(portion) < PORTION:
                return
            after = portion[-1]

    def play(self, entries: Iterator[int]) -> None:
        """One after the other, to the first that is deferred: what follows may not overtake it."""
        for entry_id in entries:
            outcome = _at_once(self._play(entry_id))
            self.done += outcome
            if outcome.failed and len(self._failed) < MOST_NAMED:
                self._failed.append(entry_id)
            if outcome.deferred:
                self._deferred = entry_id
                return

    async def _play(self, entry_id: int) -> Outcome:
        try:
            return await self._player.play(entry_id)
        except UnknownEntry:
            # The daemon has let it go meanwhile, so it was folded.
            return ALREADY

    def trouble(self) -> str | None:
        """What is to be said of the end, in one line; None: nothing."""
        said: list[str] = []
        if self._failed:
            with snapshot(self.connection) as cursor:
                named = [_why(cursor, entry_id) for entry_id in self._failed]
            more = ", …" if self.done.failed > len(named) else ""
            said.append(f"{self.done.failed} cannot be folded: {', '.join(named)}{more}")
        if self._deferred is not None:
            said.append(f"entry {self._deferred} waits: {self._player.waits_for}")
        return "; ".join(said) or None


def _why(cursor: sqlite3.Cursor, entry_id: int) -> str:
    found = replaying.reason(cursor, entry_id)
    return f"entry {entry_id}" + ("" if found is None else f" (update {found[0]}: {escaped(str(found[1]))})")


def _at_once(work: Coroutine[Deferred[Any], Any, T]) -> T:
    """The result of a coroutine over what is done at once."""
    results: list[T | Failure] = []
    Deferred.fromCoroutine(work).addBoth(results.append)
    [result] = results
    if isinstance(result, Failure):
        result.raiseException()
    return result


def _shown(done: Outcome) -> str:
    return (
        f"folded {done.folded}, already {done.already}, unsupported {done.unsupported}, "
        f"failed {done.failed}, deferred {done.deferred}; jobs {done.jobs}, migrated {done.migrated}"
    )


def _number(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,19}", text) is None or int(text) > INT64_MAX:
        raise WrongUsage(f"--id takes a whole number from 0 to {INT64_MAX}")
    return int(text)


def _moment(text: str) -> int:
    """Unix seconds, of a number or a date and time; the second in which it lies."""
    if re.fullmatch(r"[0-9]{1,12}", text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() // 1)
    except (ValueError, OverflowError):
        raise WrongUsage("--since takes Unix seconds, or a date and time as ISO 8601 writes it") from None
