"""
Whose database is this?  Looked at without changing a byte of it (contract 1.3, 4).

SQLite itself may write when it reads: the ``-shm`` of a WAL file, the roll-back of a hot journal.  So a file
that lies still is read as immutable; one that a process has open is read beside that process; and one with
the leavings of a crash, which SQLite would repair, is looked at in a copy.
"""

from __future__ import annotations

import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from attrs import frozen

from telegrammer.core.problems import StartRefused, StoreBusy, StoreReadOnly, UnknownSchema
from telegrammer.store.engine import translate
from telegrammer.store.files import real_path
from telegrammer.store.migrations import LATEST

MAGIC = b"SQLite format 3\x00"
LEGACY_TABLE = "api_keys"
LEGACY_COLUMNS = frozenset({"name", "key", "created_at"})
OUR_TABLES = frozenset(
    {"gateway", "skip_marks", "keys", "subscriptions", "usernames", "payloads", "deliveries", "lanes"}
)
"""What every version of ours has; a stranger may use the same ``user_version``."""
TABLES = OUR_TABLES | {"journal"}
"""Those of the latest version."""


@frozen
class Absent:
    """There is no file, or an empty one."""

    exists: bool


@frozen
class Legacy:
    """The C++ program's ``api_keys(name, key, created_at)``; counts as version 0."""


@frozen
class Ours:
    """A layout of ours."""

    version: int
    bot_id: int | None


Layout = Absent | Legacy | Ours


def recognise(path: Path) -> Layout:
    """
    The layout of the file, which stays as it is.

    :raises UnknownSchema: anything else than the above, or of a newer version.
    :raises StartRefused: it cannot be read.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise UnknownSchema(f"{path} is not a regular file")
        if found.st_size == 0:
            return Absent(exists=True)
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise UnknownSchema(f"{path} is not a SQLite database")
    except FileNotFoundError:
        if path.is_symlink():
            # Not made there: root, in another user's directory, would be led by that user's link.
            raise StartRefused(f"{path} is a link to a file that is not there") from None
        return Absent(exists=False)
    except OSError as error:
        raise StartRefused(f"the database {path} cannot be read: {error.strerror}") from None
    try:
        with look(path) as connection:
            return _classify(connection, path)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # Of a damaged file SQLite may quote what is no text.
        match translate(error):
            case StoreBusy():
                raise StartRefused(f"the database {path} is locked by another process") from None
            case StoreReadOnly():
                raise StartRefused(f"the database {path} cannot be opened") from None
            case _:
                raise UnknownSchema(f"{path} is damaged: no database that can be read") from None
    except OSError as error:
        raise StartRefused(f"the database {path} cannot be read: {error.strerror}") from None


@contextmanager
def look(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection that changes nothing on disk; also for ``telegrammer check``."""
    # SQLite keeps its companions beside the file a link points to.
    path = real_path(path)
    wal, shm, journal = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal"))
    if _size(journal) or (_size(wal) and not shm.exists()):
        with tempfile.TemporaryDirectory(prefix="telegrammer-") as directory:
            copy = Path(directory, "copy.db")
            for source in (path, wal, journal):
                if source.exists():
                    shutil.copyfile(source, copy.with_name(source.name.replace(path.name, copy.name, 1)))
            with closing(_open(copy, "mode=rw")) as connection:
                yield connection
    else:
        # readonly_shm: else the index of a crashed process is built anew, and a missing -wal made.
        beside = wal.exists() and shm.exists()
        with closing(_open(path, f"mode=ro&{'readonly_shm' if beside else 'immutable'}=1")) as connection:
            yield connection


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _open(path: Path, parameters: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{parameters}", uri=True, isolation_level=None)
    connection.execute("PRAGMA busy_timeout=1000")
    return connection


def _classify(connection: sqlite3.Connection, path: Path) -> Layout:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    objects = connection.execute(
        "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    kinds: dict[str, set[str]] = {}
    for kind, name in objects:
        kinds.setdefault(kind, set()).add(name.lower())
    tables = kinds.get("table", set())
    if version > LATEST:
        raise UnknownSchema(f"{path} has version {version}; this program knows versions up to {LATEST}")
    if version == 0:
        if not kinds:
            return Absent(exists=True)
        columns = connection.execute(
            f"SELECT lower(name) FROM pragma_table_info('{LEGACY_TABLE}')"
        ).fetchall()
        if (
            tables == {LEGACY_TABLE}
            and {name for (name,) in columns} == LEGACY_COLUMNS
            and kinds.keys() <= {"table", "index"}
        ):
            return Legacy()
    elif version > 0 and OUR_TABLES <= tables:
        row = connection.execute("SELECT bot_id FROM gateway WHERE id = 1").fetchone()
        if row is not None and isinstance(row[0], int | None):
            return Ours(version, row[0])
    raise UnknownSchema(f"{path} holds a database of another program; name another one")
