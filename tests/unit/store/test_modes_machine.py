"""
Telegram pushes and is polled by turns, answers get lost, batches fail, ids restart: each message is taken
once, and every lane has its own in order (contract 8).
"""

from __future__ import annotations

from attrs import define, field, frozen
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.journal import BEGINNING
from telegrammer.core.problems import CapacityReached
from telegrammer.core.telegram import Batch
from telegrammer.store import ingestion, journal
from telegrammer.store.engine import immediate
from tests.support.inline_database import migrated_connection
from tests.support.pushed import group, messages, polled
from tests.support.queue_checks import add_key, broken, subscribe

SETTINGS = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
WEEK = 7 * 86_400
CHATS = (1, 2)
MANY = 10_000


@frozen
class Waiting:
    """An update that Telegram has, and nobody has confirmed."""

    update_id: int
    chat: int
    number: int
    """Of all messages, in the order in which they were written."""

    @property
    def body(self) -> bytes:
        return group(self.update_id, self.chat, text=f"message {self.number}")


@define(eq=False)
class Telegram:
    """Its queue: ids ascend, each chat is pushed in order, an offset confirms what is below it."""

    next_id: int = 100_000
    written: list[Waiting] = field(factory=list)
    queue: list[Waiting] = field(factory=list)

    restarted: bool = False
    """The next id is the first of a new numbering."""

    def write(self, chat: int, gap: int) -> None:
        self.next_id += 1 if self.restarted else gap
        self.restarted = False
        update = Waiting(self.next_id, chat, len(self.written))
        self.written.append(update)
        self.queue.append(update)

    def first_of(self, chat: int) -> Waiting | None:
        return next((each for each in self.queue if each.chat == chat), None)

    def updates(self, offset: int | None, limit: int) -> list[Waiting]:
        # One far beyond what it has is of an older numbering: it counts as none.
        if offset is not None and offset <= self.next_id + 10:
            self.queue = [each for each in self.queue if each.update_id >= offset]
        return self.queue[:limit]


class ModesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.telegram = Telegram()
        self.now = 1_000_000
        self.pushing = False
        self.connection = migrated_connection()
        owner = add_key(self.connection, "key")
        self.lanes = {subscribe(self.connection, owner, chat): chat for chat in CHATS}

    def teardown(self) -> None:
        try:
            self.everything_arrives_in_the_end()
        finally:
            self.connection.close()

    # -- Telegram's doing

    @rule(chat=st.sampled_from(CHATS), gap=st.integers(1, 3))
    def somebody_writes(self, chat: int, gap: int) -> None:
        self.telegram.write(chat, gap)

    @precondition(lambda self: not self.telegram.queue)
    @rule(below=st.integers(1100, 8000))
    def a_quiet_week(self, below: int) -> None:
        """Nobody writes, and Telegram restarts its ids."""
        self.now += WEEK
        self.telegram.next_id = max(0, self.telegram.next_id - below)
        self.telegram.restarted = True

    @rule(seconds=st.integers(-100, 10_000))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    # -- pushed

    @precondition(lambda self: self.pushing)
    @rule(chat=st.sampled_from(CHATS), answered=st.booleans())
    def push(self, chat: int, answered: bool) -> None:
        """The answer may be lost on its way; then it is pushed again."""
        update = self.telegram.first_of(chat)
        if update is None:
            return
        with immediate(self.connection) as cursor:
            journal.accept(cursor, update.update_id, update.body, self.now)
        if answered:
            self.telegram.queue.remove(update)

    @precondition(lambda self: not self.telegram.queue and not self.telegram.restarted)
    @rule(chat=st.sampled_from(CHATS))
    def thousands_come(self, chat: int) -> None:
        """And are taken at once; the last of them stands for all."""
        self.telegram.write(chat, 6000)
        if self.pushing:
            self.push(chat, answered=True)
        else:
            self.poll(1, fails=False)
            self.poll(1, fails=False)

    @rule(most=st.integers(1, 5))
    def fold(self, most: int) -> None:
        for each in journal.pending(self.connection.cursor(), BEGINNING, most):
            with immediate(self.connection) as cursor:
                journal.fold(cursor, each.place.entry_id, MANY, self.now)

    # -- polled

    @precondition(lambda self: not self.pushing)
    @rule(limit=st.integers(1, 4), fails=st.booleans())
    def poll(self, limit: int, fails: bool) -> None:
        self.fold(MANY)
        with immediate(self.connection) as cursor:
            at = ingestion.read_cursor(cursor)
        found = self.telegram.updates(None if at.from_head else at.next_offset, limit)
        batch = Batch(polled(*(each.body for each in found)))
        try:
            with immediate(self.connection) as cursor:
                ingestion.accept(cursor, batch, MANY, self.now)
                if fails:
                    raise CapacityReached("or a kill before the commit")
        except CapacityReached:
            pass

    # -- the operator's doing

    @rule()
    def change_the_mode(self) -> None:
        self.pushing = not self.pushing
        if self.pushing:
            with immediate(self.connection) as cursor:
                journal.enter_webhook_mode(cursor, "secret")

    # -- what must hold

    @invariant()
    def sound(self) -> None:
        assert broken(self.connection) == []

    @invariant()
    def each_is_taken_once(self) -> None:
        """And for the right chat."""
        taken = self.taken()
        for lane, chat in self.lanes.items():
            assert len(taken[lane]) == len(set(taken[lane]))
            assert {self.telegram.written[number].chat for number in taken[lane]} <= {chat}

    def taken(self) -> dict[int, list[int]]:
        """Lane → the messages in it, in its order."""
        found: dict[int, list[int]] = {lane: [] for lane in self.lanes}
        for lane, _, _, text in messages(self.connection):
            found[lane].append(int(text.rpartition(b"message ")[2].rstrip(b'"}')))
        return found

    def everything_arrives_in_the_end(self) -> None:
        if self.pushing:
            for chat in CHATS:
                while self.telegram.first_of(chat) is not None:
                    self.push(chat, answered=True)
            self.fold(MANY)
        for _ in range(len(self.telegram.queue) + 2):
            if not self.pushing:
                self.poll(4, fails=False)
        taken = self.taken()
        for lane, chat in self.lanes.items():
            # Nothing was delivered meanwhile, so a lane holds all there were, in the order of writing.
            assert taken[lane] == [each.number for each in self.telegram.written if each.chat == chat]
        self.sound()


class ModesTests(SynchronousTestCase):
    def test_any_sequence(self) -> None:
        run_state_machine_as_test(ModesMachine, settings=SETTINGS)
