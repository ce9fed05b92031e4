"""
The outbox's file: private, local, recognised before it is touched, made in one step (contract 7.2).

Synchronous; it runs in the handle's thread.  Nothing here opens the file by itself: to close a descriptor is
to give up every lock that this process holds on the file (fcntl_locking(2)), another handle's too.  SQLite
knows of that, and keeps its descriptors for as long as it takes.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path

from telegrammer.core.problems import InsecurePath, NotAnOutbox, OutboxFailing
from telegrammer.messaging.local_disk import MOUNTS, mount_of
from telegrammer.store.engine import translate
from telegrammer.store.files import sync_directory

APPLICATION_ID = 0x54474F42
"""``TGOB``, in the file's head, as is the version (sqlite.org/fileformat2.html#application_id)."""
VERSION = 1
SQLITE_SAYS = (sqlite3.Error, UnicodeDecodeError)
"""What ``sqlite3`` raises for what SQLite reports, whose words about a damaged schema quote the damage."""
_SMALLEST = 512
"""Bytes of the smallest page."""

# The record comes last: to look at what stands before it SQLite reads none of its pages.
_SCHEMA = (
    """CREATE TABLE messages(
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        queue TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        lease TEXT,
        lease_expires_at INTEGER,
        record BLOB NOT NULL,
        CHECK ((lease IS NULL) = (lease_expires_at IS NULL))
    ) STRICT""",
    "CREATE INDEX messages_queue ON messages(queue, seq)",
    """CREATE TABLE marks(
        queue TEXT NOT NULL,
        subject TEXT NOT NULL,
        state TEXT NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY(queue, subject)
    ) STRICT, WITHOUT ROWID""",
    f"PRAGMA application_id={APPLICATION_ID}",
    f"PRAGMA user_version={VERSION}",
)


def check_place(path: Path, mounts: Path = MOUNTS, user: int | None = None) -> bool:
    """
    Whether the file is there; it and its directory are private, and on a local file system.

    :param mounts: the table of mounts.
    :param user: whose it is to be; of this process when None.
    :raises InsecurePath: they are not.
    :raises OutboxFailing: the directory is not there, or cannot be looked at.
    """
    user = os.geteuid() if user is None else user
    directory = path.parent
    try:
        for above in (*reversed(directory.parents), directory):
            _check_directory(above, user, innermost=above == directory)
        table = mounts.read_bytes()
    except OSError as error:
        raise OutboxFailing(f"{error.filename}: {error.strerror}") from None
    mount = mount_of(path, table)
    if mount is None:
        raise InsecurePath(f"{path}: it cannot be told whether its file system is a local one")
    if not mount.is_local:
        raise InsecurePath(f"{path} is on a file system of type {mount.type}; it must be on a local one")
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise OutboxFailing(f"{path}: {error.strerror}") from None
    _check_file(path, found, user)
    return True


def _check_directory(path: Path, user: int, innermost: bool) -> None:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise InsecurePath(f"{path} is a symbolic link; name the real directory")
    if not stat.S_ISDIR(found.st_mode):
        raise InsecurePath(f"{path} is no directory")
    if innermost:
        if found.st_uid not in (user, 0):
            raise InsecurePath(f"the directory {path} belongs to another user")
        if found.st_mode & 0o022:
            raise InsecurePath(f"the directory {path} can be written by others; take that right from them")
    elif found.st_mode & 0o002 and not found.st_mode & stat.S_ISVTX:
        raise InsecurePath(f"anybody may replace what is in {path}; take that right from them")


def _check_file(path: Path, found: os.stat_result, user: int) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise InsecurePath(f"{path} is a symbolic link; name the real file")
    if not stat.S_ISREG(found.st_mode):
        raise InsecurePath(f"{path} is no regular file")
    if found.st_uid != user:
        raise InsecurePath(f"{path} belongs to another user")
    if stat.S_IMODE(found.st_mode) != 0o600:
        raise InsecurePath(f"{path} has mode {stat.S_IMODE(found.st_mode):04o}; it must be 0600")


def recognise(path: Path) -> None:
    """
    See that the file is an outbox of this version, without touching it.

    :raises NotAnOutbox: it is not.
    :raises OutboxFailing: it cannot be read.
    """
    size = path.lstat().st_size
    if size == 0:
        raise NotAnOutbox(f"{path} is empty; remove it, and it will be made")
    if size < _SMALLEST:  # SQLite would take it for an empty one.
        raise NotAnOutbox(f"{path} is no SQLite database, or damaged")
    try:
        # immutable: neither locks nor journals; the two numbers never change, whoever is writing now.
        uri = f"{path.as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            # Without it a file that is growing just now is found damaged: its first page tells the new size.
            connection.execute("PRAGMA writable_schema=ON")
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
    except SQLITE_SAYS as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise NotAnOutbox(f"{path} is no SQLite database, or damaged") from None
        raise failing(error) from None
    if application != APPLICATION_ID:
        raise NotAnOutbox(f"{path} holds a database of another program")
    if version != VERSION:
        raise NotAnOutbox(f"{path} has version {version}; this program knows version {VERSION}")


def create(path: Path) -> None:
    """
    Make an empty outbox; one that another process makes meanwhile stays.

    Whole under another name first, so that a crash leaves none or a whole one under its own.

    :raises OutboxFailing: it could not be made.
    """
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(new, flags, 0o600)
        try:
            with open(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o600)
                file.write(_image())
                file.flush()
                os.fsync(descriptor)
            with suppress(FileExistsError):
                os.link(new, path, follow_symlinks=False)
        finally:
            new.unlink()
    except OSError as error:
        raise OutboxFailing(f"{path} cannot be made: {error.strerror}") from None
    sync_directory(path)


def _image() -> bytes:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in _SCHEMA:
            connection.execute(statement)
        return connection.serialize()


SETTINGS = (
    "PRAGMA synchronous=FULL",
    # What a statement may have to undo stays in memory: no message gets into a temporary file.
    "PRAGMA temp_store=MEMORY",
    # What was delivered is overwritten in the file, too.
    "PRAGMA secure_delete=ON",
)
"""What SQLite keeps per connection.  Some look into the file first, and so find it locked."""


def connect(path: Path) -> sqlite3.Connection:
    """A connection that leaves every transaction to us, and makes no file.  Nothing is read yet."""
    return sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False, timeout=0
    )


_TEXTS = {
    "full": "the disk of the outbox is full",
    "readonly": "the outbox or its directory cannot be written",
}


def failing(error: BaseException | None = None) -> OutboxFailing:
    """What an error of SQLite means, without its text: that may quote SQL or values."""
    trouble = translate(error)
    return OutboxFailing(_TEXTS.get(trouble.state if trouble else "", "the outbox's file reports an error"))
