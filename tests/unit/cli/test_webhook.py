"""``delete-webhook``: what it asks, what it says, and that it needs little."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred

from telegrammer.cli import checking, webhook
from telegrammer.cli.webhook import NotDeleted, deleted
from telegrammer.config import Token
from telegrammer.core.telegram import (
    BadCredentials,
    Done,
    NetworkFailure,
    Rejected,
    SettingOutcome,
    UpstreamFailure,
    WebhookInfo,
    WebhookOutcome,
)
from tests.support.telegram import FakeApi
from tests.unit.cli.test_main import CliCase

TOKEN = "42:" + "A" * 35


class DeletedTests(CliCase):
    def delete(self, info: WebhookOutcome, outcome: SettingOutcome | None = None) -> tuple[str, FakeApi]:
        """The line, or the refusal, and what was asked."""
        api = FakeApi()
        running = Deferred.fromCoroutine(deleted(api))
        api.webhooks.pop().callback(info)
        if outcome is not None:
            api.settings.pop().callback(outcome)
        if isinstance(running.result, str):
            return self.successResultOf(running), api
        return str(self.failureResultOf(running, NotDeleted).value), api

    def test_deleted(self) -> None:
        for count, waits in ((0, "0 updates wait"), (1, "1 update waits"), (23, "23 updates wait")):
            line, api = self.delete(WebhookInfo("hook.example", count, "https://hook.example/secret"), Done())
            self.assertEqual(line, f"webhook at hook.example deleted; {waits} at Telegram")
            self.assertEqual(api.hooks, [None])

    def test_none_is_set(self) -> None:
        line, api = self.delete(WebhookInfo(None, 5), Done())
        # Deleted all the same: one may have been set since the question.
        self.assertEqual((line, api.hooks), ("no webhook is set", [None]))

    def test_refused(self) -> None:
        info = WebhookInfo("hook.example")
        for outcome, why in (
            (Rejected("Bad Request: no"), "Telegram did not delete the webhook: Bad Request: no"),
            (Rejected(), "Telegram did not delete the webhook: it does not say why"),
            (NetworkFailure("connection lost"), "the webhook may not be deleted: connection lost"),
        ):
            self.assertEqual(self.delete(info, outcome)[0], why)
        refused = BadCredentials(401)
        self.assertEqual(
            self.delete(refused, refused)[0],
            "the webhook may not be deleted: the token is not accepted (HTTP 401)",
        )

    def test_what_it_was_need_not_be_known(self) -> None:
        line, api = self.delete(UpstreamFailure("HTTP 502"), Done())
        self.assertEqual(line, "webhook deleted; what it was could not be learned: HTTP 502")
        self.assertEqual(api.hooks, [None])


class CommandTests(CliCase):
    def setUp(self) -> None:
        super().setUp()
        self.asked: list[tuple[Token, str, Path | None]] = []

        def ask(token: Token, api_url: str, ca_file: Path | None, question: Callable[..., Any]) -> str:
            self.asked.append((token, api_url, ca_file))
            return "no webhook is set"

        self.patch(webhook, "ask", ask)
        self.token_file = self.directory / "token"
        self.token_file.write_text(TOKEN)

    def test_needs_the_token_and_nothing_else(self) -> None:
        self.assertEqual(
            self.done("delete-webhook", "--token-file", str(self.token_file)), "no webhook is set\n"
        )
        self.assertEqual(self.asked, [(Token(TOKEN), "https://api.telegram.org", None)])
        self.assertFalse(self.db.parent.exists())

    def test_settings_of_the_daemon(self) -> None:
        config = self.directory / "c.toml"
        config.write_text(
            f'token-file = "{self.token_file}"\napi-url = "https://api.example/"\nport = 8081\n'
            'ingest = "webhook"\nwebhook-url = "https://hook.example/secret"\n'
        )
        self.done("--db", str(self.db), "delete-webhook", "--config", str(config))
        self.assertEqual(self.asked, [(Token(TOKEN), "https://api.example", None)])

    def test_refusals(self) -> None:
        self.assertIn("token: is missing", self.refused("delete-webhook"))
        typed = self.refused(
            "delete-webhook", "--token-file", str(self.token_file), "--api-url", "ftp://x", status=2
        )
        self.assertIn("api-url: ", typed)
        self.refused("delete-webhook", "--drop-pending-updates", status=2)
        self.assertEqual(self.asked, [])

    def test_check_leaves_the_listener_of_its_own_to_the_daemon(self) -> None:
        self.patch(checking, "ask_telegram", lambda settings, bound: [])
        settings = ("--token-file", str(self.token_file), "--port", "0", "--ingest", "webhook")
        shown = self.done("check", *settings, "--webhook-url", "https://hook.example/")
        self.assertNotIn("webhook port", shown)
        own = ("--webhook-url", "https://hook.example/", "--webhook-listen", "tcp:8443")
        shown = self.done("check", *settings, *own)
        self.assertIn("skip webhook port: endpoints are opened by the daemon only\n", shown)
        self.assertNotIn("8443", shown)
