from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import attrs
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.config import SETTINGS, Settings, Token, database_path, load
from telegrammer.core.problems import SettingsRefused
from telegrammer.core.retry import Schedule
from tests.support.certificates import Authority

TOKEN = "123456789:AAF-fake_token"
HOME = {"HOME": "/home/op"}
ENVIRON = HOME | {"TELEGRAMMER_TOKEN": TOKEN}


class LoadingCase(SynchronousTestCase):
    def load(
        self,
        flags: Mapping[str, str | Sequence[str]] | None = None,
        environ: Mapping[str, str] | None = None,
        unknown: Sequence[str] = (),
    ) -> tuple[Settings, tuple[str, ...]]:
        return load(
            flags or {},
            ENVIRON if environ is None else environ,
            unknown_flags=unknown,
            readable=lambda path: False,
        )

    def problems(
        self,
        flags: Mapping[str, str | Sequence[str]] | None = None,
        environ: Mapping[str, str] | None = None,
        unknown: Sequence[str] = (),
    ) -> tuple[str, ...]:
        return self.refusal(flags, environ, unknown).problems

    def refusal(
        self,
        flags: Mapping[str, str | Sequence[str]] | None = None,
        environ: Mapping[str, str] | None = None,
        unknown: Sequence[str] = (),
    ) -> SettingsRefused:
        error = cast(SettingsRefused, self.assertRaises(SettingsRefused, self.load, flags, environ, unknown))
        self.assertNotIn(TOKEN.partition(":")[2], str(error))
        return error

    def file(self, content: str | bytes, name: str = "file") -> str:
        path = self.directory() / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def directory(self) -> Path:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        return Path(directory.name)


class SourceTests(LoadingCase):
    def test_defaults(self) -> None:
        settings, warnings = self.load()
        expected = Settings(Path("/home/op/.local/state/telegrammer/telegrammer.db"), Token(TOKEN))
        self.assertEqual((settings, warnings), (expected, ()))

    def test_every_setting_of_the_values_is_in_the_table(self) -> None:
        names = {field.name for field in attrs.fields(Settings)} - {"token", "notices"}
        kept = {setting.attribute for setting in SETTINGS}
        self.assertEqual(kept - {"config", "token_file"}, names)

    def test_the_defaults_shown_are_the_defaults(self) -> None:
        settings, _ = self.load()
        for setting in SETTINGS:
            if setting.name in ("config", "db", "token-file", "listen", "ca-file"):
                continue
            if setting.name.startswith("webhook-"):
                continue
            with self.subTest(setting.name):
                self.assertEqual(setting.parse(setting.default), getattr(settings, setting.attribute))

    def test_a_webhook_needs_its_url(self) -> None:
        refusal = self.refusal({"ingest": "webhook"})
        self.assertEqual(refusal.problems, ("webhook-url: is needed with ingest webhook (flag --ingest)",))
        self.assertTrue(refusal.usage)
        said = {"webhook-url": "https://bot.example", "webhook-listen": "tcp:8443:interface=127.0.0.1"}
        settings, warnings = self.load({"ingest": "webhook"} | said)
        self.assertEqual(settings.webhook_url, "https://bot.example/telegram/webhook")
        self.assertEqual(warnings, ())
        # One word goes back to polling.
        self.assertEqual(self.load(said)[0].ingest, "poll")
        _, [warning] = self.load({"ingest": "webhook"} | said | {"webhook-listen": "tcp:8443"})
        self.assertIn("beyond loopback", warning)
        (line,) = self.problems(environ=ENVIRON | {"TELEGRAMMER_INGEST": "webhook"})
        self.assertIn("(environment variable TELEGRAMMER_INGEST)", line)

    def test_flag_then_environment_then_file_then_default(self) -> None:
        config = self.file('port = 1\nhost = "127.0.0.2"\nhttp-queue = 3\ndurability = "full"\n')
        environ = ENVIRON | {"TELEGRAMMER_PORT": "2", "TELEGRAMMER_HTTP_QUEUE": "2"}
        settings, _ = self.load({"port": "3", "config": config}, environ)
        found = settings.port, settings.http_queue, settings.host, settings.durability, settings.http_workers
        self.assertEqual(found, (3, 2, "127.0.0.2", "full", 8))

    def test_the_environment_may_name_the_file(self) -> None:
        config = self.file("port = 1")
        self.assertEqual(self.load(environ=ENVIRON | {"TELEGRAMMER_CONFIG": config})[0].port, 1)

    def test_an_empty_variable_is_not_set(self) -> None:
        self.assertEqual(self.load(environ=ENVIRON | {"TELEGRAMMER_PORT": ""})[0].port, 8080)

    def test_the_last_of_two_flags_counts_but_every_endpoint(self) -> None:
        self.assertEqual(self.load({"port": ["1", "2"]})[0].port, 2)
        settings, _ = self.load({"listen": ["unix:/a", "unix:/b"]})
        self.assertEqual(settings.listen, ("unix:/a", "unix:/b"))

    def test_types_of_the_file(self) -> None:
        ca_file = Authority().write(self.directory() / "ca.pem")
        config = self.file(
            'listen = ["unix:/a", "unix:/b"]\ndead-retention = "2h"\nshutdown-timeout = 5\n'
            f'retry-schedule = "1s,2s"\nca-file = "{ca_file}"\n'
        )
        settings, _ = self.load({"config": config})
        self.assertEqual(settings.listen, ("unix:/a", "unix:/b"))
        self.assertEqual((settings.dead_retention, settings.shutdown_timeout), (7200, 5))
        self.assertEqual((settings.retry_schedule, settings.ca_file), (Schedule((1, 2)), ca_file))
        config = self.file('listen = "unix:/a"')
        self.assertEqual(self.load({"config": config})[0].listen, ("unix:/a",))


class RefusalTests(LoadingCase):
    def test_each_problem_names_setting_and_source_and_all_come_at_once(self) -> None:
        config = self.file('http-workers = 0\nverbosity = 3\ndurability = "off"\n')
        problems = self.problems(
            {"port": "99999", "config": config},
            HOME | {"TELEGRAMMER_DELIVERY_WORKERS": "257", "TELEGRAMMER_RETRY_SCHEDULE": "25h"},
            ["--bogus"],
        )
        self.assertEqual(len(problems), 8)
        for pattern in (
            r"^unknown flag --bogus$",
            rf"^unknown setting verbosity in config file {config}$",
            r"^token: is missing",
            r"^port: must be .* from 0 to 65535 \(flag --port\)$",
            rf"^http-workers: must be .* \(config file {config}\)$",
            r"^delivery-workers: must be .* \(environment variable TELEGRAMMER_DELIVERY_WORKERS\)$",
            r"^retry-schedule: .* \(environment variable TELEGRAMMER_RETRY_SCHEDULE\)$",
            rf"^durability: must be normal or full \(config file {config}\)$",
        ):
            self.assertTrue(any(re.search(pattern, line) for line in problems), pattern)

    def test_what_was_typed_is_told_from_what_was_found(self) -> None:
        self.assertTrue(self.refusal({"port": "x"}).usage)
        self.assertTrue(self.refusal(unknown=["--x"]).usage)
        # A file that has gone is no wrong usage.
        gone = self.refusal({"ca-file": "/nowhere/ca.pem"})
        self.assertEqual(
            gone.problems, ("ca-file: cannot be read: no such file or directory (flag --ca-file)",)
        )
        self.assertFalse(gone.usage)
        self.assertFalse(self.refusal(environ=ENVIRON | {"TELEGRAMMER_PORT": "x"}).usage)
        self.assertFalse(self.refusal(environ=HOME).usage)

    def test_no_value_is_repeated(self) -> None:
        for setting in SETTINGS:
            flags = {setting.name: f"/{TOKEN}\0"}
            with self.subTest(setting.name):
                self.assertNotIn("AAF", str(self.refusal(flags)))

    def test_the_same_thing_said_two_ways(self) -> None:
        (line,) = self.problems({"listen": ["unix:/a"], "port": "80"})
        self.assertIn("flag --listen; flag --port", line)
        problems = self.problems({"host": "::1"}, ENVIRON | {"TELEGRAMMER_LISTEN": "unix:/a"})
        self.assertIn("environment variable TELEGRAMMER_LISTEN; flag --host", problems[0])
        (line,) = self.problems({"token-file": self.file(TOKEN)})
        self.assertIn("given twice", line)
        self.assertIn("TELEGRAMMER_TOKEN and by flag --token-file", line)

    def test_there_is_no_token_flag(self) -> None:
        (line,) = self.problems(unknown=["--token"])
        self.assertIn("--token-file or the variable TELEGRAMMER_TOKEN", line)

    def test_types_of_the_file_are_strict(self) -> None:
        for content, rule in (
            ('port = "80"', "a whole number, without quotes"),
            ("port = true", "a whole number"),
            ("port = 80.0", "a whole number"),
            ("host = 1", "a string"),
            ("listen = []", "a string or a list"),
            ("listen = [1]", "a string or a list"),
            ("dead-retention = 1.5", "whole number of seconds or a string"),
            ("port = 1979-05-27", "a whole number"),
            ("[port]\nx = 1", "a whole number"),
            ("port = " + "9" * 4000, "from 0 to 65535"),
            ("port = -1", "from 0 to 65535"),
        ):
            with self.subTest(content[:20]):
                (line,) = self.problems({"config": self.file(content)})
                self.assertIn(rule, line)

    def test_a_file_that_cannot_be_used(self) -> None:
        for content, rule in (
            ("port = ", r"is not valid TOML at (line 1, column \d+|end of document)$"),
            ("port = 1\nhost = = 2", r"is not valid TOML at line 2, column \d+$"),
            (b"\xff", "is not UTF-8"),
            ("x = " + "[" * 5000, "is not valid TOML"),
            ("x = " + "9" * 5000, "is not valid TOML"),
            ("#" * (1 << 20) + "#", "larger than 1 MiB"),
        ):
            (line,) = self.problems({"config": self.file(content)})
            self.assertRegex(line, rule)
        (line,) = self.problems({"config": "/nonexistent/x.toml"})
        self.assertRegex(
            line, r"^config file /nonexistent/x.toml: cannot be read \(no such file.*flag --config"
        )
        (line,) = self.problems({"config": "/"})
        self.assertIn("is a directory", line)
        fifo = str(self.directory() / "fifo")
        os.mkfifo(fifo)
        for name in ("/dev/null", fifo):
            (line,) = self.problems({"config": name})
            self.assertEqual(line, f"config file {name}: is not a regular file")

    def test_names_of_the_file_that_are_unknown(self) -> None:
        for name in ("http_workers", "config", "notice", '"a\\nb"'):
            (line,) = self.problems({"config": self.file(f"{name} = 1")})
            self.assertRegex(line, r"^unknown setting \S+ in config file ")
            self.assertNotIn("\n", line)
        (line,) = self.problems({"config": self.file(f'token = "{TOKEN}"')})
        self.assertIn("token-file", line)


class WarningTests(LoadingCase):
    def test_unknown_variables_are_one_warning_without_values(self) -> None:
        environ = ENVIRON | {
            "TELEGRAMMER_SERVICE_HOST": "10.1.1.1",
            "TELEGRAMMER_PORT_8080_TCP": "tcp://10.1.1.1:8080",
            "OTHER": "x",
        }
        (warning,) = self.load(environ=environ)[1]
        self.assertIn("TELEGRAMMER_PORT_8080_TCP, TELEGRAMMER_SERVICE_HOST", warning)
        self.assertNotIn("10.1.1.1", warning)

    def test_the_port_of_kubernetes_is_ignored(self) -> None:
        settings, warnings = self.load(environ=ENVIRON | {"TELEGRAMMER_PORT": "tcp://10.1.1.1:8080"})
        self.assertEqual(settings.port, 8080)
        self.assertEqual(len(warnings), 1)
        self.assertIn("Kubernetes", warnings[0])
        environ = ENVIRON | {"TELEGRAMMER_PORT": "tcp://10.1.1.1:8080"}
        self.assertEqual(self.load({"listen": ["unix:/a"]}, environ)[0].listen, ("unix:/a",))

    def test_listening_beyond_loopback(self) -> None:
        def warned(**flags: str | list[str]) -> bool:
            (warnings,) = self.load(flags)[1:]
            self.assertLess(len(warnings), 2)
            return any("beyond loopback" in warning for warning in warnings)

        for host in ("0.0.0.0", "::", "192.0.2.1", "gateway.example"):
            self.assertTrue(warned(host=host), host)
        for host in ("127.0.0.1", "::1", "[::1]", "localhost"):
            self.assertFalse(warned(host=host), host)
        for endpoint in (
            "tcp:8080",
            "tcp:8080:0.0.0.0",
            "tcp6:8080",
            r"tcp6:8080:interface=\:\:",
            "tcp:8080:backlog=5",
        ):
            self.assertTrue(warned(listen=[endpoint]), endpoint)
        for endpoint in (
            "tcp:8080:interface=127.0.0.1",
            "tcp:8080:127.0.0.1",
            r"tcp6:8080:interface=\:\:1",
            "unix:/run/a",
            "systemd:domain=INET:index=0",
        ):
            self.assertFalse(warned(listen=[endpoint]), endpoint)


class TokenTests(LoadingCase):
    def test_from_a_file_with_one_newline(self) -> None:
        settings, _ = self.load({"token-file": self.file(TOKEN + "\n")}, HOME)
        self.assertEqual(settings.token, Token(TOKEN))
        self.assertNotIn("AAF", repr(settings))

    def test_from_the_credentials_directory(self) -> None:
        directory = self.directory()
        environ = HOME | {"CREDENTIALS_DIRECTORY": str(directory)}
        self.assertIn("is missing", self.problems(environ=environ)[0])
        (directory / "telegram-token").write_text("1234:other")
        self.assertEqual(self.load(environ=environ)[0].token, Token("1234:other"))
        # What was said beats what lay there.
        self.assertEqual(self.load(environ=environ | {"TELEGRAMMER_TOKEN": TOKEN})[0].token, Token(TOKEN))
        named = {"token-file": self.file(TOKEN)}
        self.assertEqual(self.load(named, environ)[0].token, Token(TOKEN))

    def test_refused_without_being_repeated(self) -> None:
        for content in (f"{TOKEN}\n\n", f"token={TOKEN}", "", "\udcff", "\0" * 9000):
            problems = self.problems(
                {"token-file": self.file(content.encode("utf-8", "surrogateescape"))}, HOME
            )
            self.assertEqual(len(problems), 1)
            self.assertRegex(problems[0], r"^token: is not shaped like a bot token .*\(flag --token-file\)$")
        (line,) = self.problems({"token-file": f"/nonexistent/{TOKEN}"}, HOME)
        self.assertRegex(
            line, r"^token-file: cannot be read \(no such file or directory; flag --token-file\)$"
        )

    def test_only_a_regular_file_is_read(self) -> None:
        # Devices first: without the rule they fail here, and a FIFO that nobody writes to hangs.
        fifo = str(self.directory() / "fifo")
        os.mkfifo(fifo)
        for name in ("/dev/zero", "/dev/null", fifo):
            (line,) = self.problems({"token-file": name}, HOME)
            self.assertEqual(line, "token-file: is not a regular file (flag --token-file)")
        link = self.directory() / "link"
        link.symlink_to(self.file(TOKEN))
        self.assertEqual(self.load({"token-file": str(link)}, HOME)[0].token, Token(TOKEN))

    def test_nor_is_any_other_kind_of_credential(self) -> None:
        directory = self.directory()
        os.mkfifo(directory / "telegram-token")
        (line,) = self.problems(environ=HOME | {"CREDENTIALS_DIRECTORY": str(directory)})
        self.assertEqual(line, "token-file: is not a regular file (credential telegram-token)")


class DatabaseTests(LoadingCase):
    def path(self, environ: Mapping[str, str], readable: bool = False) -> str:
        return str(database_path({}, environ, readable=lambda path: readable))

    def test_the_chain_of_defaults(self) -> None:
        everything = HOME | {"XDG_STATE_HOME": "/xdg", "STATE_DIRECTORY": "/state:/other"}
        self.assertEqual(self.path(everything, readable=True), "/state/telegrammer.db")
        without_state = HOME | {"XDG_STATE_HOME": "/xdg"}
        self.assertEqual(self.path(without_state, readable=True), "/var/lib/telegrammer/telegrammer.db")
        self.assertEqual(self.path(without_state), "/xdg/telegrammer/telegrammer.db")
        self.assertEqual(self.path(HOME), "/home/op/.local/state/telegrammer/telegrammer.db")
        relative = HOME | {"XDG_STATE_HOME": "xdg"}
        self.assertEqual(self.path(relative), "/home/op/.local/state/telegrammer/telegrammer.db")

    def test_nobody_s_home(self) -> None:
        self.patch(os.path, "expanduser", lambda path: path)
        error = self.assertRaises(SettingsRefused, self.path, {})
        self.assertIn("no home directory", str(error))

    def test_flag_environment_file(self) -> None:
        config = self.file('db = "/from/file"\nport = "not our business"\nnonsense = 1')
        environ = HOME | {"TELEGRAMMER_CONFIG": config, "TELEGRAMMER_PORT": "x"}
        self.assertEqual(self.path(environ), "/from/file")
        self.assertEqual(self.path(environ | {"TELEGRAMMER_DB": "/from/env"}), "/from/env")
        self.assertEqual(database_path({"db": "/from/flag"}, environ), Path("/from/flag"))

    def test_a_command_refuses_what_concerns_the_path(self) -> None:
        for environ in ({"TELEGRAMMER_CONFIG": "/nonexistent"}, {"TELEGRAMMER_DB": "\0"}):
            self.assertRaises(SettingsRefused, database_path, {}, HOME | environ)
        config = self.file("db = 1")
        self.assertRaises(SettingsRefused, database_path, {"config": config}, HOME)
