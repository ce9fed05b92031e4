"""``EXPLAIN QUERY PLAN``, for tests of what a statement costs."""

from __future__ import annotations

import sqlite3


class _Nulls(dict[str, None]):
    """NULL for whatever name a statement asks for."""

    def __missing__(self, name: str) -> None:
        return None


def plan_of(connection: sqlite3.Connection, statement: str) -> list[str]:
    """The steps SQLite would take, as it words them; every parameter is bound to NULL."""
    # Names, or how many parameters there are without one, are known only to SQLite: try.
    attempts: list[tuple[None, ...] | _Nulls] = [_Nulls()]
    attempts += [(None,) * count for count in range(1, 20)]
    for parameters in attempts:
        try:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
        except sqlite3.ProgrammingError:
            continue
        return [str(row[3]) for row in rows]
    raise ValueError("too many parameters")


def costly_steps(connection: sqlite3.Connection, statement: str) -> list[str]:
    """The steps that grow with a whole table: scans and temporary b-trees; empty when it only searches."""
    return [
        step
        for step in plan_of(connection, statement)
        if (step.startswith("SCAN") and step != "SCAN CONSTANT ROW") or "TEMP B-TREE" in step
    ]
