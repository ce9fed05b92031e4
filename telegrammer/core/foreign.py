"""Text that somebody else wrote, made fit to be shown (contract 2.1, 5.4)."""

from __future__ import annotations

from typing import Final

_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(text: str, limit: int) -> str:
    """
    ``text`` on one line, printable, encodable, at most ``limit`` characters.

    What cannot be printed (controls, line separators, lone surrogates, direction marks) is escaped as in a
    Python string; a text cut short ends in an ellipsis.
    """
    pieces: list[str] = []
    length = 0
    for character in text:
        piece = character if character.isprintable() else _escaped(character)
        length += len(piece)
        if length > limit:
            return _cut(pieces, limit)
        pieces.append(piece)
    return "".join(pieces)


def _escaped(character: str) -> str:
    named = _NAMED.get(character)
    if named is not None:
        return named
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _cut(pieces: list[str], limit: int) -> str:
    """As many whole pieces as leave room for the ellipsis."""
    kept = list(pieces)
    while kept and sum(map(len, kept)) > limit - 1:
        kept.pop()
    return "".join(kept) + "…"
