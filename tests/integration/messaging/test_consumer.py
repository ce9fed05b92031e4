"""A program outside the tree mails by a queue, with the wheel and its public names only (contract 7)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from tests.support.certificates import Authority
from tests.support.daemon import FLAGS, PATIENCE, ROOT, Output
from tests.support.smtp_server import MailServer
from tests.support.wheel import installed

PASSWORD = "open sesame 7c1d"
LOGIN = ("gateway", PASSWORD)


@define(eq=False)
class Program:
    """A process of the consumer's."""

    process: subprocess.Popen[bytes]
    output: Output = field(factory=Output)
    errors: Output = field(factory=Output)
    heard: int = 0

    def answer(self) -> Any:
        """The next line that it says."""
        line = self.output.wait_for("", after=self.heard).string
        self.heard += 1
        return json.loads(line)

    def again(self) -> Any:
        """What it says to another line of its standard input."""
        self.tell("again\n")
        return self.answer()

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def hang_up(self) -> None:
        """Its standard input is at its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        self.hang_up()
        assert self.process.wait(PATIENCE) == 0, self.errors.text
        self.output.finish()
        self.errors.finish()
        assert self.errors.text == ""
        assert len(self.output.lines) == self.heard
        assert PASSWORD not in self.output.text


@define(eq=False)
class Consumer:
    """The consumer's directory, far from the checkout."""

    interpreter: Path
    home: Path

    @contextmanager
    def running(self, verb: str) -> Iterator[Program]:
        """One of its processes, from the library's own words on; it has to end well."""
        process = subprocess.Popen(
            [str(self.interpreter), "-I", *FLAGS, "consumer.py", verb, str(self.home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C.UTF-8"},
            cwd=self.home,
        )
        program = Program(process)
        assert process.stdout is not None and process.stderr is not None
        program.output.follow(process.stdout)
        program.errors.follow(process.stderr)
        try:
            where = program.answer()
            assert where["library"].startswith(str(self.interpreter.parents[1]))
            assert not where["tests_found"]
            yield program
            program.end()
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def consumer(wheel: Path, tmp_path: Path) -> Consumer:
    interpreter = installed(wheel, tmp_path / "environment")
    home = tmp_path / "home"
    home.mkdir(0o700)
    shutil.copy(ROOT / "tests" / "consumer" / "consumer.py", home)
    (home / "password").write_text(f"{PASSWORD}\n")
    return Consumer(interpreter, home)


def test_sign_ups_are_mailed_by_a_queue(consumer: Consumer, tmp_path: Path) -> None:
    authority = Authority()
    home = consumer.home
    with MailServer(authority.context("localhost"), login=LOGIN) as server:
        declarations = f"""
[email]
name mail
transport starttls
host localhost
port {server.port}
from sign-up@example.org
username gateway
ca_file {authority.write(tmp_path / "ca.pem")}
timeout 20s
[sqlite]
name sign-ups
path {home / "queue.db"}
timeout 5s
"""
        with consumer.running("declare") as program:
            program.tell(declarations)
            program.hang_up()
            assert program.answer() == {"declared": ["mail", "sign-ups"]}
        serialised = json.loads((home / "registry.json").read_text())
        assert serialised["bound"] == [{"name": "sign-ups", "kind": "sqlite"}]
        assert str(home / "queue.db") not in json.dumps(serialised)

        with consumer.running("produce") as producer:
            first, second = producer.answer()["queued"]
            assert server.mailbox == []

            # Its handle was closed, and it holds another one while this process has its own.
            with consumer.running("work") as worker:
                assert worker.answer() == {"delivered": [first, second], "outstanding": 0}
                ada, grace = server.mailbox
                (third,) = producer.again()["queued"]
                assert worker.again() == {"delivered": [third], "outstanding": 0}
                assert worker.again() == {"delivered": [], "outstanding": 0}
                (fourth,) = producer.again()["queued"]
                assert worker.again() == {"delivered": [fourth], "outstanding": 0}

    assert [mail.recipients for mail in server.mailbox] == [
        ("ada@example.org",),
        ("grace@example.org",),
        ("edsger@example.org",),
        ("edsger@example.org",),
    ]
    assert {(mail.sender, mail.login, mail.secure) for mail in server.mailbox} == {
        ("sign-up@example.org", "gateway", True)
    }
    assert [mail.message["Message-ID"] for mail in server.mailbox] == [
        f"<{each}@example.org>" for each in (first, second, third, fourth)
    ]
    # Each sees its own message, and values of the template are no HTML in it.
    for mail, own, other in ((ada, "4711", "0815"), (grace, "0815", "4711")):
        assert mail.message["To"] == mail.recipients[0]
        assert own in page(mail.message) and other not in page(mail.message)
        assert b"grace" not in ada.data and b"ada" not in grace.data.lower()
    assert "Dear Ada &lt;b&gt;&amp; Söhne," in page(ada.message)
    assert "Dear Grace &quot;&#x27;&gt; H.," in page(grace.message)
    assert "<b>4711</b>" in page(ada.message)
    assert b"&lt;b&gt;&amp; S=C3=B6hne" in ada.data
    for kept in home.iterdir():
        assert kept.name == "password" or PASSWORD.encode() not in kept.read_bytes(), kept
    assert sorted(path.name for path in home.iterdir()) == [
        "consumer.py",
        "password",
        "queue.db",
        "queue.directives",
        "registry.json",
    ]


def page(message: EmailMessage) -> str:
    assert message.get_content_type() == "text/html"
    content: str = message.get_content()
    return content
