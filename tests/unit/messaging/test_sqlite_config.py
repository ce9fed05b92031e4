"""How an outbox is declared (contract 7.2)."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import DirectiveRefused
from telegrammer.messaging import SQLiteMessagingConfig


class ConfigTests(SynchronousTestCase):
    def test_directives(self) -> None:
        config = SQLiteMessagingConfig.from_directives(
            ["name alerts", "path /var/lib/x/outbox.db", "timeout 2s"]
        )
        self.assertEqual(config, SQLiteMessagingConfig("alerts", Path("/var/lib/x/outbox.db"), 2))
        self.assertEqual(
            SQLiteMessagingConfig.from_directives(["path /x", "name a"]),
            SQLiteMessagingConfig("a", Path("/x"), 1.0),
        )

    def refused(self, directive: str, *directives: str) -> None:
        error = self.assertRaises(DirectiveRefused, SQLiteMessagingConfig.from_directives, directives)
        self.assertEqual(error.directive, directive)
        self.assertIn(directive, str(error))

    def test_refusals(self) -> None:
        self.refused("name", "path /x")
        self.refused("path", "name a")
        self.refused("path", "name a", "path x")
        self.refused("path", "name a", "path /")
        self.refused("path", "name a", "path /x", "path /x")
        self.refused("name", "name sqlite", "path /x")
        self.refused("timeout", "name a", "path /x", "timeout 31s")
        self.refused("timeout", "name a", "path /x", "timeout 0ms")
        self.refused("queue", "name a", "path /x", "queue b")

    def test_the_typed_constructor_has_the_same_rules(self) -> None:
        for name, path, timeout, directive in (
            ("email", "/x", 1.0, "name"),
            ("a", "x", 1.0, "path"),
            ("a", "/", 1.0, "path"),
            ("a", "/x", 0.0, "timeout"),
        ):
            error = self.assertRaises(DirectiveRefused, SQLiteMessagingConfig, name, path, timeout)
            self.assertEqual(error.directive, directive)
        self.assertEqual(SQLiteMessagingConfig("a", Path("/with space/x")).path, Path("/with space/x"))

    def test_no_file_is_looked_at(self) -> None:
        with (
            mock.patch("os.stat", side_effect=AssertionError),
            mock.patch("os.lstat", side_effect=AssertionError),
            mock.patch("builtins.open", side_effect=AssertionError),
        ):
            SQLiteMessagingConfig.from_directives(["name a", "path /none/of/this"])
