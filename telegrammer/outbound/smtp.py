"""
One attempt to hand a message to a mail server (RFC 5321), and no more than one.

It can be cancelled at every stage: the socket is closed at once, nothing goes on behind, and what is known of
the message's fate is the result.  Up to the first byte of its data the message was certainly not delivered;
from there on only the server's final answer says so.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IReactorTCP, IReactorTime
from twisted.internet.protocol import ClientFactory
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.web.iweb import IPolicyForHTTPS

from telegrammer.core.messages import Credentials
from telegrammer.core.problems import CredentialsRefused, DeliveryFailed, MaybeDelivered
from telegrammer.core.smtp import BrokenReply
from telegrammer.outbound.callbacks import Resolver
from telegrammer.outbound.connecting import Made, Race, Unreachable
from telegrammer.outbound.resolver import LookupFailed
from telegrammer.outbound.smtp_channel import Interrupted, SmtpChannel
from telegrammer.outbound.smtp_conversation import Conversation, Envelope, Progress, Relay
from telegrammer.timers import FairClock

LONGEST_SECONDS = 86_400.0
"""No attempt lasts longer, whatever its caller says."""
GOODBYE_SECONDS = 1.0
"""How long the peer may take to answer QUIT; the message's fate is sealed by then."""

TIME_UP = "time was up"
CANCELLED = "cancelled"


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
    progress: Progress = field(factory=Progress, init=False)
    expired: bool = field(default=False, init=False)
    cut_off: bool = field(default=False, init=False)
    """By the deadline or the caller; not a word more is said."""
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
            channel = await self._connected()
            await Conversation(
                channel, self.relay, self.envelope, self.credentials, self._creator, self.progress
            ).hand_over()
        except DeliveryFailed as refused:
            return refused
        except (LookupFailed, Unreachable, Interrupted, BrokenReply) as ended:
            return self._ended(ended.why)
        except CancelledError as cancelled:
            self.cut_off = True
            if self.expired:
                return self._ended(TIME_UP)
            return self._ended(CANCELLED) if self.progress.data_began else cancelled
        return None

    def _ended(self, why: str) -> DeliveryFailed | MaybeDelivered:
        text = f"{self.progress.stage}: {why}"
        return MaybeDelivered(text) if self.progress.data_began else DeliveryFailed(text)

    # -- connecting ------------------------------------------------------------------------------------

    async def _connected(self) -> SmtpChannel:
        client, relay = self.client, self.relay
        secure = relay.transport == "smtps"
        addresses = await client.resolver.resolve(relay.host, relay.port)
        self.progress.stage = "connecting"

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
            self.progress.stage = "TLS handshake"
            await channel.handshake()
        return channel

    def _creator(self) -> Any:
        return self.client.trust.creatorForNetloc(self.relay.host.encode("ascii"), self.relay.port)

    # -- the end ---------------------------------------------------------------------------------------

    async def _goodbye(self, channel: SmtpChannel) -> None:
        """Take leave as the protocol has it; nothing that happens now changes the message's fate."""
        self.progress.stage = "QUIT"
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
