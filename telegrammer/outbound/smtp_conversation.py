"""What is said to a mail server to hand a message over (RFC 5321), and what is made of its answers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping

from attrs import define, field, frozen
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator

from telegrammer.core.messages import Credentials
from telegrammer.core.problems import DeliveryFailed
from telegrammer.core.smtp import (
    Reply,
    Transport,
    as_data,
    challenge_of,
    extensions,
    mechanism,
    secrets_of,
)
from telegrammer.outbound.smtp_channel import Interrupted, SmtpChannel


@frozen
class Relay:
    """The mail server to hand messages to."""

    host: str
    """A name in ASCII, or the text of an IP address."""
    port: int
    transport: Transport


@frozen
class Envelope:
    """A message for its recipients; ``data`` is the whole of it, header and body."""

    sender: str
    recipients: tuple[str, ...]
    data: bytes = field(repr=False)


@define
class Progress:
    """How far an attempt has come."""

    stage: str = "looking up the server"
    data_began: bool = False
    """Something of the message may be out: only the server's final answer says what has become of it."""


@define(eq=False)
class Conversation:
    """One message over one connection."""

    _channel: SmtpChannel
    _relay: Relay
    _envelope: Envelope
    _credentials: Credentials | None = field(repr=False)
    _creator: Callable[[], IOpenSSLClientConnectionCreator]
    """Makes what verifies the server, for STARTTLS."""
    _progress: Progress

    async def hand_over(self) -> None:
        """
        Hand over the message; returns when the server has taken it.

        :raises DeliveryFailed: the server says no.
        :raises Interrupted: the conversation ended before its answer; ``data_began`` tells what that means.
        :raises BrokenReply: the same, for nonsense where a challenge should be.
        """
        self._progress.stage = "greeting"
        greeting = await self._channel.reply()
        if greeting.code != 220:
            raise self._refused("the server is not ready", greeting)
        offered = await self._hello()
        if self._relay.transport == "starttls":
            offered = await self._start_tls(offered)
        if self._credentials is not None:
            await self._authenticate(offered, self._credentials)
        await self._address()
        await self._hand_over()

    async def _hello(self) -> Mapping[str, tuple[str, ...]]:
        self._progress.stage = "EHLO"
        # An address literal is right without a name look-up (RFC 5321, 4.1.4).
        host = self._channel.host.partition("%")[0]
        name = f"[IPv6:{host}]" if ":" in host else f"[{host}]"
        reply = await self._channel.command(b"EHLO " + name.encode("ascii"))
        if reply.positive:
            return extensions(reply)
        if reply.permanent and self._relay.transport != "starttls" and self._credentials is None:
            # Nothing is needed that a server of before 1995 does not have.
            reply = await self._channel.command(b"HELO " + name.encode("ascii"))
            if reply.positive:
                return {}
        raise self._refused("the server refuses EHLO", reply)

    async def _start_tls(self, offered: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
        self._progress.stage = "STARTTLS"
        if "STARTTLS" not in offered:
            raise DeliveryFailed("the server offers no STARTTLS, and nothing is sent in clear")
        reply = await self._channel.command(b"STARTTLS")
        if reply.code != 220:
            raise self._refused("the server refuses STARTTLS", reply)
        self._progress.stage = "TLS handshake"
        await self._channel.start_tls(self._creator())
        # What was offered in clear counts for nothing (RFC 3207, 4.2).
        return await self._hello()

    async def _authenticate(self, offered: Mapping[str, tuple[str, ...]], credentials: Credentials) -> None:
        self._progress.stage = "AUTH"
        chosen = mechanism(offered.get("AUTH", ()), credentials)
        if chosen is None:
            raise DeliveryFailed("the server offers no authentication that is known here")
        initial = b"" if chosen.initial is None else b" " + b64encode(chosen.initial)
        reply = await self._channel.command(b"AUTH " + chosen.name.encode("ascii") + initial)
        for answer in chosen.answers:
            if reply.code != 334:
                break
            reply = await self._channel.command(b64encode(answer(challenge_of(reply))))
        if reply.code != 235:
            # Its words are not shown: they may repeat what they were told.
            raise DeliveryFailed(f"the server refuses the credentials: {reply.code}", reply.permanent)

    async def _address(self) -> None:
        self._progress.stage = "MAIL"
        reply = await self._channel.command(b"MAIL FROM:<%s>" % self._envelope.sender.encode("ascii"))
        if not reply.positive:
            raise self._refused("the server refuses the sender", reply)
        self._progress.stage = "RCPT"
        refused: list[Reply] = []
        for recipient in self._envelope.recipients:
            reply = await self._channel.command(b"RCPT TO:<%s>" % recipient.encode("ascii"))
            if not reply.positive:
                refused.append(reply)
        if refused:
            # All or none: a second attempt for the rest would be a second message for the others.
            worst = max(refused, key=lambda each: each.permanent)
            count = f"{len(refused)} of {len(self._envelope.recipients)} recipients"
            raise self._refused(f"the server refuses {count}", worst)

    async def _hand_over(self) -> None:
        self._progress.stage = "DATA"
        reply = await self._channel.command(b"DATA")
        if reply.code != 354:
            raise self._refused("the server refuses DATA", reply)
        reply = await self._channel.data(as_data(self._envelope.data), self._begin_data)
        if reply.refused:
            raise self._refused("the server refuses the message", reply)
        if not reply.positive:
            raise Interrupted("the server's final answer is none")

    def _begin_data(self) -> None:
        self._progress.stage = "after DATA"
        self._progress.data_began = True

    def _refused(self, what: str, reply: Reply) -> DeliveryFailed:
        secrets = () if self._credentials is None else secrets_of(self._credentials)
        return DeliveryFailed(f"{what}: {reply.said(secrets)}", reply.permanent)
