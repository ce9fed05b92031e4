"""The notices as a service: both loops, the ring between them, the stop."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import QueueCounts
from telegrammer.core.health import FoldingStatus, IngestionStatus, OutboxStatus
from telegrammer.core.journal import JournalCounts
from telegrammer.core.problems import AdmissionTimeout, DeliveryFailed
from telegrammer.notices.carrier import Carrier
from telegrammer.notices.handle import Handle
from telegrammer.notices.service import Notices
from telegrammer.notices.watch import Watch
from telegrammer.service import Wakeup
from tests.support.notices import HeldMailer, MemoryFile

START = 1_793_000_000


class ServiceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.file = MemoryFile(self.now)
        self.mailer = HeldMailer()
        self.status = IngestionStatus(state="suspended", reason="credentials", consecutive_failures=1)
        handle = Handle(self.file.open)
        wakeup = Wakeup(self.clock)
        watch = Watch(
            handle,
            ("op@example.org",),
            lambda: self.status,
            FoldingStatus,
            lambda: succeed(QueueCounts()),
            lambda: succeed(JournalCounts()),
            lambda wanted: succeed(()),
            100,
            self.clock,
            self.now,
            on_sent=wakeup.ring,
        )
        carrier = Carrier(handle, self.mailer, None, 30.0, self.clock, self.now)
        self.notices = Notices(handle, watch, carrier, self.clock, wakeup)

    def now(self) -> float:
        return START + self.clock.seconds()

    def start(self) -> None:
        self.notices.startService()
        self.clock.advance(0)

    def stop(self) -> Deferred[None]:
        stopped = self.notices.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        return stopped

    def test_what_is_news_is_carried_at_once(self) -> None:
        self.start()
        self.clock.advance(0)
        self.assertEqual(
            [sending.message.subject for sending in self.mailer.sendings],
            ["Ingestion is suspended: credentials"],
        )
        self.mailer.sendings[0].done.callback(None)
        self.assertEqual(self.file.rows, [])
        self.successResultOf(self.stop())
        self.assertEqual((self.file.opened, self.file.closed), (1, 1))

    def test_a_stop_cuts_off_the_delivery_and_the_next_start_repeats_it(self) -> None:
        self.start()
        self.successResultOf(self.stop())
        self.assertEqual((self.mailer.cancelled, len(self.file.rows)), (1, 1))
        self.start()
        self.clock.pump([5.0] * 12)
        first, second = self.mailer.sendings
        self.assertEqual(first.message_id, second.message_id)
        second.done.callback(None)
        self.successResultOf(self.stop())
        self.assertEqual(len(self.file.subjects), 0)

    def test_a_stop_before_the_first_step(self) -> None:
        self.notices.startService()
        self.successResultOf(self.stop())
        self.assertEqual(self.file.opened, 0)

    def test_a_failing_mail_server_is_asked_about_once_a_minute(self) -> None:
        self.start()
        for _ in range(600):
            for sending in self.mailer.sendings:
                if not sending.done.called:
                    sending.done.errback(DeliveryFailed("refused"))
            self.clock.advance(1)
        self.assertIn(len(self.mailer.sendings), range(9, 12))
        self.assertEqual(
            self.notices.status(),
            OutboxStatus("failing", outstanding=1, oldest_at=START, last_failure="delivery_failed"),
        )
        self.successResultOf(self.stop())

    def test_how_it_does(self) -> None:
        self.assertEqual(self.notices.status(), OutboxStatus())
        self.status = IngestionStatus()
        self.start()
        self.assertEqual(self.notices.status(), OutboxStatus("ok", outstanding=0))
        self.file.failures.extend([AdmissionTimeout("held")] * 2)
        self.clock.advance(5)
        self.assertEqual(self.notices.status().last_failure, "admission_timeout")
        self.successResultOf(self.stop())
