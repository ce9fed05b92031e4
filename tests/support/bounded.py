"""Async tests over the real reactor that fail instead of hanging."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest_twisted
from twisted.internet.defer import Deferred

_Test = TypeVar("_Test", bound=Callable[..., Coroutine[Any, Any, None]])


def bounded(seconds: float) -> Callable[[_Test], _Test]:
    """Run an ``async def`` test under pytest-twisted; it fails after ``seconds`` of wall clock."""

    def decorate(test: _Test) -> _Test:
        @functools.wraps(test)
        async def run(*args: Any, **kwargs: Any) -> None:
            from twisted.internet import reactor

            await Deferred.fromCoroutine(test(*args, **kwargs)).addTimeout(seconds, reactor)

        return pytest_twisted.ensureDeferred(run)  # type: ignore[no-any-return]  # pytest-twisted is untyped

    return decorate
