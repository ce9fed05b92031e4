"""A scriptable Bot API for tests that block; the rules of the real one: ``telegrammer.demo.stand_in``."""

from __future__ import annotations

import json
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
from tests.support.overheard import PAYLOAD

JSON = "Content-Type: application/json"


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
        super().__init__(tls=tls, port=port)

    # -- for the test ----------------------------------------------------------------------------------

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
                arguments[name] = int(arguments[name])
        call = Call(method, arguments, request)
        with self.changed:
            self.calls.append(call)
            self.changed.notify_all()
            scripted = self._scripts[method]
            answer = scripted.popleft() if scripted else self.fallback.get(method)
        if answer is None and token != self.token:
            answer = failure(401, "Unauthorized")
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
        wire.sendall(
            success({"url": "", "has_custom_certificate": False, "pending_update_count": len(self.queue)})
        )
        return True

    def _sendMessage(self, call: Call, wire: socket.socket) -> bool:
        chat_id, text = call.arguments["chat_id"], call.arguments["text"]
        chat = {"id": int(chat_id), "type": "private"}
        wire.sendall(success({"message_id": 1, "date": 1_793_000_000, "chat": chat, "text": text}))
        return True

    def _getUpdates(self, call: Call, wire: socket.socket) -> bool:
        offset, limit = call.arguments.get("offset", 0), call.arguments.get("limit", 100)
        until = time.monotonic() + call.arguments.get("timeout", 0)
        with self.changed:
            self.open_polls += 1
            self.most_open_polls = max(self.most_open_polls, self.open_polls)
            self.changed.notify_all()
            try:
                batch = [] if self.withhold else self.queue.take(offset, limit)
                while not batch and not self.closing and time.monotonic() < until:
                    self.changed.wait(0.05)
                    if has_left(wire):
                        return False
                    batch = [] if self.withhold else self.queue.take(offset, limit)
            finally:
                self.open_polls -= 1
                self.changed.notify_all()
        if self.closing:
            return False
        wire.sendall(success(b"[%b]" % b",".join(batch)))
        return True
