"""
``python -m benchmarks [--quick] [NAME…]``: a line for each figure.

Status 1 when one falls short; with ``--quick`` only when it does by more than a third, since a shared machine
is noisy and a short run more so.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from twisted.internet import task
from twisted.internet.defer import Deferred

from benchmarks import delivery, pushing, sending, storing

ALL = {
    "drain": delivery.against_a_bare_client,
    "sick": delivery.beside_sick_receivers,
    "ingest": storing.a_large_batch,
    "write": storing.an_api_write_beside_it,
    "send": sending.against_a_bare_proxy,
    "push": pushing.a_burst,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller, for the gate")
    parser.add_argument("names", nargs="*", choices=[[], *ALL], metavar="NAME", help=", ".join(ALL))
    arguments = parser.parse_args()

    def run(reactor: Any) -> Deferred[None]:
        reactor.seconds = time.monotonic

        async def measure() -> None:
            short = 0
            for name in arguments.names or ALL:
                for figure in await ALL[name](reactor, arguments.quick):
                    print(figure, flush=True)
                    short += figure.is_off if arguments.quick else not figure.holds
            if short:
                raise SystemExit(1)

        return Deferred.fromCoroutine(measure())

    task.react(run)


if __name__ == "__main__":
    main()
