"""The keeper of the webhook against a scripted Bot API, on a clock that the test winds."""

from typing import cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogEvent, LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import StoreBusy, WrongBot
from telegrammer.core.telegram import (
    BadCredentials,
    Conflict,
    Done,
    Identity,
    NetworkFailure,
    RateLimited,
    Rejected,
    SettingOutcome,
    UpstreamFailure,
    WebhookInfo,
    WebhookOutcome,
)
from telegrammer.ingest.webhook_keeper import WebhookKeeper
from tests.support.telegram import FakeApi, FakeIngestion

BOT = 123456
WALL = 1_793_000_000
ME = Identity(BOT, "x_bot", False)
URL = "https://hooks.example/secret-path"
SECRET = "webhook-secret_0123456789"
OURS = WebhookInfo("hooks.example", 0, URL)


class KeeperTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.api, self.store = FakeApi(), FakeIngestion()
        self.keeper = WebhookKeeper(
            api=self.api,
            ingestion=self.store,
            url=URL,
            secret=lambda: SECRET,
            token_bot_id=BOT,
            clock=self.clock,
            now=lambda: WALL + self.clock.seconds(),
            jitter=lambda: 0.0,
        )
        self.service = self.keeper.service()
        self.service.startService()
        self.clock.advance(0)
        self.addCleanup(self.check_stop)
        captured = capturedLogs()
        self.events = captured.__enter__()
        self.addCleanup(captured.__exit__, None, None, None)

    def check_stop(self) -> None:
        """Whatever a test left behind, stopping takes no time, deletes no webhook and leaves nothing."""
        if self.service.running:
            self.successResultOf(self.service.stopService())
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.waiting(), 0)
        self.assertNotIn(None, self.api.hooks)
        self.assertEqual(self.keeper.status().state, "stopped")
        self.assertEqual(self.api.asked, [])

    def waiting(self) -> int:
        """Questions that wait for an answer."""
        return len(self.api.me) + len(self.api.settings) + len(self.api.webhooks)

    def identify(self) -> None:
        self.api.me.pop().callback(ME)

    def set(self, outcome: SettingOutcome) -> None:
        self.api.settings.pop().callback(outcome)

    def look(self, outcome: WebhookOutcome) -> None:
        self.api.webhooks.pop().callback(outcome)

    def listen(self) -> None:
        """Up to the rest after the second look."""
        self.identify()
        self.set(Done())
        self.look(OURS)
        self.check_rests(3)
        self.look(OURS)
        self.told()

    def check_rests(self, seconds: float) -> None:
        """Nothing is asked for so long, then something is."""
        self.assertEqual(self.waiting(), 0)
        self.clock.advance(seconds - 0.001)
        self.assertEqual(self.waiting(), 0)
        self.clock.advance(0.002)
        self.assertEqual(self.waiting(), 1)

    def check_status(self, state: str, reason: str | None = None, failures: int = 0) -> None:
        status = self.keeper.status()
        self.assertEqual(
            (status.mode, status.state, status.reason, status.consecutive_failures),
            ("webhook", state, reason, failures),
        )

    def told(self, level: LogLevel | None = None) -> list[str]:
        """The lines in the log since the last look."""
        levels = [level] if level else [LogLevel.info, LogLevel.warn, LogLevel.error, LogLevel.critical]
        events = cast("list[LogEvent]", self.events)
        lines = [formatEvent(event) for event in events if event["log_level"] in levels]
        for line in lines:
            self.assertNotIn("secret", line)
        del events[:]
        return lines


class StartTests(KeeperTestCase):
    def test_identity_then_webhook_then_a_look(self) -> None:
        self.check_status("starting")
        self.assertEqual((len(self.api.me), self.api.hooks), (1, []))
        self.identify()
        self.assertEqual((self.store.bot_id, self.keeper.identity()), (BOT, ME))
        self.assertEqual(self.api.hooks, [(URL, SECRET)])
        self.check_status("starting")
        self.assertEqual(self.told(), [])
        self.clock.advance(3)
        self.set(Done())
        self.check_status("listening")
        self.assertEqual(self.keeper.status().last_success_at, WALL + 3)
        self.assertEqual(
            self.told(), ["listening for bot 123456, @x_bot: the webhook is set, on host hooks.example"]
        )
        self.look(OURS)
        for seconds in (3, 60, 60):
            self.check_rests(seconds)
            self.look(OURS)
        self.check_status("listening")
        self.assertEqual((self.told(), self.api.hooks), ([], [(URL, SECRET)]))

    def test_unreachable(self) -> None:
        for seconds in (1, 2, 4):
            self.api.me.pop().callback(NetworkFailure("name not found"))
            self.check_rests(seconds)
        self.identify()
        for seconds in (8, 16):
            self.set(NetworkFailure("name not found"))
            self.check_rests(seconds)
        self.check_status("backing_off", "network", 5)
        self.set(Done())
        self.check_status("listening")
        self.assertEqual(
            self.told(),
            ["ingestion by webhook backs off (network): name not found", "listening again, after 5 failures"],
        )
        self.assertEqual(self.api.hooks, [(URL, SECRET)] * 3)

    def test_a_webhook_that_telegram_does_not_take(self) -> None:
        self.identify()
        for seconds in (1, 2, 4):
            self.set(Rejected("Bad Request: bad webhook: port 8080 is not allowed"))
            self.check_rests(seconds)
        self.check_status("backing_off", "upstream", 3)
        (line,) = self.told(LogLevel.error)
        self.assertIn("port 8080 is not allowed", line)

    def test_rate_limit(self) -> None:
        self.identify()
        self.set(RateLimited(17))
        self.check_status("backing_off", "rate_limited", 1)
        self.assertEqual(
            self.told(), ["Telegram limits our questions about the webhook: the next one in 17 s"]
        )
        self.check_rests(17)

    def test_an_answer_that_does_not_fit(self) -> None:
        self.identify()
        self.set(Conflict(webhook=False))
        self.check_status("backing_off", "upstream", 1)
        self.assertEqual(
            self.told(), ["ingestion by webhook backs off (upstream): an answer that does not fit"]
        )
        self.check_rests(1)

    def test_refused_token(self) -> None:
        self.identify()
        self.set(BadCredentials(401))
        self.check_status("suspended", "credentials", 1)
        self.check_rests(60)
        self.api.me.pop().callback(BadCredentials(401))
        self.check_rests(120)
        (line,) = self.told()
        self.assertIn("(401)", line)
        self.identify()
        self.set(Done())
        self.assertEqual(self.told(), ["listening again, after 2 failures"])

    def test_another_bot_may_not_enter(self) -> None:
        self.assertTrue(self.keeper.may_accept())
        self.store.trouble.append(WrongBot(99, BOT))
        self.identify()
        self.check_status("suspended", "wrong_bot", 1)
        self.assertFalse(self.keeper.may_accept())
        self.assertEqual((self.keeper.identity(), self.api.hooks), (None, []))
        (line,) = self.told()
        self.assertIn("99", line)
        self.check_rests(60)
        self.identify()
        self.set(Done())
        self.assertTrue(self.keeper.may_accept())

    def test_busy_storage(self) -> None:
        self.store.trouble.append(StoreBusy())
        self.identify()
        self.check_status("backing_off", "storage", 1)
        self.assertEqual(self.told(), ["ingestion by webhook backs off (storage): the database is busy"])
        self.check_rests(1)

    def test_a_crash_is_told_once(self) -> None:
        self.identify()
        for seconds in (1, 2):
            self.api.settings.pop().errback(ValueError("secret"))
            self.check_rests(seconds)
        self.assertEqual((self.keeper.status().reason, len(self.told())), ("upstream", 2))


class FirstLooksTests(KeeperTestCase):
    def test_what_was_before_is_forgiven_and_what_comes_is_told_soon(self) -> None:
        self.identify()
        self.set(Done())
        self.look(WebhookInfo("hooks.example", 2, URL, WALL - 500, "Read timeout expired"))
        self.check_status("listening")
        self.check_rests(3)
        self.told()
        self.look(WebhookInfo("hooks.example", 2, URL, WALL - 499, "Connection refused"))
        self.check_status("backing_off", "network", 1)
        self.assertEqual(self.told(), ["Telegram cannot deliver: Connection refused"])


class CheckTests(KeeperTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.listen()
        self.check_rests(60)

    def test_a_webhook_of_somebody_else(self) -> None:
        for failures in (1, 2, 3):
            self.look(WebhookInfo("other.example", 3, "https://other.example/secret"))
            self.check_status("suspended", "conflict_webhook", failures)
            self.check_rests(60)
        (line,) = self.told(LogLevel.error)
        self.assertIn("on host other.example", line)
        self.look(OURS)
        self.check_status("listening")
        self.assertEqual(self.told(), ["listening again, after 3 failures"])
        self.assertEqual(self.api.hooks, [(URL, SECRET)])

    def test_a_webhook_that_was_deleted(self) -> None:
        self.look(WebhookInfo(None, 3))
        self.check_status("suspended", "conflict_webhook", 1)
        (line,) = self.told(LogLevel.error)
        self.assertIn("was deleted", line)
        self.check_rests(60)
        self.look(WebhookInfo("other.example", 3, "https://other.example/"))
        self.assertEqual(len(self.told(LogLevel.error)), 1)

    def test_what_cannot_be_delivered(self) -> None:
        trouble = WebhookInfo("hooks.example", 2, URL, WALL - 9, "Connection refused")
        for failures in (1, 2, 3, 4, 5):
            self.look(trouble)
            self.check_status("backing_off", "network", failures)
            self.check_rests(60)
        self.assertEqual(self.told(), ["Telegram cannot deliver: Connection refused"])
        # The last success was the second look, 3 s after the start.
        self.assertEqual(round(self.keeper.status().quiet_seconds), round(self.clock.seconds()) - 3)

    def test_an_update_ends_that(self) -> None:
        self.look(WebhookInfo("hooks.example", 2, URL, WALL - 9, "Connection refused"))
        self.told()
        self.clock.advance(5)
        self.keeper.note_accepted()
        self.check_status("listening")
        self.assertEqual(self.keeper.status().quiet_seconds, 0)
        self.assertEqual(self.told(), ["listening again, after 1 failure"])
        self.check_rests(55)
        # One that came since the last look outweighs a complaint, but only until the next look.
        self.look(WebhookInfo("hooks.example", 2, URL, WALL + 55, "Connection refused"))
        self.check_status("listening")
        self.check_rests(60)
        self.look(WebhookInfo("hooks.example", 2, URL, WALL + 99, "Connection refused"))
        self.check_status("backing_off", "network", 1)

    def test_a_question_that_fails_while_updates_come(self) -> None:
        for seconds in (1, 2, 4, 8, 16, 32, 60):
            self.look(NetworkFailure("connection lost"))
            self.check_status("backing_off", "network", 1)
            self.keeper.note_accepted()
            self.check_status("backing_off", "network", 0)
            self.assertEqual(self.keeper.status().quiet_seconds, 0)
            self.check_rests(seconds)
        self.assertEqual(self.told(), ["ingestion by webhook backs off (network): connection lost"])
        self.look(OURS)
        self.assertEqual(self.told(), ["listening again, after 7 failures"])

    def test_silence_is_no_failure(self) -> None:
        for _ in range(100):
            self.look(OURS)
            self.check_rests(60)
        self.assertLess(self.keeper.status().quiet_seconds, 61)
        self.check_status("listening")

    def test_being_alive_is_no_success(self) -> None:
        for _ in range(4):
            self.look(UpstreamFailure("HTTP 502 without an envelope"))
            self.clock.advance(100)
        self.assertGreater(self.keeper.status().quiet_seconds, 300)

    def test_a_server_that_does_not_know_the_question(self) -> None:
        for _ in range(3):
            self.look(BadCredentials(404))
            self.check_status("listening")
            self.identify()
            self.check_status("listening")
            self.assertEqual(self.keeper.status().quiet_seconds, 0)
            self.check_rests(60)
        (line,) = self.told()
        self.assertIn("does not know getWebhookInfo", line)

    def test_a_token_that_was_revoked(self) -> None:
        self.look(BadCredentials(401))
        self.assertEqual(self.told(), [])
        self.api.me.pop().callback(BadCredentials(401))
        self.check_status("suspended", "credentials", 1)
        self.check_rests(60)
        self.identify()
        self.look(OURS)
        self.check_status("listening")
        self.assertEqual((len(self.told()), self.api.hooks), (2, [(URL, SECRET)]))


class StopTests(KeeperTestCase):
    def test_gives_up_the_question_in_hand(self) -> None:
        for step in (self.identify, lambda: self.set(Done()), lambda: self.look(OURS)):
            self.successResultOf(self.service.stopService())
            self.assertEqual((self.waiting(), self.clock.getDelayedCalls()), (0, []))
            self.service.startService()
            self.clock.advance(0)
            self.assertEqual(self.waiting(), 1)
            step()
        self.assertEqual(self.api.cancelled, 3)
        self.assertEqual(len(self.told()), 1)

    def test_ends_a_rest(self) -> None:
        self.listen()
        self.successResultOf(self.service.stopService())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_waits_for_the_binding(self) -> None:
        binding: Deferred[None] = Deferred()
        self.patch(FakeIngestion, "bind", lambda store, bot: binding)
        self.identify()
        stopped = self.service.stopService()
        self.assertNoResult(stopped)
        binding.callback(None)
        self.successResultOf(stopped)
        self.assertEqual(self.api.hooks, [])
