"""
A connection to a mail server: commands out, replies in, and nothing taken for an answer that was none.

``twisted.mail.smtp.ESMTPClient`` is not built upon.  It keeps a log of the session for its errors, passwords
of AUTH PLAIN in it; what it still holds of the unencrypted stream it reads as if it had come in TLS; its
replies have no bound; how far it has got is known to private names; and importing it picks the reactor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol as Interface
from typing import cast

from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHandshakeListener, IOpenSSLClientConnectionCreator, ITLSTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from telegrammer.core.smtp import BrokenReply, Reply, ReplyReader
from telegrammer.outbound.tls import CertificateRefused

CONNECTION_LOST = "the connection was lost"
HANDSHAKE_FAILED = "the TLS handshake failed"
OUT_OF_STEP = "the server answers what was not asked"


class Interrupted(Exception):
    """The conversation is over; ``why`` is short and ours."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class _Stream(Interface):
    """What is asked of Twisted's stream transports, plain and TLS alike."""

    def write(self, data: bytes) -> object: ...
    def getHost(self) -> object: ...
    def loseConnection(self) -> object: ...
    def abortConnection(self) -> object: ...
    def setTcpNoDelay(self, enabled: bool) -> object: ...


@implementer(IHandshakeListener)
class SmtpChannel(Protocol):
    """
    One connection; at most one thing is waited for at a time.

    :param made: called once it has its transport.
    :param secure: TLS begins with the first byte.
    """

    def __init__(self, made: Callable[[], None], secure: bool = False) -> None:
        self._made: Callable[[], None] | None = made
        self._reader = ReplyReader()
        self._replies: deque[Reply] = deque()
        self._shaking = secure
        """The handshake has begun and not ended."""
        self._over: str | None = None
        """Why nothing more is to be had from the peer."""
        self._gone = False
        self._waiting: Deferred[Reply] | None = None
        self._shaken: Deferred[None] | None = None
        self._parting: list[Deferred[None]] = []

    @property
    def host(self) -> str:
        """Our own address on this connection."""
        return str(getattr(self._stream.getHost(), "host", ""))

    def reply(self) -> Deferred[Reply]:
        """
        The next reply.

        :raises Interrupted: (as a failure) there will be none.
        """

        def left(_: Deferred[Reply]) -> None:
            self._waiting = None

        waiting: Deferred[Reply] = Deferred(left)
        self._waiting = waiting
        self._tell()
        return waiting

    def command(self, line: bytes) -> Deferred[Reply]:
        """
        Send a command; its reply.

        A refusal that has come unasked (421, mostly) is the answer, and the command is not sent.

        :raises Interrupted: (as a failure) there will be none, or something else has come unasked.
        """
        return self._say(line + b"\r\n")

    def data(self, text: bytes, begins: Callable[[], None]) -> Deferred[Reply]:
        """
        Like a command, for what follows a 354.

        :param begins: called before the first byte goes out, and never when none does.
        """
        return self._say(text, begins)

    def _say(self, text: bytes, begins: Callable[[], None] | None = None) -> Deferred[Reply]:
        if self._over is None and not (self._replies and self._replies[0].refused):
            if self._replies or self._reader.amid:
                self._end(OUT_OF_STEP)
            else:
                if begins is not None:
                    begins()
                self._stream.write(text)
        return self.reply()

    def start_tls(self, creator: IOpenSSLClientConnectionCreator) -> Deferred[None]:
        """
        Go on in TLS; fires when peer and certificate are verified.

        :raises Interrupted: (as a failure) they are not, or something was sent in clear that would count as
            sent in TLS.
        """
        if self._over is None and (self._replies or self._reader.amid):
            self._end(OUT_OF_STEP)
        if self._over is None:
            self._shaking = True
            cast(ITLSTransport, self.transport).startTLS(creator)
        return self.handshake()

    def handshake(self) -> Deferred[None]:
        """
        Fires when the TLS that began with the connection is verified.

        :raises Interrupted: (as a failure) it will not be.
        """

        def left(_: Deferred[None]) -> None:
            self._shaken = None

        shaken: Deferred[None] = Deferred(left)
        self._shaken = shaken
        self._tell()
        return shaken

    def gone(self) -> Deferred[None]:
        """Fires when the connection is closed."""
        gone: Deferred[None] = Deferred()
        if self._gone:
            gone.callback(None)
        else:
            self._parting.append(gone)
        return gone

    def leave(self) -> None:
        """Close it as the protocols have it."""
        if not self._gone:
            self._stream.loseConnection()

    def abort(self) -> None:
        """Close it now: what waits to be sent is not, and what comes is not read."""
        if self._over is None:
            self._over = CONNECTION_LOST
        if not self._gone:
            self._stream.abortConnection()

    @property
    def _stream(self) -> _Stream:
        return cast(_Stream, self.transport)

    def _end(self, why: str) -> None:
        self._replies.clear()
        self._over = self._over or why
        self.abort()
        self._tell()

    def _tell(self) -> None:
        """Tell whoever waits what is known by now."""
        waiting, shaken = self._waiting, self._shaken
        if waiting is not None and (self._replies or self._over is not None):
            self._waiting = None
            if self._replies:
                waiting.callback(self._replies.popleft())
            else:
                waiting.errback(Interrupted(cast(str, self._over)))
        elif shaken is not None and (not self._shaking or self._over is not None):
            self._shaken = None
            if self._over is None:
                shaken.callback(None)
            else:
                shaken.errback(Interrupted(self._over))

    # -- called by the transport -----------------------------------------------------------------------

    def connectionMade(self) -> None:
        self._stream.setTcpNoDelay(True)
        made, self._made = self._made, None
        if made is not None:
            made()

    def handshakeCompleted(self) -> None:
        self._shaking = False
        self._tell()

    def dataReceived(self, data: bytes) -> None:
        if self._over is not None:
            return
        try:
            self._replies.extend(self._reader.feed(data))
        except BrokenReply as broken:
            self._end(broken.why)
        else:
            self._tell()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._gone = True
        if self._over is None:
            self._over = self._why(reason)
        self._tell()
        parting, self._parting = self._parting, []
        for each in parting:
            if not each.called:
                each.callback(None)

    def _why(self, reason: Failure) -> str:
        if isinstance(reason.value, CertificateRefused):
            return reason.value.why
        if self._shaking or isinstance(reason.value, SSL.Error):
            return HANDSHAKE_FAILED
        return CONNECTION_LOST
