"""Far more hostile receivers than workers, known for what they are: nobody else notices, restart or not."""

from __future__ import annotations

from itertools import repeat

import pytest

from tests.support.gateway import Gateway, eventually
from tests.support.hostile import HALF_A_HANDSHAKE, HOSTILE, Blurts, InTurn, Shut, subscribe_apart
from tests.support.hostile_kinds import KINDS
from tests.support.lab import FULL, repetitions
from tests.support.oracle import Oracle
from tests.support.vital_signs import prepared, vital_signs

OFTEN = ",".join(repeat("1s", 300))
"""So that they come again and again, and none is ever given up."""


def measure(oracle: Oracle, messages: int) -> None:
    with vital_signs(oracle) as signs:
        signs.wait_for(messages)
    oracle.gateway.receiver.wait_until(signs.arrived)
    signs.check()


@pytest.mark.report("H2")
@pytest.mark.report("H16")
@pytest.mark.parametrize("how", ["killed", "stopped"] if FULL else ["killed"])
def test_the_healthy_do_not_notice_the_hostile(gateway: Gateway, how: str) -> None:
    """By the default number of workers; before an end, and in the first minute of the next life."""
    kinds = {f"/hostile/{number}": kind for number, kind in enumerate(KINDS)}
    gateway.receiver.policy = InTurn({path: [503, kind.conduct] for path, kind in kinds.items()})
    oracle = prepared(gateway, "--retry-schedule", OFTEN)
    with Shut() as silent, Blurts(leaves=True) as mute, Blurts(leaves=True) as half:
        for path in kinds:
            subscribe_apart(oracle, path)
        elsewhere = [
            gateway.daemon.subscribe(HOSTILE, url)
            for url in (
                f"http://127.0.0.1:{silent.port}/",
                f"https://127.0.0.1:{mute.port}/",
                f"https://127.0.0.1:{half.port}/",
            )
        ]
        oracle.message("the first, by which they show what they are", HOSTILE)
        gateway.receiver.wait_until(lambda: all(gateway.receiver.on(path) for path in kinds))
        known = f"SELECT count(*) FROM lanes WHERE sick AND subscription_id >= {min(elsewhere)}"
        eventually(lambda: gateway.query(known) == [(len(elsewhere),)])
        silent.fall_silent()
        mute.leaves = half.leaves = False
        half.words = HALF_A_HANDSHAKE

        measure(oracle, repetitions(20, 100))
        if how == "killed":
            gateway.daemon.kill()
        else:
            # What is in flight may finish, which takes a hostile one its 10 s.
            assert gateway.daemon.stop() == 0
        oracle.check()
        gateway.daemon.start()
        measure(oracle, repetitions(40, 1200))

        gateway.receiver.policy = lambda callback: 200
        gateway.receiver.hang_up()
        for lane in elsewhere:
            assert gateway.daemon.request("DELETE", f"/subscriptions/{lane}").status == 204
    oracle.settle()
    oracle.check_base_line()
