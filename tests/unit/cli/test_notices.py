"""``notify-test`` step by step, and what ``check`` says of the notices."""

from __future__ import annotations

import os
import sqlite3
from unittest import mock

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.cli.machine import notices_finding
from telegrammer.cli.notice_test import steps
from telegrammer.config import NoticeSettings
from telegrammer.core.messages import Credentials, Message
from telegrammer.core.problems import DeliveryFailed, InsecurePath, LeaseLost, MaybeDelivered, QueueFull
from telegrammer.messaging.outbox_file import create
from telegrammer.notice_road import Road
from tests.support.directories import temporary_directory
from tests.support.notices import HeldMailer, MemoryFile, MemoryOutbox

MAIL = NoticeSettings(
    transport="smtps",
    sender="gateway@example.org",
    recipients=("one@example.org", "two@example.org"),
    host="::1",
    port=465,
)


class NotifyTestTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.file = MemoryFile(lambda: 1_793_000_000)
        self.mailer = HeldMailer()
        outbox = temporary_directory(self) / "outbox.db"
        self.road = Road(self.file.open, self.mailer, Credentials("op", "secret"), outbox)

    def run_it(self) -> Deferred[list[str]]:
        async def lines() -> list[str]:
            found = steps(self.road, MAIL, self.file.now)
            return [str(finding).replace(str(self.road.outbox), "OUTBOX") async for finding in found]

        return Deferred.fromCoroutine(lines())

    def test_all_is_well(self) -> None:
        running = self.run_it()
        (sending,) = self.mailer.sendings
        self.assertEqual((sending.seconds, sending.credentials), (30.0, self.road.credentials))
        self.assertEqual(sending.message.recipients, MAIL.recipients)
        sending.done.callback(None)
        self.assertEqual(
            self.successResultOf(running),
            [
                f"ok   outbox: OUTBOX took the notice as {sending.message_id}",
                "ok   claim: leased",
                "ok   delivery: smtps, to [::1]:465, for 2 recipients",
                "ok   acknowledgement: done",
            ],
        )
        self.assertEqual((self.file.rows, self.file.closed), ([], 1))

    def test_what_cannot_be_delivered_is_not_left_behind(self) -> None:
        for failure, words in (
            (DeliveryFailed("refused\n"), "refused\\n"),
            (MaybeDelivered("lost"), "it may have arrived, or not: lost"),
        ):
            running = self.run_it()
            self.mailer.sendings[-1].done.errback(failure)
            lines = self.successResultOf(running)
            self.assertEqual(lines[2], f"FAIL delivery: smtps, to [::1]:465: {words}")
            self.assertEqual(lines[3], "ok   acknowledgement: taken out of the outbox, undelivered")
            self.assertEqual(self.file.rows, [])

    def test_no_outbox(self) -> None:
        def refuse() -> Deferred[MemoryOutbox]:
            raise InsecurePath("mode 0644")

        self.road = evolve(self.road, open=refuse)
        self.assertEqual(self.successResultOf(self.run_it()), ["FAIL outbox: mode 0644"])

    def test_a_full_one(self) -> None:
        self.file.failures.append(QueueFull("1000 messages"))
        self.assertEqual(self.successResultOf(self.run_it()), ["FAIL outbox: OUTBOX: 1000 messages"])
        self.assertEqual(self.file.closed, 1)

    def test_what_an_earlier_test_left(self) -> None:
        message = Message("Test of the notices", "old", ("one@example.org",))
        self.successResultOf(MemoryOutbox(self.file).send(message))
        running = self.run_it()
        self.mailer.sendings[0].done.callback(None)
        self.assertEqual(
            self.successResultOf(running)[1], "ok   claim: leased; removed 1 that earlier tests left"
        )

    def test_another_test_took_it(self) -> None:
        send = MemoryOutbox.send

        def taken(outbox: MemoryOutbox, message: Message) -> Deferred[str]:
            sent = send(outbox, message)
            self.file.rows.clear()
            return sent

        self.patch(MemoryOutbox, "send", taken)
        self.assertEqual(
            self.successResultOf(self.run_it())[1], "FAIL claim: another notify-test has taken it"
        )

    def test_the_lease_was_lost(self) -> None:
        running = self.run_it()
        self.file.failures.append(LeaseLost("expired"))
        self.mailer.sendings[0].done.callback(None)
        self.assertEqual(self.successResultOf(running)[3], "FAIL acknowledgement: expired")


class CheckTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.directory = temporary_directory(self)
        self.directory.chmod(0o700)
        self.outbox = self.directory / "outbox.db"
        self.db = self.directory / "x.db"

    def finding(self, notices: NoticeSettings = MAIL) -> tuple[str, str]:
        before = sorted(self.directory.rglob("*"))
        found = notices_finding(notices, self.db)
        self.assertEqual(sorted(self.directory.rglob("*")), before)
        return found.verdict, found.detail.replace(str(self.directory), "DIR")

    def test_not_there_yet(self) -> None:
        expected = ("ok", "smtps, to [::1]:465; DIR/outbox.db is not there yet; serve makes it")
        self.assertEqual(self.finding(), expected)
        self.db = self.directory / "state" / "x.db"
        self.assertEqual(self.finding()[0], "ok")

    def test_there(self) -> None:
        create(self.outbox)
        self.assertEqual(self.finding(), ("ok", "smtps, to [::1]:465; DIR/outbox.db is there"))

    def test_insecure(self) -> None:
        create(self.outbox)
        self.outbox.chmod(0o644)
        self.assertEqual(self.finding(), ("FAIL", "DIR/outbox.db has mode 0644; it must be 0600"))

    def test_root_looks_at_the_directory_of_another(self) -> None:
        """With the eyes of who the daemon would be, not with its own."""
        create(self.outbox)
        if os.geteuid() == 0:
            for path in (self.directory, self.outbox):
                os.chown(path, 65534, 65534)
        with mock.patch("os.geteuid", return_value=0):
            self.assertEqual(self.finding()[0], "ok")
            if os.getuid() == 0:
                os.chown(self.outbox, 0, 0)
                self.assertEqual(self.finding(), ("FAIL", "DIR/outbox.db belongs to another user"))

    def test_a_stranger(self) -> None:
        connection = sqlite3.connect(self.outbox)
        connection.execute("CREATE TABLE x(y)")
        connection.close()
        self.outbox.chmod(0o600)
        self.assertEqual(self.finding()[0], "FAIL")

    def test_a_directory_that_is_not_there(self) -> None:
        outbox = self.directory / "nowhere" / "outbox.db"
        self.assertEqual(self.finding(evolve(MAIL, outbox=outbox))[0], "FAIL")

    def test_a_spool(self) -> None:
        spool = self.directory / "spool"
        files = evolve(MAIL, transport="file", spool=spool)
        self.assertEqual(self.finding(files)[0], "ok")
        spool.mkdir()
        self.assertEqual(self.finding(files)[1][:18], "file, to DIR/spool")
        os.rmdir(spool)
        spool.write_text("")
        self.assertEqual(self.finding(files), ("FAIL", "the spool DIR/spool cannot be written"))
