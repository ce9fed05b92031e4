"""
Elements of ``getUpdates``: what they must have, and the little the gateway reads of them (contract 5.2, 5.5).

A message goes to its receivers as it was spelled, so its JSON text is cut out of the body.  Invalid UTF-8
never gets here, and decoding strictly loses nothing: what is cut out encodes to the bytes that came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeGuard

from attrs import frozen

from telegrammer.core.envelope import chat_id_of, read_envelope, refused, succeeded
from telegrammer.core.jsontext import NotJson, Reader, read_array, read_object, skip_space
from telegrammer.core.problems import MalformedUpdate
from telegrammer.core.telegram import Batch, Malformed, Message, PollOutcome, Update, UpstreamFailure
from telegrammer.core.usernames import fold_case, is_username

HIGHEST_UPDATE_ID: Final = 2**63 - 1


def poll_outcome(status: int, retry_header: Sequence[bytes], body: bytes) -> PollOutcome:
    """
    What an answer to ``getUpdates`` brought.

    :param status: the HTTP status.
    :param retry_header: the raw values of ``Retry-After``.
    :param body: the whole body; its length was bounded by whoever read it.
    """
    envelope = read_envelope(body, _read_result)
    if envelope is None or not succeeded(status, envelope):
        return refused(status, retry_header, envelope)
    if not isinstance(envelope.result, Batch):
        return UpstreamFailure("the result of getUpdates is no array")
    return envelope.result


def read_update(body: bytes) -> Update:
    """
    The update in a body, by the same rules as an element of ``getUpdates``.

    :raises MalformedUpdate: it is none, or one that breaks a rule.
    """
    element = _read_alone(body, _read_element)
    if isinstance(element, Update):
        return element
    if isinstance(element, Malformed):
        raise MalformedUpdate(element.update_id, element.why)
    raise MalformedUpdate(None, "the body is not a JSON text in UTF-8")


def update_id_of(body: bytes) -> int | None:
    """The ``update_id`` of a body that is a JSON object with a right one, whatever else it holds; or None."""
    members = _read_alone(body, read_object)
    found = members.get("update_id") if isinstance(members, Mapping) else None
    return found if _is_update_id(found) else None


def _read_alone(body: bytes, reader: Reader) -> object:
    """What the reader makes of a whole body; None when that is no JSON text."""
    try:
        text = body.decode("utf-8")
        value, end = reader(text, skip_space(text, 0))
        return value if skip_space(text, end) == len(text) else None
    except (UnicodeDecodeError, NotJson):
        return None


def _is_update_id(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= HIGHEST_UPDATE_ID


@frozen
class _Broken:
    """A ``message`` that no message can be."""

    why: str


def _read_result(text: str, position: int) -> tuple[Batch | None, int]:
    items, end = read_array(text, position, _read_element)
    if items is None:
        return None, end
    return Batch(tuple(item for item in items if isinstance(item, (Update, Malformed)))), end


def _read_element(text: str, position: int) -> tuple[Update | Malformed, int]:
    members, end = read_object(text, position, {"message": _read_message})
    if members is None:
        return Malformed(None, "the element is not an object"), end
    update_id = members.get("update_id")
    if not _is_update_id(update_id):
        return Malformed(None, "update_id is not an integer from 0 to 2^63 - 1"), end
    message = members.get("message")
    if isinstance(message, _Broken):
        return Malformed(update_id, message.why, text[position:end].encode("utf-8")), end
    return Update(update_id, message if isinstance(message, Message) else None), end


def _read_message(text: str, position: int) -> tuple[Message | _Broken, int]:
    members, end = read_object(text, position, {"chat": read_object})
    if members is None:
        return _Broken("message is not an object"), end
    chat = members.get("chat")
    if not isinstance(chat, Mapping):
        return _Broken("message.chat is not an object"), end
    chat_id = chat_id_of(chat.get("id"))
    if chat_id is None:
        return _Broken("message.chat.id is not a 64-bit integer other than 0"), end
    chat_type = chat.get("type")
    if not isinstance(chat_type, str):
        return _Broken("message.chat.type is not a string"), end
    username, odd = _private_username(chat) if chat_type == "private" else (None, False)
    message = Message(
        chat_id=chat_id,
        chat_type=chat_type,
        text=text[position:end].encode("utf-8"),
        username=username,
        username_is_odd=odd,
        migrate_to_chat_id=_other_chat(members.get("migrate_to_chat_id"), chat_id),
        migrate_from_chat_id=_other_chat(members.get("migrate_from_chat_id"), chat_id),
    )
    return message, end


def _private_username(chat: Mapping[object, object]) -> tuple[str | None, bool]:
    """The username in lower case, None when there is none; and whether there is one that cannot be."""
    if "username" not in chat:
        return None, False
    name = chat["username"]
    if isinstance(name, str) and is_username(name):
        return fold_case(name), False
    return None, True


def _other_chat(value: object, chat_id: int) -> int | None:
    """A chat id other than the message's own, or None: nothing moves to where it is."""
    other = chat_id_of(value)
    return None if other == chat_id else other
