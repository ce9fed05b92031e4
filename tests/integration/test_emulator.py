"""Against another's Telegram: npm's telegram-test-api, which ignores ``timeout`` and ``offset``."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from telegram import Message

from tests.support.daemon import PATIENCE, Daemon, Output
from tests.support.gateway import eventually
from tests.support.receiver import CallbackReceiver

PACKAGE = "telegram-test-api@4.2.1"
TOKEN = "666:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsawQ"
"""The emulator's ``getMe`` says 666 whatever the token."""
CHAT = 7

RUNNER = """
const TelegramServer = require('telegram-test-api');
const [port, token, chatId] = [Number(process.argv[1]), process.argv[2], Number(process.argv[3])];
const server = new TelegramServer({ host: '127.0.0.1', port });
// It forgets the secret_token that setWebhook gave it.
require('axios').interceptors.request.use((call) => {
  const webhook = server.webhooks[token];
  if (webhook && call.url === webhook.url) {
    call.headers['X-Telegram-Bot-Api-Secret-Token'] = webhook.secret_token;
  }
  return call;
});
server.start().then(() => {
  server.server.on('request', (request) => {
    console.log(JSON.stringify({ at: Date.now(), path: request.url }));
  });
  const ada = { chatId, userId: chatId, firstName: 'Ada', userName: 'ada', timeout: 15000 };
  const client = server.getClient(token, ada);
  const commands = {
    say: (text) => client.sendMessage(client.makeMessage(text)),
    read: () => client.getUpdates(),
    webhook: () => (server.webhooks[token] || {}).url || '',
    // Until the webhook has answered the emulator gives the next update the same id.
    push: async (text) => {
      const answered = server.waitUserMessage();
      const said = await client.sendMessage(client.makeMessage(text));
      await answered;
      return said;
    },
  };
  require('readline').createInterface({ input: process.stdin }).on('line', async (line) => {
    const [name, argument] = JSON.parse(line);
    console.log(JSON.stringify({ answer: await commands[name](argument) }));
  }).on('close', () => process.exit(0));
  console.log(JSON.stringify({ up: true }));
});
"""


@pytest.fixture(scope="module")
def package() -> Path:
    """The package, installed once into a cache outside the checkout."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm is missing")
    cache = Path(tempfile.gettempdir()) / ("telegrammer-tests-" + PACKAGE.replace("@", "-"))
    if not (cache / "node_modules").exists():
        fresh = Path(tempfile.mkdtemp(prefix="telegrammer-tests-npm-"))
        try:
            subprocess.run(
                [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(fresh), PACKAGE],
                check=True,
                timeout=60,
            )
        except subprocess.SubprocessError as failed:
            shutil.rmtree(fresh)
            pytest.skip(f"npm cannot install {PACKAGE}: {type(failed).__name__}")
        try:
            fresh.rename(cache)
        except OSError:  # another run was faster
            shutil.rmtree(fresh)
    return cache


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Emulator:
    """The emulator with its own client, in a node process."""

    def __init__(self, package: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.output = Output()
        self.process = subprocess.Popen(
            ["node", "-e", RUNNER, "--", str(port), TOKEN, str(CHAT)],
            cwd=package,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            self.output.follow(pipe)

    def command(self, *words: str) -> Any:
        """Let the emulator's client do something; what it answered."""
        assert self.process.stdin is not None
        seen = len(self.output.lines)
        self.process.stdin.write(json.dumps(words).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.output.wait_for('"answer"', after=seen).string)["answer"]

    def polls(self, count: int, after: int) -> list[float]:
        """Wait for so many polls; when each began, in seconds."""
        times: list[float] = []
        while len(times) < count:
            line = self.output.wait_for(r"/getUpdates\"", after=after).string
            after = self.output.lines.index(line, after) + 1
            request = json.loads(line)
            if request["path"].startswith("/bot"):
                times.append(request["at"] / 1000)
        return times

    def __enter__(self) -> Self:
        self.output.wait_for('"up"')
        return self

    def __exit__(self, *ignored: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            self.output.finish()


@pytest.fixture
def emulator(package: Path) -> Iterator[Emulator]:
    with Emulator(package) as running:
        yield running


def test_there_and_back(emulator: Emulator, tmp_path: Path) -> None:
    with (
        CallbackReceiver() as receiver,
        Daemon(tmp_path, emulator.url, token=TOKEN) as daemon,
    ):
        daemon.add_key()
        daemon.start()
        daemon.subscribe(CHAT, f"{receiver.url}/hook")

        emulator.command("say", "Hello, gateway! \N{WAVING HAND SIGN}")
        (callback,) = receiver.wait_for(1)
        message = Message.de_json(json.loads(callback.body), None)
        assert message.text == "Hello, gateway! \N{WAVING HAND SIGN}"
        assert (message.chat.id, message.chat.username) == (CHAT, "ada")
        assert callback.delivery_id == "666-1-0-1"

        sent = daemon.request("POST", "/send", {"username": "Ada", "text": "Hello, Ada!"})
        assert (sent.status, sent.json["result"]["text"]) == (200, "Hello, Ada!")
        (update,) = emulator.command("read")["result"]
        assert (update["message"]["text"], str(update["message"]["chat_id"])) == ("Hello, Ada!", str(CHAT))

        # It answers an empty list at once: the next poll begins no sooner than a second after the last.
        times = emulator.polls(3, after=len(emulator.output.lines))
        assert all(later - earlier > 0.9 for earlier, later in zip(times, times[1:], strict=False)), times
        assert len(receiver.arrived) == 1, "a message came twice"
        assert daemon.health()["status"] == "ok"
        assert daemon.stop() == 0


def test_pushed_there_and_sent_back(emulator: Emulator, tmp_path: Path) -> None:
    """By the emulator's own webhook: what its client writes arrives, and the answer reaches the client."""
    port = free_port()
    arguments = ["--port", str(port), "--ingest", "webhook"]
    arguments += ["--webhook-url", f"http://127.0.0.1:{port}/telegram/webhook"]
    with (
        CallbackReceiver() as receiver,
        Daemon(tmp_path, emulator.url, arguments, token=TOKEN) as daemon,
    ):
        daemon.add_key()
        daemon.start()
        daemon.subscribe(CHAT, f"{receiver.url}/hook")
        eventually(lambda: emulator.command("webhook") == arguments[-1])

        for number in range(3):
            assert emulator.command("push", f"Hello {number}, webhook! \N{WAVING HAND SIGN}")["ok"] is True
        messages = [Message.de_json(json.loads(each.body), None) for each in receiver.wait_for(3)]
        assert [message.text for message in messages] == [
            f"Hello {number}, webhook! \N{WAVING HAND SIGN}" for number in range(3)
        ]
        sent = daemon.request("POST", "/send", {"username": "Ada", "text": "Hello, Ada!"})
        assert (sent.status, sent.json["result"]["text"]) == (200, "Hello, Ada!")
        report = daemon.health()
        assert (report["journal"]["pending"], report["journal"]["failed"]) == (0, 0)
        assert len(receiver.arrived) == 3, "a message came twice"
        assert daemon.stop() == 0
