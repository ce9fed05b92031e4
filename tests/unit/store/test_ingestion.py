"""Batches in, jobs, observations and a cursor out (contract 5.2 to 5.5)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.ingestion import Cursor, Ingested
from telegrammer.core.problems import (
    CapacityReached,
    InvalidRequest,
    MalformedUpdate,
    StoreBusy,
    WrongBot,
)
from telegrammer.core.retry import carried_wait
from telegrammer.core.telegram import Batch as CoreBatch
from telegrammer.core.telegram import Malformed, Update
from telegrammer.store import ingestion
from telegrammer.store.engine import immediate
from telegrammer.store.ingestion import SqlIngestion
from tests.support.inline_database import InlineDatabase
from tests.support.queue_checks import add_key, broken, jobs, moved_from, moved_to, private, subscribe, text


class IngestionCase(SynchronousTestCase):
    max_jobs = 1000

    def setUp(self) -> None:
        self.database = InlineDatabase()
        self.addCleanup(self.database.close)
        self.connection = self.database.connection
        self.owner = add_key(self.connection, "key")
        self.clock = 1000.75
        self.port = SqlIngestion(self.database, self.max_jobs, lambda: self.clock)

    def accept(self, *elements: Update | Malformed) -> Ingested:
        ingested = self.successResultOf(self.port.accept(CoreBatch(elements)))
        self.assertEqual(broken(self.connection), [])
        return ingested

    def refuse(self, kind: type[Exception], *elements: Update | Malformed) -> Exception:
        """The batch is refused, and everything is as before."""
        before = list(self.connection.iterdump())
        error: Exception = self.failureResultOf(self.port.accept(CoreBatch(elements)), kind).value
        self.assertEqual(list(self.connection.iterdump()), before)
        return error

    def cursor(self) -> Cursor:
        return self.successResultOf(self.port.cursor())

    def names(self) -> dict[str, int]:
        return dict(self.connection.execute("SELECT username, chat_id FROM usernames"))

    def lane(self, subscription_id: int) -> tuple[int | None, int | None, int, int]:
        """(update id of the head, next due, waits since, turn)."""
        row: tuple[int | None, int | None, int, int] = self.connection.execute(
            """
            SELECT d.update_id, l.next_due, l.waits_since, l.turn
            FROM lanes l LEFT JOIN deliveries d ON d.id = l.head_id WHERE l.subscription_id = ?
            """,
            (subscription_id,),
        ).fetchone()
        return row


class BatchTests(IngestionCase):
    def test_jobs_for_every_subscription_of_the_chat(self) -> None:
        one = subscribe(self.connection, self.owner, 5, "http://h/1")
        two = subscribe(self.connection, self.owner, 5, "http://h/2")
        subscribe(self.connection, self.owner, 6)
        self.assertEqual(
            self.accept(text(10, 5), text(11, 7)), Ingested(Cursor(12, 0), fresh=2, replayed=0, jobs=2)
        )
        self.assertEqual(jobs(self.connection), [(one, 0, 10, "u10"), (two, 0, 10, "u10")])
        self.assertEqual(self.connection.execute("SELECT refs FROM payloads").fetchall(), [(2,)])

    def test_the_message_is_kept_byte_for_byte(self) -> None:
        subscribe(self.connection, self.owner, 5)
        body = b'{"a": 1.0, "b":\t1e3, "\\ud83d": "\xc3\xa9\xf0\x9f\x98\x80\x00"}'
        self.accept(text(1, 5, body))
        self.assertEqual(self.connection.execute("SELECT body FROM payloads").fetchone()[0], body)

    def test_no_payload_without_a_job(self) -> None:
        self.accept(text(1, 5))
        self.assertEqual(self.connection.execute("SELECT COUNT(*) FROM payloads").fetchone(), (0,))

    def test_a_replay_changes_nothing(self) -> None:
        subscribe(self.connection, self.owner, 5)
        self.accept(text(1, 5), text(2, 5))
        before = list(self.connection.iterdump())
        ingested = self.accept(text(2, 5, b"another"), text(1, 5))
        self.assertEqual(ingested, Ingested(Cursor(3, 0), fresh=0, replayed=2, jobs=0))
        self.assertEqual(list(self.connection.iterdump()), before)

    def test_an_empty_batch_changes_nothing(self) -> None:
        before = list(self.connection.iterdump())
        self.assertEqual(self.accept(), Ingested(Cursor(0, 0), fresh=0, replayed=0, jobs=0))
        self.assertEqual(list(self.connection.iterdump()), before)

    def test_order_is_by_update_and_an_empty_lane_gets_its_first(self) -> None:
        lane = subscribe(self.connection, self.owner, 5)
        self.connection.execute("UPDATE lanes SET turn = 7")
        self.accept(text(12, 5), text(10, 5), text(11, 5))
        self.assertEqual(self.lane(lane), (10, 1000, 1000, 7))

    def test_a_lane_that_waits_keeps_its_head_and_time(self) -> None:
        lane = subscribe(self.connection, self.owner, 5)
        self.accept(text(1, 5))
        self.connection.execute("UPDATE lanes SET next_due = 5000, waits_since = 900")
        self.accept(text(2, 5))
        self.assertEqual(self.lane(lane), (1, 5000, 900, 0))

    def test_a_lane_in_flight_is_not_woken(self) -> None:
        lane = subscribe(self.connection, self.owner, 5)
        self.accept(text(1, 5))
        self.connection.execute("UPDATE lanes SET next_due = NULL")
        self.connection.execute("UPDATE deliveries SET state = 'IN_FLIGHT'")
        self.accept(text(2, 5))
        self.assertEqual(self.lane(lane)[:2], (1, None))

    def test_a_lane_with_dead_jobs_only_is_empty(self) -> None:
        lane = subscribe(self.connection, self.owner, 5)
        self.accept(text(1, 5))
        self.connection.execute("UPDATE deliveries SET state = 'DEAD', died_at = 1000")
        self.connection.execute("UPDATE lanes SET head_id = NULL, next_due = NULL")
        self.accept(text(2, 5))
        self.assertEqual(self.lane(lane)[:2], (2, 1000))

    def test_a_lane_that_buried_its_last_job_goes_on_waiting(self) -> None:
        """The back-off carries over to a message that comes later (contract 6)."""
        for number, (fails, emptied_at, due) in enumerate(
            (
                (0, 999, 1000),
                (3, 999, 999 + 8),
                (8, 999, 999 + 256),
                (9, 999, 999 + 300),
                (10**6, 999, 999 + 300),
                (3, 900, 1000),
                # The clock was set back since.
                (3, 5000, 1000 + 8),
            )
        ):
            with self.subTest(fails=fails, emptied_at=emptied_at):
                lane = subscribe(self.connection, self.owner, number + 1)
                self.connection.execute(
                    "UPDATE lanes SET sick = 1, fails = ?, waits_since = ? WHERE subscription_id = ?",
                    (fails, emptied_at, lane),
                )
                self.accept(text(number, number + 1))
                self.assertEqual(self.lane(lane), (number, due, 1000, 0))
                if due > 1000:
                    self.assertEqual(due - min(emptied_at, 1000), carried_wait(fails))

    def test_every_time_is_the_same_whole_second(self) -> None:
        subscribe(self.connection, self.owner, 5)
        self.accept(text(1, 5))
        self.assertEqual(
            self.connection.execute("SELECT created_at, next_attempt_at FROM deliveries").fetchone(),
            (1000, 1000),
        )

    def test_it_is_background_work(self) -> None:
        self.accept()
        self.assertEqual(self.database.urgent, [False])

    def test_a_locked_database_leaves_the_cursor(self) -> None:
        self.database.trouble = StoreBusy()
        self.failureResultOf(self.port.accept(CoreBatch((text(1, 5),))), StoreBusy)
        self.database.trouble = None
        self.assertEqual(self.cursor(), Cursor(0, 0))


class ResetTests(IngestionCase):
    @pytest.mark.report("A1")
    def test_a_reset_raises_the_epoch_and_doubles_nothing(self) -> None:
        lane = subscribe(self.connection, self.owner, 5)
        self.accept(text(5000, 5))
        ingested = self.accept(text(7, 5))
        self.assertEqual(ingested, Ingested(Cursor(8, 1), fresh=1, replayed=0, jobs=1, reset=True))
        self.accept(text(5000, 5, b"again"))
        self.assertEqual(
            jobs(self.connection),
            [(lane, 0, 5000, "u5000"), (lane, 1, 7, "u7"), (lane, 1, 5000, "again")],
        )
        self.assertEqual(self.lane(lane)[0], 5000)

    def test_marks_of_the_old_numbering_go(self) -> None:
        self.accept(text(5000, 5))
        with immediate(self.connection) as cursor:
            ingestion.mark_skip(cursor, 5001, 0)
        self.accept(text(7, 5))
        self.refuse(MalformedUpdate, Malformed(5001, "odd"))


class CapacityTests(IngestionCase):
    max_jobs = 3

    def test_it_fits_or_is_rolled_back_whole(self) -> None:
        subscribe(self.connection, self.owner, 5)
        self.accept(text(1, 5), text(2, 5))
        self.refuse(CapacityReached, text(3, 5), private(4, 9, "alice"), text(5, 5))
        self.accept(text(3, 5))
        self.assertEqual(self.cursor(), Cursor(4, 0))
        self.refuse(CapacityReached, text(4, 5))

    def test_the_dead_count(self) -> None:
        subscribe(self.connection, self.owner, 5)
        self.accept(text(1, 5), text(2, 5), text(3, 5))
        self.bury(1)
        self.refuse(CapacityReached, text(4, 5))

    @pytest.mark.report("H8")
    def test_the_dead_do_not_keep_a_message_out_for_good(self) -> None:
        """The oldest go, so many as are in the way of one message when nothing else is; no more."""
        lane = subscribe(self.connection, self.owner, 5)
        self.accept(text(1, 5), text(2, 5), text(3, 5))
        self.bury(2)
        for url in ("http://h/2", "http://h/3"):
            subscribe(self.connection, self.owner, 6, url)
        self.refuse(CapacityReached, text(4, 6))
        self.bury(3)
        self.refuse(CapacityReached, text(4, 6), text(5, 6))
        self.assertEqual(self.accept(text(4, 6)).evicted, 2)
        left = [job for job in jobs(self.connection) if job[0] == lane]
        self.assertEqual(left, [(lane, 0, 3, "u3")])

    def test_one_that_never_fits_costs_no_dead(self) -> None:
        subscribe(self.connection, self.owner, 5)
        self.accept(text(1, 5))
        self.bury(1)
        for number in range(4):
            subscribe(self.connection, self.owner, 6, f"http://h/{number}")
        self.refuse(CapacityReached, text(2, 6))

    def bury(self, up_to: int) -> None:
        """The lane's jobs up to this update die."""
        self.connection.execute(
            "UPDATE deliveries SET state = 'DEAD', died_at = 1000 WHERE update_id <= ?", (up_to,)
        )
        self.connection.execute(
            """
            UPDATE lanes SET next_due = CASE WHEN d.id IS NULL THEN NULL ELSE 1000 END, head_id = d.id
            FROM (SELECT (SELECT id FROM deliveries WHERE state <> 'DEAD' ORDER BY update_id LIMIT 1) AS id) d
            WHERE subscription_id = 1
            """
        )

    def test_what_makes_no_job_always_fits(self) -> None:
        subscribe(self.connection, self.owner, 5)
        self.accept(text(1, 5), text(2, 5), text(3, 5))
        port = SqlIngestion(self.database, 1, lambda: 0)
        ingested = self.successResultOf(port.accept(CoreBatch((text(4, 6), Update(5)))))
        self.assertEqual(ingested.cursor, Cursor(6, 0))


class SkipTests(IngestionCase):
    def mark(self, update_id: int) -> None:
        with immediate(self.connection) as cursor:
            ingestion.mark_skip(cursor, update_id, 1000.5)

    def marks(self) -> list[int]:
        return [row[0] for row in self.connection.execute("SELECT update_id FROM skip_marks")]

    def test_a_malformed_update_fails_the_batch(self) -> None:
        subscribe(self.connection, self.owner, 5)
        error = self.refuse(MalformedUpdate, text(1, 5), Malformed(2, "no chat"), text(3, 5))
        assert isinstance(error, MalformedUpdate)
        self.assertEqual(error.update_id, 2)

    @pytest.mark.report("A5")
    def test_a_marked_one_is_passed_over_and_its_mark_goes(self) -> None:
        self.mark(2)
        self.mark(2)
        self.mark(9)
        ingested = self.accept(text(1, 5), Malformed(2, "no chat"), text(3, 5))
        self.assertEqual(ingested, Ingested(Cursor(4, 0), fresh=3, replayed=0, jobs=0, skipped=(2,)))
        self.assertEqual(self.marks(), [9])

    def test_a_marked_one_that_is_well_formed_is_ingested(self) -> None:
        lane = subscribe(self.connection, self.owner, 5)
        self.mark(2)
        self.accept(text(2, 5))
        self.assertEqual(jobs(self.connection), [(lane, 0, 2, "u2")])
        self.assertEqual(self.marks(), [])

    def test_an_id_below_the_cursor_is_refused(self) -> None:
        self.accept(text(5, 5))
        with self.assertRaises(InvalidRequest) as caught:
            self.mark(5)
        self.assertEqual(caught.exception.message, "update 5 lies below the cursor 6: it has been dealt with")
        self.mark(6)

    def test_what_is_no_update_id_is_refused(self) -> None:
        for update_id in (-1, 2**63):
            self.assertRaises(InvalidRequest, self.mark, update_id)
        self.mark(2**63 - 1)


class UsernameTests(IngestionCase):
    @pytest.mark.report("G2")
    def test_swaps_within_a_batch(self) -> None:
        self.accept(private(1, 1, "alice"), private(2, 2, "bob"))
        self.accept(private(3, 1, "bob"), private(4, 2, "alice"))
        self.assertEqual(self.names(), {"alice": 2, "bob": 1})

    @pytest.mark.report("G3")
    def test_the_latest_wins_and_a_missing_one_removes(self) -> None:
        self.accept(private(1, 1, "alice"))
        self.accept(private(2, 9, "alice"))
        self.assertEqual(self.names(), {"alice": 9})
        self.accept(private(3, 1, None), private(4, 9, "carol"), private(5, 9, None))
        self.assertEqual(self.names(), {})

    def test_a_name_seen_in_passing_is_taken_from_its_old_chat(self) -> None:
        self.accept(private(1, 9, "alice"))
        self.accept(private(2, 1, "alice"), private(3, 1, "carol"))
        self.assertEqual(self.names(), {"carol": 1})

    def test_an_odd_one_changes_nothing(self) -> None:
        self.accept(private(1, 1, "alice"))
        self.accept(private(2, 1, None, odd=True))
        self.assertEqual(self.names(), {"alice": 1})

    def test_the_time_of_the_last_sight_is_kept(self) -> None:
        self.accept(private(1, 1, "alice"))
        self.clock = 2000.9
        self.accept(private(2, 1, "alice"))
        self.assertEqual(self.connection.execute("SELECT observed_at FROM usernames").fetchone(), (2000,))

    @given(
        st.lists(
            st.lists(st.tuples(st.integers(1, 4), st.sampled_from([None, "a", "b", "c"])), max_size=8),
            max_size=4,
        )
    )
    @settings(max_examples=50)
    def test_any_history_ends_as_if_seen_one_by_one(
        self, batches: list[list[tuple[int, str | None]]]
    ) -> None:
        self.connection.execute("DELETE FROM usernames")
        self.connection.execute("UPDATE gateway SET next_offset = 0")
        known: dict[int, str] = {}
        update_id = 0
        for batch in batches:
            updates = []
            for chat_id, username in batch:
                update_id += 1
                updates.append(private(update_id, chat_id, username))
                known = {chat: name for chat, name in known.items() if chat != chat_id and name != username}
                if username is not None:
                    known[chat_id] = username
            self.accept(*updates)
        self.assertEqual(self.names(), {name: chat for chat, name in known.items()})


class MigrationTests(IngestionCase):
    OLD, NEW = -5, -1005

    def chats(self) -> dict[int, tuple[int, int]]:
        """Subscription id to (chat, retired)."""
        rows = self.connection.execute("SELECT id, chat_id, retired FROM subscriptions")
        return {row[0]: (row[1], row[2]) for row in rows}

    @pytest.mark.report("F5")
    def test_the_old_chat_gets_the_message_and_moves(self) -> None:
        lane = subscribe(self.connection, self.owner, self.OLD)
        ingested = self.accept(moved_to(1, self.OLD, self.NEW), text(2, self.NEW))
        self.assertEqual((ingested.jobs, ingested.migrated), (2, 1))
        self.assertEqual(jobs(self.connection), [(lane, 0, 1, "to"), (lane, 0, 2, "u2")])
        self.assertEqual(self.chats(), {lane: (self.NEW, 0)})

    def test_the_second_message_changes_nothing(self) -> None:
        lane = subscribe(self.connection, self.owner, self.OLD)
        self.accept(moved_to(1, self.OLD, self.NEW))
        ingested = self.accept(moved_from(2, self.OLD, self.NEW))
        self.assertEqual((ingested.jobs, ingested.migrated), (1, 0))
        self.assertEqual(self.chats(), {lane: (self.NEW, 0)})

    def test_the_new_chat_alone_tells_as_well(self) -> None:
        old = subscribe(self.connection, self.owner, self.OLD, "http://h/old")
        new = subscribe(self.connection, self.owner, self.NEW, "http://h/new")
        ingested = self.accept(text(1, self.NEW), moved_from(2, self.OLD, self.NEW))
        self.assertEqual((ingested.jobs, ingested.migrated), (3, 1))
        self.assertEqual(jobs(self.connection), [(old, 0, 2, "from"), (new, 0, 1, "u1"), (new, 0, 2, "from")])
        self.assertEqual(self.lane(old)[:2], (2, 1000))

    def test_an_equal_older_one_absorbs_the_younger(self) -> None:
        older = subscribe(self.connection, self.owner, self.NEW)
        younger = subscribe(self.connection, self.owner, self.OLD)
        ingested = self.accept(moved_to(1, self.OLD, self.NEW), text(2, self.NEW))
        self.assertEqual(ingested.migrated, 1)
        self.assertEqual(self.chats(), {older: (self.NEW, 0), younger: (self.OLD, 1)})
        self.assertEqual(jobs(self.connection), [(older, 0, 2, "u2"), (younger, 0, 1, "to")])

    def test_the_older_one_stays_also_when_it_is_the_one_that_moves(self) -> None:
        older = subscribe(self.connection, self.owner, self.OLD)
        younger = subscribe(self.connection, self.owner, self.NEW)
        self.accept(text(1, self.NEW), moved_from(2, self.OLD, self.NEW), text(3, self.NEW))
        self.assertEqual(self.chats(), {older: (self.NEW, 0), younger: (self.NEW, 1)})
        self.assertEqual(
            jobs(self.connection), [(older, 0, 2, "from"), (older, 0, 3, "u3"), (younger, 0, 1, "u1")]
        )

    def test_a_younger_one_without_jobs_is_gone_at_once(self) -> None:
        older = subscribe(self.connection, self.owner, self.OLD)
        subscribe(self.connection, self.owner, self.NEW)
        self.accept(moved_from(2, self.OLD, self.NEW))
        self.assertEqual(self.chats(), {older: (self.NEW, 0)})

    def test_other_owners_and_urls_are_no_equals(self) -> None:
        other = add_key(self.connection, "other")
        ids = [
            subscribe(self.connection, self.owner, self.OLD),
            subscribe(self.connection, other, self.NEW),
            subscribe(self.connection, self.owner, self.NEW, "http://h/2"),
        ]
        self.accept(moved_to(1, self.OLD, self.NEW))
        self.assertEqual(self.chats(), {one: (self.NEW, 0) for one in ids})

    def test_a_move_to_itself_is_none(self) -> None:
        lane = subscribe(self.connection, self.owner, self.OLD)
        ingested = self.accept(moved_to(1, self.OLD, self.OLD), moved_from(2, self.OLD, self.OLD))
        self.assertEqual((ingested.jobs, ingested.migrated), (2, 0))
        self.assertEqual(self.chats(), {lane: (self.OLD, 0)})

    def test_a_retired_one_can_be_subscribed_anew_and_moved_again(self) -> None:
        subscribe(self.connection, self.owner, self.NEW)
        self.accept(text(1, self.NEW))
        subscribe(self.connection, self.owner, self.OLD)
        self.accept(moved_to(2, self.OLD, self.NEW))
        third = subscribe(self.connection, self.owner, self.OLD)
        self.accept(text(3, self.OLD), moved_to(4, self.OLD, self.NEW))
        self.assertEqual(self.chats()[third], (self.OLD, 1))


class BindingTests(IngestionCase):
    def test_bound_once_and_for_good(self) -> None:
        self.assertIsNone(ingestion.binding(self.connection.cursor()))
        self.successResultOf(self.port.bind(42))
        self.successResultOf(self.port.bind(42))
        error = self.failureResultOf(self.port.bind(43), WrongBot).value
        self.assertEqual((error.bound, error.found), (42, 43))
        self.assertEqual(ingestion.binding(self.connection.cursor()), 42)


class AnythingTests(IngestionCase):
    @given(st.data())
    @settings(max_examples=40)
    def test_the_invariants_hold_after_any_batches(self, data: st.DataObject) -> None:
        self.connection.execute("DELETE FROM subscriptions")
        self.connection.execute("UPDATE gateway SET next_offset = 0")
        chats = st.sampled_from([1, 2, 3])
        for chat_id, url in data.draw(st.lists(st.tuples(chats, st.sampled_from("xy")), max_size=6)):
            subscribe(self.connection, self.owner, chat_id, url)
        ids = st.integers(0, 30)
        update = st.one_of(
            st.builds(text, ids, chats),
            st.builds(moved_to, ids, chats, chats),
            st.builds(moved_from, ids, chats, chats),
            st.builds(Update, ids),
        )
        for batch in data.draw(st.lists(st.lists(update, max_size=6), max_size=4)):
            before = self.connection.execute("SELECT COUNT(*) FROM deliveries").fetchone()[0]
            ingested = self.accept(*batch)
            after = self.connection.execute("SELECT COUNT(*) FROM deliveries").fetchone()[0]
            self.assertEqual(after - before, ingested.jobs)
