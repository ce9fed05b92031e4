"""
One setting's text in, its value out.

Each parser raises ``ValueError`` with the rule that was broken, worded to follow the setting's name ("must be
…").  None repeats the text it was given: a token may have been pasted in the wrong place.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import idna
from cryptography.x509 import load_pem_x509_certificates
from OpenSSL import SSL, crypto
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import VerifyError

from telegrammer.config import files
from telegrammer.config.values import Token


class Unusable(ValueError):
    """The text keeps the rules, but what it names on this machine is of no use."""


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,12})([smhd]?)")
_NUMBER = re.compile(r"[0-9]{1,12}")
_TOKEN = re.compile(r"[0-9]{1,19}:[A-Za-z0-9_-]{3,250}")
_NOT_IN_URL = re.compile(r"[^\x21-\x7e\u00a1-\U0010ffff]|\\")


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """A parser of decimal digits, from ``least`` to ``most``."""

    def parse(text: str) -> int:
        if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    return parse


def duration(least: int, most: int) -> Callable[[str], int]:
    """A parser of ``50s``, ``10m``, ``2h``, ``7d`` or plain seconds, into whole seconds."""

    def parse(text: str) -> int:
        found = _DURATION.fullmatch(text)
        seconds = int(found[1]) * _UNITS[found[2]] if found else -1
        if not least <= seconds <= most:
            raise ValueError(
                f"must be a duration like 50s, 10m, 2h or 7d, from {_spelled(least)} to {_spelled(most)}"
            )
        return seconds

    return parse


def _spelled(seconds: int) -> str:
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{seconds // _UNITS[unit]}{unit}"
    return f"{seconds}s"


def choice(*words: str) -> Callable[[str], str]:
    """A parser of one of ``words``."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError("must be " + " or ".join(words))
        return text

    return parse


def path(text: str) -> Path:
    """A path, made absolute against the working directory."""
    if not text or "\0" in text:
        raise ValueError("must be a path")
    return Path(os.path.abspath(text))


def certificates(text: str) -> Path:
    """A path to PEM certificates, which are looked at here so that a start is not refused for them later."""
    file = path(text)
    try:
        content = files.read(file)
    except OSError as error:
        raise Unusable(f"cannot be read: {(error.strerror or type(error).__name__).lower()}") from None
    except ValueError as error:
        raise Unusable(str(error)) from None
    try:
        if not load_pem_x509_certificates(content):
            raise ValueError
    except ValueError:
        raise Unusable("holds no PEM certificate, or a damaged one") from None
    return file


def host(text: str) -> str:
    """An IP address (an IPv6 one with or without brackets) or a host name to listen on."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if _address(bare) is not None:
        return bare
    if re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", text) is None:
        raise ValueError("must be an IP address or a host name")
    return text


def endpoint(text: str) -> str:
    """A Twisted server endpoint string; what it names (certificates) is looked at, nothing is opened."""
    rule = "must be a Twisted server endpoint such as tcp:8080:interface=127.0.0.1"
    if any(ord(character) < 32 for character in text):
        raise ValueError(rule)
    if text.startswith("systemd:"):
        # Its sockets are there only in the process that systemd started.
        return text
    if text.startswith("ssl:") and any(files.may_wait(name) for name in _arguments(text)):
        raise Unusable("names a file that is not a regular file")
    try:
        serverFromString(None, text)
    except OSError:
        raise Unusable("names a file that cannot be read") from None
    except (crypto.Error, SSL.Error, VerifyError):
        raise Unusable("names a key or certificate that is no PEM, damaged, or not for the other") from None
    except Exception:
        # A parser per kind, and each raises what it likes.
        raise ValueError(rule) from None
    return text


def _arguments(text: str) -> list[str]:
    """What an endpoint string gives its parser, with or without names, unquoted."""
    parts = re.findall(r"(?:[^:\\]|\\.)+", text)
    return [re.sub(r"\\(.)", r"\1", part.partition("=")[2] or part) for part in parts]


def token(text: str) -> Token:
    """A bot token: digits, a colon, letters.  One trailing newline is trimmed; the text is never repeated."""
    text = text.removesuffix("\n").removesuffix("\r")
    if _TOKEN.fullmatch(text) is None:
        raise ValueError("is not shaped like a bot token (digits, a colon, then letters, digits, _ or -)")
    return Token(text)


def api_url(text: str) -> str:
    """
    The base URL of a Bot API server, without its trailing slash.

    The token is in the path of every request, so plain http goes to a loopback address only.  Hosts that
    the HTTP client cannot call (names with an underscore) are refused here, not at the first poll.
    """
    if "?" in text:
        raise ValueError("must not hold a query or fragment")
    return _url(text, "the token is part of every request").rstrip("/")


WEBHOOK_PATH = "/telegram/webhook"
"""The route that Telegram calls (contract 8)."""


def webhook_url(text: str) -> str:
    """
    The URL that Telegram calls, or a proxy before us does; without a path, that of our route.

    The secret is in the head of every call, so plain http goes to a loopback address only.
    """
    url = _url(text, "our secret is part of every call")
    parts = urlsplit(url)
    return url if parts.path.strip("/") or parts.query else f"{parts.scheme}://{parts.netloc}{WEBHOOK_PATH}"


def _url(text: str, secret: str) -> str:
    """A canonical URL that can be called; ``secret`` says why plain http may only go to loopback."""
    if len(text) > 1024 or _NOT_IN_URL.search(text):
        raise ValueError("must be a URL of at most 1024 characters, without spaces or backslashes")
    try:
        parts = urlsplit(text)
        name, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("is not a valid URL") from None
    if parts.scheme not in ("https", "http") or not name:
        raise ValueError("must be an absolute https URL")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user name or password")
    if "[" in parts.netloc and re.fullmatch(r"\[[0-9A-Fa-f:.]+\](:[0-9]*)?", parts.netloc) is None:
        raise ValueError("has a host in brackets that is no IPv6 address")
    if "#" in text:
        raise ValueError("must not hold a query or fragment")
    if port == 0:
        raise ValueError("must have a port from 1 to 65535")
    rest = parts.path + ("?" + parts.query if parts.query else "")
    if re.search(r"%(?![0-9A-Fa-f]{2})", rest) or not rest.isascii():
        raise ValueError("must have a path of ASCII characters and %XX escapes")
    name = _callable_host(name)
    if parts.scheme == "http" and not is_loopback(name):
        raise ValueError(f"may be plain http only to a loopback address: {secret}")
    bracketed = f"[{name}]" if ":" in name else name
    shown = bracketed if port is None else f"{bracketed}:{port}"
    return f"{parts.scheme}://{shown}{rest}"


def _callable_host(name: str) -> str:
    address = _address(name)
    if address is not None:
        return str(address)
    if "_" in name:
        raise ValueError("must not have an underscore in its host name")
    if re.fullmatch(r"[0-9.]+|.*\.(0x[0-9a-f]*|[0-9]+)\.?", name):
        raise ValueError("has a host that is neither a name nor an IP address")
    try:
        return idna.encode(name, uts46=True).decode("ascii")
    except idna.IDNAError:
        raise ValueError("has a host that is not a valid name") from None


def is_loopback(name: str) -> bool:
    """Whether a host names this machine's loopback interface without asking a resolver."""
    address = _address(name)
    return name.lower() == "localhost" if address is None else address.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
