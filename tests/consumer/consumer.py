"""
A program that uses the messaging library and knows nothing else of the product: sign-up mails by a queue.

    consumer.py declare DIRECTORY    directives on standard input, one a line under "[kind]" headings
    consumer.py produce DIRECTORY    puts the mails into the queue; once more at each line of standard input
    consumer.py work DIRECTORY       mails what is in the queue; once more at each line of standard input

Each prints JSON objects, one a line.  It needs the standard library, Twisted's reactor and
``telegrammer.messaging``.
"""

from __future__ import annotations

import html
import json
import quopri
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.internet.threads import deferToThread

import telegrammer
from telegrammer.messaging import (
    Credentials,
    Declaration,
    EmailProvider,
    MessagingError,
    Outbox,
    QueueEmpty,
    Registry,
    SQLiteMessagingConfig,
)
from telegrammer.messaging import Message as Mail

PAGE = Template("<html><body><p>Dear $name,</p>\n<p>your code is <b>$code</b>.</p></body></html>\n")
SIGN_UPS = [
    ("ada@example.org", "Ada <b>& Söhne", "4711"),
    ("grace@example.org", "Grace \"'> H.", "0815"),
]
LATER = [("edsger@example.org", "Edsger", "1968")]
RESERVE = 10.0
"""Seconds of a lease that are kept for the acknowledgement."""


def say(**members: Any) -> None:
    print(json.dumps(members), flush=True)


def rendered(recipient: str, name: str, code: str) -> Mail:
    """Values are escaped, and the page is quoted-printable as the e-mail provider has it."""
    page = PAGE.substitute(name=html.escape(name), code=html.escape(code))
    return Mail("Your code", quopri.encodestring(page.encode()).decode("ascii"), [recipient])


def password(directory: Path) -> str:
    """By a road of its own: no registry and no queue ever sees it."""
    return (directory / "password").read_text().strip()


def parsed(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for line in filter(None, text.splitlines()):
        if line.startswith("["):
            here = sections.setdefault(line.strip("[]"), [])
        else:
            here.append(line)
    return sections


async def declare(directory: Path) -> None:
    sections = parsed(sys.stdin.read())
    registry = Registry([Declaration("email", sections["email"])])
    outbox = await Outbox.open(SQLiteMessagingConfig.from_directives(sections["sqlite"]))
    registry.add_provider(outbox.name, outbox)
    registry.validate()
    registry.require(["mail", "sign-ups"])
    await outbox.check_ready()
    (directory / "registry.json").write_text(registry.to_json())
    (directory / "queue.directives").write_text("\n".join(sections["sqlite"]))
    await outbox.close()
    say(declared=registry.names)


async def restored(directory: Path) -> tuple[Registry, Outbox]:
    """What was declared, and the queue bound to it anew."""
    registry = Registry.from_json((directory / "registry.json").read_text())
    directives = (directory / "queue.directives").read_text().splitlines()
    outbox = await Outbox.open(SQLiteMessagingConfig.from_directives(directives))
    registry.add_provider(outbox.name, outbox)
    registry.validate()
    return registry, outbox


async def produce(directory: Path) -> None:
    registry, outbox = await restored(directory)
    say(queued=[await registry.provider("sign-ups").send(rendered(*each)) for each in SIGN_UPS])
    await outbox.close()
    registry, outbox = await restored(directory)
    await each_line(lambda: later(registry))
    await outbox.close()


async def later(registry: Registry) -> None:
    say(queued=[await registry.provider("sign-ups").send(rendered(*each)) for each in LATER])


async def work(directory: Path) -> None:
    registry, outbox = await restored(directory)
    mail = registry.provider("mail")
    assert isinstance(mail, EmailProvider)
    await drain(outbox, mail, directory)
    await each_line(lambda: drain(outbox, mail, directory))
    await outbox.close()


async def drain(outbox: Outbox, mail: EmailProvider, directory: Path) -> None:
    """Mail whatever is available; what cannot be mailed stays leased until that expires."""
    delivered: list[str] = []
    while True:
        try:
            leased = await outbox.claim()
        except QueueEmpty:
            say(delivered=delivered, outstanding=await outbox.outstanding())
            return
        assert leased.lease_expires_at is not None
        try:
            await mail.send(
                leased.message,
                message_id=leased.id,
                seconds=leased.lease_expires_at - time.time() - RESERVE,
                credentials=Credentials("gateway", password(directory)),
            )
            await outbox.acknowledge(leased.id, leased.lease)
        except MessagingError as error:
            say(failed=leased.id, error=f"{type(error).__name__}: {error}")
        else:
            delivered.append(leased.id)


async def each_line(again: Callable[[], Awaitable[None]]) -> None:
    while await deferToThread(sys.stdin.readline):
        await again()


def main(reactor: Any) -> Deferred[None]:
    verb, directory = sys.argv[1:]
    say(library=telegrammer.__file__, tests_found=find_spec("tests") is not None)
    run = {"declare": declare, "produce": produce, "work": work}[verb]
    return Deferred.fromCoroutine(run(Path(directory)))


if __name__ == "__main__":
    react(main)
