"""Sends that Telegram holds, so that a test sees who is under way."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

from attrs import define, field

from tests.support.bot_api import Call, success
from tests.support.gateway import Gateway
from tests.support.wire import many, post, read_answers, read_to_end, send_body


@define(eq=False)
class Held:
    """Answers ``sendMessage`` only when it is let go."""

    gateway: Gateway
    under_way: int = field(default=0, init=False)
    most: int = field(default=0, init=False)
    torn: int = field(default=0, init=False)
    """Calls whose connection was closed before the answer."""
    _go: threading.Event = field(factory=threading.Event, init=False)

    def __call__(self, call: Call, wire: socket.socket) -> bool:
        api = self.gateway.api
        with api.changed:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            api.changed.notify_all()
        while not self._go.wait(0.02) and not api.closing:
            pass
        with api.changed:
            self.under_way -= 1
            if select.select([wire], [], [], 0)[0]:
                self.torn += 1
        with contextlib.suppress(OSError):
            wire.sendall(success({"message_id": 1}))
        return True

    def let_go(self) -> None:
        self._go.set()


def check_workers(gateway: Gateway, workers: int = 8) -> None:
    """Every worker is free: so many requests are worked on at once."""
    held, key = Held(gateway), gateway.daemon.key
    gateway.api.fallback["sendMessage"] = held
    with many(gateway.daemon, workers) as peers:
        for peer in peers:
            peer.sendall(post(b"/send", key, send_body("all at once"), b"Connection: close"))
        gateway.api.wait_until(lambda: held.under_way == workers)
        held.let_go()
        for peer in peers:
            assert [answer.status for answer in read_answers(read_to_end(peer))] == [200]
    del gateway.api.fallback["sendMessage"]
