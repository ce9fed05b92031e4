"""
``telegrammer check``: can this configuration run?  One line for each thing that can be wrong (contract 1.1).

Nothing is created, migrated or written; Telegram is asked two read-only questions.
"""

from __future__ import annotations

import argparse
import os
import socket
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

from attrs import frozen
from twisted.internet.defer import Deferred

from telegrammer.config import Settings, database_path, load
from telegrammer.core.problems import SettingsRefused, StartRefused
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
from telegrammer.daemon import refusal, the_reactor
from telegrammer.logs import escaped
from telegrammer.store.engine import snapshot, translate
from telegrammer.store.layout import Absent, Layout, Legacy, Ours, look, recognise
from telegrammer.store.lock import held_by_another
from telegrammer.store.migrations import LATEST
from telegrammer.store.recovery import violations

PROBE_SECONDS = 2.0
"""How long the process that has our port is listened to."""


@frozen
class Finding:
    """One line: the verdict on one thing, and why."""

    verdict: Literal["ok", "FAIL", "skip"]
    name: str
    detail: str

    def __str__(self) -> str:
        return f"{self.verdict:<4} {self.name}: {escaped(self.detail, 1000)}"


class Questions(Protocol):
    """The two questions that change nothing; part of ``ports.TelegramApi``."""

    def get_me(self) -> Awaitable[IdentityOutcome]: ...

    def get_webhook_info(self) -> Awaitable[WebhookOutcome]: ...


def check(arguments: argparse.Namespace) -> int:
    """
    Print the findings as they come.

    :returns: 1 if anything failed, else 0; 2 when a flag is at fault.
    """
    settings: Settings | None = None
    refused: SettingsRefused | None = None
    warnings: tuple[str, ...] = ()
    try:
        settings, warnings = load(arguments.flags, os.environ, unknown_flags=arguments.unknown)
    except SettingsRefused as error:
        refused = error
    failed = False
    for finding in _findings(arguments, settings, warnings, refused):
        print(finding, flush=True)
        failed = failed or finding.verdict == "FAIL"
    if refused is not None and refused.usage:
        return 2
    return 1 if failed else 0


def _findings(
    arguments: argparse.Namespace,
    settings: Settings | None,
    warnings: tuple[str, ...],
    refused: SettingsRefused | None,
) -> Iterator[Finding]:
    if settings is not None:
        yield Finding("ok", "settings", "; ".join(warnings) or "complete")
        db = settings.db
    else:
        yield from (Finding("FAIL", "settings", line) for line in (refused.problems if refused else ()))
        try:
            db = database_path(arguments.flags, os.environ)
        except SettingsRefused:
            yield from _skipped("state directory", "database", "lock", "port", "getMe", "getWebhookInfo")
            return
    yield state_directory(db)
    database, bound = database_findings(db, settings)
    yield database
    lock, held = lock_findings(db)
    yield lock
    if settings is None:
        yield from _skipped("port", "getMe", "getWebhookInfo")
        return
    yield port_finding(settings, held)
    yield from _ask_telegram(settings, bound)


def _skipped(*names: str, first: str = "the settings") -> list[Finding]:
    return [Finding("skip", name, f"{first} must be right first") for name in names]


# -- this machine -------------------------------------------------------------------------------------


def state_directory(db: Path) -> Finding:
    """Is the database's directory there and writable, or could it be made?"""
    directory = db.parent
    if directory.is_dir():
        usable = os.access(directory, os.R_OK | os.W_OK | os.X_OK)
        return _finding(usable, "state directory", f"{directory}{'' if usable else ' cannot be written'}")
    nearest = next(parent for parent in directory.parents if parent.exists())
    usable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK) and not os.path.lexists(directory)
    detail = "is not there yet; serve makes it" if usable else "is not there and cannot be made"
    return _finding(usable, "state directory", f"{directory} {detail}")


def database_findings(db: Path, settings: Settings | None) -> tuple[Finding, int | None]:
    """Would the daemon take this database?  And the bot it is bound to, if any."""
    try:
        layout = recognise(db)
        broken: list[str] = []
        if isinstance(layout, Ours) and layout.version == LATEST:
            with look(db) as connection, snapshot(connection) as cursor:
                broken = violations(cursor)
        detail, bound = _described(layout)
    except (StartRefused, sqlite3.Error, OSError) as error:
        return Finding("FAIL", "database", refusal(translate(error) or error) or "cannot be read"), None
    if isinstance(layout, Ours | Legacy) and not os.access(db, os.R_OK | os.W_OK):
        return Finding("FAIL", "database", f"{db} cannot be written"), bound
    if settings is not None and bound not in (None, settings.token.bot_id):
        detail = f"{db} belongs to bot {bound}, the token to bot {settings.token.bot_id}"
        return Finding("FAIL", "database", detail), bound
    if broken:
        # The daemon makes the lanes anew from the jobs when it starts.
        detail += "; to be mended at the next start: " + ", ".join(broken)
    return Finding("skip" if isinstance(layout, Absent) else "ok", "database", f"{db} {detail}"), bound


def _described(layout: Layout) -> tuple[str, int | None]:
    match layout:
        case Absent():
            return "is not there yet; serve makes it", None
        case Legacy():
            return "is the C++ program's; serve makes a backup and migrates it", None
        case Ours(version=version, bot_id=bot_id):
            whose = f"bot {bot_id}" if bot_id is not None else "no bot yet"
            todo = "" if version == LATEST else f"; serve makes a backup and migrates it to {LATEST}"
            return f"has version {version} and belongs to {whose}{todo}", bot_id


def lock_findings(db: Path) -> tuple[Finding, bool]:
    """Is the lock free, or held by our daemon?  And whether it is held."""
    try:
        held = held_by_another(db)
    except StartRefused as error:
        return Finding("FAIL", "lock", str(error)), False
    return Finding("ok", "lock", "held by the running daemon" if held else "free"), held


def port_finding(settings: Settings, lock_held: bool) -> Finding:
    """Can the address be listened on, or does our own daemon do so already?"""
    if settings.listen:
        return Finding("skip", "port", "endpoints are opened by the daemon only")
    host, port = settings.host, settings.port
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError:
        return Finding("FAIL", "port", f"{where}: the host is not known")
    try:
        with socket.socket(address[0], socket.SOCK_STREAM) as probe:
            # As the daemon does: the leavings of closed connections are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[4])
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else "not possible"
        if lock_held and _answers_as_ours(address[0], address[4]):
            return Finding("ok", "port", f"{where} is held by the running daemon")
        return Finding("FAIL", "port", f"{where}: {why}")
    return Finding("ok", "port", f"{where} is free" if port else "any free one")


def _answers_as_ours(family: int, address: Any) -> bool:
    """Whether who listens there refuses a request without a key the way the gateway does."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as wire:
            wire.settimeout(PROBE_SECONDS)
            wire.connect(address)
            wire.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b""
            while len(answer) < 4096 and b"}" not in answer and (data := wire.recv(4096)):
                answer += data
    except OSError:
        return False
    return answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 503 ")) and b'"ok":false' in answer.replace(
        b" ", b""
    )


# -- Telegram -----------------------------------------------------------------------------------------


async def telegram_findings(api: Questions, settings: Settings, bound: int | None) -> list[Finding]:
    """What Telegram says of the token and of a webhook that would keep polling from working."""
    me = await api.get_me()
    if not isinstance(me, Identity):
        return [Finding("FAIL", "getMe", _why(me)), *_skipped("getWebhookInfo", first="getMe")]
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


def _ask_telegram(settings: Settings, bound: int | None) -> list[Finding]:
    """One run of the reactor.  What is imported here picks the reactor, so it is imported here."""
    from telegrammer.ingest.bot_api import BotApi
    from telegrammer.outbound.exchange import api_exchange
    from telegrammer.outbound.resolver import ThreadedResolver, reactor_with_resolver
    from telegrammer.outbound.tls import policy_for_https

    try:
        policy = policy_for_https(settings.ca_file)
    except StartRefused as error:
        return [Finding("FAIL", "settings", str(error)), *_skipped("getMe", "getWebhookInfo")]
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

    _run(reactor, ask)
    return findings


def _run(reactor: Any, work: Callable[[], Awaitable[None]]) -> None:
    """Run the reactor until the work is done; its failure is raised here, an interrupt too."""
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

    def stopping() -> None:
        # Not by us: a signal.  What is under way now ends with a lost connection.
        if not done:
            interrupted.append(True)

    interrupted: list[bool] = []
    reactor.addSystemEventTrigger("before", "shutdown", stopping)
    reactor.callWhenRunning(lambda: running.append(Deferred.fromCoroutine(whole())))
    reactor.run()
    if interrupted:
        raise KeyboardInterrupt
    if failures:
        raise failures[0]


def _finding(good: bool, name: str, detail: str) -> Finding:
    return Finding("ok" if good else "FAIL", name, detail)
