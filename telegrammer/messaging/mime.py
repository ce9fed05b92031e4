"""
A message as it is mailed: header, MIME, body (RFC 5322, RFC 2045; contract 7.3).

Written here and not by ``email.message``: what the reader gets has to be what was accepted, whatever Unicode
a subject holds, and the standard library's folding has had its difficulties with that.
"""

from __future__ import annotations

import re
from base64 import b64encode, encodebytes
from binascii import b2a_qp
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Final, Literal

from telegrammer.core.messages import Message
from telegrammer.core.problems import MessageRefused
from telegrammer.core.smtp import with_crlf

BodyFormat = Literal["qp-html", "text"]
"""The body is HTML in quoted-printable already and stays as it is; or it is text, and encoded here."""

LINE_LIMIT: Final = 998
"""Octets of a line without its end (RFC 5322, 2.1.1)."""

_PLAIN_SUBJECT = re.compile(r"[!-~](?:[ -~]{0,64}[!-~])?")
_WORD_BYTES: Final = 39
"""Of UTF-8 in one encoded word: a line with one has at most 76 characters, "Subject: " too (RFC 2047, 2)."""
_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.|\Z)){0,127}")


def check_id(message_id: str) -> str:
    """
    The id, if it can be the left half of a Message-ID and the name of a file.

    :raises ValueError: it is not 1 to 128 letters, digits, ``-``, ``_`` or single dots inside.
    """
    if not isinstance(message_id, str) or _ID.fullmatch(message_id) is None:
        raise ValueError("a message id is 1 to 128 letters, digits, '-', '_' or single dots inside")
    return message_id


def render(message: Message, *, sender: str, message_id: str, now: float, body_format: BodyFormat) -> bytes:
    """
    The whole message, its lines ended by CRLF, pure ASCII.

    The same arguments make the same bytes.

    :param sender: a bare address; a domain of it stands in the Message-ID, ``<message_id@domain>``.
    :param now: Unix seconds, for ``Date``.
    :raises MessageRefused: the body cannot be sent in this format; ``limit`` is ``"body"``.
    :raises ValueError: the id is none, see ``check_id``.
    """
    domain = sender.rpartition("@")[2]
    subtype, encoding, body = _html(message.body) if body_format == "qp-html" else _text(message.body)
    header = (
        f"From: {sender}",
        f"To: {_folded(',', message.recipients)}",
        f"Subject: {_subject(message.subject)}",
        f"Date: {format_datetime(datetime.fromtimestamp(int(now), UTC))}",
        f"Message-ID: <{check_id(message_id)}@{domain}>",
        "MIME-Version: 1.0",
        f'Content-Type: text/{subtype}; charset="utf-8"',
        f"Content-Transfer-Encoding: {encoding}",
    )
    return "".join(f"{line}\r\n" for line in (*header, "")).encode("ascii") + body


def _folded(separator: str, pieces: tuple[str, ...] | list[str]) -> str:
    """One piece a line: however long, each is below the limit of a line."""
    return f"{separator}\r\n ".join(pieces)


def _subject(subject: str) -> str:
    """As it is when that is short and unmistakable, else in encoded words (RFC 2047)."""
    if _PLAIN_SUBJECT.fullmatch(subject) and "=?" not in subject:
        return subject
    chunks = [""]
    for character in subject:
        if len((chunks[-1] + character).encode()) > _WORD_BYTES:
            chunks.append("")
        chunks[-1] += character
    return _folded("", [f"=?utf-8?b?{b64encode(chunk.encode()).decode('ascii')}?=" for chunk in chunks])


def _html(body: str) -> tuple[str, str, bytes]:
    if not body.isascii():
        raise MessageRefused("body", "the body is no quoted-printable: it has a character beyond ASCII")
    lines = with_crlf(body.encode("ascii"))
    longest = max(map(len, lines.split(b"\r\n")))
    if longest > LINE_LIMIT:
        raise MessageRefused(
            "body", f"the body has a line of {longest} octets; at most {LINE_LIMIT} are allowed"
        )
    return "html", "quoted-printable", lines


def _text(body: str) -> tuple[str, str, bytes]:
    """Whichever encoding is the shorter one; a CR that ends no line with an LF is kept as it is."""
    lines = [line.encode() for line in body.replace("\r\n", "\n").split("\n")]
    if not lines[-1]:
        lines.pop()
    quoted = b"\r\n".join(b2a_qp(line, istext=False).replace(b"\n", b"\r\n") for line in lines) + b"\r\n"
    plain = encodebytes(b"\r\n".join(lines) + b"\r\n").replace(b"\n", b"\r\n")
    if len(quoted) <= len(plain):
        return "plain", "quoted-printable", quoted
    return "plain", "base64", plain
