"""The libnccl.so.2 of the tests' own (fake_nccl.cpp): how it is built, and how it comes to streams."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from compiled import shared_object

from gpucomm import _core


def build(factory: pytest.TempPathFactory, *macros: str) -> Path:
    """Compile it, with macros that make it another release."""
    flags = ["-fvisibility=hidden", "-Wl,-soname,libnccl.so.2", *(f"-D{macro}" for macro in macros)]
    return shared_object(factory, "libnccl.so.2", [Path(__file__).parent / "fake_nccl.cpp"], flags)


def environment(factory: pytest.TempPathFactory) -> dict[str, str]:
    """What makes ranks that are processes use it."""
    return {
        "PYTHONPATH": str(Path(__file__).parent),
        "GPUCOMM_DEVICE_TRANSPORT": "nccl",
        "GPUCOMM_NCCL_LIBRARY": str(build(factory)),
        "FAKE_NCCL_FOLDER": str(factory.mktemp("nccl")),
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
