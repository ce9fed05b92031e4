"""The doors of the daemon: which listeners there are, and what is behind each (contract 1.2, 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from telegrammer.config import Settings
from telegrammer.web.limits import RequestLimits
from telegrammer.web.listening import Ports, tcp_endpoint
from telegrammer.web.screen import Area
from telegrammer.web.site import GatewaySite


def doors_of(settings: Settings, api: Area, pushed: Area | None, reactor: Any) -> dict[str, Ports]:
    """
    The listeners by the names of their services, in the order of their start: the API's first.

    :param pushed: what Telegram pushes to, if it does: behind the API's door, or one that leads nowhere else.
    """
    limits = RequestLimits(settings.http_workers, settings.http_queue, settings.max_connections)

    def door(endpoints: Sequence[str], areas: list[Area], what: str) -> Ports:
        return Ports(endpoints, GatewaySite(areas, reactor, limits), reactor, what)

    endpoints = settings.listen or (tcp_endpoint(settings.host, settings.port, settings.max_connections),)
    if pushed is None:
        return {"ports": door(endpoints, [api], "listening")}
    if settings.webhook_listen is None:
        return {"ports": door(endpoints, [api, pushed], "listening")}
    return {
        "ports": door(endpoints, [api], "listening"),
        "webhook ports": door([settings.webhook_listen], [pushed], "webhook listening"),
    }
