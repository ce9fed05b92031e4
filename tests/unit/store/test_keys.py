"""Keys as the commands use them (contract 3)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import InvalidRequest, StoreBusy
from telegrammer.core.subscriptions import KeyRecord
from telegrammer.core.telegram import Batch
from telegrammer.store import ingestion, keys
from telegrammer.store.engine import immediate
from telegrammer.store.keys import SqlKeys
from tests.support.inline_database import InlineDatabase
from tests.support.queue_checks import add_key, broken, jobs, subscribe, text


class KeyTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.database = InlineDatabase()
        self.addCleanup(self.database.close)
        self.connection = self.database.connection

    def test_listing_shows_names_times_and_origin_in_order(self) -> None:
        with immediate(self.connection) as cursor:
            keys.add(cursor, "zoë", b"1" * 32, 1000.9)
            keys.add(cursor, "a", b"2" * 32, 999, legacy=True)
            self.assertEqual(keys.listing(cursor), [KeyRecord("zoë", 1000), KeyRecord("a", 999, legacy=True)])

    def test_a_name_is_taken_once(self) -> None:
        add_key(self.connection, "a")
        with self.assertRaises(InvalidRequest) as caught, immediate(self.connection) as cursor:
            keys.add(cursor, "a", b"2" * 32, 0)
        self.assertIn("exists already", caught.exception.message)
        # Names are compared byte for byte.
        add_key(self.connection, "A")

    def test_names_break_no_rule(self) -> None:
        for name in ("", "x" * 129, "a\nb", "a\x00"):
            with self.assertRaises(InvalidRequest), immediate(self.connection) as cursor:
                keys.add(cursor, name, b"2" * 32, 0)

    def test_a_deleted_key_takes_everything_along(self) -> None:
        gone, kept = add_key(self.connection, "gone"), add_key(self.connection, "kept")
        subscribe(self.connection, gone, 5)
        subscribe(self.connection, gone, 6)
        mine = subscribe(self.connection, kept, 5)
        with immediate(self.connection) as cursor:
            ingestion.accept(cursor, Batch((text(1, 5), text(2, 6))), 100, 0)
        with immediate(self.connection) as cursor:
            self.assertTrue(keys.delete(cursor, "gone"))
            self.assertFalse(keys.delete(cursor, "gone"))
        self.assertEqual(jobs(self.connection), [(mine, 0, 1, "u1")])
        self.assertEqual(self.connection.execute("SELECT COUNT(*) FROM payloads").fetchone(), (1,))
        self.assertEqual(self.connection.execute("SELECT COUNT(*) FROM lanes").fetchone(), (1,))
        self.assertEqual(broken(self.connection), [])

    def test_ids_are_never_used_again(self) -> None:
        first = add_key(self.connection, "a")
        with immediate(self.connection) as cursor:
            keys.delete(cursor, "a")
        self.assertGreater(add_key(self.connection, "a"), first)

    def test_the_look_up_has_connections_of_its_own(self) -> None:
        self.successResultOf(SqlKeys(self.database).owner_of(b"1" * 32))
        self.assertEqual(self.database.pools, ["credentials"])

    def test_a_locked_database_is_no_missing_key(self) -> None:
        self.database.trouble = StoreBusy()
        self.failureResultOf(SqlKeys(self.database).owner_of(b"1" * 32), StoreBusy)
