"""
The doors without the house: run as a program, it puts a stub in the place of ``telegrammer.app``.

``python -m tests.support.stub_app BEHAVIOUR serve|twistd ARGUMENT...``; the stub logs ``stub: ...`` lines and
stops the way its behaviour says.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from telegrammer.config import Settings
from telegrammer.core.problems import LockHeld, StartRefused

log = Logger("stub")

FOUND = "a-secret-that-only-the-start-finds"


class Stub(Service):
    """Ready at once; what it does then is its ``behaviour``."""

    def __init__(
        self, behaviour: str, settings: Settings, reactor: Any, keep_secret: Callable[[str], None]
    ) -> None:
        self.behaviour, self.settings, self.reactor = behaviour, settings, reactor
        self.keep_secret = keep_secret

    def startService(self) -> None:
        super().startService()
        match self.behaviour:
            case "lock-held":
                raise LockHeld("the database is in use")
            case "port-taken":
                raise CannotListenError("127.0.0.1", 80, OSError(98, "Address already in use"))
            case "fault":
                raise ZeroDivisionError("unforeseen")
            case "refused-with-thread":
                self.hang()
                raise StartRefused("refused with a thread")
            case "leaks":
                self.keep_secret(FOUND)
                log.error("found {what}", what=FOUND)
                log.error("see {url}", url=f"http://x/bot{self.settings.token.text}/getMe")
                try:
                    raise ValueError(self.settings.token.text.partition(":")[2])
                except ValueError:
                    log.failure("crashed")
        self.reactor.callWhenRunning(log.info, "stub: ready")

    def hang(self) -> None:
        """A thread that nobody can end."""
        threading.Thread(target=threading.Event().wait, name="stub-thread").start()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        log.info("stub: stopping")
        stopped: Deferred[None] = Deferred()
        match self.behaviour:
            case "slow":
                # Long enough for a second signal to arrive.
                self.reactor.callLater(0.5, stopped.callback, None)
            case "never":
                pass
            case "thread":
                self.hang()
                stopped.callback(None)
            case "stuck":
                threading.Event().wait()
            case _:
                stopped.callback(None)
        return stopped.addCallback(lambda _: log.info("stub: stopped"))


def main(behaviour: str, door: str, *arguments: str) -> int:
    app = types.ModuleType("telegrammer.app")
    app.build = functools.partial(Stub, behaviour)  # type: ignore[attr-defined]
    sys.modules["telegrammer.app"] = app
    if door == "serve":
        from telegrammer.cli import main

        return main(["serve", *arguments])
    from twisted.scripts.twistd import run

    sys.argv = ["twistd", *arguments]
    run()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
