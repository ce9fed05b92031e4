"""
The real daemon, whose journal nobody folds.

As ``python -m tests.support.lame_daemon serve …`` it is ``telegrammer serve …``, but the step of its worker
hangs for ever or raises what nobody foresaw, as the environment says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from tests.support.daemon import PYTHON, Daemon

LAMENESS = "LAME_WORKER"
Lameness = Literal["hangs", "raises"]


def serve() -> int:
    """Cripple the worker, and be the command."""
    from twisted.internet.defer import Deferred

    from telegrammer.cli import main
    from telegrammer.core.folding import Outcome
    from telegrammer.ingest.journal_worker import JournalWorker

    async def lame(worker: JournalWorker) -> Outcome:
        if os.environ[LAMENESS] == "raises":
            raise ArithmeticError
        return await Deferred[Outcome]()

    assert hasattr(JournalWorker, "fold_pass")
    setattr(JournalWorker, "fold_pass", lame)  # noqa: B010
    return main()


@contextmanager
def lame_worker(daemon: Daemon, lameness: Lameness) -> Iterator[None]:
    """The daemon that is started inside has such a worker; the next one after it a sound one."""
    before = daemon.program, daemon.environment
    daemon.program = (*PYTHON, "-m", "tests.support.lame_daemon", "serve")
    daemon.environment = dict(daemon.environment) | {LAMENESS: lameness}
    try:
        yield
    finally:
        daemon.program, daemon.environment = before


if __name__ == "__main__":
    sys.exit(serve())
