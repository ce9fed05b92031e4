"""From pushed updates to polled ones and back, and malformed ones put aside (contract 8)."""

from __future__ import annotations

from telegrammer.core.folding import Folded
from telegrammer.core.ingestion import Cursor, Ingested, Quarantined
from telegrammer.core.journal import QUIET_BEFORE_RESTART
from telegrammer.core.problems import CapacityReached, InvalidRequest, MalformedUpdate, StoreBusy
from telegrammer.core.telegram import Batch, Malformed
from telegrammer.core.updates import read_update
from telegrammer.store import ingestion
from telegrammer.store.engine import immediate
from telegrammer.store.ingestion import SqlIngestion
from telegrammer.store.journal import enter_webhook_mode
from tests.support.journal_case import CHAT, NOW, JournalCase
from tests.support.pushed import group, malformed, messages, person, polled, update
from tests.support.queue_checks import subscribe


class ModeCase(JournalCase):
    def setUp(self) -> None:
        super().setUp()
        self.receiver = subscribe(self.connection, self.owner, CHAT)

    def cursor(self) -> Cursor:
        return self.successResultOf(self.ingestion.cursor())

    def owed(self) -> list[tuple[int, int]]:
        """(epoch, update id) of every job, in order."""
        return [job[1:3] for job in messages(self.connection)]


class PollAfterWebhookTests(ModeCase):
    def setUp(self) -> None:
        super().setUp()
        self.poll(*polled(group(49, CHAT)))
        with immediate(self.connection) as cursor:
            enter_webhook_mode(cursor, "secret")

    def test_the_first_request_names_no_offset(self) -> None:
        self.assertEqual(self.cursor(), Cursor(50, 0, from_head=True))

    def test_what_the_journal_holds_is_dropped(self) -> None:
        self.push(group(60, CHAT), group(62, CHAT))
        self.enter(group(64, CHAT))
        ingested = self.poll(*polled(*(group(number, CHAT) for number in (60, 61, 62, 63, 64, 65))))
        self.assertEqual(ingested, Ingested(Cursor(66, 0), fresh=3, replayed=3, jobs=3))
        # 64 is pending, and its fold brings it into its place.
        self.fold(3)
        self.assertEqual(self.owed(), [(0, number) for number in (49, 60, 61, 62, 63, 64, 65)])

    def test_also_one_that_is_malformed(self) -> None:
        """What the journal holds holds up no batch, nor is it stepped over twice."""
        entry = self.enter(malformed(60))
        self.successResultOf(self.journal.fail(entry, "odd"))
        strict = SqlIngestion(self.database, 10, lambda: self.now)
        ingested = self.successResultOf(strict.accept(Batch(polled(malformed(60), group(61, CHAT)))))
        self.assertEqual(ingested, Ingested(Cursor(62, 0), fresh=1, replayed=1, jobs=1))

    def test_when_it_holds_all_of_them_the_cursor_moves(self) -> None:
        self.push(group(60, CHAT), group(61, CHAT))
        ingested = self.poll(*polled(group(60, CHAT), group(61, CHAT)))
        self.assertEqual(ingested, Ingested(Cursor(62, 0), fresh=0, replayed=2, jobs=0))

    def test_then_the_cursor_rules_again(self) -> None:
        self.poll(*polled(group(60, CHAT)))
        self.assertEqual(self.cursor(), Cursor(61, 0))
        self.assertEqual(self.poll(*polled(group(60, CHAT))).replayed, 1)

    def test_a_batch_of_nothing_is_a_batch(self) -> None:
        self.assertEqual(self.poll().cursor, Cursor(50, 0))
        self.assertEqual(self.cursor(), Cursor(50, 0))

    def test_a_batch_of_repeats_is_one_too(self) -> None:
        self.poll(*polled(group(49, CHAT)))
        self.assertEqual(self.cursor(), Cursor(50, 0))

    def test_one_that_was_rolled_back_is_none(self) -> None:
        strict = SqlIngestion(self.database, 1, lambda: self.now)
        before = self.dump()
        for elements, kind in (
            (polled(group(60, CHAT), malformed(61)), MalformedUpdate),
            (polled(group(60, CHAT), group(61, CHAT)), CapacityReached),
        ):
            self.failureResultOf(strict.accept(Batch(elements)), kind)
        self.database.trouble = StoreBusy()
        self.failureResultOf(self.ingestion.accept(Batch()), StoreBusy)
        self.database.trouble = None
        self.assertEqual(self.dump(), before)
        self.assertTrue(self.cursor().from_head)

    def test_what_telegram_could_not_push_goes_before_what_it_could(self) -> None:
        self.push(group(70, CHAT))
        self.connection.execute("UPDATE lanes SET head_id = NULL, next_due = NULL")
        self.connection.execute("DELETE FROM deliveries")
        self.push(group(71, CHAT))
        self.poll(*polled(group(60, CHAT), group(61, CHAT), group(72, CHAT)))
        self.assertEqual(self.owed(), [(0, number) for number in (60, 61, 71, 72)])
        self.assertEqual(self.lane(self.receiver), (60, NOW))

    def test_ids_that_restarted_while_they_were_pushed(self) -> None:
        self.now += QUIET_BEFORE_RESTART
        # Far below the cursor of the polls, after a quiet time.
        self.connection.execute("UPDATE gateway SET next_offset = 5000")
        self.push(group(10, CHAT))
        self.assertEqual(self.cursor(), Cursor(0, 1, from_head=True))
        ingested = self.poll(*polled(group(9, CHAT), group(10, CHAT), group(11, CHAT)))
        self.assertEqual(ingested, Ingested(Cursor(12, 1), fresh=2, replayed=1, jobs=2))
        self.assertEqual(self.owed()[1:], [(1, 9), (1, 10), (1, 11)])

    def test_ids_that_restarted_since_the_last_push(self) -> None:
        self.push(group(5000, CHAT))
        self.now += QUIET_BEFORE_RESTART
        ingested = self.poll(*polled(group(60, CHAT), group(61, CHAT)))
        self.assertEqual(ingested, Ingested(Cursor(62, 1), fresh=2, replayed=0, jobs=2, reset=True))
        self.assertEqual(self.owed(), [(0, 49), (0, 5000), (1, 60), (1, 61)])
        # What was seen of the old numbering says nothing of this one.
        self.assertIsNone(self.gateway("highest_seen"))

    def test_ids_that_restart_below_what_was_pushed_and_above_the_cursor(self) -> None:
        """Which the pushes have not moved: also after the first polls."""
        self.push(group(9000, CHAT))
        self.poll()
        self.assertEqual(self.cursor(), Cursor(50, 0))
        self.now += QUIET_BEFORE_RESTART
        ingested = self.poll(*polled(group(5000, CHAT)))
        self.assertEqual(ingested, Ingested(Cursor(5001, 1), fresh=1, replayed=0, jobs=1, reset=True))

    def test_ids_far_below_the_cursor_prove_nothing_where_no_offset_was_named(self) -> None:
        """They may be of a batch that was committed, and not confirmed before the mode was changed."""
        self.connection.execute("UPDATE gateway SET next_offset = 5000")
        ingested = self.poll(*polled(group(48, CHAT), group(49, CHAT)))
        self.assertEqual(ingested, Ingested(Cursor(5000, 0), fresh=0, replayed=2, jobs=0))
        # After a quiet time they do.
        self.webhook_mode()
        self.now += QUIET_BEFORE_RESTART
        self.assertTrue(self.poll(*polled(group(50, CHAT))).reset)

    def test_without_the_quiet_time_low_ids_are_what_could_not_be_pushed(self) -> None:
        self.push(group(5000, CHAT))
        self.now += QUIET_BEFORE_RESTART - 1
        self.assertFalse(self.poll(*polled(group(60, CHAT))).reset)
        self.assertEqual(self.owed(), [(0, 49), (0, 60), (0, 5000)])

    def test_back_again(self) -> None:
        self.push(group(60, CHAT))
        self.poll(*polled(group(61, CHAT)))
        with immediate(self.connection) as cursor:
            self.assertEqual(enter_webhook_mode(cursor, "another"), "secret")
        self.assertTrue(self.accept(group(61, CHAT)).is_repeat)
        self.push(group(62, CHAT))
        self.assertEqual(self.cursor(), Cursor(62, 0, from_head=True))
        self.assertEqual(self.owed(), [(0, number) for number in (49, 60, 61, 62)])


class QuarantineTests(ModeCase):
    """``--on-malformed quarantine``: put aside as a failed entry, and the cursor moves on."""

    def test_its_text_is_kept_byte_for_byte(self) -> None:
        bad = b'{"update_id": 2,"message":{"chat":{"id":0 ,"type":"group"}, "x":"\\ud83d\xc3\xa9", "n":1.0}}'
        ingested = self.poll(*polled(group(1, CHAT), bad, group(3, CHAT)))
        why = "message.chat.id is not a 64-bit integer other than 0"
        self.assertEqual(
            ingested,
            Ingested(Cursor(4, 0), fresh=3, replayed=0, jobs=2, quarantined=(Quarantined(2, 1, why),)),
        )
        row = self.connection.execute(
            "SELECT received_at, accepted_at, epoch, update_id, parse_status, reason, body FROM journal"
        ).fetchone()
        self.assertEqual(row, (NOW, NOW, 0, 2, "failed", why, bad))
        self.assertEqual(self.owed(), [(0, 1), (0, 3)])

    def test_it_is_told_again_to_nobody(self) -> None:
        self.poll(*polled(malformed(2)))
        before = self.dump()
        self.assertEqual(self.poll(*polled(malformed(2))).replayed, 1)
        self.assertEqual(self.dump(), before)

    def test_one_that_was_pushed_before_is_there_already(self) -> None:
        entry = self.enter(malformed(2))
        self.webhook_mode()
        ingested = self.poll(*polled(malformed(2), malformed(3)))
        self.assertEqual((ingested.fresh, ingested.replayed), (1, 1))
        self.assertEqual([each.update_id for each in ingested.quarantined], [3])
        self.assertEqual(self.statuses(), {2: "pending", 3: "failed"})
        self.cannot_fold(entry, MalformedUpdate)

    def test_without_an_id_it_holds_up_the_batch(self) -> None:
        before = self.dump()
        elements = (*polled(group(1, CHAT), malformed(2)), Malformed(None, "no id"))
        self.failureResultOf(self.ingestion.accept(Batch(elements)), MalformedUpdate)
        self.assertEqual(self.dump(), before)

    def test_a_mark_to_skip_wins(self) -> None:
        with immediate(self.connection) as cursor:
            ingestion.mark_skip(cursor, 2, 0)
        ingested = self.poll(*polled(malformed(2), malformed(3)))
        self.assertEqual((ingested.skipped, self.statuses()), ((2,), {3: "failed"}))
        with immediate(self.connection) as cursor:
            self.assertRaises(InvalidRequest, ingestion.mark_skip, cursor, 3, 0)

    def test_in_a_batch_that_does_not_fit_it_is_not_put_aside(self) -> None:
        narrow = SqlIngestion(self.database, 1, lambda: self.now, quarantine=True)
        elements = polled(malformed(1), group(2, CHAT), group(3, CHAT))
        self.failureResultOf(narrow.accept(Batch(elements)), CapacityReached)
        self.assertEqual(self.entries(), [])

    def test_ids_that_restarted(self) -> None:
        self.poll(*polled(group(5000, CHAT)))
        ingested = self.poll(*polled(malformed(7)))
        self.assertEqual((ingested.cursor, ingested.reset), (Cursor(8, 1), True))
        self.assertEqual(self.connection.execute("SELECT epoch FROM journal").fetchone(), (1,))

    def test_folded_after_an_upgrade(self) -> None:
        """Its message goes before what its lane has not delivered."""
        self.poll(*polled(malformed(2), group(3, CHAT)))
        later = subscribe(self.connection, self.owner, CHAT, "http://h/later")
        self.cannot_fold(1, MalformedUpdate)
        # What an upgrade would understand.
        body = group(2, CHAT)
        self.connection.execute("UPDATE journal SET body = ?", (body,))
        self.assertEqual(self.fold(1), Folded("folded", 2, jobs=1))
        self.assertEqual(self.owed(), [(0, 2), (0, 3)])
        self.assertEqual(self.lane(self.receiver), (2, NOW))
        self.assertEqual(self.lane(later), (None, None))
        self.assertEqual(self.statuses(), {2: "folded"})
        message = read_update(body).message
        assert message is not None
        self.assertEqual(messages(self.connection)[0][3], message.text)

    def test_unsupported_kinds_are_no_trouble(self) -> None:
        self.assertEqual(self.poll(*polled(update(1), person(2, 3, "alice"))).quarantined, ())
        self.assertEqual(self.entries(), [])
