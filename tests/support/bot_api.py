"""A scriptable Bot API for tests that block; the rules of the real one: ``telegrammer.demo.stand_in``."""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from attrs import field, frozen

from telegrammer.demo.update_queue import UpdateQueue
from tests.support.daemon import PATIENCE, TOKEN
from tests.support.http_server import HttpServer, Request, has_left, response
from tests.support.overheard import OVERHEARD, PAYLOAD
from tests.support.pusher import DEFAULT_CONNECTIONS, MOST_CONNECTIONS, Pusher

JSON = "Content-Type: application/json"

WEBHOOK_ACTIVE = (
    "Conflict: can't use getUpdates method while webhook is active;"
    " use deleteWebhook to delete the webhook first"
)
OTHER_POLL = (
    "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
)
SET_WEBHOOK = "Conflict: terminated by setWebhook request"
REPEATED_CONFLICT_DELAY = 3.0
"""Seconds: a 409 that follows another that soon is answered so late."""
LONGEST_POLL = 50
NOT_BY_DEFAULT = ("chat_member", "message_reaction", "message_reaction_count")

_SECRET = re.compile(r"[A-Za-z0-9_-]{0,256}").fullmatch
_TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]{10,}").fullmatch


@frozen
class Call:
    """One Bot API call."""

    method: str
    arguments: Mapping[str, Any]
    request: Request
    at: float = field(factory=time.monotonic)
    """When it arrived (monotonic)."""


Answer = bytes | Callable[[Call, socket.socket], bool]
"""The bytes of a whole response; or does it all itself and says whether the connection goes on."""


def success(result: object) -> bytes:
    text = result if isinstance(result, bytes) else json.dumps(result).encode()
    return response(200, b'{"ok":true,"result":%b}' % text, JSON)


def failure(code: int, description: str, *fields: str, **parameters: object) -> bytes:
    envelope: dict[str, object] = {"ok": False, "error_code": code, "description": description}
    if parameters:
        envelope["parameters"] = parameters
    return response(code, json.dumps(envelope).encode(), JSON, *fields)


def hang_up(call: Call, wire: socket.socket) -> bool:
    """Close without an answer."""
    return False


class BotApi(HttpServer):
    """
    Confirms by offset, holds polls, counts them; ``script`` and ``fallback`` put other answers in.

    Of two polls that are held the older ends with a 409, and so does every one while ``webhook`` is set.
    What waits is then pushed by ``pusher``.
    ``withhold``: from now on no poll is answered, whatever is in the queue.
    """

    def __init__(
        self, token: str = TOKEN, first_id: int = 1000, tls: ssl.SSLContext | None = None, port: int = 0
    ) -> None:
        self.token = token
        self.queue = UpdateQueue(next_id=first_id)
        self.calls: list[Call] = []
        self.withhold = False
        self.open_polls = 0
        self.most_open_polls = 0
        self.fallback: dict[str, Answer] = {}
        """Answers of a method whenever nothing is scripted for it."""
        self._scripts: defaultdict[str, deque[Answer]] = defaultdict(deque)
        self._messages = 0
        self._allowed: list[str] = []
        self._newest_poll = 0
        self._why_older_ends = OTHER_POLL
        self._last_conflict = -REPEATED_CONFLICT_DELAY
        super().__init__(tls=tls, port=port)
        self.pusher = Pusher(self.queue, self.changed)

    def close(self) -> None:
        self.pusher.close()
        super().close()

    # -- for the test ----------------------------------------------------------------------------------

    @property
    def webhook(self) -> str:
        """The URL of the webhook that is set, or nothing; set here, nothing is pushed to it."""
        return self.pusher.url

    @webhook.setter
    def webhook(self, url: str) -> None:
        with self.changed:
            self.pusher.point(url)
            self._end_polls()

    def script(self, method: str, *answers: Answer) -> None:
        """The next calls of ``method`` get these answers."""
        with self.changed:
            self._scripts[method].extend(answers)

    def push(self, member: bytes) -> int:
        """Queue an update with this member; its id."""
        with self.changed:
            update_id = self.queue.push(member)
            self.changed.notify_all()
            return update_id

    def arrive(self, kind: str, member: bytes) -> int | None:
        """
        Queue an update of a kind (``message``, ``callback_query``, …); None when the bot does not want it.

        What it asked for counts when an update is made: what is pushed is older than that.
        """
        with self.changed:
            wanted = kind in self._allowed if self._allowed else kind not in NOT_BY_DEFAULT
        return self.push(b'"%b":%b' % (kind.encode(), member)) if wanted else None

    def message(self, chat_id: int, text: str, **chat: object) -> tuple[int, bytes]:
        """Queue a message; its update id and its JSON text."""
        self._messages += 1
        kind = "private" if chat_id > 0 else "supergroup"
        message = {
            "message_id": self._messages,
            "date": 1_793_000_000,
            "chat": {"id": chat_id, "type": kind} | chat,
            "text": text,
            "author_signature": PAYLOAD,
        }
        encoded = json.dumps(message).encode()
        return self.push(b'"message":' + encoded), encoded

    def of(self, method: str) -> list[Call]:
        with self.changed:
            return [call for call in self.calls if call.method == method]

    def wait_for_calls(self, method: str, count: int, seconds: float = PATIENCE) -> list[Call]:
        """Wait until so many calls of ``method`` have arrived."""
        self.wait_until(lambda: sum(call.method == method for call in self.calls) >= count, seconds)
        return self.of(method)

    def wait_for_offset(self, offset: int) -> None:
        """Wait until a poll asks for ``offset`` or beyond: everything below is confirmed."""
        self.wait_until(
            lambda: any(call.arguments.get("offset", 0) >= offset for call in self.of("getUpdates"))
        )

    # -- for the daemon --------------------------------------------------------------------------------

    def respond(self, request: Request, wire: socket.socket) -> bool:
        address = urlsplit(request.target)
        arguments: dict[str, Any] = dict(parse_qsl(address.query))
        if request.headers.get("content-type", "").startswith("application/json"):
            arguments.update(json.loads(request.body))
        else:
            arguments.update(parse_qsl(request.body.decode()))
        _, _, rest = address.path.partition("/bot")
        token, _, method = rest.partition("/")
        for name in ("offset", "limit", "timeout"):
            if name in arguments:
                arguments[name] = _number(arguments[name])
        call = Call(method, arguments, request)
        with self.changed:
            self.calls.append(call)
            self.changed.notify_all()
            scripted = self._scripts[method]
            answer = scripted.popleft() if scripted else self.fallback.get(method)
        if answer is None and token != self.token:
            answer = failure(401, "Unauthorized") if _TOKEN(token) else failure(404, "Not Found")
        if answer is None:
            answer = getattr(self, f"_{method}", self._unknown)
        if isinstance(answer, bytes):
            wire.sendall(answer)
            return True
        return answer(call, wire)

    def _unknown(self, call: Call, wire: socket.socket) -> bool:
        wire.sendall(failure(404, "Not Found: method not found"))
        return True

    def _getMe(self, call: Call, wire: socket.socket) -> bool:
        bot = {"id": int(self.token.partition(":")[0]), "is_bot": True, "first_name": "Bot"}
        wire.sendall(success(bot | {"username": "test_bot", "can_read_all_group_messages": False}))
        return True

    def _getWebhookInfo(self, call: Call, wire: socket.socket) -> bool:
        with self.changed:
            info: dict[str, object] = {"url": self.webhook, "has_custom_certificate": False}
            info["pending_update_count"] = len(self.queue)
            if self.webhook:
                info["max_connections"] = self.pusher.max_connections
                if self._allowed:
                    info["allowed_updates"] = self._allowed
                if self.pusher.last_error is not None:
                    info["last_error_date"], info["last_error_message"] = self.pusher.last_error
        wire.sendall(success(info))
        return True

    def _setWebhook(self, call: Call, wire: socket.socket) -> bool:
        url, secret = str(call.arguments.get("url", "")), str(call.arguments.get("secret_token", ""))
        if not url:
            return self._deleteWebhook(call, wire)
        address = urlsplit(url)
        if address.scheme != "https":
            why = "bad webhook: An HTTPS URL must be provided for webhook"
        elif address.port not in (None, 443, 80, 88, 8443):
            why = "bad webhook: Webhook can be set up only on ports 80, 88, 443 or 8443"
        elif not _SECRET(secret):
            why = "secret token contains unallowed characters"
        else:
            why = ""
        if why:
            wire.sendall(failure(400, f"Bad Request: {why}"))
            return True
        most = _number(call.arguments.get("max_connections", 0)) or DEFAULT_CONNECTIONS
        if len(secret) >= 16:
            OVERHEARD.must_not_show("webhook secret", secret)
        with self.changed:
            self._allow(call)
            self._drop(call)
            self.pusher.set(url, secret, min(max(most, 1), MOST_CONNECTIONS))
            self._end_polls()
        wire.sendall(success(b"true"))
        return True

    def _deleteWebhook(self, call: Call, wire: socket.socket) -> bool:
        with self.changed:
            self._drop(call)
            self.pusher.point("")
        wire.sendall(success(b"true"))
        return True

    def _allow(self, call: Call) -> None:
        if "allowed_updates" in call.arguments:
            allowed = call.arguments["allowed_updates"]
            self._allowed = json.loads(allowed) if isinstance(allowed, str) else list(allowed)

    def _drop(self, call: Call) -> None:
        if str(call.arguments.get("drop_pending_updates", "")).lower() in ("true", "1"):
            self.queue.clear()

    def _end_polls(self) -> None:
        if self.webhook:
            self._newest_poll += 1
            self._why_older_ends = SET_WEBHOOK
        self.changed.notify_all()

    def _sendMessage(self, call: Call, wire: socket.socket) -> bool:
        chat_id, text = call.arguments["chat_id"], call.arguments["text"]
        chat = {"id": int(chat_id), "type": "private"}
        wire.sendall(success({"message_id": 1, "date": 1_793_000_000, "chat": chat, "text": text}))
        return True

    def _getUpdates(self, call: Call, wire: socket.socket) -> bool:
        offset = call.arguments.get("offset", 0)
        limit = min(max(call.arguments.get("limit", 100), 1), 100)
        until = time.monotonic() + min(max(call.arguments.get("timeout", 0), 0), LONGEST_POLL)
        if self.webhook:
            return self._conflict(WEBHOOK_ACTIVE, wire)
        with self.changed:
            self._allow(call)
            self.open_polls += 1
            self.most_open_polls = max(self.most_open_polls, self.open_polls)
            number = None
            self.changed.notify_all()
            try:
                batch = self._batch(offset, limit)
                if not batch and time.monotonic() < until:
                    # One that is answered at once ends no other.
                    self._newest_poll += 1
                    self._why_older_ends = OTHER_POLL
                    number = self._newest_poll
                while not batch and not self.closing and time.monotonic() < until:
                    self.changed.wait(0.05)
                    if has_left(wire):
                        return False
                    if number != self._newest_poll:
                        break
                    batch = self._batch(offset, limit)
            finally:
                self.open_polls -= 1
                self.changed.notify_all()
        if self.closing:
            return False
        if number not in (None, self._newest_poll) and not batch:
            return self._conflict(self._why_older_ends, wire)
        wire.sendall(success(b"[%b]" % b",".join(batch)))
        return True

    def _batch(self, offset: int, limit: int) -> list[bytes]:
        return [] if self.withhold else self.queue.take(offset, limit)

    def _conflict(self, why: str, wire: socket.socket) -> bool:
        with self.changed:
            now = time.monotonic()
            soon = now < self._last_conflict + REPEATED_CONFLICT_DELAY
            self._last_conflict = now
            if soon and self.changed.wait_for(lambda: self.closing, REPEATED_CONFLICT_DELAY):
                return False
        wire.sendall(failure(409, why))
        return True


def _number(text: object) -> int:
    """As the real one reads numbers: what is none is 0."""
    try:
        return int(str(text))
    except ValueError:
        return 0
