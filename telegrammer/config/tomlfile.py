"""The ``--config`` file: TOML with the names of the flags (contract 1.2)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from telegrammer.config import files
from telegrammer.config.table import Kind, Setting

LIMIT = 1 << 20
"""Bytes of a file; nobody's settings are longer."""

RULES: Mapping[Kind, str] = {
    "text": "a string",
    "number": "a whole number, without quotes",
    "duration": "a whole number of seconds or a string like 50s",
    "list": "a string or a list of strings",
}
"""What a value of each kind has to be."""


def read(file: Path) -> dict[str, object]:
    """
    The document.

    :raises OSError: the file cannot be read.
    :raises ValueError: it is not what it should be; the text says why and quotes nothing.
    """
    content = files.read(file, LIMIT + 1)
    if len(content) > LIMIT:
        raise ValueError("is larger than 1 MiB")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        # The parser's own words may quote the file.
        place = re.search(r"line \d+, column \d+|end of document", str(error))
        raise ValueError(f"is not valid TOML{f' at {place[0]}' if place else ''}") from None


def texts(setting: Setting, value: object) -> tuple[str, ...] | None:
    """A value as the texts a flag would have given, or None when it is of the wrong type."""
    if isinstance(value, str) and setting.kind != "number":
        return (value,)
    if type(value) is int and setting.kind in ("number", "duration"):
        # Beyond any range, and beyond what int() would take back from text.
        return (str(value) if abs(value) < 10**15 else "9" * 13,)
    if isinstance(value, list) and setting.kind == "list" and value:
        if all(isinstance(one, str) for one in value):
            return tuple(value)
    return None
