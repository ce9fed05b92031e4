"""Files beside the database: private, and owned by whom the directory belongs to (contract 1.1, 1.2)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from attrs import frozen

from telegrammer.core.problems import StartRefused


def real_path(path: Path) -> Path:
    """The file itself, when the path is a link to it; one file has one lock, whatever it is called."""
    return Path(os.path.realpath(path))


@frozen
class KnownFile:
    """
    A file that is to be told from any other that comes to have its name.

    SQLite goes on with a file that was removed or replaced, and so would promise what nobody ever finds.
    """

    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """The one that has this name now."""
        found = path.stat()
        return cls(path, found.st_dev, found.st_ino)

    def is_there(self) -> bool:
        """Whether it still has its name; what keeps us from looking is no proof that it has not."""
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return (found.st_dev, found.st_ino) == (self.device, self.inode)


def make_state_directory(db: Path) -> list[Path]:
    """
    Make the directory of the database, and what is missing above it, 0700.

    :returns: what was made, the innermost first; see ``remove_directories``.
    :raises StartRefused: it cannot be made.
    """
    directory = db.absolute().parent
    missing = [directory, *directory.parents]
    missing = missing[: next(i for i, parent in enumerate(missing) if parent.exists())]
    made: list[Path] = []
    try:
        for path in reversed(missing):
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                continue
            made.insert(0, path)
            give_to_owner(path)
        if not directory.is_dir():
            raise NotADirectoryError(20, "Not a directory")
    except OSError as error:
        remove_directories(made)
        raise StartRefused(f"the state directory {directory} cannot be made: {error.strerror}") from None
    return made


def remove_directories(made: Iterable[Path]) -> None:
    """Remove directories that were made for nothing; those in which something lies by now stay."""
    with suppress(OSError):
        for path in made:
            path.rmdir()


def create_private(path: Path) -> int:
    """
    A descriptor of a new, empty file, 0600 whatever the umask.

    :raises FileExistsError: something of that name is there, be it a dangling link.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        give_to_owner(path)
    except BaseException:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return descriptor


def make_private(path: Path) -> None:
    """Take the rights of group and others from an existing file."""
    mode = path.stat().st_mode
    if mode & 0o077:
        path.chmod(mode & 0o700)


def sync_directory(path: Path) -> None:
    """Have the name of a file outlive a power cut; some file systems cannot be asked to."""
    with suppress(OSError):
        descriptor = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def give_to_owner(path: Path) -> None:
    """
    Give what root has just made in another user's directory to that user, who could not open it else.

    Does nothing for anybody but root.
    """
    if os.geteuid() != 0:
        return
    owner = path.parent.stat()
    if owner.st_uid != 0:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
