"""Answers of the stand-in Bot API: its envelopes, and the ways in which an answer goes wrong."""

from __future__ import annotations

import json
from typing import Literal

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.web.iweb import IRequest

JSON: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)


@frozen
class Reply:
    """One HTTP answer, which may lie about its length or never end."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = JSON
    declared: int | None = None
    """``Content-Length`` when it is not the body's."""
    then: Literal["finish", "stall", "hang up"] = "finish"
    """What follows the body: ``stall`` keeps the connection open, ``hang up`` closes it."""

    def write(self, request: IRequest) -> bytes | Deferred[bytes]:
        """Answer ``request``, for a Klein route."""
        request.setResponseCode(self.status)
        for name, value in self.headers:
            request.setHeader(name, value)
        if self.then == "finish" and self.declared is None:
            return self.body
        if self.declared is not None or self.body:
            request.setHeader("Content-Length", str(self.declared or len(self.body)))
            request.write(self.body)
        if self.then == "hang up":
            request.loseConnection()  # type: ignore[attr-defined]  # a method of Request, not of IRequest
        return Deferred()  # Klein cancels it when the client has gone


def success(result: bytes) -> Reply:
    """The successful envelope around a result's JSON text."""
    return Reply(body=b'{"ok":true,"result":%b}' % result)


def done(description: str) -> Reply:
    """A successful answer of a method that returns True and says what it did."""
    envelope = {"ok": True, "result": True, "description": description}
    return Reply(body=json.dumps(envelope, separators=(",", ":")).encode())


def failure(code: int, description: str, **parameters: int) -> Reply:
    """``ok: false``; ``retry_after`` among the parameters is repeated as a header, as Telegram does."""
    envelope: dict[str, object] = {"ok": False, "error_code": code, "description": description}
    headers = JSON
    if parameters:
        envelope["parameters"] = parameters
    if "retry_after" in parameters:
        headers += (("Retry-After", str(parameters["retry_after"])),)
    return Reply(code, json.dumps(envelope, separators=(",", ":")).encode(), headers)


# -- faults to script ---------------------------------------------------------------------------------


def too_many_requests(seconds: int) -> Reply:
    return failure(429, f"Too Many Requests: retry after {seconds}", retry_after=seconds)


def upgraded(new_chat_id: int) -> Reply:
    """The chat is a supergroup now, under another id."""
    return failure(
        400,
        "Bad Request: group chat was upgraded to a supergroup chat",
        migrate_to_chat_id=new_chat_id,
    )


def blocked() -> Reply:
    return failure(403, "Forbidden: bot was blocked by the user")


def restarting() -> Reply:
    return failure(500, "Internal Server Error: restart")


def bad_gateway() -> Reply:
    """The page of the web server in front of Telegram's: HTML."""
    page = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>nginx</body>\r\n</html>\r\n"
    return Reply(502, page, (("Content-Type", "text/html"),))


def no_result() -> Reply:
    return Reply(body=b'{"ok":true}')


def truncated() -> Reply:
    """A complete answer whose JSON is not."""
    return Reply(body=b'{"ok":true,"result":[{"update_id":1,"mess')


def broken_off() -> Reply:
    """The connection is closed in the middle of the body."""
    return Reply(body=b'{"ok":true,', declared=1000, then="hang up")


def stalled() -> Reply:
    """A head, a little of the body, then nothing more."""
    return Reply(body=b'{"ok"', declared=1000, then="stall")


def silence() -> Reply:
    """The request is read and never answered."""
    return Reply(then="stall")
