"""The gateway's own commands as child processes of the demo."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError, succeed
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

import telegrammer

STOP_PATIENCE = 8.0
"""Seconds a child has to end after SIGTERM, before it is killed."""

OWN_SIGNAL_FIRST = 0.1
"""Seconds from an end by Ctrl-C to its being told: a terminal interrupts the demo too, but in no order."""

_INTERRUPTED = (-signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT)
_LISTENING = re.compile(r"listening on (http://\S+)\s")
_OURS = re.compile(r"TELEGRAMMER_|STATE_DIRECTORY$|CREDENTIALS_DIRECTORY$|NOTIFY_SOCKET$|WATCHDOG_|LISTEN_")


def environment() -> dict[str, str]:
    """Ours, less whatever the daemon would listen to, and with this very package importable."""
    kept = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
    beside = str(Path(telegrammer.__file__).resolve().parent.parent)
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (beside, os.environ.get("PYTHONPATH", ""))))
    return kept


class Child(ProcessProtocol):
    """One ``telegrammer`` command; it has ended when ``stop`` has returned."""

    def __init__(self, reactor: Any, *arguments: str) -> None:
        self.status: int | None = None
        """The exit status; negative: the signal that ended it; None while it runs."""
        self._reactor = reactor
        self._out = b""
        self._err = b""
        self._waiting: list[Deferred[None]] = []
        argv = [sys.executable, "-P", "-m", "telegrammer", *arguments]
        self._process = reactor.spawnProcess(self, sys.executable, argv, env=environment())

    @property
    def out(self) -> str:
        """What it wrote on its standard output."""
        return self._out.decode(errors="replace")

    @property
    def err(self) -> str:
        """What it wrote on its standard error: the daemon's log."""
        return self._err.decode(errors="replace")

    async def ended(self) -> int:
        """Its status, once it has ended."""
        while self.status is None:
            await self._change()
        return self.status

    async def address(self) -> str:
        """The URL it listens on; empty when it has ended instead."""
        while True:
            found = _LISTENING.search(self.err)
            if found is not None:
                return found[1]
            if self.status is not None:
                return ""
            await self._change()

    async def stop(self) -> int:
        """SIGTERM, and SIGKILL when that does not help; its status."""
        for name in ("TERM", "KILL"):
            if self.status is None:
                try:
                    self._process.signalProcess(name)
                except ProcessExitedAlready:
                    pass
                try:
                    await Deferred.fromCoroutine(self.ended()).addTimeout(STOP_PATIENCE, self._reactor)
                except TimeoutError:
                    continue
        return await self.ended()

    def _change(self) -> Deferred[None]:
        """Fires when it says something or ends."""
        if self.status is not None:
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        return waiting

    def _changed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(None)

    def outReceived(self, data: bytes) -> None:
        self._out += data
        self._changed()

    def errReceived(self, data: bytes) -> None:
        self._err += data
        self._changed()

    def processEnded(self, reason: Failure) -> None:
        ending: Any = reason.value  # ProcessDone or ProcessTerminated
        status: int = ending.exitCode if ending.signal is None else -ending.signal
        if status in _INTERRUPTED:
            self._reactor.callLater(OWN_SIGNAL_FIRST, self._end, status)
        else:
            self._end(status)

    def _end(self, status: int) -> None:
        self.status = status
        self._changed()
