"""The tests there are, read from their source: without importing or collecting them, which takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
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


Classes = Mapping[str, ast.ClassDef]


def named_in(source: str, path: str, elsewhere: Classes | None = None) -> list[NamedTest]:
    """
    The tests of one module, in order; ValueError if a mark names its report by anything but a literal.

    Inherited tests are found if the base is a class of the module, or in ``elsewhere`` by its name.
    """
    body = ast.parse(source).body
    classes = {**(elsewhere or {}), **{item.name: item for item in body if isinstance(item, ast.ClassDef)}}
    return list(_tests(body, path, (), classes))


def every_test(root: Path = ROOT) -> list[NamedTest]:
    """The tests of all modules of this project."""
    suites: dict[str, ast.ClassDef] = {}
    modules: list[tuple[str, str]] = []
    for path in sorted((root / "tests").rglob("*.py")):
        source = path.read_text("utf-8")
        if path.name.startswith("test_"):
            modules.append((source, path.relative_to(root).as_posix()))
        elif path.parent.name == "contract":
            suites |= {item.name: item for item in ast.parse(source).body if isinstance(item, ast.ClassDef)}
    return [test for source, path in modules for test in named_in(source, path, suites)]


def _tests(
    body: Sequence[ast.stmt], prefix: str, inherited: tuple[str, ...], classes: Classes
) -> Iterator[NamedTest]:
    for item in body:
        if isinstance(item, ast.ClassDef):
            here = f"{prefix}::{item.name}"
            reports = inherited + _reports(item.decorator_list)
            yield from _tests(item.body, here, reports, {})
            own = {function.name for function in item.body if isinstance(function, ast.FunctionDef)}
            for base in item.bases:
                if isinstance(base, ast.Name) and (found := classes.get(base.id)) is not None:
                    for test in _tests(found.body, here, reports, {}):
                        if test.node.rpartition("::")[2] not in own:
                            yield test
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
