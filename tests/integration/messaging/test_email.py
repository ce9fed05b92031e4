"""E-mail to a mail server that others wrote: what arrives, and for whom (contract 7.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from attrs import define

from telegrammer.messaging import (
    Credentials,
    CredentialsRefused,
    DeliveryFailed,
    EmailConfig,
    EmailProvider,
    Message,
    Registry,
)
from tests.support.bounded import bounded
from tests.support.certificates import Authority
from tests.support.network import Names
from tests.support.smtp_server import MailServer

HOST = "mail.example.org"
CREDENTIALS = Credentials("ops@example.org", "open sesame ä")
SUBJECT = "Grüße \u2028Bcc: all@example.org"
BODY = "<p>=C3=A4 &lt;b&gt;&amp;</p>\n.\n..\nend =\n"


@define(eq=False)
class Post:
    """A mail server, a provider for it, and whom that trusts."""

    server: MailServer
    provider: EmailProvider


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority()


MakePost = Callable[..., Post]


@pytest.fixture
def post(tmp_path: Path, authority: Authority, reactor: Any) -> Iterator[MakePost]:
    servers: list[MailServer] = []

    def make(transport: str, login: Credentials | None = None, **settings: Any) -> Post:
        server = MailServer(
            None if transport == "smtp" else authority.context(HOST),
            transport == "smtps",
            None if login is None else (login.username, login.password),
            settings.pop("without", ()),
        )
        server.__enter__()
        servers.append(server)
        directives = [
            "name ops",
            f"transport {transport}",
            f"host {HOST}",
            f"port {server.port}",
            "from gw@example.org",
            f"ca_file {authority.write(tmp_path / 'ca.pem')}",
            *(f"{name} {value}" for name, value in settings.items()),
        ]
        names = Names({HOST: ["127.0.0.1"]})
        return Post(server, EmailProvider(EmailConfig.from_directives(directives), reactor, resolver=names))

    yield make
    for server in servers:
        server.__exit__(None, None, None)


@pytest.mark.parametrize("transport", ["smtp", "starttls", "smtps"])
@bounded(60)
async def test_a_message_arrives(post: MakePost, transport: str) -> None:
    it = post(transport)
    await it.provider.send(Message(SUBJECT, BODY, ["ops@example.org", "boss@example.com"]), message_id="0a1b")
    [mail] = it.server.mailbox
    assert (mail.sender, mail.recipients) == ("gw@example.org", ("ops@example.org", "boss@example.com"))
    assert mail.secure == (transport != "smtp")
    message = mail.message
    assert message["Subject"] == SUBJECT
    assert message["Message-ID"] == "<0a1b@example.org>"
    assert message["To"] == "ops@example.org, boss@example.com"
    assert (message["Bcc"], message["Date"].datetime.year >= 2026) == (None, True)
    assert message.get_content_type() == "text/html"
    # As it was given, octet for octet, dots too; and read as what it means.
    assert mail.data.partition(b"\r\n\r\n")[2] == BODY.replace("\n", "\r\n").encode()
    assert message.get_content().startswith("<p>ä &lt;b&gt;&amp;</p>")
    assert it.server.connections == 1


@bounded(60)
async def test_a_text_arrives(post: MakePost) -> None:
    it = post("smtp", body_format="text")
    for body in ("Zwölf Boxkämpfer\n.\n\nEnde", "Съешь же ещё этих мягких французских булок\n", "x" * 3000):
        await it.provider.send(Message("x", body, ["ops@example.org"]))
        message = it.server.mailbox[-1].message
        assert message.get_content_type() == "text/plain"
        assert message.get_content().replace("\r\n", "\n").removesuffix("\n") == body.removesuffix("\n")


@bounded(60)
async def test_sixteen_recipients_and_the_longest_body(post: MakePost) -> None:
    it = post("smtp")
    recipients = [f"{'x' * 40}{number}@example.org" for number in range(16)]
    body = "\n".join(["." * 998] * 60)
    await it.provider.send(Message("x", body, recipients))
    [mail] = it.server.mailbox
    assert mail.recipients == tuple(recipients)
    assert mail.data.partition(b"\r\n\r\n")[2] == body.replace("\n", "\r\n").encode() + b"\r\n"


@bounded(60)
async def test_two_messages_to_two_recipients(post: MakePost) -> None:
    """Neither sees the other's."""
    it = post("smtp")
    for recipient in ("one@example.org", "two@example.org"):
        await it.provider.send(Message("x", f"for {recipient}", [recipient]))
    one, two = it.server.mailbox
    assert (one.recipients, two.recipients) == (("one@example.org",), ("two@example.org",))
    assert b"two@" not in one.data and b"one@" not in two.data


@pytest.mark.parametrize("transport", ["starttls", "smtps"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN", "CRAM-MD5"])
@bounded(60)
async def test_authentication(post: MakePost, transport: str, mechanism: str) -> None:
    without = tuple({"PLAIN", "LOGIN", "CRAM-MD5"} - {mechanism})
    it = post(transport, CREDENTIALS, username=CREDENTIALS.username, without=without)
    await it.provider.send(Message("x", "x", ["ops@example.org"]), credentials=CREDENTIALS)
    [mail] = it.server.mailbox
    assert (mail.login, mail.secure) == (CREDENTIALS.username, True)


@bounded(60)
async def test_credentials_that_are_wrong_or_missing(post: MakePost) -> None:
    it = post("smtps", CREDENTIALS, username=CREDENTIALS.username)
    message = Message("x", "x", ["ops@example.org"])
    with pytest.raises(CredentialsRefused):
        await it.provider.send(message)
    assert it.server.connections == 0
    with pytest.raises(DeliveryFailed) as caught:
        await it.provider.send(message, credentials=Credentials(CREDENTIALS.username, "wrong words"))
    assert caught.value.permanent and "535" in str(caught.value)
    assert "wrong words" not in repr(caught.value)
    # Those of one call are not those of the next.
    await it.provider.send(message, credentials=CREDENTIALS)
    with pytest.raises(CredentialsRefused):
        await it.provider.send(message)
    assert (it.server.connections, len(it.server.mailbox)) == (2, 1)


@bounded(60)
async def test_a_server_that_wants_to_know_whom_it_serves(post: MakePost) -> None:
    """It is not given what it was not told to be given."""
    it = post("starttls", CREDENTIALS)
    with pytest.raises(DeliveryFailed, match="530"):
        await it.provider.send(Message("x", "x", ["ops@example.org"]))
    assert it.server.mailbox == []


@bounded(60)
async def test_out_of_a_registry(post: MakePost) -> None:
    """Typed, serialised, restored: the same server gets the message."""
    it = post("smtp")
    registry = Registry(providers=[it.provider])
    restored = Registry.from_json(registry.to_json())
    restored.validate()
    provider = cast(EmailProvider, restored.provider("ops"))
    assert provider.config == it.provider.config
    provider.resolver = Names({HOST: ["127.0.0.1"]})
    await provider.send(Message("x", "x", ["ops@example.org"]))
    assert len(it.server.mailbox) == 1
