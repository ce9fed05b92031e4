"""The unit file is accepted, tight, and true: its own ExecStart runs as a user without rights."""

from __future__ import annotations

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
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.support.bot_api import BotApi
from tests.support.daemon import PATIENCE, ROOT, TOKEN, Output, clean_environment
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


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that anybody can pass, which pytest's own are not."""
    path = Path(mkdtemp(prefix="telegrammer-unit-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


def receive(notifications: socket.socket) -> bytes:
    notifications.settimeout(PATIENCE)
    return notifications.recv(4096)


@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_exec_start_as_a_user_without_rights(base: Path) -> None:
    """READY=1 once the address answers, WATCHDOG=1 after it, STOPPING=1 at SIGTERM, status 0."""
    service = settings("Service")
    state, credentials = base / service["StateDirectory"][0], base / "credentials"
    state.mkdir(int(service["StateDirectoryMode"][0], 8))
    credentials.mkdir(0o700)
    name, _, _ = service["LoadCredential"][0].partition(":")
    (credentials / name).write_text(f"{TOKEN}\n")
    (credentials / name).chmod(0o400)
    for path in (state, credentials, credentials / name):
        os.chown(path, UID, UID)
    binary, *words = shlex.split(service["ExecStart"][0])
    assert Path(binary).name == SCRIPT.name

    with BotApi() as api, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(str(base / "notify"))
        (base / "notify").chmod(0o777)
        environment = clean_environment(
            HOME=str(state),
            STATE_DIRECTORY=str(state),
            CREDENTIALS_DIRECTORY=str(credentials),
            NOTIFY_SOCKET=str(base / "notify"),
            WATCHDOG_USEC="400000",
            # What /etc/default/telegrammer would hold.
            TELEGRAMMER_API_URL=api.url,
            TELEGRAMMER_PORT="0",
        )
        process = subprocess.Popen(
            unprivileged([str(SCRIPT), *words], umask=service["UMask"][0]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
        )
        output = Output()
        try:
            assert process.stdout is not None and process.stderr is not None
            output.follow(process.stdout)
            output.follow(process.stderr)
            url = output.wait_for(r"listening on (http://\S+)")[1]
            assert receive(notifications) == b"READY=1"
            with pytest.raises(urllib.error.HTTPError) as answer:
                urllib.request.urlopen(f"{url}/health", timeout=5)
            answer.value.close()
            assert answer.value.code == 401
            assert [receive(notifications) for _ in range(3)] == [b"WATCHDOG=1"] * 3

            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            told = iter(lambda: receive(notifications), b"STOPPING=1")
            assert set(told) <= {b"WATCHDOG=1"}
        finally:
            process.kill()
            process.wait()
            output.finish()

    assert "Traceback" not in output.text
    assert TOKEN not in output.text
    made = sorted(path.name for path in state.iterdir())
    assert "telegrammer.db" in made, output.text
    for path in state.iterdir():
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (UID, 0o600), path


# -- the wheel ----------------------------------------------------------------------------------------


def test_the_wheel_brings_plugin_and_command(tmp_path: Path) -> None:
    """And nothing that would shadow Twisted: no ``__init__.py`` in ``twisted/``, no plugin cache."""
    pytest.importorskip("hatchling")
    build = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        + ["--disable-pip-version-check", "--wheel-dir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert build.returncode == 0, build.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "telegrammer = telegrammer.cli:main" in packed.read(entry_points).decode()
    assert [name for name in names if name.startswith("twisted/")] == [
        "twisted/plugins/telegrammer_plugin.py"
    ]
    assert "telegrammer/py.typed" in names
    assert not [
        name
        for name in names
        if name.split("/")[0] not in ("telegrammer", "twisted") and ".dist-info" not in name
    ]
