"""What the node's memory allows: the same collectives as plain loops (src/cpp/limit), no library.

Its arrays are private ones on huge pages, as far as the kernel has any. "staged" passes them through shared
slots, "attach" reads and writes them where they lie.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from gpucomm import _core
from gpucomm.bench.peers import Array, Call
from gpucomm.errors import CollectiveTimeoutError, InvalidArgumentError

__all__ = ["MEMORY", "check", "join", "ways"]

MEMORY = "huge_pages"


def check(dtype: str) -> None:
    """Whether there are such loops.

    Raises:
        InvalidArgumentError: for this dtype there are none.
    """
    if dtype != "float32":
        raise InvalidArgumentError(f"limit takes float32 only, got {dtype}")


def ways() -> list[str]:
    """Where the kernel lets no process read another's memory, there is one."""
    read, *_ = _core.small_page_speed()
    return ["staged", "attach"] if read else ["staged"]


def join(rank: int, ranks: int, folder: str, timeout: float) -> Limit:
    """Meet the others in memory that rank 0 makes; its name, in `folder`, leads through /proc."""
    name, size = Path(folder) / "limit", _core.Limit.region_bytes(ranks)
    if rank == 0:
        descriptor = os.memfd_create("gpucomm-limit")
        os.ftruncate(descriptor, size)
        fresh = name.with_suffix(".new")
        fresh.write_text(f"/proc/{os.getpid()}/fd/{descriptor}")
        fresh.rename(name)
    else:
        end = time.monotonic() + timeout
        while not name.exists():
            if time.monotonic() > end:
                raise CollectiveTimeoutError(f"rank {rank} waited {timeout} s for the memory of rank 0")
            time.sleep(0.001)
        descriptor = os.open(name.read_text(), os.O_RDWR)
    region = mmap.mmap(descriptor, size)
    return Limit(_core.Limit(region, rank, ranks, timeout), descriptor)


class Limit:
    """The loops of this rank."""

    transport = "shm"

    def __init__(self, core: _core.Limit, descriptor: int) -> None:
        self._core, self._descriptor = core, descriptor

    def bind(self, collective: str, algorithm: str, buffer: Array, part: Array) -> Call:
        """A call of the loop on the whole buffer."""
        return self._core.call(collective, algorithm, buffer)

    def close(self) -> None:
        """The memory goes with the process."""
        os.close(self._descriptor)
