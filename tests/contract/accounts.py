"""
What every implementation of ``ports.Keys``, ``Subscriptions`` and ``Usernames`` does.

A subclass makes the ports and puts keys and names behind them; see ``test_sql`` and ``test_memory``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import SubscriptionLimit, UnknownKey
from telegrammer.core.subscriptions import Subscription, SubscriptionLimits
from telegrammer.ports import Keys, Subscriptions, Usernames

if TYPE_CHECKING:
    Case = SynchronousTestCase
else:
    # No test of its own: a mixin.
    Case = object

T = TypeVar("T")


class PortSuite(Case):
    """Reads results that are there at once."""

    def result(self, awaitable: Awaitable[T]) -> T:
        return self.successResultOf(_started(awaitable))

    def failure(self, awaitable: Awaitable[T], kind: type[Exception]) -> Exception:
        error: Exception = self.failureResultOf(_started(awaitable), kind).value
        return error


async def _wait_for(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _started(awaitable: Awaitable[T]) -> Deferred[T]:
    return Deferred.fromCoroutine(_wait_for(awaitable))


class KeysSuite(PortSuite):
    def make_keys(self, known: dict[bytes, str]) -> Keys:
        """A port that knows these digests."""
        raise NotImplementedError

    def test_known_digests_have_an_owner_each(self) -> None:
        keys = self.make_keys({b"a" * 32: "a", b"b" * 32: "b"})
        first, second = self.result(keys.owner_of(b"a" * 32)), self.result(keys.owner_of(b"b" * 32))
        self.assertIsInstance(first, int)
        self.assertNotEqual(first, second)
        self.assertEqual(self.result(keys.owner_of(b"a" * 32)), first)

    def test_an_unknown_one_has_none(self) -> None:
        keys = self.make_keys({b"a" * 32: "a"})
        for digest in (b"A" * 32, b"a" * 31, b"a" * 33, b""):
            self.assertIsNone(self.result(keys.owner_of(digest)))


class SubscriptionsSuite(PortSuite):
    def make_subscriptions(self, owners: int, limits: SubscriptionLimits) -> Subscriptions:
        """An empty port for owners 1, 2, … of that number."""
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()
        self.port = self.make_subscriptions(2, SubscriptionLimits(3, 4))

    def add(self, owner: int, chat_id: int, url: str = "http://h/") -> int:
        return self.result(self.port.add(owner, chat_id, url))

    def test_the_same_again_is_the_same(self) -> None:
        self.assertEqual(self.add(1, 5), self.add(1, 5))
        self.assertEqual(len(self.result(self.port.of(1))), 1)

    def test_owner_chat_and_url_make_the_difference(self) -> None:
        ids = {self.add(1, 5), self.add(2, 5), self.add(1, -5), self.add(1, 5, "http://h/?x")}
        self.assertEqual(len(ids), 4)

    def test_listing_is_the_owners_in_id_order(self) -> None:
        first, _, second = self.add(1, 9), self.add(2, 1), self.add(1, -(2**63), "http://h/2")
        self.assertEqual(
            list(self.result(self.port.of(1))),
            [Subscription(first, 9, "http://h/"), Subscription(second, -(2**63), "http://h/2")],
        )
        self.assertEqual(list(self.result(self.port.of(3))), [])

    def test_limit_of_a_key(self) -> None:
        kept = [self.add(1, chat) for chat in (1, 2, 3)]
        error = self.failure(self.port.add(1, 4, "http://h/"), SubscriptionLimit)
        self.assertIn("3", str(error))
        self.assertEqual(self.add(1, 2), kept[1])
        self.add(2, 4)

    def test_limit_of_all(self) -> None:
        kept = [self.add(owner, chat) for owner in (1, 2) for chat in (1, 2)]
        error = self.failure(self.port.add(2, 3, "http://h/"), SubscriptionLimit)
        self.assertIn("4", str(error))
        self.assertTrue(self.result(self.port.remove(1, kept[0])))
        self.add(2, 3)

    def test_ids_are_never_used_again(self) -> None:
        gone = self.add(1, 5)
        self.assertTrue(self.result(self.port.remove(1, gone)))
        self.assertGreater(self.add(1, 5), gone)

    def test_removing_what_is_not_there_or_anothers(self) -> None:
        mine = self.add(1, 5)
        for owner, wanted in ((1, mine + 1), (2, mine), (1, -1), (1, 2**63 - 1)):
            self.assertFalse(self.result(self.port.remove(owner, wanted)))
        self.assertTrue(self.result(self.port.remove(1, mine)))
        self.assertFalse(self.result(self.port.remove(1, mine)))

    def test_an_owner_that_is_gone(self) -> None:
        self.failure(self.port.add(3, 5, "http://h/"), UnknownKey)


class UsernamesSuite(PortSuite):
    def make_usernames(self, known: dict[str, int]) -> Usernames:
        """A port that has seen these."""
        raise NotImplementedError

    def test_known_and_unknown(self) -> None:
        port = self.make_usernames({"alice": 7, "bob": -(2**63)})
        self.assertEqual(self.result(port.chat_of("alice")), 7)
        self.assertEqual(self.result(port.chat_of("bob")), -(2**63))
        self.assertIsNone(self.result(port.chat_of("carol")))
        self.assertIsNone(self.result(port.chat_of("")))
