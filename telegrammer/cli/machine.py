"""Can this machine run the daemon?  Directory, database, lock and port, looked at without a trace."""

from __future__ import annotations

import os
import socket
import sqlite3
from pathlib import Path
from typing import Any

from telegrammer.cli.findings import Finding
from telegrammer.config import NoticeSettings, Settings
from telegrammer.core.problems import OutboxError, StartRefused
from telegrammer.daemon import refusal
from telegrammer.store.engine import snapshot, translate
from telegrammer.store.layout import Absent, Layout, Legacy, Ours, look, recognise
from telegrammer.store.lock import held_by_another
from telegrammer.store.migrations import LATEST
from telegrammer.store.recovery import violations

_USABLE = os.R_OK | os.W_OK | os.X_OK

PROBE_SECONDS = 2.0
"""How long the process that has our port is listened to."""


def state_directory(db: Path) -> Finding:
    """Is the database's directory there and writable, or could it be made?"""
    directory = db.parent
    if directory.is_dir():
        usable = os.access(directory, _USABLE)
        return _finding(usable, "state directory", f"{directory}{'' if usable else ' cannot be written'}")
    nearest = next(parent for parent in directory.parents if parent.exists())
    usable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK) and not os.path.lexists(directory)
    detail = "is not there yet; serve makes it" if usable else "is not there and cannot be made"
    return _finding(usable, "state directory", f"{directory} {detail}")


def database_findings(db: Path, settings: Settings | None) -> tuple[Finding, int | None]:
    """Would the daemon take this database?  And the bot it is bound to, if any."""
    try:
        layout = recognise(db)
        broken: list[str] = []
        if isinstance(layout, Ours) and layout.version == LATEST:
            with look(db) as connection, snapshot(connection) as cursor:
                broken = violations(cursor)
        detail, bound = _described(layout)
    except (StartRefused, sqlite3.Error, OSError) as error:
        return Finding("FAIL", "database", refusal(translate(error) or error) or "cannot be read"), None
    if isinstance(layout, Ours | Legacy) and not os.access(db, os.R_OK | os.W_OK):
        return Finding("FAIL", "database", f"{db} cannot be written"), bound
    if settings is not None and bound not in (None, settings.token.bot_id):
        detail = f"{db} belongs to bot {bound}, the token to bot {settings.token.bot_id}"
        return Finding("FAIL", "database", detail), bound
    if broken:
        # The daemon makes the lanes anew from the jobs when it starts.
        detail += "; to be mended at the next start: " + ", ".join(broken)
    return Finding("skip" if isinstance(layout, Absent) else "ok", "database", f"{db} {detail}"), bound


def _described(layout: Layout) -> tuple[str, int | None]:
    match layout:
        case Absent():
            return "is not there yet; serve makes it", None
        case Legacy():
            return "is the C++ program's; serve makes a backup and migrates it", None
        case Ours(version=version, bot_id=bot_id):
            whose = f"bot {bot_id}" if bot_id is not None else "no bot yet"
            todo = "" if version == LATEST else f"; serve makes a backup and migrates it to {LATEST}"
            return f"has version {version} and belongs to {whose}{todo}", bot_id


def lock_findings(db: Path) -> tuple[Finding, bool]:
    """Is the lock free, or held by our daemon?  And whether it is held."""
    try:
        held = held_by_another(db)
    except StartRefused as error:
        return Finding("FAIL", "lock", str(error)), False
    return Finding("ok", "lock", "held by the running daemon" if held else "free"), held


def port_finding(settings: Settings, lock_held: bool) -> Finding:
    """Can the address be listened on, or does our own daemon do so already?"""
    if settings.listen:
        return Finding("skip", "port", "endpoints are opened by the daemon only")
    host, port = settings.host, settings.port
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError:
        return Finding("FAIL", "port", f"{where}: the host is not known")
    try:
        with socket.socket(address[0], socket.SOCK_STREAM) as probe:
            # As the daemon does: the leavings of closed connections are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[4])
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else "not possible"
        if lock_held and _answers_as_ours(address[0], address[4]):
            return Finding("ok", "port", f"{where} is held by the running daemon")
        return Finding("FAIL", "port", f"{where}: {why}")
    return Finding("ok", "port", f"{where} is free" if port else "any free one")


def _answers_as_ours(family: int, address: Any) -> bool:
    """Whether who listens there refuses a request without a key the way the gateway does."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as wire:
            wire.settimeout(PROBE_SECONDS)
            wire.connect(address)
            wire.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b""
            while len(answer) < 4096 and b"}" not in answer and (data := wire.recv(4096)):
                answer += data
    except OSError:
        return False
    return answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 503 ")) and b'"ok":false' in answer.replace(
        b" ", b""
    )


def notices_finding(notices: NoticeSettings, db: Path) -> Finding:
    """Can the operator's notices be kept, and has their transport all it needs?  Nothing is made or sent."""
    from telegrammer.messaging.outbox_file import check_place
    from telegrammer.messaging.outbox_file import recognise as recognise_outbox
    from telegrammer.notice_road import carried_by

    outbox, spool = notices.outbox_beside(db), notices.spool
    there = False
    if outbox.parent.exists() or notices.outbox is not None:
        try:
            there = check_place(outbox, user=_daemons_user(outbox.parent))
            if there:
                recognise_outbox(outbox)
        except OutboxError as error:
            return Finding("FAIL", "notices", str(error))
    if spool is not None and os.path.lexists(spool) and not (spool.is_dir() and os.access(spool, _USABLE)):
        return Finding("FAIL", "notices", f"the spool {spool} cannot be written")
    detail = f"{carried_by(notices)}; {outbox} {'is there' if there else 'is not there yet; serve makes it'}"
    return Finding("ok", "notices", detail)


def _daemons_user(directory: Path) -> int | None:
    """Who the daemon would be: for root that looks at another's directory, its owner; else who looks."""
    try:
        return directory.stat().st_uid if os.geteuid() == 0 else None
    except OSError:
        return None


def _finding(good: bool, name: str, detail: str) -> Finding:
    return Finding("ok" if good else "FAIL", name, detail)
