"""A well-behaved mail server, aiosmtpd's, in a thread of its own: what arrives in it arrived by RFC 5321."""

from __future__ import annotations

import asyncio
import email
import hmac
import ssl
import threading
from base64 import b64decode, b64encode
from email import policy
from email.message import EmailMessage
from types import TracebackType
from typing import Any, Self, cast

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from attrs import define, field, frozen


@frozen
class Mail:
    """What has arrived."""

    sender: str
    recipients: tuple[str, ...]
    data: bytes
    login: str | None
    secure: bool

    @property
    def message(self) -> EmailMessage:
        return email.message_from_bytes(self.data, policy=policy.SMTP)


class _Handler:
    """Keeps mail; offers CRAM-MD5 too, when there is a login."""

    def __init__(self, server: MailServer) -> None:
        self.server = server

    async def handle_DATA(self, smtp: SMTP, session: Session, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes) and envelope.mail_from is not None
        self.server.mailbox.append(
            Mail(
                envelope.mail_from,
                tuple(envelope.rcpt_tos),
                envelope.content,
                cast("str | None", session.auth_data),
                session.ssl is not None or self.server.implicit_tls,
            )
        )
        return "250 taken"

    async def auth_CRAM__MD5(self, smtp: SMTP, args: list[str]) -> AuthResult:
        challenge = b"<1896.697170952@mail.example.org>"
        await smtp.push("334 " + b64encode(challenge).decode())
        user, _, digest = b64decode(await smtp._reader.readline()).partition(b" ")
        assert self.server.login is not None
        expected = hmac.new(self.server.login[1].encode(), challenge, "md5").hexdigest()
        success = digest.decode() == expected
        return AuthResult(success=success, handled=False, auth_data=user.decode())


@define(eq=False)
class MailServer:
    """Use it as a context; ``port`` is known inside."""

    tls: ssl.SSLContext | None = None
    implicit_tls: bool = False
    """TLS from the first byte, else by STARTTLS when there is ``tls``."""
    login: tuple[str, str] | None = None
    """Whom it knows; by STARTTLS it serves nobody else."""
    without: tuple[str, ...] = ()
    """Mechanisms of authentication that it does not offer."""
    mailbox: list[Mail] = field(factory=list)
    connections: int = 0
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(factory=asyncio.new_event_loop, init=False)
    _server: asyncio.AbstractServer | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, name="mail-server")
        self._thread.start()
        self._in_loop(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._in_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join()
        self._loop.close()

    def _in_loop(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _start(self) -> None:
        self._server = await self._loop.create_server(
            self._protocol, "127.0.0.1", 0, ssl=self.tls if self.implicit_tls else None
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _protocol(self) -> SMTP:
        self.connections += 1
        starttls = self.tls is not None and not self.implicit_tls
        return SMTP(
            _Handler(self),
            hostname="mail.example.org",
            loop=self._loop,
            tls_context=self.tls if starttls else None,
            require_starttls=starttls,
            # To aiosmtpd TLS from the first byte is none, and it would warn of what is asked for without TLS.
            auth_required=self.login is not None and not self.implicit_tls,
            auth_require_tls=not self.implicit_tls,
            auth_exclude_mechanism=self.without,
            authenticator=self._authenticate,
        )

    def _authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        given = (data.login.decode(), data.password.decode())
        return AuthResult(success=given == self.login, handled=False, auth_data=given[0])
