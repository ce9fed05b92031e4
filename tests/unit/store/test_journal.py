"""The journal: accepted once, in order, and folded in that order into jobs (contract 8)."""

from __future__ import annotations

import sqlite3
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from telegrammer.core.folding import Folded
from telegrammer.core.journal import QUIET_BEFORE_RESTART, Accepted, JournalCounts, Pending, Place
from telegrammer.core.problems import (
    CapacityReached,
    MalformedUpdate,
    OutOfTurn,
    StoreBusy,
    UnknownEntry,
)
from telegrammer.store.subscriptions import remove
from tests.support.journal_case import CHAT, NOW, JournalCase
from tests.support.pushed import group, malformed, messages, person, polled, update
from tests.support.queue_checks import add_key, broken, subscribe


class AcceptTests(JournalCase):
    def test_the_body_is_kept_byte_for_byte(self) -> None:
        body = b' {"update_id" : 7, "message":{"a":1.0,"b":\t1e3,"\\ud83d":"\xc3\xa9\xf0\x9f\x98\x80"}}\r\n'
        self.assertEqual(self.accept(body), Accepted(1, 0))
        row = self.connection.execute(
            "SELECT received_at, accepted_at, epoch, update_id, parse_status, reason, body FROM journal"
        ).fetchone()
        self.assertEqual(row, (NOW, NOW, 0, 7, "pending", None, body))

    def test_it_is_urgent_and_makes_nothing_but_an_entry(self) -> None:
        subscribe(self.connection, self.owner, CHAT)
        self.accept(person(1, CHAT, "alice"))
        self.assertEqual(self.database.urgent, [True])
        self.assertEqual((messages(self.connection), self.names()), ([], {}))

    def test_a_repeat_changes_nothing(self) -> None:
        self.accept(group(7, CHAT))
        before = self.dump()
        self.now += 100
        again = self.accept(group(7, CHAT, text="other"))
        self.assertEqual((again, again.is_repeat), (Accepted(None, 0), True))
        self.assertEqual(self.dump(), before)
        self.fold(1)
        self.assertTrue(self.accept(group(7, CHAT)).is_repeat)

    def test_what_was_polled_is_a_repeat(self) -> None:
        self.poll(*polled(group(49, CHAT)))
        self.webhook_mode()
        before = self.dump()
        for old in (48, 49, 0):
            self.assertTrue(self.accept(group(old, CHAT)).is_repeat)
        self.assertEqual(self.dump(), before)
        self.assertEqual(self.accept(group(50, CHAT)), Accepted(1, 0))

    def test_the_highest_id_that_was_polled(self) -> None:
        """The cursor cannot stand behind it."""
        self.poll(*polled(group(2**63 - 1, CHAT)))
        self.assertTrue(self.accept(group(2**63 - 1, CHAT)).is_repeat)

    def test_the_cursor_stays(self) -> None:
        self.poll(*polled(group(49, CHAT)))
        self.accept(group(60, CHAT))
        self.accept(group(55, CHAT))
        self.assertEqual((self.gateway("next_offset"), self.gateway("highest_seen")), (50, 60))

    def test_a_failing_database_stores_nothing(self) -> None:
        self.database.trouble = StoreBusy()
        self.failureResultOf(self.journal.accept(1, group(1, CHAT)), StoreBusy)
        self.assertEqual(self.entries(), [])


class OrderTests(JournalCase):
    def test_within_a_second_by_id(self) -> None:
        for number in (3, 1, 2):
            self.accept(group(number, CHAT))
        self.assertEqual(self.pending(), [Pending(Place(NOW, entry_id), NOW) for entry_id in (1, 2, 3)])
        self.assertEqual(self.entries(), [3, 1, 2])

    def test_a_clock_that_is_set_back(self) -> None:
        self.accept(group(1, CHAT))
        self.now -= 500
        self.accept(group(2, CHAT))
        self.now += 501
        self.accept(group(3, CHAT))
        self.assertEqual(
            self.pending(),
            [
                Pending(Place(NOW, 1), NOW),
                Pending(Place(NOW, 2), NOW - 500),
                Pending(Place(NOW + 1, 3), NOW + 1),
            ],
        )

    def test_also_when_all_entries_have_gone(self) -> None:
        self.push(group(1, CHAT))
        self.connection.execute("DELETE FROM journal")
        self.now -= 500
        self.accept(group(2, CHAT))
        self.assertEqual(self.pending(), [Pending(Place(NOW, 2), NOW - 500)])

    def test_one_put_aside_keeps_the_order_too(self) -> None:
        self.poll(*polled(malformed(1)))
        self.now -= 500
        self.accept(group(2, CHAT))
        self.assertEqual(self.pending()[0].place, Place(NOW, 2))
        self.poll(*polled(malformed(3)))
        rows = self.connection.execute("SELECT received_at, accepted_at FROM journal").fetchall()
        self.assertEqual(rows, [(NOW, NOW), (NOW, NOW - 500), (NOW, NOW - 500)])

    @given(
        st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(1, 13), st.sets(st.integers(1, 12))
    )
    @settings(max_examples=60)
    def test_portions_of_any_size_go_through_all(
        self, steps: list[int], portion: int, folded: set[int]
    ) -> None:
        self.connection.execute("DELETE FROM journal")
        self.connection.execute("UPDATE gateway SET received_at = 0, highest_seen = NULL, accepted_at = NULL")
        accepted = []
        for number, step in enumerate(steps):
            self.now += step
            accepted.append(self.enter(group(number, CHAT)))
        base = accepted[0] - 1
        for number in folded:
            self.connection.execute(
                "UPDATE journal SET parse_status = 'folded' WHERE id = ?", (base + number,)
            )
        seen: list[Pending] = []
        while found := self.pending(seen[-1].place if seen else Place(), portion):
            self.assertLessEqual(len(found), portion)
            seen += found
        self.assertEqual(
            [each.place.entry_id for each in seen], [each for each in accepted if each - base not in folded]
        )
        places = [each.place for each in seen]
        self.assertEqual(places, sorted(places))


class EpochTests(JournalCase):
    """The epoch rises only with an id far below *and* after a quiet time."""

    def after(self, seconds: int, update_id: int) -> Accepted:
        self.now += seconds
        return self.accept(group(update_id, CHAT))

    def test_a_restart(self) -> None:
        self.accept(group(5000, CHAT))
        self.assertEqual(self.after(QUIET_BEFORE_RESTART, 3999), Accepted(2, 1, restarted=True))
        self.assertEqual(self.gateway("next_offset"), 0)
        self.assertEqual(self.gateway("highest_seen"), 3999)
        # What goes on from there is of the new numbering, what overtook it as well.
        self.assertEqual(self.after(0, 3998), Accepted(3, 1))
        self.assertEqual(self.after(0, 5000), Accepted(4, 1))

    def test_either_condition_alone_is_none(self) -> None:
        for seconds, update_id in (
            (QUIET_BEFORE_RESTART - 1, 3999),
            (QUIET_BEFORE_RESTART, 4000),
            (0, 1),
            (10 * QUIET_BEFORE_RESTART, 5001),
        ):
            with self.subTest(seconds=seconds, update_id=update_id):
                self.setUp()
                self.accept(group(5000, CHAT))
                self.assertEqual(self.after(seconds, update_id), Accepted(2, 0))

    def test_the_quiet_time_counts_from_whatever_came_last(self) -> None:
        self.accept(group(5000, CHAT))
        self.after(QUIET_BEFORE_RESTART - 1, 4500)
        self.assertEqual(self.after(2, 100), Accepted(3, 0))
        self.poll(*polled(group(6000, CHAT)))
        self.assertTrue(self.after(QUIET_BEFORE_RESTART - 1, 200).is_repeat)
        # A repeat is no update: it does not end the quiet time.
        self.assertEqual(self.after(1, 200), Accepted(4, 1, restarted=True))

    def test_below_what_was_polled(self) -> None:
        self.poll(*polled(group(5000, CHAT)))
        self.webhook_mode()
        self.assertTrue(self.after(QUIET_BEFORE_RESTART, 4000).is_repeat)
        self.assertEqual(self.after(0, 3999), Accepted(1, 1, restarted=True))

    def test_an_unsupported_or_empty_poll_is_no_update_to_count_from(self) -> None:
        self.accept(group(5000, CHAT))
        self.now += QUIET_BEFORE_RESTART
        self.poll()
        self.assertTrue(self.after(0, 10).restarted)

    def test_nothing_before_is_no_restart(self) -> None:
        self.assertEqual(self.accept(group(1, CHAT)), Accepted(1, 0))

    def test_the_highest_id_outlives_its_entry(self) -> None:
        self.push(group(5000, CHAT))
        self.connection.execute("DELETE FROM journal")
        self.assertEqual(self.after(QUIET_BEFORE_RESTART, 4000), Accepted(2, 0))
        self.assertTrue(self.after(QUIET_BEFORE_RESTART, 3999).restarted)

    def test_an_old_id_again_in_the_new_epoch_is_another_update(self) -> None:
        lane = subscribe(self.connection, self.owner, CHAT)
        self.push(group(5000, CHAT))
        self.now += QUIET_BEFORE_RESTART
        self.push(group(10, CHAT), group(5000, CHAT, text="again"))
        self.assertEqual(
            [job[:3] for job in messages(self.connection)], [(lane, 0, 5000), (lane, 1, 10), (lane, 1, 5000)]
        )

    @given(
        st.lists(
            st.tuples(
                st.sampled_from([0, 1, QUIET_BEFORE_RESTART - 1, QUIET_BEFORE_RESTART]),
                st.sampled_from([0, 1, 5, 999, 1000, 1001, 1002, 3000, 4000, 4001]),
            ),
            max_size=12,
        )
    )
    @settings(max_examples=80)
    def test_any_history(self, calls: list[tuple[int, int]]) -> None:
        """The rule of the contract, said once more in plain words."""
        self.connection.execute("DELETE FROM journal")
        self.connection.execute("UPDATE gateway SET epoch = 0, highest_seen = NULL, accepted_at = NULL")
        epoch, seen, last = 0, set[tuple[int, int]](), 0
        for quiet, update_id in calls:
            self.now += quiet
            of_epoch = [each for number, each in seen if number == epoch]
            if of_epoch and update_id < max(of_epoch) - 1000 and self.now - last >= QUIET_BEFORE_RESTART:
                epoch += 1
            done = self.accept(group(update_id, CHAT))
            self.assertEqual((done.epoch, done.is_repeat), (epoch, (epoch, update_id) in seen))
            if not done.is_repeat:
                seen.add((epoch, update_id))
                last = int(self.now)


class FoldTests(JournalCase):
    def test_jobs_and_status_in_one_transaction(self) -> None:
        one = subscribe(self.connection, self.owner, CHAT, "http://h/1")
        two = subscribe(self.connection, self.owner, CHAT, "http://h/2")
        subscribe(self.connection, self.owner, 6)
        body = b'{"update_id":7, "message": {"chat":{"id":5,"type":"group"},  "n":1.0, "x":"\\ud83d"} }'
        self.assertEqual(self.push(body), [Folded("folded", 7, jobs=2)])
        text = b'{"chat":{"id":5,"type":"group"},  "n":1.0, "x":"\\ud83d"}'
        self.assertEqual(messages(self.connection), [(one, 0, 7, text), (two, 0, 7, text)])
        self.assertEqual(self.statuses(), {7: "folded"})
        self.assertEqual(self.lane(one), (7, NOW))

    def test_what_is_folded_stays_so(self) -> None:
        lane = subscribe(self.connection, self.owner, CHAT)
        self.push(group(7, CHAT))
        before = self.dump()
        self.assertEqual(self.fold(1), Folded("already", 7))
        self.assertEqual(self.dump(), before)
        # Also when its jobs have been delivered, and its body has been let go.
        self.connection.execute("UPDATE lanes SET head_id = NULL, next_due = NULL")
        self.connection.execute("DELETE FROM deliveries")
        self.connection.execute("UPDATE journal SET body = NULL")
        self.assertEqual(self.fold(1), Folded("already", 7))
        self.assertEqual((messages(self.connection), self.lane(lane)), ([], (None, None)))

    def test_an_unsupported_one_is_dealt_with(self) -> None:
        self.assertEqual(self.push(update(7)), [Folded("unsupported", 7)])
        self.assertEqual(self.statuses(), {7: "folded"})
        self.assertEqual(self.fold(1), Folded("already", 7))

    def test_without_a_subscription_there_is_no_job(self) -> None:
        self.assertEqual(self.push(group(7, CHAT)), [Folded("folded", 7)])
        self.assertEqual(self.connection.execute("SELECT COUNT(*) FROM payloads").fetchone(), (0,))

    def test_not_before_an_older_one(self) -> None:
        first, second = self.enter(group(1, CHAT)), self.enter(group(2, CHAT))
        self.cannot_fold(second, OutOfTurn)
        self.fold(first)
        self.fold(second)

    def test_one_that_failed_holds_up_nobody(self) -> None:
        first, second = self.enter(malformed(1)), self.enter(group(2, CHAT))
        error = self.cannot_fold(first, MalformedUpdate)
        assert isinstance(error, MalformedUpdate)
        self.assertEqual(
            (error.update_id, error.why), (1, "message.chat.id is not a 64-bit integer other than 0")
        )
        self.successResultOf(self.journal.fail(first, error.why))
        self.assertEqual(self.fold(second), Folded("folded", 2))
        self.assertEqual(self.statuses(), {1: "failed", 2: "folded"})

    def test_one_that_is_not_there(self) -> None:
        self.cannot_fold(1, UnknownEntry)

    def test_what_was_folded_cannot_fail(self) -> None:
        self.push(group(1, CHAT))
        before = self.dump()
        self.successResultOf(self.journal.fail(1, "late"))
        self.assertEqual(self.dump(), before)

    def test_a_failed_one_is_tried_again(self) -> None:
        lane = subscribe(self.connection, self.owner, CHAT)
        entry = self.enter(group(1, CHAT))
        self.successResultOf(self.journal.fail(entry, "unexpected ZeroDivisionError"))
        self.assertEqual(self.fold(entry), Folded("folded", 1, jobs=1))
        self.assertEqual(
            self.connection.execute("SELECT parse_status, reason FROM journal").fetchone(), ("folded", None)
        )
        self.assertEqual(self.lane(lane), (1, NOW))

    def test_a_job_that_is_there_is_not_doubled(self) -> None:
        """Should a status ever be set back: the last defence is that a job is unique."""
        for folded in (1, 2):
            subscribe(self.connection, self.owner, CHAT, f"http://h/{folded}")
            self.connection.execute("UPDATE journal SET parse_status = 'pending'")
            self.connection.execute("UPDATE journal SET subscriptions_until = 99")
            self.fold(self.enter(group(1, CHAT)) if folded == 1 else 1)
            self.assertEqual(len(messages(self.connection)), folded)
        self.connection.execute("UPDATE journal SET parse_status = 'pending'")
        self.assertEqual(self.fold(1), Folded("folded", 1, jobs=0))
        self.assertEqual(len(messages(self.connection)), 2)

    def test_it_is_background_work_that_waits_so_long(self) -> None:
        begun: list[float | None] = []

        def write(work: Any, *args: Any, urgent: bool = False, begin_within: float | None = None) -> Any:
            begun.append(begin_within)
            return InlineWrite(work, *args, urgent=urgent)

        InlineWrite = self.database.write
        self.patch(type(self.database), "write", lambda _, *args, **more: write(*args, **more))
        self.push(group(1, CHAT))
        self.assertEqual(begun, [5.0, 10.0])
        self.assertEqual(self.database.urgent, [True, False])

    def test_the_counts(self) -> None:
        self.assertEqual(self.counts(), JournalCounts())
        self.push(group(1, CHAT))
        for update_id in (2, 3):
            self.enter(malformed(update_id))
            self.now += 10
        self.enter(group(4, CHAT))
        self.assertEqual(self.counts(), JournalCounts(3, 0, NOW, None))
        self.successResultOf(self.journal.fail(2, "odd"))
        self.assertEqual(self.counts(), JournalCounts(2, 1, NOW + 10, 2))

    def counts(self) -> JournalCounts:
        return self.successResultOf(self.journal.counts())


class SubscriptionsThenTests(JournalCase):
    """Jobs go to the subscriptions that existed when the update was received."""

    def test_one_that_came_after_it_in_the_same_second(self) -> None:
        before = subscribe(self.connection, self.owner, CHAT, "http://h/1")
        entry = self.enter(group(1, CHAT))
        after = subscribe(self.connection, self.owner, CHAT, "http://h/2")
        self.assertEqual(self.fold(entry).jobs, 1)
        self.assertEqual([job[0] for job in messages(self.connection)], [before])
        self.assertEqual(self.lane(after), (None, None))
        self.push(group(2, CHAT))
        self.assertEqual((self.lane(before)[0], self.lane(after)[0]), (1, 2))

    def test_the_only_one_came_after_it(self) -> None:
        entry = self.enter(group(1, CHAT))
        subscribe(self.connection, self.owner, CHAT)
        self.assertEqual(self.fold(entry).jobs, 0)
        self.assertEqual(self.connection.execute("SELECT COUNT(*) FROM payloads").fetchone(), (0,))

    def test_one_that_was_removed_meanwhile(self) -> None:
        gone = subscribe(self.connection, self.owner, CHAT)
        entry = self.enter(group(1, CHAT))
        remove(self.connection.cursor(), self.owner, gone)
        new = subscribe(self.connection, self.owner, CHAT)
        self.assertGreater(new, gone)
        self.assertEqual(self.fold(entry).jobs, 0)

    def test_a_failed_one_is_owed_to_those_of_its_time(self) -> None:
        old = subscribe(self.connection, self.owner, CHAT, "http://h/1")
        entry = self.enter(group(1, CHAT))
        self.successResultOf(self.journal.fail(entry, "odd"))
        subscribe(self.connection, self.owner, CHAT, "http://h/2")
        self.assertEqual(self.fold(entry).jobs, 1)
        self.assertEqual(messages(self.connection)[0][0], old)

    def test_one_that_moved_with_its_group(self) -> None:
        moved = subscribe(self.connection, self.owner, CHAT, "http://h/1")
        entries = [self.enter(group(1, CHAT, migrate_to_chat_id=-100)), self.enter(group(2, -100))]
        late = subscribe(self.connection, self.owner, CHAT, "http://h/2")
        self.assertEqual([self.fold(entry) for entry in entries], [
            Folded("folded", 1, jobs=1, migrated=2),
            Folded("folded", 2, jobs=1),
        ])  # fmt: skip
        self.assertEqual([job[:3] for job in messages(self.connection)], [(moved, 0, 1), (moved, 0, 2)])
        self.push(group(3, -100))
        self.assertEqual(self.lane(late)[0], 3)

    def test_a_move_pushed_in_either_order(self) -> None:
        to, back = group(1, CHAT, migrate_to_chat_id=-100), group(2, -100, migrate_from_chat_id=CHAT)
        for order in ((to, back), (back, to)):
            self.setUp()
            lane = subscribe(self.connection, self.owner, CHAT)
            folded = self.push(*order)
            self.assertEqual([each.migrated for each in folded], [1, 0])
            self.assertEqual([job[:3] for job in messages(self.connection)], [(lane, 0, 1), (lane, 0, 2)])
            self.assertEqual(self.lane(lane)[0], 1)
            chats = self.connection.execute("SELECT id, chat_id, retired FROM subscriptions").fetchall()
            self.assertEqual(chats, [(lane, -100, 0)])

    def test_what_the_old_chat_still_held_is_owed_to_those_who_moved_on(self) -> None:
        """Telegram pushes the two chats of a group side by side: no message may be lost between them."""
        for chats in ([CHAT], [CHAT, -100], [-100, CHAT]):
            self.setUp()
            # Of two that become equal the older stays; it is owed what either was.
            stays = [subscribe(self.connection, self.owner, chat) for chat in chats][0]
            entry = self.enter(group(1, CHAT))
            self.successResultOf(self.journal.fail(entry, "odd"))
            self.push(group(5, -100, migrate_from_chat_id=CHAT))
            stranger = subscribe(self.connection, self.owner, -100, "http://h/new")
            self.push(group(2, CHAT), group(3, CHAT, migrate_to_chat_id=-100))
            self.assertEqual(self.fold(entry).jobs, 1)
            self.assertEqual([job[:3] for job in messages(self.connection)], [
                (stays, 0, 1), (stays, 0, 2), (stays, 0, 3), (stays, 0, 5),
            ])  # fmt: skip
            # What is younger than the move is nobody's in the old chat, as when it is polled.
            self.push(group(6, -100), group(7, CHAT))
            owed = [job[::2][:2] for job in messages(self.connection) if job[2] > 5]
            self.assertEqual(owed, [(stays, 6), (stranger, 6)])
            self.assertEqual(broken(self.connection), [])


class CapacityTests(JournalCase):
    max_jobs = 3

    def test_it_fits_or_is_rolled_back_whole(self) -> None:
        for url in ("http://h/1", "http://h/2"):
            subscribe(self.connection, self.owner, CHAT, url)
            subscribe(self.connection, self.owner, 9, url)
        self.push(group(1, CHAT))
        entry = self.enter(person(2, 9, "alice"))
        self.cannot_fold(entry, CapacityReached)
        self.assertEqual((self.statuses()[2], self.names()), ("pending", {}))
        self.connection.execute("UPDATE lanes SET head_id = NULL, next_due = NULL")
        self.connection.execute("DELETE FROM deliveries")
        self.assertEqual(self.fold(entry).jobs, 2)

    def test_the_dead_do_not_keep_it_out_for_good(self) -> None:
        subscribe(self.connection, self.owner, CHAT)
        self.push(*(group(number, CHAT) for number in (1, 2, 3)))
        self.connection.execute("UPDATE lanes SET head_id = NULL, next_due = NULL")
        self.connection.execute("UPDATE deliveries SET state = 'DEAD', died_at = 1000")
        self.assertEqual(self.push(group(4, CHAT)), [Folded("folded", 4, jobs=1, evicted=1)])


class UsernameTests(JournalCase):
    def observed_at(self) -> list[tuple[str, int]]:
        return self.connection.execute(
            "SELECT username, observed_at FROM usernames ORDER BY username"
        ).fetchall()

    def test_in_the_order_of_acceptance(self) -> None:
        self.push(person(1, 1, "alice"), person(2, 2, "bob"), person(3, 1, "bob"), person(4, 2, "alice"))
        self.assertEqual(self.names(), {"alice": 2, "bob": 1})

    def test_seen_when_it_was_received(self) -> None:
        entry = self.enter(person(1, 1, "alice"))
        self.now += 3600
        self.fold(entry)
        self.assertEqual(self.observed_at(), [("alice", NOW)])

    def late(self, username: str | None, *since: bytes) -> dict[str, int]:
        """What is known when an entry of chat 1 that failed is folded after all, with others folded since."""
        entry = self.enter(person(100, 1, username))
        self.successResultOf(self.journal.fail(entry, "odd"))
        self.now += 1
        self.push(*since)
        self.now += 1
        self.fold(entry)
        return self.names()

    def test_what_comes_late_teaches_what_nothing_newer_has(self) -> None:
        self.assertEqual(self.late("alice"), {"alice": 1})
        self.assertEqual(self.observed_at(), [("alice", NOW)])

    def test_a_newer_name_of_the_chat_stays(self) -> None:
        self.assertEqual(self.late("alice", person(101, 1, "carol")), {"carol": 1})

    def test_a_newer_chat_of_the_name_stays(self) -> None:
        self.assertEqual(self.late("alice", person(101, 2, "alice")), {"alice": 2})

    def test_an_older_name_is_given_up(self) -> None:
        self.push(person(1, 1, "alice"))
        self.now += 1
        self.assertEqual(self.late(None), {})

    def test_an_older_name_goes_over(self) -> None:
        self.push(person(1, 1, "carol"), person(2, 2, "alice"))
        self.now += 1
        self.assertEqual(self.late("alice"), {"alice": 1})

    def test_one_of_the_same_second_counts_as_newer(self) -> None:
        entry = self.enter(person(1, 1, "alice"))
        self.successResultOf(self.journal.fail(entry, "odd"))
        self.push(person(2, 1, "carol"))
        self.fold(entry)
        self.assertEqual(self.names(), {"carol": 1})


class AtomicityTests(JournalCase):
    def test_a_failure_at_any_row_leaves_nothing(self) -> None:
        """Whichever table refuses a write, the entry is pending and all is as before."""
        subscribe(self.connection, self.owner, 9)
        subscribe(self.connection, self.owner, 9, "http://h/2")
        other = add_key(self.connection, "other")
        subscribe(self.connection, other, -100, "http://h/2")
        message = {"chat": {"id": 9, "type": "private", "username": "alice"}, "migrate_to_chat_id": -100}
        entry = self.enter(update(1, message))
        for table, event in (
            ("usernames", "INSERT"),
            ("payloads", "INSERT"),
            ("deliveries", "INSERT"),
            ("payloads", "UPDATE"),
            ("lanes", "UPDATE"),
            ("subscriptions", "UPDATE"),
            ("journal", "UPDATE"),
        ):
            with self.subTest(table=table, event=event):
                self.connection.execute(
                    f"CREATE TEMP TRIGGER refuse AFTER {event} ON {table}"
                    " BEGIN SELECT RAISE(ABORT, 'no'); END"
                )
                self.cannot_fold(entry, sqlite3.IntegrityError)
                self.connection.execute("DROP TRIGGER refuse")
        self.assertEqual(self.fold(entry), Folded("folded", 1, jobs=2, migrated=2))
