"""The outbox, opened when needed and anew when it has closed itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from twisted.internet.defer import Deferred, fail
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import (
    AdmissionTimeout,
    CommitUncertain,
    InsecurePath,
    NotAnOutbox,
    OutboxClosed,
    OutboxFailing,
    QueueEmpty,
)
from telegrammer.notices.handle import LONG_PAUSE, PAUSE, Handle, OpenOutbox, kind_of, pause_after, words_of
from tests.support.notices import MemoryFile, MemoryOutbox

T = TypeVar("T")


class HandleTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.file = MemoryFile(lambda: 0)
        self.handle = Handle(self.file.open)
        self.events = self.enterContext(capturedLogs())

    def use(self, operation: Callable[[OpenOutbox], Awaitable[T]]) -> Deferred[T]:
        return Deferred.fromCoroutine(self.handle.use(operation))

    def lines(self) -> list[str]:
        return [str(event["log_format"]) for event in self.events]

    def test_it_is_opened_once(self) -> None:
        self.assertEqual(self.file.opened, 0)
        for _ in range(2):
            self.assertEqual(self.successResultOf(self.use(lambda outbox: outbox.outstanding())), 0)
        self.assertEqual(self.file.opened, 1)

    def test_two_that_need_it_at_once_open_one(self) -> None:
        opening: Deferred[MemoryOutbox] = Deferred()
        calls: list[None] = []

        def open() -> Deferred[MemoryOutbox]:
            calls.append(None)
            return opening

        self.handle.open = open
        both = [self.use(lambda outbox: outbox.outstanding()) for _ in range(2)]
        opening.callback(MemoryOutbox(self.file))
        self.assertEqual([self.successResultOf(each) for each in both], [0, 0])
        self.assertEqual(len(calls), 1)

    def test_an_empty_queue_is_no_trouble(self) -> None:
        self.failureResultOf(self.use(lambda outbox: outbox.claim()), QueueEmpty)
        self.assertEqual((self.handle.trouble, self.events), (None, []))

    def test_trouble_is_told_once_and_so_is_its_end(self) -> None:
        self.file.failures.extend([AdmissionTimeout("held"), AdmissionTimeout("held")])
        for _ in range(2):
            self.failureResultOf(self.use(lambda outbox: outbox.outstanding()), AdmissionTimeout)
        self.assertEqual(self.handle.trouble, "admission_timeout")
        self.successResultOf(self.use(lambda outbox: outbox.outstanding()))
        self.assertEqual(self.handle.trouble, None)
        self.assertEqual(
            self.lines(),
            ["the outbox of the notices fails: {why}", "the outbox of the notices works again"],
        )
        self.assertEqual(self.file.opened, 1)

    def test_what_fails_one_is_not_over_when_it_works_for_another(self) -> None:
        """On a full disk who reads sees nothing of it."""
        for _ in range(3):
            self.file.failures.append(OutboxFailing("full"))
            self.failureResultOf(
                Deferred.fromCoroutine(self.handle.use(lambda outbox: outbox.outstanding(), "watch")),
                OutboxFailing,
            )
            claiming = self.handle.use(lambda outbox: outbox.claim(), "carrier")
            self.failureResultOf(Deferred.fromCoroutine(claiming), QueueEmpty)
            self.assertEqual(self.handle.trouble, "outbox_failing")
        self.assertEqual(len(self.lines()), 1)
        amid = self.handle.use(lambda outbox: outbox.outstanding(), "watch", ends=False)
        self.successResultOf(Deferred.fromCoroutine(amid))
        self.assertEqual(self.handle.trouble, "outbox_failing")
        end = self.handle.use(lambda outbox: outbox.outstanding(), "watch")
        self.successResultOf(Deferred.fromCoroutine(end))
        self.assertEqual((self.handle.trouble, len(self.lines())), (None, 2))

    def test_the_end_by_an_empty_queue(self) -> None:
        self.file.failures.append(AdmissionTimeout("held"))
        self.failureResultOf(self.use(lambda outbox: outbox.outstanding()), AdmissionTimeout)
        self.failureResultOf(self.use(lambda outbox: outbox.claim()), QueueEmpty)
        self.assertEqual(self.handle.trouble, None)

    def test_one_that_closed_itself_is_opened_anew(self) -> None:
        self.file.failures.append(CommitUncertain("?"))
        self.failureResultOf(self.use(lambda outbox: outbox.outstanding()), CommitUncertain)
        self.successResultOf(self.use(lambda outbox: outbox.outstanding()))
        self.assertEqual(self.file.opened, 2)

    def test_it_cannot_be_opened(self) -> None:
        self.handle.open = lambda: fail(InsecurePath("mode 0644"))
        self.failureResultOf(self.use(lambda outbox: outbox.outstanding()), InsecurePath)
        self.assertEqual(self.handle.trouble, "insecure_path")
        self.handle.open = self.file.open
        self.successResultOf(self.use(lambda outbox: outbox.outstanding()))

    def test_closed_and_used_again(self) -> None:
        self.successResultOf(self.use(lambda outbox: outbox.outstanding()))
        self.successResultOf(Deferred.fromCoroutine(self.handle.close()))
        self.failureResultOf(self.use(lambda outbox: outbox.outstanding()), OutboxClosed)
        self.assertEqual((self.file.closed, self.events), (1, []))
        self.successResultOf(Deferred.fromCoroutine(self.handle.close()))
        self.handle.reopen()
        self.successResultOf(self.use(lambda outbox: outbox.outstanding()))

    def test_words(self) -> None:
        self.assertEqual((kind_of(ValueError()), kind_of(NotAnOutbox())), ("unexpected", "not_an_outbox"))
        self.assertEqual(words_of(NotAnOutbox("a\nb")), "a\\nb")
        self.assertNotIn("secret", words_of(ValueError("secret")))
        self.assertEqual(
            [pause_after(error) for error in (NotAnOutbox(), InsecurePath(), AdmissionTimeout())],
            [LONG_PAUSE, LONG_PAUSE, PAUSE],
        )
