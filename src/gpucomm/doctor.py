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
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from gpucomm import _core, cuda
from gpucomm.launch.cores import cgroup_quota, usable_cores
from gpucomm.links import memory_bandwidth
from gpucomm.probe import cache

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
    width = max(len(finding.name) for finding in findings)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
        return 0
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


def _basics(name: str) -> Iterator[Finding]:
    yield Finding("gpucomm", True, f"{_core.version} in {Path(__file__).parent}")
    yield Finding("Python", True, f"{platform.python_version()} ({sys.executable}) on {platform.machine()}")
    quota = cgroup_quota()
    limit = "no quota" if quota is None else f"quota {quota:g}"
    seen = f"{os.cpu_count()} in the machine, affinity {len(os.sched_getaffinity(0))}, {limit}"
    yield Finding("cores", True, f"{usable_cores()} usable ({seen})")
    levels = ", ".join(_core.simd_levels())
    yield Finding("SIMD", True, f"{_core.simd_level()} of {levels}; GPUCOMM_SIMD forces one")


def _transports(name: str) -> Iterator[Finding]:
    modules = {"c10d": "torch", "mpi": "mpi4py"}
    for entry, about in sorted(_core.transports().items()):
        on = entry not in modules or _find(modules[entry]) is not None
        yield Finding(f"{name} {entry}", on, about["summary"] + ("" if on else f"; needs {about['needs']}"))


def _algorithms(name: str) -> Iterator[Finding]:
    for entry, about in sorted(_core.algorithms().items()):
        yield Finding(f"{name} {entry}", True, str(about["summary"]))


def _shared_memory(name: str) -> Iterator[Finding]:
    try:
        os.close(os.memfd_create("gpucomm-doctor"))
    except (AttributeError, OSError) as error:
        yield Finding(name, False, f"memfd_create does not work, so processes cannot be connected: {error}")
    else:
        yield Finding(name, True, "memfd_create works; nothing is put into /dev/shm")


def _shared_heap(name: str) -> Iterator[Finding]:
    file = _core.shm_create(2)
    try:
        each = os.fstat(file).st_size / 2 / 2**30
    finally:
        os.close(file)
    text = f"gpucomm.empty has up to {each:.3g} GiB for each of two ranks; taken as arrays are made"
    none = "GPUCOMM_HEAP_MIB=0, or no such memory could be mapped: gpucomm.empty has none"
    yield Finding(name, each > 0.02, text if each > 0.02 else none)


def _cross_memory(name: str) -> Iterator[Finding]:
    if os.environ.get("GPUCOMM_CMA") == "0":
        yield Finding(name, False, "switched off by GPUCOMM_CMA=0: long private arrays are staged")
        return
    _core.let_siblings_read()
    secret = ctypes.create_string_buffer(secrets.token_bytes(16), 16)
    code = (
        f"from gpucomm import _core; print(_core.read_process({os.getpid()}, {ctypes.addressof(secret)}, 16))"
    )
    child = [sys.executable, "-c", code]
    found = subprocess.run(child, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    if found == repr(secret.raw):
        read, copy, quick = _core.small_page_speed()
        which = "" if quick else ", those on huge pages,"
        used = f"all_reduce, broadcast and the like read long private arrays{which} where they lie"
        speed = f"small pages are read at {read / 1e9:.3g} GB/s and copied at {copy / 1e9:.3g} GB/s"
        yield Finding(name, True, f"allowed: {used}; {speed}")
    else:
        yield Finding(name, False, f"refused, so long private arrays are staged: {found or 'no answer'}")


def _last_level_cache(name: str) -> Iterator[Finding]:
    mib = _core.last_level_cache() / 2**20
    told = mib < 2**40
    size = f"{mib:.4g} MiB" if told else "the kernel does not tell"
    yield Finding(name, told, f"{size}; GPUCOMM_LLC_MIB overrides; arrays that outgrow it are copied past it")


def _emulated_links(name: str) -> Iterator[Finding]:
    limit = memory_bandwidth() / 4
    yield Finding(
        name, True, f"up to {8 * limit / 1e9:.3g} Gbit/s over all ranks, a quarter of the memory's bandwidth"
    )


def _figures(name: str) -> Iterator[Finding]:
    where = cache.folder()
    if where is None:
        yield Finding(name, False, "GPUCOMM_CACHE=off: every communicator measures its links anew")
        return
    files = cache.kept(where)
    if not files:
        yield Finding(name, True, f"none in {where} yet; measured at the first choice of an algorithm")
        return
    age_h = (time.time() - files[0].stat().st_mtime) / 3600
    newest = f"the last, {files[0].name}, {age_h:.1f} hours ago"
    yield Finding(name, True, f"{len(files)} in {where}, {newest}; used for 24 hours, then measured again")


def _dev_shm(name: str) -> Iterator[Finding]:
    status = os.statvfs("/dev/shm")
    size, free = (blocks * status.f_frsize >> 20 for blocks in (status.f_blocks, status.f_bavail))
    yield Finding(name, True, f"{size} MiB, {free} MiB free; gpucomm does not use it")


def _huge_pages(name: str) -> Iterator[Finding]:
    folder = Path("/sys/kernel/mm/transparent_hugepage")
    shared, private = (
        (folder / file).read_text().partition("[")[2].partition("]")[0]
        for file in ("shmem_enabled", "enabled")
    )
    on = shared not in ("never", "deny")
    effect = "gpucomm asks for them" if on else "arrays of gpucomm.empty lie on pages of 4 KiB"
    yield Finding(name, on, f"shared memory: {shared} ({effect}); private memory: {private}")


def _limits(name: str) -> Iterator[Finding]:
    for what, number, unit in (
        ("locked memory", resource.RLIMIT_MEMLOCK, "bytes"),
        ("open files", resource.RLIMIT_NOFILE, "files"),
    ):
        soft, hard = (
            "no limit" if n == resource.RLIM_INFINITY else str(n) for n in resource.getrlimit(number)
        )
        yield Finding(f"{name} {what}", True, f"{soft} {unit} (hard limit: {hard})")


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


def _ask(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def _last_line(said: str, code: int) -> str:
    """Of what a process has said; where it said nothing, how it ended."""
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return (said.strip().splitlines() or [f"the process that asked said nothing: {how}"])[-1]


def _nccl(name: str) -> Iterator[Finding]:
    done = _ask(_ABOUT_NCCL)
    what = _last_line(done.stdout or done.stderr, done.returncode)
    use = "" if done.returncode else "; carries arrays on GPUs between nodes"
    yield Finding(name, done.returncode == 0, what + use)


def _chosen() -> str:
    asked = _ask(_ABOUT_SHARING)
    unshared = _last_line(asked.stderr, asked.returncode) if asked.returncode else asked.stdout.strip()
    inside = f"through host memory, as {unshared}" if unshared else "through memory that its processes share"
    lacks = _ask(_ABOUT_NCCL).returncode
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


# MPI is loaded but not initialised, and not in this process.
_ABOUT_MPI = """
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
print(mpi4py.__version__, MPI.Get_library_version().strip().split(chr(10))[0].split(",")[0], sep=chr(10))
print(mpi4py.rc.thread_level)
"""


def _mpi(name: str) -> Iterator[Finding]:
    if _find("mpi4py") is None:
        yield Finding(
            name, False, "mpi4py is not installed: pip install 'gpucomm[mpi]', with an MPI on the machine"
        )
        return
    done = subprocess.run([sys.executable, "-c", _ABOUT_MPI], capture_output=True, text=True, timeout=20)
    if done.returncode:
        why = _last_line(done.stderr, done.returncode)
        yield Finding(name, False, f"mpi4py does not load an MPI: {why}")
        return
    version, library, level = done.stdout.splitlines()
    on = level == "multiple"
    needed = "" if on else ", but gpucomm needs multiple"
    what = f"mpi4py {version} with {' '.join(library.split())}, asks for thread level {level}{needed}"
    yield Finding(name, on, f"{what}; connects nodes under mpirun and srun")


def _torch_distributed(name: str) -> Iterator[Finding]:
    for finding in _package("torch"):
        use = "; its Gloo connects nodes under torchrun" if finding.on else ""
        yield Finding(name, finding.on, finding.why + use)


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
    "torch": ("torch", "pip install 'gpucomm[torch]'; gpucomm.optim needs it"),
    "cloudpickle": ("cloudpickle", "pip install 'gpucomm[local]'; gpucomm.local needs it"),
}

_LOOKS: dict[str, Callable[[str], Iterator[Finding]]] = {
    "basics": _basics,
    "transport": _transports,
    "algorithm": _algorithms,
    "shared memory": _shared_memory,
    "shared heap": _shared_heap,
    "cross-memory attach": _cross_memory,
    "last-level cache": _last_level_cache,
    "emulated links": _emulated_links,
    "measured links": _figures,
    "/dev/shm": _dev_shm,
    "huge pages": _huge_pages,
    "limit:": _limits,
    "MPI": _mpi,
    "torch.distributed": _torch_distributed,
    "NCCL": _nccl,
    "device arrays": _device_transport,
    "CUDA": _cuda,
    "torch": _package,
    "cloudpickle": _package,
}
