"""Operations that outlive their caller."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.web.shield import Shield


class ShieldTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.shield = Shield()
        self.work: Deferred[str] = Deferred()
        self.events = self.enterContext(capturedLogs())

    def logged(self) -> list[tuple[str, str]]:
        return [(each["what"], each["kind"]) for each in self.events if "what" in each]

    def test_the_result_comes_through(self) -> None:
        answer = self.shield.run("send", self.work)
        self.assertNoResult(answer)
        self.work.callback("done")
        self.assertEqual(self.successResultOf(answer), "done")
        self.assertEqual(self.logged(), [])

    def test_a_result_that_is_already_there(self) -> None:
        self.assertEqual(self.successResultOf(self.shield.run("send", succeed("done"))), "done")
        self.successResultOf(self.shield.finished())

    def test_a_failure_comes_through(self) -> None:
        answer = self.shield.run("send", self.work)
        self.work.errback(KeyError("key"))
        self.failureResultOf(answer, KeyError)
        self.assertEqual(self.logged(), [])

    def test_a_caller_who_leaves_does_not_cancel_the_work(self) -> None:
        answer = self.shield.run("send", self.work)
        answer.cancel()
        self.failureResultOf(answer, CancelledError)
        self.assertFalse(self.work.called)
        self.work.callback("done")
        self.assertEqual(self.logged(), [("send", "str")])

    def test_a_failure_nobody_waits_for_is_one_line_without_its_text(self) -> None:
        answer = self.shield.run("send", self.work)
        answer.cancel()
        self.failureResultOf(answer, CancelledError)
        self.work.errback(KeyError("hunter2"))
        self.assertEqual(self.logged(), [("send", "KeyError")])
        self.assertNotIn("hunter2", repr(self.events))
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_finished_waits_for_all_that_runs(self) -> None:
        other: Deferred[str] = Deferred()
        left = self.shield.run("send", self.work)
        left.cancel()
        self.failureResultOf(left, CancelledError)
        kept = self.shield.run("subscribe", other)
        finished = self.shield.finished()
        self.work.callback("done")
        self.assertNoResult(finished)
        other.callback("done")
        self.successResultOf(finished)
        self.successResultOf(kept)
