"""Who holds a message of an outbox, and for how long (contract 7.2)."""

from __future__ import annotations

import copy
import pickle

import attrs
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.leases import LEASE_SECONDS, Leased, expiry, is_current
from telegrammer.core.messages import Message


class LeaseTests(SynchronousTestCase):
    def test_a_minute(self) -> None:
        self.assertEqual(expiry(100.9), 160)
        self.assertTrue(is_current(160, 100.9))
        self.assertTrue(is_current(160, 159.999))
        self.assertFalse(is_current(160, 160.0))

    def test_a_clock_that_was_set_back_holds_nothing_up(self) -> None:
        self.assertTrue(is_current(160, 160 - 2 * LEASE_SECONDS))
        self.assertFalse(is_current(160, 160 - 2 * LEASE_SECONDS - 1))


class LeasedTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.message = Message("subject", "body", ("a@example.org",))
        self.leased = Leased.under("the lease", 160, "id", self.message, 40)

    def test_what_it_says(self) -> None:
        self.assertEqual((self.leased.lease, self.leased.lease_expires_at), ("the lease", 160))
        self.assertEqual(self.leased.message, self.message)

    def test_the_lease_is_in_no_copy_and_no_text(self) -> None:
        self.assertEqual(repr(self.leased), "Leased(id='id', created_at=40)")
        self.assertEqual(
            attrs.asdict(self.leased),
            {
                "id": "id",
                "subject": "subject",
                "body": "body",
                "recipients": ("a@example.org",),
                "created_at": 40,
            },
        )
        self.assertNotIn(b"the lease", pickle.dumps(self.leased))
        for again in (copy.copy(self.leased), pickle.loads(pickle.dumps(self.leased))):
            self.assertEqual(again, self.leased)
            self.assertEqual((again.lease, again.lease_expires_at), (None, None))
