"""
The ``[notices]`` table of the ``--config`` file (contract 7.4): who tells the operator, by which road.

It has no flags and no variables.  The password is in a file of its own or a credential, never in here.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from attrs import define, field

from telegrammer.config import files, parsers, tomlfile
from telegrammer.config.table import Setting
from telegrammer.config.values import MailTransport, NoticeSettings
from telegrammer.core.callback_url import target_of
from telegrammer.core.messages import RECIPIENTS_LIMIT, check_address
from telegrammer.core.problems import MessageRefused

PORTS: Mapping[str, int] = {"smtp": 25, "starttls": 587, "smtps": 465}
"""By transport, where ``port`` says nothing else."""
CREDENTIAL = "smtp-password"
_PASSWORD_LIMIT = 1024
NOBODY = "telegrammer@localhost"
"""From whom and to whom files are, where nobody is named: they are read where they lie."""


def _address(text: str) -> str:
    try:
        return check_address(text)
    except MessageRefused:
        raise ValueError("must be a bare mail address, such as operator@example.org") from None


def _host(text: str) -> str:
    rule = "must be a host name or an IP address, without a port"
    try:
        return str(ipaddress.ip_address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    if ":" in text or not set(text).isdisjoint("/?#@[]\\"):
        raise ValueError(rule)
    try:
        return target_of(f"https://{text}/").host
    except ValueError:
        raise ValueError(rule) from None


def _account(text: str) -> str:
    if not 1 <= len(text) <= 255 or not text.isprintable():
        raise ValueError("must be 1 to 255 printable characters")
    return text


NOTICES: tuple[Setting, ...] = (
    Setting(
        "transport",
        parsers.choice("smtp", "starttls", "smtps", "file"),
        "WORD",
        "none",
        "smtp (in the clear), starttls, smtps: a mail server; file: a directory",
    ),
    Setting("from", _address, "ADDRESS", "none", f"the sender; file can do without ({NOBODY})"),
    Setting(
        "recipients",
        _address,
        "ADDRESSES",
        "none",
        f"the operators, 1 to {RECIPIENTS_LIMIT}; file can do without",
        kind="list",
    ),
    Setting("host", _host, "HOST", "none", "mail server; a certificate has to be for this name"),
    Setting(
        "port",
        parsers.whole_number(1, 65_535),
        "N",
        "25, 587 or 465, as the transport is",
        "its port",
        kind="number",
    ),
    Setting("username", _account, "NAME", "none", "account there; for starttls and smtps only"),
    Setting(
        "password-file",
        parsers.path,
        "PATH",
        f"$CREDENTIALS_DIRECTORY/{CREDENTIAL} if it exists",
        "file with its password",
    ),
    Setting(
        "timeout",
        parsers.duration(1, 50),
        "TIME",
        "30s",
        "how long one delivery may take; 1s to 50s",
        kind="duration",
    ),
    Setting("spool", parsers.path, "PATH", "none", "directory for file"),
    Setting(
        "outbox", parsers.path, "PATH", "outbox.db beside --db", "file of the notices on their way, plaintext"
    ),
)
"""The table's settings; ``Setting.default`` and ``help`` are for people, as those of the flags."""

_BY_NAME = {setting.name: setting for setting in NOTICES}
_MAIL_ONLY = ("host", "port", "username", "password-file")
_HINTS = {
    "password": ": no password in this file; name one with it as password-file, or give the credential"
    f" {CREDENTIAL}"
}


@define
class _Table:
    """The values of the table that are right; a line for each problem."""

    where: str
    refuse: Callable[[str], None]
    values: dict[str, Any] = field(factory=dict)
    given: set[str] = field(factory=set)

    def problem(self, name: str, line: str) -> None:
        self.refuse(f"notices.{name}: {line} ({self.where})")

    def take(self, document: Mapping[str, object], shown: Callable[[str], str]) -> None:
        for name, value in document.items():
            setting = _BY_NAME.get(name)
            if setting is None:
                self.refuse(f"unknown setting notices.{shown(name)} in {self.where}{_HINTS.get(name, '')}")
                continue
            self.given.add(name)
            texts = tomlfile.texts(setting, value)
            if texts is None:
                self.problem(name, f"must be {tomlfile.RULES[setting.kind]}")
                continue
            try:
                parsed = tuple(setting.parse(text) for text in texts)
            except ValueError as error:
                self.problem(name, str(error))
                continue
            self.values[name] = parsed if setting.kind == "list" else parsed[0]

    def check(self) -> None:
        """Needed or contradictory, by the transport."""
        transport = self.values.get("transport")
        if "transport" not in self.given:
            self.problem("transport", "is missing")
        if len(self.values.get("recipients", ())) > RECIPIENTS_LIMIT:
            self.problem("recipients", f"has more than {RECIPIENTS_LIMIT} addresses")
        if transport is None:
            return
        needed: tuple[str, ...] = ("from", "recipients", "host")
        useless: tuple[str, ...] = ("spool",)
        if transport == "file":
            needed, useless = ("spool",), _MAIL_ONLY
        for name in needed:
            if name not in self.given:
                self.problem(name, f"is needed for the transport {transport}")
        for name in useless:
            if name in self.given:
                self.problem(name, f"is of no use for the transport {transport}")
        if transport == "smtp" and "username" in self.given:
            self.problem("username", "its password would go in the clear; use starttls or smtps")
        elif "password-file" in self.given and "username" not in self.given and transport != "file":
            self.problem("password-file", "needs a username")

    def password(self, environ: Mapping[str, str]) -> str | None:
        if "username" not in self.given or self.values.get("transport") not in ("starttls", "smtps"):
            return None
        if "password-file" in self.given:
            file = cast("Path | None", self.values.get("password-file"))
        else:
            file = Path(environ.get("CREDENTIALS_DIRECTORY", "")) / CREDENTIAL
            if not environ.get("CREDENTIALS_DIRECTORY") or not os.path.lexists(file):
                self.problem("username", f"needs password-file, or the credential {CREDENTIAL}")
                return None
        return None if file is None else self._password_in(file)

    def _password_in(self, file: Path) -> str | None:
        name = "password-file" if "password-file" in self.given else f"credential {CREDENTIAL}"
        try:
            text = files.read(file, _PASSWORD_LIMIT + 1).decode()
        except OSError as error:
            reason = os.strerror(error.errno).lower() if error.errno else type(error).__name__
            self.problem(name, f"cannot be read ({reason})")
        except UnicodeDecodeError:
            self.problem(name, "is not UTF-8")
        except ValueError as error:
            self.problem(name, str(error))
        else:
            text = text.removesuffix("\n").removesuffix("\r")
            if text and text.isprintable() and len(text) <= _PASSWORD_LIMIT:
                return text
            self.problem(name, f"must hold one line of 1 to {_PASSWORD_LIMIT} printable characters")
        return None


def read(
    document: object,
    where: str,
    environ: Mapping[str, str],
    refuse: Callable[[str], None],
    shown: Callable[[str], str],
) -> NoticeSettings | None:
    """
    The table's settings; None when they are refused.

    :param document: what stands under ``notices``.
    :param where: the file's name, for the lines.
    :param refuse: takes a line for each problem.
    :param shown: makes a foreign name fit for a line.
    """
    if not isinstance(document, dict):
        refuse(f"notices: must be a table, [notices] ({where})")
        return None
    problems: list[str] = []
    table = _Table(where, problems.append)
    table.take(document, shown)
    table.check()
    password = table.password(environ)
    for line in problems:
        refuse(line)
    if problems:
        return None
    values = table.values
    transport = cast(MailTransport, values["transport"])
    return NoticeSettings(
        transport=transport,
        sender=values.get("from", NOBODY),
        recipients=values.get("recipients", (NOBODY,)),
        host=values.get("host", ""),
        port=values.get("port", PORTS.get(transport, 0)),
        username=values.get("username"),
        password=password,
        timeout=values.get("timeout", 30),
        spool=values.get("spool"),
        outbox=values.get("outbox"),
    )
