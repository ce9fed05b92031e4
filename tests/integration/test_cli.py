"""The commands as real processes: what they leave on disk, in the pipes and behind them."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.bot_api import BotApi, Call, success
from tests.support.daemon import BOT_ID, PATIENCE, TOKEN, Daemon, clean_environment

PYTHON = (sys.executable, "-X", "dev", "-W", "error", "-m", "telegrammer")
"""Development mode: what is not closed is said on standard error."""


def start(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PYTHON, *arguments],
        env=clean_environment(HOME=str(tmp_path), **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Status, standard output, standard error."""
    with start(tmp_path, *arguments, **environment) as process:
        out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def contents(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode)
        for path in directory.iterdir()
    }


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A database with the key ``first``."""
    path = tmp_path / "state" / "t.db"
    assert run(tmp_path, "add-key", "first", "--db", str(path))[0] == 0
    return path


@pytest.fixture
def api() -> Iterator[BotApi]:
    with BotApi() as api:
        yield api


# -- commands -----------------------------------------------------------------------------------------


def test_both_spellings_on_the_database_of_the_environment(tmp_path: Path) -> None:
    place = {"STATE_DIRECTORY": str(tmp_path / "state")}
    status, key, err = run(tmp_path, "--add-key", "one", **place)
    assert (status, len(key)) == (0, 65)
    assert err == f"telegrammer: key added to the new database {tmp_path}/state/telegrammer.db\n"
    assert run(tmp_path, "add-key", "two", **place)[0] == 0
    status, listing, err = run(tmp_path, "--list-keys", **place)
    assert (status, err) == (0, "")
    assert [line.split("  ")[1] for line in listing.splitlines()] == ["one", "two"]
    assert run(tmp_path, "--delete-key", "one", **place)[0] == 0
    assert run(tmp_path, "delete-key", "one", **place)[::2] == (1, "telegrammer: no key is named one\n")
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"telegrammer.db"}


def test_a_reader_that_leaves_is_no_matter(tmp_path: Path, db: Path) -> None:
    connection = sqlite3.connect(db)
    connection.executemany(
        "INSERT INTO keys(name, digest, created_at) VALUES (?, ?, 0)",
        ((f"{number}", number.to_bytes(32, "big")) for number in range(20_000)),
    )
    connection.commit()
    connection.close()
    with start(tmp_path, "list-keys", "--db", str(db)) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE) == 1


def test_a_full_disk_behind_standard_output(tmp_path: Path, db: Path) -> None:
    for command, line in (
        ("list-keys", "telegrammer: no space left on device\n"),
        ("add-key second", "telegrammer: the key could not be printed; it was deleted again\n"),
    ):
        with open("/dev/full", "w") as full:
            ended = subprocess.run(
                [*PYTHON, *command.split(), "--db", str(db)],
                env=clean_environment(),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=PATIENCE,
            )
        assert ended.returncode == 1
        assert ended.stderr.endswith(line)
    assert "second" not in run(tmp_path, "list-keys", "--db", str(db))[1]


def test_streams_that_the_caller_closed(tmp_path: Path, db: Path) -> None:
    def ended(command: str, closed: str) -> tuple[int, str, str]:
        shell = f'exec "$@" {closed}'
        done = subprocess.run(
            ["/bin/sh", "-c", shell, "sh", *PYTHON, *command.split(), "--db", str(db)],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        return done.returncode, done.stdout, done.stderr

    assert ended("list-keys", ">&-") == (1, "", "telegrammer: bad file descriptor\n")
    status, _, err = ended("add-key unseen", ">&-")
    assert status == 1
    assert err.endswith("telegrammer: the key could not be printed; it was deleted again\n")
    # Neither does what was for standard error come to standard output.
    status, key, _ = ended("add-key seen", "2>&-")
    assert (status, len(key)) == (0, 65)
    assert ended("list-keys surplus", "2>&-")[:2] == (2, "")
    assert ended("add-key third", "0<&- >&- 2>&-")[0] == 1
    names = {line.split("  ")[1] for line in run(tmp_path, "list-keys", "--db", str(db))[1].splitlines()}
    assert names == {"first", "seen"}


def test_names_are_utf8_in_every_locale(tmp_path: Path, db: Path) -> None:
    place = {"TELEGRAMMER_DB": str(db)}
    ascii_only = place | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert run(tmp_path, "add-key", "\u043a\u043b\u044e\u0447", **ascii_only)[0] == 0
    assert "\u043a\u043b\u044e\u0447" in run(tmp_path, "list-keys", **place, PYTHONUTF8="1")[1]
    assert run(tmp_path, "delete-key", "\u043a\u043b\u044e\u0447", **ascii_only)[0] == 0
    for command in ("add-key", "delete-key"):
        refused = run(tmp_path, command, "\udcff", **place)
        assert refused == (1, "", "telegrammer: the name of a key must be valid UTF-8\n")


def test_a_database_that_stays_locked_is_waited_for_and_refused(tmp_path: Path, db: Path) -> None:
    holder = sqlite3.connect(db, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    status, out, err = run(tmp_path, "add-key", "second", "--db", str(db))
    took = time.monotonic() - began
    assert (status, out, err) == (1, "", "telegrammer: another process has locked the database\n")
    assert 4.5 < took < 15
    # Reading waits for nobody.
    assert run(tmp_path, "list-keys", "--db", str(db))[0] == 0
    holder.execute("COMMIT")
    holder.close()
    assert run(tmp_path, "add-key", "second", "--db", str(db))[0] == 0


def test_a_migration_needs_the_daemon_s_lock(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE api_keys(name TEXT, key TEXT, created_at INTEGER)")
    connection.execute("INSERT INTO api_keys VALUES ('old', 'secret', 1)")
    connection.commit()
    connection.close()
    lock = Path(f"{path}.lock")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = contents(tmp_path)
        status, out, err = run(tmp_path, "list-keys", "--db", str(path))
        assert (status, out) == (1, "")
        assert str(lock) in err and err.count("\n") == 1
        assert contents(tmp_path) == before
    status, out, err = run(tmp_path, "list-keys", "--db", str(path))
    assert status == 0
    assert "old  legacy: to be rotated" in out
    [backup] = tmp_path.glob("old.db.backup-v0-*")
    assert err == f"telegrammer: the database was migrated from version 0; its backup is {backup}\n"
    assert run(tmp_path, "list-keys", "--db", str(path)) == (0, out, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files for others")
def test_what_root_makes_is_given_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, 65534, 65534)
    for name in ("one", "two"):
        assert run(tmp_path, "add-key", name, "--db", str(state / "t.db"))[0] == 0
        assert {path.stat().st_uid for path in state.iterdir()} == {65534}


# -- check --------------------------------------------------------------------------------------------


def check(tmp_path: Path, api: BotApi, *arguments: str, **environment: str) -> tuple[int, dict[str, str]]:
    """Status, and the verdict on each thing."""
    given = {"TELEGRAMMER_TOKEN": TOKEN, "TELEGRAMMER_API_URL": api.url, "TELEGRAMMER_PORT": "0"}
    status, out, err = run(tmp_path, "check", *arguments, **(given | environment))
    assert err == ""
    assert TOKEN.partition(":")[2] not in out
    lines = [line.partition(": ")[0].split(None, 1) for line in out.splitlines()]
    return status, {name: verdict for verdict, name in lines}


def some(verdicts: dict[str, str], *names: str) -> Sequence[str]:
    return [verdicts[name] for name in names]


def test_a_configuration_that_can_run(tmp_path: Path, api: BotApi, db: Path) -> None:
    before = contents(db.parent)
    status, verdicts = check(tmp_path, api, "--db", str(db))
    assert (status, set(verdicts.values())) == (0, {"ok"})
    assert list(verdicts) == [
        "settings", "state directory", "database", "lock", "port", "getMe", "getWebhookInfo",
    ]  # fmt: skip
    assert contents(db.parent) == before
    assert {call.method for call in api.calls} == {"getMe", "getWebhookInfo"}


def test_nothing_is_made(tmp_path: Path, api: BotApi) -> None:
    status, verdicts = check(tmp_path, api)
    assert (status, verdicts["database"]) == (0, "skip")
    assert list(tmp_path.iterdir()) == []


def test_the_leavings_of_a_crash_stay_as_they_are(tmp_path: Path, api: BotApi, db: Path) -> None:
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, signal, sqlite3, sys\n"
            "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
            f"connection.execute('UPDATE gateway SET bot_id = {BOT_ID + 1}')\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n",
            str(db),
        ],
    )
    assert killed.returncode == -signal.SIGKILL
    before = contents(db.parent)
    assert set(before) == {"t.db", "t.db-wal", "t.db-shm"}
    status, verdicts = check(tmp_path, api, "--db", str(db))
    # What the log of the crashed process holds was seen.
    assert (status, verdicts["database"]) == (1, "FAIL")
    assert contents(db.parent) == before


def test_beside_a_process_that_uses_the_database(tmp_path: Path, api: BotApi, db: Path) -> None:
    connection = sqlite3.connect(db, isolation_level=None)
    connection.execute(f"UPDATE gateway SET bot_id = {BOT_ID}")
    with Path(f"{db}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        status, verdicts = check(tmp_path, api, "--db", str(db))
    connection.close()
    assert (status, set(verdicts.values())) == (0, {"ok"})


def test_beside_the_daemon_itself(tmp_path: Path, api: BotApi) -> None:
    with Daemon(tmp_path, api.url) as daemon:
        daemon.start()
        api.wait_for_calls("getUpdates", 1)
        port = daemon.url.rpartition(":")[2]
        status, verdicts = check(tmp_path, api, "--db", str(daemon.db), "--port", port)
        assert (status, set(verdicts.values())) == (0, {"ok"})
        # Endpoints are the daemon's to open.
        status, verdicts = check(
            tmp_path, api, "--listen", f"tcp:{port}", "--db", str(daemon.db), TELEGRAMMER_PORT=""
        )
        assert (status, verdicts["port"]) == (0, "skip")
        assert daemon.stop() == 0


def test_a_host_that_nobody_knows(tmp_path: Path, api: BotApi) -> None:
    status, verdicts = check(tmp_path, api, "--host", "nowhere.invalid")
    assert (status, verdicts["port"]) == (1, "FAIL")


def test_a_port_that_a_stranger_holds(tmp_path: Path, api: BotApi) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        status, verdicts = check(tmp_path, api, "--port", str(port))
    assert (status, verdicts["port"]) == (1, "FAIL")


def test_settings_that_are_refused(tmp_path: Path, api: BotApi, db: Path) -> None:
    status, verdicts = check(tmp_path, api, "--db", str(db), TELEGRAMMER_MAX_JOBS="none")
    assert status == 1
    assert some(verdicts, "settings", "database", "lock", "port", "getMe") == [
        "FAIL", "ok", "ok", "skip", "skip",
    ]  # fmt: skip
    assert check(tmp_path, api, "--bogus")[0] == 2
    assert check(tmp_path, api, "--port", "none")[0] == 1
    assert check(tmp_path, api, TELEGRAMMER_CONFIG="/nonexistent")[1]["database"] == "skip"
    assert check(tmp_path, api, TELEGRAMMER_CA_FILE="/nonexistent")[1]["settings"] == "FAIL"
    assert api.calls == []


def test_what_telegram_refuses(tmp_path: Path, api: BotApi) -> None:
    status, verdicts = check(tmp_path, api, TELEGRAMMER_TOKEN="123:unknown")
    assert (status, *some(verdicts, "getMe", "getWebhookInfo")) == (1, "FAIL", "skip")
    api.script("getWebhookInfo", success({"url": "https://hook.example/secret", "pending_update_count": 1}))
    status, verdicts = check(tmp_path, api)
    assert (status, *some(verdicts, "getMe", "getWebhookInfo")) == (1, "ok", "FAIL")


def test_an_interrupt_is_quiet(tmp_path: Path, api: BotApi) -> None:
    released: list[bool] = []

    def hold(call: Call, wire: socket.socket) -> bool:
        api.wait_until(lambda: bool(released))
        return False

    api.script("getMe", hold)
    environment = {"TELEGRAMMER_TOKEN": TOKEN, "TELEGRAMMER_API_URL": api.url, "TELEGRAMMER_PORT": "0"}
    with start(tmp_path, "check", **environment) as process:
        api.wait_for_calls("getMe", 1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
        with api.changed:
            released.append(True)
            api.changed.notify_all()
    assert (process.returncode, err) == (130, "")


INTERRUPTED_IMPORT = """
import builtins, os, signal
imported = builtins.__import__

def interrupted(name, *arguments, **options):
    if name == "telegrammer.cli.arguments" and AT_ONCE:
        os.kill(os.getpid(), signal.SIGINT)
    return imported(name, *arguments, **options)

builtins.__import__ = interrupted
import telegrammer.cli
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


@pytest.mark.parametrize(("at_once", "status"), ((True, -signal.SIGINT), (False, 0)))
def test_an_interrupt_before_the_command_has_begun(at_once: bool, status: int) -> None:
    """The process ends, and no traceback tells of it; later the command ends in its own order."""
    done = subprocess.run(
        [sys.executable, "-c", f"AT_ONCE = {at_once}\n{INTERRUPTED_IMPORT}"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (status, "")
