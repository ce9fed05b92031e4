"""
Telegram's side of a webhook, for tests that block: pushes what waits, as the real one does.

The updates of one chat go one after the other, those of different chats beside one another, over as many
connections as the webhook allows.  Any 2xx is the end of an update; otherwise it is repeated after 1 s, then
twice that and so on, or after what ``Retry-After`` says (tdlib/telegram-bot-api, ``WebhookActor.cpp``).
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

from attrs import define, field, frozen

from telegrammer.demo.update_queue import UpdateQueue
from tests.support.daemon import PATIENCE, Reply

SECRET = "X-Telegram-Bot-Api-Secret-Token"
DEFAULT_CONNECTIONS = 40
MOST_CONNECTIONS = 100
FIRST_WAIT = 1.0
LONGEST_WAITS = (60.0, 120.0)
LONGEST_RETRY_AFTER = 3600
REUSED = 2.0
"""Seconds for which an idle connection is used again; the daemon closes it after 5."""

BY_USER = ("callback_query", "inline_query", "chosen_inline_result", "shipping_query", "pre_checkout_query")


@frozen
class Push:
    """One call of the webhook."""

    update_id: int
    status: int | None
    """None: no whole answer came."""
    error: str
    """As ``getWebhookInfo`` would say it; empty when it was taken."""
    wait: float | None
    """Seconds that Telegram waits before it repeats the update; None: it does not."""
    began: float
    ended: float
    answer: bytes = b""


@define(eq=False)
class _Lane:
    """The updates of one chat."""

    busy: bool = False
    delay: float = FIRST_WAIT
    failures: int = 0
    not_before: float = 0.0


@define(eq=False)
class Pusher:
    """
    Pushes a queue to the webhook that is set.

    :param changed: guards the queue and all that is kept here; notified on every change.
    """

    queue: UpdateQueue
    changed: threading.Condition
    route: Callable[[], str] = lambda: ""
    """Where the proxy in front of the webhook leads, as ``http://host:port``; nothing: it is down."""
    scale: float = 0.01
    """Seconds of the test for one of Telegram's waits."""
    answer_within: float = PATIENCE
    """Seconds of the test that an answer may take."""
    heard: Callable[[Push], None] = lambda push: None
    """Called after each call of the webhook, before any that comes of it."""
    paused: bool = False
    """Nothing new is pushed meanwhile; see `pause` and `go_on`."""
    url: str = field(default="", init=False)
    secret: str = field(default="", init=False, repr=False)
    max_connections: int = field(default=DEFAULT_CONNECTIONS, init=False)
    pushes: list[Push] = field(factory=list, init=False)
    confirmed: set[int] = field(factory=set, init=False)
    """What was answered with 2xx, and is therefore Telegram's no more."""
    last_error: tuple[int, str] | None = field(default=None, init=False)
    """Unix seconds and Telegram's words."""
    most_in_flight: int = field(default=0, init=False)
    _pushing: bool = field(default=False, init=False)
    _generation: int = field(default=0, init=False)
    _closed: bool = field(default=False, init=False)
    _lanes: dict[object, _Lane] = field(factory=dict, init=False)
    _chats: dict[int, object] = field(factory=dict, init=False)
    _in_flight: set[http.client.HTTPConnection] = field(factory=set, init=False)
    _idle: deque[tuple[http.client.HTTPConnection, str, float]] = field(factory=deque, init=False)
    _feeder: threading.Thread | None = field(default=None, init=False)
    _pool: ThreadPoolExecutor = field(factory=lambda: ThreadPoolExecutor(MOST_CONNECTIONS), init=False)

    # -- the webhook -------------------------------------------------------------------------------------

    def set(self, url: str, secret: str, max_connections: int = DEFAULT_CONNECTIONS) -> None:
        """
        Push to this webhook from now on.  Calls of the one before are torn, and their answers lost.

        Set again as it is, nothing changes: what waits to be repeated goes on waiting.
        """
        with self.changed:
            if self._pushing and (url, secret, max_connections) == (
                self.url,
                self.secret,
                self.max_connections,
            ):
                return
            self._point(url)
            self.secret, self.max_connections, self._pushing = secret, max_connections, True
            if self._feeder is None:
                self._feeder = threading.Thread(target=self._feed, daemon=True)
                self._feeder.start()

    def point(self, url: str) -> None:
        """A webhook is set to which nothing is pushed, or none; what waits stays."""
        with self.changed:
            self._point(url)
            self._pushing = False

    def _point(self, url: str) -> None:
        self.url = url
        self._generation += 1
        self._lanes.clear()
        self.last_error = None
        self._tear()
        self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self._tear()
            self.changed.notify_all()
        if self._feeder is not None:
            self._feeder.join(10)
            assert not self._feeder.is_alive()
        self._pool.shutdown()
        while self._idle:
            self._idle.popleft()[0].close()

    def _tear(self) -> None:
        for connection in self._in_flight:
            wire = connection.sock
            if wire is not None:
                with suppress(OSError):
                    wire.shutdown(socket.SHUT_RDWR)

    # -- for the test ------------------------------------------------------------------------------------

    def pause(self) -> None:
        """What is under way goes on; nothing new is pushed."""
        with self.changed:
            self.paused = True

    def go_on(self) -> None:
        with self.changed:
            self.paused = False
            self.changed.notify_all()

    def of(self, update_id: int) -> list[Push]:
        """The calls for one update."""
        with self.changed:
            return [push for push in self.pushes if push.update_id == update_id]

    def statuses(self) -> list[int | None]:
        with self.changed:
            return [push.status for push in self.pushes]

    def wait_for(self, *update_ids: int, seconds: float = PATIENCE) -> None:
        """Wait until each of these was answered with 2xx."""
        with self.changed:
            done = self.changed.wait_for(lambda: self.confirmed.issuperset(update_ids), seconds)
            missing = sorted(set(update_ids) - self.confirmed)
        assert done, f"{len(missing)} of {len(update_ids)} were not taken: {missing[:5]}, {self.pushes[-3:]}"

    def wait_for_count(self, count: int, seconds: float = PATIENCE) -> None:
        """Wait until so many updates were answered with 2xx."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.confirmed) >= count, seconds), len(self.confirmed)

    def wait_for_pushes(self, count: int, status: int | None, seconds: float = PATIENCE) -> list[Push]:
        """Wait until so many calls were answered like this; all of them."""

        def found() -> list[Push]:
            return [push for push in self.pushes if push.status == status]

        with self.changed:
            assert self.changed.wait_for(lambda: len(found()) >= count, seconds), self.statuses()
            return found()

    def call(self, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """One call of the webhook with this body, whatever it is, beside all others."""
        address = urlsplit(self.route())
        connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=self.answer_within
        )
        try:
            reply, _ = self._exchange(connection, body, {SECRET: self.secret} | dict(headers or {}))
            return reply
        finally:
            connection.close()

    # -- pushing -----------------------------------------------------------------------------------------

    def _feed(self) -> None:
        with self.changed:
            while not self._closed:
                wait = self._hand_out()
                self.changed.wait(wait)

    def _hand_out(self) -> float | None:
        """Begin every call that may begin; seconds until the next one may, if time is all it waits for."""
        if not self._pushing or self.paused:
            return None
        now = time.monotonic()
        soonest: float | None = None
        met: set[object] = set()
        for update_id, body in self.queue.waiting():
            chat = self._chat_of(update_id, body)
            if chat in met:
                continue
            met.add(chat)
            lane = self._lanes.setdefault(chat, _Lane())
            if lane.busy:
                continue
            if lane.not_before > now:
                soonest = min(lane.not_before, soonest or lane.not_before)
                continue
            in_flight = sum(each.busy for each in self._lanes.values())
            if in_flight >= self.max_connections:
                return None
            lane.busy = True
            self.most_in_flight = max(self.most_in_flight, in_flight + 1)
            self._pool.submit(self._push, lane, update_id, body, self._generation)
        return None if soonest is None else soonest - now

    def _chat_of(self, update_id: int, body: bytes) -> object:
        if update_id not in self._chats:
            self._chats[update_id] = queue_of(body)
        return self._chats[update_id]

    def _push(self, lane: _Lane, update_id: int, body: bytes, generation: int) -> None:
        began = time.monotonic()
        reply: Reply | None = None
        connection = None
        why = ""
        try:
            connection, route = self._connection()
            with self.changed:
                self._in_flight.add(connection)
                torn = generation != self._generation or self._closed
            if torn:
                raise ConnectionAbortedError
            reply, lasts = self._exchange(connection, body, {SECRET: self.secret})
            if lasts:
                with self.changed:
                    self._idle.append((connection, route, time.monotonic()))
            else:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            why = _words(error)
            if connection is not None:
                connection.close()
        with self.changed:
            if connection is not None:
                self._in_flight.discard(connection)
            lane.busy = False
            # After a change of the webhook nobody is there to hear of the answer.
            if generation == self._generation and not self._closed:
                self._answered(lane, update_id, reply, why, began)
            self.changed.notify_all()

    def _answered(self, lane: _Lane, update_id: int, reply: Reply | None, why: str, began: float) -> None:
        now = time.monotonic()
        status = None if reply is None else reply.status
        wait: float | None = None
        if reply is not None and 200 <= reply.status < 300:
            self.confirmed.add(update_id)
            self.queue.confirm(update_id)
            lane.delay, lane.failures, lane.not_before = FIRST_WAIT, 0, 0.0
        else:
            if reply is not None:
                why = f"Wrong response from the webhook: {reply.status}"
            self.last_error = (int(time.time()), why)
            after = _retry_after(reply)
            if not after and lane.failures:
                lane.delay = min(random.uniform(*LONGEST_WAITS), lane.delay * 2)
            wait = after or lane.delay
            lane.failures += 1
            lane.not_before = now + wait * self.scale
        answer = b"" if reply is None else reply.body
        self.pushes.append(Push(update_id, status, why, wait, began, now, answer))
        self.heard(self.pushes[-1])

    def _connection(self) -> tuple[http.client.HTTPConnection, str]:
        route = self.route()
        if not route:
            raise ConnectionRefusedError
        with self.changed:
            while self._idle:
                connection, where, since = self._idle.pop()
                if where == route and time.monotonic() - since < REUSED:
                    return connection, route
                connection.close()
        address = urlsplit(route)
        return http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=self.answer_within
        ), route

    def _exchange(
        self, connection: http.client.HTTPConnection, body: bytes, headers: Mapping[str, str]
    ) -> tuple[Reply, bool]:
        """The answer, and whether the connection lasts."""
        address = urlsplit(self.url)
        own = {"Host": address.netloc, "Content-Type": "application/json", "Connection": "keep-alive"}
        connection.request("POST", address.path or "/", body, own | dict(headers))
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        reply = Reply(response.status, names, response.read())
        return reply, not response.will_close


def queue_of(body: bytes) -> object:
    """Which queue of Telegram's an update belongs to: the chat's; the user's, for what belongs to no chat."""
    update = json.loads(body)
    for kind, member in update.items():
        if kind != "update_id" and isinstance(member, dict):
            if kind not in BY_USER and isinstance(member.get("chat"), dict):
                return member["chat"].get("id")
            for name in ("from", "user", "id"):
                if name in member:
                    value = member[name]
                    return kind, value.get("id") if isinstance(value, dict) else value
    return None


def _retry_after(reply: Reply | None) -> int:
    text = "" if reply is None else reply.headers.get("retry-after", "")
    return min(int(text), LONGEST_RETRY_AFTER) if text.isascii() and text.isdigit() else 0


def _words(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "Connection refused"
    if isinstance(error, TimeoutError):
        return "Read timeout expired"
    return "Connection reset by peer"
