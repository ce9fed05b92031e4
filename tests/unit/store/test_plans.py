"""The hot statements search: none of them walks a table or sorts (contract 5.2)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.store import ingestion, intake, keys, subscriptions, usernames
from tests.support.inline_database import InlineDatabase
from tests.support.plans import costly_steps, plan_of

HOT = {
    "owner of a key": keys.OWNER,
    "delete a key": keys.DELETE,
    "chat of a username": usernames.CHAT,
    "confirm": usernames.CONFIRM,
    "forget a chat": usernames.FORGET_CHAT,
    "forget a name": usernames.FORGET_NAME,
    "equal subscription": subscriptions.EQUAL,
    "of the owner": subscriptions.OF_OWNER,
    "listing": subscriptions.LISTING,
    "remove": subscriptions.DELETE,
    "of the chat": subscriptions.OF_CHAT,
    "drained": subscriptions.DELETE_DRAINED,
    "cursor": ingestion.CURSOR,
    "anybody": intake.ANYBODY,
    "payload": intake.PAYLOAD,
    "jobs": intake.JOBS,
    "refer": intake.REFER,
    "unused": intake.DROP_UNUSED,
    "wake": intake.WAKE,
    "marks": ingestion.DROP_PASSED_MARKS,
}


class PlanTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.database = InlineDatabase()
        self.addCleanup(self.database.close)

    def test_hot_statements_only_search(self) -> None:
        for name, statement in HOT.items():
            self.assertEqual(costly_steps(self.database.connection, statement), [], name)

    def test_jobs_are_selected_by_their_chat(self) -> None:
        steps = plan_of(self.database.connection, intake.JOBS)
        self.assertTrue(any("subscriptions_chat (chat_id=?)" in step for step in steps), steps)

    def test_the_same_after_analyze(self) -> None:
        self.database.connection.execute("ANALYZE")
        self.test_hot_statements_only_search()
