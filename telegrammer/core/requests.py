"""
Request bodies: bytes in, a checked value or ``InvalidRequest`` out (contract 2, 2.1, 2.2).

Everything is checked here, before anything is looked up, sent or written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import NoReturn

from attrs import field, frozen

from telegrammer.core.callback_url import canonical
from telegrammer.core.problems import InvalidRequest
from telegrammer.core.usernames import normalise

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
TEXT_LIMIT = 4096
"""Unicode code points: the unit Telegram measures, not UTF-16 units and not bytes."""

_INT64_DIGITS = 19
_SHOWN_NAME = 64
_ID = re.compile(r"[1-9][0-9]{0,18}")


@frozen
class SendText:
    """A checked body of ``POST /send``; exactly one destination is set."""

    chat_id: int | None
    username: str | None
    """Normalised."""
    text: str = field(repr=False)


@frozen
class Subscribe:
    """A checked body of ``POST /subscribe``."""

    chat_id: int
    callback_url: str = field(repr=False)
    """Canonical; its query is a secret."""


def parse_send(body: bytes) -> SendText:
    """
    Read the body of ``POST /send``.

    :raises InvalidRequest: it breaks a rule of contract 2 or 2.1.
    """
    members = _members(body, ("chat_id", "username", "text"))
    if "chat_id" in members and "username" in members:
        raise InvalidRequest("give chat_id or username, not both", "username")
    if "chat_id" not in members and "username" not in members:
        raise InvalidRequest("chat_id or username is missing", "chat_id")
    chat_id = _chat_id(members) if "chat_id" in members else None
    username = normalise(_string(members, "username")) if "username" in members else None
    return SendText(chat_id, username, _text(members))


def parse_subscribe(body: bytes) -> Subscribe:
    """
    Read the body of ``POST /subscribe``.

    :raises InvalidRequest: it breaks a rule of contract 2 or 2.2.
    """
    members = _members(body, ("chat_id", "callback_url"))
    return Subscribe(_chat_id(members), canonical(_string(members, "callback_url")))


def parse_id(text: str) -> int | None:
    """A subscription id from a path, in its one spelling; None when no subscription can have it."""
    if _ID.fullmatch(text) is None or int(text) > INT64_MAX:
        return None
    return int(text)


# -- members ------------------------------------------------------------------------------------------


def _members(body: bytes, known: Collection[str]) -> dict[str, object]:
    document = _strict_json(body)
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object")
    for name in document:
        if name not in known:
            raise InvalidRequest(
                f"there is no field {_shown(name)} here; known are {', '.join(known)}", _shown(name)
            )
    return document


def _required(members: dict[str, object], name: str) -> object:
    if name not in members:
        raise InvalidRequest(f"{name} is missing", name)
    return members[name]


def _string(members: dict[str, object], name: str) -> str:
    value = _required(members, name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {_kind(value)}", name)
    if not _is_encodable(value):
        raise InvalidRequest(f"{name} has half of a surrogate pair in it", name)
    return value


def _chat_id(members: dict[str, object]) -> int:
    value = _required(members, "chat_id")
    # Exactly int: a bool is an int to isinstance.
    if type(value) is not int:
        raise InvalidRequest(f"chat_id must be an integer, not {_kind(value)}", "chat_id")
    if value == 0:
        raise InvalidRequest("chat_id must not be zero", "chat_id")
    if not INT64_MIN <= value <= INT64_MAX:
        raise InvalidRequest("chat_id must fit a signed 64-bit integer", "chat_id")
    return value


def _text(members: dict[str, object]) -> str:
    text = _string(members, "text")
    if not 1 <= len(text) <= TEXT_LIMIT:
        raise InvalidRequest(
            f"text must have 1 to {TEXT_LIMIT} Unicode code points; this one has {len(text)}", "text"
        )
    return text


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number with fraction or exponent"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def _shown(name: str) -> str:
    return name if len(name) <= _SHOWN_NAME else name[: _SHOWN_NAME - 1] + "…"


# -- strict JSON --------------------------------------------------------------------------------------


def _strict_json(body: bytes) -> object:
    """
    The document, by RFC 8259 to the letter, where Python's parser is kinder.

    Strings in nested values are not looked at: no field takes such a value.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8, at byte {error.start}") from None
    if text.startswith("\ufeff"):
        raise InvalidRequest("the body must not begin with a byte order mark")
    try:
        document: object = json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON, at character {error.pos}") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    return document


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, value in pairs:
        if not _is_encodable(name):
            raise InvalidRequest("the name of a field has half of a surrogate pair in it")
        if name in members:
            raise InvalidRequest(f"{_shown(name)} is given twice", _shown(name))
        members[name] = value
    return members


def _integer(digits: str) -> int:
    """
    The integer, or one that is out of range like it.

    What is too long for 64 bits can only be refused; reading its value costs the square of its length, and
    Python gives up on it beyond 4,300 digits.
    """
    return int(digits) if len(digits) <= _INT64_DIGITS + 1 else INT64_MAX + 1


def _constant(name: str) -> NoReturn:
    # Called for NaN, Infinity and -Infinity only.
    raise InvalidRequest(f"{name} is not JSON")


def _is_encodable(text: str) -> bool:
    # Only an escape like \ud83d without its other half gets here: the bytes were valid UTF-8.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
