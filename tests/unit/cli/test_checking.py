from __future__ import annotations

import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import define, evolve
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.cli.findings import Finding
from telegrammer.cli.machine import database_findings, lock_findings, state_directory
from telegrammer.cli.telegram import telegram_findings
from telegrammer.config import Settings, Token
from telegrammer.core.telegram import (
    BadCredentials,
    Conflict,
    Identity,
    IdentityOutcome,
    NetworkFailure,
    RateLimited,
    UpstreamFailure,
    WebhookInfo,
    WebhookOutcome,
)
from telegrammer.store.lock import ProcessLock
from telegrammer.store.opening import connect_for_command


@define
class FakeTelegram:
    me: IdentityOutcome
    webhook: WebhookOutcome = WebhookInfo(None, 3)
    asked: int = 0

    def get_me(self) -> Deferred[IdentityOutcome]:
        return succeed(self.me)

    def get_webhook_info(self) -> Deferred[WebhookOutcome]:
        self.asked += 1
        return succeed(self.webhook)


class DirectoryCase(SynchronousTestCase):
    def setUp(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.db = self.directory / "t.db"
        self.settings = Settings(self.db, Token("42:abcdef"))

    def snapshot(self) -> dict[str, tuple[bytes, int]]:
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in self.directory.iterdir()}

    def make_database(self, *statements: str) -> None:
        connection = connect_for_command(self.db, create=True)
        for statement in statements:
            connection.execute(statement)
        connection.close()


class FindingTests(SynchronousTestCase):
    def test_a_line(self) -> None:
        self.assertEqual(str(Finding("ok", "lock", "free")), "ok   lock: free")
        self.assertEqual(str(Finding("FAIL", "port", "a\nb")), r"FAIL port: a\nb")


class StateDirectoryTests(DirectoryCase):
    def test_there(self) -> None:
        self.assertEqual(state_directory(self.db).verdict, "ok")

    def test_to_be_made(self) -> None:
        finding = state_directory(self.directory / "a" / "b" / "t.db")
        self.assertEqual(finding.verdict, "ok")
        self.assertIn("not there yet", finding.detail)
        self.assertEqual(list(self.directory.iterdir()), [])

    def test_in_the_way(self) -> None:
        self.db.write_text("")
        (self.directory / "dangling").symlink_to("/nonexistent/x")
        for path in (self.db / "x.db", self.db / "y" / "x.db", self.directory / "dangling" / "x.db"):
            self.assertEqual(state_directory(path).verdict, "FAIL", path)


class DatabaseTests(DirectoryCase):
    def finding(self, settings: Settings | None = None) -> tuple[Finding, int | None]:
        before = self.snapshot()
        found = database_findings(self.db, settings or self.settings)
        self.assertEqual(self.snapshot(), before)
        return found

    def test_absent(self) -> None:
        finding, bound = self.finding()
        self.assertEqual((finding.verdict, bound), ("skip", None))

    def test_ours(self) -> None:
        self.make_database()
        finding, bound = self.finding()
        self.assertEqual((finding.verdict, bound), ("ok", None))
        self.assertIn("no bot yet", finding.detail)

    def test_bound(self) -> None:
        self.make_database("UPDATE gateway SET bot_id = 42")
        finding, bound = self.finding()
        self.assertEqual((finding.verdict, bound), ("ok", 42))
        finding, bound = self.finding(evolve(self.settings, token=Token("43:abcdef")))
        self.assertEqual((finding.verdict, bound), ("FAIL", 42))
        self.assertIn("belongs to bot 42, the token to bot 43", finding.detail)
        self.assertEqual(database_findings(self.db, None)[0].verdict, "ok")

    def test_contradictions_are_named(self) -> None:
        self.make_database(
            "INSERT INTO keys VALUES (1, 'n', zeroblob(32), 1, 0)",
            "INSERT INTO subscriptions(id, key_id, chat_id, callback_url, created_at)"
            " VALUES (1, 1, -1, 'http://x/', 1)",
        )
        finding, _ = self.finding()
        self.assertEqual(finding.verdict, "ok")
        self.assertIn("to be mended at the next start: subscriptions without a lane: 1", finding.detail)

    def test_of_the_old_program(self) -> None:
        connection = sqlite3.connect(self.db)
        connection.execute("CREATE TABLE api_keys(name TEXT, key TEXT, created_at INTEGER)")
        connection.close()
        finding, _ = self.finding()
        self.assertEqual(finding.verdict, "ok")
        self.assertIn("migrates", finding.detail)

    def test_strangers(self) -> None:
        self.db.write_text("no database at all")
        self.assertEqual(self.finding()[0].verdict, "FAIL")
        self.db.unlink()
        connection = sqlite3.connect(self.db)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        self.assertEqual(self.finding()[0].verdict, "FAIL")


class LockTests(DirectoryCase):
    def test_free_and_held(self) -> None:
        self.assertEqual(lock_findings(self.db), (Finding("ok", "lock", "free"), False))
        with ProcessLock(self.db):
            self.assertEqual(
                lock_findings(self.db), (Finding("ok", "lock", "held by the running daemon"), True)
            )
        self.assertEqual(list(self.directory.iterdir()), [])

    def test_unusable(self) -> None:
        Path(f"{self.db}.lock").symlink_to(Path(f"{self.db}.lock"))
        self.assertEqual(lock_findings(self.db)[0].verdict, "FAIL")


class TelegramTests(DirectoryCase):
    def findings(self, api: FakeTelegram, bound: int | None = None) -> list[str]:
        found = self.successResultOf(Deferred.fromCoroutine(telegram_findings(api, self.settings, bound)))
        return [str(finding) for finding in found]

    def test_all_is_well(self) -> None:
        self.assertEqual(
            self.findings(FakeTelegram(Identity(42, "some_bot"))),
            ["ok   getMe: @some_bot, id 42", "ok   getWebhookInfo: no webhook; 3 waiting"],
        )

    def test_another_bot_than_the_token_or_the_database_says(self) -> None:
        self.assertEqual(
            self.findings(FakeTelegram(Identity(43)))[0],
            "FAIL getMe: id 43, where bot 42 was expected",
        )
        self.assertIn("bot 44 was expected", self.findings(FakeTelegram(Identity(42)), bound=44)[0])

    def test_a_webhook(self) -> None:
        line = self.findings(FakeTelegram(Identity(42), WebhookInfo("hook.example", 0)))[1]
        self.assertTrue(line.startswith("FAIL getWebhookInfo: a webhook is set, at hook.example: "))

    def test_by_webhook(self) -> None:
        self.settings = evolve(self.settings, ingest="webhook", webhook_url="https://hook.example/secret")
        for webhook, detail in (
            (WebhookInfo(None, 3), "none is set; serve sets it; 3 waiting"),
            (
                WebhookInfo("other.example", 1, "https://other.example/secret"),
                "another one is set, at other.example; serve puts ours in its place; 1 waiting",
            ),
            (
                WebhookInfo("hook.example", 0, "https://HOOK.example:443/secret"),
                "ours is set, at hook.example; 0 waiting",
            ),
            (
                WebhookInfo("hook.example", 7, "https://hook.example/secret", 1_793_000_000, "Read timeout"),
                "ours is set, at hook.example; 7 waiting; what Telegram last complained of, at "
                "2026-10-26 07:33:20 UTC: Read timeout",
            ),
        ):
            lines = self.findings(FakeTelegram(Identity(42), webhook))
            self.assertEqual(lines[1], f"ok   getWebhookInfo: {detail}")

    def test_refusals(self) -> None:
        for outcome, why in (
            (NetworkFailure("connection refused"), "connection refused"),
            (UpstreamFailure("HTTP 502"), "HTTP 502"),
            (RateLimited(7), "rate limited, again after 7 s"),
            (RateLimited(), "rate limited"),
            (BadCredentials(401), "the token is not accepted (HTTP 401)"),
            (Conflict(False), "another process polls this bot, or a webhook is set (HTTP 409)"),
        ):
            api = FakeTelegram(outcome)
            lines = self.findings(api)
            self.assertEqual(lines[0], f"FAIL getMe: {why}")
            self.assertTrue(lines[1].startswith("skip getWebhookInfo"))
            self.assertEqual(api.asked, 0)
            lines = self.findings(FakeTelegram(Identity(42), outcome))
            self.assertEqual(lines[1], f"FAIL getWebhookInfo: {why}")
