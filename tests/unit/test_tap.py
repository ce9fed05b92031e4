from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from twisted.application.service import Service
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.python import usage
from twisted.python.logfile import LogFile
from twisted.python.reflect import namedAny
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from telegrammer import tap
from telegrammer.config import SETTINGS
from telegrammer.core.problems import StartRefused
from telegrammer.logs import LineObserver
from telegrammer.tap import Options, TwistdDaemon, makeService

TOKEN = "123456789:AAF-fake_token"


class OptionsCase(SynchronousTestCase):
    def setUp(self) -> None:
        names = [name for name in os.environ if name.startswith("TELEGRAMMER_")]
        clean = {name: value for name, value in os.environ.items() if name not in names}
        self.patch(os, "environ", clean | {"TELEGRAMMER_TOKEN": TOKEN})

    def parse(self, *arguments: str, parent: dict[str, Any] | None = None) -> Options:
        options = Options()
        # twistd's options are a mapping of this kind.
        options.parent = cast(Any, parent)
        self.addCleanup(tap._runners.clear)
        options.parseOptions(arguments)
        return options

    def problems(self, *arguments: str) -> tuple[str, ...]:
        problems = self.parse(*arguments).problems
        self.assertNotEqual(problems, ())
        return problems


class OptionsTests(OptionsCase):
    def test_settings_from_flags(self) -> None:
        options = self.parse("--db", "/x/y.db", "--listen=unix:/a", "--listen", "unix:/b")
        self.assertEqual(options.settings.db, Path("/x/y.db"))
        self.assertEqual(options.settings.listen, ("unix:/a", "unix:/b"))
        self.assertEqual(options.warnings, ())

    def test_every_setting_is_an_option_with_its_help(self) -> None:
        text = Options().getUsage(width=500)
        for setting in SETTINGS:
            self.assertIn(f"--{setting.name}=", text)
            self.assertIn(setting.help, text)

    def test_all_problems_at_once(self) -> None:
        lines = self.problems("--port", "x", "--token", TOKEN, "--bogus", "--http-workers=0")
        self.assertEqual(len(lines), 4)
        self.assertTrue(lines[0].startswith("unknown flag --token: "))
        self.assertEqual(lines[1], "unknown flag --bogus")
        self.assertTrue(lines[2].startswith("port: ") and lines[2].endswith("(flag --port)"))
        self.assertTrue(lines[3].startswith("http-workers: "))

    def test_a_token_typed_is_neither_taken_nor_repeated(self) -> None:
        self.assertNotIn("AAF", str(self.problems("--token", TOKEN)))
        self.assertNotIn("AAF", str(self.problems(f"--token={TOKEN}")))

    def test_surplus_arguments(self) -> None:
        self.assertNotIn("AAF", str(self.assertRaises(usage.UsageError, self.parse, TOKEN)))

    def test_version(self) -> None:
        self.assertEqual(self.assertRaises(SystemExit, self.parse, "--version").code, 0)

    def test_json_becomes_twistd_s_logger(self) -> None:
        parent: dict[str, Any] = {"logger": None, "nodaemon": True, "logfile": None}
        self.parse("--log-format", "json", parent=parent)
        self.assertIs(namedAny(parent["logger"]), tap.json_lines)
        chosen: dict[str, Any] = {"logger": "their.own"}
        self.parse("--log-format", "json", parent=chosen)
        self.assertEqual(chosen, {"logger": "their.own"})
        plain: dict[str, Any] = {"logger": None}
        self.parse(parent=plain)
        self.assertEqual(plain, {"logger": None})

    def test_json_goes_where_twistd_would_log(self) -> None:
        # Keep the process's own handler out of it.
        self.patch(signal, "getsignal", lambda number: "taken")
        with TemporaryDirectory() as directory:
            name = os.path.join(directory, "x.log")
            self.parse("--log-format", "json", parent={"nodaemon": True, "logfile": name})
            observer = cast(LineObserver, tap.json_lines())
            observer({"log_format": "see {what}", "what": "this"})
            cast(LogFile, observer.stream).close()
            self.assertIn('"message": "see this"', Path(name).read_text())
        for logfile in ("-", None):
            self.parse("--log-format", "json", parent={"nodaemon": True, "logfile": logfile})
            out = io.StringIO()
            self.patch(sys, "stdout", out)
            self.assertIs(cast(LineObserver, tap.json_lines()).stream, out)


class ServiceTests(OptionsCase):
    def test_making_it_opens_nothing(self) -> None:
        before = list(globalLogPublisher._observers)
        with TemporaryDirectory() as directory:
            service = makeService(self.parse("--db", os.path.join(directory, "sub", "x.db")))
            self.assertEqual(os.listdir(directory), [])
        self.assertIsInstance(service, TwistdDaemon)
        (added,) = [one for one in globalLogPublisher._observers if one not in before]
        globalLogPublisher.removeObserver(added)
        event = {"log_format": "{x}", "x": TOKEN}
        added(event)
        self.assertNotIn("AAF", str(event))

    def logged(self) -> list[LogEvent]:
        seen: list[LogEvent] = []

        @implementer(ILogObserver)
        def see(event: LogEvent) -> None:
            seen.append(event)

        globalLogPublisher.addObserver(see)
        self.addCleanup(globalLogPublisher.removeObserver, see)
        return seen

    def test_a_refusal_ends_twistd_with_status_1_and_a_line(self) -> None:
        def build() -> Service:
            raise StartRefused("the lock is held")

        said: list[str] = []
        seen = self.logged()
        daemon = TwistdDaemon(build, on_refusal=said.append)
        self.assertEqual(self.assertRaises(SystemExit, daemon.startService).code, 1)
        self.assertEqual(said, ["the lock is held"])
        self.assertEqual([event.get("reason") for event in seen], ["the lock is held"])

    def test_refused_settings_are_lines_of_the_log(self) -> None:
        said: list[float] = []
        self.patch(tap, "end_within", lambda seconds, status: said.append(status()))
        seen = self.logged()
        service = makeService(self.parse("--port", "x", "--http-workers=0"))
        self.assertEqual(self.assertRaises(SystemExit, service.startService).code, 1)
        self.assertEqual([str(event.get("reason"))[:12] for event in seen], ["port: must b", "http-workers"])
        self.assertEqual(said, [1])

    def test_what_twistd_leaves_to_us_after_a_refused_start(self) -> None:
        reader, writer = os.pipe()
        with TemporaryDirectory() as directory, os.fdopen(reader, "rb") as pipe:
            name = os.path.join(directory, "twistd.pid")
            Path(name).write_text("1")
            tap._tidy_up({"pidfile": name, "statusPipe": writer}, "x" * 200)
            self.assertFalse(os.path.exists(name))
            self.assertEqual(pipe.read(), b"1 " + b"x" * 98)
            tap._tidy_up({"pidfile": name}, "")
            tap._tidy_up({"pidfile": ""}, "")
