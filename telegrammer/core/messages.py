"""
What a notification may be, and its record (contract 7.1).

A message has a subject, a body and recipients: no sender, no headers, no type.  Whoever sends it adds those.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from attrs import field, frozen

from telegrammer.core.problems import MessageRefused

SUBJECT_LIMIT = 512
"""Bytes of UTF-8."""
BODY_LIMIT = 60_000
"""Bytes of UTF-8."""
RECIPIENTS_LIMIT = 16
RECIPIENT_LIMIT = 320
"""Bytes: 64 of a local part, the sign, 255 of a domain (RFC 5321, 4.5.3.1)."""
RECORD_LIMIT = 65_536
"""Bytes of the encoded whole."""

# RFC 5321 4.1.2: a dot-string and a domain or an address literal; neither quoted strings nor names to show.
# What is not ASCII needs SMTPUTF8 (RFC 6531), which few servers have; a domain is written in A-labels.
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"{_ATOM}(?:\.{_ATOM})*@(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Za-z.:-]+\])")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _encoded(text: str, limit: str) -> bytes:
    if not isinstance(text, str):
        raise MessageRefused(limit, f"the {limit} is no text")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MessageRefused(limit, f"the {limit} is no valid Unicode text") from None


def _check_subject(subject: str) -> None:
    size = len(_encoded(subject, "subject"))
    if not 1 <= size <= SUBJECT_LIMIT:
        raise MessageRefused("subject", f"the subject has {size} bytes; 1 to {SUBJECT_LIMIT} are allowed")
    if subject != subject.strip():
        raise MessageRefused("subject", "the subject begins or ends with white space")
    if _CONTROLS.search(subject):
        raise MessageRefused("subject", "the subject has a control character")


def _check_body(body: str) -> None:
    size = len(_encoded(body, "body"))
    if not 1 <= size <= BODY_LIMIT:
        raise MessageRefused("body", f"the body has {size} bytes; 1 to {BODY_LIMIT} are allowed")
    if "\0" in body:
        raise MessageRefused("body", "the body has a NUL character")


def check_address(address: str) -> str:
    """
    The address, if it is a bare one (``user@example.org``).

    :raises MessageRefused: it is not; ``limit`` is ``"recipient"``.
    """
    if len(_encoded(address, "recipient")) > RECIPIENT_LIMIT:
        raise MessageRefused("recipient", f"a recipient has more than {RECIPIENT_LIMIT} bytes")
    if not _ADDRESS.fullmatch(address):
        raise MessageRefused("recipient", "a recipient is no bare ASCII mail address")
    return address


def _recipients(given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise MessageRefused("recipients", "the recipients are a list, not a text")
    return tuple(given)


@frozen
class Message:
    """
    A notification, checked; a snapshot of what was given.

    :raises MessageRefused: it breaks a limit.
    """

    subject: str = field(repr=False)
    body: str = field(repr=False)
    recipients: tuple[str, ...] = field(converter=_recipients, repr=False)

    def __attrs_post_init__(self) -> None:
        _check_subject(self.subject)
        _check_body(self.body)
        if not 1 <= len(self.recipients) <= RECIPIENTS_LIMIT:
            raise MessageRefused(
                "recipients", f"{len(self.recipients)} recipients; 1 to {RECIPIENTS_LIMIT} are allowed"
            )
        for recipient in self.recipients:
            check_address(recipient)
        size = len(encode(self))
        if size > RECORD_LIMIT:
            raise MessageRefused(
                "record", f"the encoded message has {size} bytes; {RECORD_LIMIT} are allowed"
            )


def encode(message: Message) -> bytes:
    """The record of a message: a JSON object in UTF-8."""
    members = {"subject": message.subject, "body": message.body, "recipients": message.recipients}
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()


def decode(record: bytes) -> Message:
    """
    The message of a record.

    :raises MessageRefused: it is no record of ours.
    """
    try:
        members: Any = json.loads(record)
        if set(members) != {"subject", "body", "recipients"} or not isinstance(members["recipients"], list):
            raise ValueError
        return Message(**members)
    except (ValueError, TypeError, RecursionError, MessageRefused):
        raise MessageRefused("record", "a stored message cannot be read") from None


@frozen
class Credentials:
    """What one delivery call authenticates with; kept nowhere."""

    username: str
    password: str = field(repr=False)


@frozen
class Mark:
    """
    What a producer remembers of having told something, stored with the message in one transaction: so it is
    told once, whatever crashes.

    :raises MessageRefused: it cannot be stored; ``limit`` is ``"mark"``.
    """

    subject: str
    state: str
    at: int
    """Unix seconds."""

    def __attrs_post_init__(self) -> None:
        for text in (self.subject, self.state):
            _encoded(text, "mark")
        if type(self.at) is not int or not -(2**63) <= self.at < 2**63:
            raise MessageRefused("mark", "the mark's time is no whole number of 64 bits")
