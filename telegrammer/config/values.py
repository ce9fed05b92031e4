"""What the daemon was told, as frozen values (contract 1.2)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from attrs import field, frozen

from telegrammer.core.retry import Schedule


@frozen
class Token:
    """The bot's token.  Only ``ingest.bot_api`` asks for its text; it has no ``repr``."""

    text: str = field(repr=False)

    @property
    def bot_id(self) -> int:
        """The digits before the colon: a claim, believed only once ``getMe`` has confirmed it."""
        return int(self.text.partition(":")[0])


MailTransport = Literal["smtp", "starttls", "smtps", "file"]


@frozen(kw_only=True)
class NoticeSettings:
    """The ``[notices]`` table (contract 7.4).  What a transport does not need is empty."""

    transport: MailTransport
    sender: str
    recipients: tuple[str, ...]
    host: str = ""
    port: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    """There is one exactly when there is a username."""
    timeout: float = 30.0
    """Seconds that one delivery may take."""
    spool: Path | None = None
    outbox: Path | None = None
    """None: beside the database."""

    def outbox_beside(self, db: Path) -> Path:
        """Where the outbox is, with a database there."""
        # The directory by its real name: an outbox is reached by no symbolic link.
        return self.outbox or Path(os.path.realpath(db.parent)) / "outbox.db"

    def outbox_is_of(self, db: Path) -> bool:
        """Whether the outbox would be a file of the database: the first made would have the other refused."""
        outbox, database = map(os.path.realpath, (self.outbox_beside(db), db))
        return outbox in {database + suffix for suffix in ("", "-wal", "-shm", "-journal", ".lock")}


@frozen
class Settings:
    """Everything the daemon was told; names are the flags' (contract 1.2).  Durations are seconds."""

    db: Path
    token: Token
    host: str = "127.0.0.1"
    port: int = 8080
    listen: tuple[str, ...] = ()
    """Twisted server endpoint strings in place of host and port."""
    api_url: str = "https://api.telegram.org"
    """Without a trailing slash."""
    ca_file: Path | None = None
    http_workers: int = 8
    http_queue: int = 64
    max_connections: int = 256
    delivery_workers: int = 4
    max_jobs: int = 100_000
    max_subscriptions: int = 1000
    max_subscriptions_per_key: int = 100
    max_dead_per_key: int = 10_000
    dead_retention: int = 7 * 86_400
    retry_schedule: Schedule = Schedule()
    durability: Literal["normal", "full"] = "normal"
    ingest: Literal["poll", "webhook"] = "poll"
    webhook_url: str | None = None
    """Complete; there is one with ``ingest`` ``webhook``."""
    webhook_listen: str | None = None
    """A Twisted server endpoint string; None: the main listener."""
    journal_retention: int = 7 * 86_400
    fold_timeout: float = 10.0
    on_malformed: Literal["hold", "quarantine"] = "hold"
    log_format: Literal["text", "json"] = "text"
    shutdown_timeout: float = 50.0
    notices: NoticeSettings | None = None
    """None: the operator is told of nothing."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must appear in no output."""
        password = None if self.notices is None else self.notices.password
        return (self.token.text, *([] if password is None else [password]))
