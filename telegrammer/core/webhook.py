"""
What the keeper of the webhook does next, as one function of frozen values (contract 8).

The webhook is set once, at the start, because the operator chose so; then Telegram is asked now and then
whether it still has it and can deliver.  That question is what proves that updates can come: silence is no
failure, and being alive no success.  Whoever sets another webhook, or deletes ours, is not fought.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from attrs import evolve, frozen

from telegrammer.core.standing import (
    Identified,
    Standing,
    Trouble,
    after_trouble,
    backing_off,
    doubling,
    suspended,
)
from telegrammer.core.telegram import BadCredentials, Conflict, Rejected, WebhookInfo

CHECK_SECONDS: Final = 60.0
"""From one look at a webhook that is set to the next."""

SOON: Final = 3.0
"""
From the first look, which only learns what was before, to the second: by then Telegram has tried to push what
it has, and whoever just wrote ``--webhook-url`` wants to hear if it cannot.
"""

# -- what happened ------------------------------------------------------------------------------------


@frozen
class WebhookSet:
    """Telegram has our URL, secret and wishes."""


@frozen
class Delivering:
    """Telegram has our webhook, and nothing new to complain of."""

    complaint_at: int
    """When it last had something (Unix seconds by its own clock); 0: never."""


@frozen
class Undelivered:
    """Updates wait at Telegram, and since we last heard of success it could not push one."""

    why: str
    """Telegram's words, sanitised."""


@frozen
class Elsewhere:
    """Another webhook is set, or none any more."""

    host: str | None
    """None: there is none."""


Event = Identified | WebhookSet | Rejected | Delivering | Undelivered | Elsewhere | Conflict | Trouble

# -- where that leaves us -----------------------------------------------------------------------------


@frozen
class KeeperState(Standing):
    """Where the keeping of the webhook stands between two requests."""

    is_set: bool = False
    """Telegram took it, since our start."""
    complaint_at: int | None = None
    """Telegram's last complaint that is over, by its own clock; None: not looked at yet."""
    undelivered: bool = False
    """What we back off from is that Telegram cannot push."""
    refused_check: int | None = None
    """The status with which a look at the webhook was refused, until ``getMe`` has confirmed that."""


def after_step(event: Event, before: KeeperState, jitter: float) -> tuple[KeeperState, float]:
    """
    The state after an event, and the seconds to rest before the next request.

    :param jitter: in [0, 1), for the waits that have one.
    """
    match event:
        case Identified():
            return _identified(before, jitter)
        case WebhookSet():
            # Looked at without a rest: what Telegram complains of by now is of the time before.
            return KeeperState(ask="check", state="listening", is_set=True), 0.0
        case Delivering(complaint_at=complaint_at):
            rest = SOON if before.complaint_at is None else CHECK_SECONDS
            return _listening(complaint_at), rest
        case Undelivered():
            return evolve(backing_off(before, "network"), undelivered=True), CHECK_SECONDS
        case Elsewhere():
            return evolve(suspended(before, "conflict_webhook"), undelivered=False), CHECK_SECONDS
        case BadCredentials(status=status) if before.ask == "check":
            # A server that lacks the method says the same as one that has revoked the token.
            return evolve(before, ask="identity", refused_check=status), 0.0
        case BadCredentials():
            confirmed = evolve(before, undelivered=False, refused_check=None)
            return after_trouble(event, confirmed, jitter)
        case Rejected() | Conflict():
            return doubling(evolve(before, undelivered=False), "upstream", jitter)
        case _:
            return after_trouble(event, evolve(before, undelivered=False), jitter)


def _listening(complaint_at: int | None) -> KeeperState:
    return KeeperState(ask="check", state="listening", is_set=True, complaint_at=complaint_at)


def _identified(before: KeeperState, jitter: float) -> tuple[KeeperState, float]:
    if not before.is_set:
        return evolve(before, ask="webhook"), 0.0
    looks_again = evolve(before, ask="check", refused_check=None)
    if before.refused_check is None:
        return looks_again, 0.0
    if before.refused_check == 404:
        # The token is good, so the server does not know the question.  That it answers is all there is.
        return _listening(before.complaint_at), CHECK_SECONDS
    return doubling(looks_again, "upstream", jitter)


def after_acceptance(before: KeeperState) -> KeeperState:
    """
    The state after an update was accepted: it proves that Telegram calls us, whatever it said of our webhook,
    not that it could be asked, or took the webhook.
    """
    if before.reason == "conflict_webhook":
        return _listening(before.complaint_at)
    if before.state != "backing_off":
        return before
    return _listening(before.complaint_at) if before.undelivered else evolve(before, failures=0)


def judged(info: WebhookInfo, url: str, before: KeeperState, *, accepted: bool) -> Event:
    """
    What Telegram's view of the webhook means.

    A complaint is news when it is younger than the last one we knew to be over: both are of Telegram's clock,
    which need not be ours.  It tries again within two minutes, so a complaint may well be seen twice.

    The first look comes right after ours was set, and only learns what there was to complain of before: an
    answer that knows of another URL by then is older than ours.

    :param url: ours.
    :param accepted: an update has come since the last look.
    """
    complaint_at = info.last_error_at or 0
    if before.complaint_at is None:
        return Delivering(complaint_at)
    if not same_url(info.url, url):
        # Only ours has our secret: a call since the last look is younger than this, or the next look tells.
        return Delivering(before.complaint_at) if accepted else Elsewhere(info.host)
    if complaint_at <= before.complaint_at or accepted or not info.pending_update_count:
        return Delivering(complaint_at)
    return Undelivered(info.last_error or "it does not say why")


def same_url(one: str, other: str) -> bool:
    """Whether both lead to the same place, however they spell host, default port and empty path."""
    return _canonical(one) == _canonical(other)


def _canonical(url: str) -> object:
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
        return parts.scheme, parts.hostname, port, parts.path or "/", parts.query
    except ValueError:
        return url
