"""Who can hear the HTTP API: is it listened on beyond loopback without TLS? (contract 1.2)"""

from __future__ import annotations

import re

from telegrammer.config.parsers import is_loopback
from telegrammer.config.values import Settings

WARNING = (
    "listening beyond loopback without TLS: keys and messages can be read on the way; "
    "put a proxy with TLS in front, or listen on 127.0.0.1"
)


def heard_beyond_loopback(settings: Settings) -> bool:
    """Whether a plain TCP port is open to more than this machine, as far as the settings tell."""
    webhook = settings.webhook_listen if settings.ingest == "webhook" else None
    if webhook is not None and _plain_and_open(webhook):
        return True
    if not settings.listen:
        return not is_loopback(settings.host)
    return any(_plain_and_open(endpoint) for endpoint in settings.listen)


def _plain_and_open(endpoint: str) -> bool:
    """Of an endpoint string; sockets that systemd hands over are its own business."""
    kind, *parts = re.split(r"(?<!\\):", endpoint)
    if kind not in ("tcp", "tcp4", "tcp6"):
        return False
    for part in parts:
        name, equals, value = part.partition("=")
        if equals and name == "interface":
            return not is_loopback(value.replace("\\", ""))
    return len(parts) < 2 or "=" in parts[1] or not is_loopback(parts[1].replace("\\", ""))
