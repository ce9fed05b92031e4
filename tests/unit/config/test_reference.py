from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.config.reference import markdown
from telegrammer.config.table import SETTINGS

README = Path(__file__).resolve().parents[3] / "README.md"


class ReferenceTests(SynchronousTestCase):
    def test_every_setting_has_a_row(self) -> None:
        rows = markdown().splitlines()
        self.assertEqual(len(rows), len(SETTINGS) + 2)
        self.assertTrue(all(row.count("|") == 4 for row in rows))

    def test_the_readme_has_this_table(self) -> None:
        self.assertIn(f"<!-- settings -->\n\n{markdown()}\n", README.read_text())
