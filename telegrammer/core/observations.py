"""What a message teaches of usernames (contract 5.5)."""

from __future__ import annotations

from attrs import frozen

from telegrammer.core.telegram import Message


@frozen
class Observation:
    """A private chat was seen under ``username``, or (None) without one."""

    chat_id: int
    username: str | None
    """ASCII-lowercased."""


def observation_of(message: Message) -> Observation | None:
    """
    What the message teaches; None: nothing.

    Only a private chat has a person behind it.  An odd username is no proof that the known one is gone.
    """
    if message.chat_type != "private" or message.username_is_odd:
        return None
    return Observation(message.chat_id, message.username)
