"""
One attempt to hand a message to a mail server (RFC 5321), and no more than one.

It can be cancelled at every stage: the socket is closed at once, nothing goes on behind, and what is known of
the message's fate is the result.  Up to the first byte of its data the message was certainly not delivered;
from there on only the server's final answer says so.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from attrs import define, field, frozen
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IReactorTCP, IReactorTime
from twisted.internet.protocol import ClientFactory
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.web.iweb import IPolicyForHTTPS

from telegrammer.core.messages import Credentials
from telegrammer.core.problems import CredentialsRefused, DeliveryFailed, MaybeDelivered
from telegrammer.core.smtp import (
    BrokenReply,
    Reply,
    Transport,
    as_data,
    challenge_of,
    extensions,
    mechanism,
    secrets_of,
)
from telegrammer.outbound.callbacks import Resolver
from telegrammer.outbound.connecting import Made, Race, Unreachable
from telegrammer.outbound.resolver import LookupFailed
from telegrammer.outbound.smtp_channel import Interrupted, SmtpChannel
from telegrammer.timers import FairClock

LONGEST_SECONDS = 86_400.0
"""No attempt lasts longer, whatever its caller says."""
GOODBYE_SECONDS = 1.0
"""How long the peer may take to answer QUIT; the message's fate is sealed by then."""

TIME_UP = "time was up"
CANCELLED = "cancelled"


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


@define(eq=False)
class SmtpClient:
    """
    Hands messages to mail servers, each over a connection of its own.

    ``trust`` says whose certificates are good; there is no way not to verify them.
    """

    tcp: IReactorTCP
    clock: IReactorTime
    resolver: Resolver
    trust: IPolicyForHTTPS

    def send(
        self, relay: Relay, envelope: Envelope, *, seconds: float, credentials: Credentials | None = None
    ) -> Deferred[None]:
        """
        Fires when the server has taken the message for all its recipients, and the connection is closed.

        A server that refuses one of the recipients gets no message at all.  Cancelling it before the data
        has begun to go out gives ``CancelledError``; afterwards what it gives is ``MaybeDelivered``, or
        success once the server has taken the message.

        :param seconds: for all of it, from the name look-up on.
        :raises CredentialsRefused: they would go in clear (transport ``smtp``); nobody was dialled.
        :raises DeliveryFailed: the message was certainly not delivered.
        :raises MaybeDelivered: it may have been.
        """
        if credentials is not None and relay.transport == "smtp":
            return fail(CredentialsRefused("credentials are not sent in clear; use starttls or smtps"))
        if not seconds > 0:
            return fail(DeliveryFailed(TIME_UP))
        seconds = min(seconds, LONGEST_SECONDS)
        attempt = _Attempt(self, relay, envelope, seconds, credentials)
        running = Deferred.fromCoroutine(attempt.run())
        timer = FairClock(self.clock).callLater(seconds, attempt.expire, running)

        def ended(result: Any) -> Any:
            if timer.active():
                timer.cancel()
            return result

        return running.addBoth(ended)


@define(eq=False)
class _Attempt:
    client: SmtpClient
    relay: Relay
    envelope: Envelope
    seconds: float
    credentials: Credentials | None = field(repr=False)
    stage: str = field(default="looking up the server", init=False)
    expired: bool = field(default=False, init=False)
    cut_off: bool = field(default=False, init=False)
    """By the deadline or the caller; not a word more is said."""
    data_began: bool = field(default=False, init=False)
    channel: SmtpChannel | None = field(default=None, init=False)

    def expire(self, running: Deferred[None]) -> None:
        self.expired = True
        running.cancel()

    async def run(self) -> None:
        try:
            fate = await self._fate()
            if self.channel is not None and not self.cut_off:
                await self._goodbye(self.channel)
        except Exception as bug:
            fate = bug
        await self._close()
        if fate is not None:
            raise fate

    async def _fate(self) -> Exception | None:
        """What has become of the message; None when the server has taken it."""
        try:
            await self._converse(await self._connected())
        except DeliveryFailed as refused:
            return refused
        except (LookupFailed, Unreachable, Interrupted, BrokenReply) as ended:
            return self._ended(ended.why)
        except CancelledError as cancelled:
            self.cut_off = True
            if self.expired:
                return self._ended(TIME_UP)
            return self._ended(CANCELLED) if self.data_began else cancelled
        return None

    def _ended(self, why: str) -> DeliveryFailed | MaybeDelivered:
        text = f"{self.stage}: {why}"
        return MaybeDelivered(text) if self.data_began else DeliveryFailed(text)

    def _refused(self, what: str, reply: Reply) -> DeliveryFailed:
        secrets = () if self.credentials is None else secrets_of(self.credentials)
        return DeliveryFailed(f"{what}: {reply.said(secrets)}", reply.permanent)

    # -- connecting ------------------------------------------------------------------------------------

    async def _connected(self) -> SmtpChannel:
        client, relay = self.client, self.relay
        secure = relay.transport == "smtps"
        addresses = await client.resolver.resolve(relay.host, relay.port)
        self.stage = "connecting"

        def build(made: Made) -> SmtpChannel:
            def won() -> None:
                self.channel = channel
                made()

            channel = SmtpChannel(won, secure)
            return channel

        def wrap(factory: ClientFactory[Any]) -> ClientFactory[Any]:
            if not secure:
                return factory
            wrapped: ClientFactory[Any] = TLSMemoryBIOFactory(self._creator(), True, factory, client.clock)
            wrapped.noisy = False
            return wrapped

        await Race(client.tcp, client.clock, build, wrap, self.seconds).start(addresses)
        channel = self.channel
        assert channel is not None
        if secure:
            self.stage = "TLS handshake"
            await channel.handshake()
        return channel

    def _creator(self) -> Any:
        return self.client.trust.creatorForNetloc(self.relay.host.encode("ascii"), self.relay.port)

    # -- the conversation ------------------------------------------------------------------------------

    async def _converse(self, channel: SmtpChannel) -> None:
        """
        Hand over the message; returns when the server has taken it.

        :raises DeliveryFailed: the server says no.
        """
        self.stage = "greeting"
        greeting = await channel.reply()
        if greeting.code != 220:
            raise self._refused("the server is not ready", greeting)
        offered = await self._hello(channel)
        if self.relay.transport == "starttls":
            offered = await self._start_tls(channel, offered)
        if self.credentials is not None:
            await self._authenticate(channel, offered, self.credentials)
        await self._address(channel)
        await self._hand_over(channel)

    async def _hello(self, channel: SmtpChannel) -> dict[str, tuple[str, ...]]:
        self.stage = "EHLO"
        # An address literal is right without a name look-up (RFC 5321, 4.1.4).
        host = channel.host.partition("%")[0]
        name = f"[IPv6:{host}]" if ":" in host else f"[{host}]"
        reply = await channel.command(b"EHLO " + name.encode("ascii"))
        if reply.positive:
            return dict(extensions(reply))
        if reply.permanent and self.relay.transport != "starttls" and self.credentials is None:
            # Nothing is needed that a server of before 1995 does not have.
            reply = await channel.command(b"HELO " + name.encode("ascii"))
            if reply.positive:
                return {}
        raise self._refused("the server refuses EHLO", reply)

    async def _start_tls(
        self, channel: SmtpChannel, offered: dict[str, tuple[str, ...]]
    ) -> dict[str, tuple[str, ...]]:
        self.stage = "STARTTLS"
        if "STARTTLS" not in offered:
            raise DeliveryFailed("the server offers no STARTTLS, and nothing is sent in clear")
        reply = await channel.command(b"STARTTLS")
        if reply.code != 220:
            raise self._refused("the server refuses STARTTLS", reply)
        self.stage = "TLS handshake"
        await channel.start_tls(self._creator())
        # What was offered in clear counts for nothing (RFC 3207, 4.2).
        return await self._hello(channel)

    async def _authenticate(
        self, channel: SmtpChannel, offered: dict[str, tuple[str, ...]], credentials: Credentials
    ) -> None:
        self.stage = "AUTH"
        chosen = mechanism(offered.get("AUTH", ()), credentials)
        if chosen is None:
            raise DeliveryFailed("the server offers no authentication that is known here")
        initial = b"" if chosen.initial is None else b" " + b64encode(chosen.initial)
        reply = await channel.command(b"AUTH " + chosen.name.encode("ascii") + initial)
        for answer in chosen.answers:
            if reply.code != 334:
                break
            reply = await channel.command(b64encode(answer(challenge_of(reply))))
        if reply.code != 235:
            # Its words are not shown: they may repeat what they were told.
            raise DeliveryFailed(f"the server refuses the credentials: {reply.code}", reply.permanent)

    async def _address(self, channel: SmtpChannel) -> None:
        self.stage = "MAIL"
        reply = await channel.command(b"MAIL FROM:<%s>" % self.envelope.sender.encode("ascii"))
        if not reply.positive:
            raise self._refused("the server refuses the sender", reply)
        self.stage = "RCPT"
        refused: list[Reply] = []
        for recipient in self.envelope.recipients:
            reply = await channel.command(b"RCPT TO:<%s>" % recipient.encode("ascii"))
            if not reply.positive:
                refused.append(reply)
        if refused:
            # All or none: a second attempt for the rest would be a second message for the others.
            worst = max(refused, key=lambda each: each.permanent)
            count = f"{len(refused)} of {len(self.envelope.recipients)} recipients"
            raise self._refused(f"the server refuses {count}", worst)

    async def _hand_over(self, channel: SmtpChannel) -> None:
        self.stage = "DATA"
        reply = await channel.command(b"DATA")
        if reply.code != 354:
            raise self._refused("the server refuses DATA", reply)
        reply = await channel.data(as_data(self.envelope.data), self._begin_data)
        if reply.refused:
            raise self._refused("the server refuses the message", reply)
        if not reply.positive:
            raise Interrupted("the server's final answer is none")

    def _begin_data(self) -> None:
        self.stage = "after DATA"
        self.data_began = True

    # -- the end ---------------------------------------------------------------------------------------

    async def _goodbye(self, channel: SmtpChannel) -> None:
        """Take leave as the protocol has it; nothing that happens now changes the message's fate."""
        self.stage = "QUIT"
        timer: IDelayedCall = self.client.clock.callLater(GOODBYE_SECONDS, channel.abort)
        try:
            await channel.command(b"QUIT")
            channel.leave()
            await channel.gone()
        except (Interrupted, CancelledError):
            pass
        finally:
            if timer.active():
                timer.cancel()

    async def _close(self) -> None:
        """Returns when the socket is closed; cancelling the wait does not stop that."""
        if self.channel is not None:
            self.channel.abort()
            try:
                await self.channel.gone()
            except CancelledError:
                pass
