"""Whether a path lies on a disk of this machine, by the kernel's table of mounts (proc_pid_mountinfo(5))."""

from __future__ import annotations

import os
import re
from pathlib import Path

from attrs import frozen

MOUNTS = Path("/proc/self/mountinfo")

_NETWORK = frozenset(
    """
    9p acfs afs aufs_nfs beegfs ceph cephfs cifs coda davfs dlm gfs gfs2 glusterfs gpfs ibrix kafs lustre mvfs
    ncp ncpfs nfs nfs4 ocfs2 orangefs panfs pvfs2 prl_fs smb2 smb3 smbfs vboxsf virtiofs vmhgfs webdav
    """.split()
)
"""Others reach the same files by ways on which SQLite's locks may mean nothing, or its fsync."""

# What FUSE carries is anything; these keep their files here.
_LOCAL_FUSE = frozenset(
    "fuse.bindfs fuse.encfs fuse.fuse-overlayfs fuse.gocryptfs fuse.mergerfs fuse.ntfs-3g".split()
)
_ESCAPE = re.compile(rb"\\([0-7]{3})")


@frozen
class Mount:
    """A mount point and the type of what is mounted there."""

    point: Path
    type: str

    @property
    def is_local(self) -> bool:
        if self.type in _NETWORK:
            return False
        return not self.type.startswith("fuse.") and self.type != "fuse" or self.type in _LOCAL_FUSE


def mount_of(path: Path, table: bytes) -> Mount | None:
    """
    The mount a path lies on; None when the table does not say.

    :param path: absolute, and without symbolic links in it.
    :param table: as ``/proc/self/mountinfo`` has it.
    """
    found: Mount | None = None
    for line in table.splitlines():
        before, separator, after = line.partition(b" - ")
        fields, types = before.split(), after.split()
        if not separator or len(fields) < 5 or not types:
            continue
        point = Path(os.fsdecode(_ESCAPE.sub(lambda octal: bytes([int(octal[1], 8) & 0xFF]), fields[4])))
        # The innermost; of several at one point the last one covers the others.
        if path.is_relative_to(point) and (found is None or point.is_relative_to(found.point)):
            found = Mount(point, types[0].decode("ascii", "replace"))
    return found
