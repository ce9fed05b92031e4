"""Operations that outlive their caller."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.web.shield import shielded


class ShieldTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.held: list[Deferred[Any]] = []
        self.work: Deferred[str] = Deferred()
        self.events = self.enterContext(capturedLogs())

    def logged(self) -> list[tuple[str, str]]:
        return [(each["what"], each["kind"]) for each in self.events if "what" in each]

    def test_the_result_comes_through(self) -> None:
        answer = shielded("send", self.work, self.held.append)
        self.assertNoResult(answer)
        self.work.callback("done")
        self.assertEqual(self.successResultOf(answer), "done")
        self.assertEqual(self.logged(), [])

    def test_a_result_that_is_already_there(self) -> None:
        answer = shielded("send", succeed("done"), self.held.append)
        self.assertEqual(self.successResultOf(answer), "done")

    def test_a_failure_comes_through(self) -> None:
        answer = shielded("send", self.work, self.held.append)
        self.work.errback(KeyError("key"))
        self.failureResultOf(answer, KeyError)
        self.assertEqual(self.logged(), [])

    def test_a_caller_who_leaves_does_not_cancel_the_work(self) -> None:
        answer = shielded("send", self.work, self.held.append)
        answer.cancel()
        self.failureResultOf(answer, CancelledError)
        self.assertFalse(self.work.called)
        self.work.callback("done")
        self.assertEqual(self.logged(), [("send", "str")])

    def test_a_failure_nobody_waits_for_is_one_line_without_its_text(self) -> None:
        answer = shielded("send", self.work, self.held.append)
        answer.cancel()
        self.failureResultOf(answer, CancelledError)
        self.work.errback(KeyError("hunter2"))
        self.assertEqual(self.logged(), [("send", "KeyError")])
        self.assertNotIn("hunter2", repr(self.events))
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_the_work_is_held_until_it_has_ended(self) -> None:
        answer = shielded("send", self.work, self.held.append)
        answer.cancel()
        self.failureResultOf(answer, CancelledError)
        (held,) = self.held
        self.assertNoResult(held)
        self.work.callback("done")
        self.successResultOf(held)
