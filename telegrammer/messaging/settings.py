"""
What the settings of e-mail and files may be: for directives and for typed constructors alike.

Each parser raises ``ValueError`` with the rule that was broken, worded to follow the setting's name; none
repeats the value.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Any, Final, get_args

from attrs import Converter, field

from telegrammer.core.callback_url import target_of
from telegrammer.core.messages import check_address
from telegrammer.core.problems import MessageRefused
from telegrammer.core.smtp import Transport
from telegrammer.messaging.directives import checked
from telegrammer.messaging.mime import BodyFormat

_NOT_IN_HOST = frozenset("/?#@[]\\")
_USERNAME_LIMIT: Final = 255


def one_of(words: Iterable[str]) -> Callable[[str], str]:
    """A parser of one of ``words``."""
    known = tuple(words)

    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(f"must be {', '.join(known[:-1])} or {known[-1]}")
        return text

    return parse


def host_name(text: str) -> str:
    """A host name as an A-label in lower case, or the text of an IP address (brackets allowed)."""
    if not isinstance(text, str):
        raise ValueError("must be a host name or an IP address")
    try:
        return str(ipaddress.ip_address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    if ":" in text or not _NOT_IN_HOST.isdisjoint(text):
        raise ValueError("must be a host name or an IP address, without a port")
    try:
        return target_of(f"https://{text}/").host
    except ValueError:
        raise ValueError("must be a host name or an IP address") from None


def port_number(value: str | int) -> int:
    """1 to 65535."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not text.isascii() or not text.isdecimal() or len(text) > 5:
        raise ValueError("must be a whole number from 1 to 65535")
    if not 1 <= int(text) <= 65535:
        raise ValueError("must be a whole number from 1 to 65535")
    return int(text)


def bare_address(text: str) -> str:
    """``user@example.org``."""
    try:
        return check_address(text)
    except MessageRefused:
        raise ValueError("must be a bare ASCII mail address") from None


def account(text: str) -> str:
    """What to authenticate as."""
    if not isinstance(text, str) or not 1 <= len(text) <= _USERNAME_LIMIT or not text.isprintable():
        raise ValueError(f"must be 1 to {_USERNAME_LIMIT} printable characters")
    return text


transport_name = one_of(get_args(Transport))
body_format_name = one_of(get_args(BodyFormat))


def setting(parser: Callable[[Any], Any], name: str | None = None, **options: Any) -> Any:
    """
    An attrs field that takes what the parser takes; None too, when that is the default.

    :param name: what it is called in refusals, if not like the field.
    """

    def convert(value: Any, attribute: Any) -> Any:
        if value is None and options.get("default", ...) is None:
            return None
        return checked(name or attribute.name, parser, value)

    return field(converter=Converter(convert, takes_field=True), **options)
