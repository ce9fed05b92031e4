"""The one table of settings: flags, variables, TOML names, help and documentation are made from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from attrs import frozen

from telegrammer.config import parsers
from telegrammer.core.retry import parse_schedule

Kind = Literal["text", "number", "duration", "list"]
"""
What TOML may give: a string; an integer; an integer (seconds) or a string; a string or a list of strings.
"""


@frozen
class Setting:
    """One setting.  ``name`` is the flag without its dashes and the name in TOML."""

    name: str
    parse: Callable[[str], object]
    """Text to value; raises ``ValueError`` with the rule."""
    metavar: str
    default: str
    """As shown to people; the values themselves are the defaults of ``Settings``."""
    help: str
    kind: Kind = "text"
    in_file: bool = True
    """Whether the TOML file may hold it."""

    @property
    def attribute(self) -> str:
        """Its name in ``Settings``."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "TELEGRAMMER_" + self.attribute.upper()


TOKEN_VARIABLE = "TELEGRAMMER_TOKEN"


def _number(name: str, least: int, most: int, default: int, help: str) -> Setting:
    rule = f"{help}; {least} to {most}"
    return Setting(name, parsers.whole_number(least, most), "N", str(default), rule, kind="number")


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "config",
        parsers.path,
        "FILE",
        "none",
        "TOML file of settings, by these names; flags and environment win over it",
        in_file=False,
    ),
    Setting(
        "db",
        parsers.path,
        "PATH",
        "$STATE_DIRECTORY/telegrammer.db, else /var/lib/telegrammer/telegrammer.db if readable, "
        "else $XDG_STATE_HOME/telegrammer/telegrammer.db (~/.local/state)",
        "database file; its directory is made when missing",
    ),
    Setting(
        "token-file",
        parsers.path,
        "PATH",
        "$CREDENTIALS_DIRECTORY/telegram-token if it exists",
        "file with the bot token; the variable TELEGRAMMER_TOKEN takes the token itself",
    ),
    Setting("host", parsers.host, "HOST", "127.0.0.1", "address to listen on"),
    Setting(
        "port",
        parsers.whole_number(0, 65_535),
        "N",
        "8080",
        "port to listen on; 0 picks a free one",
        kind="number",
    ),
    Setting(
        "listen",
        parsers.endpoint,
        "ENDPOINT",
        "none",
        "Twisted server endpoint (unix:, systemd:, ssl: ...) in place of host and port; repeatable",
        kind="list",
    ),
    Setting(
        "api-url",
        parsers.api_url,
        "URL",
        "https://api.telegram.org",
        "Bot API server: https anywhere, plain http only to a loopback address",
    ),
    Setting(
        "ca-file",
        parsers.certificates,
        "PATH",
        "system trust store, SSL_CERT_FILE",
        "certificates of a private authority, for the Bot API and callbacks alike",
    ),
    _number("http-workers", 1, 1024, 8, "requests being worked on at once"),
    _number("http-queue", 0, 65_536, 64, "requests waiting for a worker"),
    _number(
        "max-connections", 1, 65_536, 256, "open connections, of each listener that has callers of its own"
    ),
    _number("delivery-workers", 1, 256, 4, "callbacks in flight at once"),
    _number("max-jobs", 1, 100_000_000, 100_000, "jobs in the queue, dead ones included"),
    _number("max-subscriptions", 1, 1_000_000, 1000, "subscriptions in all"),
    _number("max-subscriptions-per-key", 1, 1_000_000, 100, "subscriptions of one key"),
    _number("max-dead-per-key", 1, 100_000_000, 10_000, "dead jobs kept for one key"),
    Setting(
        "dead-retention",
        parsers.duration(1, 3650 * 86_400),
        "TIME",
        "7d",
        "how long dead jobs are kept; 1s to 3650d",
        kind="duration",
    ),
    Setting(
        "retry-schedule",
        parse_schedule,
        "WAITS",
        "1s,2s,4s,8s,16s,32s,64s",
        "waits between the attempts of a callback, or the word patient; at most 400, 24h in all",
    ),
    Setting(
        "durability",
        parsers.choice("normal", "full"),
        "WORD",
        "normal",
        "normal, or full: power loss too loses nothing committed",
    ),
    Setting(
        "ingest",
        parsers.choice("poll", "webhook"),
        "WORD",
        "poll",
        "where updates come from: poll asks Telegram, webhook has Telegram push them",
    ),
    Setting(
        "webhook-url",
        parsers.webhook_url,
        "URL",
        "none",
        "where Telegram pushes, with ingest webhook: https anywhere, plain http only to a loopback address; "
        "without a path, /telegram/webhook is added",
    ),
    Setting(
        "webhook-listen",
        parsers.endpoint,
        "ENDPOINT",
        "the main listener",
        "Twisted server endpoint for Telegram alone, so that the API need not be where Telegram can reach it",
    ),
    Setting(
        "journal-retention",
        parsers.duration(1, 3650 * 86_400),
        "TIME",
        "7d",
        "how long the raw text of pushed updates is kept once they are folded; 1s to 3650d",
        kind="duration",
    ),
    Setting(
        "fold-timeout",
        parsers.duration(1, 3600),
        "TIME",
        "10s",
        "how long folding one pushed update may wait for the database before it is put off; 1s to 1h",
        kind="duration",
    ),
    Setting(
        "on-malformed",
        parsers.choice("hold", "quarantine"),
        "WORD",
        "hold",
        "polled updates that are malformed: hold (what follows waits, see skip-update), or quarantine (put "
        "aside in the journal, see replay)",
    ),
    Setting("log-format", parsers.choice("text", "json"), "WORD", "text", "text, or json: one object a line"),
    Setting(
        "shutdown-timeout",
        parsers.duration(1, 3600),
        "TIME",
        "50s",
        "how long a stop may take; 1s to 1h",
        kind="duration",
    ),
)

BY_NAME = {setting.name: setting for setting in SETTINGS}
