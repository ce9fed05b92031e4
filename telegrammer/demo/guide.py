"""What the demo's walk is made of: steps that are shown, waits that end, requests to the gateway."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import treq
from attrs import define, field, frozen
from twisted.internet.defer import Deferred, TimeoutError
from twisted.web.client import Agent
from twisted.web.http_headers import Headers

from telegrammer.demo.child import Child

STEP_SECONDS = 10.0
"""How long one thing may take before the demo calls it failed."""

T = TypeVar("T")


class DemoFailed(Exception):
    """What went wrong, in words for the person who started the demo."""


class DemoInterrupted(Exception):
    """The person who started the demo wants it to end."""


@frozen
class Answer:
    """What the gateway answered."""

    status: int
    body: bytes

    @property
    def shown(self) -> str:
        """For a message about a failure."""
        return f"{self.status} {self.body[:300].decode(errors='replace')}"


@define(eq=False)
class Guide:
    """Shows the steps, and fails the demo when one of them does not happen."""

    reactor: Any
    say: Callable[[str], None]
    url: str = field(default="", init=False)
    """Where the gateway listens, once it does."""
    key: str = field(default="", init=False, repr=False)
    daemon: Child | None = field(default=None, init=False)
    """The gateway, while it is meant to run."""
    _steps: int = field(default=0, init=False)
    _awaited: Deferred[Any] | None = field(default=None, init=False)
    _interrupted: bool = field(default=False, init=False)
    _watching: Deferred[None] | None = field(default=None, init=False)

    def step(self, line: str) -> None:
        """Show one thing that was done."""
        self._steps += 1
        self.say(f"{self._steps:2}. {line}")

    def check(self, holds: bool, otherwise: str) -> None:
        """
        Go on only when it holds.

        :raises DemoFailed: with the words ``otherwise``.
        """
        if not holds:
            raise DemoFailed(otherwise)

    async def expect(
        self,
        what: str,
        event: Deferred[T] | Coroutine[Any, Any, T],
        seconds: float | None = STEP_SECONDS,
    ) -> T:
        """
        The event's value, if it comes in time and the daemon lives to bring it.

        :raises DemoFailed: it does not.
        :raises DemoInterrupted: ``interrupt`` was called, before or meanwhile.
        """
        awaited = event if isinstance(event, Deferred) else Deferred.fromCoroutine(event)
        if seconds is not None:
            awaited.addTimeout(seconds, self.reactor, onTimeoutCancel=_late)
        before, self._awaited = self._awaited, awaited
        if self._interrupted:
            awaited.cancel()
        try:
            return await awaited
        except (DemoFailed, DemoInterrupted):
            raise
        except Exception as error:
            # A wait that was cancelled fails in many ways: what was waited for decides.
            if self._interrupted:
                raise DemoInterrupted from None
            if self.daemon is not None and self.daemon.status is not None:
                raise DemoFailed(f"{what}: the daemon ended with status {self.daemon.status}") from None
            if isinstance(error, TimeoutError):
                raise DemoFailed(f"{what}: nothing within {seconds:.0f} s") from None
            raise DemoFailed(f"{what}: {type(error).__name__}") from None
        finally:
            self._awaited = before

    async def ask(self, method: str, path: str, document: object = None) -> Answer:
        """One request to the gateway, with the key; raises as ``expect`` does."""

        async def exchange() -> Answer:
            body = None if document is None else json.dumps(document).encode()
            headers = Headers({"Authorization": [f"Bearer {self.key}"]})
            if body is not None:
                headers.setRawHeaders("Content-Type", ["application/json"])
            response = await treq.request(
                method, self.url + path, headers=headers, data=body, agent=Agent(self.reactor)
            )
            chunks: list[bytes] = []
            await treq.collect(response, chunks.append)
            return Answer(int(response.code), b"".join(chunks))

        return await self.expect(f"{method} {path}", exchange())

    def watch_over(self, daemon: Child) -> None:
        """From now on the daemon is to run: its end ends the wait in hand."""
        self.daemon = daemon

        async def watch() -> None:
            await daemon.ended()
            if self.daemon is daemon and self._awaited is not None:
                self._awaited.cancel()

        self._watching = Deferred.fromCoroutine(watch())

    def interrupt(self) -> None:
        """End the wait in hand and every later one; what cleans up is not disturbed."""
        self._interrupted = True
        if self._awaited is not None:
            self._awaited.cancel()

    @property
    def daemon_log(self) -> list[str]:
        """The last lines of the daemon's log, which by contract holds no secrets."""
        return [] if self.daemon is None else self.daemon.err.splitlines()[-15:]


def _late(result: object, seconds: float) -> NoReturn:
    raise TimeoutError(seconds)
