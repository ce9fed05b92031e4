"""Updates as Telegram pushes them: whole bodies, for the journal, and the same as elements of a batch."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from telegrammer.core.telegram import Batch, Malformed, Update
from telegrammer.core.updates import poll_outcome


def update(update_id: int, message: Mapping[str, Any] | None = None) -> bytes:
    """An update; without a message it is of a kind that is not served."""
    content = {"poll": {"id": "1"}} if message is None else {"message": message}
    return json.dumps({"update_id": update_id, **content}, separators=(",", ":")).encode()


def group(update_id: int, chat_id: int, **members: Any) -> bytes:
    """A message in a group; the members are the message's."""
    return update(update_id, {"chat": {"id": chat_id, "type": "group"}, "text": f"u{update_id}", **members})


def person(update_id: int, chat_id: int, username: str | None) -> bytes:
    """A message in the private chat of somebody with this username."""
    chat = {"id": chat_id, "type": "private"} | ({} if username is None else {"username": username})
    return update(update_id, {"chat": chat})


def malformed(update_id: int) -> bytes:
    """What no fold of this version can understand."""
    return update(update_id, {"chat": {"id": 0, "type": "group"}})


def polled(*bodies: bytes) -> tuple[Update | Malformed, ...]:
    """The same updates as ``getUpdates`` brings them."""
    outcome = poll_outcome(200, (), b'{"ok":true,"result":[' + b",".join(bodies) + b"]}")
    assert isinstance(outcome, Batch), outcome
    return outcome.elements


def statuses(connection: sqlite3.Connection) -> dict[int, str]:
    """Update id → status of each entry of the journal."""
    return dict(connection.execute("SELECT update_id, parse_status FROM journal ORDER BY id"))


def messages(connection: sqlite3.Connection) -> list[tuple[int, int, int, bytes]]:
    """(subscription, epoch, update id, message) of every job, in the order of the lanes."""
    return connection.execute(
        """
        SELECT d.subscription_id, d.epoch, d.update_id, CAST(p.body AS BLOB)
        FROM deliveries d JOIN payloads p ON p.id = d.payload_id
        ORDER BY d.subscription_id, d.epoch, d.update_id
        """
    ).fetchall()
