"""
Callback URLs: checked and put in one spelling at registration, taken apart for the call (contract 2.2).

What ``canonical`` accepts, ``target_of`` can take apart, and the result says everything a client needs to
call it; so nothing can be registered that dies unsent.  Host names are what resolvers take (underscores and
single labels included), not only what IDNA 2008 calls a host name.  Syntax: RFC 3986; hosts that end in a
number: the WHATWG URL standard, "ends in a number checker", because resolvers read ``127.1`` as an address.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from typing import Final

import idna
from attrs import field, frozen

from telegrammer.core.problems import InvalidRequest

MAX_BYTES: Final = 2048
"""The longest URL, in UTF-8, as sent."""

_FIELD: Final = "callback_url"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_URL = re.compile(r"(https?)://([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", re.IGNORECASE | re.ASCII)
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::([0-9]*))?")
_IPV6_LITERAL = re.compile(r"[0-9A-Fa-f:.]+")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@frozen
class CallbackTarget:
    """A callback URL, ready to be called."""

    scheme: str
    """``http`` or ``https``."""
    host: str
    """A host name in ASCII and lower case, or the text of an IP address without brackets."""
    port: int
    host_header: bytes
    """The value of ``Host``: IPv6 in brackets, the port unless it is the scheme's own."""
    request_target: bytes = field(repr=False)
    """Path and query, byte for byte; the query is a secret."""
    is_ip: bool
    """``host`` is an address: nothing to resolve, and a certificate is checked for the address."""


def canonical(url: str) -> str:
    """
    The one spelling under which a callback URL is stored and compared.

    Scheme, host, IPv6 literal and default port are normalised, an empty path becomes ``/``; path and query
    stay as they are.  The result may be longer than the limit, which holds for the URL as sent.

    :raises InvalidRequest: it breaks a rule of contract 2.2; the message does not repeat the URL.
    """
    # A surrogate cannot get here out of a request; whoever else calls gets an answer, not a codec's error.
    size = len(url.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise _refusal(f"is {size} bytes long; the limit is {MAX_BYTES}")
    target = _taken_apart(url)
    return f"{target.scheme}://{target.host_header.decode('ascii')}{target.request_target.decode('ascii')}"


def target_of(url: str) -> CallbackTarget:
    """
    What to connect to and what to ask for.

    :raises ValueError: the stored text is no callback URL (any more); the message does not repeat it.
    """
    try:
        return _taken_apart(url)
    except InvalidRequest as wrong:
        raise ValueError(wrong.message) from None


def _taken_apart(url: str) -> CallbackTarget:
    # Before any pattern: parsers drop or reinterpret these silently, each in its own way.
    if any(_is_forbidden(character) for character in url):
        raise _refusal("must have no white space, control characters or backslashes")
    match = _URL.fullmatch(url)
    if match is None:
        raise _refusal("must be an absolute URL that begins with http:// or https://")
    scheme, authority, path, query, fragment = match.groups("")
    if fragment:
        raise _refusal("must have no fragment")
    if "@" in authority:
        raise _refusal("must have no user information")
    scheme = scheme.lower()
    host, port, is_ip = _host_and_port(authority, _DEFAULT_PORTS[scheme])
    shown = f"[{host}]" if ":" in host else host
    if port != _DEFAULT_PORTS[scheme]:
        shown = f"{shown}:{port}"
    return CallbackTarget(
        scheme=scheme,
        host=host,
        port=port,
        host_header=shown.encode("ascii"),
        request_target=_request_target(path or "/", query),
        is_ip=is_ip,
    )


def _request_target(path: str, query: str) -> bytes:
    target = path + query
    if not target.isascii():
        raise _refusal("must be ASCII in path and query; percent-encode the rest")
    if _BAD_ESCAPE.search(target) is not None:
        raise _refusal("has a % without two hexadecimal digits in path or query")
    return target.encode("ascii")


def _host_and_port(authority: str, default_port: int) -> tuple[str, int, bool]:
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise _refusal("has a malformed host or port")
    host, digits = match.groups()
    if not host:
        raise _refusal("has no host")
    port = default_port
    if digits is not None:
        # Five digits are enough for every port; int() would read any number of them.
        port = int(digits) if 1 <= len(digits) <= 5 else 0
        if not 1 <= port <= 65535:
            raise _refusal("must have a port from 1 to 65535")
    if host.startswith("["):
        return _ipv6(host[1:-1]), port, True
    name = _host_name(host)
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return _ipv4(name), port, True
    return name, port, False


def _ipv6(text: str) -> str:
    """The form of RFC 5952; the pattern keeps zone ids out, which mean nothing beyond one machine."""
    try:
        if _IPV6_LITERAL.fullmatch(text) is None:
            raise ValueError
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise _refusal("has a malformed IPv6 address") from None
    # RFC 5952, section 5.  Python writes mapped addresses so only from 3.13 on, and stored URLs are compared.
    return str(address) if address.ipv4_mapped is None else f"::ffff:{address.ipv4_mapped}"


def _ipv4(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise _refusal("has a host that ends in a number but is no dotted IPv4 address") from None


def _host_name(host: str) -> str:
    if host.isascii():
        name = host.lower()
    else:
        try:
            name = idna.uts46_remap(host, std3_rules=False, transitional=False)
        except UnicodeError:
            raise _refusal("has a host that is no valid internationalised name") from None
    name = ".".join(map(_label, name.split(".")))
    if len(name) > 253:
        raise _refusal("has a host longer than 253 characters")
    return name


def _label(label: str) -> str:
    if not label:
        raise _refusal("has an empty label in its host (two dots, or one at an end)")
    # An A-label is longer than what it stands for, so nothing long is worth encoding.
    if len(label) <= 63 and (not label.isascii() or label.startswith("xn--")):
        label = _a_label(label)
    if len(label) > 63:
        raise _refusal("has a label longer than 63 characters in its host")
    if _LABEL.fullmatch(label) is None:
        raise _refusal("has a label in its host that no host name can have")
    return label


def _a_label(label: str) -> str:
    """The A-label of a U-label or of a valid A-label: TLS checks by it, so it must be one (RFC 5891)."""
    try:
        encoded = idna.alabel(label).decode("ascii")
        # The other direction is stricter in places; what does not come back would not be accepted again.
        idna.ulabel(encoded)
    except UnicodeError:
        raise _refusal("has a host that is no valid internationalised name") from None
    return encoded


def _is_forbidden(character: str) -> bool:
    return character == "\\" or character.isspace() or unicodedata.category(character) in ("Cc", "Cs")


def _refusal(rule: str) -> InvalidRequest:
    return InvalidRequest(f"{_FIELD} {rule}", _FIELD)
