"""Which private chat was last seen under which username (contract 5.5)."""

from __future__ import annotations

import sqlite3

from attrs import frozen
from twisted.internet.defer import Deferred

from telegrammer.core.observations import Observation
from telegrammer.store.engine import Transactions

CHAT = "SELECT chat_id FROM usernames WHERE username = ?"
CONFIRM = "UPDATE usernames SET observed_at = ? WHERE chat_id = ? AND username = ?"
FORGET_CHAT = "DELETE FROM usernames WHERE chat_id = ?"
FORGET_NAME = "DELETE FROM usernames WHERE username = ?"
NEWER = "SELECT 1 FROM usernames WHERE observed_at >= ? AND (chat_id = ? OR username = ?) LIMIT 1"
LEARN = "INSERT INTO usernames(chat_id, username, observed_at) VALUES (?, ?, ?)"


def chat_of(cursor: sqlite3.Cursor, username: str) -> int | None:
    """The chat last seen under this (normalised) username."""
    row = cursor.execute(CHAT, (username,)).fetchone()
    return None if row is None else int(row[0])


def observe(cursor: sqlite3.Cursor, observation: Observation, at: int) -> None:
    """
    Make one observation the truth: one name a chat, one chat a name.

    Called for each message in order, so that names swapped within a batch end where they were last seen.

    :param at: when the message was received, in Unix seconds.
    """
    chat_id, username = observation.chat_id, observation.username
    if username is not None and cursor.execute(CONFIRM, (at, chat_id, username)).rowcount:
        return
    cursor.execute(FORGET_CHAT, (chat_id,))
    if username is not None:
        cursor.execute(FORGET_NAME, (username,))
        cursor.execute(LEARN, (chat_id, username, at))


def observe_late(cursor: sqlite3.Cursor, observation: Observation, at: int) -> None:
    """
    An observation of the past, whose turn has been missed: it holds unless something newer is known.

    Nothing is known of a name that was given up since, so such a one may come back.

    :param at: when the message was received, in Unix seconds.
    """
    newer = cursor.execute(NEWER, (at, observation.chat_id, observation.username)).fetchone()
    if newer is None:
        observe(cursor, observation, at)


@frozen
class SqlUsernames:
    """Implements ``ports.Usernames``."""

    database: Transactions

    def chat_of(self, username: str) -> Deferred[int | None]:
        return self.database.read(chat_of, username)
