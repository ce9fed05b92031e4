"""``telegrammer demo``: what it shows, how it fails, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define

from tests.support.daemon import COMMAND, PATIENCE, ROOT, Output, clean_environment
from tests.support.gateway import eventually
from tests.support.transcript import TRANSCRIPT


@define(eq=False)
class Demo:
    """The demo as a process, with a place of its own for temporary files."""

    process: subprocess.Popen[bytes]
    output: Output
    temporary: Path

    def wait(self) -> int:
        status = self.process.wait(PATIENCE)
        self.output.finish()
        return status

    def children(self) -> list[int]:
        """The processes it has started."""
        listing = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listing.split()]

    def assert_nothing_is_left(self) -> None:
        assert list(self.temporary.iterdir()) == []
        assert not _in_group(self.process.pid), "a process is left"
        for url in set(re.findall(r"http://127\.0\.0\.1:\d+", self.output.text)):
            with pytest.raises(urllib.error.URLError):
                urllib.request.urlopen(url, timeout=5)


def _in_group(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                found.append(int(entry.name))
        except ProcessLookupError:
            pass
    return found


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the demo's temporary files go."""
    return tmp_path


def start(temporary: Path, *words: str, **environment: str) -> Demo:
    process = subprocess.Popen(
        [*COMMAND, "demo", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(TMPDIR=str(temporary), PYTHONIOENCODING="utf-8") | environment,
        cwd="/",
        start_new_session=True,
    )
    output = Output()
    assert process.stdout is not None and process.stderr is not None
    output.follow(process.stdout)
    output.follow(process.stderr)
    return Demo(process, output, temporary)


@pytest.fixture
def staying(temporary: Path) -> Iterator[Demo]:
    """A demo under ``--stay`` that has shown everything."""
    demo = start(temporary, "--stay")
    try:
        demo.output.wait_for("be Ada")
        demo.output.wait_for("/say")
        yield demo
    finally:
        demo.process.kill()
        demo.wait()


def test_the_transcript(temporary: Path) -> None:
    began = time.monotonic()
    demo = start(temporary)
    assert demo.wait() == 0, demo.output.text
    took = time.monotonic() - began
    assert re.fullmatch(TRANSCRIPT, demo.output.text + "\n"), demo.output.text
    assert took < 10
    demo.assert_nothing_is_left()


def test_settings_of_the_machine_and_a_terminal_that_shows_only_ascii(temporary: Path) -> None:
    """The ones do not reach it, the other does."""
    wrong = {"TELEGRAMMER_MAX_JOBS": "nonsense", "TELEGRAMMER_DB": "/nowhere", "STATE_DIRECTORY": "/nowhere"}
    demo = start(temporary, PYTHONIOENCODING="ascii", **wrong)
    assert demo.wait() == 0, demo.output.text
    assert r'"Hello, gateway! \U0001f44b"' in demo.output.text


def test_what_failed_is_said(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """On a machine where the daemon cannot start, the demo says so and shows the daemon's last words."""
    broken = tmp_path_factory.mktemp("broken")
    (broken / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'serve' in sys.orig_argv:\n"
        "    os.write(2, b'no luck today\\n')\n"
        "    os._exit(3)\n"
    )
    demo = start(temporary, PYTHONPATH=f"{ROOT}{os.pathsep}{broken}")
    assert demo.wait() == 1
    assert demo.output.lines[-2:] == [
        "    daemon: no luck today",
        "FAILED: telegrammer serve: the daemon ended with status 3",
    ], demo.output.text
    demo.assert_nothing_is_left()


def test_a_daemon_that_dies_is_a_failure(staying: Demo) -> None:
    (daemon,) = staying.children()
    os.kill(daemon, signal.SIGKILL)
    assert staying.wait() == 1
    assert staying.output.lines[-1] == "FAILED: --stay: the daemon ended with status -9"
    staying.assert_nothing_is_left()


def test_curl_lines_work_and_ctrl_c_ends_it(staying: Demo) -> None:
    """Ctrl-C reaches the whole foreground group, the daemon too."""
    lines = [line.strip() for line in staying.output.lines if line.startswith("  curl ")]
    assert len(lines) == 5
    eventually(lambda: '"status":"ok"' in answer_to(lines[0]).replace(" ", ""))
    sent, subscribed, subscriptions, said = map(answer_to, lines[1:])
    assert '"text":"Hello"' in sent
    assert '"subscription_id":1' in subscribed.replace(" ", "")
    assert '"chat_id":1001' in subscriptions.replace(" ", "")
    assert '"text":"Hello, bot"' in said
    staying.output.wait_for('^chat 1001 got "Hello"$')
    staying.output.wait_for('^the receiver got "Hello, bot", delivery id ')
    os.killpg(staying.process.pid, signal.SIGINT)
    assert staying.wait() == 0
    assert "Traceback" not in staying.output.text
    staying.assert_nothing_is_left()


def answer_to(line: str) -> str:
    """What a curl line brings."""
    quietly = line.replace("curl ", "curl -sS ", 1)
    return subprocess.run(quietly, shell=True, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("moment", ["1. ", "4. ", "6. "])
def test_interrupted_on_the_way(temporary: Path, moment: str) -> None:
    """By any of the signals, which comes to the whole group and once more: three demos side by side."""
    demos: list[tuple[signal.Signals, Demo]] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        (place := temporary / number.name).mkdir()
        demos.append((number, start(place)))
    for number, demo in demos:
        demo.output.wait_for("^ " + re.escape(moment))
        os.killpg(demo.process.pid, number)
        os.kill(demo.process.pid, number)
    for number, demo in demos:
        assert demo.wait() == 130, (number, demo.output.text)
        assert demo.output.lines[-1] == "Interrupted. Nothing is left behind."
        assert "Traceback" not in demo.output.text
        demo.assert_nothing_is_left()


def test_nobody_reads_the_transcript(temporary: Path) -> None:
    """``telegrammer demo | head -1`` still cleans up."""
    demo = subprocess.run(
        f'"{sys.executable}" -P -m telegrammer demo | head -1',
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=clean_environment(TMPDIR=str(temporary)),
    )
    assert demo.stdout.startswith("Telegrammer's demo")
    assert "Traceback" not in demo.stderr
    assert list(temporary.iterdir()) == []
