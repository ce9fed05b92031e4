from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.endpoints import quoteStringArgument
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.config import parsers
from telegrammer.config.table import SETTINGS
from tests.support.certificates import Authority


class ParserTests(SynchronousTestCase):
    def test_whole_numbers(self) -> None:
        parse = parsers.whole_number(0, 65_535)
        self.assertEqual([parse("0"), parse("8080"), parse("65535"), parse("0080")], [0, 8080, 65_535, 80])
        for text in (
            "",
            "-1",
            "65536",
            "1.0",
            "1e3",
            "+1",
            " 1",
            "1 ",
            "0x10",
            "1_000",
            "\u0661",
            "9" * 5000,
        ):
            with self.subTest(text):
                self.assertRaisesRegex(ValueError, "^must be a whole number from 0 to 65535$", parse, text)

    def test_durations(self) -> None:
        parse = parsers.duration(1, 3650 * 86_400)
        for text, seconds in (("50s", 50), ("10m", 600), ("2h", 7200), ("7d", 604_800), ("90", 90)):
            self.assertEqual(parse(text), seconds)
        for text in ("", "s", "0", "0s", "-1s", "1.5s", "1w", "1 h", "1H", "3651d", "1h30m", "\u0661s"):
            with self.subTest(text):
                self.assertRaisesRegex(
                    ValueError, "^must be a duration like .*, from 1s to 3650d$", parse, text
                )
        self.assertRaisesRegex(ValueError, "from 1s to 1h$", parsers.duration(1, 3600), "2h")

    def test_words(self) -> None:
        self.assertEqual(parsers.choice("text", "json")("json"), "json")
        self.assertRaisesRegex(ValueError, "^must be text or json$", parsers.choice("text", "json"), "JSON")

    def test_webhook_urls(self) -> None:
        for text, url in (
            ("https://bot.example", "https://bot.example/telegram/webhook"),
            ("https://Bot.Example:8443/", "https://bot.example:8443/telegram/webhook"),
            ("https://bot.example/hook/", "https://bot.example/hook/"),
            ("https://bot.example/hook?x=%20y", "https://bot.example/hook?x=%20y"),
            ("http://127.0.0.1:8080/telegram/webhook", "http://127.0.0.1:8080/telegram/webhook"),
        ):
            self.assertEqual(parsers.webhook_url(text), url)
        for text in ("http://bot.example", "ftp://bot.example", "https://", "https://a:b@c", "https://c/#d"):
            self.assertRaises(ValueError, parsers.webhook_url, text)
        self.assertRaisesRegex(ValueError, "our secret", parsers.webhook_url, "http://10.0.0.1/x")

    def test_paths_are_absolute(self) -> None:
        self.assertEqual(parsers.path("/a/../b"), Path("/b"))
        self.assertTrue(parsers.path("x.db").is_absolute())
        for text in ("", "a\0b"):
            self.assertRaises(ValueError, parsers.path, text)

    def test_hosts(self) -> None:
        for text, host in (
            ("127.0.0.1", "127.0.0.1"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("localhost", "localhost"),
            ("my_service.internal", "my_service.internal"),
        ):
            self.assertEqual(parsers.host(text), host)
        for text in ("", " ", "a b", "http://x", "127.0.0.1:80", "a/b", "-x", "tcp://1.2.3.4:80"):
            with self.subTest(text):
                self.assertRaises(ValueError, parsers.host, text)

    def test_endpoints(self) -> None:
        for text in (
            "tcp:8080",
            "tcp:0:interface=127.0.0.1",
            "unix:/run/x.sock:mode=660",
            "systemd:domain=INET:index=0",
        ):
            self.assertEqual(parsers.endpoint(text), text)
        for text in (
            "",
            "8080",
            "tcp:x",
            "bogus:1",
            "tcp:1:colour=red",
            "tcp:1\n",
            "ssl:8443:privateKey=/nope",
        ):
            with self.subTest(text):
                self.assertRaises(ValueError, parsers.endpoint, text)

    def test_endpoints_whose_files_are_of_no_use(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        junk = Path(directory.name, "key.pem")
        junk.write_text("no key")
        for text, rule in (
            (f"ssl:0:privateKey={junk}", "is no PEM, damaged"),
            ("ssl:0:privateKey=/nope", "cannot be read"),
        ):
            error = self.assertRaises(parsers.Unusable, parsers.endpoint, text)
            self.assertIn(rule, str(error))

    def test_endpoints_whose_files_would_keep_the_start_waiting(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        fifo = f"{directory.name}/a:fifo"
        os.mkfifo(fifo)
        quoted = quoteStringArgument(fifo)
        for file in ("/dev/null", quoted):
            for text in (f"ssl:0:{file}", f"ssl:0:privateKey={file}", f"ssl:port=0:certKey={file}:backlog=5"):
                error = self.assertRaises(parsers.Unusable, parsers.endpoint, text)
                self.assertEqual(str(error), "names a file that is not a regular file")
        self.assertEqual(parsers.endpoint(f"unix:{quoted}"), f"unix:{quoted}")
        for text in ("ssl:0:privateKey=/", f"ssl:0:privateKey={quoted}-none"):
            error = self.assertRaises(parsers.Unusable, parsers.endpoint, text)
            self.assertEqual(str(error), "names a file that cannot be read")

    def test_tokens_are_never_repeated(self) -> None:
        good = "123456789:AAF-fake_token"
        for text in (good, good + "\n", good + "\r\n"):
            self.assertEqual(parsers.token(text).text, good)
        self.assertEqual(parsers.token(good).bot_id, 123456789)
        self.assertNotIn("AAF", repr(parsers.token(good)))
        for text in (
            "",
            "hunter2secret",
            good + "\n\n",
            " " + good,
            good + " ",
            ":AAFfake",
            "123:",
            "12x:AAFfake",
            "123:AAF/fake",
            "123:AAF\u00e9fake",
            "bot" + good,
            "\u0661\u0662\u0663:AAFfake",
        ):
            with self.subTest(text):
                error = self.assertRaises(ValueError, parsers.token, text)
                self.assertNotIn("AAF", str(error))
                self.assertNotIn("hunter2", str(error))

    def test_certificates(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        good = Authority().write(Path(directory.name, "ca.pem"))
        self.assertEqual(parsers.certificates(str(good)), good)
        empty, junk = Path(directory.name, "empty"), Path(directory.name, "junk")
        empty.touch()
        junk.write_bytes(good.read_bytes()[:200])
        os.mkfifo(f"{directory.name}/fifo")
        for text, rule in (
            (str(empty), "holds no PEM certificate"),
            (str(junk), "holds no PEM certificate"),
            (directory.name, "cannot be read: is a directory"),
            (f"{directory.name}/none", "cannot be read: no such file"),
            ("/dev/null", "is not a regular file"),
            (f"{directory.name}/fifo", "is not a regular file"),
        ):
            with self.subTest(rule):
                error = self.assertRaises(parsers.Unusable, parsers.certificates, text)
                self.assertIn(rule, str(error))
        self.assertRaisesRegex(ValueError, "must be a path", parsers.certificates, "")

    def test_api_urls(self) -> None:
        for text, url in (
            ("https://api.telegram.org", "https://api.telegram.org"),
            ("https://api.telegram.org/", "https://api.telegram.org"),
            ("https://Bots.Example:8443/tg/", "https://bots.example:8443/tg"),
            ("http://127.0.0.1:8081", "http://127.0.0.1:8081"),
            ("http://127.9.8.7", "http://127.9.8.7"),
            ("http://localhost:8081", "http://localhost:8081"),
            ("http://[::1]:8081/", "http://[::1]:8081"),
            ("https://[2001:DB8:0:0::1]", "https://[2001:db8::1]"),
            ("https://b\u00fccher.example", "https://xn--bcher-kva.example"),
        ):
            with self.subTest(text):
                self.assertEqual(parsers.api_url(text), url)
        for text, rule in (
            ("", "absolute https URL"),
            ("api.telegram.org", "absolute https URL"),
            ("ftp://x.example", "absolute https URL"),
            ("https://", "absolute https URL"),
            ("http://api.telegram.org", "plain http only to a loopback"),
            ("http://10.0.0.1", "plain http only to a loopback"),
            ("http://localhost.evil.example", "plain http only to a loopback"),
            ("https://user:pw@x.example", "user name or password"),
            ("https://x.example?", "query or fragment"),
            ("https://x.example/#a", "query or fragment"),
            ("https://x.example:0", "port"),
            ("https://x.example:99999", "not a valid URL"),
            ("http://[::2]:8081", "plain http only to a loopback"),
            # Which of the two depends on the version of Python.
            ("https://[fe80::1%25eth0]", "no IPv6 address|not a valid URL"),
            ("https://[v1.x]", "no IPv6 address|not a valid URL"),
            ("https://a[::1]", "no IPv6 address|not a valid URL"),
            ("https://bot_api:8081", "underscore"),
            ("https://127.1", "neither a name nor an IP"),
            ("https://0x7f.0x1", "neither a name nor an IP"),
            ("https://a..b", "valid name"),
            ("https://x.example/a b", "spaces"),
            ("https://x.example\\@y", "backslashes"),
            ("https://x.example/%zz", "ASCII characters"),
            ("https://x.example/\u00e9", "ASCII characters"),
        ):
            with self.subTest(text):
                self.assertRaisesRegex(ValueError, rule, parsers.api_url, text)

    def test_loopback(self) -> None:
        for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST"):
            self.assertTrue(parsers.is_loopback(host), host)
        for host in ("0.0.0.0", "::", "", "10.0.0.1", "example.org"):
            self.assertFalse(parsers.is_loopback(host), host)


class HostileTextTests(SynchronousTestCase):
    @settings(max_examples=200)
    @given(st.text(max_size=60) | st.from_regex(r"https?://[^\n]{0,40}", fullmatch=True))
    def test_a_parser_raises_nothing_but_the_rule(self, text: str) -> None:
        for setting in SETTINGS:
            if setting.name == "listen":
                continue
            try:
                setting.parse(text)
            except ValueError as error:
                # UnicodeError is a ValueError too, and would quote the text.
                self.assertIn(type(error), (ValueError, parsers.Unusable))
