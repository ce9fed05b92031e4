"""Where a request's head says it goes and how its body ends: only what is beyond doubt (RFC 9112)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from twisted.web.http_headers import Headers

_HOST_BYTE = rb"[-A-Za-z0-9._~!$&'()*+,;=%:\[\]]"
_HOST = re.compile(_HOST_BYTE + rb"*")
_ABSOLUTE = re.compile(rb"https?://" + _HOST_BYTE + rb"+(?=[/?]|\Z)", re.IGNORECASE)
_FIELD_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\x00\r\n]*")


def origin_form(method: bytes, target: bytes) -> bytes | None:
    """
    The target as path and query (RFC 9112, 3.2); ``*`` stays; None for what is neither.

    An absolute one must name a host, and nobody else (RFC 9110, 4.2.1 and 4.2.4).
    """
    absolute = _ABSOLUTE.match(target)
    if absolute is not None:
        target = target[absolute.end() :]
        target = target if target.startswith(b"/") else b"/" + target
    return target if target.startswith(b"/") or (target, method) == (b"*", b"OPTIONS") else None


def well_framed(headers: Headers, version: bytes) -> bool:
    """Whether the body's end is beyond doubt (RFC 9112, 6.1); two lengths were refused by the parser."""
    codings = headers.getRawHeaders(b"transfer-encoding")
    if codings is None:
        return True
    return version == b"HTTP/1.1" and [coding.lower() for coding in codings] == [b"chunked"]


def well_formed_trailer(lines: Iterable[bytes]) -> bool:
    """
    Whether every line behind the last chunk is a field (RFC 9112, 7.1.2).

    None of them is used.  But a proxy that takes a bare line feed for the trailer's end reads another request
    where we would read on in the trailer, and from then on gives answers to the wrong callers.
    """
    return all(_FIELD_LINE.fullmatch(line) for line in lines)


def names_host(headers: Headers, version: bytes) -> bool:
    """One Host of a possible form; HTTP/1.0 may do without (RFC 9112, 3.2)."""
    hosts = headers.getRawHeaders(b"host", [])
    if not hosts:
        return version == b"HTTP/1.0"
    return len(hosts) == 1 and _HOST.fullmatch(hosts[0]) is not None
