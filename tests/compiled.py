"""What tests compile: once, however many processes of pytest ask for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from once import once

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

    def compile_them(folder: Path) -> Path:
        subprocess.run([command, *FLAGS, *flags, *map(str, sources), "-o", folder / name], check=True)
        return folder / name

    return once(factory, "_".join([name, *flags]).replace("/", "_"), compile_them)
