"""The daemon tells its operator: by mail and by file, through kills, a held and a full outbox."""

from __future__ import annotations

import re
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

from telegrammer.core.messages import Message, encode
from telegrammer.messaging.outbox_file import create
from tests.support.bot_api import failure
from tests.support.daemon import COMMAND, PATIENCE, clean_environment
from tests.support.gateway import CHAT, Gateway, eventually
from tests.support.gateway import gateway as another_gateway
from tests.support.lab import full_only
from tests.support.mailbox import Mailbox

OTHER_TOKEN = "987654321:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsawQ"
REVOKED = failure(401, "Unauthorized")
OUTAGE = "Ingestion is suspended: credentials"
RECOVERY = "Ingestion has recovered"


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    """Down at first, and not forgotten."""
    with Mailbox() as mailbox:
        yield mailbox


def configure(gateway: Gateway, table: str) -> None:
    gateway.daemon.state.chmod(0o700)
    file = gateway.daemon.state / "settings.toml"
    file.write_text(f"[notices]\n{table}")
    gateway.daemon.arguments = (*gateway.daemon.arguments, "--config", str(file))


def by_mail(gateway: Gateway, mailbox: Mailbox) -> None:
    configure(
        gateway,
        'transport="smtp"\nfrom="gateway@example.org"\nrecipients=["one@example.org","two@example.org"]\n'
        f'host="127.0.0.1"\nport={mailbox.port}\n',
    )


def by_file(gateway: Gateway, more: str = "") -> Callable[[], list[str]]:
    """The subjects of what lies in the spool."""
    spool = gateway.daemon.state / "spool"
    configure(gateway, f'transport="file"\nspool="{spool}"\n{more}')

    def subjects() -> list[str]:
        files = sorted(spool.glob("*.eml"), key=lambda file: file.stat().st_mtime_ns)
        return [str(message_from_bytes(file.read_bytes())["Subject"]) for file in files]

    return subjects


def outbox_figures(gateway: Gateway) -> Any:
    return gateway.daemon.health()["outbox"]


def has_died(gateway: Gateway) -> bool:
    """And the second in which it died is over, so that the next look at the deaths finds it."""
    return gateway.query("SELECT died_at < unixepoch() FROM deliveries WHERE state = 'DEAD'") == [(1,)]


def in_outbox(gateway: Gateway) -> int:
    """How many messages are in the file just now, without asking the daemon."""
    with closing(sqlite3.connect(gateway.daemon.state / "outbox.db", timeout=10)) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM messages").fetchone()[0])


def put(state: Path, *numbers: int) -> None:
    """Messages of somebody else's queue into the outbox."""
    record = encode(Message("other", "other", ("op@example.org",)))
    rows = [(f"{number:032x}", record) for number in numbers]
    with closing(sqlite3.connect(state / "outbox.db")) as connection, connection:
        connection.executemany(
            "INSERT INTO messages(id, queue, created_at, record) VALUES (?, 'other', 0, ?)", rows
        )


def watch_looks(gateway: Gateway, number: int) -> None:
    """Wait for a round that began after this: at its end it counts what is in the outbox."""
    put(gateway.daemon.state, number)
    eventually(lambda: outbox_figures(gateway)["outstanding"] == number)


def revoked(gateway: Gateway) -> None:
    gateway.api.fallback["getMe"] = REVOKED


def valid_again(gateway: Gateway) -> None:
    """What the daemon asks next brings a batch, so that it succeeds."""
    del gateway.api.fallback["getMe"]
    gateway.api.message(CHAT, "hello")


def test_an_outage_and_its_end_through_kills(gateway: Gateway) -> None:
    """Each is told once; what was told is known to the next life, and a kill repeats nothing."""
    subjects = by_file(gateway)
    revoked(gateway)
    gateway.start()
    eventually(lambda: subjects() == [OUTAGE])
    eventually(lambda: in_outbox(gateway) == 0)
    gateway.daemon.kill()
    gateway.daemon.start()
    eventually(lambda: gateway.daemon.health()["components"]["ingestion"]["state"] == "suspended")
    watch_looks(gateway, 1)
    gateway.daemon.kill()
    valid_again(gateway)
    gateway.daemon.start()
    eventually(lambda: subjects() == [OUTAGE, RECOVERY])
    eventually(lambda: in_outbox(gateway) == 1)
    gateway.daemon.kill()
    revoked(gateway)
    gateway.daemon.start()
    eventually(lambda: gateway.daemon.health()["components"]["ingestion"]["state"] == "suspended")
    watch_looks(gateway, 2)
    assert subjects() == [OUTAGE, RECOVERY], "a flapping upstream floods"
    health = gateway.daemon.health()
    assert health["components"]["outbox"] == {"state": "ok"}
    assert health["outbox"]["oldest_age_s"] > 10**9
    del health["outbox"]["oldest_age_s"]
    assert health["outbox"] == {"outstanding": 2, "dropped": 0, "last_failure": None}
    assert gateway.daemon.stop() == 0


def test_an_update_that_was_put_aside(gateway: Gateway) -> None:
    """Health and a notice say so, and it holds nobody up (contract 8)."""
    subjects = by_file(gateway)
    gateway.daemon.arguments = (*gateway.daemon.arguments, "--on-malformed", "quarantine")
    gateway.start()
    gateway.api.push(b'"message":{"chat":{"id":0,"type":"group"}}')
    eventually(lambda: subjects() == ["1 update from Telegram cannot be understood"])
    report = gateway.daemon.health()
    assert (report["status"], report["journal"]["failed"]) == ("ok", 1)
    assert report["components"]["ingestion"]["reason"] is None


def test_daemons_of_two_bots_share_an_outbox(gateway: Gateway, tmp_path: Path) -> None:
    """What the one has told is no news of the other: it neither ends it nor silences its own."""
    subjects = by_file(gateway)
    shared = gateway.daemon.state / "outbox.db"
    (tmp_path / "other").mkdir()
    with another_gateway(tmp_path / "other") as other:
        other.daemon.token = other.api.token = OTHER_TOKEN
        other_subjects = by_file(other, f'outbox="{shared}"\n')
        revoked(gateway)
        gateway.start()
        eventually(lambda: subjects() == [OUTAGE])
        other.start()
        eventually(lambda: other.daemon.health()["components"]["ingestion"]["state"] == "polling")
        watch_looks(gateway, 1)
        eventually(lambda: outbox_figures(other)["outstanding"] == 1)
        put(shared.parent, 2)
        eventually(lambda: outbox_figures(other)["outstanding"] == 2)
        assert (subjects(), other_subjects()) == ([OUTAGE], [])
        other.daemon.stop()
        revoked(other)
        other.daemon.start()
        eventually(lambda: other_subjects() == [OUTAGE])
        assert other.daemon.stop() == 0
        assert gateway.daemon.stop() == 0


def test_deaths_by_mail(gateway: Gateway, mailbox: Mailbox) -> None:
    """What died before the daemon was killed is told by the next one, without a word of what it was."""
    by_mail(gateway, mailbox)
    mailbox.open()
    gateway.receiver.policy = lambda callback: 404
    gateway.start()
    number = gateway.subscribe()
    gateway.api.message(CHAT, "a secret text")
    eventually(lambda: has_died(gateway))
    gateway.daemon.kill()
    gateway.daemon.start()
    (mail,) = mailbox.wait_for(1)
    assert mail.subject == "1 delivery died, of 1 subscription"
    assert (mail.sender, mail.recipients) == (
        "gateway@example.org",
        ("one@example.org", "two@example.org"),
    )
    assert f"\nsubscription {number}: 1: HTTP 404 (1)\n" in mail.text.replace("\r\n", "\n")
    assert re.fullmatch(r"<[0-9a-f]{32}@example\.org>", mail.message["Message-ID"])
    for secret in ("secret text", gateway.receiver.url, gateway.daemon.token, gateway.daemon.key):
        assert secret not in mail.message.as_string()
    eventually(lambda: in_outbox(gateway) == 0)


def test_a_mail_server_that_is_down(gateway: Gateway, mailbox: Mailbox) -> None:
    """It is said once, it is in health, and the gateway is none the worse; a stop takes no time."""
    by_mail(gateway, mailbox)
    revoked(gateway)
    gateway.start()
    gateway.daemon.output.wait_for("notices cannot be carried, and wait: ")
    eventually(lambda: outbox_figures(gateway)["outstanding"] == 1)
    assert outbox_figures(gateway)["last_failure"] == "delivery_failed"
    assert gateway.daemon.health()["components"]["outbox"] == {"state": "failing"}
    assert gateway.daemon.stop(5) == 0
    assert gateway.daemon.output.text.count("cannot be carried") == 1


def test_a_stop_cuts_a_delivery_off(gateway: Gateway, mailbox: Mailbox) -> None:
    by_mail(gateway, mailbox)
    held = []

    def hold() -> bool:
        held.append(True)
        with mailbox.changed:
            mailbox.changed.wait_for(lambda: not held, 30)
        return False

    mailbox.before_250 = hold
    mailbox.open()
    revoked(gateway)
    gateway.start()
    mailbox.wait_for(1)
    try:
        assert gateway.daemon.stop(5) == 0
    finally:
        with mailbox.changed:
            held.clear()
            mailbox.changed.notify_all()


def test_a_full_outbox_holds_up_nothing(gateway: Gateway) -> None:
    """The notice is dropped, counted and shown; messages go on."""
    subjects = by_file(gateway)
    create(gateway.daemon.state / "outbox.db")
    put(gateway.daemon.state, *range(1000))
    gateway.receiver.policy = lambda callback: 404
    gateway.start()
    gateway.subscribe()
    gateway.api.message(CHAT, "dies")
    eventually(lambda: has_died(gateway))
    assert gateway.daemon.stop() == 0
    gateway.receiver.policy = lambda callback: 200
    gateway.daemon.start()
    gateway.daemon.output.wait_for("the outbox is full; dropped the notice: 1 delivery died")
    _, body = gateway.api.message(CHAT, "goes on")
    assert gateway.receiver.wait_for(2)[-1].body == body
    eventually(lambda: outbox_figures(gateway)["outstanding"] == 1000)
    assert outbox_figures(gateway)["dropped"] == 1
    assert gateway.daemon.health()["status"] == "ok"
    assert subjects() == []


def test_a_held_outbox_holds_up_nothing(gateway: Gateway) -> None:
    """Another process keeps the file: messages go on, health says so, and the news come when it lets go."""
    subjects = by_file(gateway)
    create(gateway.daemon.state / "outbox.db")
    with closing(sqlite3.connect(gateway.daemon.state / "outbox.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        gateway.receiver.policy = lambda callback: 404
        gateway.start()
        gateway.subscribe()
        _, body = gateway.api.message(CHAT, "goes on")
        assert gateway.receiver.wait_for(1)[0].body == body
        gateway.daemon.output.wait_for("the outbox of the notices fails: ")
        assert outbox_figures(gateway)["last_failure"] == "admission_timeout"
        assert gateway.daemon.health()["status"] == "ok"
        other.execute("ROLLBACK")
    eventually(lambda: subjects() == ["1 delivery died, of 1 subscription"])
    gateway.daemon.output.wait_for("the outbox of the notices works again")


def test_a_notice_as_a_test(gateway: Gateway, mailbox: Mailbox) -> None:
    """Beside a running daemon, with a mail server and without; nothing is left behind."""
    by_mail(gateway, mailbox)
    gateway.start()
    settings = gateway.daemon.arguments[-1]
    done = gateway.daemon.run("notify-test", "--config", settings)
    assert (done.returncode, done.stderr) == (1, "")
    assert "\nFAIL delivery: smtp, to 127.0.0.1:" in done.stdout
    mailbox.open()
    done = gateway.daemon.run("notify-test", "--config", settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        "ok   outbox",
        "ok   claim",
        "ok   delivery",
        "ok   acknowledgement",
    ]
    assert mailbox.subjects == ["Test of the notices"]
    assert in_outbox(gateway) == 0
    assert gateway.daemon.stop() == 0


def test_a_check_looks_at_them_and_sends_nothing(gateway: Gateway, mailbox: Mailbox) -> None:
    by_mail(gateway, mailbox)
    mailbox.open()
    settings = gateway.daemon.arguments[-1]
    token = gateway.daemon.state.parent / "token"
    token.write_text(gateway.daemon.token)
    options = ("--config", settings, "--token-file", str(token), "--api-url", gateway.api.url, "--port", "0")
    done = gateway.daemon.run("check", *options)
    assert f"\nok   notices: smtp, to 127.0.0.1:{mailbox.port}; " in done.stdout
    assert [file.name for file in gateway.daemon.state.iterdir()] == ["settings.toml"]
    assert done.returncode == 0
    assert mailbox.visits == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_test_that_is_interrupted(gateway: Gateway, number: signal.Signals) -> None:
    """While the mail server is silent: it ends at once, closes the connection and leaves nothing behind."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        configure(
            gateway,
            'transport="smtp"\nfrom="gateway@example.org"\nrecipients=["op@example.org"]\n'
            f'host="127.0.0.1"\nport={silent.getsockname()[1]}\n',
        )
        silent.settimeout(PATIENCE)
        words = ("notify-test", "--db", str(gateway.daemon.db), "--config", gateway.daemon.arguments[-1])
        with subprocess.Popen(
            [*COMMAND, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
            cwd=gateway.daemon.state,
        ) as command:
            connection, _ = silent.accept()
            with connection:
                connection.settimeout(PATIENCE)
                command.send_signal(number)
                said, errors = command.communicate(timeout=PATIENCE)
                with suppress(ConnectionResetError):
                    assert connection.recv(1) == b""
    assert (command.returncode, errors.strip()) == (130, "")
    assert [line.split(":")[0] for line in said.splitlines()] == ["ok   outbox", "ok   claim"]
    assert in_outbox(gateway) == 0


def test_there_is_nothing_to_test(gateway: Gateway) -> None:
    done = gateway.daemon.run("notify-test")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no notices are configured" in done.stderr


@full_only
def test_a_dead_bot_api_and_a_mail_server_that_is_down_for_a_minute(
    gateway: Gateway, mailbox: Mailbox
) -> None:
    """With a kill while the notice waits: one mail of the outage, one of the recovery."""
    by_mail(gateway, mailbox)
    api = gateway.daemon.api_url
    gateway.daemon.api_url = "http://127.0.0.1:9"
    gateway.start()
    gateway.daemon.output.wait_for("notice to the operator: Ingestion keeps failing: network", 60)
    gateway.daemon.output.wait_for("notices cannot be carried")
    failed_at = time.monotonic()
    gateway.daemon.kill()
    gateway.daemon.start()
    mailbox.open()
    # Not before the lease of the life before has run out.
    mailbox.wait_for(1, 75)
    assert time.monotonic() - failed_at > 55
    eventually(lambda: outbox_figures(gateway)["outstanding"] == 0)
    gateway.daemon.kill()
    gateway.daemon.api_url = api
    gateway.api.message(CHAT, "hello")
    gateway.daemon.start()
    mailbox.wait_for(2)
    watch_looks(gateway, 1)
    assert mailbox.subjects == ["Ingestion keeps failing: network", RECOVERY]


@full_only
def test_a_kill_between_the_servers_answer_and_our_note_of_it(gateway: Gateway, mailbox: Mailbox) -> None:
    """That mail comes twice, a lease later, with the same Message-ID and nothing else new."""
    by_mail(gateway, mailbox)
    killed: list[bool] = []

    def kill() -> bool:
        if not killed:
            killed.append(True)
            gateway.daemon.send(signal.SIGKILL)
        return True

    mailbox.before_250 = kill
    mailbox.open()
    revoked(gateway)
    gateway.start()
    gateway.daemon.wait()
    gateway.daemon.start()
    first, second = mailbox.wait_for(2, 75)
    eventually(lambda: outbox_figures(gateway)["outstanding"] == 0)
    assert first.message["Message-ID"] == second.message["Message-ID"]
    assert mailbox.subjects == [OUTAGE, OUTAGE]


@full_only
def test_an_upstream_that_flaps_for_a_minute(gateway: Gateway) -> None:
    """It fails and succeeds by turns, every five seconds: one notice of each, no more."""
    subjects = by_file(gateway)
    conflict = failure(409, "Conflict: terminated by other getUpdates request")
    gateway.start()
    for number in range(12):
        gateway.api.wait_until(lambda: gateway.api.open_polls == 1)
        gateway.api.script("getUpdates", conflict)
        gateway.api.message(CHAT, f"{number} ends the held poll; the next one is refused")
        eventually(lambda: gateway.daemon.health()["components"]["ingestion"]["state"] == "suspended")
        watch_looks(gateway, number) if number else eventually(lambda: len(subjects()) == 1)
    assert subjects() == ["Ingestion is suspended: conflict_poller", RECOVERY]
