"""
The other ends, each in a process of its own: ``python -m benchmarks.peers {receiver,upstream,proxy,load} …``.

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
    """Takes every callback but ``/sick…``; ``/latest`` says when the last ``/probe…`` came (monotonic)."""
    latest = 0.0
    ok, sick = response(b"200 OK", b"ok"), response(b"503 Service Unavailable", b"")

    def handle(target: bytes, body: bytes) -> bytes:
        nonlocal latest
        if target.startswith(b"/sick"):
            return sick
        if target == b"/latest":
            return response(b"200 OK", b"%f" % latest)
        if target.startswith(b"/probe"):
            latest = time.monotonic()
        return ok

    return handle


def upstream() -> Handler:
    """As much of the Bot API as ``/send`` needs; polls are held for ever."""
    me = {"id": 4242, "is_bot": True, "first_name": "bench", "username": "bench_bot"}
    message = {"message_id": 1, "date": 1, "chat": {"id": 5, "type": "private"}, "text": "x" * 200}
    identity = response(b"200 OK", json.dumps({"ok": True, "result": me}).encode())
    sent = response(b"200 OK", json.dumps({"ok": True, "result": message}).encode())

    def handle(target: bytes, body: bytes) -> bytes | None:
        if target.endswith(b"/getMe"):
            return identity
        if target.endswith(b"/sendMessage"):
            return sent
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


async def load(port: int, key: str, path: str, total: int, concurrency: int) -> None:
    """POST the same small message ``total`` times; prints a JSON line: rate, p50, p99, statuses."""
    body = json.dumps({"chat_id": 5, "text": "Hello, " * 20}).encode()
    request = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    times: list[float] = []
    statuses: dict[str, int] = {}
    left = total

    async def client() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left > 0:
            left -= 1
            began = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            lowered = head.lower()
            at = lowered.find(b"content-length:")
            if at >= 0:
                await reader.readexactly(int(head[at + 15 :].split(b"\r\n", 1)[0]))
            else:
                while (size := int((await reader.readline()).strip() or b"0", 16)) > 0:
                    await reader.readexactly(size + 2)
                await reader.readline()
            times.append(time.perf_counter() - began)
            status = head[9:12].decode()
            statuses[status] = statuses.get(status, 0) + 1
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    took = time.perf_counter() - began
    times.sort()
    report = {
        "rate": total / took,
        "p50": times[len(times) // 2],
        "p99": times[int(len(times) * 0.99)],
        "statuses": statuses,
    }
    print(json.dumps(report), flush=True)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["receiver"]:
            asyncio.run(serve(receiver()))
        case ["upstream"]:
            asyncio.run(serve(upstream()))
        case ["proxy", port]:
            proxy(int(port))
        case ["load", port, key, path, total, concurrency]:
            asyncio.run(load(int(port), key, path, int(total), int(concurrency)))
        case _:
            raise SystemExit(f"unknown peer: {arguments}")


if __name__ == "__main__":
    main(sys.argv[1:])
