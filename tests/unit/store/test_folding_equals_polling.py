"""
The same updates, pushed or polled, come to the same: jobs, usernames, chats (contract 8).

A journal of anything is folded into an empty database and compared with the one that polled it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.journal import BEGINNING
from telegrammer.core.problems import MalformedUpdate
from telegrammer.core.telegram import Batch
from telegrammer.core.updates import update_id_of
from telegrammer.store import ingestion, journal
from telegrammer.store.engine import immediate
from tests.support.inline_database import migrated_connection
from tests.support.pushed import group, malformed, messages, person, polled, statuses, update
from tests.support.queue_checks import add_key, broken, subscribe

GROUPS = st.sampled_from([-1, -2, -3])
PEOPLE = st.sampled_from([1, 2, 3])
NAMES = st.sampled_from([None, "alice", "bob", "carol"])
NOW = 1_000_000


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Updates in the order of their ids."""
    bodies: list[bytes] = []
    for update_id in range(draw(st.integers(0, 14))):
        match draw(st.integers(0, 9)):
            case 0 | 1 | 2:
                body = group(update_id, draw(GROUPS))
            case 3 | 4 | 5:
                body = person(update_id, draw(PEOPLE), draw(NAMES))
            case 6:
                body = group(update_id, draw(GROUPS), migrate_to_chat_id=draw(GROUPS))
            case 7:
                body = group(update_id, draw(GROUPS), migrate_from_chat_id=draw(GROUPS))
            case 8:
                body = update(update_id)
            case _:
                body = malformed(update_id)
        bodies.append(body)
    return bodies


SUBSCRIPTIONS = st.lists(st.tuples(st.one_of(GROUPS, PEOPLE), st.sampled_from("xy")), max_size=6)


@frozen
class State:
    """What is the same, whoever brought the updates."""

    jobs: list[tuple[int, int, int, bytes]]
    chats: list[tuple[int, int, int]]
    names: list[tuple[str, int]]
    failed: list[int]

    @classmethod
    def of(cls, connection: sqlite3.Connection) -> State:
        assert broken(connection) == []
        return cls(
            messages(connection),
            connection.execute("SELECT id, chat_id, retired FROM subscriptions ORDER BY id").fetchall(),
            connection.execute("SELECT username, chat_id FROM usernames ORDER BY username").fetchall(),
            [update_id for update_id, status in statuses(connection).items() if status == "failed"],
        )


def database(subscriptions: list[tuple[int, str]]) -> closing[sqlite3.Connection]:
    connection = migrated_connection()
    owner = add_key(connection, "key")
    for chat_id, url in subscriptions:
        subscribe(connection, owner, chat_id, url)
    return closing(connection)


def accept(connection: sqlite3.Connection, body: bytes) -> None:
    update_id = update_id_of(body)
    assert update_id is not None
    with immediate(connection) as cursor:
        journal.accept(cursor, update_id, body, NOW)


def fold_all(connection: sqlite3.Connection, portion: int) -> None:
    """As a pass does it, by portions."""
    place = BEGINNING
    while waiting := journal.pending(connection.cursor(), place, portion):
        for each in waiting:
            try:
                with immediate(connection) as cursor:
                    journal.fold(cursor, each.place.entry_id, 1000, NOW + 5)
            except MalformedUpdate as error:
                with immediate(connection) as cursor:
                    journal.fail(cursor, each.place.entry_id, error.why)
        place = waiting[-1].place


class FoldingTests(SynchronousTestCase):
    @given(histories(), SUBSCRIPTIONS, st.integers(1, 15), st.data())
    @settings(max_examples=120, deadline=None)
    def test_the_same_as_polling(
        self, bodies: list[bytes], subscriptions: list[tuple[int, str]], portion: int, data: st.DataObject
    ) -> None:
        repeats = data.draw(st.lists(st.integers(0, len(bodies)), max_size=3))
        cuts = sorted(data.draw(st.sets(st.integers(0, len(bodies)), max_size=3)))
        with database(subscriptions) as pushed:
            for number, body in enumerate(bodies):
                accept(pushed, body)
                for again in repeats:
                    if again <= number:
                        accept(pushed, bodies[again])
            fold_all(pushed, portion)
            self.assertEqual(journal.counts(pushed.cursor()).pending, 0)
            by_webhook = State.of(pushed)
            # Once more, as after an upgrade: nothing happens to what is folded.
            for (entry_id,) in pushed.execute(
                "SELECT id FROM journal WHERE parse_status = 'folded'"
            ).fetchall():
                with immediate(pushed) as cursor:
                    self.assertEqual(journal.fold(cursor, entry_id, 1000, NOW).kind, "already")
            self.assertEqual(State.of(pushed), by_webhook)
        with database(subscriptions) as polling:
            for begin, end in zip([0, *cuts], [*cuts, len(bodies)], strict=True):
                batch = Batch(polled(*bodies[begin:end], *(bodies[each] for each in repeats if each < begin)))
                with immediate(polling) as cursor:
                    ingestion.accept(cursor, batch, 1000, NOW, quarantine=True)
            self.assertEqual(State.of(polling), by_webhook)

    @given(histories(), SUBSCRIPTIONS, st.data())
    @settings(max_examples=60, deadline=None)
    def test_folded_at_once_or_later(
        self, bodies: list[bytes], subscriptions: list[tuple[int, str]], data: st.DataObject
    ) -> None:
        """When the worker comes makes no difference."""
        states = []
        for passes in (range(len(bodies)), data.draw(st.sets(st.integers(0, 14))), ()):
            with database(subscriptions) as connection:
                for number, body in enumerate(bodies):
                    accept(connection, body)
                    if number in passes:
                        fold_all(connection, 4)
                fold_all(connection, 4)
                states.append(State.of(connection))
        self.assertEqual(states[1:], [states[0]] * 2)
