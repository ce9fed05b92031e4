"""
One life of the daemon, whichever door it was started by: a start that is refused in one line, a stop that
happens once, and an end that comes for certain (contract 1.3).
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from attrs import define, field
from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from telegrammer.core.problems import StartRefused, TelegrammerError

log = Logger()

GRACE = 2.0
"""Seconds beyond the shutdown budget after which threads that hang are left to the operating system."""

REFUSED_GRACE = 3.0
"""The same after a start that was refused."""


@define(eq=False)
class Daemon(Service):
    """
    Builds the product when it is started, so that nothing is opened before twistd has forked.

    ``build`` returns the root of all services.  Whatever keeps it from starting is raised as
    ``StartRefused``, with the one line to show; what had started is stopped again by the root.
    """

    build: Callable[[], IService]
    warnings: tuple[str, ...] = ()
    """Of the settings; logged once, at the start."""
    on_stop: Callable[[], None] = lambda: None
    """Called when the stop begins."""
    _root: IService | None = field(default=None, init=False)

    def startService(self) -> None:
        for warning in self.warnings:
            log.warn("{line}", line=warning)
        try:
            root = self.build()
            root.startService()
        except Exception as error:
            line = refusal(error)
            if line is None:
                raise
            raise StartRefused(line) from None
        self._root = root
        super().startService()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        root, self._root = self._root, None
        if root is None:
            return succeed(None)
        self.on_stop()
        return root.stopService() or succeed(None)


def spare_the_collector() -> None:
    """
    Have the garbage collector look less often, and at less: to be called once all parts are built.

    What exists then lives as long as the process, and hardly anything a request leaves behind is in cycles.
    Walking all of it again and again took a tenth of the time and made the slowest hundredth of the answers
    twice as slow.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20)


def the_reactor() -> Any:
    """The process's reactor, picked when it is first asked for and not when a module is imported."""
    from twisted.internet import reactor

    return reactor


def refusal(error: Exception) -> str | None:
    """The line that tells an operator why a start or a command failed; None for what nobody foresaw."""
    match error:
        case TelegrammerError():
            return str(error)
        case CannotListenError():
            why = getattr(error.socketError, "strerror", None) or "not possible"
            where = error.port if error.interface is None else f"{error.interface or '*'}:{error.port}"
            return f"cannot listen on {where}: {why.lower()}"
        case OSError():
            what = os.strerror(error.errno).lower() if error.errno else type(error).__name__
            name = error.filename
            return f"{os.fsdecode(name)}: {what}" if isinstance(name, str | bytes) else what
    return None


class SignalledReactor(Protocol):
    """What ``StopOnce`` needs of the reactor; every one that Twisted ships has it."""

    def addSystemEventTrigger(self, phase: str, event: str, callable: Callable[[], None], /) -> object: ...

    def sigInt(self, number: int, frame: FrameType | None = None) -> None: ...

    def sigTerm(self, number: int, frame: FrameType | None = None) -> None: ...


@define(eq=False)
class StopOnce:
    """
    The first SIGTERM or SIGINT stops the reactor in good order, also one that comes while it is not running
    yet; every further one changes nothing.  (Twisted's own handlers log a traceback at the second.)
    """

    reactor: SignalledReactor
    _asked: int | None = field(default=None, init=False)
    _running: bool = field(default=False, init=False)

    def watch(self) -> None:
        """Take the signals over, now and again when the reactor has put its own handlers there."""
        self._install()
        self.reactor.addSystemEventTrigger("after", "startup", self._started)

    def _install(self) -> None:
        # Also where the parent had us ignore them, as a shell's "&" does with SIGINT: whoever sends one of
        # these to a daemon wants it to stop (contract 1.3).
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signalled)

    def _started(self) -> None:
        self._install()
        self._running = True
        if self._asked is not None:
            self._stop(self._asked)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self._asked is None:
            self._asked = number
            if self._running:
                self._stop(number)

    def _stop(self, number: int) -> None:
        (self.reactor.sigInt if number == signal.SIGINT else self.reactor.sigTerm)(number)

    @property
    def asked(self) -> int | None:
        """The number of the signal that asked for the stop."""
        return self._asked


def end_within(seconds: float, status: Callable[[], int]) -> None:
    """
    End the process after ``seconds``, unless it has ended by then: the last resort.

    A thread that hangs in the kernel keeps an interpreter from exiting, and a reactor that is stuck calls no
    timer; so a thread waits here and asks nobody.  Nothing durable can be lost: the database commits or not.
    """

    def over() -> None:
        left = [thread.name for thread in threading.enumerate() if not thread.daemon]
        log.critical("the process did not end in time; threads left: {threads}", threads=", ".join(left))
        for stream in (sys.__stdout__, sys.__stderr__):
            if stream is not None:
                stream.flush()
        os._exit(status())

    timer = threading.Timer(seconds, over)
    timer.daemon = True
    timer.name = "last resort"
    timer.start()
