from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.cli import main
from telegrammer.cli.main import COMMANDS
from telegrammer.store import keys


class CliCase(SynchronousTestCase):
    def setUp(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.db = self.directory / "state" / "t.db"
        self.patch(os, "environ", {"HOME": directory.name, "TELEGRAMMER_DB": str(self.db)})

    def run_main(self, *arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        self.patch(sys, "stdout", out)
        self.patch(sys, "stderr", err)
        status = main(arguments)
        return status, out.getvalue(), err.getvalue()

    def done(self, *arguments: str) -> str:
        status, out, err = self.run_main(*arguments)
        self.assertEqual((status, err), (0, ""))
        return out

    def refused(self, *arguments: str, status: int = 1) -> str:
        found, out, err = self.run_main(*arguments)
        self.assertEqual((found, out), (status, ""))
        self.assertRegex(err, r"\Atelegrammer: [^\n]+\n\Z")
        return err

    def new_key(self, name: str) -> str:
        status, out, _ = self.run_main("add-key", name)
        self.assertEqual(status, 0)
        return out.strip()

    def sql(self, *statements: str) -> None:
        connection = sqlite3.connect(self.db)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()

    def bury(self, *, reason: str = "HTTP 404") -> None:
        """Two dead jobs of subscription 1 and one of subscription 2."""
        self.new_key("owner")
        self.sql(
            "INSERT INTO subscriptions(id, key_id, chat_id, callback_url, created_at)"
            " VALUES (1, 1, -100, 'http://x/?q', 1)",
            "INSERT INTO subscriptions(id, key_id, chat_id, callback_url, created_at)"
            " VALUES (2, 1, -200, 'http://y/', 1)",
            "INSERT INTO lanes(subscription_id) VALUES (1), (2)",
            "INSERT INTO payloads VALUES (1, 0, 11, '{}', 2), (2, 0, 12, '{}', 1)",
            f"""
            INSERT INTO deliveries(subscription_id, key_id, epoch, update_id, payload_id, state,
                attempt_count, next_attempt_at, created_at, died_at, last_error) VALUES
            (1, 1, 0, 11, 1, 'DEAD', 8, 0, 1793000000, 1793000100, '{reason}'),
            (1, 1, 0, 12, 2, 'DEAD', 1, 0, 1793000000, 1793000200, '{reason}'),
            (2, 1, 0, 11, 1, 'DEAD', 1, 0, 1793000000, 1793000300, '{reason}')
            """,
        )


class EntranceTests(CliCase):
    def test_help_and_version(self) -> None:
        for arguments in (["--help"], ["-h"], ["help"]):
            text = self.done(*arguments)
            self.assertTrue(all(name in text for name in COMMANDS))
        self.assertRegex(self.done("--version"), r"\Atelegrammer \d")
        for name in COMMANDS:
            self.assertIn(f"usage: telegrammer {name}", self.done(name, "--help"))
            self.assertIn(f"usage: telegrammer {name}", self.done("help", name))

    def test_wrong_usage(self) -> None:
        self.refused(status=2)
        self.refused("--db", "x", status=2)
        self.assertIn("bogus", self.refused("bogus", status=2))
        self.assertNotIn("AAF", self.refused("123456:AAF", status=2))
        self.refused("list-keys", "--bogus", status=2)
        self.refused("add-key", status=2)
        self.refused("serve", "surplus", status=2)

    def test_settings_that_were_typed_or_found(self) -> None:
        status, _, err = self.run_main("serve", "--port", "x", "--bogus")
        self.assertEqual((status, err.count("telegrammer: ")), (2, 3))
        self.assertIn("token: is missing", self.refused("serve"))
        self.refused("list-keys", "--config", "/nonexistent")

    def test_an_interrupt_is_quiet(self) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        self.patch(keys, "listing", interrupt)
        self.new_key("n")
        self.assertEqual(self.run_main("list-keys"), (130, "", ""))

    def test_a_fault_of_ours_is_one_line_without_its_text(self) -> None:
        def crash(*_: object) -> None:
            raise ZeroDivisionError("secret")

        self.new_key("n")
        self.patch(keys, "listing", crash)
        line = self.refused("list-keys")
        self.assertRegex(line, r"unexpected ZeroDivisionError at test_main.py:\d+$")


class KeyTests(CliCase):
    def test_a_new_key_is_alone_on_standard_output(self) -> None:
        status, out, err = self.run_main("add-key", "program")
        self.assertEqual(status, 0)
        self.assertRegex(out, r"\A[0-9a-f]{64}\n\Z")
        self.assertEqual(err, f"telegrammer: key added to the new database {self.db}\n")
        status, other, err = self.run_main("--add-key", "second", "--db", str(self.db))
        self.assertNotEqual(out, other)
        self.assertEqual(err, f"telegrammer: key added to {self.db}\n")
        self.assertEqual(self.db.stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.db.parent.stat().st_mode & 0o777, 0o700)

    def test_its_digest_is_stored_and_not_itself(self) -> None:
        key = self.new_key("program")
        content = b"".join(path.read_bytes() for path in self.db.parent.iterdir())
        self.assertIn(hashlib.sha256(key.encode()).digest(), content)
        self.assertNotIn(key.encode(), content)

    def test_names(self) -> None:
        for name in ("", "a\nb", "\x7f", "x" * 129, "\u00e9" * 65, "\udcff"):
            self.refused("add-key", name)
        self.assertFalse(self.db.parent.exists())
        for name in ("x", "x" * 128, "\u00e9" * 64, "two words", "-dash"):
            self.assertEqual(self.run_main("add-key", "--", name)[0], 0)
        self.assertIn("exists already", self.refused("add-key", "x"))

    def test_a_key_that_could_not_be_shown_is_none(self) -> None:
        class Full(io.StringIO):
            def write(self, text: str) -> int:
                raise OSError(28, "No space left on device")

        self.new_key("first")
        for out, err in ((Full(), io.StringIO()), (io.StringIO(), Full())):
            self.patch(sys, "stdout", out)
            self.patch(sys, "stderr", err)
            self.assertEqual(main(["add-key", "unseen"]), 1)
            self.assertNotIn("unseen", self.done("list-keys"))

    def test_listing(self) -> None:
        self.new_key("one")
        self.new_key("tw\u00f6")
        self.sql("UPDATE keys SET created_at = 1793000000, legacy = id = 1")
        self.assertEqual(
            self.done("list-keys"),
            "2026-10-26T07:33:20Z  one  legacy: to be rotated\n2026-10-26T07:33:20Z  tw\u00f6\n",
        )
        document = {
            "keys": [
                {"name": "one", "created_at": 1793000000, "legacy": True},
                {"name": "tw\u00f6", "created_at": 1793000000, "legacy": False},
            ]
        }
        for arguments in (["list-keys", "--json"], ["--list-keys", "--json"]):
            self.assertEqual(json.loads(self.done(*arguments)), document)
        self.sql("UPDATE keys SET created_at = 1 << 60")
        self.assertIn(str(1 << 60), self.done("list-keys"))

    def test_deleting(self) -> None:
        self.bury()
        self.done("delete-key", "owner")
        self.assertEqual(json.loads(self.done("list-failed-deliveries", "--json")), {"deliveries": []})
        self.assertIn("no key", self.refused("delete-key", "owner"))
        self.refused("--delete-key", "a\nb")

    def test_no_command_but_add_key_makes_a_database(self) -> None:
        for arguments in (
            ["list-keys"],
            ["delete-key", "x"],
            ["list-failed-deliveries"],
            ["retry-delivery", "1"],
            ["delete-delivery", "1"],
            ["skip-update", "1"],
            ["replay"],
        ):
            self.assertIn(str(self.db), self.refused(*arguments))
        self.assertFalse(self.db.parent.exists())


class DeliveryTests(CliCase):
    def dead(self, *arguments: str) -> list[int]:
        document: dict[str, Any] = json.loads(self.done("list-failed-deliveries", "--json", *arguments))
        return [job["id"] for job in document["deliveries"]]

    def test_listing(self) -> None:
        self.bury(reason="HTTP 404")
        text = self.done("--list-failed-deliveries")
        self.assertEqual(
            text.splitlines()[0],
            "1  subscription 1  chat -100  update 11  attempts 8  created 2026-10-26T07:33:20Z  "
            "died 2026-10-26T07:35:00Z  HTTP 404",
        )
        self.assertNotIn("http:", text)
        document = json.loads(self.done("list-failed-deliveries", "--json"))
        self.assertEqual(
            document["deliveries"][0],
            {
                "id": 1,
                "subscription_id": 1,
                "chat_id": -100,
                "update_id": 11,
                "attempts": 8,
                "created_at": 1793000000,
                "died_at": 1793000100,
                "reason": "HTTP 404",
            },
        )
        self.assertEqual((self.dead(), self.dead("--subscription", "2")), ([1, 2, 3], [3]))

    def test_a_reason_stays_in_its_line(self) -> None:
        self.bury(reason="a\nb")
        self.assertEqual(len(self.done("list-failed-deliveries").splitlines()), 3)

    def test_retry(self) -> None:
        self.bury()
        self.assertEqual(self.done("retry-delivery", "1", "3"), "2 deliveries put back\n")
        self.assertEqual(self.dead(), [2])
        self.assertEqual(self.done("--retry-delivery", "2"), "1 delivery put back\n")
        self.assertIn("99", self.refused("retry-delivery", "99"))

    def test_retry_many(self) -> None:
        self.bury()
        self.assertEqual(self.done("retry-delivery", "--subscription", "1"), "2 deliveries put back\n")
        self.assertEqual(self.done("retry-delivery", "--all"), "1 delivery put back\n")
        self.assertEqual(self.done("retry-delivery", "--all"), "0 deliveries put back\n")
        self.assertIn("99", self.refused("retry-delivery", "--subscription", "99"))
        both = ["--all", "--subscription", "1"]
        for arguments in ([], ["1", "--all"], ["1", "--subscription", "1"], both):
            self.refused("retry-delivery", *arguments, status=2)

    def test_delete(self) -> None:
        self.bury()
        self.refused("delete-delivery", "1", "99")
        self.assertEqual(self.dead(), [1, 2, 3])
        self.assertEqual(self.done("delete-delivery", "1", "2"), "2 deliveries deleted\n")
        self.assertEqual(self.dead(), [3])
        self.done("--delete-delivery", "3", "--db", str(self.db))
        self.assertEqual(self.dead(), [])

    def test_ids(self) -> None:
        self.bury()
        for text in ("x", "1.0", "0", "-5", str(2**63), "9" * 40, "", "\u0661"):
            with self.subTest(text):
                self.refused("retry-delivery", "--", text, status=2)
                self.refused("delete-delivery", "--", text, status=2)
        self.refused("list-failed-deliveries", "--subscription", "x", status=2)


class SkipTests(CliCase):
    def marks(self) -> list[tuple[int]]:
        connection = sqlite3.connect(self.db)
        try:
            return connection.execute("SELECT update_id FROM skip_marks ORDER BY 1").fetchall()
        finally:
            connection.close()

    def test_a_mark(self) -> None:
        self.new_key("n")
        self.done("skip-update", "0")
        self.done("skip-update", str(2**63 - 1))
        self.assertEqual(self.marks(), [(0,), (2**63 - 1,)])

    def test_below_the_cursor(self) -> None:
        self.new_key("n")
        self.sql("UPDATE gateway SET next_offset = 100")
        self.assertIn("below the cursor", self.refused("skip-update", "99"))
        self.done("skip-update", "100")
        self.assertEqual(self.marks(), [(100,)])

    def test_ids(self) -> None:
        self.new_key("n")
        for text in ("x", "-1", str(2**63), ""):
            self.refused("skip-update", "--", text, status=2)
