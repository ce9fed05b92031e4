"""
Reading the settings: flag, then environment, then TOML file, then default (contract 1.2).

Every problem becomes a line that names the setting and where it came from, never the value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from attrs import Factory, define, frozen

from telegrammer.config import files, notices, parsers, tomlfile
from telegrammer.config.exposure import WARNING, heard_beyond_loopback
from telegrammer.config.table import BY_NAME, SETTINGS, TOKEN_VARIABLE
from telegrammer.config.values import NoticeSettings, Settings, Token
from telegrammer.core.problems import SettingsRefused

SYSTEM_DATABASE = Path("/var/lib/telegrammer/telegrammer.db")
_TOKEN_LIMIT = 4096

Flags = Mapping[str, str | Sequence[str]]
"""Setting name (without dashes) to what was typed; a sequence where it was typed more than once."""


@frozen
class _Given:
    """A setting's text, or texts, and where it came from."""

    texts: tuple[str, ...]
    where: str
    typed: bool = False
    """On the command line."""


@define
class Reader:
    """Collects what each source gives, and what is wrong with it."""

    environ: Mapping[str, str]
    readable: Callable[[Path], bool]
    given: dict[str, _Given] = Factory(dict)
    problems: list[str] = Factory(list)
    warnings: list[str] = Factory(list)
    notices: NoticeSettings | None = None
    usage: bool = False

    # -- the sources, in order of precedence ----------------------------------------------------------

    def take_flags(self, flags: Flags, unknown: Sequence[str]) -> None:
        for flag in unknown:
            hint = ": give the token by --token-file or the variable TELEGRAMMER_TOKEN"
            self.refuse(f"unknown flag {_shown(flag)}{hint if flag == '--token' else ''}", typed=True)
        for name, typed in flags.items():
            texts = (typed,) if isinstance(typed, str) else tuple(typed)
            self.given[name] = _Given(texts, f"flag --{name}", typed=True)

    def take_environment(self) -> None:
        known = {setting.variable: setting for setting in SETTINGS}
        strangers: list[str] = []
        for variable, text in sorted(self.environ.items()):
            if not variable.startswith("TELEGRAMMER_") or not text:
                continue
            if variable == "TELEGRAMMER_PORT" and re.match(r"[a-z]+://", text):
                self.warnings.append(
                    "the variable TELEGRAMMER_PORT is ignored: it holds a URL, as Kubernetes sets for a "
                    "service of that name, not a port"
                )
            elif variable in known:
                name = known[variable].name
                self.given.setdefault(name, _Given((text,), f"environment variable {variable}"))
            elif variable != TOKEN_VARIABLE:
                strangers.append(_shown(variable))
        if strangers:
            self.warnings.append("unknown environment variables are ignored: " + ", ".join(strangers))

    def take_only(self, names: Sequence[str]) -> None:
        """Of environment and file nothing but these: what else is there is not for this command to judge."""
        for name in ("config", *names):
            variable = BY_NAME[name].variable
            if self.environ.get(variable):
                given = _Given((self.environ[variable],), f"environment variable {variable}")
                self.given.setdefault(name, given)
        missing = [name for name in names if name not in self.given]
        if missing:
            self.take_file(only=missing)

    def take_file(self, only: Sequence[str] | None = None) -> None:
        """Every setting of the file, or those that are asked for."""
        file = cast("Path | None", self.value("config"))
        if file is None:
            return
        where = f"config file {_shown(str(file))}"
        try:
            document = tomlfile.read(file)
        except OSError as error:
            return self.refuse(f"{where}: cannot be read ({_reason(error)}), {self.given['config'].where}")
        except ValueError as error:
            return self.refuse(f"{where}: {error}")
        for name, value in document.items():
            if only is not None and name not in only:
                continue
            if name == "notices":
                self.notices = notices.read(value, where, self.environ, self.refuse, _shown)
                continue
            setting = BY_NAME.get(name)
            if setting is None or not setting.in_file:
                hint = ": name a file with it as token-file" if name == "token" else ""
                self.refuse(f"unknown setting {_shown(name)} in {where}{hint}")
                continue
            texts = tomlfile.texts(setting, value)
            if texts is None:
                self.refuse(f"{name}: must be {tomlfile.RULES[setting.kind]} ({where})")
            else:
                self.given.setdefault(name, _Given(texts, where))

    # -- values ---------------------------------------------------------------------------------------

    def refuse(self, line: str, typed: bool = False) -> None:
        self.problems.append(line)
        self.usage = self.usage or typed

    def value(self, name: str) -> object | None:
        """The parsed value (for a list, the tuple of them), or None when not given or refused."""
        given, setting = self.given.get(name), BY_NAME[name]
        if given is None:
            return None
        values: list[object] = []
        for text in given.texts if setting.kind == "list" else given.texts[-1:]:
            try:
                values.append(setting.parse(text))
            except ValueError as error:
                # A flag whose file has gone is no wrong usage.
                typed = given.typed and not isinstance(error, parsers.Unusable)
                self.refuse(f"{name}: {error} ({given.where})", typed)
                return None
        return tuple(values) if setting.kind == "list" else values[0]

    def check_outbox(self, database: Path | None) -> None:
        if database and self.notices and self.notices.outbox_is_of(database):
            self.refuse("notices.outbox: is a file of the database (db); name another")

    def database(self) -> Path | None:
        if "db" in self.given:
            return cast("Path | None", self.value("db"))
        # systemd lists several state directories with colons between them.
        state = self.environ.get("STATE_DIRECTORY", "").partition(":")[0]
        if state:
            return Path(os.path.abspath(state)) / "telegrammer.db"
        if self.readable(SYSTEM_DATABASE):
            return SYSTEM_DATABASE
        home = self.environ.get("XDG_STATE_HOME", "")
        if not os.path.isabs(home):
            # A relative one is to be ignored (XDG Base Directory Specification).
            home = os.path.join(self.environ.get("HOME") or os.path.expanduser("~"), ".local/state")
        if not os.path.isabs(home):
            self.refuse("db: is needed, for there is no home directory to put it in")
            return None
        return Path(home) / "telegrammer" / "telegrammer.db"

    def token(self) -> Token | None:
        said, file = self.environ.get(TOKEN_VARIABLE), cast("Path | None", self.value("token-file"))
        if "token-file" in self.given:
            where = self.given["token-file"].where
            if said:
                self.refuse(
                    f"token: is given twice, by the environment variable {TOKEN_VARIABLE} and by {where}"
                )
                return None
            return None if file is None else self._token_in(file, where)
        if said:
            return self._token(said, f"environment variable {TOKEN_VARIABLE}")
        credentials = self.environ.get("CREDENTIALS_DIRECTORY")
        if credentials:
            file = Path(credentials) / "telegram-token"
            if os.path.lexists(file):
                return self._token_in(file, "credential telegram-token")
        self.refuse(
            f"token: is missing; give --token-file, the environment variable {TOKEN_VARIABLE} or the "
            "credential telegram-token"
        )
        return None

    def _token_in(self, file: Path, where: str) -> Token | None:
        try:
            text = files.read(file, _TOKEN_LIMIT)
        except OSError as error:
            self.refuse(f"token-file: cannot be read ({_reason(error)}; {where})")
            return None
        except ValueError as error:
            self.refuse(f"token-file: {error} ({where})")
            return None
        return self._token(text.decode("ascii", "replace"), where)

    def _token(self, text: str, where: str) -> Token | None:
        try:
            return parsers.token(text)
        except ValueError as error:
            self.refuse(f"token: {error} ({where})")
            return None

    def check_listening(self) -> None:
        for name in ("host", "port"):
            if "listen" in self.given and name in self.given:
                listen, other = self.given["listen"], self.given[name]
                self.refuse(
                    f"listen: takes the place of {name}, give one of them ({listen.where}; {other.where})",
                    listen.typed and other.typed,
                )

    def check_webhook(self) -> None:
        """One word goes back to polling, so what is said of a webhook is no contradiction to it."""
        ingest = self.given.get("ingest")
        if ingest is not None and ingest.texts[-1] == "webhook" and "webhook-url" not in self.given:
            self.refuse(f"webhook-url: is needed with ingest webhook ({ingest.where})", ingest.typed)

    def refusal(self) -> SettingsRefused:
        return SettingsRefused(tuple(self.problems), usage=self.usage)


def _shown(text: str) -> str:
    """A foreign name, fit for a line: nothing but printable ASCII, at most 200 characters."""
    safe = "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text[:201])
    return safe if len(safe) <= 200 else safe[:200] + "..."


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else type(error).__name__


def file_readable(path: Path) -> bool:
    return os.access(path, os.R_OK)


def load(
    flags: Flags,
    environ: Mapping[str, str],
    *,
    unknown_flags: Sequence[str] = (),
    readable: Callable[[Path], bool] = file_readable,
) -> tuple[Settings, tuple[str, ...]]:
    """
    The settings and the warnings to log.

    :param flags: setting name (``http-workers``) to what was typed, for those that were.
    :param unknown_flags: flags that are no settings; each is a problem like any other.
    :param readable: whether a file exists and may be read; decides about the system's database.

    :raises SettingsRefused: with all problem lines; ``usage`` is true when what was typed is at fault.
    """
    reader = Reader(environ, readable)
    reader.take_flags(flags, unknown_flags)
    reader.take_environment()
    reader.take_file()
    reader.check_listening()
    database, token = reader.database(), reader.token()
    reader.check_outbox(database)
    reader.check_webhook()
    values: dict[str, object] = {}
    for setting in SETTINGS:
        if setting.name not in ("config", "db", "token-file"):
            value = reader.value(setting.name)
            if value is not None:
                values[setting.attribute] = value
    if reader.problems or database is None or token is None:
        raise reader.refusal()
    values["notices"] = reader.notices
    settings = Settings(database, token, **values)  # type: ignore[arg-type]  # the table's parsers give the types
    if heard_beyond_loopback(settings):
        reader.warnings.append(WARNING)
    return settings, tuple(reader.warnings)
