"""What every integration test gets: a reactor that must be left clean, and no failure logged unnoticed."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from zope.interface import implementer

from tests.support.bounded import bounded
from tests.support.gateway import Gateway, gateway
from tests.support.lab import repetitions
from tests.support.overheard import OVERHEARD
from tests.support.wheel import built

__all__ = ["bounded"]

LONGEST = repetitions(120, 900)
"""Seconds that a test may take, and its fixtures each way; none comes near it."""


@contextmanager
def watchdog(what: str) -> Iterator[None]:
    """
    Fail what hangs, with the place where it does.

    For what blocks; an ``async def`` test is ended by `bounded`.  Behind both, pytest's
    ``faulthandler_exit_on_timeout`` ends a process that does not even get to a signal.
    """

    def bite(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"{what} took more than {LONGEST} s")

    before = signal.signal(signal.SIGALRM, bite)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pytest_configure() -> None:
    OVERHEARD.write_down()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What looks back upon the whole run comes last."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    with watchdog("the setup"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    with watchdog("the test"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    with watchdog("the teardown"):
        return (yield)


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """A shell has what it starts with "&" ignore SIGINT, and the processes of the tests would inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is published."""
    return built(tmp_path_factory)


@pytest.fixture
def reactor() -> Iterator[Any]:
    """The real reactor; the test fails when it leaves a timer behind."""
    from twisted.internet import reactor

    yield reactor
    left = [call for call in reactor.getDelayedCalls() if call.active()]
    for call in left:
        call.cancel()
    assert not left, f"the test left timers behind: {left}"


@implementer(ILogObserver)
class LoggedFailures:
    """Collects the ``log.failure`` events of a test; ``claim`` takes those the test expected."""

    def __init__(self) -> None:
        self._events: list[LogEvent] = []

    def __call__(self, event: LogEvent) -> None:
        if event.get("log_failure") is not None:
            self._events.append(event)

    def claim(self, *types: type[BaseException]) -> list[LogEvent]:
        """Those whose failure is one of ``types``; they no longer fail the test."""
        claimed = [event for event in self._events if event["log_failure"].check(*types) is not None]
        self._events = [event for event in self._events if event not in claimed]
        return claimed

    @property
    def unclaimed(self) -> list[str]:
        return [repr(event["log_failure"].value) for event in self._events]


@pytest.fixture(autouse=True)
def logged_failures() -> Iterator[LoggedFailures]:
    """Fails the test on every logged failure that it did not claim, as trial does."""
    collector = LoggedFailures()
    globalLogPublisher.addObserver(collector)
    try:
        yield collector
    finally:
        globalLogPublisher.removeObserver(collector)
    assert not collector.unclaimed, f"failures were logged: {collector.unclaimed}"


@pytest.fixture(name="gateway")
def stopped_gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A daemon with a Bot API and a receiver, not yet started."""
    with gateway(tmp_path) as three:
        yield three


@pytest.fixture
def running(gateway: Gateway) -> Gateway:
    """The same with a key, and the daemon up."""
    gateway.start()
    return gateway
