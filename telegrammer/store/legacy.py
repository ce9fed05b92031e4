"""The C++ program's keys: read from ``api_keys(name, key, created_at)``, kept as digests (contract 3, 4)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime

from attrs import field, frozen

from telegrammer.core.keys import check_name, digest
from telegrammer.core.problems import InvalidRequest, MigrationRefused
from telegrammer.store import keys

# As bytes, whatever type was declared, so that nothing is lost in a decoding that fails.
ROWS = """
    SELECT rowid, typeof(name), CAST(name AS BLOB), typeof(key), CAST(key AS BLOB),
        CAST(created_at AS BLOB)
    FROM api_keys ORDER BY rowid
"""
# A table declared WITHOUT ROWID has none to show.
ROWS_WITHOUT_ROWID = ROWS.replace("rowid,", "0,").replace("ORDER BY rowid", "ORDER BY name")

NAMED_AT_MOST = 10
"""How many refused rows the message names."""
SHOWN_AT_MOST = 40
"""How many characters of a name it shows."""
MILLISECONDS = 10**11
"""A larger number cannot be seconds (it would be the year 5138)."""


@frozen
class LegacyKey:
    """A key that will be taken over."""

    name: str
    digest: bytes = field(repr=False)
    created_at: int


def read(cursor: sqlite3.Cursor, now: float) -> list[LegacyKey]:
    """
    The old keys.

    :raises MigrationRefused: some cannot be taken over; the message names them all at once, by name.
    """
    try:
        rows = cursor.execute(ROWS).fetchall()
    except sqlite3.OperationalError:
        rows = cursor.execute(ROWS_WITHOUT_ROWID).fetchall()
    taken: list[LegacyKey] = []
    refused: list[str] = []
    names: set[str] = set()
    digests: dict[bytes, str] = {}
    for rowid, name_type, raw_name, key_type, raw_key, created_at in rows:
        shown = _shown(rowid, raw_name)
        reason = None
        name = ""
        if name_type not in ("text", "integer"):
            reason = "no name" if raw_name is None else f"its name is of type {name_type}"
        else:
            try:
                name = check_name(raw_name.decode("utf-8"))
            except UnicodeDecodeError:
                reason = "its name is not UTF-8"
            except InvalidRequest as error:
                reason = error.message
        if reason is None and name in names:
            reason = "its name occurs twice"
        if reason is None and not raw_key:
            reason = "it has no key"
        if reason is None and key_type == "real":
            # The digits as they were given out cannot be had back.
            reason = "its key was stored as a fraction"
        if reason is None and digest(raw_key) in digests:
            reason = f"it has the same key as {digests[digest(raw_key)]}"
        if reason is not None:
            refused.append(f"{shown} ({reason})")
            continue
        names.add(name)
        digests[digest(raw_key)] = shown
        taken.append(LegacyKey(name, digest(raw_key), _seconds(created_at, now)))
    if refused:
        raise MigrationRefused(_sentence(refused))
    return taken


def take_over(cursor: sqlite3.Cursor, old: Iterable[LegacyKey]) -> None:
    """Write them to the new layout and drop the old table.  Its text may survive in free pages and copies."""
    for key in old:
        keys.add(cursor, key.name, key.digest, key.created_at, legacy=True)
    cursor.execute("DROP TABLE api_keys")


def _sentence(refused: list[str]) -> str:
    shown = ", ".join(refused[:NAMED_AT_MOST])
    rest = len(refused) - NAMED_AT_MOST
    return f"these old keys cannot be migrated: {shown}" + (f" and {rest} more" if rest > 0 else "")


def _shown(rowid: int, raw_name: bytes | None) -> str:
    if not raw_name:
        return f"row {rowid}" if rowid else "a row without a name"
    text = raw_name.decode("utf-8", "backslashreplace")
    text = "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)
    return f"'{text[:SHOWN_AT_MOST]}…'" if len(text) > SHOWN_AT_MOST else f"'{text}'"


def _seconds(created_at: bytes | None, now: float) -> int:
    """
    Unix seconds from what the old column holds: seconds, milliseconds, or a date (UTC unless it says else).

    A time that cannot be read becomes ``now``: it is only shown, and no reason to refuse a working key.
    """
    text = (created_at or b"").decode("utf-8", "replace").strip()
    try:
        number = float(text)
        seconds = number / 1000 if number >= MILLISECONDS else number
    except ValueError:
        try:
            date = datetime.fromisoformat(text)
        except ValueError:
            return int(now)
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    # Not NaN, not infinite, and a date that can be shown.
    return int(seconds) if 0 <= seconds < MILLISECONDS else int(now)
