"""A thread that is there while there is something to do (contract 7.1)."""

from __future__ import annotations

import threading
from functools import partial
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.messaging.one_thread import OneThread

PATIENCE = 20.0


class OneThreadTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.thread = OneThread("spool")
        self.held, self.free, self.ran = threading.Event(), threading.Event(), threading.Event()

    def hold(self) -> threading.Thread:
        """The thread, busy until ``free`` is set."""
        found: list[threading.Thread] = []

        def job() -> None:
            found.append(threading.current_thread())
            self.held.set()
            self.free.wait(PATIENCE)

        self.thread.put(job)
        self.assertTrue(self.held.wait(PATIENCE))
        return found[0]

    def test_one_after_another_then_none(self) -> None:
        order: list[int] = []
        thread = self.hold()
        for number in range(20):
            self.thread.put(partial(order.append, number))
        self.thread.put(self.ran.set)
        self.assertEqual(order, [])
        self.free.set()
        self.assertTrue(self.ran.wait(PATIENCE))
        self.assertEqual(order, list(range(20)))
        thread.join(PATIENCE)
        self.assertFalse(thread.is_alive())

    def test_another_when_there_is_more(self) -> None:
        first = self.hold()
        self.free.set()
        first.join(PATIENCE)
        self.held.clear()
        self.assertIsNot(self.hold(), first)

    def test_no_exit_waits_for_it(self) -> None:
        thread = self.hold()
        self.assertTrue(thread.daemon)
        self.free.set()
        thread.join(PATIENCE)

    def test_no_thread(self) -> None:
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            self.assertRaises(RuntimeError, self.thread.put, self.ran.set)
        self.thread.put(self.free.set)
        self.assertTrue(self.free.wait(PATIENCE))
        self.assertFalse(self.ran.is_set())
