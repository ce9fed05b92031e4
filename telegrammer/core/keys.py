"""API keys: how they are made, named and recognised (contract 3)."""

from __future__ import annotations

import hashlib
import unicodedata

from telegrammer.core.problems import InvalidRequest

KEY_BYTES = 32
"""How many random bytes make a key."""
NAME_BYTES = 128
"""The longest name, in UTF-8."""

# Line and paragraph separators break a listing like the controls do.
_CONTROLS = ("Cc", "Zl", "Zp")


def new_key(randomness: bytes) -> str:
    """
    The key made of 32 bytes from the operating system: 64 hexadecimal digits.

    :raises ValueError: another number of bytes; a short key must never be given out.
    """
    if len(randomness) != KEY_BYTES:
        raise ValueError(f"a key is made of {KEY_BYTES} random bytes")
    return randomness.hex()


def digest(token: bytes | str) -> bytes:
    """
    The SHA-256 under which a key is stored and looked up.

    A plain hash is enough: the keys are random and long, there is nothing to guess.
    """
    return hashlib.sha256(token.encode("utf-8") if isinstance(token, str) else token).digest()


def check_name(name: str) -> str:
    """
    The name, when a key may be called so.

    :raises InvalidRequest: empty, over 128 bytes, not UTF-8, or with control characters.
    """
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidRequest("the name of a key must be valid UTF-8", "name") from None
    if not 1 <= size <= NAME_BYTES:
        raise InvalidRequest(
            f"the name of a key must have 1 to {NAME_BYTES} bytes in UTF-8; this one has {size}", "name"
        )
    if any(unicodedata.category(character) in _CONTROLS for character in name):
        raise InvalidRequest("the name of a key must have no control characters", "name")
    return name
