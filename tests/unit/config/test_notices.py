"""The ``[notices]`` table: values, contradictions, and where the password may and may not come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.config import NoticeSettings, load, notices_for_command
from telegrammer.core.problems import SettingsRefused

TOKEN = "123456789:AAF-fake_token"
ENVIRON = {"HOME": "/home/op", "TELEGRAMMER_TOKEN": TOKEN}
SECRET = "correct horse battery"
MAIL = (
    'from="gateway@example.org"\nrecipients=["one@example.org","two@example.org"]\nhost="mail.example.org"\n'
)


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.password = self.directory / "password"
        self.password.write_text(SECRET + "\n")

    def load(self, table: str, environ: Mapping[str, str] = ENVIRON) -> NoticeSettings | None:
        file = self.directory / "telegrammer.toml"
        file.write_text(f'port=9\n[notices]\n{table}\noutbox="/o.db"\n' if "outbox" not in table else table)
        return load({"config": str(file)}, environ, readable=lambda path: False)[0].notices

    def problems(self, table: str, environ: Mapping[str, str] = ENVIRON) -> Sequence[str]:
        refused = cast(SettingsRefused, self.assertRaises(SettingsRefused, self.load, table, environ))
        self.assertFalse(refused.usage)
        where = f"(config file {self.directory / 'telegrammer.toml'})"
        lines = [line.removesuffix(where).rstrip() for line in refused.problems]
        self.assertNotIn(SECRET, "".join(lines))
        return lines


class ValueTests(Case):
    def test_none(self) -> None:
        self.assertEqual(load({}, ENVIRON, readable=lambda path: False)[0].notices, None)

    def test_mail_with_all_there_is(self) -> None:
        settings = self.load(
            f'transport="smtps"\n{MAIL}port=4650\nusername="op"\npassword-file="{self.password}"\ntimeout="5s"'
        )
        self.assertEqual(
            settings,
            NoticeSettings(
                transport="smtps",
                sender="gateway@example.org",
                recipients=("one@example.org", "two@example.org"),
                host="mail.example.org",
                port=4650,
                username="op",
                password=SECRET,
                timeout=5,
                outbox=Path("/o.db"),
            ),
        )
        self.assertNotIn(SECRET, repr(settings))

    def test_the_transports_own_ports(self) -> None:
        for transport, port in (("smtp", 25), ("starttls", 587), ("smtps", 465)):
            settings = self.load(f'transport="{transport}"\n{MAIL}')
            assert settings is not None
            self.assertEqual((settings.port, settings.timeout, settings.username), (port, 30, None))

    def test_files(self) -> None:
        settings = self.load('transport="file"\nspool="/var/spool/notices"')
        assert settings is not None
        self.assertEqual((settings.spool, settings.port), (Path("/var/spool/notices"), 0))
        self.assertEqual(settings.recipients, (settings.sender,))

    def test_hosts(self) -> None:
        for text, host in (("127.0.0.1", "127.0.0.1"), ("[::1]", "::1"), ("MAIL.Example", "mail.example")):
            settings = self.load(f'transport="smtp"\n{MAIL}'.replace("mail.example.org", text))
            assert settings is not None
            self.assertEqual(settings.host, host)

    def test_the_outbox_is_beside_the_database_by_its_real_name(self) -> None:
        (self.directory / "link").symlink_to(self.directory)
        settings = NoticeSettings(transport="file", sender="a@b", recipients=("a@b",))
        real = Path(self.directory).resolve()
        self.assertEqual(settings.outbox_beside(self.directory / "link" / "x.db"), real / "outbox.db")

    def test_the_outbox_is_no_file_of_the_database(self) -> None:
        refusal = "notices.outbox: is a file of the database (db); name another"
        table = '[notices]\ntransport="file"\nspool="/s"\n'
        for db, more in (
            ("/x/outbox.db", ""),
            ("/x/y.db", 'outbox="/x/y.db"'),
            ("/x/y.db", 'outbox="/x/z/../y.db-wal"'),
            ("/x/y.db", 'outbox="/x/y.db.lock"'),
        ):
            file = self.directory / "x.toml"
            file.write_text(f'db="{db}"\n{table}{more}\n')
            for read in (load, notices_for_command):
                with self.assertRaises(SettingsRefused) as caught:
                    read({"config": str(file)}, ENVIRON, readable=lambda path: False)
                self.assertIn(refusal, caught.exception.problems)

    def test_the_password_of_a_credential(self) -> None:
        (self.directory / "smtp-password").write_text(SECRET)
        environ = ENVIRON | {"CREDENTIALS_DIRECTORY": str(self.directory)}
        settings = self.load(f'transport="starttls"\n{MAIL}username="op"', environ)
        assert settings is not None
        self.assertEqual(settings.password, SECRET)
        # Without an account it is nobody's.
        settings = self.load(f'transport="starttls"\n{MAIL}', environ)
        assert settings is not None
        self.assertEqual(settings.password, None)

    def test_it_is_kept_out_of_the_log(self) -> None:
        file = self.directory / "x.toml"
        file.write_text(
            f'[notices]\ntransport="smtps"\n{MAIL}username="op"\npassword-file="{self.password}"\n'
        )
        settings, _ = load({"config": str(file)}, ENVIRON, readable=lambda path: False)
        self.assertEqual(settings.secrets, (TOKEN, SECRET))

    def test_a_command_needs_no_token(self) -> None:
        file = self.directory / "x.toml"
        file.write_text('db="/x/y.db"\n[notices]\ntransport="file"\nspool="/s"\n')
        db, notices, certificates = notices_for_command({"config": str(file)}, {"HOME": "/home/op"})
        assert notices is not None
        self.assertEqual((db, notices.spool, certificates), (Path("/x/y.db"), Path("/s"), None))
        self.assertRaises(
            SettingsRefused, notices_for_command, {"config": str(file), "port": "x", "db": ""}, {"HOME": "/h"}
        )
        self.assertRaises(SettingsRefused, notices_for_command, {"db": "\0"}, {"HOME": "/h"})


class RefusalTests(Case):
    def test_no_table(self) -> None:
        for value in ('"file"', "1", "[]"):
            self.assertEqual(
                self.problems(f'notices={value}\ndb="/outbox.db"'), ["notices: must be a table, [notices]"]
            )

    def test_everything_at_once(self) -> None:
        table = (
            'transport="pigeon"\nfrom="Op <op@example.org>"\nrecipients=["a b"]\nhost="mail:25"\nport=0\n'
            'username=""\ntimeout="51s"\nspool=5\ncolour="red"\npassword="correct horse battery"'
        )
        self.assertEqual(
            [line.partition(":")[0] if "unknown" not in line else line[:34] for line in self.problems(table)],
            [
                "notices.transport",
                "notices.from",
                "notices.recipients",
                "notices.host",
                "notices.port",
                "notices.username",
                "notices.timeout",
                "notices.spool",
                "unknown setting notices.colour in ",
                "unknown setting notices.password i",
            ],
        )

    def test_the_password_itself(self) -> None:
        (line,) = self.problems(f'transport="smtps"\n{MAIL}password="{SECRET}"')
        self.assertIn("no password in this file; name one with it as password-file", line)

    def test_hosts(self) -> None:
        for text in ("mail.example.org:25", "smtp://mail", "", "a b", "a/b", "-"):
            table = f'transport="smtp"\n{MAIL}'.replace("mail.example.org", text)
            self.assertEqual(len(self.problems(table)), 1, text)

    def test_what_is_needed(self) -> None:
        self.assertEqual(self.problems(""), ["notices.transport: is missing"])
        self.assertEqual(
            self.problems('transport="starttls"'),
            [
                "notices.from: is needed for the transport starttls",
                "notices.recipients: is needed for the transport starttls",
                "notices.host: is needed for the transport starttls",
            ],
        )
        self.assertEqual(
            self.problems('transport="file"'), ["notices.spool: is needed for the transport file"]
        )

    def test_what_contradicts(self) -> None:
        for table, problem in (
            (f'transport="smtp"\n{MAIL}spool="/s"', "spool: is of no use for the transport smtp"),
            ('transport="file"\nspool="/s"\nport=25', "port: is of no use for the transport file"),
            (
                f'transport="smtp"\n{MAIL}username="op"\npassword-file="{self.password}"',
                "username: its password would go in the clear; use starttls or smtps",
            ),
            (
                f'transport="smtps"\n{MAIL}password-file="{self.password}"',
                "password-file: needs a username",
            ),
            (
                f'transport="smtps"\n{MAIL}username="op"',
                "username: needs password-file, or the credential smtp-password",
            ),
        ):
            self.assertEqual(self.problems(table), [f"notices.{problem}"])

    def test_too_many_recipients(self) -> None:
        many = [f"op{number}@example.org" for number in range(17)]
        table = f'transport="smtp"\nfrom="a@b"\nhost="h"\nrecipients={many}'
        self.assertEqual(self.problems(table), ["notices.recipients: has more than 16 addresses"])

    def test_a_password_that_is_none(self) -> None:
        for content, problem in (
            (b"", "must hold one line of 1 to 1024 printable characters"),
            (b"two\nlines\n", "must hold one line of 1 to 1024 printable characters"),
            (b"x" * 1025, "must hold one line of 1 to 1024 printable characters"),
            (b"\xff", "is not UTF-8"),
        ):
            self.password.write_bytes(content)
            table = f'transport="smtps"\n{MAIL}username="op"\npassword-file="{self.password}"'
            self.assertEqual(self.problems(table), [f"notices.password-file: {problem}"])
        for path, problem in (("/nowhere/x", "cannot be read"), ("/dev/null", "is not a regular file")):
            table = f'transport="smtps"\n{MAIL}username="op"\npassword-file="{path}"'
            self.assertIn(problem, self.problems(table)[0])
        table = f'transport="smtps"\n{MAIL}username="op"\npassword-file=5'
        self.assertEqual(self.problems(table), ["notices.password-file: must be a string"])
