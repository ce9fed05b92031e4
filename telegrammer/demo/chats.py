"""The people and groups that the stand-in Bot API knows, and what is said between them and the bot."""

from __future__ import annotations

import json

from attrs import define, field, frozen

from telegrammer.demo.replies import Reply, blocked, failure, success, upgraded
from telegrammer.ports import Now

TEXT_LIMIT = 4096
"""Code points of one message."""

_TO_SPACE = {code: " " for code in range(32) if code not in (10, 13)} | {13: None}


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


@frozen
class SentMessage:
    """What the bot sent, and the envelope it was answered with."""

    chat_id: int
    text: str
    envelope: bytes


@define(eq=False)
class Conversations:
    """Who can be written to, who has left, and the numbers of the messages."""

    bot: dict[str, object]
    """The bot as a ``User``."""
    now: Now
    chats: dict[int, Chat] = field(factory=dict, init=False)
    blocked: set[int] = field(factory=set, init=False)
    """Chats whose people have blocked the bot."""
    moved: dict[int, int] = field(factory=dict, init=False)
    """Groups that became supergroups: old id to new."""
    _messages: int = field(default=0, init=False)

    def write(self, chat: Chat, **content: object) -> bytes:
        """Somebody writes in the chat, which the bot knows from now on; the message's JSON text."""
        self.chats[chat.id] = chat
        return encoded(self._message(chat, chat.author(), content))

    def move(self, group: Chat, new_id: int) -> tuple[bytes, bytes]:
        """The group becomes a supergroup; the service messages in the old chat and in the new one."""
        self.moved[group.id] = new_id
        after = Chat(new_id, group.title, group.username)
        return self.write(group, migrate_to_chat_id=new_id), self.write(after, migrate_from_chat_id=group.id)

    def send(self, chat_id: int, text: str) -> SentMessage | Reply:
        """What the bot wants said, or why it cannot be."""
        if chat_id in self.moved:
            return upgraded(self.moved[chat_id])
        if chat_id not in self.chats:
            return failure(400, "Bad Request: chat not found")
        if chat_id in self.blocked:
            return blocked()
        text = text.translate(_TO_SPACE).strip()
        if not text:
            return failure(400, "Bad Request: text must be non-empty")
        if len(text) > TEXT_LIMIT:
            return failure(400, "Bad Request: message is too long")
        message = self._message(self.chats[chat_id], self.bot, {"text": text})
        return SentMessage(chat_id, text, success(encoded(message)).body)

    def _message(
        self, chat: Chat, author: dict[str, object], content: dict[str, object]
    ) -> dict[str, object]:
        self._messages += 1
        return {
            "message_id": self._messages,
            "from": author,
            "chat": chat.described(),
            "date": int(self.now()),
        } | content
