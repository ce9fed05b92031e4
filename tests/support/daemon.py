"""The real daemon as a process: start it, talk to it, stop or kill it, read all it said."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import urlsplit

from attrs import define, field, frozen

from tests.support.overheard import OVERHEARD

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsawQ"
"""Shaped like a bot token, and nobody's."""
BOT_ID = 123456789
PATIENCE = 30.0
"""Seconds that a test waits for an event before it fails; nothing should come near it."""

_WARNINGS = sys.warnoptions or (["error"] if sys.flags.dev_mode else [])
FLAGS = (*(("-X", "dev") if sys.flags.dev_mode else ()), *(f"-W{option}" for option in _WARNINGS))
"""How strict this interpreter was told to be; those it starts are to be at least as strict."""
PYTHON = (sys.executable, "-P", *FLAGS)
COMMAND = (*PYTHON, "-m", "telegrammer")
TWISTD = (*PYTHON, str(Path(sys.executable).parent / "twistd"), "-n", "--pidfile=", "telegrammer")

_LISTENING = r"listening on (http://[^\s\"]+)"
_OURS = re.compile(r"TELEGRAMMER_|(?:STATE_DIRECTORY|CREDENTIALS_DIRECTORY|NOTIFY_SOCKET|WATCHDOG_|LISTEN_)")


@frozen
class Reply:
    """One answer of the daemon."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@define(eq=False)
class Output:
    """Collects what a process says, line by line, in a thread that ends with the pipe."""

    lines: list[str] = field(factory=list)
    _news: threading.Condition = field(factory=threading.Condition, init=False)
    _readers: list[threading.Thread] = field(factory=list, init=False)
    _open: int = field(default=0, init=False)

    def follow(self, pipe: IO[bytes]) -> None:
        reader = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._readers.append(reader)
        with self._news:
            self._open += 1
        reader.start()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                with self._news:
                    self.lines.append(line.decode(errors="replace").rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._open -= 1
            self._news.notify_all()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, seconds: float = PATIENCE, after: int = 0) -> re.Match[str]:
        """The first line from number ``after`` on that matches; fails when the output ends before."""
        wanted = re.compile(pattern)
        found: list[re.Match[str]] = []

        def look() -> bool:
            found.extend(match for line in self.lines[after:] if (match := wanted.search(line)))
            return bool(found) or not self._open

        with self._news:
            self._news.wait_for(look, seconds)
        assert found, f"no line with {wanted.pattern!r} in:\n{self.text}"
        return found[0]

    def finish(self) -> None:
        """Wait until the pipes are at their end."""
        for reader in self._readers:
            reader.join(PATIENCE)
            assert not reader.is_alive(), "the output of a process that has ended goes on"


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without anything that the daemon would listen to, and with the checkout importable."""
    environment = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
    return environment | {"PYTHONPATH": str(ROOT)} | more


@define(eq=False)
class Daemon:
    """
    A daemon on ``state / "telegrammer.db"``; use it as a context manager.

    Leaving the context stops it and checks that its whole output, over all its lives, holds neither a
    traceback nor the token nor a key made by ``add_key``.
    """

    state: Path
    api_url: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(factory=dict)
    program: Sequence[str] = (*COMMAND, "serve")
    """What runs the daemon; the options follow."""
    token: str = field(default=TOKEN, repr=False)
    directory: Path | None = None
    """Where it runs; its state directory unless said otherwise."""
    passed: Sequence[int] = ()
    """Descriptors that it inherits."""
    prefix: Sequence[str] = ()
    """What it is started through, such as the way into a namespace; it has to end in an ``exec``."""
    may_show_tracebacks: bool = False
    url: str = field(default="", init=False)
    output: Output = field(factory=Output, init=False)
    key: str = field(default="", init=False, repr=False)
    """The last key made; ``request`` uses it."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _keys: list[str] = field(factory=list, init=False, repr=False)
    _is_pushed_to: bool = field(default=False, init=False)
    """It was started to have updates pushed to it, at least once."""
    _webhook_secrets: tuple[str, ...] = field(default=(), init=False, repr=False)

    # -- its life --------------------------------------------------------------------------------------

    @property
    def db(self) -> Path:
        return self.state / "telegrammer.db"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    def launch(self) -> None:
        """Start it and do not wait."""
        assert self._process is None or self._process.poll() is not None, "it runs"
        self.url = ""
        argv = [*self.prefix, *self.program, "--db", str(self.db), "--api-url", self.api_url]
        if not any(word in ("--port", "--listen") for word in self.arguments):
            argv += ["--port", "0"]
        self._is_pushed_to |= "webhook" in self.arguments
        self._process = subprocess.Popen(
            [*argv, *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=self.passed,
            env=clean_environment(TELEGRAMMER_TOKEN=self.token) | dict(self.environment),
            cwd=self.directory or self.state,
        )
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            self.output.follow(pipe)

    def start(self) -> Self:
        """Start it and wait for its address."""
        seen = len(self.output.lines)
        self.launch()
        self.url = self.output.wait_for(_LISTENING, after=seen)[1]
        return self

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit status, once all its output is here."""
        status = self.process.wait(seconds)
        self.output.finish()
        return status

    def stop(self, seconds: float = PATIENCE) -> int:
        self.send(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self) -> None:
        """As the power cut does: no handler of its runs."""
        self.process.kill()
        self.wait()

    def refused(self) -> tuple[int, str]:
        """Run one that is to refuse its start: status and output.  It has 5 s (contract 1.3)."""
        seen = len(self.output.lines)
        self.launch()
        status = self.wait(10)
        return status, "\n".join(self.output.lines[seen:])

    def __enter__(self) -> Self:
        OVERHEARD.must_not_show("token", self.token, self.token.partition(":")[2])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.output.finish()
        OVERHEARD.must_not_show("key", *self._keys)
        if self._is_pushed_to:
            # Its end may have been anything: the database may be damaged, or gone.
            with suppress(sqlite3.Error):
                self._webhook_secrets = (self.webhook_secret(),)
        OVERHEARD.must_not_show("webhook secret", *self._webhook_secrets)
        OVERHEARD.hear(f"the daemon of {self.state.name}", self.output.text)
        if kind is not None:
            print(self.output.text, file=sys.stderr)
            return
        self.check_output()

    def check_output(self) -> None:
        """No traceback, no token, no key in anything it has said."""
        text = self.output.text
        if not self.may_show_tracebacks:
            assert "Traceback" not in text, text
            assert "Unhandled" not in text, text
        for secret in (self.token, self.token.partition(":")[2], *self._keys, *self._webhook_secrets):
            assert secret not in text, "a secret is in the output"

    # -- its operator ----------------------------------------------------------------------------------

    def run(self, *arguments: str, seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """An operator command on its database."""
        done = subprocess.run(
            [*self.prefix, *COMMAND, *arguments, "--db", str(self.db)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env=clean_environment() | dict(self.environment),
            cwd=self.directory or self.state,
        )
        # The one secret that is said on purpose, once, to who asked for it.
        shown = "" if "add-key" in arguments else done.stdout
        OVERHEARD.hear(f"{' '.join(arguments)} in {self.state.name}", shown + done.stderr)
        return done

    def add_key(self, name: str = "test") -> str:
        """Make a key with the command, as an operator does."""
        done = self.run("add-key", name)
        assert done.returncode == 0, done.stderr
        key = done.stdout.strip()
        assert re.fullmatch(r"[0-9a-f]{64}", key), done.stdout
        self.know(key)
        return key

    def adopt(self, database: bytes, key: str) -> None:
        """Begin with this database, in which ``key`` is known; there is none yet."""
        assert not self.db.exists()
        descriptor = os.open(self.db, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(database)
        self.know(key)

    def know(self, key: str) -> None:
        """Use this key from now on, and look out for it in the output."""
        self.key = key
        self._keys.append(key)

    @contextmanager
    def look(self) -> Iterator[sqlite3.Connection]:
        """Its database, as another process has it that only reads."""
        uri = f"{self.db.as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=5, isolation_level=None)) as connection:
            yield connection

    def webhook_secret(self) -> str:
        """What Telegram has to show when it pushes; in its database once it listens."""
        with self.look() as connection:
            ((secret,),) = connection.execute("SELECT webhook_secret FROM gateway")
        assert isinstance(secret, str), "updates were never to be pushed"
        return secret

    # -- its callers -----------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        document: object = None,
        *,
        key: str | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = 30.0,
    ) -> Reply:
        """One request on a connection of its own, with the last key made unless ``key`` says otherwise."""
        sent = {"Connection": "close"}
        if (key := self.key if key is None else key) != "":
            sent["Authorization"] = f"Bearer {key}"
        if document is not None:
            body = json.dumps(document).encode()
        if body is not None:
            sent["Content-Type"] = "application/json"
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=seconds)
        try:
            connection.request(method, path, body, sent | dict(headers or {}))
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())
        finally:
            connection.close()

    def subscribe(self, chat_id: int, callback_url: str, *, key: str | None = None) -> int:
        wanted = {"chat_id": chat_id, "callback_url": callback_url}
        reply = self.request("POST", "/subscribe", wanted, key=key)
        assert reply.status == 200, reply
        return int(reply.json["subscription_id"])

    def ask_health(self) -> Reply:
        """
        ``GET /health`` with a report in it.

        On a machine that is busy with other tests a key may not be found in the 100 ms that the look-up has
        (contract 2.3); then it is asked again, as a monitor does.
        """
        until = time.monotonic() + PATIENCE
        while True:
            reply = self.request("GET", "/health")
            assert reply.status in (200, 503), reply
            if "components" in reply.json:
                return reply
            assert reply.json["error"]["code"] == "AUTH_UNAVAILABLE", reply
            assert time.monotonic() < until, reply
            time.sleep(0.05)

    def health(self) -> Any:
        """The report of ``GET /health``."""
        return self.ask_health().json
