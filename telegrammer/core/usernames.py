"""Usernames as callers and Telegram spell them (contract 2.1, 5.5)."""

from __future__ import annotations

import re

from telegrammer.core.problems import InvalidRequest

_USERNAME = re.compile(r"[A-Za-z0-9_]{1,64}")
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def is_username(name: str) -> bool:
    """Whether a user or a bot can be called so, in any case and without ``@``."""
    return _USERNAME.fullmatch(name) is not None


def fold_case(name: str) -> str:
    """Lower the 26 ASCII capitals and nothing else: usernames are compared by ASCII case only."""
    return name.translate(_LOWER)


def normalise(raw: str) -> str:
    """
    A caller's username as the store knows it: without ``@``, in lower case.

    :raises InvalidRequest: it cannot be a username.
    """
    name = raw.removeprefix("@")
    if not is_username(name):
        kind = "another" if 1 <= len(name) <= 64 else f"{len(name)} characters"
        raise InvalidRequest(
            "username must be 1 to 64 characters of A-Z, a-z, 0-9 and _, after an optional @; "
            f"this one has {kind}",
            "username",
        )
    return fold_case(name)
