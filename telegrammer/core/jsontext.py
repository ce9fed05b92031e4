"""
Reading JSON with positions, so that a value can be handed on exactly as it was spelled (contract 5.2).

``json.loads`` answers what a text means, not where each part stands; and it gives up on deep nesting and
on integers of absurd length, which are no reason to lose a message.  Here an object is walked one level at
a time, and the values inside are passed over by the standard library's scanner or, where that one gives
up, by a loop that needs no stack.  Both know the same grammar: RFC 8259, without ``NaN`` and ``Infinity``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

Reader = Callable[[str, int], tuple[object, int]]
"""Reads the value that begins at a position; gives what it makes of it and the position behind it."""


class NotJson(ValueError):
    """The text is not JSON.  Says where, never what stands there."""

    def __init__(self, position: int) -> None:
        super().__init__(f"not JSON at character {position}")


class Unread:
    """Stands for a value that is JSON, but too deep or too long to be made an object of."""


UNREAD: Final = Unread()

_space = re.compile(r"[ \t\n\r]*").match
_number = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?").match
_literal = re.compile(r"true|false|null").match


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_decode = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


def skip_space(text: str, position: int) -> int:
    """The position of the next character that is not JSON's white space."""
    found = _space(text, position)
    return found.end() if found else position


def read_value(text: str, position: int) -> tuple[object, int]:
    """
    Read any value.

    :return: what it means, or `UNREAD` when only its extent can be told; and the position behind it.
    :raises NotJson: none begins here.
    """
    try:
        return _decode(text, position)
    except (ValueError, RecursionError):
        # An integer of over 4,300 digits, or deep nesting, or really no JSON: the patient scanner decides.
        return UNREAD, _end_of_value(text, position)


def read_object(
    text: str, position: int, readers: Mapping[str, Reader] | None = None
) -> tuple[dict[str, object] | None, int]:
    """
    Read an object one level deep; the last of several members of one name counts, as in ``json.loads``.

    :param readers: who reads the members of these names, in place of `read_value`.
    :return: its members, or None when the value is JSON but no object; and the position behind it.
    :raises NotJson: no value begins here.
    """
    if not text.startswith("{", position):
        return None, read_value(text, position)[1]
    readers = readers or {}
    members: dict[str, object] = {}
    position = skip_space(text, position + 1)
    if text.startswith("}", position):
        return members, position + 1
    while True:
        name, position = _read_name(text, position)
        members[name], position = readers.get(name, read_value)(text, position)
        position, closed = _after_item(text, position, "}")
        if closed:
            return members, position


def read_array(text: str, position: int, reader: Reader) -> tuple[list[object] | None, int]:
    """
    Read an array, each item by ``reader``.

    :return: its items, or None when the value is JSON but no array; and the position behind it.
    :raises NotJson: no value begins here.
    """
    if not text.startswith("[", position):
        return None, read_value(text, position)[1]
    items: list[object] = []
    position = skip_space(text, position + 1)
    if text.startswith("]", position):
        return items, position + 1
    while True:
        item, position = reader(text, position)
        items.append(item)
        position, closed = _after_item(text, position, "]")
        if closed:
            return items, position


def _after_item(text: str, position: int, closing: str) -> tuple[int, bool]:
    """Behind an item of an array or object: where to go on, and whether that one has ended."""
    position = skip_space(text, position)
    if text.startswith(",", position):
        return skip_space(text, position + 1), False
    if text.startswith(closing, position):
        return position + 1, True
    raise NotJson(position)


def _read_name(text: str, position: int) -> tuple[str, int]:
    """A member's name; the position is that of its value."""
    name, position = _read_string(text, position)
    position = skip_space(text, position)
    if not text.startswith(":", position):
        raise NotJson(position)
    return name, skip_space(text, position + 1)


def _read_string(text: str, position: int) -> tuple[str, int]:
    if not text.startswith('"', position):
        raise NotJson(position)
    try:
        return _decode(text, position)
    except ValueError:
        raise NotJson(position) from None


def _end_of_value(text: str, position: int) -> int:
    """The position behind the value that begins here, however deep it is nested."""
    open_containers: list[str] = []
    while True:
        # A value begins here.
        if text.startswith(("{", "["), position):
            closing = "}" if text[position] == "{" else "]"
            position = skip_space(text, position + 1)
            if not text.startswith(closing, position):
                open_containers.append(closing)
                if closing == "}":
                    position = _read_name(text, position)[1]
                continue
            position += 1
        elif text.startswith('"', position):
            position = _read_string(text, position)[1]
        else:
            scalar = _number(text, position) or _literal(text, position)
            if scalar is None:
                raise NotJson(position)
            position = scalar.end()
        # A value has ended here, and with it perhaps what contains it.
        while open_containers:
            position, closed = _after_item(text, position, open_containers[-1])
            if not closed:
                if open_containers[-1] == "}":
                    position = _read_name(text, position)[1]
                break
            open_containers.pop()
        else:
            return position
