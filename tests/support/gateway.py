"""The daemon between a scriptable Bot API and a callback receiver, for tests that block."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from attrs import define

from telegrammer.core.subscriptions import SubscriptionLimits
from telegrammer.store import subscriptions
from telegrammer.store.engine import connect, immediate
from tests.support.bot_api import BotApi
from tests.support.daemon import BOT_ID, PATIENCE, Daemon
from tests.support.overheard import QUERY
from tests.support.receiver import Callback, CallbackReceiver

CHAT = 1001
WEBHOOK_URL = "https://bot.example/telegram/webhook"
"""The proxy that stands there leads to the daemon."""
WEBHOOK = ("--ingest", "webhook", "--webhook-url", WEBHOOK_URL)


@define(eq=False)
class Gateway:
    """All three; ``start`` makes a key and brings the daemon up."""

    api: BotApi
    receiver: CallbackReceiver
    daemon: Daemon

    def start(self) -> None:
        if not self.daemon.key:
            self.daemon.adopt(*_database_with_a_key())
        self.daemon.start()

    def start_with_webhook(self) -> None:
        """Bring it up so that updates are pushed, and wait until Telegram knows."""
        if "webhook" not in self.daemon.arguments:
            self.daemon.arguments = (*self.daemon.arguments, *WEBHOOK)
        self.start()
        self.api.wait_until(lambda: self.api.webhook == WEBHOOK_URL)

    def subscribe(self, path: str = "/hook", chat_id: int = CHAT) -> int:
        """A subscription of the receiver's ``path``."""
        return self.daemon.subscribe(chat_id, self.callback_url(path))

    def callback_url(self, path: str) -> str:
        """Leads to the receiver's ``path``, with a query that is to stay a secret."""
        return f"{self.receiver.url}{path}?{QUERY}"

    def prepare(self, paths: Sequence[str], chat_id: int = CHAT) -> list[int]:
        """Subscriptions of these paths from before the daemon's first start: many of them in no time."""
        if not self.daemon.key:
            self.daemon.adopt(*_database_with_a_key())
        limits = SubscriptionLimits(per_key=10**6, total=10**6)
        with closing(connect(self.daemon.db)) as connection, immediate(connection) as cursor:
            return [
                subscriptions.add(cursor, 1, chat_id, self.receiver.url + path, limits, 0) for path in paths
            ]

    def query(self, sql: str, *values: object) -> list[Any]:
        """Look into the database, as another process that only reads."""
        with self.daemon.look() as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """While inside, nobody else can commit to the database."""
        with closing(sqlite3.connect(self.daemon.db, timeout=5, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")


@functools.cache
def _database_with_a_key() -> tuple[bytes, str]:
    """What ``add-key test`` leaves behind; made once, for each process that is started takes its time."""
    with tempfile.TemporaryDirectory() as directory:
        maker = Daemon(Path(directory), "")
        key = maker.add_key()
        (file,) = Path(directory).iterdir()
        return file.read_bytes(), key


@contextmanager
def gateway(state: Path, *arguments: str) -> Iterator[Gateway]:
    """The three of them, not started; leaving checks the daemon's output for secrets and tracebacks."""
    with (
        BotApi() as api,
        CallbackReceiver() as receiver,
        Daemon(state, api.url, arguments) as daemon,
    ):
        api.pusher.route = lambda: daemon.url
        yield Gateway(api, receiver, daemon)


def in_flight(gateway: Gateway) -> set[str]:
    """The delivery ids of the callbacks that are under way, or were when the daemon was killed."""
    rows = gateway.query("SELECT subscription_id, epoch, update_id FROM deliveries WHERE state = 'IN_FLIGHT'")
    return {f"{BOT_ID}-{lane}-{epoch}-{update_id}" for lane, epoch, update_id in rows}


def in_order(arrived: Sequence[Callback], expected: Sequence[bytes]) -> list[str]:
    """
    Check what one lane got: the expected bodies in order, each once, or several times in a row.

    :returns: the delivery ids of the repeats.
    """
    once: list[Callback] = []
    repeated: list[str] = []
    for callback in arrived:
        if once and callback.delivery_id == once[-1].delivery_id:
            assert callback.body == once[-1].body, "a repeat with other bytes"
            repeated.append(callback.delivery_id)
        else:
            once.append(callback)
    assert [callback.body for callback in once] == list(expected), "lost, reordered, or made up"
    assert len({callback.delivery_id for callback in once}) == len(once), "two messages share an id"
    return repeated


def eventually(look: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """Ask again until it holds, where nothing announces it; how long that took."""
    began = time.monotonic()
    while not look():
        assert time.monotonic() - began < seconds, "it did not come to pass"
        time.sleep(0.02)
    return time.monotonic() - began
