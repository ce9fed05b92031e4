"""The package as it is published: built once a run, and installed away from the checkout."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.daemon import ROOT


def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, shared by all the processes of a run."""
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent  # each process has a directory of its own below
    directory /= "wheel"
    directory.mkdir(exist_ok=True)
    with open(directory.with_name("wheel.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(directory.glob("*.whl")):
            _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(ROOT))
        (wheel,) = directory.glob("*.whl")
    return wheel


def installed(wheel: Path, directory: Path) -> Path:
    """
    The interpreter of a new environment with the wheel in it.

    What the wheel depends on is seen where it is installed for the tests; a ``.pth`` file there, such as the
    one that leads to the checkout, is not.
    """
    venv.create(directory, symlinks=True)
    interpreter = directory / "bin" / "python"
    _pip("--python", str(interpreter), "install", "--no-deps", "--no-index", "--no-compile", str(wheel))
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return interpreter


def _pip(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
