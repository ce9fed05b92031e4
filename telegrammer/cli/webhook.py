"""
``telegrammer delete-webhook``: have Telegram push no more (contract 8).

What waits at Telegram stays there.  A daemon that runs says so in its health; none is asked, and no database.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable
from typing import Protocol

from telegrammer.cli.telegram import ask, why
from telegrammer.config import telegram_for_command
from telegrammer.core.notice_texts import counted
from telegrammer.core.problems import TelegrammerError
from telegrammer.core.telegram import Done, Rejected, SettingOutcome, WebhookInfo, WebhookOutcome


class NotDeleted(TelegrammerError):
    """Telegram did not do it, or could not be asked; ``telegrammer check`` tells whether one is set."""


class Webhooks(Protocol):
    """What is asked; part of ``ports.TelegramApi``."""

    def get_webhook_info(self) -> Awaitable[WebhookOutcome]: ...

    def delete_webhook(self) -> Awaitable[SettingOutcome]: ...


def delete_webhook(arguments: argparse.Namespace) -> int:
    """
    Delete it, and print whose it was.

    :raises NotDeleted: with Telegram's reason.
    :raises SettingsRefused: token, URL or certificates are at fault.
    """
    token, api_url, ca_file = telegram_for_command(arguments.flags, os.environ)
    print(ask(token, api_url, ca_file, deleted))
    return 0


async def deleted(api: Webhooks) -> str:
    """What became of it, in one line; the URL's path and query are nobody's business."""
    # For the words alone: it is deleted whatever the answer.
    info = await api.get_webhook_info()
    outcome = await api.delete_webhook()
    if isinstance(outcome, Rejected):
        raise NotDeleted(
            f"Telegram did not delete the webhook: {outcome.description or 'it does not say why'}"
        )
    if not isinstance(outcome, Done):
        raise NotDeleted(f"the webhook may not be deleted: {why(outcome)}")
    if not isinstance(info, WebhookInfo):
        return f"webhook deleted; what it was could not be learned: {why(info)}"
    if info.host is None:
        return "no webhook is set"
    waiting = counted(info.pending_update_count, "update waits", "updates wait")
    return f"webhook at {info.host} deleted; {waiting} at Telegram"
