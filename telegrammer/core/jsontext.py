"""
Reading JSON with positions, so that a value can be handed on exactly as it was spelled (contract 5.2).

``json.loads`` answers what a text means, not where each part stands; and it gives up on deep nesting and
on integers of absurd length, which are no reason to lose a message.  Here an object is walked one level at
a time, and the values inside are passed over by the standard library's scanner or, where that one gives
up, by a loop of its own that needs no stack.  Both know the same grammar: RFC 8259, without ``NaN`` and
``Infinity``.
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


# -- a value of any depth ------------------------------------------------------------------------------
#
# Level by level in Python a hostile body of 16 MiB would hold the reactor for seconds.  So each step takes
# a whole run: of what opens, of what closes, of items between.  The patterns know plain items only; what
# they leave (strings with escapes) goes through the standard library.  When the runs stay short, a container
# may be wide rather than deep: now and then the standard library's scanner is asked to finish one.  Repeats
# are bounded because the engine keeps memory for each turn; those of a single character need none.

_S = r"[ \t\n\r]*"
_STRING = r'"[^"\\\x00-\x1f]*"'
_EMPTY = rf"\[{_S}\]|\{{{_S}\}}"
_ITEM = rf"(?:{_STRING}|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null|{_EMPTY})"
_MEMBER = rf"{_STRING}{_S}:{_S}"

_item = re.compile(_ITEM).match
_empty = re.compile(_EMPTY)
_opaque = re.compile(rf"{_STRING}|{_EMPTY}")
"""What may hold brackets that open and close nothing."""
_opening = re.compile(
    rf"(?:\[+(?!{_S}\]){_S}(?:{_ITEM}{_S},{_S}){{0,64}}"
    rf"|\{{{_S}{_MEMBER}(?:{_ITEM}{_S},{_S}{_MEMBER}){{0,64}}){{1,256}}"
).match
"""Containers that open, each with items that come before the next; behind it a value must begin."""
_closing = re.compile(
    rf"(?:{_S}(?:,{_S}{_ITEM}{_S}){{0,64}}\]+|{_S}(?:,{_S}{_MEMBER}{_ITEM}{_S}){{0,64}}\}}+){{1,256}}"
).match
"""Containers that close, each with items that come after the last."""
_onward = {
    ord("["): re.compile(rf"{_S},{_S}(?:{_ITEM}{_S},{_S}){{0,256}}").match,
    ord("{"): re.compile(rf"{_S},{_S}{_MEMBER}(?:{_ITEM}{_S},{_S}{_MEMBER}){{0,256}}").match,
}
"""From behind an item to where another begins, by what opened the container."""
_PATIENCE = 1000
"""Runs after which the standard library's scanner is asked for the first time to finish a container."""
_not_brackets = bytes(set(range(128)) - set(b"[]{}"))
_opener_of = bytes.maketrans(b"]}", b"[{")


def _end_of_value(text: str, position: int) -> int:
    """The position behind the value that begins here, however deep it is nested.  Linear in its length."""
    still_open = bytearray()  # the brackets, outermost first
    steps, patience = 0, _PATIENCE
    while True:
        # A value begins here.
        if run := _opening(text, position):
            still_open += _brackets(run.group())
            position = run.end()
            if len(still_open) > len(text) - position:
                raise NotJson(len(text))  # what is left could not close them all
            continue
        if item := _item(text, position):
            position = item.end()
        elif text.startswith('"', position):
            position = _read_string(text, position)[1]
        elif text.startswith("{", position):
            still_open += b"{"
            position = _read_name(text, skip_space(text, position + 1))[1]
            continue
        else:
            raise NotJson(position)
        # A value has ended here, and with it perhaps what contains it.
        while still_open:
            if run := _closing(text, position):
                closed = _brackets(run.group()).translate(_opener_of)[: len(still_open)]
                if still_open[-len(closed) :] != closed[::-1]:
                    raise NotJson(position)
                if len(closed) == len(still_open):
                    return position + _behind_closing(run.group(), len(closed))
                del still_open[-len(closed) :]
                position = run.end()
                continue
            steps += 1
            if steps == patience:
                steps = 0
                end = _end_of_container(text, position, still_open[-1])
                if end is not None:
                    still_open.pop()
                    position = end
                    continue
                patience *= 4
            position = _next_item(text, position, still_open[-1])
            break
        else:
            return position


def _next_item(text: str, position: int, container: int) -> int:
    """Behind an item of a container that goes on: where a later one begins."""
    if run := _onward[container](text, position):
        return run.end()
    position = skip_space(text, position)
    if not text.startswith(",", position):
        raise NotJson(position)
    position = skip_space(text, position + 1)
    return _read_name(text, position)[1] if container == ord("{") else position


def _end_of_container(text: str, position: int, container: int) -> int | None:
    """Behind an item: the end of what contains it, if the standard library's scanner gets that far."""
    start = '{"":{}' if container == ord("{") else "[{}"  # an item for that one, which nothing can prolong
    try:
        return position + _decode(start + text[position:], 0)[1] - len(start)
    except (ValueError, RecursionError):
        return None


def _brackets(run: str) -> bytes:
    """The brackets of a run that open or close something, without all between."""
    if '"' in run:
        run = "".join(run.split('"')[::2])  # plain strings have no quotes within
    if ("[" in run or "{" in run) and ("]" in run or "}" in run):
        run = _empty.sub("", run)
    return run.encode("ascii").translate(None, _not_brackets)


def _behind_closing(run: str, count: int) -> int:
    """The position in a run behind so many closing brackets."""
    bare = _opaque.sub(lambda opaque: " " * len(opaque.group()), run).replace("}", "]")
    return len(bare) - len(bare.split("]", count)[count])
