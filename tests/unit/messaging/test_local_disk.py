"""Local or not, by the table of mounts."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.messaging.local_disk import MOUNTS, Mount, mount_of

TABLE = rb"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:26 / /srv rw - nfs4 server:/srv rw
31 30 8:2 / /srv/local rw,relatime master:3 shared:4 - xfs /dev/sdb rw
32 22 0:27 / /home\040of\134a rw - cifs //server/home rw
33 22 0:28 / /over rw - ext4 /dev/sdc rw
34 22 0:29 / /over rw - fuse.sshfs me@there: rw
"""


class MountTests(SynchronousTestCase):
    def type_of(self, path: str, table: bytes = TABLE) -> str | None:
        mount = mount_of(Path(path), table)
        return None if mount is None else mount.type

    def test_the_innermost_mount(self) -> None:
        self.assertEqual(self.type_of("/var/lib/x.db"), "ext4")
        self.assertEqual(self.type_of("/srv/x.db"), "nfs4")
        self.assertEqual(self.type_of("/srvx/x.db"), "ext4")
        self.assertEqual(self.type_of("/srv/local/x.db"), "xfs")
        self.assertEqual(self.type_of("/home of\\a/x.db"), "cifs")

    def test_the_last_at_a_point(self) -> None:
        self.assertEqual(self.type_of("/over/x.db"), "fuse.sshfs")

    def test_a_table_that_does_not_say(self) -> None:
        for table in (b"", b"\xff\n", b"22 1 8:1 / /\n", b"a - b\n", b"22 1 8:1 / / rw - \n"):
            self.assertIsNone(self.type_of("/x.db", table))

    def test_what_is_local(self) -> None:
        for kind in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk", "fuse.fuse-overlayfs"):
            self.assertTrue(Mount(Path("/"), kind).is_local, kind)
        for kind in (
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "9p",
            "ceph",
            "fuse.sshfs",
            "fuse",
            "fuse.rclone",
            "virtiofs",
        ):
            self.assertFalse(Mount(Path("/"), kind).is_local, kind)

    def test_this_machine(self) -> None:
        mount = mount_of(Path("/proc/self"), MOUNTS.read_bytes())
        assert mount is not None
        self.assertEqual(mount.type, "proc")

    @given(st.binary())
    def test_any_bytes(self, table: bytes) -> None:
        mount_of(Path("/a/b"), table)
