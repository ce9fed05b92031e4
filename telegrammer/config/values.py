"""What the daemon was told, as frozen values (contract 1.2)."""

from __future__ import annotations

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
    log_format: Literal["text", "json"] = "text"
    shutdown_timeout: float = 50.0
