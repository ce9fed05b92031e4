"""An operator who gives one command after the other: each a whole command line, all in one process."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from types import TracebackType
from typing import Any, Self

from attrs import define, field, frozen

from tests.support.daemon import PATIENCE, PYTHON, Daemon, clean_environment
from tests.support.overheard import OVERHEARD


@frozen
class Done:
    """One command that has ended."""

    command: str
    status: int
    out: str = field(repr=False)
    err: str
    seconds: float

    def well(self) -> Self:
        """It did what it was asked, and had nothing to say beside."""
        assert (self.status, self.err) == (0, ""), self
        return self

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@define(eq=False)
class Operator:
    """
    Use it as a context manager, from one thread; it can give hundreds of commands a second.

    ``daemon`` may be another one later.
    """

    daemon: Daemon
    done: list[Done] = field(factory=list, init=False)
    _process: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [*PYTHON, "-m", "tests.support.operators"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment() | dict(self.daemon.environment),
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
        for done in self.done:
            shown = "" if done.command.startswith("add-key") else done.out
            OVERHEARD.hear(f"{done.command} in {self.daemon.state.name}", shown + done.err)
        assert status == 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def warm_up(self) -> None:
        """Load what commands need, so that the next one takes no longer than its work."""
        assert self._give("list-keys", "--db", "/nonexistent/telegrammer.db").status == 1

    def run(self, *arguments: str) -> Done:
        """Give one command on the daemon's database, and see what comes of it."""
        done = self._give(*arguments, "--db", str(self.daemon.db))
        self.done.append(done)
        return done

    def _give(self, *arguments: str) -> Done:
        assert self._process.stdin is not None and self._process.stdout is not None
        began = time.monotonic()
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        status, out, err = json.loads(self._process.stdout.readline())
        return Done(" ".join(arguments[:-2]), status, out, err, time.monotonic() - began)


def _obey() -> None:
    from telegrammer.cli.main import main

    for line in sys.stdin:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main(json.loads(line))
        print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)


if __name__ == "__main__":
    _obey()
