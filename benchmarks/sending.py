"""Sending: ``POST /send`` of the whole daemon against a bare Klein route with a client behind it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import KEY, TOKEN, Figure, State, at_least, middle, peer, state


@contextmanager
def daemon(made: State, upstream: int) -> Iterator[int]:
    """The daemon as a process; the port it listens on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "telegrammer", "serve", "--db", str(made.path), "--port", "0"]
        + ["--api-url", f"http://127.0.0.1:{upstream}"],
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
        yield int(found[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stderr.close()
        reader.wait(10)


def load(port: int, total: int) -> dict[str, Any]:
    output = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "load", str(port), KEY, "/send", str(total), "16"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    report: dict[str, Any] = json.loads(output)
    assert report["statuses"] == {"200": total}, report["statuses"]
    return report


async def against_a_bare_proxy(reactor: Any, quick: bool) -> list[Figure]:
    """``/send`` at concurrency 16: at least 0.6 times a proxy without keys, checks or bounds."""
    rounds, total = (3, 1200) if quick else (5, 6000)
    ratios, ours, theirs = [], [], []
    with (
        state() as made,
        peer("upstream") as upstream,
        peer("proxy", str(upstream.port)) as proxy,
        daemon(made, upstream.port) as port,
    ):
        load(port, 100)
        load(proxy.port, 100)
        for _ in range(rounds):
            ours.append(load(port, total))
            theirs.append(load(proxy.port, total))
            ratios.append(ours[-1]["rate"] / theirs[-1]["rate"])
    rate, bare = (middle([each["rate"] for each in reports]) for reports in (ours, theirs))
    p99 = middle([each["p99"] for each in ours])
    detail = f"{rate:,.0f}/s (p99 {p99 * 1000:.0f} ms) against {bare:,.0f}/s of Klein and treq"
    return [at_least("/send / bare proxy, 16 callers", middle(ratios), 0.6, detail)]
