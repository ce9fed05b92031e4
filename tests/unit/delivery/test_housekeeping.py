"""Rounds of housekeeping: one line for all that went, and patience with the database."""

from __future__ import annotations

from attrs import define, field
from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import Toll
from telegrammer.core.problems import StoreBusy
from telegrammer.delivery.housekeeping import Housekeeping, interval
from tests.unit.delivery.test_dispatcher import RecordedDeliveries


@define(eq=False)
class PurgedDeliveries(RecordedDeliveries):
    purges: list[int | Exception] = field(factory=list)

    def purge_dead(self) -> Deferred[int]:
        result = self.purges.pop(0)
        return fail(result) if isinstance(result, Exception) else succeed(result)


class HousekeepingTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.store = PurgedDeliveries()
        self.tolls: list[Toll] = []
        self.room = 0
        self.purged: list[int] = []
        self.house = Housekeeping(
            self.store,
            lambda: self.tolls.pop(0) if self.tolls else Toll(),
            self.left,
            on_purged=self.purged.append,
        )
        self.events = self.enterContext(capturedLogs())

    def left(self) -> None:
        self.room += 1

    def round(self, result: int | Exception) -> float:
        self.store.purges.append(result)
        return self.successResultOf(Deferred.fromCoroutine(self.house.round()))

    def test_nothing_to_say(self) -> None:
        self.assertEqual(self.round(0), 60.0)
        self.assertEqual((self.events, self.room), ([], 0))

    def test_one_line_with_the_sum(self) -> None:
        self.tolls = [Toll(evicted=4)]
        self.round(3)
        self.assertEqual([event["count"] for event in self.events], [7])
        self.assertEqual(self.room, 1)
        self.round(0)
        self.assertEqual(len(self.events), 1)
        self.assertEqual(self.purged, [7])

    def test_one_line_for_those_that_died_also_in_trouble(self) -> None:
        self.tolls = [Toll(died=5), Toll(died=1)]
        self.round(0)
        self.round(StoreBusy("locked"))
        self.assertEqual([event["count"] for event in self.events if "count" in event], [5, 1])

    def test_trouble_is_told_once_and_nothing_is_lost(self) -> None:
        self.tolls = [Toll(evicted=4), Toll(evicted=1)]
        for _ in range(3):
            self.assertEqual(self.round(StoreBusy("locked")), 60.0)
        self.assertEqual([event["state"] for event in self.events], ["busy"])
        self.round(2)
        self.assertEqual(self.events[-1]["count"], 7)

    def test_by_default_it_keeps_to_itself(self) -> None:
        self.house = Housekeeping(self.store)
        self.round(2)
        self.assertEqual(self.events[-1]["count"], 2)

    def test_a_short_retention_is_looked_at_more_often(self) -> None:
        self.house = Housekeeping(self.store, interval=interval(100))
        self.assertEqual(self.round(0), 10.0)
        self.assertEqual(self.round(StoreBusy("locked")), 10.0)
        self.assertEqual([interval(1), interval(7 * 86_400)], [1.0, 60.0])
