"""
The operator's commands on the database (contract 1.1, 3, 6).

Each opens a connection of its own and calls the same functions of a cursor as the daemon does, which acts on
what they committed within two seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from telegrammer.cli.arguments import WrongUsage
from telegrammer.config import database_path
from telegrammer.core.delivery import DeadJob
from telegrammer.core.keys import KEY_BYTES, check_name, digest, new_key
from telegrammer.core.problems import InvalidRequest, TelegrammerError
from telegrammer.core.requests import INT64_MAX
from telegrammer.core.subscriptions import KeyRecord
from telegrammer.logs import escaped
from telegrammer.store import deliveries, ingestion, keys, subscriptions
from telegrammer.store.engine import immediate, snapshot
from telegrammer.store.opening import connect_for_command


class NotFound(TelegrammerError):
    """What a command was to act on is not there; look at the listings, and at which database was meant."""


class NotShown(TelegrammerError):
    """A new key could not be printed, so there is none; try again with a standard output that works."""


@contextmanager
def _database(arguments: argparse.Namespace, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    path = database_path(arguments.flags, os.environ)
    with closing(connect_for_command(path, create=create, migrated=tell_of_migration)) as connection:
        yield connection


def tell_of_migration(version: int, backup: Path) -> None:
    """One line on standard error, for a command that had to migrate first."""
    print(
        f"telegrammer: the database was migrated from version {version}; its backup is {_shown(backup)}",
        file=sys.stderr,
    )


# -- keys ---------------------------------------------------------------------------------------------


def add_key(arguments: argparse.Namespace) -> int:
    """A new key, shown once, alone on standard output."""
    name = check_name(_typed(arguments.name))
    path = database_path(arguments.flags, os.environ)
    is_new = not path.exists() or path.stat().st_size == 0
    key = new_key(secrets.token_bytes(KEY_BYTES))
    with _database(arguments, create=True) as connection:
        with immediate(connection) as cursor:
            keys.add(cursor, name, digest(key), int(time.time()))
        try:
            print(
                f"telegrammer: key added to {'the new database ' if is_new else ''}{_shown(path)}",
                file=sys.stderr,
            )
            print(key, flush=True)
        except OSError:
            # Nobody has seen it and nobody ever will.
            with immediate(connection) as cursor:
                keys.delete(cursor, name)
            raise NotShown("the key could not be printed; it was deleted again") from None
    return 0


def list_keys(arguments: argparse.Namespace) -> int:
    """Names and creation times; keys of the C++ program are marked."""
    with _database(arguments) as connection, snapshot(connection) as cursor:
        found = keys.listing(cursor)
    if arguments.json:
        _print_json({"keys": [_key_document(key) for key in found]})
    else:
        for key in found:
            note = "  legacy: to be rotated" if key.legacy else ""
            print(f"{_moment(key.created_at)}  {key.name}{note}")
    return 0


def _key_document(key: KeyRecord) -> dict[str, object]:
    return {"name": key.name, "created_at": key.created_at, "legacy": key.legacy}


def delete_key(arguments: argparse.Namespace) -> int:
    """The key, its subscriptions and their jobs, in one transaction."""
    name = _typed(arguments.name)
    with _database(arguments) as connection, immediate(connection) as cursor:
        if not keys.delete(cursor, name):
            raise NotFound(f"no key is named {escaped(name)}")
    print("key deleted")
    return 0


# -- deliveries ---------------------------------------------------------------------------------------


def list_failed_deliveries(arguments: argparse.Namespace) -> int:
    """Dead jobs, without payloads and URLs."""
    subscription = _optional_id(arguments.subscription, "subscription")
    with _database(arguments) as connection, snapshot(connection) as cursor:
        found = deliveries.dead_jobs(cursor, subscription=subscription)
    if arguments.json:
        _print_json({"deliveries": [_job_document(job) for job in found]})
        return 0
    for job in found:
        print(
            f"{job.id}  subscription {job.subscription_id}  chat {job.chat_id}  update {job.update_id}  "
            f"attempts {job.attempts}  created {_moment(job.created_at)}  died {_moment(job.died_at)}  "
            f"{escaped(job.reason)}"
        )
    return 0


def _job_document(job: DeadJob) -> dict[str, object]:
    return {
        "id": job.id,
        "subscription_id": job.subscription_id,
        "chat_id": job.chat_id,
        "update_id": job.update_id,
        "attempts": job.attempts,
        "created_at": job.created_at,
        "died_at": job.died_at,
        "reason": job.reason,
    }


def retry_delivery(arguments: argparse.Namespace) -> int:
    """Jobs back to the queue with a fresh budget: those named, all dead ones, or those of a subscription."""
    ids = [_id(text, "delivery") for text in arguments.ids]
    subscription = _optional_id(arguments.subscription, "subscription")
    if (bool(ids), arguments.all, subscription is not None).count(True) != 1:
        raise WrongUsage("retry-delivery takes delivery ids, or --all, or --subscription N")
    with _database(arguments) as connection, immediate(connection) as cursor:
        if ids:
            count = deliveries.retry(cursor, ids, time.time())
        else:
            if subscription is not None and not subscriptions.exists(cursor, subscription):
                raise NotFound(f"there is no subscription {subscription}")
            count = deliveries.retry_all(cursor, time.time(), subscription)
    _print_count(count, "put back")
    return 0


def delete_delivery(arguments: argparse.Namespace) -> int:
    """Jobs removed for good."""
    ids = [_id(text, "delivery") for text in arguments.ids]
    with _database(arguments) as connection, immediate(connection) as cursor:
        count = deliveries.delete(cursor, ids, time.time())
    _print_count(count, "deleted")
    return 0


# -- ingestion ----------------------------------------------------------------------------------------


def skip_update(arguments: argparse.Namespace) -> int:
    """A mark that the next batch consumes (contract 5.4)."""
    update_id = _id(arguments.id, "update", least=0)
    with _database(arguments) as connection, immediate(connection) as cursor:
        ingestion.mark_skip(cursor, update_id, int(time.time()))
    print(f"update {update_id} is stepped over if it is malformed")
    return 0


# -- in and out ---------------------------------------------------------------------------------------


def _typed(name: str) -> str:
    """
    A name as its bytes mean it: UTF-8, whatever the locale made of them.

    :raises InvalidRequest: it is no UTF-8.
    """
    try:
        return os.fsencode(name).decode("utf-8")
    except UnicodeError:
        raise InvalidRequest("the name of a key must be valid UTF-8", "name") from None


def _id(text: str, what: str, least: int = 1) -> int:
    if re.fullmatch(r"[0-9]{1,19}", text) is None or not least <= int(text) <= INT64_MAX:
        raise WrongUsage(f"{what} ids are whole numbers from {least} to {INT64_MAX}")
    return int(text)


def _optional_id(text: str | None, what: str) -> int | None:
    return None if text is None else _id(text, what)


def _print_count(count: int, what: str) -> None:
    print(f"{count} {'delivery' if count == 1 else 'deliveries'} {what}")


def _print_json(document: object) -> None:
    json.dump(document, sys.stdout, ensure_ascii=False, indent=1)
    print()


def _moment(seconds: int) -> str:
    """ISO 8601 in UTC; the number itself where a calendar has no such day."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(seconds)


def _shown(path: Path) -> str:
    return escaped(str(path), 500)
