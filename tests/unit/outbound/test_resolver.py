from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
from attrs import define, field
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import DNSLookupError
from twisted.internet.interfaces import (
    IAddress,
    IHostResolution,
    IReactorFromThreads,
    IReactorPluggableNameResolver,
    IResolutionReceiver,
)
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from telegrammer.outbound.resolver import (
    LOOKUP_FAILED,
    NAME_NOT_FOUND,
    REMEMBERED,
    SLOW,
    STALE,
    LookupFailed,
    ResolvingReactor,
    ThreadedResolver,
    reactor_with_resolver,
)
from tests.support.network import Network


@implementer(IReactorFromThreads)
class Here:
    """Runs at once what a thread hands over."""

    def callFromThread(self, callable: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        callable(*args, **kwargs)


@define(eq=False)
class Threads:
    """Stands for ``threading.Thread``: a thread runs when the test says so."""

    begun: list[tuple[Callable[..., None], tuple[Any, ...]]] = field(factory=list)
    daemons: list[bool] = field(factory=list)
    exhausted: bool = False

    def __call__(
        self, target: Callable[..., None], args: tuple[Any, ...], name: str, daemon: bool
    ) -> Threads:
        self.begun.append((target, args))
        self.daemons.append(daemon)
        return self

    def start(self) -> None:
        if self.exhausted:
            self.begun.pop()
            raise RuntimeError("can't start new thread")

    @property
    def hosts(self) -> list[str]:
        return [lookup.host for _, (lookup,) in self.begun]

    def run(self, number: int = 0) -> None:
        target, args = self.begun.pop(number)
        target(*args)


def found(*texts: str) -> list[tuple[Any, ...]]:
    return [
        (
            socket.AF_INET6 if ":" in text else socket.AF_INET,
            socket.SOCK_STREAM,
            6,
            "",
            (text, 0, 0, 0) if ":" in text else (text, 0),
        )
        for text in texts
    ]


class ResolverTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock, self.pool = Clock(), Threads()
        self.patch(threading, "Thread", self.pool)
        self.answers: dict[str, list[tuple[Any, ...]] | Exception] = {}
        self.resolver = self.make_resolver(4)

    def make_resolver(self, threads: int) -> ThreadedResolver:
        def getaddrinfo(host: str, port: int, family: int, kind: int) -> list[tuple[Any, ...]]:
            self.assertEqual((family, kind), (socket.AF_UNSPEC, socket.SOCK_STREAM))
            answer = self.answers.get(host, found("192.0.2.1"))
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ThreadedResolver(Here(), self.clock, threads, getaddrinfo)

    def resolve(self, host: str) -> Deferred[Sequence[IPv4Address | IPv6Address]]:
        return self.resolver.resolve(host, 80)


class Resolving(ResolverTestCase):
    def test_addresses_in_order_and_once_each(self) -> None:
        self.answers["a.example"] = found("2001:db8::1", "192.0.2.1", "2001:db8::1")
        result = self.resolve("a.example")
        self.assertNoResult(result)
        self.pool.run()
        self.assertEqual(
            self.successResultOf(result),
            [IPv6Address("TCP", "2001:db8::1", 80), IPv4Address("TCP", "192.0.2.1", 80)],
        )
        self.assertEqual(self.pool.daemons, [True])

    def test_literals_need_no_thread(self) -> None:
        self.assertEqual(
            self.successResultOf(self.resolve("127.0.0.1")), [IPv4Address("TCP", "127.0.0.1", 80)]
        )
        self.assertEqual(self.successResultOf(self.resolve("::1")), [IPv6Address("TCP", "::1", 80)])
        self.assertEqual(self.pool.begun, [])

    def test_failures(self) -> None:
        for error, why in (
            (socket.gaierror(socket.EAI_NONAME, "x"), NAME_NOT_FOUND),
            (socket.gaierror(socket.EAI_AGAIN, "x"), LOOKUP_FAILED),
            (UnicodeError("label too long"), NAME_NOT_FOUND),
            (OSError("out of descriptors"), LOOKUP_FAILED),
        ):
            self.answers["a.example"] = error
            result = self.resolve("a.example")
            self.pool.run()
            failure = self.failureResultOf(result, LookupFailed)
            assert isinstance(failure.value, LookupFailed)
            self.assertEqual(failure.value.why, why)

    def test_a_bug_is_not_hidden(self) -> None:
        self.answers["a.example"] = ZeroDivisionError()
        result = self.resolve("a.example")
        self.pool.run()
        self.failureResultOf(result, ZeroDivisionError)

    def test_one_look_up_for_all_who_ask_meanwhile(self) -> None:
        results = [self.resolve("a.example") for _ in range(3)]
        self.assertEqual(self.pool.hosts, ["a.example"])
        self.pool.run()
        for result in results:
            self.assertEqual(len(self.successResultOf(result)), 1)
        self.resolve("a.example")
        self.assertEqual(self.pool.hosts, ["a.example"])

    def test_leaving_does_not_disturb_the_others(self) -> None:
        first, second = self.resolve("a.example"), self.resolve("a.example")
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.pool.run()
        self.successResultOf(second)


class Bounds(ResolverTestCase):
    def test_threads_are_bounded_and_the_queue_is_in_order(self) -> None:
        results = [self.resolve(f"{n}.example") for n in range(6)]
        self.assertEqual(self.pool.hosts, [f"{n}.example" for n in range(4)])
        self.pool.run(2)
        self.assertEqual(self.pool.hosts, ["0.example", "1.example", "3.example", "4.example"])
        self.successResultOf(results[2])

    def test_a_queued_look_up_that_nobody_wants_is_dropped(self) -> None:
        for n in range(4):
            self.resolve(f"{n}.example")
        dropped = self.resolve("dropped.example")
        dropped.cancel()
        self.failureResultOf(dropped, CancelledError)
        self.resolve("last.example")
        self.pool.run()
        self.assertEqual(self.pool.hosts[-1], "last.example")
        self.assertNotIn("dropped.example", self.resolver._current)

    @pytest.mark.report("H16")
    def test_names_that_hung_get_half_of_the_threads(self) -> None:
        hanging = [self.resolve(f"{n}.hanging") for n in range(4)]
        for result in hanging:
            result.cancel()
            self.failureResultOf(result, CancelledError)
        self.clock.advance(10)
        while self.pool.begun:
            self.pool.run()
        hanging = [self.resolve(f"{n}.hanging") for n in range(4)]
        self.assertEqual(self.pool.hosts, ["0.hanging", "1.hanging"])
        healthy = self.resolve("healthy.example")
        self.assertEqual(self.pool.hosts, ["0.hanging", "1.hanging", "healthy.example"])
        self.pool.run(2)
        self.successResultOf(healthy)
        self.pool.run(0)
        self.assertEqual(self.pool.hosts, ["1.hanging", "2.hanging"])
        waiting = hanging[3]
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)

    def test_a_slow_name_that_becomes_quick_is_forgiven(self) -> None:
        result = self.resolve("a.example")
        self.clock.advance(SLOW + 0.1)
        self.pool.run()
        self.successResultOf(result)
        self.assertIn("a.example", self.resolver._slow_names)
        result = self.resolve("a.example")
        self.pool.run()
        self.successResultOf(result)
        self.assertNotIn("a.example", self.resolver._slow_names)

    def test_an_abandoned_look_up_is_joined_while_it_is_young(self) -> None:
        for age, threads in ((STALE, 1), (STALE + 1, 2)):
            self.resolver, self.pool.begun = self.make_resolver(4), []
            result = self.resolve("a.example")
            result.cancel()
            self.failureResultOf(result, CancelledError)
            self.clock.advance(age)
            result = self.resolve("a.example")
            self.assertEqual(len(self.pool.begun), threads)
            self.pool.run(threads - 1)
            self.successResultOf(result)

    def test_a_look_up_that_others_still_wait_for_is_joined_no_longer_either(self) -> None:
        old = self.resolve("a.example")
        self.clock.advance(STALE + 1)
        new = self.resolve("a.example")
        self.assertEqual(len(self.pool.begun), 2)
        self.pool.run(1)
        self.successResultOf(new)
        self.assertNoResult(old)
        self.pool.run(0)
        self.successResultOf(old)

    def test_a_late_end_of_an_old_look_up_leaves_the_new_one_alone(self) -> None:
        old = self.resolve("a.example")
        old.cancel()
        self.failureResultOf(old, CancelledError)
        self.clock.advance(STALE + 1)
        new = self.resolve("a.example")
        self.pool.run(0)
        self.assertNoResult(new)
        self.resolve("a.example")
        self.assertEqual(len(self.pool.begun), 1)
        self.pool.run(0)
        self.successResultOf(new)

    def test_memory_of_slow_names_is_bounded(self) -> None:
        for n in range(REMEMBERED + 10):
            self.resolver._remember(f"{n}.example")
        self.assertEqual(len(self.resolver._slow_names), REMEMBERED)
        self.assertNotIn("9.example", self.resolver._slow_names)

    def test_no_thread_to_be_had(self) -> None:
        self.pool.exhausted = True
        self.failureResultOf(self.resolve("a.example"), LookupFailed)
        self.pool.exhausted = False
        result = self.resolve("a.example")
        self.pool.run()
        self.successResultOf(result)


class Stopping(ResolverTestCase):
    def test_nobody_waits_for_hanging_names(self) -> None:
        results = [self.resolve(f"{n}.example") for n in range(6)]
        self.resolver.stop()
        for result in results:
            self.failureResultOf(result, LookupFailed)
        with mock.patch.object(Here, "callFromThread", side_effect=AssertionError):
            self.pool.run()
        self.failureResultOf(self.resolve("late.example"), LookupFailed)
        self.resolver.stop()


@implementer(IResolutionReceiver)
class Receiver:
    def __init__(self) -> None:
        self.began: IHostResolution | None = None
        self.addresses: list[IAddress] = []
        self.complete = False

    def resolutionBegan(self, resolutionInProgress: IHostResolution) -> None:
        self.began = resolutionInProgress

    def addressResolved(self, address: IAddress) -> None:
        self.addresses.append(address)

    def resolutionComplete(self) -> None:
        self.complete = True


class ForEndpoints(ResolverTestCase):
    def test_all_or_some_families(self) -> None:
        self.answers["a.example"] = found("2001:db8::1", "192.0.2.1")
        for types, count in ((None, 2), ([IPv4Address], 1)):
            receiver = Receiver()
            self.resolver.resolveHostName(receiver, "a.example", 443, types)
            assert receiver.began is not None
            self.assertEqual(receiver.began.name, "a.example")
            self.assertFalse(receiver.complete)
            self.pool.run()
            self.assertEqual(len(receiver.addresses), count)
            self.assertTrue(receiver.complete)

    def test_failures_have_no_addresses(self) -> None:
        for error in (socket.gaierror(socket.EAI_NONAME, "x"), ZeroDivisionError()):
            self.answers["a.example"] = error
            receiver = Receiver()
            self.resolver.resolveHostName(receiver, "a.example")
            self.pool.run()
            self.assertEqual((receiver.addresses, receiver.complete), ([], True))

    def test_cancelling(self) -> None:
        receiver = Receiver()
        resolution = self.resolver.resolveHostName(receiver, "a.example")
        resolution.cancel()
        self.pool.run()
        self.assertEqual(receiver.addresses, [])

    def test_a_hostname_endpoint_over_it(self) -> None:
        network = Network()
        reactor = reactor_with_resolver(network, self.clock, self.resolver)
        verifyObject(IReactorPluggableNameResolver, reactor)
        connecting = HostnameEndpoint(reactor, "a.example", 443).connect(Factory.forProtocol(Protocol))
        self.pool.run()
        self.assertEqual(network.hosts, ["192.0.2.1"])
        network.attempts[0].accept()
        self.successResultOf(connecting)
        self.answers["b.example"] = socket.gaierror(socket.EAI_AGAIN, "x")
        connecting = HostnameEndpoint(reactor, "b.example", 443).connect(Factory.forProtocol(Protocol))
        self.pool.run()
        self.failureResultOf(connecting, DNSLookupError)

    def test_the_rest_is_the_real_reactor(self) -> None:
        reactor = ResolvingReactor(Network(), self.clock, self.resolver)
        reactor.callLater(3, lambda: None)
        self.assertEqual(len(reactor.getDelayedCalls()), 1)
        self.clock.advance(5)
        self.assertEqual(reactor.seconds(), 5)
        other = self.make_resolver(1)
        self.assertIs(reactor.installNameResolver(other), self.resolver)
        self.assertIs(reactor.nameResolver, other)
        self.assertRaises(AssertionError, reactor.listenTCP, 0, Factory())
