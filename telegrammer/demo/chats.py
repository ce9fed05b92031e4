"""The people and groups that the stand-in Bot API knows, as Telegram's JSON describes them."""

from __future__ import annotations

import json

from attrs import frozen


@frozen
class Chat:
    """A private chat when ``id`` is positive, else a group (``-100…``: a supergroup)."""

    id: int
    title: str
    """The first name of the person, or the group's title."""
    username: str | None = None

    @property
    def type(self) -> str:
        if self.id > 0:
            return "private"
        return "supergroup" if self.id < -1_000_000_000_000 else "group"

    def described(self) -> dict[str, object]:
        """The ``Chat`` object of the Bot API."""
        chat: dict[str, object] = {"id": self.id}
        chat["first_name" if self.id > 0 else "title"] = self.title
        if self.username is not None:
            chat["username"] = self.username
        chat["type"] = self.type
        return chat

    def author(self) -> dict[str, object]:
        """The ``User`` who writes in it; in a group, one of its members."""
        user: dict[str, object] = {
            "id": self.id if self.id > 0 else 42,
            "is_bot": False,
            "first_name": self.title if self.id > 0 else "Member",
        }
        if self.id > 0 and self.username is not None:
            user["username"] = self.username
        return user | {"language_code": "en"}


def encoded(value: object) -> bytes:
    """JSON as Telegram writes it: compact, everything outside ASCII escaped."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")
