"""The database as the daemon found it when it opened it, for all who are built before (contract 1.3)."""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_urlsafe

from attrs import define, field
from twisted.logger import Logger

from telegrammer.config import Settings
from telegrammer.core.telegram import Identity
from telegrammer.ports import Now
from telegrammer.store.migrate import backups
from telegrammer.store.opening import open_state

log = Logger()


@define(eq=False)
class State:
    """What the opening of the database found."""

    settings: Settings
    now: Now
    keep_secret: Callable[[str], None]
    bound: Identity | None = field(default=None, init=False)
    """The bot the database belongs to, until ``getMe`` tells more."""
    backups: tuple[str, ...] = field(default=(), init=False)
    """Names of the backups that migrations, of whatever process, have left beside the database."""
    webhook_secret: str | None = field(default=None, init=False, repr=False)
    """What Telegram has to show when it pushes; None before the opening, and when it is polled."""

    def open(self) -> None:
        opened = open_state(
            self.settings.db,
            bot_digits=self.settings.token.bot_id,
            durability=self.settings.durability,
            now=self.now,
            fresh_secret=token_urlsafe(32) if self.settings.ingest == "webhook" else None,
        )
        self.webhook_secret = opened.webhook_secret
        if opened.webhook_secret is not None:
            self.keep_secret(opened.webhook_secret)
        self.bound = None if opened.bot_id is None else Identity(opened.bot_id)
        self.backups = tuple(backup.name for backup in backups(self.settings.db))
        if opened.created:
            log.info("new database {path}", path=str(self.settings.db))
        if opened.recovered.requeued:
            log.info("{count} deliveries were in flight and go again", count=opened.recovered.requeued)
        if opened.recovered.rebuilt:
            log.warn("the lanes contradicted the queue and were made anew")
