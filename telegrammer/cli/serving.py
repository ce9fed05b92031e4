"""``telegrammer serve``: the daemon in the foreground, logging to standard error (contract 1.1, 1.3)."""

from __future__ import annotations

import argparse
import os
import sys

from twisted.application.service import IService
from twisted.logger import Logger

from telegrammer.config import Settings, load
from telegrammer.core.problems import StartRefused
from telegrammer.daemon import (
    GRACE,
    REFUSED_GRACE,
    Daemon,
    StopOnce,
    end_within,
    spare_the_collector,
    the_reactor,
)
from telegrammer.logs import Redactor, start_logging

log = Logger()


def serve(arguments: argparse.Namespace) -> int:
    """
    Run until SIGTERM or SIGINT.

    :returns: 0 after a stop in good order, also one that ran out of its budget; 1 when the daemon could not
        start, with the line in its log, and whatever had started is stopped again.
    :raises SettingsRefused: before there is a log.
    """
    settings, warnings = load(arguments.flags, os.environ, unknown_flags=arguments.unknown)
    redact = start_logging(settings.log_format, sys.stderr, settings.secrets)
    return _run(settings, warnings, redact)


def _run(settings: Settings, warnings: tuple[str, ...], redact: Redactor) -> int:
    reactor = the_reactor()
    stop = StopOnce(reactor)
    stop.watch()

    def build() -> IService:
        from telegrammer.app import build

        return build(settings, reactor, redact.learn)

    budget = settings.shutdown_timeout + GRACE
    daemon = Daemon(build, warnings, on_stop=lambda: end_within(budget, lambda: 0))
    try:
        daemon.startService()
    except StartRefused as refused:
        end_within(REFUSED_GRACE, lambda: 1)
        log.critical("cannot start: {reason}", reason=str(refused))
        return 1
    except BaseException:
        end_within(REFUSED_GRACE, lambda: 1)
        log.failure("cannot start")
        return 1
    spare_the_collector()
    reactor.addSystemEventTrigger("before", "shutdown", daemon.stopService)
    reactor.run()
    return 0
