"""Where NCCL is: found at run time, loaded only when asked for. A copy that we load is the one torch gets."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from gpucomm import _core
from gpucomm.errors import UnavailableError

__all__ = ["Found", "find", "load", "why_not"]

VARIABLE = "GPUCOMM_NCCL_LIBRARY"
SONAME = "libnccl.so.2"


@dataclass(frozen=True)
class Found:
    """Which library would be loaded.

    Attributes:
        path: a file, or the soname for the dynamic linker to find.
        how: why this one, for `gpucomm doctor` and error texts.
    """

    path: str
    how: str


def find() -> Found:
    """Tell which library would be loaded, without loading it.

    The first of: the file that GPUCOMM_NCCL_LIBRARY names, what this process has loaded (torch's copy), a
    wheel of NVIDIA's, and what the dynamic linker finds by itself.
    """
    told = os.environ.get(VARIABLE, "")
    if told:
        return Found(told, f"named by {VARIABLE}")
    if _already_loaded():
        return Found(SONAME, "already loaded in this process")
    wheel = _in_wheel()
    if wheel is not None:
        return Found(str(wheel), "in the wheel nvidia-nccl")
    return Found(SONAME, "left to the dynamic linker")


def load() -> _core.NcclLibrary:
    """Load NCCL, or find it loaded.

    Raises:
        UnavailableError: it was not found, is too old or lacks a call.
    """
    found = find()
    try:
        return _core.NcclLibrary(found.path)
    except UnavailableError as error:
        advice = (
            "" if found.path != SONAME else f"; pip install nvidia-nccl-cu13, or name the file in {VARIABLE}"
        )
        raise UnavailableError(f"{error} ({found.how}){advice}") from None


def why_not() -> str:
    """Why NCCL cannot be used here, or nothing. Loads it."""
    try:
        load()
    except UnavailableError as error:
        return str(error)
    return ""


def _already_loaded() -> bool:
    try:
        ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def _in_wheel() -> Path | None:
    """Found without importing it."""
    for folder in getattr(_spec(), "submodule_search_locations", None) or []:
        file = Path(folder) / "lib" / SONAME
        if file.exists():
            return file
    return None


def _spec() -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return None
