"""The tests there are, read from their source: without importing or collecting them, which takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parent.parent.parent


@frozen
class NamedTest:
    """One function that pytest collects as a test, for each set of its parameters or once."""

    node: str
    """Its node id, without parameters: ``tests/unit/core/test_retry.py::WaitTests::test_due``."""
    reports: tuple[str, ...] = ()
    """What its own and its class's ``@pytest.mark.report`` name."""


def named_in(source: str, path: str) -> list[NamedTest]:
    """The tests of one module, in order; ValueError if a mark names its report by anything but a literal."""
    return list(_tests(ast.parse(source).body, path, ()))


def every_test(root: Path = ROOT) -> list[NamedTest]:
    """The tests of all modules of this project."""
    found: list[NamedTest] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        found += named_in(path.read_text("utf-8"), path.relative_to(root).as_posix())
    return found


def _tests(body: Sequence[ast.stmt], prefix: str, inherited: tuple[str, ...]) -> Iterator[NamedTest]:
    for item in body:
        if isinstance(item, ast.ClassDef):
            yield from _tests(item.body, f"{prefix}::{item.name}", inherited + _reports(item.decorator_list))
        elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name.startswith("test_"):
            yield NamedTest(f"{prefix}::{item.name}", inherited + _reports(item.decorator_list))


def _reports(decorators: Sequence[ast.expr]) -> tuple[str, ...]:
    """The arguments of every ``pytest.mark.report`` in there, those of single parameters included."""
    named: list[str] = []
    for decorator in decorators:
        for node in ast.walk(decorator):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.report":
                for argument in node.args:
                    if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                        raise ValueError(f"a report is named by a literal, not by {ast.unparse(argument)}")
                    named.append(argument.value)
    return tuple(named)
