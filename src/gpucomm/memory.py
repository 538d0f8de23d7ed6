"""`gpucomm.empty`: arrays in memory that all ranks of a node map, so that collectives need not copy them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucomm.errors import InvalidArgumentError

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["empty"]


def empty(
    shape: int | Sequence[int],
    dtype: Any = "float32",
    *,
    comm: Communicator | None = None,
    like: str = "numpy",
) -> Any:
    """Makes an uninitialised array in this rank's shared heap.

    It is an array like any other, of as many ranks as make one. Where it is the argument or the result of a
    collective of `comm`, the other ranks of the node read it where it lies. A communicator of other ranks, a
    group too, treats it as any array. It stays valid after the communicator has been closed, and a view of it
    keeps all of it. A rank that is alone on its node of several gets memory of its own.

    Args:
        shape: elements in each dimension.
        dtype: "float32", a NumPy dtype or a torch one; with like="torch" also "bfloat16".
        comm: whose ranks may read it; None: that of `gpucomm.init()`.
        like: "numpy" or "torch": whose array.

    Returns:
        A C-contiguous, writable numpy.ndarray or torch.Tensor.

    Raises:
        InvalidArgumentError: a bad shape, dtype or library.
        UnavailableError: the heap or the machine's memory is full, or the communicator has no heap;
            `comm.heap` says how large it is.
    """
    if comm is None:
        from gpucomm.launch import init

        comm = init()
    try:
        extents = tuple(index(n) for n in (shape if isinstance(shape, Sequence) else (shape,)))
    except TypeError:
        raise InvalidArgumentError(f"shape must be a whole number or several, got {shape!r}") from None
    if any(n < 0 for n in extents):
        raise InvalidArgumentError(f"shape must not be negative, got {extents}")
    if like == "numpy":
        return _numpy(extents, dtype, comm)
    if like == "torch":
        return _torch(extents, dtype, comm)
    raise InvalidArgumentError(f"like must be 'numpy' or 'torch', got {like!r}")


def _block(comm: Communicator, size_bytes: int) -> Any:
    """Of the heap; of this process where it is alone on its node, so that programs run on any nodes."""
    if size_bytes >= 1 << 63:
        raise InvalidArgumentError(f"an array of {size_bytes} bytes fits no memory, take a smaller shape")
    alone = comm._fabric is not None and comm.nodes.count(comm.nodes[comm.rank]) == 1
    return np.empty(size_bytes, np.uint8) if alone else comm.heap_block(size_bytes)


def _name(dtype: Any) -> str:
    """The name of a dtype that is given by name, as a torch one or as a NumPy one."""
    return str(dtype).removeprefix("torch.") if not isinstance(dtype, type) else np.dtype(dtype).name


def _numpy(shape: tuple[int, ...], dtype: Any, comm: Communicator) -> Any:
    try:
        kind = np.dtype(_name(dtype))
    except TypeError:
        raise InvalidArgumentError(f"NumPy has no dtype {_name(dtype)!r}: try like='torch'") from None
    if kind.hasobject:
        raise InvalidArgumentError("an array of objects cannot lie in shared memory")
    count = math.prod(shape)
    block = _block(comm, count * kind.itemsize)
    return np.frombuffer(block, np.uint8).view(kind).reshape(shape) if count else np.empty(shape, kind)


def _torch(shape: tuple[int, ...], dtype: Any, comm: Communicator) -> Any:
    import torch

    kind = getattr(torch, _name(dtype), None)
    if not isinstance(kind, torch.dtype):
        raise InvalidArgumentError(f"torch has no dtype {_name(dtype)!r}")
    count = math.prod(shape)
    block = _block(comm, count * kind.itemsize)
    return torch.frombuffer(block, dtype=kind).reshape(shape) if count else torch.empty(shape, dtype=kind)
