"""A journal over a database in memory, with the clock in the test's hand."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.folding import Folded
from telegrammer.core.ingestion import Ingested
from telegrammer.core.journal import BEGINNING, Accepted, Pending, Place
from telegrammer.core.telegram import Batch, Malformed, Update
from telegrammer.core.updates import update_id_of
from telegrammer.store.ingestion import SqlIngestion
from telegrammer.store.journal import SqlJournal
from tests.support.inline_database import InlineDatabase
from tests.support.pushed import statuses
from tests.support.queue_checks import add_key, broken

CHAT = 5
NOW = 1_000_000


class JournalCase(SynchronousTestCase):
    max_jobs = 1000

    def setUp(self) -> None:
        self.database = InlineDatabase()
        self.addCleanup(self.database.close)
        self.connection = self.database.connection
        self.owner = add_key(self.connection, "key")
        self.now = NOW + 0.75
        self.journal = SqlJournal(self.database, lambda: self.now)
        self.ingestion = SqlIngestion(self.database, self.max_jobs, lambda: self.now, quarantine=True)

    def accept(self, body: bytes) -> Accepted:
        update_id = update_id_of(body)
        assert update_id is not None
        return self.successResultOf(self.journal.accept(update_id, body))

    def enter(self, body: bytes) -> int:
        """Accept what was not there before; the entry's id."""
        entry_id = self.accept(body).entry_id
        assert entry_id is not None
        return entry_id

    def fold(self, entry_id: int) -> Folded:
        folded = self.successResultOf(self.ingestion.fold(entry_id))
        self.assertEqual(broken(self.connection), [])
        return folded

    def cannot_fold(self, entry_id: int, kind: type[Exception]) -> Exception:
        """The fold is refused, and everything is as before."""
        before = self.dump()
        error: Exception = self.failureResultOf(self.ingestion.fold(entry_id), kind).value
        self.assertEqual(self.dump(), before)
        return error

    def push(self, *bodies: bytes) -> list[Folded]:
        """Accept and fold, one after the other."""
        return [self.fold(self.enter(body)) for body in bodies]

    def poll(self, *elements: Update | Malformed) -> Ingested:
        ingested = self.successResultOf(self.ingestion.accept(Batch(elements)))
        self.assertEqual(broken(self.connection), [])
        return ingested

    def pending(self, after: Place = BEGINNING, limit: int = 100) -> list[Pending]:
        return self.successResultOf(self.journal.pending(after, limit))

    def statuses(self) -> dict[int, str]:
        return statuses(self.connection)

    def entries(self) -> list[int]:
        """The update ids in the journal, in the order of acceptance."""
        return [row[0] for row in self.connection.execute("SELECT update_id FROM journal ORDER BY id")]

    def gateway(self, column: str) -> object:
        return self.connection.execute(f"SELECT {column} FROM gateway").fetchone()[0]

    def webhook_mode(self) -> None:
        self.connection.execute("UPDATE gateway SET mode = 'webhook'")

    def names(self) -> dict[str, int]:
        return dict(self.connection.execute("SELECT username, chat_id FROM usernames"))

    def lane(self, subscription_id: int) -> tuple[int | None, int | None]:
        """(update id of the head, next due)."""
        row: tuple[int | None, int | None] = self.connection.execute(
            """
            SELECT d.update_id, l.next_due FROM lanes l LEFT JOIN deliveries d ON d.id = l.head_id
            WHERE l.subscription_id = ?
            """,
            (subscription_id,),
        ).fetchone()
        return row

    def dump(self) -> list[str]:
        return list(self.connection.iterdump())
