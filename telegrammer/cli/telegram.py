"""What Telegram says to a command, in one run of the reactor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from telegrammer.cli.findings import Finding, skipped
from telegrammer.config import Settings, Token
from telegrammer.core.notice_texts import moment
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
from telegrammer.core.webhook import same_url
from telegrammer.daemon import the_reactor

if TYPE_CHECKING:
    from telegrammer.ingest.bot_api import BotApi

T = TypeVar("T")


class Questions(Protocol):
    """The two questions that change nothing; part of ``ports.TelegramApi``."""

    def get_me(self) -> Awaitable[IdentityOutcome]: ...

    def get_webhook_info(self) -> Awaitable[WebhookOutcome]: ...


async def telegram_findings(api: Questions, settings: Settings, bound: int | None) -> list[Finding]:
    """What Telegram says of the token, and of the webhook: ours, or one that keeps polling from working."""
    me = await api.get_me()
    if not isinstance(me, Identity):
        return [Finding("FAIL", "getMe", why(me)), *skipped("getWebhookInfo", first="getMe")]
    expected = bound if bound is not None else settings.token.bot_id
    name = "" if me.username is None else f"@{me.username}, "
    if me.bot_id != expected:
        first = Finding("FAIL", "getMe", f"{name}id {me.bot_id}, where bot {expected} was expected")
    else:
        first = Finding("ok", "getMe", f"{name}id {me.bot_id}")
    webhook = await api.get_webhook_info()
    if not isinstance(webhook, WebhookInfo):
        return [first, Finding("FAIL", "getWebhookInfo", why(webhook))]
    if settings.ingest == "webhook":
        return [first, Finding("ok", "getWebhookInfo", _for_pushing(webhook, settings.webhook_url or ""))]
    if webhook.host is not None:
        detail = (
            f"a webhook is set, at {webhook.host}: Telegram refuses polling until it is deleted; "
            "telegrammer delete-webhook does so"
        )
        return [first, Finding("FAIL", "getWebhookInfo", detail)]
    return [first, Finding("ok", "getWebhookInfo", f"no webhook; {webhook.pending_update_count} waiting")]


def _for_pushing(webhook: WebhookInfo, url: str) -> str:
    """Whatever is set, serve sets ours; so nothing here keeps it from running."""
    waiting = f"{webhook.pending_update_count} waiting"
    if webhook.host is None:
        return f"none is set; serve sets it; {waiting}"
    if not same_url(webhook.url, url):
        return f"another one is set, at {webhook.host}; serve puts ours in its place; {waiting}"
    if webhook.last_error is None and webhook.last_error_at is None:
        return f"ours is set, at {webhook.host}; {waiting}"
    at = "" if webhook.last_error_at is None else f", at {moment(webhook.last_error_at)}"
    return (
        f"ours is set, at {webhook.host}; {waiting}; what Telegram last complained of{at}: "
        f"{webhook.last_error or 'it does not say'}"
    )


def why(outcome: Refused) -> str:
    """A refusal in a few words."""
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
    """The findings, from Telegram itself."""

    async def findings(api: BotApi) -> list[Finding]:
        return await telegram_findings(api, settings, bound)

    try:
        return ask(settings.token, settings.api_url, settings.ca_file, findings)
    except StartRefused as error:
        return [Finding("FAIL", "settings", str(error)), *skipped("getMe", "getWebhookInfo")]


def ask(token: Token, api_url: str, ca_file: Path | None, question: Callable[[BotApi], Awaitable[T]]) -> T:
    """
    What comes of a question to the Bot API; one run of the reactor.

    :raises StartRefused: ``ca_file`` is of no use.
    """
    # What is imported here picks the reactor, so it is imported here.
    from telegrammer.ingest.bot_api import BotApi
    from telegrammer.outbound.exchange import api_exchange
    from telegrammer.outbound.resolver import ThreadedResolver, reactor_with_resolver
    from telegrammer.outbound.tls import policy_for_https

    policy = policy_for_https(ca_file)
    reactor = the_reactor()
    resolver = ThreadedResolver(reactor, reactor)
    exchange = api_exchange(reactor_with_resolver(reactor, reactor, resolver), policy)
    api = BotApi(token, api_url, exchange, exchange)
    answers: list[T] = []

    async def work() -> None:
        try:
            answers.append(await question(api))
        finally:
            resolver.stop()

    run_reactor(reactor, work)
    return answers[0]


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
