"""The one door: the workers are woken after the commit, and only for jobs."""

from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.ingestion import Cursor, Ingested
from telegrammer.core.problems import CapacityReached
from telegrammer.core.telegram import Batch, Malformed, Message, Update
from telegrammer.ingest.ingestor import Ingestor
from tests.support.telegram import FakeIngestion

MESSAGE = Message(7, "private", b"{}")


class IngestorTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.store = FakeIngestion()
        self.rings: list[list[int]] = []
        """What was committed when the workers were woken."""

        def wake() -> None:
            self.rings.append(list(self.store.committed))

        self.purged: list[int] = []
        self.ingestor = Ingestor(self.store, wake, self.purged.append)

    def accept(self, *elements: Update | Malformed) -> Ingested:
        return self.successResultOf(Deferred.fromCoroutine(self.ingestor.accept(Batch(elements))))

    def test_wakes_after_the_commit(self) -> None:
        done = self.accept(Update(5, MESSAGE))
        self.assertEqual((done.jobs, done.cursor), (1, Cursor(6)))
        self.assertEqual(self.rings, [[5]])

    def test_does_not_wake_for_nothing(self) -> None:
        self.accept(Update(5))
        self.accept()
        self.assertEqual(self.rings, [])

    def test_a_refused_batch_is_the_callers(self) -> None:
        self.store.trouble.append(CapacityReached())
        refused = Deferred.fromCoroutine(self.ingestor.accept(Batch((Update(5, MESSAGE),))))
        self.failureResultOf(refused, CapacityReached)
        self.assertEqual(self.rings, [])

    def test_tells_of_a_reset_and_of_what_was_skipped(self) -> None:
        self.store.stored, self.store.skips = Cursor(5000), {6}
        with capturedLogs() as events:
            self.accept(Update(5), Malformed(6, "x"))
        warnings = [event for event in events if event["log_level"].name == "warn"]
        self.assertEqual([event.get("epoch") for event in warnings], [1, None])
        self.assertEqual([event.get("update_id") for event in warnings], [None, 6])

    def test_tells_of_moved_subscriptions_and_of_the_dead_that_made_room(self) -> None:
        async def accept(batch: Batch) -> Ingested:
            return Ingested(Cursor(6), fresh=1, replayed=0, jobs=0, migrated=3, evicted=4)

        self.patch(FakeIngestion, "accept", lambda store, batch: accept(batch))
        with capturedLogs() as events:
            self.accept(Update(5))
        self.assertEqual([event["count"] for event in events if "count" in event], [4, 3])
        self.assertEqual(self.purged, [4])

    def test_by_default_it_tells_nobody_else(self) -> None:
        async def accept(batch: Batch) -> Ingested:
            return Ingested(Cursor(6), fresh=1, replayed=0, jobs=0, migrated=0, evicted=4)

        self.patch(FakeIngestion, "accept", lambda store, batch: accept(batch))
        self.ingestor = Ingestor(self.store, lambda: None)
        self.accept(Update(5))
