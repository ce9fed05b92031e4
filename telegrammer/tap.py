"""``twistd telegrammer``: its options, made from the table of settings, and the service (contract 1.1)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from attrs import define
from twisted.application.service import IService, Service
from twisted.logger import ILogObserver, Logger
from twisted.python import usage
from twisted.python.logfile import LogFile

from telegrammer import __version__
from telegrammer.config import SETTINGS, Settings, load, separate_unknown
from telegrammer.core.problems import SettingsRefused, StartRefused
from telegrammer.daemon import (
    GRACE,
    REFUSED_GRACE,
    Daemon,
    StopOnce,
    end_within,
    spare_the_collector,
    the_reactor,
)
from telegrammer.logs import LineStream, line_observer, redact_all_logs

log = Logger()


class Options(usage.Options):
    """
    The settings as flags.  Validated when all are read, from every source, with every problem at once.

    ``settings`` and ``warnings`` are there once the options are parsed; or ``problems``, lines that become
    the refusal of the start, in twistd's log: it would bury an error of usage under all its options.
    """

    synopsis = "[options]"
    longdesc = "The same names work in a TOML file (--config) and as environment variables (TELEGRAMMER_...)."
    optParameters = [
        [setting.name, None, None, f"{setting.help} [default: {setting.default}]"]
        for setting in SETTINGS
        if setting.kind != "list"
    ]
    settings: Settings
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    _unknown: Sequence[str] = ()

    def opt_listen(self, endpoint: str) -> None:
        """Twisted server endpoint (unix:, systemd:, ssl: ...) in place of host and port; repeatable"""
        self.setdefault("listen", []).append(endpoint)

    def opt_version(self) -> None:
        """Show the version and exit"""
        print(f"telegrammer {__version__}")
        sys.exit(0)

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """
        :raises usage.UsageError: an option lacks its value, or there is an argument too many.
        """
        # getopt would take --token for an abbreviation of --token-file, and so a secret for a path.
        kept, self._unknown = separate_unknown(
            sys.argv[1:] if options is None else options,
            {f"--{setting.name}" for setting in SETTINGS},
            {"--help", "--version"},
        )
        super().parseOptions(kept)

    def postOptions(self) -> None:
        flags = {
            setting.name: self[setting.name] for setting in SETTINGS if self.get(setting.name) is not None
        }
        try:
            self.settings, self.warnings = load(flags, os.environ, unknown_flags=self._unknown)
        except SettingsRefused as refused:
            self.problems = refused.problems
            return
        runner = self.parent
        if self.settings.log_format == "json" and runner is not None and not runner.get("logger"):
            # As if --logger had been given.  twistd takes a name, and calls it after it has forked.
            runner["logger"] = f"{json_lines.__module__}.{json_lines.__qualname__}"
            _runners.append(runner)


_runners: list[Mapping[str, Any]] = []
"""twistd's own options, when its log is to be JSON lines."""


def json_lines() -> ILogObserver:
    """
    JSON lines to where twistd would log: standard output with ``-n``, else its log file.

    The token is taken out before an event comes here; see ``makeService``.
    """
    runner = _runners[-1] if _runners else {"nodaemon": True}
    name = runner.get("logfile")
    if name == "-" or (runner.get("nodaemon") and not name):
        return line_observer("json", sys.stdout)
    file = LogFile.fromFullPath(name or "twistd.log")
    if not signal.getsignal(signal.SIGUSR1):
        # As twistd does for its own log file.
        signal.signal(signal.SIGUSR1, lambda number, frame: _rotate(file))
    stream: LineStream = file
    return line_observer("json", stream)


def _rotate(file: LogFile) -> None:
    the_reactor().callFromThread(file.rotate)


@define(eq=False)
class TwistdDaemon(Daemon):
    """The daemon under twistd: a refusal is a line in its log and status 1."""

    on_refusal: Callable[[str], None] = lambda line: None

    def startService(self) -> None:
        try:
            super().startService()
        except StartRefused as refused:
            log.critical("cannot start: {reason}", reason=str(refused))
            self.on_refusal(str(refused))
            # twistd would show the traceback of anything else.
            raise SystemExit(1) from None


@define(eq=False)
class RefusedDaemon(Service):
    """What twistd is given for settings that are refused: its start says why and ends it with status 1."""

    problems: tuple[str, ...]
    on_refusal: Callable[[str], None]

    def startService(self) -> None:
        for line in self.problems:
            log.critical("cannot start: {reason}", reason=line)
        self.on_refusal(self.problems[0])
        raise SystemExit(1)


def makeService(options: Options) -> IService:
    """
    The daemon as a service.  It builds, opens and locks nothing before ``startService``: twistd forks in
    between.
    """

    def refused(line: str) -> None:
        if options.parent is not None:
            _tidy_up(options.parent, line)
        end_within(REFUSED_GRACE, lambda: 1)

    if options.problems:
        return RefusedDaemon(options.problems, refused)
    settings = options.settings
    redact = redact_all_logs(settings.secrets)

    def build() -> IService:
        # Late: Klein picks the reactor at import, and twistd may have been told which.
        from telegrammer.app import build

        reactor = the_reactor()
        stop.append(StopOnce(reactor))
        stop[0].watch()
        root = build(settings, reactor, redact.learn)
        spare_the_collector()
        return root

    def status() -> int:
        return 128 + (stop[0].asked or 0) if stop and stop[0].asked else 0

    stop: list[StopOnce] = []
    return TwistdDaemon(
        build,
        options.warnings,
        on_stop=lambda: end_within(settings.shutdown_timeout + GRACE, status),
        on_refusal=refused,
    )


def _tidy_up(runner: Mapping[str, Any], line: str) -> None:
    """
    What twistd does after every exception but the one that ends it without a traceback: remove the pid file,
    and tell the process that waits for the daemon's start, which would wait for ever.
    """
    pipe, name = runner.get("statusPipe"), runner.get("pidfile")
    if name:
        with suppress(OSError):
            os.unlink(name)
    if pipe is not None:
        os.write(pipe, b"1 " + line.encode("ascii", "backslashreplace")[:98])
        os.close(pipe)
