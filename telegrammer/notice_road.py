"""
The road of a notice from its settings: the outbox it waits in, the transport that carries it (contract 7.4).

The daemon and ``notify-test`` go the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from attrs import frozen

from telegrammer.config import NoticeSettings
from telegrammer.core.messages import Credentials
from telegrammer.core.problems import DirectiveRefused, StartRefused
from telegrammer.messaging.email import EmailConfig, EmailProvider
from telegrammer.messaging.file import FileConfig, FileProvider
from telegrammer.messaging.outbox import Outbox
from telegrammer.messaging.sqlite_config import SQLiteMessagingConfig
from telegrammer.notices.handle import OpenOutbox
from telegrammer.outbound.resolver import ThreadedResolver
from telegrammer.outbound.tls import policy_for_https
from telegrammer.ports import Mailer, Now

NAME = "notices"
"""Of the transport."""
PATIENCE = 2.0
"""Seconds that an operation waits for the outbox's file."""


@frozen
class Road:
    """What a notice needs on its way; nothing is opened yet."""

    open: Callable[[], Awaitable[OpenOutbox]]
    """Opens the outbox, which is made when missing."""
    mailer: Mailer
    credentials: Credentials | None
    outbox: Path
    """Where the outbox is."""


def queue_of(bot_id: int) -> str:
    """
    The daemon's queue in the outbox.

    Daemons of several bots may share the file: what the one has told is no news of the other.
    """
    return f"notices-{bot_id}"


def road(
    settings: NoticeSettings,
    db: Path,
    ca_file: Path | None,
    reactor: Any,
    resolver: ThreadedResolver,
    now: Now,
    queue: str,
) -> Road:
    """
    The road that the settings describe.

    :param db: the database; the outbox lies beside it where nothing else is said.
    :param ca_file: certificates that are trusted besides the system's.
    :param resolver: looks up the mail server; the caller stops it.
    :param queue: of the outbox.
    :raises StartRefused: a setting, or ``ca_file``, is of no use.
    """
    place = settings.outbox_beside(db)
    try:
        config = SQLiteMessagingConfig(queue, place, PATIENCE)
        mailer = _mailer(settings, ca_file, reactor, resolver, now)
    except DirectiveRefused as refused:
        raise StartRefused(f"notices: {refused}") from None
    credentials = None
    if settings.username is not None and settings.password is not None:
        credentials = Credentials(settings.username, settings.password)
    return Road(lambda: Outbox.open(config, reactor=reactor, now=now), mailer, credentials, place)


def _mailer(
    settings: NoticeSettings, ca_file: Path | None, reactor: Any, resolver: ThreadedResolver, now: Now
) -> Mailer:
    if settings.transport == "file":
        assert settings.spool is not None
        spool = FileConfig(name=NAME, path=settings.spool, sender=settings.sender, body_format="text")
        return FileProvider(spool, reactor, now=now)
    mail = EmailConfig(
        name=NAME,
        transport=settings.transport,
        host=settings.host,
        port=settings.port,
        sender=settings.sender,
        username=settings.username,
        body_format="text",
    )
    return EmailProvider(mail, reactor, resolver=resolver, trust=policy_for_https(ca_file), now=now)


def carried_by(settings: NoticeSettings) -> str:
    """The transport and where it leads, for a line."""
    if settings.transport == "file":
        return f"file, to {settings.spool}"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{settings.transport}, to {host}:{settings.port}"
