"""``EXPLAIN QUERY PLAN``, for tests of what a statement costs."""

from __future__ import annotations

import sqlite3


def plan_of(connection: sqlite3.Connection, statement: str) -> list[str]:
    """The steps SQLite would take, as it words them; every parameter is bound to NULL."""
    # How many parameters there are is known only to SQLite: bind more, name none.
    for count in range(20):
        try:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", (None,) * count).fetchall()
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
