"""The caller's key out of the Authorization header (contract 2; RFC 9110, 11.4; RFC 6750, 2.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Wider than RFC 6750's b64token, because keys of the C++ program had no rule; but no white space, and no
# comma, with which proxies join two headers into one.
_CREDENTIALS = re.compile(rb"bearer +([!-+\--~]{1,512})", re.IGNORECASE)


def bearer_token(values: Sequence[bytes]) -> bytes | None:
    """The token when ``values`` (every Authorization header) are exactly one bearer credential."""
    if len(values) != 1:
        return None
    match = _CREDENTIALS.fullmatch(values[0].strip(b" \t"))
    return None if match is None else match[1]
