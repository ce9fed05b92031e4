"""Usernames as callers and Telegram spell them (contract 2.1, 5.5)."""

from __future__ import annotations

import re

from telegrammer.core.problems import InvalidRequest

_USERNAME = re.compile(r"@?([A-Za-z0-9_]{1,64})")
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def fold_case(name: str) -> str:
    """Lower the 26 ASCII capitals and nothing else: usernames are compared by ASCII case only."""
    return name.translate(_LOWER)


def normalise(raw: str) -> str:
    """
    A caller's username as the store knows it: without ``@``, in lower case.

    :raises InvalidRequest: it cannot be a username.
    """
    match = _USERNAME.fullmatch(raw)
    if match is None:
        length = len(raw.removeprefix("@"))
        kind = "another" if 1 <= length <= 64 else f"{length} characters"
        raise InvalidRequest(
            "username must be 1 to 64 characters of A-Z, a-z, 0-9 and _, after an optional @; "
            f"this one has {kind}",
            "username",
        )
    return fold_case(match[1])
