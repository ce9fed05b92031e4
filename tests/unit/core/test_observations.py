"""What a message teaches of usernames (contract 5.5)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.observations import Observation, observation_of
from telegrammer.core.telegram import Message


class ObservationTests(SynchronousTestCase):
    def test_a_private_chat_teaches_its_name(self) -> None:
        self.assertEqual(
            observation_of(Message(7, "private", b"{}", username="alice")), Observation(7, "alice")
        )

    def test_a_private_chat_without_one_teaches_that(self) -> None:
        self.assertEqual(observation_of(Message(7, "private", b"{}")), Observation(7, None))

    def test_an_odd_username_teaches_nothing(self) -> None:
        self.assertIsNone(observation_of(Message(7, "private", b"{}", username_is_odd=True)))

    def test_no_other_chat_teaches(self) -> None:
        for kind in ("group", "supergroup", "channel", "Private", ""):
            self.assertIsNone(observation_of(Message(7, kind, b"{}", username="alice")), kind)
