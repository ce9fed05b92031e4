"""docs/reliability.md and docs/webhook.md name tests that there are, and leave no row without one."""

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


class WebhookTests(SynchronousTestCase):
    RULES = "The rules this was built by"

    def setUp(self) -> None:
        self.text = (ROOT / "docs" / "webhook.md").read_text("utf-8")

    def test_every_test_it_names_exists(self) -> None:
        cited = CITED.findall(self.text)
        self.assertGreater(len(cited), 50)
        self.assertEqual(sorted(set(cited) - {test.node for test in every_test()}), [])

    def test_every_rule_is_shown_or_excused(self) -> None:
        found = [cells for section, cells in rows(self.text) if section == self.RULES]
        self.assertEqual(found[0], ["Rule", "Here", "Shown by"])
        for rule, here, shown in found[1:]:
            self.assertTrue(here, rule)
            if shown == "–":
                self.assertRegex(here, r"\ANot here: ", rule)
                continue
            for one in shown.split("<br>"):
                self.assertRegex(one, rf"\A{CITED.pattern}\Z", rule)

    def test_no_rule_is_left_out(self) -> None:
        found = [cells[0].split()[0] for section, cells in rows(self.text) if section == self.RULES]
        lengths = {1: 5, 2: 2, 3: 4, 4: 5, 5: 4, 6: 4, 7: 2, 8: 13, 9: 2, 10: 11}
        expected = [f"{part}.{rule}" for part, count in lengths.items() for rule in range(1, count + 1)]
        self.assertEqual([rule for rule in found if rule in expected], expected)
