"""Run a program as a user without rights, although the interpreter may lie where only root can go."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.daemon import ROOT

UID = 65534
"""``nobody``: owns nothing."""


def why_not() -> str | None:
    """Why this machine cannot do it; None when it can."""
    if os.geteuid() != 0:
        return "only root can become another user"
    for tool in ("setpriv", "unshare", "mount"):
        if shutil.which(tool) is None:
            return f"{tool} is missing"
    return None


def unprivileged(argv: Sequence[str], *, umask: str = "0077") -> list[str]:
    """
    ``argv`` under ``UID``, without any capability, in the same process id.

    Directories that ``UID`` cannot pass are covered, in a mount namespace of the process's own, by empty
    ones that hold just the interpreter, its environment and the checkout.
    """
    drop = shlex.join(
        [
            "setpriv",
            f"--reuid={UID}",
            f"--regid={UID}",
            "--clear-groups",
            "--bounding-set=-all",
            "--inh-caps=-all",
            "--no-new-privs",
        ]
    )
    script: list[str] = ["umask 022"]
    for barrier, inside in _barriers((sys.prefix, sys.base_prefix, str(ROOT))).items():
        script += ["hold=$(mktemp -d)", "mount -t tmpfs none $hold"]
        for number, path in enumerate(inside):
            script += [f"mkdir $hold/{number}", f"mount --rbind {shlex.quote(path)} $hold/{number}"]
        script.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(barrier)}")
        for number, path in enumerate(inside):
            script += [f"mkdir -p {shlex.quote(path)}", f"mount --move $hold/{number} {shlex.quote(path)}"]
        script += ["umount $hold", "rmdir $hold"]
    script += [f"umask {umask}", f'exec {drop} "$@"']
    return ["unshare", "-m", "--propagation", "private", "sh", "-ec", "\n".join(script), "sh", *argv]


def _barriers(paths: Sequence[str]) -> dict[str, list[str]]:
    """The highest directories that others cannot pass, with what is needed of their insides."""
    found: dict[str, list[str]] = {}
    for path in dict.fromkeys(str(Path(path).resolve()) for path in paths):
        for parent in reversed(Path(path).parents):
            if not parent.stat().st_mode & 0o001:
                found.setdefault(str(parent), []).append(path)
                break
    return found
