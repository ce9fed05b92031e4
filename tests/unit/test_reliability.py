"""docs/reliability.md names tests that there are, and leaves no row without one."""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from tests.support.named_tests import ROOT, every_test

CITED = re.compile(r"`(tests/[^`]+\.py::[^`]+)`")
AREAS = (
    "Authentication, Validation, Ids, Send, Usernames, Subscriptions, URL policy, Ingestion, Capacity,"
    " Callbacks, Recovery, Revocation, Lifecycle, Migration, Packaging"
).split(", ")


def rows(text: str) -> list[tuple[str, list[str]]]:
    """Every row of every table: the section it is in, its cells."""
    found: list[tuple[str, list[str]]] = []
    section = ""
    for line in text.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("| ") and not line.startswith("| ---"):
            found.append((section, [cell.strip() for cell in line.strip("|").split(" | ")]))
    return found


class ReliabilityTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.text = (ROOT / "docs" / "reliability.md").read_text("utf-8")

    def test_every_test_it_names_exists(self) -> None:
        cited = CITED.findall(self.text)
        self.assertGreater(len(cited), 200)
        self.assertEqual(sorted(set(cited) - {test.node for test in every_test()}), [])

    def test_every_row_names_a_test(self) -> None:
        columns: dict[str, list[str]] = {}
        for section, cells in rows(self.text):
            heads = columns.setdefault(section, cells)
            if cells is heads:
                self.assertIn("Shown by", heads, section)
                continue
            self.assertEqual(len(cells), len(heads), cells[0])
            shown = cells[heads.index("Shown by")].split("<br>")
            for one in shown:
                self.assertRegex(one, rf"\A{CITED.pattern}\Z", cells[0])

    def test_every_area_has_its_cases(self) -> None:
        areas = [cells[0] for section, cells in rows(self.text) if section == "Acceptance"][1:]
        self.assertEqual(list(dict.fromkeys(areas)), AREAS)
