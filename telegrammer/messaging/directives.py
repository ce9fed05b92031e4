"""
The library's declared form: directives, each a text of one name and one value (contract 7.1, 7.2).

``["name alerts", "path /var/lib/x/outbox.db", "timeout 2s"]``.  Each setting occurs once; the value has no
white space (a path that has some is given to the typed constructor).  Parsing touches no file and no network.

A parser takes the value's text and raises ``ValueError`` with the rule that was broken, worded to follow the
setting's name ("must be …").  No refusal repeats a value: a secret may have been put in the wrong place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from telegrammer.core.problems import DirectiveRefused

Parser = Callable[[str], Any]

SHORTEST = 0.001
LONGEST = 30.0
"""Seconds: the limits of a timeout (contract 7.2)."""
RESERVED_NAMES = frozenset({"email", "file", "sqlite"})
"""The built-in kinds: no provider may be called so."""

_LINE = re.compile(r"[ \t]*([^ \t]+)[ \t]+([^ \t]+)[ \t]*")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]|(?![ \t])\s")
_SETTING = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DURATION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|s)")


def parse_directives(
    directives: Iterable[str], required: Mapping[str, Parser], optional: Mapping[str, Parser]
) -> dict[str, Any]:
    """
    The parsed values of the settings that are there, by the settings' names.

    :param required: a parser for each setting that must occur.
    :param optional: for each that may.
    :raises DirectiveRefused: one is unknown, repeated, missing or malformed; ``directive`` names it, or is
        empty when what was given has no name.
    """
    parsers = {**required, **optional}
    values: dict[str, Any] = {}
    for setting, text in map(_halves, _listed(directives)):
        if setting not in parsers:
            shown = setting if _SETTING.fullmatch(setting) else ""
            raise DirectiveRefused(shown, f"unknown setting {shown or '(not a name)'}")
        if setting in values:
            raise DirectiveRefused(setting, f"{setting} occurs more than once")
        values[setting] = checked(setting, parsers[setting], text)
    for setting in required:
        if setting not in values:
            raise DirectiveRefused(setting, f"{setting} is missing")
    return values


def checked(setting: str, parser: Callable[[Any], Any], value: Any) -> Any:
    """
    What the parser makes of a value; for typed constructors, too, so that both have one set of rules.

    :raises DirectiveRefused: the parser refuses it.
    """
    try:
        return parser(value)
    except ValueError as error:
        raise DirectiveRefused(setting, f"{setting} {error}") from None


def _listed(directives: Iterable[str]) -> list[str]:
    if isinstance(directives, (str, bytes)) or not isinstance(directives, Iterable):
        raise DirectiveRefused("", "directives are a list of texts, not one text")
    return list(directives)


def _halves(directive: str) -> tuple[str, str]:
    if not isinstance(directive, str):
        raise DirectiveRefused("", "a directive is no text")
    setting = next(iter(directive.split()), "")
    shown = setting if _SETTING.fullmatch(setting) else ""
    if _UNPRINTABLE.search(directive):
        raise DirectiveRefused(shown, f"{shown or 'a directive'} has a control character")
    found = _LINE.fullmatch(directive)
    if found is None:
        raise DirectiveRefused(shown, f"{shown or 'a directive'} must be one name and one value")
    return found[1], found[2]


def provider_name(text: str) -> str:
    """A name for a provider or queue: 1 to 64 of ``[A-Za-z0-9_.-]``, and no built-in kind."""
    if not isinstance(text, str) or _NAME.fullmatch(text) is None:
        raise ValueError("must be 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit")
    if text.lower() in RESERVED_NAMES:
        raise ValueError("must not be the name of a built-in kind")
    return text


def absolute_path(text: str | Path) -> Path:
    """An absolute path without ``..``; nothing of it is looked at."""
    if not isinstance(text, (str, Path)):
        raise ValueError("must be a path")
    path = Path(text)
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    if ".." in path.parts:
        raise ValueError("must not have '..' in it")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise ValueError("must be a path that the file system can have") from None
    if b"\0" in encoded:
        raise ValueError("must not have a NUL character in it")
    return Path(os.path.normpath("/" + str(path).lstrip("/")))


def duration(text: str) -> float:
    """``1ms`` to ``30s``, in seconds."""
    found = _DURATION.fullmatch(text)
    seconds = Decimal(found[1]) / (1000 if found[2] == "ms" else 1) if found else Decimal(-1)
    return timeout(float(seconds))


def timeout(seconds: float) -> float:
    """0.001 to 30 seconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ValueError("must be a number of seconds")
    if not SHORTEST <= seconds <= LONGEST:
        raise ValueError("must be a duration from 1ms to 30s")
    return float(seconds)


def spelled(seconds: float) -> str:
    """The directive's text for a timeout, exactly: ``duration(spelled(x)) == x`` for whole microseconds."""
    digits = f"{seconds:.6f}".rstrip("0").rstrip(".")
    return f"{digits}s"
