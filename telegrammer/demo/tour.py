"""
``telegrammer demo``: the real daemon between a stand-in Bot API and a callback receiver, shown at work.

It needs neither a token nor a network, and leaves nothing behind: no file, process or socket, also when
it fails or is interrupted.
"""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import Any

from twisted.internet.defer import Deferred

from telegrammer.demo.guide import DemoFailed, DemoInterrupted, Guide
from telegrammer.demo.walk import Walk

INTERRUPTED = 130
"""Exit status after Ctrl-C, as of any program that SIGINT ends."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(stay: bool = False) -> int:
    """
    Run the demo in the global reactor; the exit status.

    0: everything went well, or Ctrl-C ended a ``stay``; 1: something failed, and was said; 130: interrupted.
    """
    from twisted.internet import reactor as global_reactor

    reactor: Any = global_reactor
    guide = Guide(reactor, say)
    walk = Walk(guide, time.time)
    over: Deferred[None] = Deferred()
    running: Deferred[None] | None = None
    status = 1
    stopping = False

    async def run() -> int:
        try:
            await walk.run(stay)
        except DemoInterrupted:
            say("Interrupted. Nothing is left behind.")
            return 0 if walk.stays else INTERRUPTED
        except Exception as error:
            for line in guide.daemon_log:
                say(f"    daemon: {line}")
            say(f"FAILED: {error}" if isinstance(error, DemoFailed) else f"FAILED: {error!r}")
            return 1
        return 0

    def end(result: int) -> None:
        nonlocal status
        status = result
        over.callback(None)
        stop_once()

    def stop_once() -> None:
        """A reactor bears one stop only, and signals may come faster than it takes its turns."""
        nonlocal stopping
        if not stopping:
            stopping = True
            reactor.stop()

    def signalled(number: int, frame: FrameType | None) -> None:
        reactor.callFromThread(stop_once)

    def begin() -> None:
        nonlocal running
        for number in _SIGNALS:
            signal.signal(number, signalled)
        running = Deferred.fromCoroutine(run()).addCallback(end)

    def stop() -> Deferred[None]:
        """Waits until everything is cleaned up, which is bounded; a second Ctrl-C would only tear it."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        guide.interrupt()
        return over

    # Ignored by what a shell starts with "&"; the reactor would leave it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reactor.callWhenRunning(begin)
    reactor.addSystemEventTrigger("before", "shutdown", stop)
    signal.signal(signal.SIGHUP, signalled)
    reactor.run()
    return status


def say(line: str) -> None:
    """Print a line whatever the terminal can show, and whether or not anybody still reads."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError:
        pass
