"""Sending: ``POST /send`` of the whole daemon against a bare Klein route with a client behind it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from benchmarks.daemon import daemon
from benchmarks.harness import KEY, Figure, at_least, middle, peer, state


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
        daemon(made, upstream.port) as running,
    ):
        load(running.port, 100)
        load(proxy.port, 100)
        for _ in range(rounds):
            ours.append(load(running.port, total))
            theirs.append(load(proxy.port, total))
            ratios.append(ours[-1]["rate"] / theirs[-1]["rate"])
    rate, bare = (middle([each["rate"] for each in reports]) for reports in (ours, theirs))
    p99 = middle([each["p99"] for each in ours])
    detail = f"{rate:,.0f}/s (p99 {p99 * 1000:.0f} ms) against {bare:,.0f}/s of Klein and treq"
    return [at_least("/send / bare proxy, 16 callers", middle(ratios), 0.6, detail)]
