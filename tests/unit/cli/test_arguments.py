from __future__ import annotations

import argparse

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.cli.arguments import WrongUsage, parse, split_command
from telegrammer.cli.main import COMMANDS

TOKEN = "123456789:AAF-fake_token"


class CommandTests(SynchronousTestCase):
    def test_flags_before_and_after_the_name(self) -> None:
        self.assertEqual(split_command(["list-keys", "--db", "x"]), ("list-keys", ["--db", "x"]))
        self.assertEqual(split_command(["--db", "x", "list-keys"]), ("list-keys", ["--db", "x"]))
        self.assertEqual(split_command(["--db=x", "add-key", "n"]), ("add-key", ["--db=x", "n"]))
        self.assertEqual(split_command(["--db", "x"]), (None, ["--db", "x"]))
        self.assertEqual(split_command([]), (None, []))

    def test_the_seed_s_spelling(self) -> None:
        self.assertEqual(split_command(["--add-key", "n", "--db", "x"]), ("add-key", ["n", "--db", "x"]))
        self.assertEqual(split_command(["--db", "x", "--add-key=n"]), ("add-key", ["--db", "x", "n"]))
        self.assertEqual(split_command(["--list-keys"]), ("list-keys", []))
        self.assertEqual(split_command(["--db", "--list-keys"]), (None, ["--db", "--list-keys"]))
        # After the command's name it is no command any more.
        self.assertEqual(split_command(["serve", "--list-keys"])[0], "serve")


class ParseTests(SynchronousTestCase):
    def parse(self, name: str, *arguments: str) -> argparse.Namespace:
        return parse(COMMANDS[name], arguments)

    def wrong(self, name: str, *arguments: str) -> str:
        return str(self.assertRaises(WrongUsage, self.parse, name, *arguments))

    def test_settings(self) -> None:
        parsed = self.parse("serve", "--port", "0", "--listen", "a", "--listen=b", "--bogus", "x")
        self.assertEqual(parsed.flags, {"port": "0", "listen": ["a", "b"]})
        self.assertEqual(parsed.unknown, ["--bogus"])
        self.assertEqual(self.parse("list-keys", "--db", "x").flags, {"db": "x"})

    def test_arguments(self) -> None:
        self.assertEqual(self.parse("add-key", "--", "-odd").name, "-odd")
        self.assertEqual(self.parse("retry-delivery", "1", "2", "--db", "x").ids, ["1", "2"])
        self.assertTrue(self.parse("retry-delivery", "--all").all)
        self.assertEqual(self.parse("list-failed-deliveries", "--subscription", "4").subscription, "4")
        self.assertTrue(self.parse("list-keys", "--json").json)
        self.assertTrue(self.parse("demo", "--stay").stay)

    def test_wrong_usage_is_one_line_that_repeats_no_value(self) -> None:
        for name, *arguments in (
            ("list-keys", "--token", TOKEN),
            ("list-keys", TOKEN),
            ("add-key",),
            ("add-key", "a", TOKEN),
            ("list-keys", "--db"),
            ("list-keys", f"--json={TOKEN}"),
            ("list-keys", "--port", TOKEN),
            ("serve", TOKEN),
        ):
            with self.subTest(name, arguments=arguments):
                line = self.wrong(name, *arguments)
                self.assertNotIn("AAF", line)
                self.assertNotIn("\n", line)

    @given(st.lists(st.sampled_from(["--db", "-x", "--", "--json", "1", "", "--all", "-h", "=", "-5"])))
    def test_nothing_but_wrong_usage(self, arguments: list[str]) -> None:
        for command in COMMANDS.values():
            try:
                parse(command, arguments)
            except WrongUsage:
                pass
