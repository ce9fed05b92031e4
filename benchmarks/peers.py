"""
The other ends, each in a process of its own: ``python -m benchmarks.peers NAME …``, of which `main` has the
names.

They are as lean as they can be, so that what is measured is the gateway.  A server prints its port on
the first line and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, cast

from benchmarks.callers import load, push

Handler = Callable[[bytes, bytes], "bytes | None"]
"""(request target, body) -> whole response, or None to hold it."""


class Exchange(asyncio.Protocol):
    """HTTP/1.1 keep-alive with Content-Length, and nothing else."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            length = 0
            at = head.lower().find(b"content-length:")
            if at >= 0:
                length = int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            answer = self.handler(head.split(b" ", 2)[1], body)
            if answer is not None:
                self.transport.write(answer)


def response(status: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\nConnection: keep-alive\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body


async def serve(handler: Handler) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Exchange(handler), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def receiver() -> Handler:
    """
    Takes every callback but ``/sick…``; ``/latest`` says when the last ``/probe…`` came (monotonic).

    A ``/chat/N`` has to get messages that `callers.pushed` makes, in their order: ``/chats`` tells how many
    came, and how many of those were neither the next nor the last again.
    """
    latest = 0.0
    last: dict[bytes, int] = {}
    came = out_of_order = 0
    ok, sick = response(b"200 OK", b"ok"), response(b"503 Service Unavailable", b"")

    def handle(target: bytes, body: bytes) -> bytes:
        nonlocal latest, came, out_of_order
        if target.startswith(b"/chat/"):
            came += 1
            number = json.loads(body)["message_id"]
            before = last.get(target, 0)
            out_of_order += number not in (before, before + 1)
            last[target] = number
            return ok
        if target == b"/chats":
            return response(b"200 OK", json.dumps([came, out_of_order]).encode())
        if target.startswith(b"/sick"):
            return sick
        if target == b"/latest":
            return response(b"200 OK", b"%f" % latest)
        if target.startswith(b"/probe"):
            latest = time.monotonic()
        return ok

    return handle


def upstream() -> Handler:
    """As much of the Bot API as ``/send`` and a webhook need; polls are held for ever."""
    me = {"id": 4242, "is_bot": True, "first_name": "bench", "username": "bench_bot"}
    message = {"message_id": 1, "date": 1, "chat": {"id": 5, "type": "private"}, "text": "x" * 200}
    identity = response(b"200 OK", json.dumps({"ok": True, "result": me}).encode())
    done = response(b"200 OK", b'{"ok":true,"result":true}')
    sent = response(b"200 OK", json.dumps({"ok": True, "result": message}).encode())

    def handle(target: bytes, body: bytes) -> bytes | None:
        if target.endswith(b"/getMe"):
            return identity
        if target.endswith(b"/sendMessage"):
            return sent
        if target.endswith(b"/setWebhook"):
            return done
        return None

    return handle


def proxy(port: int) -> None:
    """The control for ``/send``: a Klein route that hands the body to a treq client, and no more."""
    import treq
    from klein import Klein
    from treq.client import HTTPClient
    from twisted.internet import reactor
    from twisted.web.client import Agent, HTTPConnectionPool
    from twisted.web.iweb import IRequest
    from twisted.web.server import Site

    house = cast(Any, reactor)  # no one interface has all of a reactor
    app = Klein()
    pool = HTTPConnectionPool(reactor)
    pool.maxPersistentPerHost = 16
    client = HTTPClient(Agent(reactor, pool=pool))
    url = f"http://127.0.0.1:{port}/bot1:x/sendMessage"

    @app.route("/send", methods=["POST"])
    async def send(request: IRequest) -> bytes:
        wanted = json.loads(request.content.read())
        answer = await client.post(url, json={"chat_id": wanted["chat_id"], "text": wanted["text"]})
        request.setHeader(b"content-type", b"application/json")
        content: bytes = await treq.content(answer)
        return content

    listening = house.listenTCP(0, Site(app.resource()), interface="127.0.0.1")
    print(listening.getHost().port, flush=True)
    house.callInThread(lambda: (sys.stdin.read(), house.callFromThread(house.stop)))
    house.run()


def inserter(path: str) -> None:
    """
    The control for a pushed update: the least that an HTTP server can do to have it on the disk.

    A resource of twisted.web that writes the body by one INSERT with a COMMIT of its own, in the reactor's
    thread: no thread, no group of several, no check, no log.
    """
    import sqlite3

    from twisted.internet import reactor
    from twisted.web.resource import Resource
    from twisted.web.server import Request, Site

    house = cast(Any, reactor)  # no one interface has all of a reactor
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.execute("CREATE TABLE bare(id INTEGER PRIMARY KEY, received_at INTEGER, body BLOB)")

    class Insert(Resource):
        isLeaf = True

        def render_POST(self, request: Request) -> bytes:
            assert request.content is not None
            database.execute("BEGIN IMMEDIATE")
            values = (int(time.time()), request.content.read())
            database.execute("INSERT INTO bare(received_at, body) VALUES (?, ?)", values)
            database.execute("COMMIT")
            request.setHeader(b"content-type", b"application/json")
            return b'{"ok":true}'

    listening = house.listenTCP(0, Site(Insert()), interface="127.0.0.1")
    print(listening.getHost().port, flush=True)
    house.callInThread(lambda: (sys.stdin.read(), house.callFromThread(house.stop)))
    house.run()
    database.close()


def main(arguments: list[str]) -> None:
    match arguments:
        case ["receiver"]:
            asyncio.run(serve(receiver()))
        case ["upstream"]:
            asyncio.run(serve(upstream()))
        case ["proxy", port]:
            proxy(int(port))
        case ["inserter", path]:
            inserter(path)
        case ["load", port, key, path, total, concurrency]:
            asyncio.run(load(int(port), key, path, int(total), int(concurrency)))
        case ["push", port, path, secret, key, first, chats, each]:
            asyncio.run(push(int(port), path, secret, key, int(first), int(chats), int(each)))
        case _:
            raise SystemExit(f"unknown peer: {arguments}")


if __name__ == "__main__":
    main(sys.argv[1:])
