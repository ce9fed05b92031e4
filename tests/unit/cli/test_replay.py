"""``telegrammer replay``: what it folds, what it prints, and what it leaves alone (contract 8)."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from telegrammer.cli import replay
from telegrammer.core.updates import update_id_of
from telegrammer.store import inline, intake, journal, replaying
from telegrammer.store.engine import connect, immediate
from telegrammer.store.recovery import violations
from tests.support.pushed import group, malformed, messages, statuses, update
from tests.support.queue_checks import subscribe
from tests.unit.cli.test_main import CliCase

NOTHING = "folded 0, already 0, unsupported 0, failed 0, deferred 0; jobs 0, migrated 0\n"
SECRET = "canary"


class ReplayCase(CliCase):
    def setUp(self) -> None:
        super().setUp()
        self.new_key("key")
        self.connection = connect(self.db)
        self.addCleanup(self.connection.close)
        subscribe(self.connection, 1, 5)

    def push(self, *bodies: bytes, at: int = 1_000_000) -> None:
        for body in bodies:
            update_id = update_id_of(body)
            assert update_id is not None
            with immediate(self.connection) as cursor:
                journal.accept(cursor, update_id, body, at)

    def fail_entry(self, entry_id: int) -> None:
        with immediate(self.connection) as cursor:
            journal.fail(cursor, entry_id, "unexpected KeyError")

    def statuses(self) -> dict[int, str]:
        self.assertEqual(violations(self.connection.cursor()), [])
        return statuses(self.connection)

    def owed(self) -> list[int]:
        return [job[2] for job in messages(self.connection)]

    def troubled(self, *arguments: str) -> tuple[str, str]:
        """What a run that ends with status 1 prints, and its one line of trouble."""
        status, out, err = self.run_main("replay", *arguments)
        self.assertEqual(status, 1)
        self.assertRegex(err, r"\Atelegrammer: [^\n]+\n\Z")
        self.assertNotIn(SECRET, out + err)
        return out, err


class OutcomeTests(ReplayCase):
    def test_an_empty_journal(self) -> None:
        self.assertEqual(self.done("replay"), NOTHING)

    def test_everything_that_is_kept_in_its_order(self) -> None:
        self.push(group(3, 5), group(1, 5, migrate_to_chat_id=-100), update(2), group(4, -100))
        self.fail_entry(2)
        out = self.done("replay")
        self.assertEqual(
            out, "folded 3, already 0, unsupported 1, failed 0, deferred 0; jobs 3, migrated 1\n"
        )
        self.assertEqual(self.statuses(), {3: "folded", 1: "folded", 2: "folded", 4: "folded"})
        self.assertEqual(self.owed(), [1, 3, 4])
        self.assertEqual(
            self.done("replay"),
            "folded 0, already 4, unsupported 0, failed 0, deferred 0; jobs 0, migrated 0\n",
        )

    def test_one_json_document(self) -> None:
        self.push(group(1, 5), malformed(2))
        status, out, _ = self.run_main("replay", "--json")
        self.assertEqual(status, 1)
        self.assertEqual(
            json.loads(out),
            {
                "folded": 1,
                "already": 0,
                "unsupported": 0,
                "failed": 1,
                "deferred": 0,
                "jobs": 1,
                "migrated": 0,
            },
        )

    def test_what_is_folded_stays_so(self) -> None:
        """Also when its jobs were delivered and its body has been let go."""
        self.push(group(1, 5))
        self.done("replay")
        self.sql("UPDATE lanes SET head_id = NULL, next_due = NULL", "DELETE FROM deliveries")
        self.sql("UPDATE journal SET body = NULL")
        before = list(self.connection.iterdump())
        for arguments in ((), ("--since", "0"), ("--id", "1")):
            self.assertIn("folded 0, already 1,", self.done("replay", *arguments))
        self.assertEqual(list(self.connection.iterdump()), before)

    def test_in_portions(self) -> None:
        self.patch(replay, "PORTION", 3)
        self.push(*(group(number, 5) for number in range(10)))
        self.assertIn("folded 10,", self.done("replay"))
        self.fail_entry(5)
        self.assertIn("already 10,", self.done("replay"))
        self.assertEqual(self.owed(), list(range(10)))


class TroubleTests(ReplayCase):
    def test_what_cannot_be_folded_is_named_and_the_rest_is_done(self) -> None:
        self.push(malformed(7), group(8, 5, text=SECRET), malformed(9))
        out, err = self.troubled()
        self.assertEqual(
            out, "folded 1, already 0, unsupported 0, failed 2, deferred 0; jobs 1, migrated 0\n"
        )
        why = "message.chat.id is not a 64-bit integer other than 0"
        self.assertEqual(
            err,
            f"telegrammer: 2 cannot be folded: entry 1 (update 7: {why}), entry 3 (update 9: {why})\n",
        )
        self.assertEqual(self.statuses(), {7: "failed", 8: "folded", 9: "failed"})

    def test_only_the_first_are_named(self) -> None:
        self.push(*(malformed(number) for number in range(9)))
        _, err = self.troubled()
        self.assertTrue(err.startswith("telegrammer: 9 cannot be folded: entry 1 (update 0: "))
        self.assertTrue(err.endswith("), …\n"))
        self.assertEqual(err.count("entry "), 5)

    def test_a_fault_of_ours_is_that_entry_s(self) -> None:
        def crash(*_: object) -> None:
            raise KeyError(SECRET)

        self.push(group(1, 5), update(2))
        self.patch(intake, "observation_of", crash)
        _, err = self.troubled()
        self.assertEqual(err, "telegrammer: 1 cannot be folded: entry 1 (update 1: unexpected KeyError)\n")
        self.assertEqual(self.statuses(), {1: "failed", 2: "folded"})

    def test_no_room_stops_it_there(self) -> None:
        self.push(group(1, 5), group(2, 5), group(3, 5), update(4))
        for arguments in (("--max-jobs", "2"), ("--max-jobs=2", "--since", "0")):
            out, err = self.troubled(*arguments)
            self.assertIn("deferred 1;", out)
            self.assertEqual(err, "telegrammer: entry 3 waits: the queue has no room for its message\n")
            self.assertEqual(self.statuses(), {1: "folded", 2: "folded", 3: "pending", 4: "pending"})

    def test_a_held_lock_stops_it_at_the_first(self) -> None:
        self.patch(inline, "PATIENCE", 0.02)
        self.push(group(1, 5), group(2, 5))
        with closing(sqlite3.connect(self.db, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            out, err = self.troubled()
        self.assertEqual(
            out, "folded 0, already 0, unsupported 0, failed 0, deferred 1; jobs 0, migrated 0\n"
        )
        self.assertEqual(err, "telegrammer: entry 1 waits: the database is busy\n")
        self.assertEqual(self.statuses(), {1: "pending", 2: "pending"})

    def test_both_troubles_are_one_line(self) -> None:
        self.push(malformed(1), group(2, 5), group(3, 5))
        _, err = self.troubled("--max-jobs", "1")
        self.assertIn("1 cannot be folded: entry 1", err)
        self.assertIn("; entry 3 waits: ", err)

    def test_one_that_was_let_go_meanwhile_was_folded(self) -> None:
        self.push(group(1, 5), group(2, 5))
        self.done("replay")
        kept = replaying.kept

        def then_gone(cursor: sqlite3.Cursor, *arguments: int) -> list[int]:
            found = kept(cursor, *arguments)
            self.sql("DELETE FROM journal WHERE id = 1")
            return found

        self.patch(replaying, "kept", then_gone)
        self.assertIn("already 2,", self.done("replay"))

    def test_a_failed_one_that_goes_before_it_is_named(self) -> None:
        self.push(malformed(1))
        self.patch(replaying, "reason", lambda cursor, entry_id: None)
        self.assertEqual(self.troubled()[1], "telegrammer: 1 cannot be folded: entry 1\n")

    def test_an_interrupt(self) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        self.push(group(1, 5))
        self.patch(intake, "observation_of", interrupt)
        self.assertEqual(self.run_main("replay"), (130, "", ""))
        self.assertEqual(self.statuses(), {1: "pending"})


class ChoiceTests(ReplayCase):
    def test_failed_ones(self) -> None:
        self.push(group(1, 5), group(2, 5), group(3, 5))
        self.fail_entry(2)
        self.assertIn("folded 1, already 0,", self.done("replay", "--failed"))
        self.assertEqual(self.statuses(), {1: "pending", 2: "folded", 3: "pending"})

    def test_since(self) -> None:
        self.push(group(1, 5), at=1_793_000_000)
        self.push(group(2, 5), at=1_793_000_001)
        self.fail_entry(1)
        for said in (
            "1793000001",
            "2026-10-26T07:33:21",
            "2026-10-26T07:33:21Z",
            "2026-10-26T08:33:21+01:00",
            "2026-10-26 07:33:21.9",
            "20261026T073321",
        ):
            with self.subTest(said):
                out = self.done("replay", "--since", said)
                self.assertRegex(out, r"folded 1, already 0,|folded 0, already 1,")
        self.assertEqual(self.statuses(), {1: "failed", 2: "folded"})
        for said in ("2026-10-26", "0001-01-01T00:00:00+14:00"):
            self.assertRegex(self.done("replay", "--since", said), r"folded [01], already [12],")

    def test_the_entry_of_an_id(self) -> None:
        self.push(group(7, 5), group(1, 5))
        self.assertIn("folded 1,", self.done("replay", "--id", "1"))
        self.assertEqual(self.statuses(), {7: "folded", 1: "pending"})

    def test_or_the_latest_of_that_update_id(self) -> None:
        self.push(group(5000, 5))
        self.push(group(7, 5), at=2_000_000)
        self.push(group(5000, 5), at=2_000_001)
        for entry in (1, 2):
            self.fail_entry(entry)
        self.assertIn("folded 1,", self.done("replay", "--id", "5000"))
        self.assertEqual(
            self.connection.execute("SELECT id FROM journal WHERE parse_status = 'folded'").fetchall(), [(3,)]
        )

    def test_an_id_that_nobody_has(self) -> None:
        self.push(group(1, 5))
        self.assertEqual(
            self.refused("replay", "--id", "9"),
            "telegrammer: the journal has no entry 9, and none of an update 9\n",
        )

    def test_out_of_turn(self) -> None:
        self.push(group(1, 5), group(2, 5))
        _, err = self.troubled("--id", "2")
        self.assertEqual(err, "telegrammer: entry 2 waits: an older update waits\n")
        self.assertEqual(self.statuses(), {1: "pending", 2: "pending"})

    def test_wrong_usage(self) -> None:
        for arguments in (
            ("--failed", "--id", "1"),
            ("--since", "0", "--id", "1"),
            ("--failed", "--since", "0"),
            ("--id", "x"),
            ("--id", "-1"),
            ("--id", str(2**63)),
            ("--id", "9" * 40),
            ("--since", "yesterday"),
            ("--since", "-5"),
            ("--since", "1.5"),
            ("--since", "2026-13-01"),
            ("--since", ""),
            ("--fold-timeout", "0s"),
            ("--max-jobs", "none"),
            ("--port", "1"),
            ("surplus",),
        ):
            with self.subTest(arguments):
                self.refused("replay", *arguments, status=2)

    def test_flags_before_the_name(self) -> None:
        self.push(group(1, 5))
        self.assertIn("folded 1,", self.done("--id", "1", "replay"))
        self.assertIn("already 1,", self.done("--since", "0", "--db", str(self.db), "replay"))

    def test_settings_of_the_configuration_file(self) -> None:
        """What else is in there is not for this command to judge."""
        file = self.directory / "config.toml"
        file.write_text('max-jobs = 1\nport = "none"\n')
        self.push(group(1, 5), group(2, 5))
        self.assertIn("deferred 1;", self.troubled("--config", str(file))[0])
        self.assertIn("folded 1,", self.done("replay", "--config", str(file), "--max-jobs", "5"))
        file.write_text("max-jobs = 0\n")
        self.assertIn("max-jobs", self.refused("replay", "--config", str(file)))
        self.assertIn("max-jobs", self.refused("replay", "--max-jobs", "0", status=2))
