"""`gpucomm.empty`: arrays in memory that all ranks of a node map, so that collectives need not copy them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucomm import _core
from gpucomm.errors import InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from gpucomm.comm import Communicator

__all__ = ["empty"]

# torch.frombuffer makes broken tensors of the others: quantised, or elements that are part of a byte.
_WHOLE_BYTES = re.compile(r"torch\.(bool|(b?float|complex|u?int|bits)(8|16|32|64|128)(_[a-z0-9]+)?)")


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
        InvalidArgumentError: a bad shape, dtype, library or communicator, or one that this rank is not in.
        UnavailableError: the heap or the machine's memory is full, or the communicator has no heap;
            `comm.heap` says how large it is.
    """
    if comm is None:
        from gpucomm.launch import init

        comm = init()
    getattr(comm, "heap", None)  # a NonMember says why it has none
    if not isinstance(comm, _core.Communicator):
        raise InvalidArgumentError(f"comm must be a communicator, or None for that of init(), got {comm!r}")
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


def _block(comm: Communicator, shape: tuple[int, ...], element_bytes: int) -> Any:
    """Of the heap; of this process where it is alone on its node, so that programs run on any nodes.

    None where there are no elements.
    """
    size_bytes = math.prod(shape) * element_bytes
    if size_bytes >= 1 << 63:
        raise InvalidArgumentError(f"an array of {size_bytes} bytes fits no memory, take a smaller shape")
    if not size_bytes:
        if math.prod(n for n in shape if n) * element_bytes >= 1 << 63:
            raise InvalidArgumentError(f"shape must be of less than 2^63 bytes but for its 0, got {shape}")
        return None
    alone = comm._fabric is not None and comm.nodes.count(comm.nodes[comm.rank]) == 1
    if not alone:
        return comm.heap_block(size_bytes)
    try:
        return np.empty(size_bytes, np.uint8)
    except MemoryError:
        raise UnavailableError(f"this process has no memory for an array of {size_bytes} bytes") from None


def _numpy(shape: tuple[int, ...], dtype: Any, comm: Communicator) -> Any:
    kind = _numpy_dtype(dtype)
    if kind is None:
        raise InvalidArgumentError(f"NumPy has no dtype {_name(dtype)!r}: try like='torch'")
    if kind.hasobject:
        raise InvalidArgumentError("an array of objects cannot lie in shared memory")
    if kind.subdtype:
        raise InvalidArgumentError(f"dtype {_name(dtype)!r} has a shape of its own: add it to shape")
    if not kind.itemsize:
        raise InvalidArgumentError(f"dtype {_name(dtype)!r} must say how long an element is: it has 0 bytes")
    block = _block(comm, shape, kind.itemsize)
    try:
        return np.empty(shape, kind) if block is None else np.ndarray(shape, kind, block)
    except ValueError:  # the bytes are counted
        raise InvalidArgumentError(f"NumPy takes no shape of {len(shape)} dimensions") from None


def _torch(shape: tuple[int, ...], dtype: Any, comm: Communicator) -> Any:
    import torch

    kind = getattr(torch, _name(dtype), None)
    if not isinstance(kind, torch.dtype):
        raise InvalidArgumentError(f"torch has no dtype {_name(dtype)!r}")
    if not _WHOLE_BYTES.fullmatch(str(kind)):
        raise InvalidArgumentError(
            f"{kind} cannot lie in shared memory: a dtype must be of whole bytes and not quantised"
        )
    block = _block(comm, shape, kind.itemsize)
    if block is None:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(block, dtype=kind).reshape(shape)


def _name(dtype: Any) -> str:
    """The name of a dtype that is given by name, as a torch one or as a NumPy one."""
    kind = _numpy_dtype(dtype) if isinstance(dtype, type) else None
    return str(dtype).removeprefix("torch.") if kind is None else kind.name


def _numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    """NumPy's of that name or kind; None: it has none, as of None itself, which NumPy takes for float64."""
    named = str(dtype).startswith("torch.")
    try:
        return None if dtype is None else np.dtype(_name(dtype) if named else dtype)
    except (TypeError, ValueError, SyntaxError):
        return None
