"""What `gpucomm doctor` says of GPUs, of NCCL and of how arrays on GPUs travel."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from gpucomm import cuda
from gpucomm.doctor.finding import Finding, ask, last_line

__all__ = ["LOOKS"]

# NCCL is loaded, but not in this process, whose torch may bring another copy.
_ABOUT_NCCL = """
from gpucomm import nccl
why_not = nccl.why_not()
library = None if why_not else nccl.load()
print(why_not or f"NCCL {library.version}, {library.file} ({nccl.find().how})")
raise SystemExit(bool(why_not))
"""

# Opens the first GPU, if there is one.
_ABOUT_SHARING = """
from gpucomm import cuda
print("" if cuda.why_not() else cuda.device(0).shares())
"""


def _nccl(name: str) -> Iterator[Finding]:
    done = ask(_ABOUT_NCCL)
    what = last_line(done.stdout or done.stderr, done.returncode)
    use = "" if done.returncode else "; carries arrays on GPUs between nodes"
    yield Finding(name, done.returncode == 0, what + use)


def _chosen() -> str:
    asked = ask(_ABOUT_SHARING)
    unshared = last_line(asked.stderr, asked.returncode) if asked.returncode else asked.stdout.strip()
    inside = f"through host memory, as {unshared}" if unshared else "through memory that its processes share"
    lacks = ask(_ABOUT_NCCL).returncode
    between = "through host memory, as NCCL is off" if lacks else "over NCCL"
    return f"inside a node {inside}; between nodes {between}"


_DEVICE_TRANSPORTS = {
    "auto": "",
    "arena": "through memory that the processes of one node share",
    "nccl": "over NCCL",
    "staged": "through page-locked memory of the hosts and their own transports",
}


def _device_transport(name: str) -> Iterator[Finding]:
    asked = os.environ.get("GPUCOMM_DEVICE_TRANSPORT", "") or "auto"
    known = ", ".join(_DEVICE_TRANSPORTS)
    what = f"GPUCOMM_DEVICE_TRANSPORT must be one of {known}, got {asked!r}"
    if asked in _DEVICE_TRANSPORTS:
        what = f"{asked}: {_DEVICE_TRANSPORTS[asked] or _chosen()} (GPUCOMM_DEVICE_TRANSPORT: {known})"
    yield Finding(name, asked in _DEVICE_TRANSPORTS, what)


def _cuda(name: str) -> Iterator[Finding]:
    missing = _load_error("libcuda.so.1")
    if not missing and not Path("/dev/nvidia0").exists():
        missing = "libcuda.so.1 is there, but no /dev/nvidia0"
    yield Finding(f"{name} driver", not missing, missing or "libcuda.so.1 and /dev/nvidia0 are there")
    why = cuda.why_not()
    built = "gpucomm._cuda is part of this build" if cuda.is_built() else why
    yield Finding(f"{name} extension", cuda.is_built(), built)
    if cuda.is_built():
        yield Finding(f"{name} devices", not why, why or "; ".join(_gpus()))


def _gpus() -> Iterator[str]:
    from gpucomm import _cuda

    for index in range(_cuda.device_count()):
        yield f"cuda:{index} {_cuda.device_name(index)}"
    versions = (_cuda.driver_version(), _cuda.runtime_version())
    driver, runtime = (f"{version // 1000}.{version % 1000 // 10}" for version in versions)
    yield f"the driver is for CUDA {driver}, gpucomm was built with CUDA {runtime}"


def _load_error(library: str) -> str:
    """Why the dynamic linker cannot load it, or "" if it can."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return ""


LOOKS = {"NCCL": _nccl, "device arrays": _device_transport, "CUDA": _cuda}
