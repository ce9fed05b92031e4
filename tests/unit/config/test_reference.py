from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.config.notices import NOTICES
from telegrammer.config.reference import markdown, notices
from telegrammer.config.table import SETTINGS

README = Path(__file__).resolve().parents[3] / "README.md"


class ReferenceTests(SynchronousTestCase):
    def test_every_setting_has_a_row(self) -> None:
        rows = markdown().splitlines()
        self.assertEqual(len(rows), len(SETTINGS) + 2)
        self.assertTrue(all(row.count("|") == 4 for row in rows))

    def test_the_readme_has_this_table(self) -> None:
        self.assertIn(f"<!-- settings -->\n\n{markdown()}\n", README.read_text())

    def test_so_has_each_of_the_notices(self) -> None:
        rows = notices().splitlines()
        self.assertEqual(len(rows), len(NOTICES) + 2)
        self.assertIn(f"<!-- notices -->\n\n{notices()}\n", README.read_text())
