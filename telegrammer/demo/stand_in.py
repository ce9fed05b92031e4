"""
A Bot API for one bot, without Telegram: what the demo and the tests talk to.

It follows core.telegram.org/bots/api where that page decides, and the open server (tdlib/telegram-bot-api)
where the page is silent: confirmation by offset, who gets the 409, how a wrong token is answered.
Messages come in through ``receive``, leave into ``sent``; ``script`` puts a fault before the next answer.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from attrs import define, field, frozen
from klein import Klein
from twisted.internet.defer import Deferred, DeferredQueue
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource

from telegrammer.demo.arguments import Arguments
from telegrammer.demo.chats import Chat, Conversations, SentMessage, encoded
from telegrammer.demo.held_poll import HeldPoll
from telegrammer.demo.replies import Reply, done, failure, success
from telegrammer.demo.update_queue import UpdateQueue
from telegrammer.ports import Now

LONGEST_POLL = 50
REPEATED_CONFLICT_DELAY = 3.0
"""Seconds: conflicts that follow one another closely are answered late."""
NOT_BY_DEFAULT = frozenset({"chat_member", "message_reaction", "message_reaction_count"})

_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{10,}\Z")

_WEBHOOK_ACTIVE = (
    "can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
)
_OTHER_POLL = "terminated by other getUpdates request; make sure that only one bot instance is running"
_SET_WEBHOOK = "terminated by setWebhook request"


@frozen
class Call:
    """One request that reached the API with the right token."""

    method: str
    """In lower case: the Bot API takes any."""
    arguments: Arguments


@frozen
class Received:
    """A message on its way to the bot."""

    update_id: int
    message: bytes
    """Its JSON text, byte for byte as ``getUpdates`` gives it."""


@define(eq=False, slots=False)  # Klein keeps the bound application in an attribute of the instance
class StandInBotApi:
    """The Bot API of the bot that ``token`` belongs to; ``resource()`` is what to serve."""

    app: ClassVar[Klein] = Klein()

    token: str = field(repr=False)
    clock: IReactorTime
    now: Now
    username: str = "demo_bot"
    queue: UpdateQueue = field(factory=lambda: UpdateQueue(next_id=100_001))
    webhook: str = ""
    """The URL of the webhook that is set, or nothing."""
    calls: list[Call] = field(factory=list, init=False)
    sent: list[SentMessage] = field(factory=list, init=False)
    conversations: Conversations = field(init=False)
    _allowed: frozenset[str] | None = field(default=None, init=False)
    _faults: dict[str, deque[Reply]] = field(factory=dict, init=False)
    _held: HeldPoll | None = field(default=None, init=False)
    _next_conflict_at: float = field(default=0.0, init=False)
    _outgoing: DeferredQueue[SentMessage] = field(factory=DeferredQueue, init=False)

    def __attrs_post_init__(self) -> None:
        self.conversations = Conversations(self._user(), self.now)

    @property
    def bot_id(self) -> int:
        return int(self.token.partition(":")[0])

    # -- the world's side ------------------------------------------------------------------------------

    def receive(self, chat: Chat, text: str) -> Received | None:
        """Somebody writes ``text`` in ``chat``; None when the bot has not asked for messages."""
        return self.receive_raw("message", self.conversations.write(chat, text=text))

    def receive_raw(self, kind: str, member: bytes) -> Received | None:
        """
        An update of a kind (``message``, ``edited_message``, …) with these very bytes.

        None when ``allowed_updates`` leaves it out, which counts when an update is made, not when it is
        asked for.
        """
        wanted = kind not in NOT_BY_DEFAULT if not self._allowed else kind in self._allowed
        if not wanted:
            return None
        update_id = self.queue.push(b'"%b":%b' % (kind.encode(), member))
        self.news()
        return Received(update_id, member)

    def move(self, group: Chat, new_id: int) -> None:
        """The group becomes a supergroup: two service messages, and the old id is of no use any more."""
        for message in self.conversations.move(group, new_id):
            self.receive_raw("message", message)

    def script(self, method: str, *replies: Reply) -> None:
        """The next calls of ``method`` get these answers, whatever they ask; nothing else happens."""
        self._faults.setdefault(method.lower(), deque()).extend(replies)

    def news(self) -> None:
        """Answer the poll that is held, if the queue has something for it."""
        held = self._held
        if held is None:
            return
        batch = self.queue.take(held.offset, held.limit)
        if batch:
            self._held = None
            held.answer(_batch(batch))

    @property
    def is_polled(self) -> bool:
        """True while a poll is held."""
        return self._held is not None

    def next_sent(self) -> Deferred[SentMessage]:
        """The next message that the bot sends, each once."""
        return self._outgoing.get()

    def resource(self) -> IResource:
        """The API as a web resource."""
        return self.app.resource()

    # -- the bot's side --------------------------------------------------------------------------------

    @app.route("/bot<token>/<method>", methods=["GET", "POST"])
    def _call(self, request: IRequest, token: str, method: str) -> Deferred[bytes] | bytes:
        if not _TOKEN.match(token):
            return failure(404, "Not Found").write(request)
        if token != self.token:
            return failure(401, "Unauthorized").write(request)
        try:
            arguments = Arguments.of(request)
        except ValueError:
            return failure(400, "Bad Request: can't parse request JSON object").write(request)
        name = method.lower()
        self.calls.append(Call(name, arguments))
        scripted = self._faults.get(name)
        if scripted:
            return scripted.popleft().write(request)
        handler = self._METHODS.get(name)
        if handler is None:
            return failure(404, "Not Found: method not found").write(request)
        answer = handler(self, arguments)
        if isinstance(answer, Reply):
            return answer.write(request)
        return answer.addCallback(lambda reply: reply.write(request))

    @app.route("/say", methods=["POST"])
    def _say(self, request: IRequest) -> bytes:
        """No part of the Bot API: what a person in the first chat writes to the bot, by hand."""
        text = Arguments.of(request).text("text")
        chats = list(self.conversations.chats.values())
        received = self.receive(chats[0], text) if chats and text else None
        request.setResponseCode(200 if received else 400)
        return received.message + b"\n" if received else b"nobody wrote anything\n"

    @app.route("/", branch=True)
    def _elsewhere(self, request: IRequest) -> Deferred[bytes] | bytes:
        return failure(404, "Not Found").write(request)

    def _get_me(self, arguments: Arguments) -> Reply:
        return success(
            encoded(
                self._user()
                | {
                    "can_join_groups": True,
                    "can_read_all_group_messages": False,
                    "supports_inline_queries": False,
                    "can_connect_to_business": False,
                    "has_main_web_app": False,
                }
            )
        )

    def _user(self) -> dict[str, object]:
        return {"id": self.bot_id, "is_bot": True, "first_name": "Demo", "username": self.username}

    def _get_updates(self, arguments: Arguments) -> Reply | Deferred[Reply]:
        offset = arguments.integer("offset", 0, -(2**31), 2**31 - 1)
        limit = arguments.integer("limit", 100, 1, 100)
        timeout = arguments.integer("timeout", 0, 0, LONGEST_POLL)
        if self.webhook:
            delay = self._conflict_delay()
            reply = failure(409, f"Conflict: {_WEBHOOK_ACTIVE}")
            return deferLater(self.clock, delay, lambda: reply) if delay else reply
        if "allowed_updates" in arguments.values:
            self._allowed = arguments.names("allowed_updates")
        batch = self.queue.take(offset, limit)
        if batch or not timeout:
            return _batch(batch)
        self._end_held_poll(_OTHER_POLL)
        held = self._held = HeldPoll(self.clock, offset, limit)
        held.answer(_batch([]), timeout)

        def forget(result: object) -> object:
            if self._held is held:
                self._held = None
            return result

        held.answered.addBoth(forget)
        return held.answered

    def _end_held_poll(self, why: str) -> None:
        """Of two polls the older one is told of the conflict."""
        held, self._held = self._held, None
        if held is not None:
            held.answer(failure(409, f"Conflict: {why}"), self._conflict_delay())

    def _conflict_delay(self) -> float:
        if self.clock.seconds() < self._next_conflict_at:
            return REPEATED_CONFLICT_DELAY
        self._next_conflict_at = self.clock.seconds() + REPEATED_CONFLICT_DELAY
        return 0.0

    def _send_message(self, arguments: Arguments) -> Reply:
        target, text = arguments.text("chat_id"), arguments.text("text")
        try:
            text.encode()
        except UnicodeEncodeError:
            return failure(400, "Bad Request: strings must be encoded in UTF-8")
        if not target:
            return failure(400, "Bad Request: chat_id is empty")
        if not text:
            return failure(400, "Bad Request: message text is empty")
        chat_id = arguments.integer("chat_id", 0, -(2**63), 2**63 - 1)
        message = self.conversations.send(chat_id, text)
        if isinstance(message, Reply):
            return message
        self.sent.append(message)
        self._outgoing.put(message)
        return Reply(body=message.envelope)

    def _get_webhook_info(self, arguments: Arguments) -> Reply:
        return success(
            encoded(
                {
                    "url": self.webhook,
                    "has_custom_certificate": False,
                    "pending_update_count": len(self.queue),
                }
            )
        )

    def _set_webhook(self, arguments: Arguments) -> Reply:
        url = arguments.text("url")
        if not url:
            return self._delete_webhook(arguments)
        if not url.lower().startswith("https://"):
            return failure(400, "Bad Request: bad webhook: An HTTPS URL must be provided for webhook")
        self._end_held_poll(_SET_WEBHOOK)
        if arguments.flag("drop_pending_updates"):
            self.queue.clear()
        if "allowed_updates" in arguments.values:
            self._allowed = arguments.names("allowed_updates")
        known, self.webhook = self.webhook, url
        return done("Webhook is already set" if known == url else "Webhook was set")

    def _delete_webhook(self, arguments: Arguments) -> Reply:
        if arguments.flag("drop_pending_updates"):
            self.queue.clear()
        known, self.webhook = self.webhook, ""
        return done("Webhook was deleted" if known else "Webhook is already deleted")

    _METHODS: ClassVar[dict[str, Callable[[StandInBotApi, Arguments], Reply | Deferred[Reply]]]] = {
        "getme": _get_me,
        "getupdates": _get_updates,
        "sendmessage": _send_message,
        "getwebhookinfo": _get_webhook_info,
        "setwebhook": _set_webhook,
        "deletewebhook": _delete_webhook,
    }


def _batch(updates: list[bytes]) -> Reply:
    return success(b"[%b]" % b",".join(updates))
