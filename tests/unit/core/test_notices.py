"""What the operator is told, and when: each matter, flapping, restarts, clocks that were set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.delivery import QueueCounts
from telegrammer.core.health import FoldingStatus, IngestionStatus, Reason
from telegrammer.core.journal import JournalCounts
from telegrammer.core.messages import Mark, Message
from telegrammer.core.notice_texts import WHAT_TO_DO, Deaths, moment
from telegrammer.core.notices import DeathsWanted, Notice, Observed, deaths_wanted, due

NOW = 1_793_000_000
POLLING = IngestionStatus(state="polling", last_success_at=NOW)
LISTENING = evolve(POLLING, state="listening", mode="webhook")
FAILING = IngestionStatus(state="backing_off", reason="network", consecutive_failures=5)
SUSPENDED = IngestionStatus(state="suspended", reason="credentials", consecutive_failures=1)
WELL = Observed(POLLING, 100)


@define
class Operator:
    """Remembers what was told, as the outbox does."""

    marks: dict[str, Mark] = field(factory=dict)
    told: list[Notice] = field(factory=list)

    def see(self, observed: Observed, now: float) -> list[str]:
        """The subjects of what is due, which is told."""
        found = due(observed, self.marks, now)
        for notice in found:
            Message(notice.subject, notice.body, ("operator@example.org",))
            self.marks[notice.mark.subject] = notice.mark
        self.told += found
        return [notice.subject for notice in found]


def jobs(pending: int = 0, dead: int = 0, in_flight: int = 0) -> QueueCounts:
    return QueueCounts(pending=pending, dead=dead, in_flight=in_flight)


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.operator = Operator()

    def see(self, at: float = 0, **seen: Any) -> list[str]:
        return self.operator.see(evolve(WELL, **seen), NOW + at)


class IngestionTests(Case):
    def test_all_is_well_from_the_start(self) -> None:
        self.assertEqual(self.see(ingestion=IngestionStatus()), [])
        self.assertEqual(self.see(), [])

    def test_an_outage_and_its_end(self) -> None:
        self.assertEqual(self.see(ingestion=FAILING), ["Ingestion keeps failing: network"])
        self.assertEqual(self.see(2, ingestion=FAILING), [])
        self.assertEqual(self.see(9000, ingestion=FAILING), [])
        self.assertEqual(self.see(9002), ["Ingestion has recovered"])
        self.assertEqual(self.see(9004), [])
        self.assertIn("Failures in a row: 5", self.operator.told[0].body)
        self.assertEqual([notice.recovery for notice in self.operator.told], [False, True])

    def test_what_is_no_outage_yet(self) -> None:
        for status in (
            evolve(FAILING, consecutive_failures=4),
            evolve(POLLING, quiet_seconds=299.0),
            evolve(SUSPENDED, state="stopped"),
            evolve(FAILING, state="stopped"),
        ):
            self.assertEqual(self.see(ingestion=status), [])

    def test_five_minutes_without_a_success(self) -> None:
        status = evolve(POLLING, quiet_seconds=300.0)
        self.assertEqual(self.see(ingestion=status), ["Ingestion keeps failing: no success"])
        self.assertIn("2026-10-26 07:33:20 UTC", self.operator.told[0].body)

    def test_the_end_at_once_however_short_it_was(self) -> None:
        self.see(ingestion=SUSPENDED)
        self.assertEqual(self.see(0), ["Ingestion has recovered"])

    def test_being_alive_is_no_recovery(self) -> None:
        """Nor is it after a restart, when nothing has failed yet."""
        self.see(ingestion=FAILING)
        for status in (
            IngestionStatus(),
            IngestionStatus(state="polling"),
            IngestionStatus(state="starting", last_success_at=NOW),
            evolve(POLLING, consecutive_failures=1),
            evolve(POLLING, state="stopped"),
        ):
            self.assertEqual(self.see(1000, ingestion=status), [], status)
        self.assertEqual(self.see(1001), ["Ingestion has recovered"])

    def test_it_flaps(self) -> None:
        """Whatever it does, two notices in ten minutes."""
        for second in range(0, 3600, 2):
            self.see(second, ingestion=SUSPENDED if second % 4 else POLLING)
        times = [notice.mark.at for notice in self.operator.told]
        self.assertTrue(all(later - first >= 600 for first, later in zip(times, times[2:], strict=False)))
        self.assertEqual(len(times), 12)

    def test_an_outage_that_begins_soon_after_is_told_if_it_lasts(self) -> None:
        self.see(ingestion=FAILING)
        self.see(10)
        self.assertEqual(self.see(20, ingestion=FAILING), [])
        self.assertEqual(self.see(609, ingestion=FAILING), [])
        self.assertEqual(self.see(610, ingestion=FAILING), ["Ingestion keeps failing: network"])
        self.see(620)
        self.see(630, ingestion=FAILING)
        self.assertEqual(self.see(640), [])
        self.assertEqual(self.see(2000), [])

    def test_it_gets_worse(self) -> None:
        self.see(ingestion=FAILING)
        self.assertEqual(self.see(300, ingestion=SUSPENDED), [])
        self.assertEqual(self.see(600, ingestion=SUSPENDED), ["Ingestion is suspended: credentials"])
        self.assertEqual(self.see(1300, ingestion=FAILING), [])
        self.assertEqual(self.see(1301), ["Ingestion has recovered"])

    def test_by_webhook(self) -> None:
        for reason in get_args(Reason):
            self.operator = Operator()
            failing = IngestionStatus("suspended", reason, 5, NOW, mode="webhook")
            self.assertEqual(self.see(ingestion=failing), [f"Ingestion is suspended: {reason}"])
            self.assertNotRegex(self.operator.told[0].body, "polled|successful poll|refuses polling")
            self.assertEqual(self.see(1, ingestion=evolve(LISTENING, state="starting")), [])
            self.assertEqual(self.see(2, ingestion=evolve(LISTENING, last_success_at=None)), [])
            self.assertEqual(self.see(3, ingestion=LISTENING), ["Ingestion has recovered"])

    def test_every_reason_has_its_advice(self) -> None:
        self.assertEqual(set(WHAT_TO_DO), {None, *get_args(Reason)})

    def test_what_a_later_version_has_told(self) -> None:
        self.operator.marks["ingestion"] = Mark("ingestion", "unheard-of", NOW)
        self.assertEqual(self.see(5000, ingestion=SUSPENDED), [])
        self.assertEqual(self.see(5002), ["Ingestion has recovered"])


class QueueTests(Case):
    def fill(self, at: float, used: int, **seen: Any) -> list[str]:
        return self.see(at, counts=jobs(used - used // 3 - 1, used // 3, 1), **seen)

    def test_it_fills_and_drains(self) -> None:
        self.assertEqual(self.fill(0, 79), [])
        self.assertEqual(self.fill(2, 80), ["The delivery queue is more than 80 % full"])
        self.assertEqual(self.fill(4, 100), [])
        self.assertEqual(self.fill(602, 100), ["The delivery queue is full"])
        self.assertEqual(self.fill(604, 90), [])
        self.assertEqual(self.fill(606, 60), [])
        self.assertEqual(self.fill(608, 59), ["The delivery queue has drained"])
        self.assertEqual(self.fill(610, 10), [])
        self.assertIn("80 jobs of at most 100", self.operator.told[0].body)

    def test_a_batch_that_does_not_fit(self) -> None:
        full = IngestionStatus(state="suspended", reason="capacity", consecutive_failures=1)
        self.assertEqual(
            self.fill(0, 98, ingestion=full),
            ["Ingestion is suspended: capacity", "The delivery queue is full"],
        )

    def test_a_message_that_was_pushed_and_does_not_fit(self) -> None:
        for folding in (FoldingStatus("backing_off"), FoldingStatus("ok")):
            self.assertEqual(self.see(counts=jobs(50), ingestion=LISTENING, folding=folding), [])
        lacking = FoldingStatus("backing_off", lacks_room=True)
        seen = self.see(counts=jobs(50), ingestion=LISTENING, folding=lacking)
        self.assertEqual(seen, ["The delivery queue is full"])
        self.assertIn("New messages wait in the journal until there is room.\n", self.operator.told[0].body)
        self.assertEqual(self.see(1, counts=jobs(50)), ["The delivery queue has drained"])
        self.see(601, counts=jobs(90), ingestion=LISTENING)
        self.assertIn("When it is full, new messages wait in the journal.", self.operator.told[-1].body)

    def test_it_swings_around_the_border(self) -> None:
        for second in range(0, 7200, 2):
            self.fill(second, 81 if second % 4 else 79)
        self.assertEqual(len(self.operator.told), 1)

    def test_nothing_is_known_of_it(self) -> None:
        self.fill(0, 100)
        self.assertEqual(self.see(2000, counts=None), [])


def died(number: int, count: int = 1, reason: str = "HTTP 503") -> Deaths:
    return Deaths(number, reason, count, NOW)


class DeathsTests(Case):
    def wanted(self, at: float) -> DeathsWanted | None:
        return deaths_wanted(self.operator.marks, NOW + at)

    def test_they_are_told_together(self) -> None:
        found = [died(7, 2), died(9, 5), died(7, 4, "timeout after 10 s")]
        self.assertEqual(self.see(deaths=found), ["11 deliveries died, of 2 subscriptions"])
        body = self.operator.told[0].body
        self.assertIn(
            "\nsubscription 7: 6: timeout after 10 s (4), HTTP 503 (2)\nsubscription 9: 5: HTTP 503 (5)\n",
            body,
        )

    def test_one(self) -> None:
        self.assertEqual(self.see(deaths=[died(7)]), ["1 delivery died, of 1 subscription"])

    def test_the_first_look_is_at_all_there_are(self) -> None:
        self.assertEqual(self.wanted(0.9), DeathsWanted(-1, NOW, {}))

    def test_each_subscription_once_an_hour_and_none_is_lost(self) -> None:
        self.see(deaths=[died(7)])
        self.assertEqual(self.wanted(599), None)
        # The second of the first notice was still running.
        self.assertEqual(self.wanted(600), DeathsWanted(NOW - 1, NOW + 600, {7: NOW + 600}))
        self.see(1200, deaths=[died(9)])
        self.assertEqual(
            self.wanted(1800), DeathsWanted(NOW + 1199, NOW + 1800, {7: NOW + 1800, 9: NOW + 1800})
        )
        self.assertEqual(self.wanted(3600), DeathsWanted(NOW + 1199, NOW + 3600, {7: NOW - 1, 9: NOW + 3600}))
        self.see(3600, deaths=[died(7)])
        self.see(9000, deaths=[died(8)])
        self.assertEqual(json.loads(self.operator.marks["deaths"].state), {"8": NOW + 9000})

    def test_so_many_that_they_share_their_hour(self) -> None:
        self.see(deaths=[died(1)])
        self.see(700, deaths=[died(number) for number in range(2, 1002)])
        self.assertIn("\n... and 950 more subscriptions\n", self.operator.told[-1].body)
        self.assertEqual(self.wanted(700 + 3599), None)
        # The first one's since its own notice: it was not asked for.
        self.assertEqual(self.wanted(700 + 3600), DeathsWanted(NOW - 1, NOW + 4300, {}))
        self.see(4300, deaths=[died(3)])
        self.assertEqual(json.loads(self.operator.marks["deaths"].state), {"3": NOW + 4300})

    def test_a_clock_that_was_set_back(self) -> None:
        self.see(deaths=[died(7)])
        self.assertEqual(self.wanted(-7200), DeathsWanted(NOW - 10_800, NOW - 7200, {}))
        self.see(-7200, deaths=[died(7)])
        self.assertEqual(self.wanted(-6000), DeathsWanted(NOW - 7201, NOW - 6000, {7: NOW - 6000}))

    def test_a_mark_that_cannot_be_read(self) -> None:
        for state in ("", "[]", "[" * 10_000, '{"a":1}', '{"1":null}', "true", "null"):
            self.operator.marks["deaths"] = Mark("deaths", state, NOW)
            self.assertEqual(self.wanted(600), DeathsWanted(NOW - 1, NOW + 600, {}), state)

    def test_foreign_reasons_are_short_and_harmless(self) -> None:
        reasons = ["a\nb\u2028", "x" * 10_000, "", *(f"HTTP {status}" for status in range(500, 505))]
        self.see(deaths=[died(7, 10 - number, reason) for number, reason in enumerate(reasons)])
        body = self.operator.told[0].body
        self.assertIn("a?b? (10), ", body)
        self.assertIn(", unknown failure (8), ", body)
        self.assertIn(", other reasons\n", body)
        self.assertLess(len(body), 1000)

    def test_the_longest_there_can_be_is_within_the_limits(self) -> None:
        """``see`` makes a message of it."""
        found = [
            died(2**63 - number, 10**9, f"{reason}" + "x" * 200)
            for number in range(1, 60)
            for reason in range(7)
        ]
        self.assertEqual(len(self.see(deaths=found)), 1)


def failed(count: int, newest: int | None) -> JournalCounts:
    return JournalCounts(pending=3, failed=count, oldest_pending_at=NOW, newest_failed=newest)


class FailedUpdatesTests(Case):
    def test_none_has_failed(self) -> None:
        self.assertEqual(self.see(journal=None), [])
        self.assertEqual(self.see(journal=failed(0, None)), [])

    def test_each_is_news_once_however_often_the_daemon_starts(self) -> None:
        self.assertEqual(self.see(journal=failed(1, 7)), ["1 update from Telegram cannot be understood"])
        self.assertIn("telegrammer replay --failed", self.operator.told[0].body)
        self.assertEqual(self.see(10_000, journal=failed(1, 7)), [])
        # Replayed; what failed before is no news.
        self.assertEqual(self.see(20_000, journal=failed(0, None)), [])
        self.assertEqual(self.see(20_001, journal=failed(1, 6)), [])

    def test_more_of_them_ten_minutes_later_together(self) -> None:
        self.see(journal=failed(1, 7))
        self.assertEqual(self.see(599, journal=failed(2, 9)), [])
        self.assertEqual(
            self.see(600, journal=failed(3, 11)), ["3 updates from Telegram cannot be understood"]
        )
        self.assertEqual(self.see(1200, journal=failed(3, 11)), [])

    def test_a_mark_that_cannot_be_read(self) -> None:
        for state in ("", "x", "-1", "{}"):
            self.operator.marks["updates"] = Mark("updates", state, NOW - 600)
            self.assertEqual(len(self.see(journal=failed(1, 7))), 1)


class PurgeTests(Case):
    def test_they_are_added_up(self) -> None:
        self.assertEqual(self.see(purged=1), ["1 dead delivery purged"])
        self.assertEqual(self.see(100, purged=4), [])
        self.assertEqual(self.see(600, purged=12), ["12 dead deliveries purged"])


class BackupTests(Case):
    def test_each_once(self) -> None:
        first, second = "x.db.backup-v0-20260101-000000", "x.db.backup-v1-20260601-000000"
        self.assertEqual(self.see(backups=[first]), ["A migration made 1 backup of the database"])
        self.assertEqual(self.see(1, backups=[first]), [])
        self.assertEqual(self.see(2, backups=[second, first]), ["A migration made 1 backup of the database"])
        self.assertNotIn(first, self.operator.told[-1].body)
        self.assertEqual(self.see(3, backups=[second]), [])
        self.assertEqual(self.see(4, backups=[]), [])

    def test_odd_names(self) -> None:
        names = ["a\nb.db.backup-v0-1", "\udcff.db.backup-v0-2", "\u2028.db.backup-v0-3"]
        self.assertEqual(self.see(backups=names), ["A migration made 3 backups of the database"])
        self.assertEqual(self.see(1, backups=names), [])

    def test_a_heap_of_them(self) -> None:
        self.see(backups=[f"x.db.backup-v0-{number:03}" for number in range(150)])
        self.assertIn("\n... and 100 more\n", self.operator.told[0].body)


class ClockTests(Case):
    def test_marks_in_the_future_silence_nothing(self) -> None:
        self.see(ingestion=FAILING)
        self.see(1)
        self.assertEqual(self.see(-86_400, ingestion=FAILING), ["Ingestion keeps failing: network"])

    def test_times_no_calendar_has(self) -> None:
        self.assertEqual(moment(1e15), "1000000000000000")


STATES: Sequence[Mapping[str, Any]] = (
    {},
    {"ingestion": FAILING},
    {"ingestion": SUSPENDED},
    {"counts": jobs(85)},
    {"counts": jobs(100)},
    {"counts": jobs(1)},
    {"purged": 3},
    {"journal": failed(1, 7)},
    {"journal": failed(2, 9)},
    {"deaths": [died(1)]},
    {"deaths": [died(2), died(3)]},
)


class FloodProperties(SynchronousTestCase):
    @given(st.lists(st.tuples(st.sampled_from(STATES), st.integers(0, 400)), max_size=60))
    def test_two_notices_of_a_matter_in_ten_minutes_at_most(
        self, steps: list[tuple[Mapping[str, Any], int]]
    ) -> None:
        operator, now = Operator(), NOW
        for seen, seconds in steps:
            now += seconds
            if "deaths" in seen and deaths_wanted(operator.marks, now) is None:
                continue
            operator.see(evolve(WELL, **seen), now)
        for matter in ("ingestion", "queue", "updates", "deaths", "purges"):
            of = [notice for notice in operator.told if notice.mark.subject == matter]
            times = [notice.mark.at for notice in of]
            assert all(third - first >= 600 for first, third in zip(times, times[2:], strict=False))
            troubles = [notice.mark.at for notice in of if not notice.recovery]
            assert all(later - first >= 600 for first, later in zip(troubles, troubles[1:], strict=False))
