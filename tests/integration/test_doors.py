"""The daemon's two doors as real processes, a stub behind them: signals, refusals, the last resort."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.daemon import PATIENCE, TOKEN, Output, clean_environment
from tests.support.stub_app import FOUND

TWISTD = ("twistd", "-n", "--pidfile=", "telegrammer")
SECRET = TOKEN.partition(":")[2]


@contextmanager
def door(tmp_path: Path, behaviour: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Output]]:
    """A process and what it says; it is killed at the end, should it still be there."""
    command = [sys.executable, "-m", "tests.support.stub_app", behaviour, *arguments]
    environment = clean_environment(TELEGRAMMER_TOKEN=TOKEN, HOME=str(tmp_path))
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output = Output()
    try:
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            output.follow(pipe)
        yield process, output
    finally:
        process.kill()
        process.wait()
        output.finish()
    assert SECRET not in output.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("arguments", "signalled"), [(("serve",), False), (TWISTD, True)])
def test_a_signal_stops_in_good_order_and_a_second_changes_nothing(
    tmp_path: Path, arguments: tuple[str, ...], signalled: bool, number: signal.Signals
) -> None:
    with door(tmp_path, "slow", *arguments) as (process, output):
        output.wait_for("stub: ready")
        process.send_signal(number)
        output.wait_for("stub: stopping")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        status = process.wait(PATIENCE)
        output.finish()
        # Under twistd: the status Twisted gives a signalled stop.
        assert status == (-number if signalled else 0)
        assert "stub: stopped" in output.text
        assert "Traceback" not in output.text
        assert "Unhandled" not in output.text


def test_beyond_the_budget_it_ends_all_the_same(tmp_path: Path) -> None:
    """All at once: each takes its budget of 1 s and 2 s more."""
    cases = [
        ("never", ("serve",)),
        ("never", TWISTD),
        ("stuck", ("serve",)),
        ("stuck", TWISTD),
        # twistd signals itself in the end, which no thread survives.
        ("thread", ("serve",)),
    ]
    with ExitStack() as stack:
        doors = []
        for number, (behaviour, arguments) in enumerate(cases):
            (home := tmp_path / str(number)).mkdir()
            more = (*arguments, "--shutdown-timeout", "1s")
            doors.append(stack.enter_context(door(home, behaviour, *more)))
        for _, output in doors:
            output.wait_for("stub: ready")
        began = time.monotonic()
        for process, _ in doors:
            process.terminate()
        for (behaviour, arguments), (process, output) in zip(cases, doors, strict=True):
            status = process.wait(PATIENCE)
            output.finish()
            assert 2.5 < time.monotonic() - began < 10
            assert status == (0 if arguments == ("serve",) else 128 + signal.SIGTERM), output.text
            assert "did not end in time" in output.text
            assert ("stub-thread" in output.text) == (behaviour == "thread")


@pytest.mark.parametrize(
    ("behaviour", "line"),
    [
        ("lock-held", "cannot start: the database is in use"),
        ("port-taken", "cannot start: cannot listen on 127.0.0.1:80: address already in use"),
        ("refused-with-thread", "cannot start: refused with a thread"),
    ],
)
def test_a_refused_start_is_one_line_and_status_1(tmp_path: Path, behaviour: str, line: str) -> None:
    """Within 5 s by contract 1.3, of which a thread that hangs takes 2; and slack for a busy machine."""
    (tmp_path / "serve").mkdir()
    (tmp_path / "twistd").mkdir()
    began = time.monotonic()
    with (
        door(tmp_path / "serve", behaviour, "serve") as serve,
        door(tmp_path / "twistd", behaviour, *TWISTD) as twistd,
    ):
        for process, output in (serve, twistd):
            assert process.wait(PATIENCE) == 1
            output.finish()
            assert time.monotonic() - began < 8
            assert [said.endswith(line) for said in output.lines].count(True) == 1
            assert "Traceback" not in output.text


def test_the_pid_file_of_a_refused_start_goes(tmp_path: Path) -> None:
    with door(tmp_path, "lock-held", "twistd", "-n", "telegrammer") as (process, _):
        assert process.wait(PATIENCE) == 1


def test_a_daemonised_start_that_is_refused_says_so_to_who_waits_for_it(tmp_path: Path) -> None:
    with door(tmp_path, "lock-held", "twistd", "telegrammer") as (process, output):
        assert process.wait(PATIENCE) == 1
        output.finish()
        assert "the database is in use" in output.text
        log = tmp_path / "twistd.log"
        assert "cannot start: the database is in use" in log.read_text()
        log.unlink()


def test_a_fault_of_ours_is_status_1(tmp_path: Path) -> None:
    with door(tmp_path, "fault", "serve", "--log-format", "json") as (process, output):
        assert process.wait(PATIENCE) == 1
        output.finish()
        (record,) = (json.loads(line) for line in output.lines)
        assert (record["message"], record["error"]) == ("cannot start", "ZeroDivisionError")


@pytest.mark.report("D1")
@pytest.mark.parametrize("arguments", [("serve",), TWISTD, ("serve", "--log-format", "json")])
def test_no_secret_leaves_by_a_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with door(tmp_path, "leaks", *arguments) as (process, output):
        output.wait_for("stub: ready")
        process.terminate()
        process.wait(PATIENCE)
        output.finish()
        assert "http://x/bot[removed]/getMe" in output.text
        assert "found [removed]" in output.text
        assert FOUND not in output.text
        assert "ValueError" in output.text


@pytest.mark.parametrize("arguments", [("serve",), TWISTD])
def test_json_lines(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with door(tmp_path, "quick", *arguments, "--log-format", "json") as (process, output):
        output.wait_for("stub: ready")
        process.terminate()
        process.wait(PATIENCE)
        output.finish()
        records = [json.loads(line) for line in output.lines]
        assert all({"time", "level", "namespace", "message"} <= record.keys() for record in records)
        assert "stub: stopped" in [record["message"] for record in records]


@pytest.mark.parametrize(("arguments", "status"), [(("serve",), 2), (TWISTD, 1)])
def test_settings_are_refused_before_anything_starts(
    tmp_path: Path, arguments: tuple[str, ...], status: int
) -> None:
    more = ("--port", "99999", "--bogus", "--token", TOKEN, "--api-url", "http://telegram.example")
    with door(tmp_path, "quick", *arguments, *more) as (process, output):
        assert process.wait(PATIENCE) == status
        output.finish()
        for line in ("unknown flag --bogus", "unknown flag --token", "port: must be", "api-url: may be"):
            assert [line in said for said in output.lines].count(True) == 1
        assert "Traceback" not in output.text
