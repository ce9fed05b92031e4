"""
The judge of the fault laboratory: what must hold of a gateway at any moment, whatever has happened to it.

Subscribe and send through the oracle, break what you like, then ``check()``, also while the daemon is dead;
or ``settle()``, once everything that is owed can arrive.  The rules (contract 1.3, 4 to 6, 9):

* no update is confirmed to Telegram before it is committed, be it polled or pushed;
* a confirmed message is with its receiver or in the queue, the dead included: nothing is lost;
* the first receptions of a subscription are in order, and every attempt has the same id and bytes;
* the invariants of the queue hold, and the file is sound;
* no secret is in any output, and no traceback.

Not for tests that restart the update ids; what moves or removes subscriptions judges those itself.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Self

from attrs import define, field, frozen

from telegrammer.store.database import READERS
from telegrammer.store.recovery import violations
from tests.support.daemon import BOT_ID, PATIENCE
from tests.support.gateway import CHAT, Gateway, eventually
from tests.support.receiver import Callback


@frozen
class Sent:
    """A message that the Bot API was given."""

    update_id: int
    chat_id: int
    body: bytes


@frozen
class Subscribed:
    """A subscription that was answered 200; it is owed what is sent from number ``since`` on."""

    id: int
    chat_id: int
    path: str
    since: int


@frozen
class Stored:
    """The database as it is at one moment."""

    next_offset: int
    states: dict[tuple[int, int], str]
    """By (subscription, update): the state of each job."""
    journal: dict[int, str]
    """By update: what the journal says of it."""

    def has_taken(self, update_id: int) -> bool:
        """Whether its jobs were made."""
        return update_id < self.next_offset or self.journal.get(update_id, "pending") != "pending"


@frozen
class Footprint:
    """What a process holds on to."""

    threads: int
    sockets: int
    resident: int
    """Bytes."""

    @classmethod
    def of(cls, pid: int) -> Self:
        proc = Path("/proc", str(pid))
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        sockets = 0
        for descriptor in (proc / "fd").iterdir():
            try:
                sockets += os.readlink(descriptor).startswith("socket:")
            except FileNotFoundError:  # closed meanwhile
                continue
        return cls(int(status["Threads"]), sockets, int(status["VmRSS"].split()[0]) * 1024)


LATE_READERS = sum(READERS.values()) - 1
"""Threads that may be new without a leak: those of the database's readers come when two reads meet."""


@define(eq=False)
class Oracle:
    """Knows what is owed to whom, and judges."""

    gateway: Gateway
    sent: list[Sent] = field(factory=list, init=False)
    subscribed: list[Subscribed] = field(factory=list, init=False)
    elsewhere: set[str] = field(factory=set, init=False)
    """Paths whose receptions the test judges itself: of subscriptions that move or go."""
    _base: Footprint | None = field(default=None, init=False)
    _next_look: float = field(default=0.0, init=False)

    # -- what it has to know -----------------------------------------------------------------------------

    def subscribe(self, path: str = "/hook", chat_id: int = CHAT) -> int:
        """Subscribe a path of the receiver, each at most once; the subscription's id."""
        since = len(self.sent)
        subscription_id = self.gateway.subscribe(path, chat_id)
        self.answered(subscription_id, path, chat_id, since)
        return subscription_id

    def answered(
        self, subscription_id: int, path: str, chat_id: int = CHAT, since: int | None = None
    ) -> None:
        """A ``/subscribe`` made elsewhere was answered 200."""
        assert all(known.path != path for known in self.subscribed), "two subscriptions of one path"
        begins = len(self.sent) if since is None else since
        self.subscribed.append(Subscribed(subscription_id, chat_id, path, begins))

    def message(self, text: str, chat_id: int = CHAT) -> bytes:
        """Give the Bot API a message; its JSON text."""
        update_id, body = self.gateway.api.message(chat_id, text)
        self.sent.append(Sent(update_id, chat_id, body))
        return body

    def messages(self, count: int, text: str = "message", chat_id: int = CHAT) -> None:
        for number in range(count):
            self.message(f"{text} {number}", chat_id)

    def owed(self, subscription: Subscribed) -> list[Sent]:
        return [sent for sent in self.sent[subscription.since :] if sent.chat_id == subscription.chat_id]

    # -- its judgement -----------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """
        Everything that must hold now, the daemon running or dead.

        :returns: the delivery ids of repeated receptions, one for each repeat.
        """
        # In this order, for a running daemon goes on: what is confirmed is stored, what has left is received.
        confirmed, taken = self._confirmed(), self._answered()
        stored = self._stored()
        assert confirmed <= stored.next_offset, "Telegram was told more than is committed"
        unknown = {each for each in taken - stored.journal.keys() if each >= stored.next_offset}
        assert not unknown, f"answered 200, and not in the journal: {unknown}"
        repeats: list[str] = []
        received: set[tuple[int, int]] = set()
        for subscription in self.subscribed:
            updates, again = self._receptions(subscription)
            received.update((subscription.id, update_id) for update_id in updates)
            repeats += again
        accounted = received | stored.states.keys()
        lost = [
            (subscription.path, sent.update_id)
            for subscription in self.subscribed
            for sent in self.owed(subscription)
            if stored.has_taken(sent.update_id) and (subscription.id, sent.update_id) not in accounted
        ]
        assert not lost, f"taken, and neither received nor queued nor dead: {lost}"
        known = {subscription.path for subscription in self.subscribed}
        strangers = {callback.path for callback in self.gateway.receiver.on(None)} - known - self.elsewhere
        assert not strangers, f"receptions that nobody subscribed: {strangers}"
        self.gateway.daemon.check_output()
        return repeats

    def settle(self, seconds: float = PATIENCE) -> list[str]:
        """Wait until everything owed is received or dead and the queue is at rest, then ``check()``."""
        try:
            self.gateway.receiver.wait_until(self._settled, seconds)
        except AssertionError:
            raise AssertionError(f"not settled: {self._unsettled()}") from None
        return self.check()

    def dead(self) -> list[tuple[int, int]]:
        """(subscription, update) of each dead job."""
        return [job for job, state in self._stored().states.items() if state == "DEAD"]

    def base_line(self) -> Footprint:
        """Take what the daemon holds now for its base line; let it have done some of everything before."""
        self._base = Footprint.of(self.gateway.daemon.process.pid)
        return self._base

    def check_base_line(self, growth: int = 32 * 2**20) -> Footprint:
        """The daemon's threads and sockets come back to the base line, its memory to within ``growth``."""
        base = self._base
        assert base is not None, "no base line was taken"
        pid = self.gateway.daemon.process.pid

        def back() -> bool:
            now = Footprint.of(pid)
            return now.threads <= base.threads + LATE_READERS and now.sockets <= base.sockets

        try:
            eventually(back)
        except AssertionError:
            raise AssertionError(f"not back at {base}: {Footprint.of(pid)}") from None
        now = Footprint.of(pid)
        assert now.resident <= base.resident + growth, f"grown from {base} to {now}"
        return now

    # -- what it looks at --------------------------------------------------------------------------------

    def _confirmed(self) -> int:
        offsets = [call.arguments.get("offset", 0) for call in self.gateway.api.of("getUpdates")]
        return max(offsets, default=0)

    def _answered(self) -> set[int]:
        """What was pushed and answered 200."""
        with self.gateway.api.changed:
            return set(self.gateway.api.pusher.confirmed)

    def _stored(self) -> Stored:
        """Read as another process does, in one snapshot; and judged for itself."""
        with self.gateway.daemon.look() as connection:
            cursor = connection.cursor()
            cursor.execute("BEGIN")
            broken = violations(cursor)
            orphans = cursor.execute("PRAGMA foreign_key_check").fetchall()
            sound = cursor.execute("PRAGMA quick_check").fetchall()
            (next_offset,) = cursor.execute("SELECT next_offset FROM gateway").fetchone()
            jobs = cursor.execute("SELECT subscription_id, update_id, state FROM deliveries").fetchall()
            journal = cursor.execute("SELECT update_id, parse_status FROM journal").fetchall()
        assert not broken, f"broken invariants: {broken}"
        assert not orphans, f"rows that point nowhere: {orphans}"
        assert sound == [("ok",)], f"the file is damaged: {sound}"
        states = {(lane, update_id): state for lane, update_id, state in jobs}
        return Stored(next_offset, states, dict(journal))

    def _receptions(self, subscription: Subscribed) -> tuple[list[int], list[str]]:
        """Update ids in the order of their first reception, and the delivery ids of the repeats; judged."""
        place = {sent.update_id: number for number, sent in enumerate(self.owed(subscription))}
        bodies = {sent.update_id: sent.body for sent in self.owed(subscription)}
        first: dict[int, Callback] = {}
        repeats: list[str] = []
        for callback in self.gateway.receiver.on(subscription.path):
            bot_id, lane, _, number = callback.delivery_id.split("-")
            update_id = int(number)
            assert (int(bot_id), int(lane)) == (BOT_ID, subscription.id), (
                f"a foreign id: {callback.delivery_id}"
            )
            assert update_id in place, f"{callback.delivery_id} was not owed"
            assert callback.body == bodies[update_id], f"{callback.delivery_id} came with other bytes"
            earlier = first.setdefault(update_id, callback)
            assert callback.as_job == earlier.as_job, "a repeat with another id"
            if callback is not earlier:
                repeats.append(callback.delivery_id)
        order = [place[update_id] for update_id in first]
        assert order == sorted(order), f"{subscription.path}: first receptions out of order: {list(first)}"
        return list(first), repeats

    def _unsettled(self) -> str:
        """What is still owed, and what the queue holds, for a message."""
        states = self._stored().states
        held = Counter((lane, state) for (lane, _), state in states.items())
        missing = Counter(lane for lane, update_id in self._owed_in_all() - self._received())
        return f"missing by subscription {dict(missing)}; in the queue {dict(held)}"

    def _received(self) -> set[tuple[int, int]]:
        received: set[tuple[int, int]] = set()
        for callback in self.gateway.receiver.on(None):
            _, lane, _, number = callback.delivery_id.split("-")
            received.add((int(lane), int(number)))
        return received

    def _owed_in_all(self) -> set[tuple[int, int]]:
        return {
            (subscription.id, sent.update_id)
            for subscription in self.subscribed
            for sent in self.owed(subscription)
        }

    def _settled(self) -> bool:
        # Now and then, and not at each reception: the receiver waits meanwhile.
        if time.monotonic() < self._next_look:
            return False
        missing = self._owed_in_all() - self._received()
        states = self._stored().states
        self._next_look = time.monotonic() + 0.2
        return all(state == "DEAD" for state in states.values()) and missing <= states.keys()
