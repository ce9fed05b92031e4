"""Declarations by directives: each setting once, one name and one value (contract 7.1, 7.2)."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import DirectiveRefused
from telegrammer.messaging import directives
from telegrammer.messaging.directives import (
    absolute_path,
    checked,
    duration,
    parse_directives,
    provider_name,
    spelled,
    timeout,
)


def parse(given: object) -> dict[str, object]:
    return parse_directives(
        given,  # type: ignore[arg-type]
        {"name": provider_name, "path": absolute_path},
        {"timeout": duration},
    )


class DirectiveTests(SynchronousTestCase):
    def refused(self, directive: str, given: object) -> str:
        error = self.assertRaises(DirectiveRefused, parse, given)
        self.assertEqual(error.directive, directive, error)
        self.assertNotIn("secret", str(error))
        return str(error)

    def test_in_any_order(self) -> None:
        self.assertEqual(
            parse(["timeout 2s", "path  /var/lib/x/outbox.db ", "name\talerts"]),
            {"name": "alerts", "path": Path("/var/lib/x/outbox.db"), "timeout": 2.0},
        )
        self.assertEqual(parse(iter(["name a", "path /b"])), {"name": "a", "path": Path("/b")})

    def test_missing(self) -> None:
        self.assertEqual(self.refused("path", ["name a"]), "path is missing")
        self.refused("name", [])

    def test_repeated(self) -> None:
        self.refused("name", ["name a", "path /b", "name a"])
        self.refused("timeout", ["name a", "path /b", "timeout 1s", "timeout 1s"])

    def test_unknown(self) -> None:
        self.assertEqual(self.refused("queue", ["queue secret"]), "unknown setting queue")
        self.refused("", ["SECRET secret"])
        self.refused("", ["Name secret"])

    def test_malformed(self) -> None:
        for line in ("name", "name ", "name a secret", "name a\n", "name\u00a0a", "name \ud800", "name\na"):
            self.refused("name", [line, "path /b"])
        for nameless in ("", "  ", "=secret", "\x00"):
            self.refused("", [nameless])
        self.refused("", [7])
        self.refused("", "name a")
        self.refused("", b"name a")

    def test_names(self) -> None:
        for name in ("a", "Alerts-2.x_y", "a" * 64, "emails"):
            self.assertEqual(provider_name(name), name)
        for name in ("", "a" * 65, ".a", "-a", "a b", "ä", "a\n", "email", "file", "SQLite"):
            self.assertRaises(ValueError, provider_name, name)
        self.assertRaises(ValueError, provider_name, None)

    def test_paths(self) -> None:
        self.assertEqual(absolute_path("//var//lib/./x.db"), Path("/var/lib/x.db"))
        self.assertEqual(absolute_path(Path("/with space/x.db")), Path("/with space/x.db"))
        for path in ("", "x.db", "./x.db", "~/x.db", "/a/../b", "/a\0b", "/\ud800", b"/a", None):
            self.assertRaises(ValueError, absolute_path, path)

    def test_durations(self) -> None:
        for text, seconds in (("1ms", 0.001), ("30s", 30.0), ("30000ms", 30.0), ("1.5s", 1.5), ("0.5s", 0.5)):
            self.assertEqual(duration(text), seconds)
        for text in (
            "0s",
            "0.5ms",
            "30001ms",
            "31s",
            "1",
            "s",
            "1m",
            "-1s",
            "1 s",
            "1e1s",
            "٣s",
            "1s\n",
            ".5s",
        ):
            self.assertRaises(ValueError, duration, text)

    def test_timeouts(self) -> None:
        self.assertEqual(timeout(1), 1.0)
        for seconds in (0, 30.1, -1, float("nan"), float("inf"), True, "1", None):
            self.assertRaises(ValueError, timeout, seconds)

    def test_a_typed_value_has_the_same_words(self) -> None:
        error = self.assertRaises(DirectiveRefused, checked, "timeout", timeout, 31)
        self.assertEqual(str(error), "timeout must be a duration from 1ms to 30s")

    @given(st.integers(1_000, 30_000_000))
    def test_a_timeout_is_spelled_exactly(self, microseconds: int) -> None:
        seconds = microseconds / 1_000_000
        self.assertEqual(duration(spelled(seconds)), seconds)

    @given(st.lists(st.one_of(st.text(), st.sampled_from(["name a", "path /b", "timeout 1s", "x y"]))))
    def test_nothing_but_a_refusal(self, lines: list[str]) -> None:
        try:
            values = parse(lines)
        except DirectiveRefused as refused:
            self.assertIn(
                refused.directive,
                ["", *(line.split()[0] for line in lines if line.split()), "path"] + ["name"],
            )
            return
        self.assertEqual(len(values), len(lines))

    def test_reserved(self) -> None:
        self.assertEqual(directives.RESERVED_NAMES, {"email", "file", "sqlite"})
