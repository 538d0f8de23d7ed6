"""`gpucomm doctor`: what is on, what is off and why. Looks without importing or initialising anything big."""

from __future__ import annotations

import argparse
import ctypes
import importlib.machinery
import importlib.util
import json
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from gpucomm import _core
from gpucomm.launch.cores import cgroup_quota, usable_cores

__all__ = ["Finding", "add_arguments", "examine", "main"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: what was looked at.
        on: whether it can be used.
        why: what was found, or what is missing and how to get it.
    """

    name: str
    on: bool
    why: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line of `gpucomm doctor`."""
    parser.add_argument("--json", action="store_true", help="a list of objects with the keys name, on, why")


def main(args: argparse.Namespace) -> int:
    """Print the report."""
    findings = examine()
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
        return 0
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{finding.name:<{width}}  {'on ' if finding.on else 'off'}  {finding.why}")
    return 0


def examine() -> list[Finding]:
    """Look at everything; a look that fails is itself a finding."""
    findings: list[Finding] = []
    for name, look in _LOOKS.items():
        try:
            findings += look(name)
        except Exception as error:
            findings.append(Finding(name, False, f"could not be examined: {error!r}"))
    return findings


def _software(name: str) -> Iterator[Finding]:
    yield Finding("gpucomm", True, f"{_core.version} in {Path(__file__).parent}")
    yield Finding("Python", True, f"{platform.python_version()} ({sys.executable}) on {platform.machine()}")


def _cores(name: str) -> Iterator[Finding]:
    quota = cgroup_quota()
    limit = "no quota" if quota is None else f"quota {quota:g}"
    affinity = len(os.sched_getaffinity(0))
    why = f"{usable_cores()} usable ({os.cpu_count()} in the machine, affinity {affinity}, {limit})"
    yield Finding(name, True, why)


def _simd(name: str) -> Iterator[Finding]:
    yield Finding(
        name, True, f"{_core.simd_level()} of {', '.join(_core.simd_levels())}; GPUCOMM_SIMD forces one"
    )


def _registered(name: str) -> Iterator[Finding]:
    entries = _core.transports() if name == "transport" else _core.algorithms()
    for entry, about in sorted(entries.items()):
        yield Finding(f"{name} {entry}", True, str(about.get("summary", "")))


def _shared_memory(name: str) -> Iterator[Finding]:
    try:
        os.close(os.memfd_create("gpucomm-doctor"))
    except (AttributeError, OSError) as error:
        yield Finding(name, False, f"memfd_create does not work, so processes cannot be connected: {error}")
    else:
        yield Finding(name, True, "memfd_create works; nothing is put into /dev/shm")


def _dev_shm(name: str) -> Iterator[Finding]:
    status = os.statvfs("/dev/shm")
    size, free = (blocks * status.f_frsize >> 20 for blocks in (status.f_blocks, status.f_bavail))
    yield Finding(name, True, f"{size} MiB, {free} MiB free; gpucomm does not use it")


def _huge_pages(name: str) -> Iterator[Finding]:
    folder = Path("/sys/kernel/mm/transparent_hugepage")
    chosen = {}
    for kind, file in (("private", "enabled"), ("shared", "shmem_enabled")):
        try:
            chosen[kind] = (folder / file).read_text().partition("[")[2].partition("]")[0]
        except OSError:
            chosen[kind] = "unknown"
    on = chosen["shared"] not in ("never", "deny", "unknown")
    yield Finding(name, on, f"shared memory: {chosen['shared']}, private memory: {chosen['private']}")


def _limits(name: str) -> Iterator[Finding]:
    for what, number, unit in (
        ("locked memory", resource.RLIMIT_MEMLOCK, "bytes"),
        ("open files", resource.RLIMIT_NOFILE, "files"),
        ("processes", resource.RLIMIT_NPROC, "processes"),
    ):
        soft, hard = (
            "no limit" if n == resource.RLIM_INFINITY else str(n) for n in resource.getrlimit(number)
        )
        yield Finding(f"{name} {what}", True, f"{soft} {unit} (hard limit: {hard})")


def _nccl(name: str) -> Iterator[Finding]:
    spec = _find("nvidia.nccl")
    if spec is not None:
        places = list(spec.submodule_search_locations or [])
        yield Finding(name, True, f"wheel in {places[0] if places else spec.origin}")
    elif error := _load_error("libnccl.so.2"):
        yield Finding(
            name, False, f"neither a wheel (nvidia-nccl-cu12, nvidia-nccl-cu13) nor a library: {error}"
        )
    else:
        yield Finding(name, True, "libnccl.so.2 on the library path")


def _cuda(name: str) -> Iterator[Finding]:
    error = _load_error("libcuda.so.1")
    device = Path("/dev/nvidia0").exists()
    if error or not device:
        yield Finding(f"{name} driver", False, error or "libcuda.so.1 is there, but no /dev/nvidia0")
    else:
        yield Finding(f"{name} driver", True, "libcuda.so.1 and /dev/nvidia0 are there")
    built = _find("gpucomm._cuda") is not None
    yield Finding(f"{name} extension", built, "gpucomm._cuda is built" if built else "not part of this build")


def _package(name: str) -> Iterator[Finding]:
    module, advice = _PACKAGES[name]
    if _find(module) is None:
        yield Finding(name, False, f"{module} is not installed: {advice}")
        return
    try:
        yield Finding(name, True, f"{module} {metadata.version(module)}")
    except metadata.PackageNotFoundError:
        yield Finding(name, True, f"{module}, of unknown version")


def _find(module: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def _load_error(library: str) -> str:
    """Why the dynamic linker cannot load it, or "" if it can."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return ""


_PACKAGES = {
    "MPI": ("mpi4py", "pip install 'gpucomm[mpi]', with an MPI on the machine"),
    "torch": ("torch", "pip install 'gpucomm[torch]'; gpucomm.optim needs it"),
    "cloudpickle": ("cloudpickle", "pip install 'gpucomm[local]'; gpucomm.local needs it"),
}

_LOOKS: dict[str, Callable[[str], Iterator[Finding]]] = {
    "software": _software,
    "cores": _cores,
    "SIMD": _simd,
    "transport": _registered,
    "algorithm": _registered,
    "shared memory": _shared_memory,
    "/dev/shm": _dev_shm,
    "huge pages": _huge_pages,
    "limit:": _limits,
    "MPI": _package,
    "NCCL": _nccl,
    "CUDA": _cuda,
    "torch": _package,
    "cloudpickle": _package,
}
