from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectBindError, ConnectError, NoRouteError, TimeoutError
from twisted.internet.interfaces import IConnector
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.outbound.connecting import (
    CONNECT_FAILED,
    CONNECT_TIMEOUT,
    REFUSED,
    STEP,
    UNREACHABLE,
    Made,
    Race,
    Unreachable,
    interleaved,
)
from tests.support.network import Network, address

V6, V4 = "2001:db8::1", "192.0.2.1"


class Connected(Protocol):
    def __init__(self, made: Made) -> None:
        self.made = made

    def connectionMade(self) -> None:
        self.made()


class Instant(Network):
    """Refuses while it is being asked."""

    def connectTCP(self, *args: Any, **kwargs: Any) -> IConnector:
        connector = super().connectTCP(*args, **kwargs)
        self.attempts[-1].refuse()
        return connector


def as_it_is(factory: ClientFactory[Any]) -> ClientFactory[Any]:
    return factory


class RaceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock, self.network = Clock(), Network()

    def race(self, *texts: str) -> Deferred[None]:
        race = Race(self.network, self.clock, Connected, as_it_is, 3.0)
        return race.start([address(text) for text in texts])

    def why(self, result: Deferred[None]) -> str:
        failed = self.failureResultOf(result, Unreachable)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        assert isinstance(failed.value, Unreachable)
        return failed.value.why

    def test_one_address(self) -> None:
        result = self.race(V4)
        self.assertNoResult(result)
        self.network.attempts[0].accept()
        self.successResultOf(result)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    @pytest.mark.report("J4")
    def test_a_silent_address_is_not_waited_for(self) -> None:
        result = self.race(V6, V4)
        self.clock.advance(STEP - 0.01)
        self.assertEqual(self.network.hosts, [V6])
        self.clock.advance(0.01)
        self.assertEqual(self.network.hosts, [V6, V4])
        self.network.attempts[1].accept()
        self.successResultOf(result)
        self.assertTrue(self.network.attempts[0].stopped)
        self.assertFalse(self.network.attempts[1].stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_the_first_address_may_still_win(self) -> None:
        result = self.race(V6, V4)
        self.clock.advance(STEP)
        self.network.attempts[0].accept()
        self.successResultOf(result)
        self.assertTrue(self.network.attempts[1].stopped)

    def test_a_refusal_tries_the_next_at_once(self) -> None:
        result = self.race(V6, V4)
        self.network.attempts[0].refuse()
        self.assertEqual(self.network.hosts, [V6, V4])
        self.network.attempts[1].refuse()
        self.assertEqual(self.why(result), REFUSED)

    def test_all_silent(self) -> None:
        result = self.race(V6, V4)
        self.clock.pump([STEP, 3.0 - STEP])
        self.assertEqual(self.why(result), CONNECT_TIMEOUT)
        self.assertTrue(all(attempt.stopped for attempt in self.network.attempts))

    def test_one_refuses_while_the_other_is_silent(self) -> None:
        result = self.race(V6, V4)
        self.clock.advance(STEP)
        self.network.attempts[1].refuse()
        self.assertNoResult(result)
        self.clock.advance(3.0)
        self.assertEqual(self.why(result), CONNECT_TIMEOUT)

    def test_the_most_telling_reason(self) -> None:
        for errors, why in (
            ([NoRouteError()], UNREACHABLE),
            ([TimeoutError()], CONNECT_TIMEOUT),
            ([ConnectError()], CONNECT_FAILED),
            ([ConnectBindError()], CONNECT_FAILED),
            ([NoRouteError(), ConnectError()], UNREACHABLE),
            ([NoRouteError(), None], REFUSED),
        ):
            self.network.attempts.clear()
            result = self.race(V6, V4) if len(errors) == 2 else self.race(V4)
            for number, error in enumerate(errors):
                self.network.attempts[number].refuse(error)
            self.assertEqual(self.why(result), why)

    def test_an_attempt_that_fails_within_the_call(self) -> None:
        network = Instant()
        result = Race(network, self.clock, Connected, as_it_is, 3.0).start([address(V6), address(V4)])
        self.assertEqual(self.why(result), REFUSED)
        self.assertEqual(network.hosts, [V6, V4])

    def test_no_addresses(self) -> None:
        self.assertEqual(self.why(self.race()), CONNECT_FAILED)

    def test_given_up(self) -> None:
        result = self.race(V6, V4)
        self.clock.advance(STEP)
        result.cancel()
        self.failureResultOf(result, CancelledError)
        self.assertTrue(all(attempt.stopped for attempt in self.network.attempts))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_name_gets_a_bounded_number_of_attempts(self) -> None:
        self.assertEqual(len(interleaved(address(f"192.0.2.{n}") for n in range(200))), 32)

    def test_families_take_turns(self) -> None:
        texts = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.1"]
        order = [found.host for found in interleaved(address(text) for text in texts)]
        self.assertEqual(order, ["2001:db8::1", "192.0.2.1", "2001:db8::2", "2001:db8::3"])
