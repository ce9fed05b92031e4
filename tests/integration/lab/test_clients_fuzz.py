"""
Strangers ask anything: what is answered is what the contract says, in its shape, and the gateway stays well.

Meanwhile it goes on with its work: messages come and are delivered.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from attrs import define, field

from tests.support.daemon import Daemon
from tests.support.gateway import Gateway
from tests.support.held import check_workers
from tests.support.lab import repetitions
from tests.support.oracle import Oracle
from tests.support.strangers import Case, Stranger
from tests.support.wire import WireAnswer, connect, read_answers, read_to_end, warm_up

CALLERS = 4
"""At once; below the number of workers, so that none has to wait for a turn."""
GARBLED = frozenset({200, 204, 400, 401, 404, 405, 408, 409, 413, 415})
"""What may be answered to bytes of which nothing is known: no 5xx, nothing that only Telegram can cause."""
OURS = re.compile("crashed|unexpectedly|could not be judged|keys cannot be checked$")


@define
class Seen:
    """What one caller has met with."""

    faults: list[str] = field(factory=list)
    sent: list[tuple[int, str]] = field(factory=list)
    """What the answers say was sent."""
    envelopes: int = 0
    """How many answers are Telegram's."""
    answers: Counter[int] = field(factory=Counter)

    def note(self, answer: WireAnswer) -> None:
        self.answers[answer.status] += 1


def exchange(daemon: Daemon, stranger: Stranger, data: bytes, seen: Seen) -> bytes:
    with contextlib.closing(connect(daemon)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):  # refused while we still write
            for piece in stranger.pieces(data):
                peer.sendall(piece)
            peer.shutdown(socket.SHUT_WR)
        received = read_to_end(peer)
    seen.envelopes += received.count(b'\r\n\r\n{"ok":true,"result":{"message_id":')
    return received


def converse(daemon: Daemon, stranger: Stranger, cases: list[Case], seen: Seen) -> None:
    """Several requests in a row, without waiting for an answer."""
    received = exchange(daemon, stranger, b"".join(case.data for case in cases), seen)
    heard: list[Case] = []
    for case in cases:
        heard.append(case)
        if case.ends:
            break
    try:
        answers = read_answers(received, [case.method for case in heard])
        if answers and answers[-1].status == 503 and answers[-1].closes:
            del heard[len(answers) :]  # the key could not be looked up in time, and its body was not read
        assert len(answers) == len(heard), f"{len(answers)} answers, not {len(heard)}"
        for case, answer in zip(heard, answers, strict=True):
            seen.note(answer)
            assert answer.status in case.statuses, answer
            if answer.status == 200 and case.send is not None:
                seen.sent.append(case.send)
    except (AssertionError, KeyError, ValueError) as fault:
        asked = [case.data[:300] for case in heard]
        seen.faults.append(f"{asked}\n   got {received[:600]!r}\n   {str(fault)[:600]}")


def mumble(daemon: Daemon, stranger: Stranger, seen: Seen) -> None:
    data = stranger.garbled()
    received = exchange(daemon, stranger, data, seen)
    # Which of the answers is one to HEAD, and so without a body, cannot be known: none is asked for.
    try:
        for answer in read_answers(received):
            seen.note(answer)
            assert answer.status in GARBLED or answer.code == "AUTH_UNAVAILABLE", answer
    except (AssertionError, KeyError, ValueError) as fault:
        if b"HEAD" not in data:
            seen.faults.append(f"{data!r}\n   got {received[:600]!r}\n   {str(fault)[:600]}")


def talk(daemon: Daemon, seed: str, key: str, rounds: int) -> Seen:
    stranger, seen = Stranger(seed, key.encode()), Seen()
    for number in range(rounds):
        if number % 3 == 2:
            mumble(daemon, stranger, seen)
        else:
            converse(daemon, stranger, [stranger.case() for _ in range(1 + number % 5)], seen)
    return seen


@pytest.mark.parametrize("seed", range(repetitions(1, 6)))
def test_whatever_strangers_ask(running: Gateway, seed: int) -> None:
    daemon, oracle = running.daemon, Oracle(running)
    oracle.subscribe()
    ours = daemon.key
    theirs = daemon.add_key("stranger")
    daemon.key = ours
    rounds = repetitions(300, 1500)
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(lambda number: talk(daemon, f"warm {number}", theirs, 30), range(CALLERS)))
        warm_up(daemon)
        running.api.calls.clear()
        oracle.messages(3)
        assert oracle.settle() == []
        oracle.base_line()

        talks = [pool.submit(talk, daemon, f"{seed}/{number}", theirs, rounds) for number in range(CALLERS)]
        while not all(each.done() for each in talks):
            oracle.message("meanwhile")
            assert oracle.settle() == []
        every = [each.result() for each in talks]
    faults = [fault for seen in every for fault in seen.faults]
    answers = sum((seen.answers for seen in every), Counter[int]())
    print(f"seed {seed}: {answers.total()} answers: {sorted(answers.items())}")
    assert not faults, f"{len(faults)} faults, among them:\n" + "\n".join(faults[:5])

    calls = [(call.arguments["chat_id"], call.arguments["text"]) for call in running.api.of("sendMessage")]
    sent = Counter(send for seen in every for send in seen.sent)
    assert not sent - Counter(calls), "answered 200, and not sent as asked"
    assert len(calls) == sum(seen.envelopes for seen in every), "sent, and not answered 200"
    assert running.query("SELECT count(*) FROM subscriptions WHERE id = 1") == [(1,)]
    assert daemon.health()["status"] == "ok"
    oracle.check_base_line()
    check_workers(running)
    ours_to_mend = [line for line in daemon.output.lines if OURS.search(line)]
    assert not ours_to_mend, "\n".join(ours_to_mend[:5])
    oracle.message("at last")
    assert oracle.settle() == []
