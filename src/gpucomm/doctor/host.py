"""What `gpucomm doctor` says of the host: cores, memory, limits."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gpucomm
from gpucomm import _core
from gpucomm.doctor.finding import Finding, ask
from gpucomm.launch.cores import affinity, cgroup_quota, usable_cores
from gpucomm.links import memory_bandwidth
from gpucomm.probe import cache

__all__ = ["LOOKS"]


def _gpucomm(name: str) -> Iterator[Finding]:
    yield Finding(name, True, f"{_core.version} in {Path(gpucomm.__file__).parent}")


def _python(name: str) -> Iterator[Finding]:
    yield Finding(name, True, f"{platform.python_version()} ({sys.executable}) on {platform.machine()}")


def _cores(name: str) -> Iterator[Finding]:
    quota = cgroup_quota()
    limit = "no quota" if quota is None else f"quota {quota:g}"
    seen = f"{os.cpu_count()} in the machine, affinity {len(affinity())}, {limit}"
    yield Finding(name, True, f"{usable_cores()} usable ({seen})")


def _simd(name: str) -> Iterator[Finding]:
    levels = ", ".join(_core.simd_levels())
    yield Finding(name, True, f"{_core.simd_level()} of {levels}; GPUCOMM_SIMD forces one")


def _shared_memory(name: str) -> Iterator[Finding]:
    try:
        os.close(os.memfd_create("gpucomm-doctor"))
    except (AttributeError, OSError) as error:
        yield Finding(name, False, f"memfd_create does not work, so processes cannot be connected: {error}")
    else:
        yield Finding(name, True, "memfd_create works; nothing is put into /dev/shm")


def _shared_heap(name: str) -> Iterator[Finding]:
    each = (_memory_of_two() - _memory_of_two(heap_bytes=0)) / 2
    size = f"{each / 2**30:.3g} GiB" if each >= 2**30 else f"{each / 2**20:.3g} MiB"
    text = f"gpucomm.empty has up to {size} for each of two ranks; taken as arrays are made"
    none = "GPUCOMM_HEAP_MIB is less than 2, or no such memory could be mapped: gpucomm.empty has none"
    yield Finding(name, each > 0, text if each > 0 else none)


def _memory_of_two(heap_bytes: int | None = None) -> int:
    """The bytes that two ranks share; None: with the heap that they would have."""
    file = _core.shm_create(2, heap_bytes)
    try:
        return os.fstat(file).st_size
    finally:
        os.close(file)


def _cross_memory(name: str) -> Iterator[Finding]:
    if os.environ.get("GPUCOMM_CMA") == "0":
        yield Finding(name, False, "switched off by GPUCOMM_CMA=0: long private arrays are staged")
        return
    _core.let_siblings_read()
    secret = ctypes.create_string_buffer(secrets.token_bytes(16), 16)
    code = (
        f"from gpucomm import _core; print(_core.read_process({os.getpid()}, {ctypes.addressof(secret)}, 16))"
    )
    found = ask(code).stdout.strip()
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
        off = os.environ.get("GPUCOMM_CACHE") == "off"
        why = "GPUCOMM_CACHE=off" if off else "there is no home folder, and GPUCOMM_CACHE names none"
        yield Finding(name, False, f"{why}: every communicator measures its links anew")
        return
    if not cache.is_writable(where):
        why = (
            f"{where} cannot be written, so what is measured is not kept; GPUCOMM_CACHE names another folder"
        )
        yield Finding(name, False, why)
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


LOOKS = {
    "gpucomm": _gpucomm,
    "Python": _python,
    "cores": _cores,
    "SIMD": _simd,
    "shared memory": _shared_memory,
    "shared heap": _shared_heap,
    "cross-memory attach": _cross_memory,
    "last-level cache": _last_level_cache,
    "emulated links": _emulated_links,
    "measured links": _figures,
    "/dev/shm": _dev_shm,
    "huge pages": _huge_pages,
    "limit:": _limits,
}
