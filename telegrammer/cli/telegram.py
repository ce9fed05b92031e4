"""What does Telegram say of the token?  Two read-only questions, in one run of the reactor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from telegrammer.cli.findings import Finding, skipped
from telegrammer.config import Settings
from telegrammer.core.problems import StartRefused
from telegrammer.core.telegram import (
    BadCredentials,
    Conflict,
    Identity,
    IdentityOutcome,
    NetworkFailure,
    RateLimited,
    Refused,
    UpstreamFailure,
    WebhookInfo,
    WebhookOutcome,
)
from telegrammer.daemon import the_reactor


class Questions(Protocol):
    """The two questions that change nothing; part of ``ports.TelegramApi``."""

    def get_me(self) -> Awaitable[IdentityOutcome]: ...

    def get_webhook_info(self) -> Awaitable[WebhookOutcome]: ...


async def telegram_findings(api: Questions, settings: Settings, bound: int | None) -> list[Finding]:
    """What Telegram says of the token and of a webhook that would keep polling from working."""
    me = await api.get_me()
    if not isinstance(me, Identity):
        return [Finding("FAIL", "getMe", _why(me)), *skipped("getWebhookInfo", first="getMe")]
    expected = bound if bound is not None else settings.token.bot_id
    name = "" if me.username is None else f"@{me.username}, "
    if me.bot_id != expected:
        first = Finding("FAIL", "getMe", f"{name}id {me.bot_id}, where bot {expected} was expected")
    else:
        first = Finding("ok", "getMe", f"{name}id {me.bot_id}")
    webhook = await api.get_webhook_info()
    if not isinstance(webhook, WebhookInfo):
        return [first, Finding("FAIL", "getWebhookInfo", _why(webhook))]
    if webhook.host is not None:
        detail = f"a webhook is set, at {webhook.host}: Telegram refuses polling until it is deleted"
        return [first, Finding("FAIL", "getWebhookInfo", detail)]
    return [first, Finding("ok", "getWebhookInfo", f"no webhook; {webhook.pending_update_count} waiting")]


def _why(outcome: Refused) -> str:
    match outcome:
        case NetworkFailure(why) | UpstreamFailure(why):
            return why
        case RateLimited(retry_after):
            return "rate limited" + (f", again after {retry_after} s" if retry_after else "")
        case BadCredentials(status):
            return f"the token is not accepted (HTTP {status})"
        case Conflict():
            return "another process polls this bot, or a webhook is set (HTTP 409)"


def ask_telegram(settings: Settings, bound: int | None) -> list[Finding]:
    """One run of the reactor.  What is imported here picks the reactor, so it is imported here."""
    from telegrammer.ingest.bot_api import BotApi
    from telegrammer.outbound.exchange import api_exchange
    from telegrammer.outbound.resolver import ThreadedResolver, reactor_with_resolver
    from telegrammer.outbound.tls import policy_for_https

    try:
        policy = policy_for_https(settings.ca_file)
    except StartRefused as error:
        return [Finding("FAIL", "settings", str(error)), *skipped("getMe", "getWebhookInfo")]
    reactor = the_reactor()
    resolver = ThreadedResolver(reactor, reactor)
    exchange = api_exchange(reactor_with_resolver(reactor, reactor, resolver), policy)
    api = BotApi(settings.token, settings.api_url, exchange, exchange)
    findings: list[Finding] = []

    async def ask() -> None:
        try:
            findings.extend(await telegram_findings(api, settings, bound))
        finally:
            resolver.stop()

    run_reactor(reactor, ask)
    return findings


def run_reactor(reactor: Any, work: Callable[[], Awaitable[None]]) -> None:
    """
    Run the reactor until the work is done; its failure is raised here, an interrupt too.

    An interrupt cancels the work, and waits for what that does about it.
    """
    failures: list[Exception] = []
    done: list[bool] = []
    running: list[Deferred[None]] = []

    async def whole() -> None:
        try:
            await work()
        except Exception as error:
            failures.append(error)
        if not interrupted:
            done.append(True)
            reactor.stop()

    def stopping() -> Deferred[None] | None:
        if done:
            return None
        # Not by us: a signal.
        interrupted.append(True)
        for each in running:
            each.cancel()
            # An aborted connection is closed in the next round of the reactor.
            return each.addCallback(lambda _: deferLater(reactor, 0))
        return None

    interrupted: list[bool] = []
    reactor.addSystemEventTrigger("before", "shutdown", stopping)
    reactor.callWhenRunning(lambda: running.append(Deferred.fromCoroutine(whole())))
    reactor.run()
    if interrupted:
        raise KeyboardInterrupt
    if failures:
        raise failures[0]
