"""
A process with a handle on an outbox, told what to do line by line; and the test's side of it.

``python -m tests.support.outbox_peer PATH QUEUE TIMEOUT`` reads a JSON array on each line, a verb and its
arguments, and answers with a JSON object on a line: ``{"value": …}``, or ``{"error": …}`` with its class.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from attrs import define, evolve, field
from twisted.internet import stdio
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.task import react
from twisted.protocols.basic import LineReceiver

from telegrammer.messaging import (
    LeaseLost,
    Mark,
    Message,
    MessagingError,
    Outbox,
    QueueEmpty,
    SQLiteMessagingConfig,
)
from tests.support.daemon import ROOT


class Peer(LineReceiver):
    delimiter = b"\n"
    MAX_LENGTH = 4_000_000

    def __init__(self, reactor: Any, config: SQLiteMessagingConfig) -> None:
        self.reactor = reactor
        self.config = config
        self.done: Deferred[None] = Deferred()
        self.offset = 0.0
        self.turn = DeferredLock()
        self.outbox: Outbox | None = None

    def lineReceived(self, line: bytes) -> None:
        verb, *arguments = json.loads(line)
        answering = self.turn.run(lambda: Deferred.fromCoroutine(self.answer(verb, arguments)))
        answering.addErrback(self.done.errback)

    async def answer(self, verb: str, arguments: list[Any]) -> None:
        try:
            answer = {"value": await getattr(self, f"do_{verb}")(*arguments)}
        except MessagingError as error:
            answer = {
                "error": type(error).__name__,
                "said": str(error),
                "limit": getattr(error, "limit", None),
            }
        self.sendLine(json.dumps(answer).encode())

    def connectionLost(self, reason: Any = None) -> None:
        closed = self.outbox.close() if self.outbox is not None else None
        if closed is None:
            self.done.callback(None)
        else:
            closed.chainDeferred(self.done)

    @property
    def handle(self) -> Outbox:
        assert self.outbox is not None
        return self.outbox

    async def do_open(self, path: str | None = None) -> None:
        config = self.config if path is None else evolve(self.config, path=Path(path))
        self.outbox = await Outbox.open(config, reactor=self.reactor, now=lambda: time.time() + self.offset)

    async def do_close(self) -> None:
        await self.handle.close()

    async def do_shift(self, seconds: float) -> None:
        self.offset = seconds

    async def do_send(self, message: list[Any], marks: Sequence[Sequence[Any]] = ()) -> str:
        return await self.handle.send(Message(*message), marks=[Mark(*each) for each in marks])

    async def do_marks(self) -> list[list[Any]]:
        return [[each.subject, each.state, each.at] for each in (await self.handle.marks()).values()]

    async def do_claim(self) -> dict[str, Any]:
        leased = await self.handle.claim()
        return {
            "id": leased.id,
            "message": [leased.subject, leased.body, list(leased.recipients)],
            "lease": leased.lease,
            "lease_expires_at": leased.lease_expires_at,
            "created_at": leased.created_at,
        }

    async def do_acknowledge(self, message_id: str, lease: str) -> None:
        await self.handle.acknowledge(message_id, lease)

    async def do_release(self, message_id: str, lease: str) -> None:
        await self.handle.release(message_id, lease)

    async def do_outstanding(self) -> int:
        return await self.handle.outstanding()

    async def do_check_ready(self) -> None:
        await self.handle.check_ready()

    async def do_fill(self, count: int) -> list[str]:
        """Send so many; their ids."""
        return [await self.handle.send(Message(f"{n}", "body", ["a@example.org"])) for n in range(count)]

    async def do_drain(self, log: str) -> int:
        """
        Claim and acknowledge until nothing is left, telling of it in a file that all append to; how many.

        Every seventh is given back first, every fifth acknowledged once more, which must fail.
        """
        name, acknowledged, turn = f"{os.getpid()}", 0, 0
        with open(log, "a") as told:

            def tell(what: str, message_id: str) -> None:
                told.write(f"{name} {what} {message_id}\n")
                told.flush()

            while True:
                try:
                    leased = await self.handle.claim()
                except QueueEmpty:
                    if not await self.handle.outstanding():
                        return acknowledged
                    continue
                tell("claimed", leased.id)
                turn += 1
                tell("ending", leased.id)
                if turn % 7 == 0:
                    await self.handle.release(leased.id, leased.lease)
                    continue
                await self.handle.acknowledge(leased.id, leased.lease)
                acknowledged += 1
                tell("acknowledged", leased.id)
                if turn % 5 == 0:
                    try:
                        await self.handle.acknowledge(leased.id, leased.lease)
                    except LeaseLost:
                        continue
                    raise AssertionError("acknowledged twice")


async def main(reactor: Any, path: str, queue: str, seconds: str) -> None:
    peer = Peer(reactor, SQLiteMessagingConfig(queue, Path(path), float(seconds)))
    stdio.StandardIO(peer, reactor=reactor)
    await peer.done


@define(eq=False)
class OutboxPeer:
    """The test's side: ``ask`` waits for the answer; ``tell`` and ``hear`` are its halves."""

    path: Path
    queue: str = "alerts"
    timeout: float = 30.0
    prefix: Sequence[str] = ()
    opened: bool = True
    """Whether it opens the outbox first of all."""
    process: subprocess.Popen[bytes] = field(init=False)

    def __enter__(self) -> Self:
        program = [sys.executable, "-m", "tests.support.outbox_peer"]
        argv = [*program, str(self.path), self.queue, str(self.timeout)]
        self.process = subprocess.Popen(
            [*self.prefix, *argv], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if self.opened:
            self.ask("open")
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:  # Its pipes are closed: it ends.
            pass

    def kill(self) -> None:
        """With no warning."""
        self.process.kill()
        self.process.wait()

    def tell(self, verb: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, *arguments]).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the peer ended: {self.process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, verb: str, *arguments: Any) -> Any:
        """The value; it must be one."""
        self.tell(verb, *arguments)
        answer = self.hear()
        assert "value" in answer, answer
        return answer["value"]

    def refused(self, verb: str, *arguments: Any) -> dict[str, Any]:
        """The error; it must be one."""
        self.tell(verb, *arguments)
        answer = self.hear()
        assert "error" in answer, answer
        return answer


if __name__ == "__main__":
    react(lambda reactor, *argv: Deferred.fromCoroutine(main(reactor, *argv)), sys.argv[1:])
