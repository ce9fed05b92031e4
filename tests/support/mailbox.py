"""A mail server of few words on threads, for tests that block: it takes what it is given, or does not."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from types import TracebackType
from typing import Self

from attrs import frozen

from tests.support.daemon import PATIENCE


@frozen
class Mail:
    """One message as it arrived."""

    sender: str
    recipients: tuple[str, ...]
    message: EmailMessage

    @property
    def subject(self) -> str:
        return str(self.message["Subject"])

    @property
    def text(self) -> str:
        return str(self.message.get_content())


class _Conversation(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        mailbox = self.server.mailbox
        with mailbox.changed:
            mailbox.visits += 1
            mailbox.changed.notify_all()
        self._say(b"220 mailbox ESMTP")
        sender = b""
        recipients: list[str] = []
        for line in self.rfile:
            verb = line[:4].upper()
            if verb in (b"EHLO", b"HELO"):
                self._say(b"250 mailbox")
            elif verb == b"MAIL":
                sender, recipients = _address(line), []
                self._say(b"250 ok")
            elif verb == b"RCPT":
                recipients.append(_address(line).decode())
                self._say(b"250 ok")
            elif verb == b"DATA":
                self._say(b"354 go")
                message = BytesParser(policy=default).parsebytes(self._data())
                mailbox._take(Mail(sender.decode(), tuple(recipients), message))
                if not mailbox.before_250():
                    return
                self._say(b"250 taken")
            elif verb == b"QUIT":
                self._say(b"221 bye")
                return
            else:
                self._say(b"502 what?")

    def _data(self) -> bytes:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line[1:] if line.startswith(b".") else line)
        return b"".join(lines)

    def _say(self, line: bytes) -> None:
        self.wfile.write(line + b"\r\n")


def _address(line: bytes) -> bytes:
    return line.partition(b"<")[2].partition(b">")[0]


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    mailbox: Mailbox

    def handle_error(self, request: object, client_address: object) -> None:
        """A peer that was killed is what tests are about."""


class Mailbox:
    """
    Listens on a loopback port from ``open`` to ``close``; keeps that port, so it can be down and come back.

    ``changed`` guards what it holds, and is notified on every change.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.mails: list[Mail] = []
        self.visits = 0
        self.before_250: Callable[[], bool] = lambda: True
        """Called when a message is here and not yet answered; False closes the connection instead."""
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self.port = 0
        self.open()
        self.close()

    def open(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), _Conversation)
        self._server.mailbox = self
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, mail: Mail) -> None:
        with self.changed:
            self.mails.append(mail)
            self.changed.notify_all()

    def wait_for(self, count: int, seconds: float = PATIENCE) -> list[Mail]:
        """Wait until so many mails have arrived."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.mails) >= count, seconds), self.subjects
        return self.mails

    @property
    def subjects(self) -> list[str]:
        return [mail.subject for mail in self.mails]
