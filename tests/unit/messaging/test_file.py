"""Declarations of spools, and the provider with a thread that the test runs."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attrs import define, field
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.messages import Credentials, Message
from telegrammer.core.problems import (
    CredentialsRefused,
    DeliveryFailed,
    DirectiveRefused,
    MaybeDelivered,
    MessageRefused,
)
from telegrammer.messaging.file import FileConfig, FileProvider
from telegrammer.messaging.mime import render
from telegrammer.ports import Mailer
from tests.support.directories import temporary_directory

NOW = 1_793_000_000.0
MESSAGE = Message("Hello", "<b>", ["ops@example.org"])


class ConfigTests(SynchronousTestCase):
    def test_directives(self) -> None:
        parsed = FileConfig.from_directives(["name spool", "path /var/spool/x", "from gw@example.org"])
        self.assertEqual(parsed, FileConfig(name="spool", path=Path("/var/spool/x"), sender="gw@example.org"))
        self.assertEqual((parsed.kind, parsed.body_format, parsed.timeout), ("file", "qp-html", 30.0))

    def test_what_is_refused(self) -> None:
        good = {"name": "spool", "path": Path("/x"), "sender": "gw@example.org"}
        for name, value, directive in (
            ("name", "file", "name"),
            ("path", "spool", "path"),
            ("path", "/a/../b", "path"),
            ("sender", "gw", "from"),
            ("body_format", "html", "body_format"),
            ("timeout", 0, "timeout"),
        ):
            settings: dict[str, Any] = {**good, name: value}
            with self.assertRaises(DirectiveRefused) as caught:
                FileConfig(**settings)
            self.assertEqual(caught.exception.directive, directive)


@define(eq=False)
class Thread:
    """A thread in which nothing runs before the test says so."""

    waiting: list[Callable[[], object]] = field(factory=list)
    trouble: Exception | None = None

    def put(self, job: Callable[[], object]) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.waiting.append(job)

    def run(self) -> None:
        self.waiting.pop(0)()


class Reactor(Clock):
    def callFromThread(self, work: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        work(*args, **kwargs)


class ProviderTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor, self.thread = Reactor(), Thread()
        self.spool = temporary_directory(self) / "deep" / "spool"
        self.provider = FileProvider(
            FileConfig(name="spool", path=self.spool, sender="gw@example.org"),
            self.reactor,
            now=lambda: NOW,
            new_id=lambda: "made-up",
            writer=self.thread,
        )

    def send(self, message: Message = MESSAGE, **options: Any) -> Deferred[None]:
        mailer: Mailer = self.provider
        return mailer.send(message, **{"message_id": "0a1b", "seconds": 10.0, **options})

    def files(self) -> list[str]:
        return sorted(os.listdir(self.spool)) if self.spool.exists() else []

    def assert_idle(self) -> None:
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_a_file(self) -> None:
        sent = self.send()
        self.assertNoResult(sent)
        self.thread.run()
        self.successResultOf(sent)
        self.assertEqual(self.files(), ["0a1b.eml"])
        path = self.spool / "0a1b.eml"
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.spool.stat().st_mode & 0o777, 0o700)
        expected = render(MESSAGE, sender="gw@example.org", message_id="0a1b", now=NOW, body_format="qp-html")
        self.assertEqual(path.read_bytes(), expected)
        self.assert_idle()

    def test_the_same_id_is_the_same_file(self) -> None:
        for message_id, files in (("0a1b", 1), ("0a1b", 1), ("0a1c", 2)):
            sent = self.send(message_id=message_id)
            self.thread.run()
            self.successResultOf(sent)
            self.assertEqual(len(self.files()), files)

    def test_defaults(self) -> None:
        sent = self.provider.send(MESSAGE)
        self.thread.run()
        self.successResultOf(sent)
        self.assertEqual(self.files(), ["made-up.eml"])

    def test_what_is_refused_before_anything_is_done(self) -> None:
        for options, kind in (
            ({"seconds": float("nan")}, DeliveryFailed),
            ({"credentials": Credentials("ops", "secret")}, CredentialsRefused),
            ({"seconds": 0.0}, DeliveryFailed),
            ({"message_id": "../x"}, ValueError),
            ({"message": Message("x", "ä", ["ops@example.org"])}, MessageRefused),
        ):
            self.failureResultOf(self.send(**options), kind)
        self.assertEqual((self.thread.waiting, self.files()), ([], []))
        self.assert_idle()

    def test_cancelled_before_its_thread_begins(self) -> None:
        sent = self.send()
        sent.cancel()
        self.failureResultOf(sent, CancelledError)
        self.thread.run()
        self.assertEqual(self.files(), [])
        self.assert_idle()

    def amid(self, name: str, deed: Callable[[], object]) -> Any:
        """Do something at the moment when the writing thread calls ``os.<name>``."""
        real = getattr(os, name)

        def replaced(*args: Any, **kwargs: Any) -> Any:
            deed()
            return real(*args, **kwargs)

        return patch.object(os, name, replaced)

    def test_cancelled_while_it_is_written(self) -> None:
        sent = self.send()
        with self.amid("fsync", sent.cancel):
            self.thread.run()
        self.failureResultOf(sent, CancelledError)
        self.assertEqual(self.files(), [])
        self.assert_idle()

    def test_cancelled_while_it_gets_its_name(self) -> None:
        sent = self.send()
        with self.amid("rename", sent.cancel):
            self.thread.run()
        self.failureResultOf(sent, MaybeDelivered)
        self.assertEqual(self.files(), ["0a1b.eml"])
        self.assert_idle()

    def test_out_of_time(self) -> None:
        for name, kind in (("fsync", DeliveryFailed), ("rename", MaybeDelivered)):
            sent = self.send()
            with self.amid(name, lambda: self.reactor.advance(10.0)):
                self.thread.run()
            self.failureResultOf(sent, kind)
            self.assert_idle()

    def test_a_caller_with_all_the_time_in_the_world(self) -> None:
        sent = self.send(seconds=float("inf"))
        self.assertEqual([call.getTime() for call in self.reactor.getDelayedCalls()], [86_400.0])
        self.thread.run()
        self.successResultOf(sent)

    def test_a_disk_that_refuses(self) -> None:
        def full() -> None:
            raise OSError(errno.ENOSPC, "No space left on device", "/secret/path")

        for name in ("fsync", "rename"):
            sent = self.send()
            with self.amid(name, full):
                self.thread.run()
            error = self.failureResultOf(sent, DeliveryFailed).value
            self.assertEqual(str(error), "writing the file: No space left on device")
            self.assertEqual(self.files(), [])
        self.assert_idle()

    def test_a_directory_that_is_none(self) -> None:
        self.spool.parent.mkdir()
        self.spool.write_text("a file")
        sent = self.send()
        self.thread.run()
        self.failureResultOf(sent, DeliveryFailed)
        self.assertEqual(self.spool.read_text(), "a file")

    def test_its_name_is_taken_by_a_directory(self) -> None:
        (self.spool / "0a1b.eml").mkdir(parents=True)
        sent = self.send()
        self.thread.run()
        self.failureResultOf(sent, DeliveryFailed)
        self.assertEqual(self.files(), ["0a1b.eml"])

    def test_no_thread(self) -> None:
        self.thread.trouble = RuntimeError("can't start new thread")
        self.failureResultOf(self.send(), DeliveryFailed)
        self.assert_idle()

    def test_behind_a_disk_that_hangs(self) -> None:
        """Each fails in its own time, and holds nothing until the disk is back; then none is written late."""
        sent = [self.send(message_id=f"id{number}") for number in range(3)]
        self.reactor.advance(10.0)
        for each in sent:
            self.failureResultOf(each, DeliveryFailed)
        for _ in sent:
            self.thread.run()
        self.assertEqual(self.files(), [])
        self.assert_idle()
