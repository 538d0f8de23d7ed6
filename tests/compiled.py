"""What tests compile: once, however many processes of pytest ask for them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["compiler", "program", "shared_object"]

FLAGS = ["-std=c++20", "-ffp-contract=off", "-Wno-unknown-pragmas"]


def compiler() -> str | None:
    """The C++ compiler of this machine."""
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")


def shared_object(
    factory: pytest.TempPathFactory, name: str, sources: Sequence[Path], flags: Sequence[str] = ()
) -> Path:
    """Compile them to a shared object of this name, one for each set of flags.

    Without a compiler the test is skipped.
    """
    return program(factory, name, sources, ["-fPIC", "-shared", *flags])


def program(
    factory: pytest.TempPathFactory, name: str, sources: Sequence[Path], flags: Sequence[str] = ()
) -> Path:
    """Compile them to a program; as for shared_object."""
    if (command := compiler()) is None:
        pytest.skip("no C++ compiler here")
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "compiled" / "_".join([name, *flags]).replace("/", "_")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).exists():
            subprocess.run([command, *FLAGS, *flags, *map(str, sources), "-o", folder / "part"], check=True)
            (folder / "part").rename(folder / name)
    return folder / name
