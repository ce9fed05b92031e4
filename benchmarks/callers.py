"""Callers of a server, many at once, that take the time of each answer; `benchmarks.peers` runs them."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter

from attrs import define, field


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> str:
    """Send a request and read all of its answer; the status."""
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
    return head[9:12].decode()


@define
class Tally:
    """What came of many requests."""

    times: list[float] = field(factory=list)
    statuses: Counter[str] = field(factory=Counter)
    began: float = field(factory=time.perf_counter)

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
        began = time.perf_counter()
        self.statuses[await asked(reader, writer, request)] += 1
        self.times.append(time.perf_counter() - began)

    @property
    def p99(self) -> float:
        return sorted(self.times)[int(len(self.times) * 0.99)]

    def report(self) -> dict[str, object]:
        took = time.perf_counter() - self.began
        times = sorted(self.times)
        return {
            "rate": len(times) / took,
            "p50": times[len(times) // 2],
            "p99": self.p99,
            "worst": times[-1],
            "statuses": self.statuses,
        }


async def load(port: int, key: str, path: str, total: int, concurrency: int) -> None:
    """POST the same small message ``total`` times; prints a JSON line: rate, p50, p99, statuses."""
    body = json.dumps({"chat_id": 5, "text": "Hello, " * 20}).encode()
    request = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    left = total
    tally = Tally()

    async def client() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left > 0:
            left -= 1
            await tally.ask(reader, writer, request)
        writer.close()

    await asyncio.gather(*(client() for _ in range(concurrency)))
    print(json.dumps(tally.report()), flush=True)


def pushed(update_id: int, chat: int, number: int) -> bytes:
    """The body of an update: message ``number`` of a chat."""
    message = {
        "message_id": number,
        "from": {"id": chat, "is_bot": False, "first_name": "Ada", "language_code": "en"},
        "chat": {"id": chat, "first_name": "Ada", "type": "private"},
        "date": 1_793_000_000,
        "text": "Hello, " * 80,
    }
    return json.dumps({"update_id": update_id, "message": message}).encode()


async def push(port: int, path: str, secret: str, key: str, first: int, chats: int, each: int) -> None:
    """
    Push messages as Telegram does: a connection for each chat, on it one after the other.

    Prints a JSON line: rate, p50, p99, statuses, and the same of ``/health``, asked beside them when there is
    a key.

    :param first: the number of the first message of each chat, from 1.
    """
    tally, beside = Tally(), Tally()
    ended = False

    async def chat(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for message in range(first, first + each):
            body = pushed(message * chats + number, 1000 + number, message)
            head = (
                f"POST {path} HTTP/1.1\r\nHost: bot.example\r\nContent-Type: application/json\r\n"
                f"X-Telegram-Bot-Api-Secret-Token: {secret}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            await tally.ask(reader, writer, head.encode() + body)
        writer.close()

    async def health() -> None:
        question = f"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not ended:
            await beside.ask(reader, writer, question)
            await asyncio.sleep(0.02)
        writer.close()

    asking = asyncio.create_task(health()) if key else None
    await asyncio.gather(*(chat(number) for number in range(chats)))
    report = tally.report()
    ended = True
    if asking is not None:
        await asking
        report["health"] = beside.report()
    print(json.dumps(report), flush=True)
