"""The steps of ``telegrammer demo``, from the first socket to the last."""

from __future__ import annotations

import json
import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import define, field
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater
from twisted.web.resource import IResource

from telegrammer.demo.chats import Chat
from telegrammer.demo.child import Child
from telegrammer.demo.guide import Answer, DemoFailed, Guide
from telegrammer.demo.receiver import CallbackReceiver
from telegrammer.demo.serving import LocalServer
from telegrammer.demo.stand_in import StandInBotApi
from telegrammer.ports import Now

ADA = Chat(1001, "Ada", "ada")


@define(eq=False)
class Walk:
    """One demo; ``run`` is all of it."""

    guide: Guide
    now: Now
    stays: bool = field(default=False, init=False)
    """True once everything was shown and it only waits for Ctrl-C."""
    _token: str = field(init=False, repr=False)
    _telegram: StandInBotApi = field(init=False)
    _receiver: CallbackReceiver = field(factory=CallbackReceiver, init=False)
    _telegram_url: str = field(default="", init=False)
    _hook: str = field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._token = f"123456789:AA{secrets.token_hex(17)[:33]}"
        self._telegram = StandInBotApi(token=self._token, clock=self.guide.reactor, now=self.now)
        self._telegram.conversations.chats[ADA.id] = ADA

    async def run(self, stay: bool) -> None:
        """
        Show everything; whatever was started has ended when this returns or raises.

        :raises DemoFailed: something did not happen as it should.
        :raises DemoInterrupted: the guide was told so.
        """
        seconds = self.guide.reactor.seconds
        began = seconds()
        self.guide.say("Telegrammer's demo: no token, no network; all of it happens on 127.0.0.1.")
        async with AsyncExitStack() as stack:
            home = Path(stack.enter_context(TemporaryDirectory(prefix="telegrammer-demo-")))
            self._telegram_url = self._serve(stack, self._telegram.resource())
            self.guide.step(f"a stand-in for Telegram's Bot API listens on {self._telegram_url}")
            self._hook = self._serve(stack, self._receiver.resource()) + "/hook"
            self.guide.step(f"a callback receiver listens on {self._hook}")
            database = home / "telegrammer.db"
            await self._add_key(stack, database)
            await self._start_daemon(stack, database)
            await self._subscribe()
            await self._receive()
            await self._send({"chat_id": ADA.id, "text": "Hello, Ada!"})
            await self._send({"username": "ada", "text": "You told me your name."})
            await self._retry()
            await self._show_health()
            if stay:
                await self._stay()
            await self._stop_daemon()
        self.guide.say(f"Nothing is left behind. Done in {seconds() - began:.1f} s.")

    def _serve(self, stack: AsyncExitStack, resource: IResource) -> str:
        server = LocalServer.listen(self.guide.reactor, resource)
        stack.push_async_callback(server.close)
        return server.url

    # -- steps -----------------------------------------------------------------------------------------

    async def _add_key(self, stack: AsyncExitStack, database: Path) -> None:
        adding = Child(self.guide.reactor, "add-key", "demo", "--db", str(database))
        stack.push_async_callback(adding.stop)
        status = await self.guide.expect("telegrammer add-key", adding.ended())
        self.guide.check(status == 0, f"telegrammer add-key ended with status {status}: {adding.err.strip()}")
        self.guide.key = adding.out.strip()
        self.guide.step("telegrammer add-key demo: prints a key, once (not shown here)")

    async def _start_daemon(self, stack: AsyncExitStack, database: Path) -> None:
        token_file = database.parent / "token"
        token_file.touch(0o600)
        token_file.write_text(f"{self._token}\n")
        daemon = Child(
            self.guide.reactor,
            *("serve", "--db", str(database), "--token-file", str(token_file)),
            *("--port", "0", "--api-url", self._telegram_url),
        )
        stack.push_async_callback(daemon.stop)
        self.guide.watch_over(daemon)
        self.guide.url = await self.guide.expect("telegrammer serve", daemon.address())
        self.guide.check(bool(self.guide.url), f"telegrammer serve ended with status {daemon.status}")
        self.guide.step(f"telegrammer serve: listening on {self.guide.url}")

    async def _subscribe(self) -> None:
        wanted = {"chat_id": ADA.id, "callback_url": self._hook}
        answer = await self.guide.ask("POST", "/subscribe", wanted)
        self.guide.check(answer.status == 200, f"POST /subscribe: {answer.shown}")
        subscription = json.loads(answer.body)["subscription_id"]
        self.guide.step(f"POST /subscribe, chat {ADA.id}: 200, subscription {subscription}")

    async def _receive(self) -> None:
        text = "Hello, gateway! \N{WAVING HAND SIGN}"
        message = self._write(text)
        callback = await self.guide.expect("the callback", self._receiver.next())
        self.guide.check(callback.body == message, "the callback is not the message that Telegram sent")
        self.guide.step(
            f"Ada writes {_quoted(text)}: the callback gets the message, {len(callback.body)} bytes,"
            f" equal to Telegram's byte for byte; delivery id {callback.delivery_id}; answered 200"
        )

    def _write(self, text: str) -> bytes:
        received = self._telegram.receive(ADA, text)
        if received is None:
            raise DemoFailed("the daemon polls without asking for messages")
        return received.message

    async def _send(self, request: dict[str, object]) -> None:
        answer = await self.guide.ask("POST", "/send", request)
        self.guide.check(answer.status == 200, f"POST /send: {answer.shown}")
        sent = await self.guide.expect("the message at the Bot API", self._telegram.next_sent())
        self.guide.check(sent.text == request["text"], "the Bot API got another text than was sent")
        self.guide.check(answer.body == sent.envelope, "the answer is not the Bot API's, byte for byte")
        whom = " ".join(f"{name} {value}" for name, value in request.items() if name != "text")
        self.guide.step(
            f"POST /send, {whom}: the Bot API gets {_quoted(sent.text)};"
            f" 200 with its answer, {len(answer.body)} bytes, unchanged"
        )

    async def _retry(self) -> None:
        self._receiver.answer_next(503)
        text = "Are you awake?"
        message = self._write(text)
        first = await self.guide.expect("the callback", self._receiver.next())
        failed = self.guide.reactor.seconds()
        again = await self.guide.expect("the retry", self._receiver.next())
        waited = self.guide.reactor.seconds() - failed
        self.guide.check(first.body == message == again.body, "the retry's body differs")
        self.guide.check(first.delivery_id == again.delivery_id, "the retry's delivery id differs")
        self.guide.check((first.answered, again.answered) == (503, 200), "the 503 was not answered first")
        self.guide.step(
            f"Ada writes {_quoted(text)}: the receiver answers 503; after {waited:.1f} s it gets the same"
            f" {len(again.body)} bytes with the same delivery id {again.delivery_id}; answered 200"
        )

    async def _show_health(self) -> None:
        async def drained() -> Answer:
            while True:
                answer = await self.guide.ask("GET", "/health")
                queue = json.loads(answer.body).get("queue")
                # Without a report when a busy machine could not look the key up in time.
                if queue is not None and (answer.status != 200 or not queue["pending"] + queue["in_flight"]):
                    return answer
                await deferLater(self.guide.reactor, 0.05)

        answer = await self.guide.expect("an empty queue", drained())
        report = json.loads(answer.body)
        self.guide.check(answer.status == 200 and report["status"] == "ok", f"GET /health: {answer.shown}")
        queue, ingestion = report["queue"], report["components"]["ingestion"]
        self.guide.step(
            f"GET /health: 200, {report['status']}; ingestion {ingestion['state']};"
            f" {queue['pending']} pending, {queue['in_flight']} in flight, {queue['dead']} dead"
        )

    async def _stop_daemon(self) -> None:
        daemon, self.guide.daemon = self.guide.daemon, None
        assert daemon is not None
        began = self.guide.reactor.seconds()
        status = await self.guide.expect("the daemon's stop", daemon.stop())
        self.guide.check(status == 0, f"the daemon ended with status {status} after SIGTERM")
        took = self.guide.reactor.seconds() - began
        self.guide.step(f"SIGTERM: the daemon ends with status 0 after {took:.1f} s")

    # -- afterwards ------------------------------------------------------------------------------------

    async def _stay(self) -> None:
        url, secret = self.guide.url, f"-H 'Authorization: Bearer {self.guide.key}'"
        as_json = f"{secret} -H 'Content-Type: application/json'"
        send = json.dumps({"chat_id": ADA.id, "text": "Hello"})
        subscribe = json.dumps({"chat_id": ADA.id, "callback_url": self._hook})
        self.stays = True
        self.guide.say("")
        self.guide.say("It stays up until Ctrl-C. From another terminal:")
        for what, command in (
            ("how is it?", f"curl {secret} {url}/health"),
            ("send a message", f"curl {as_json} -d '{send}' {url}/send"),
            ("subscribe to a chat", f"curl {as_json} -d '{subscribe}' {url}/subscribe"),
            ("what did I subscribe to?", f"curl {secret} {url}/subscriptions"),
            ("be Ada, and write to the bot", f"curl -d 'text=Hello, bot' {self._telegram_url}/say"),
        ):
            self.guide.say(f"  # {what}")
            self.guide.say(f"  {command}")
        self.guide.say("")

        async def show_callbacks() -> None:
            while True:
                callback = await self._receiver.next()
                text = json.loads(callback.body).get("text", "")
                self.guide.say(f"the receiver got {_quoted(text)}, delivery id {callback.delivery_id}")

        async def show_sent() -> None:
            while True:
                sent = await self._telegram.next_sent()
                self.guide.say(f"chat {sent.chat_id} got {_quoted(sent.text)}")

        shows = [Deferred.fromCoroutine(show_callbacks()), Deferred.fromCoroutine(show_sent())]
        await self.guide.expect("--stay", gatherResults(shows, consumeErrors=True), seconds=None)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
