"""A spool on a real disk, written by the provider's own thread."""

from __future__ import annotations

import email
import subprocess
import sys
import textwrap
from email import policy
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, gatherResults

from telegrammer.messaging import DeliveryFailed, FileConfig, FileProvider, Message
from tests.support.bounded import bounded
from tests.support.daemon import ROOT
from tests.support.unprivileged import unprivileged, why_not


def provider(spool: Path, reactor: Any) -> FileProvider:
    directives = ["name spool", f"path {spool}", "from gw@example.org", "body_format text"]
    return FileProvider(FileConfig.from_directives(directives), reactor)


@bounded(60)
async def test_messages_become_files(tmp_path: Path, reactor: Any) -> None:
    spool = provider(tmp_path / "spool", reactor)
    sent = [
        spool.send(Message(f"Nr. {n}", f"Text {n}", ["ops@example.org"]), message_id=f"id{n}")
        for n in range(50)
    ]
    await gatherResults(sent)
    files = sorted((tmp_path / "spool").iterdir())
    assert {path.name for path in files} == {f"id{n}.eml" for n in range(50)}
    for path in files:
        message = email.message_from_bytes(path.read_bytes(), policy=policy.SMTP)
        number = path.stem.removeprefix("id")
        assert (message["Subject"], message["Message-ID"]) == (f"Nr. {number}", f"<id{number}@example.org>")
        assert message.get_content() == f"Text {number}\r\n"
        assert path.stat().st_mode & 0o777 == 0o600


@bounded(60)
async def test_one_file_an_id_whoever_writes_it(tmp_path: Path, reactor: Any) -> None:
    """At once, as two workers do when a lease has expired under one of them."""
    spool = provider(tmp_path / "spool", reactor)
    message = Message("x", "x" * 50_000, ["ops@example.org"])
    await gatherResults([spool.send(message, message_id="same") for _ in range(10)])
    [path] = (tmp_path / "spool").iterdir()
    assert path.name == "same.eml"
    assert path.read_bytes().count(b"x") >= 50_000


@bounded(60)
async def test_cancelled_it_is_there_whole_or_not_at_all(tmp_path: Path, reactor: Any) -> None:
    spool = provider(tmp_path / "spool", reactor)
    sent = [
        spool.send(Message("x", "x", ["ops@example.org"]), message_id=f"id{number}") for number in range(40)
    ]
    for each in sent[1:]:
        each.cancel()
    for each in sent[1:]:
        try:
            await each
        except CancelledError:
            pass
        except Exception as error:
            assert type(error).__name__ == "MaybeDelivered"
    await sent[0]
    await spool.send(Message("x", "x", ["ops@example.org"]), message_id="last")
    for path in (tmp_path / "spool").glob("*.eml"):
        assert path.read_bytes().endswith(b"\r\n\r\nx\r\n")


@bounded(60)
async def test_a_directory_below_a_file(tmp_path: Path, reactor: Any) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DeliveryFailed):
        await provider(tmp_path / "file" / "spool", reactor).send(Message("x", "x", ["ops@example.org"]))
    assert (tmp_path / "file").read_text() == "mine"


WITHOUT_RIGHTS = """
import sys
from pathlib import Path
from twisted.internet.task import react
from telegrammer.messaging import DeliveryFailed, FileConfig, FileProvider, Message

async def main(reactor):
    config = FileConfig(name="spool", path=Path(sys.argv[1]), sender="gw@example.org")
    try:
        await FileProvider(config, reactor).send(Message("x", "x", ["ops@example.org"]))
    except DeliveryFailed as failed:
        print(failed)

react(main)
"""


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_directory_that_is_not_ours(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    spool = tmp_path / "spool"
    spool.mkdir(mode=0o755)
    script = textwrap.dedent(WITHOUT_RIGHTS)
    argv = unprivileged([sys.executable, "-c", script, str(spool)])
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "writing the file: Permission denied\n", done.stderr
    assert list(spool.iterdir()) == []


ON_A_DISK_THAT_HANGS = """
import os, sys, threading
from pathlib import Path
from twisted.internet.task import react
from twisted.internet.threads import deferToThread
from telegrammer.messaging import DeliveryFailed, FileConfig, FileProvider, Message

os.fsync = lambda descriptor: threading.Event().wait()

async def main(reactor):
    config = FileConfig(name="spool", path=Path(sys.argv[1]), sender="gw@example.org")
    provider = FileProvider(config, reactor)
    sent = [provider.send(Message("x", "x", ["ops@example.org"]), seconds=0.2) for _ in range(20)]
    for each in sent:
        try:
            await each
        except DeliveryFailed as failed:
            print(failed)
    print(await deferToThread(lambda: "the reactor's threads are free"))

react(main)
"""


def test_a_disk_that_hangs(tmp_path: Path) -> None:
    """It costs none of the reactor's threads, and the process ends."""
    done = subprocess.run(
        [sys.executable, "-c", ON_A_DISK_THAT_HANGS, str(tmp_path / "spool")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["time was up"] * 20 + ["the reactor's threads are free"]
