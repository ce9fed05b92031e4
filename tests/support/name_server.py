"""
A name server that says what a test tells it, and daemons that ask it: the system's own resolver, nothing put
in its place.

The daemon runs in a mount namespace of its own, where ``/etc/resolv.conf`` names this server.  A look-up that
gets no answer hangs there for two and a half minutes, as with a server that is down.
"""

from __future__ import annotations

import ipaddress
import os
import random
import shlex
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.daemon import PATIENCE

SILENT: Final = "silent"
"""In place of addresses: the question is never answered."""
BROKEN: Final = "broken"
"""SERVFAIL: the name may exist, this server cannot tell."""

_A, _AAAA = 1, 28
_ENTER: Final = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]


def why_not() -> str | None:
    """Why this machine cannot do it; None when it can."""
    for tool in ("unshare", "mount"):
        if shutil.which(tool) is None:
            return f"{tool} is missing"
    if not all(Path("/etc", name).is_file() for name in ("resolv.conf", "nsswitch.conf")):
        return "the system's resolver has no files to put others over"
    if subprocess.run([*_ENTER, "true"], capture_output=True, check=False).returncode != 0:
        return "there are no mount namespaces to be had"
    try:
        _bound().close()
    except OSError as error:
        return f"port 53 is not to be had: {error.strerror}"
    return None


def _bound() -> socket.socket:
    """On a loopback address that nobody else has, for resolv.conf(5) knows no port but 53."""
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        wire.bind((f"127.{random.randint(1, 254)}.{random.randint(0, 255)}.{random.randint(2, 254)}", 53))
    except OSError:
        wire.close()
        raise
    return wire


class NameServer:
    """
    Answers from ``table``, in which a name has addresses of both families, `SILENT`, or `BROKEN`.

    A name that is not in it does not exist; the table may be changed at any time.  ``asked`` counts the
    questions for each.
    """

    def __init__(self) -> None:
        self.table: dict[str, Sequence[str] | str] = {}
        self.asked: dict[str, int] = {}
        self._changed = threading.Condition()
        self._wire = _bound()
        self._files = tempfile.TemporaryDirectory()
        Path(self._files.name, "nsswitch.conf").write_text("hosts: files dns\n")
        self.options("timeout:30 attempts:5")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """A loopback address that nobody else has."""
        address: str = self._wire.getsockname()[0]
        return address

    def options(self, options: str) -> None:
        """How patient the resolver is, in the words of resolv.conf(5); for daemons that are started after."""
        text = f"nameserver {self.address}\noptions {options}\n"
        Path(self._files.name, "resolv.conf").write_text(text)

    def within(self, argv: Sequence[str]) -> tuple[str, ...]:
        """``argv``, in the same process id, where names are looked up here."""
        script = [
            f"mount --bind {shlex.quote(self._files.name)}/{name} /etc/{name}"
            for name in ("resolv.conf", "nsswitch.conf")
        ]
        script.append('exec "$@"')
        return (*_ENTER, "--propagation", "private", "sh", "-ec", "\n".join(script), "sh", *argv)

    def wait_for(self, *names: str, times: int = 1, seconds: float = PATIENCE) -> None:
        """Until each of the names was asked for so often."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: all(self.asked.get(name, 0) >= times for name in names), seconds
            ), f"asked was {self.asked}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The thread is woken by a question of ours: closing a socket does not end a read of it.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._wire.getsockname())
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._wire.close()
        self._files.cleanup()

    def _serve(self) -> None:
        while True:
            question, asker = self._wire.recvfrom(4096)
            if not question:
                return
            if (answer := self._answer(question)) is not None:
                self._wire.sendto(answer, asker)

    def _answer(self, question: bytes) -> bytes | None:
        """RFC 1035, section 4: one question, and as many answers as there are addresses of its family."""
        labels, end = [], 12
        while length := question[end]:
            labels.append(question[end + 1 : end + 1 + length].decode("ascii"))
            end += length + 1
        name = ".".join(labels).lower()
        (family,) = struct.unpack_from("!H", question, end + 1)
        with self._changed:
            self.asked[name] = self.asked.get(name, 0) + 1
            self._changed.notify_all()
        known = self.table.get(name)
        if known == SILENT:
            return None
        code = 2 if known == BROKEN else 3 if known is None else 0
        addresses = [ipaddress.ip_address(text) for text in known] if known and code == 0 else []
        wanted = [each.packed for each in addresses if each.version == {_A: 4, _AAAA: 6}.get(family)]
        records = b"".join(
            # The name as a pointer to the question's; class IN; not to be kept.
            struct.pack("!HHHIH", 0xC00C, family, 1, 0, len(packed)) + packed
            for packed in wanted
        )
        head = question[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(wanted), 0, 0)
        return head + question[12 : end + 5] + records
