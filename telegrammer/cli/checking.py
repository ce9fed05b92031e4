"""
``telegrammer check``: can this configuration run?  One line for each thing that can be wrong (contract 1.1).

Nothing is created, migrated or written; Telegram is asked two read-only questions.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from telegrammer.cli.findings import Finding, skipped
from telegrammer.cli.machine import (
    database_findings,
    lock_findings,
    notices_finding,
    port_finding,
    state_directory,
)
from telegrammer.cli.telegram import ask_telegram
from telegrammer.config import Settings, database_path, load
from telegrammer.core.problems import SettingsRefused

_LATER = ("port", "getMe", "getWebhookInfo")
"""What cannot be looked at without right settings."""


def check(arguments: argparse.Namespace) -> int:
    """
    Print the findings as they come.

    :returns: 1 if anything failed, else 0; 2 when a flag is unknown.
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
    if arguments.unknown:
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
            yield from skipped(
                "state directory", "database", "lock", "port", "notices", "getMe", "getWebhookInfo"
            )
            return
    yield state_directory(db)
    database, bound = database_findings(db, settings)
    yield database
    lock, held = lock_findings(db)
    yield lock
    if settings is None:
        yield from skipped(*_LATER)
        return
    yield port_finding(settings, held)
    if settings.ingest == "webhook" and settings.webhook_listen is not None:
        yield Finding("skip", "webhook port", "endpoints are opened by the daemon only")
    if settings.notices is not None:
        yield notices_finding(settings.notices, db)
    yield from ask_telegram(settings, bound)
