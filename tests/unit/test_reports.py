"""Every kind of fault that was reported of such programs has a test that shows it not to be here."""

from __future__ import annotations

import tomllib

import pytest
from twisted.trial.unittest import SynchronousTestCase

from tests.support.named_tests import ROOT, every_test, named_in


class ReportTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.kinds = tomllib.loads((ROOT / "tests" / "reports.toml").read_text("utf-8"))
        self.names: dict[str, str] = {}
        for kind, entry in self.kinds.items():
            for name in (kind, *entry["reports"]):
                self.assertNotIn(name, self.names, "two kinds of fault have the same name")
                self.names[name] = kind

    def test_each_is_described_and_has_a_source(self) -> None:
        for kind, entry in self.kinds.items():
            self.assertEqual(set(entry), {"reports", "fault"}, kind)
            self.assertTrue(entry["fault"].endswith("."), kind)
            for name in entry["reports"]:
                self.assertRegex(name, r"\A[\w.-]+/[\w.-]+#[0-9]+\Z")

    def test_each_has_a_test_and_no_mark_names_another(self) -> None:
        unknown: list[tuple[str, str]] = []
        covered: set[str] = set()
        for test in every_test():
            for name in test.reports:
                if name in self.names:
                    covered.add(self.names[name])
                else:
                    unknown.append((test.node, name))
        self.assertEqual(unknown, [], "marks that name no known report")
        self.assertEqual(sorted(set(self.kinds) - covered), [], "reports without a test")


class ReadingTests(SynchronousTestCase):
    """What the check above rests on."""

    def test_functions_methods_and_what_is_none(self) -> None:
        source = """
import pytest
def helper(): pass
async def test_one(): pass
class Some:
    def test_two(self): pass
    def helper(self):
        def test_inner(): pass
"""
        self.assertEqual([test.node for test in named_in(source, "p")], ["p::test_one", "p::Some::test_two"])

    def test_marks_of_functions_classes_and_parameters(self) -> None:
        source = """
@pytest.mark.report("A1")
class Some:
    @pytest.mark.report("B1", "B2")
    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.report("C1"))])
    def test_two(self, x): pass
"""
        (test,) = named_in(source, "p")
        self.assertEqual(test.reports, ("A1", "B1", "B2", "C1"))

    def test_inherited_ones(self) -> None:
        source = """
class Suite:
    def test_one(self): pass
    def test_two(self): pass
class Some(Suite, Unknown):
    def test_two(self): pass
"""
        nodes = [test.node for test in named_in(source, "p")]
        self.assertEqual(
            nodes, ["p::Suite::test_one", "p::Suite::test_two", "p::Some::test_two", "p::Some::test_one"]
        )

    def test_a_mark_that_is_no_literal(self) -> None:
        with pytest.raises(ValueError):
            named_in("@pytest.mark.report(NAME)\ndef test_it(): pass", "p")

    def test_this_very_test_is_found(self) -> None:
        nodes = [test.node for test in every_test()]
        self.assertIn("tests/unit/test_reports.py::ReadingTests::test_this_very_test_is_found", nodes)
        self.assertEqual(len(nodes), len(set(nodes)), "two tests share a name; only one of them runs")
