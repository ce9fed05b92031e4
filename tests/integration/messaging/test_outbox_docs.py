"""The example of ``docs/messaging.md``, run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import telegrammer.messaging
from telegrammer.core import problems
from tests.support.daemon import ROOT

TEXT = (ROOT / "docs" / "messaging.md").read_text()
FILE = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"<!-- command: example -->\n```sh\n(.*?)```", re.DOTALL)


def test_the_example_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    files = dict(FILE.findall(TEXT))
    assert files.keys() == {"producer.py", "worker.py"}
    for name, source in files.items():
        (tmp_path / name).write_text(source)
    (command,) = COMMAND.findall(TEXT)
    done = subprocess.run(
        ["sh", "-euc", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    ids = [line.split()[1] for line in lines[:2]]
    assert lines == [
        f"accepted {ids[0]}",
        f"accepted {ids[1]}",
        f"delivered {ids[0]} alpha: disk full",
        f"delivered {ids[1]} beta: disk full",
        "nothing to do now",
        *sorted(f"{each}.eml" for each in ids),
    ]
    first = (tmp_path / "state" / "spool" / f"{ids[0]}.eml").read_text()
    assert "To: operator@example.org" in first
    assert "Look at alpha:/var." in first
    assert "beta" not in first


def test_every_error_is_in_the_table() -> None:
    leaves = {
        each.__name__
        for each in vars(problems).values()
        if isinstance(each, type)
        and issubclass(each, problems.MessagingError)
        and each not in (problems.MessagingError, problems.OutboxError)
    }
    assert leaves <= set(re.findall(r"`(\w+)`", TEXT))
    assert leaves <= set(telegrammer.messaging.__all__)
