"""The libnccl.so.2 of the tests' own (fake_nccl.cpp): how it is built, and how it comes to streams."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpucomm import _core


def build(folder: Path, *macros: str) -> Path:
    """Compile it, with macros that make it another release."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        pytest.skip("no C++ compiler to build the library of the tests with")
    made = folder / "libnccl.so.2"
    source = Path(__file__).parent / "fake_nccl.cpp"
    shape = ["-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnccl.so.2"]
    options = [f"-D{macro}" for macro in macros]
    subprocess.run([compiler, *shape, *options, str(source), "-o", str(made)], check=True)
    return made


def environment(library: Path) -> dict[str, str]:
    """What makes ranks that are processes use it."""
    return {
        "PYTHONPATH": str(Path(__file__).parent),
        "GPUCOMM_DEVICE_TRANSPORT": "nccl",
        "GPUCOMM_NCCL_LIBRARY": str(library),
        "FAKE_NCCL_FOLDER": str(library.parent),
    }


def controls(path: str) -> ctypes.CDLL:
    """Its controls; from here on its work runs on streams of host devices."""
    library = ctypes.CDLL(path)
    library.fake_calls.restype = ctypes.c_char_p
    library.fake_set_enqueue(ctypes.c_void_p(_core.HostDevice.stream_function()))
    return library


def own() -> ctypes.CDLL:
    """The same, of a rank that is a process."""
    return controls(os.environ["GPUCOMM_NCCL_LIBRARY"])
