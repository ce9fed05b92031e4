"""A database of the C++ program, to be taken over."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

OLD_KEYS = 300


@functools.cache
def old_database() -> tuple[bytes, str]:
    """The file, of several pages; and one of its keys."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "old.db")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE api_keys(name TEXT PRIMARY KEY, key TEXT, created_at INTEGER)")
            rows = [(f"program {number}", f"{number:064x}", 1_600_000_000) for number in range(OLD_KEYS)]
            connection.executemany("INSERT INTO api_keys VALUES (?, ?, ?)", rows)
            connection.commit()
        return path.read_bytes(), rows[-1][1]
