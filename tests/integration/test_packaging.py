"""The unit file is accepted, tight, and true: its own ExecStart runs as a user without rights."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest
from attrs import define, field

from tests.support.bot_api import BotApi
from tests.support.daemon import PATIENCE, ROOT, TOKEN, Output, clean_environment
from tests.support.receiver import CallbackReceiver
from tests.support.unprivileged import UID, unprivileged, why_not

UNIT = ROOT / "packaging" / "telegrammer.service"
SYSUSERS = ROOT / "packaging" / "telegrammer.sysusers"
SCRIPT = Path(sys.executable).parent / "telegrammer"

needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")


def settings(section: str) -> dict[str, list[str]]:
    """The assignments of a section, in order."""
    found: dict[str, list[str]] = {}
    here = False
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            here = line == f"[{section}]"
        elif here and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


# -- what systemd says --------------------------------------------------------------------------------


@needs_analyze
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """With the binary's path replaced, since the package is not installed here."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/bin/telegrammer", shutil.which("true") or "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_analyze
def test_exposure() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=25", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert level is not None, done.stdout + done.stderr
    assert float(level[1]) <= 2.5
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="no systemd-sysusers")
def test_the_units_user_is_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", str(SYSUSERS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (entry,) = (tmp_path / "etc/passwd").read_text().splitlines()
    name, _, uid, gid, _, home, shell = entry.split(":")
    service = settings("Service")
    assert [name] == service["User"] == service["Group"]
    assert home == "/var/lib/" + service["StateDirectory"][0]
    assert 0 < int(uid) < 1000 and int(gid) < 1000
    assert shell.endswith("nologin")


def test_promises_of_the_unit() -> None:
    service = settings("Service")
    for name, value in {
        "Type": "notify",
        "NotifyAccess": "main",
        "StateDirectory": "telegrammer",
        "StateDirectoryMode": "0700",
        "UMask": "0077",
        "LoadCredential": "telegram-token:/etc/telegrammer/token",
        "TimeoutStopSec": "60",
        "WatchdogSec": "30",
        "Restart": "on-failure",
        "EnvironmentFile": "-/etc/default/telegrammer",
        "CapabilityBoundingSet": "",
        "NoNewPrivileges": "yes",
    }.items():
        assert service[name] == [value]
    assert shlex.split(service["ExecStart"][0])[:2] == ["/usr/bin/telegrammer", "serve"]


def test_tls_works_under_the_units_restrictions() -> None:
    """pyOpenSSL's callbacks need executable memory; with MemoryDenyWriteExecute= every handshake fails."""
    program = """
import ctypes, sys
PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
if "deny" in sys.argv and ctypes.CDLL(None).prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0):
    sys.exit(77)
from twisted.internet.ssl import optionsForClientTLS
optionsForClientTLS("example.org")
from OpenSSL.SSL import TLS_METHOD, Context
Context(TLS_METHOD).set_info_callback(lambda *a: None)
"""
    denied = settings("Service").get("MemoryDenyWriteExecute", ["no"])[-1] in ("yes", "true", "1", "on")
    words = ["deny"] if denied else []
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("this kernel cannot deny executable memory")
    assert done.returncode == 0, done.stderr


# -- what the daemon does under it --------------------------------------------------------------------


@define(eq=False)
class Service:
    """The unit's own ExecStart, as a user without rights, with the directories systemd would give it."""

    base: Path
    api: BotApi
    notifications: socket.socket
    output: Output = field(factory=Output)
    url: str = field(default="", init=False)

    @property
    def state(self) -> Path:
        return self.base / settings("Service")["StateDirectory"][0]

    @property
    def environment(self) -> dict[str, str]:
        return clean_environment(
            HOME=str(self.state),
            STATE_DIRECTORY=str(self.state),
            CREDENTIALS_DIRECTORY=str(self.base / "credentials"),
            NOTIFY_SOCKET=str(self.base / "notify"),
            WATCHDOG_USEC="400000",
            # What /etc/default/telegrammer would hold.
            TELEGRAMMER_API_URL=self.api.url,
            TELEGRAMMER_PORT="0",
        )

    def prepare(self) -> None:
        """What systemd does before it starts the service."""
        service = settings("Service")
        self.state.mkdir(int(service["StateDirectoryMode"][0], 8))
        name, _, _ = service["LoadCredential"][0].partition(":")
        credential = self.base / "credentials" / name
        credential.parent.mkdir(0o700)
        credential.write_text(f"{TOKEN}\n")
        credential.chmod(0o400)
        for path in (self.state, credential.parent, credential):
            os.chown(path, UID, UID)
        self.notifications.bind(str(self.base / "notify"))
        self.notifications.settimeout(PATIENCE)
        (self.base / "notify").chmod(0o777)

    def command(self, *words: str) -> str:
        """An operator command as the service's user; its standard output."""
        done = subprocess.run(
            unprivileged([str(SCRIPT), *words]),
            capture_output=True,
            text=True,
            check=True,
            env=self.environment,
            cwd="/",
        )
        return done.stdout.strip()

    @contextmanager
    def started(self, *wrapper: str) -> Iterator[subprocess.Popen[bytes]]:
        """The process, once it listens; ``wrapper`` is a program that runs it."""
        service = settings("Service")
        binary, *words = shlex.split(service["ExecStart"][0])
        assert Path(binary).name == SCRIPT.name
        process = subprocess.Popen(
            unprivileged([*wrapper, str(SCRIPT), *words], umask=service["UMask"][0]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            cwd="/",
        )
        try:
            assert process.stdout is not None and process.stderr is not None
            self.output.follow(process.stdout)
            self.output.follow(process.stderr)
            self.url = self.output.wait_for(r"listening on (http://\S+)")[1]
            yield process
        finally:
            process.kill()
            process.wait()
            self.output.finish()
        assert "Traceback" not in self.output.text
        assert TOKEN not in self.output.text

    def ask(self, path: str, key: str, document: object = None) -> int:
        """The status of a request."""
        body = None if document is None else json.dumps(document).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            refused.close()
            return refused.code


@pytest.fixture
def service() -> Iterator[Service]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    base = Path(mkdtemp(prefix="telegrammer-unit-"))  # pytest's own directories let nobody pass
    base.chmod(0o711)
    try:
        with BotApi() as api, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
            prepared = Service(base, api, notifications)
            prepared.prepare()
            yield prepared
    finally:
        shutil.rmtree(base)


def test_exec_start_as_a_user_without_rights(service: Service) -> None:
    """READY=1 once the address answers, WATCHDOG=1 after it, STOPPING=1 at SIGTERM, status 0."""
    key = service.command("add-key", "test")
    with service.started() as process:
        assert service.notifications.recv(4096) == b"READY=1"
        assert service.ask("/subscriptions", "0" * 64) == 401
        assert service.ask("/subscriptions", key) == 200
        assert [service.notifications.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        told = iter(lambda: service.notifications.recv(4096), b"STOPPING=1")
        assert set(told) <= {b"WATCHDOG=1"}
    made = list(service.state.iterdir())
    assert "telegrammer.db" in {path.name for path in made}, service.output.text
    for path in made:
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (UID, 0o600), path


@needs_analyze
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_its_system_calls_are_among_the_units(service: Service) -> None:
    """From its start, over a message in each direction, to its stop."""
    trace = service.base / "trace"
    trace.touch()
    trace.chmod(0o666)
    key = service.command("add-key", "test")
    with CallbackReceiver() as receiver, service.started("strace", "-fqqo", str(trace)) as process:
        hook = f"http://localhost:{receiver.port}/hook"
        assert service.ask("/subscribe", key, {"chat_id": 5, "callback_url": hook}) == 200
        assert service.ask("/send", key, {"chat_id": 5, "text": "hello"}) == 200
        service.api.message(5, "hello")
        receiver.wait_for(1)
        pid, _, _ = trace.read_text().partition(" ")
        os.kill(int(pid), signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    made = set(re.findall(r"^\d+ +(?:<\.\.\. )?(\w+)", trace.read_text(), re.MULTILINE))
    assert {"execve", "sendto", "fdatasync", "exit_group"} <= made, "this is not the daemon's trace"
    assert made - allowed_system_calls() == set()


def allowed_system_calls() -> set[str]:
    """What the unit's ``SystemCallFilter=`` lets through."""
    listing = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter"], capture_output=True, text=True, check=True
    ).stdout
    groups: dict[str, list[str]] = {}
    for line in listing.splitlines():
        if line.startswith("@"):
            group = groups.setdefault(line.strip(), [])
        elif line.startswith("    ") and not line.strip().startswith("#"):
            group.append(line.strip())

    def expanded(names: list[str]) -> set[str]:
        found: set[str] = set()
        for name in names:
            found |= expanded(groups[name]) if name.startswith("@") else {name}
        return found

    allowed = expanded(["@default"])
    for line in settings("Service")["SystemCallFilter"]:
        if line.startswith("~"):
            allowed -= expanded(line[1:].split())
        else:
            allowed |= expanded(line.split())
    return allowed


# -- the wheel ----------------------------------------------------------------------------------------


def test_the_wheel_brings_plugin_and_command(wheel: Path) -> None:
    """And nothing that would shadow Twisted: no ``__init__.py`` in ``twisted/``, no plugin cache."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "telegrammer = telegrammer.cli:main" in packed.read(entry_points).decode()
    assert [name for name in names if name.startswith("twisted/")] == [
        "twisted/plugins/telegrammer_plugin.py"
    ]
    assert "telegrammer/py.typed" in names
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"telegrammer", "twisted"}


def test_the_wheel_is_complete(wheel: Path, tmp_path: Path) -> None:
    """Its content, away from the checkout, runs the demo and is known to twistd."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    environment = clean_environment(PYTHONPATH=str(tmp_path))

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=environment,
            cwd="/",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert run("-c", "import telegrammer; print(telegrammer.__file__)").startswith(str(tmp_path))
    assert "Nothing is left behind." in run("-m", "telegrammer", "demo")
    assert "telegrammer" in run(str(SCRIPT.with_name("twistd")), "--help")
