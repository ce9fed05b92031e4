"""The composition root: what is there, in which order, and that building it touches nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

from attrs import evolve
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.app import _watchdog_usec, build
from telegrammer.config import NoticeSettings, Settings, Token
from telegrammer.core.problems import StartRefused
from telegrammer.service import OrderedServices
from telegrammer.state import State
from tests.support.directories import temporary_directory

NOTICES = NoticeSettings(
    transport="starttls",
    sender="gateway@example.org",
    recipients=("op@example.org",),
    host="mail.example.org",
    port=587,
    username="op",
    password="secret",
)


class BuildTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.directory = temporary_directory(self)
        self.settings = Settings(self.directory / "state" / "x.db", Token("123456789:" + "A" * 35))
        self.reactor = MemoryReactorClock()
        self.kept: list[str] = []

    def build(self, settings: Settings) -> OrderedServices:
        return build(settings, self.reactor, self.kept.append)

    def test_the_order_of_the_start_and_so_of_the_stop(self) -> None:
        root = self.build(self.settings)
        self.assertEqual(
            [part.name for part in root],
            [
                "lock",
                "ports",
                "database",
                "sockets",
                "deliveries",
                "housekeeping",
                "folding",
                "journal",
                "poller",
                "http",
                "systemd",
            ],
        )

    def test_the_keeper_takes_the_pollers_place(self) -> None:
        settings = evolve(self.settings, ingest="webhook", webhook_url="https://h.example/")
        polled = [part.name for part in self.build(self.settings)]
        pushed = [part.name for part in self.build(settings)]
        self.assertEqual(pushed, [name.replace("poller", "webhook keeper") for name in polled])

    def test_the_notices_come_before_what_they_watch(self) -> None:
        root = self.build(evolve(self.settings, notices=NOTICES))
        names = [part.name for part in root]
        self.assertEqual(names[names.index("sockets") : names.index("deliveries") + 1][1], "notices")

    def test_where_telegram_pushes_to(self) -> None:
        webhook = evolve(self.settings, ingest="webhook", webhook_url="https://bot.example.org/")
        for settings, doors in (
            (self.settings, ["ports"]),
            (webhook, ["ports"]),
            (evolve(webhook, webhook_listen="tcp:0"), ["ports", "webhook ports"]),
            (evolve(self.settings, webhook_listen="tcp:0"), ["ports"]),
        ):
            names = [part.name for part in self.build(settings)]
            self.assertEqual(names[1 : names.index("database")], doors)

    def test_a_useless_setting_of_the_notices_is_refused(self) -> None:
        for notices in (evolve(NOTICES, sender="nobody"), evolve(NOTICES, outbox=Path("relative"))):
            self.assertRaises(StartRefused, self.build, evolve(self.settings, notices=notices))

    def test_building_opens_and_schedules_nothing(self) -> None:
        self.build(evolve(self.settings, notices=NOTICES))
        self.assertEqual(list(self.directory.iterdir()), [])
        self.assertEqual((self.reactor.getDelayedCalls(), self.reactor.tcpServers), ([], []))

    def test_timers_wait_by_a_monotonic_clock(self) -> None:
        self.build(self.settings)
        self.assertIs(self.reactor.seconds, time.monotonic)

    def test_a_useless_ca_file_is_refused(self) -> None:
        settings = evolve(self.settings, ca_file=self.directory / "nowhere.pem")
        self.assertRaises(StartRefused, self.build, settings)


class StateTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.settings = Settings(
            temporary_directory(self) / "x.db",
            Token("123456789:" + "A" * 35),
            ingest="webhook",
            webhook_url="https://bot.example.org/",
        )
        self.kept: list[str] = []

    def open(self, settings: Settings) -> State:
        state = State(settings, lambda: 1000.0, self.kept.append)
        self.assertIsNone(state.webhook_secret)
        state.open()
        return state

    def test_the_secret_is_made_once_and_kept_from_every_log(self) -> None:
        state = self.open(self.settings)
        secret = state.webhook_secret
        assert secret is not None
        self.assertRegex(secret, r"\A[A-Za-z0-9_-]{43}\Z")
        self.assertNotIn(secret, repr(state))
        self.assertEqual(self.open(self.settings).webhook_secret, secret)
        self.assertEqual(self.kept, [secret, secret])

    def test_where_updates_are_polled_there_is_none(self) -> None:
        self.open(self.settings)
        self.kept.clear()
        self.assertIsNone(self.open(evolve(self.settings, ingest="poll")).webhook_secret)
        self.assertEqual(self.kept, [])


class WatchdogTests(SynchronousTestCase):
    def test_how_often_and_whom_systemd_wants_to_hear(self) -> None:
        own, other = str(os.getpid()), str(os.getpid() + 1)
        for environ, expected in (
            ({}, None),
            ({"WATCHDOG_USEC": "30000000"}, 30_000_000),
            ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": own}, 30_000_000),
            ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": other}, None),
            ({"WATCHDOG_USEC": "0"}, None),
            ({"WATCHDOG_USEC": "-5"}, None),
            ({"WATCHDOG_USEC": "soon"}, None),
            ({"WATCHDOG_USEC": "\u0663"}, None),
        ):
            self.assertEqual(_watchdog_usec(environ), expected, environ)
