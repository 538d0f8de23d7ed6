"""The libraries that are timed beside gpucomm: one file each, `peer_<name>.py`, found by its name.

Such a file has `check(dtype)`, which runs in the command and raises UnavailableError or InvalidArgumentError
where the library cannot take part, and `join(rank, ranks, folder, timeout)`, which runs once in every rank
and returns a Library. It must import the library itself inside these functions only. One with `ways()` is
timed in each of these, and one with MEMORY on arrays in that kind of memory. A peer that needs an environment
of its own has VARIANTS in place of join: see mpi.py.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpucomm.errors import InvalidArgumentError

__all__ = ["Call", "Library", "aligned_zeros", "as_given", "known_peers", "peer", "storage_of", "ways"]

Array = npt.NDArray[Any]
Call = Callable[[], object]


class Library(Protocol):
    """One library as a rank uses it."""

    transport: str

    def bind(self, collective: str, algorithm: str, buffer: Array, part: Array) -> Call:
        """A call of the library's public interface on these arrays, in place.

        Args:
            collective: a name of `metrics.COLLECTIVES`.
            algorithm: one of its `ways`.
            buffer: the whole buffer.
            part: this rank's part of it, a view (all_gather's argument, reduce_scatter's result).

        Returns:
            A function that makes the call, with root 0 and op "sum", and returns when this rank is done.
        """

    def close(self) -> None:
        """Release what `join` took; every rank does so at the same point."""


def known_peers() -> list[str]:
    """The names of the peers that this package has a file for, installed or not."""
    package = str(Path(__file__).parent)
    found = (module.name for module in pkgutil.iter_modules([package]))
    return sorted(name.removeprefix("peer_") for name in found if name.startswith("peer_"))


def peer(name: str) -> ModuleType:
    """The file of a peer.

    Raises:
        InvalidArgumentError: there is none of that name.
    """
    if name not in known_peers():
        raise InvalidArgumentError(
            f"unknown peer {name!r} to measure against; known: {', '.join(known_peers())}"
        )
    return importlib.import_module(f"gpucomm.bench.peer_{name}")


def ways(name: str) -> list[str]:
    """The algorithms of a peer that `Library.bind` knows."""
    return list(getattr(peer(name), "ways", lambda: ["default"])())


def storage_of(dtype: str) -> np.dtype[Any]:
    """What NumPy arrays hold the bits of this dtype: bfloat16, which it lacks, is in uint16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def as_given(array: Array) -> Any:
    """The array as a library gets it: where it holds bfloat16, a torch tensor on its memory."""
    if array.dtype != np.uint16:
        return array
    import torch

    return torch.from_numpy(array).view(torch.bfloat16)


def aligned_zeros(count: int, dtype: str, huge_pages: bool = False) -> Array:
    """A touched array of zeros on a 64-byte border, as torch would give it; or on huge pages.

    The kernel may have none to give.
    """
    stored = storage_of(dtype)
    border = 2 << 20 if huge_pages else 64
    nbytes = count * stored.itemsize
    if huge_pages:
        memory = mmap(-1, (nbytes // border + 2) * border, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        memory.madvise(MADV_HUGEPAGE)
        raw = np.frombuffer(memory, np.uint8)
    else:
        raw = np.empty(nbytes + border, np.uint8)
    start = -raw.ctypes.data % border
    array = raw[start : start + count * stored.itemsize].view(stored)
    array.fill(0)
    return array
