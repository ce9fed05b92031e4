"""
Messages by e-mail: a declaration, and a provider that makes one attempt a call (contract 7.3).

The outbox, or whoever else calls, decides about repetitions; the Message-ID is the same for the same id.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Self, cast

from attrs import Factory, define, field, frozen
from twisted.internet.defer import Deferred, fail
from twisted.web.iweb import IPolicyForHTTPS

from telegrammer.core.messages import Credentials, Message
from telegrammer.core.problems import (
    CredentialsRefused,
    DeliveryFailed,
    DirectiveRefused,
    MessageRefused,
    StartRefused,
)
from telegrammer.core.smtp import PORTS, Transport
from telegrammer.messaging.directives import (
    absolute_path,
    duration,
    parse_directives,
    provider_name,
    timeout,
)
from telegrammer.messaging.mime import BodyFormat, render
from telegrammer.messaging.settings import (
    account,
    bare_address,
    body_format_name,
    host_name,
    port_number,
    setting,
    transport_name,
)
from telegrammer.outbound.callbacks import Resolver
from telegrammer.outbound.resolver import ThreadedResolver
from telegrammer.outbound.smtp import SmtpClient
from telegrammer.outbound.smtp_conversation import Envelope, Relay
from telegrammer.outbound.tls import policy_for_https
from telegrammer.ports import Now

TIMEOUT: Final = 30.0
"""Seconds of an attempt for which nothing else is said."""
LOOKUPS: Final = 8
"""Threads for name look-ups of one provider, those that hang included."""

_REQUIRED = {"name": provider_name, "transport": transport_name, "host": host_name, "from": bare_address}
_OPTIONAL = {
    "port": port_number,
    "username": account,
    "body_format": body_format_name,
    "ca_file": absolute_path,
    "timeout": duration,
}


def _usual_port(config: EmailConfig) -> int:
    return PORTS[config.transport]


@frozen(kw_only=True)
class EmailConfig:
    """
    A mail server to hand messages to.  Checked without a look at disk or network.

    :raises DirectiveRefused: a value breaks its rule; ``directive`` names it.
    """

    name: str = setting(provider_name)
    transport: Transport = setting(transport_name)
    """``smtp`` (in clear), ``starttls`` (which must be offered) or ``smtps``; certificates are verified."""
    host: str = setting(host_name)
    port: int = setting(port_number, default=Factory(_usual_port, takes_self=True))
    """By default the transport's own: 25, 587 or 465."""
    sender: str = setting(bare_address, "from")
    """The directive is called ``from``."""
    username: str | None = setting(account, default=None)
    """Without it there is no authentication; with it each call needs credentials of that name."""
    body_format: BodyFormat = setting(body_format_name, default="qp-html")
    ca_file: Path | None = setting(absolute_path, default=None)
    """Certificates (PEM) that are trusted besides the system's, or ``SSL_CERT_FILE``'s."""
    timeout: float = setting(timeout, default=TIMEOUT)
    """Seconds of an attempt, unless the call says otherwise."""

    kind: ClassVar[str] = "email"

    def __attrs_post_init__(self) -> None:
        if self.username is not None and self.transport == "smtp":
            raise DirectiveRefused(
                "username", "username needs transport starttls or smtps: no password is sent in clear"
            )

    @classmethod
    def from_directives(cls, directives: Iterable[str]) -> Self:
        """
        From ``["name ops", "transport smtps", "host mail.example.org", "from gateway@example.org", …]``.

        The settings are those of the constructor, ``from`` for ``sender``.

        :raises DirectiveRefused: one is unknown, repeated, missing or malformed.
        """
        values = parse_directives(directives, _REQUIRED, _OPTIONAL)
        values["sender"] = values.pop("from")
        return cls(**values)


@define(eq=False)
class EmailProvider:
    """
    Sends messages through the mail server of its configuration; implements ``ports.Mailer``.

    It holds no connection between two messages and no credentials at all.

    :param reactor: the global one when None.
    """

    config: EmailConfig
    reactor: Any = field(default=None, repr=False)
    resolver: Resolver | None = field(default=None, repr=False, kw_only=True)
    trust: IPolicyForHTTPS | None = field(default=None, repr=False, kw_only=True)
    """Whose certificates are good; by default the system's and the configuration's ``ca_file``."""
    now: Now = field(default=time.time, repr=False, kw_only=True)  # noqa: TID251
    new_id: Callable[[], str] = field(default=partial(secrets.token_hex, 16), repr=False, kw_only=True)
    _client: SmtpClient | None = field(default=None, init=False, repr=False)

    kind: ClassVar[str] = "email"

    @property
    def name(self) -> str:
        return self.config.name

    def send(
        self,
        message: Message,
        *,
        message_id: str | None = None,
        seconds: float | None = None,
        credentials: Credentials | None = None,
    ) -> Deferred[None]:
        """
        One attempt; fires when the mail server has taken the message for all recipients.

        Cancelling it closes the connection at once, at whatever stage.  Before any of the message's data
        has gone out that gives ``CancelledError``; afterwards ``MaybeDelivered``, or success when the server
        has taken it already.  The connection is closed when it fires.

        :param message_id: of the outbox; made up when None.
        :param seconds: for everything from the name look-up on; by default the configuration's ``timeout``.
        :param credentials: for this call; needed exactly when the configuration has a ``username``.
        :raises CredentialsRefused: they are missing, or not for this; nobody was dialled.
        :raises MessageRefused: the body is not what ``body_format`` says; nobody was dialled.
        :raises DeliveryFailed: it was certainly not delivered, to none of the recipients.
        :raises MaybeDelivered: it may have been.
        """
        try:
            self._check(credentials)
            data = render(
                message,
                sender=self.config.sender,
                message_id=self.new_id() if message_id is None else message_id,
                now=self.now(),
                body_format=self.config.body_format,
            )
            client = self._the_client()
        except (CredentialsRefused, MessageRefused, DeliveryFailed, ValueError) as refused:
            return fail(refused)
        config = self.config
        return client.send(
            Relay(config.host, config.port, config.transport),
            Envelope(config.sender, message.recipients, data),
            seconds=config.timeout if seconds is None else seconds,
            credentials=credentials,
        )

    def _check(self, credentials: Credentials | None) -> None:
        username = self.config.username
        if credentials is None:
            if username is not None:
                raise CredentialsRefused("this mail server needs credentials, and none were given")
            return
        if username is None:
            raise CredentialsRefused("credentials were given, but the configuration has no username")
        if credentials.username != username:
            raise CredentialsRefused("the credentials are for another username than the configuration's")
        if not credentials.password or "\0" in credentials.password:
            raise CredentialsRefused("the password is empty, or has a NUL character")
        try:
            credentials.password.encode()
        except UnicodeEncodeError:
            raise CredentialsRefused("the password is no valid Unicode text") from None

    def _the_client(self) -> SmtpClient:
        if self._client is None:
            try:
                trust = self.trust or policy_for_https(self.config.ca_file)
            except StartRefused:
                # What is read anew next time may have been mended.
                raise DeliveryFailed("the ca_file cannot be read, or holds no certificate") from None
            reactor = self.reactor
            if reactor is None:
                from twisted.internet import reactor
            resolver = self.resolver or ThreadedResolver(reactor, reactor, LOOKUPS)
            self._client = SmtpClient(cast(Any, reactor), cast(Any, reactor), resolver, trust)
        return self._client
