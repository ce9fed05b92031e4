"""The whole daemon as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from benchmarks.harness import TOKEN, State


@frozen
class Running:
    """A daemon, and where it listens."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """What it has used up so far; proc_pid_stat(5), behind the name, which may hold spaces."""
        fields = Path("/proc", str(self.pid), "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def daemon(made: State, upstream: int, *arguments: str) -> Iterator[Running]:
    """On this database, with the Bot API at this port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "telegrammer", "serve", "--db", str(made.path), "--port", "0"]
        + ["--api-url", f"http://127.0.0.1:{upstream}", *arguments],
        env={**os.environ, "TELEGRAMMER_TOKEN": TOKEN},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise SystemExit("the daemon did not start")
        # Its access log goes on: somebody has to read it.
        reader = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield Running(int(found[1]), process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stderr.close()
        reader.wait(10)
