"""Making arrays of the caller's library."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from gpucomm.errors import UnsupportedTypeError

__all__ = ["empty_like"]

_JAX = {"jax", "jaxlib"}
_HOST = 1  # DLPack's device type


def empty_like(x: Any, shape: tuple[int, ...], stream: int | None = None) -> Any:
    """A new array of x's library, dtype and device.

    Args:
        x: the array to resemble.
        shape: the new array's.
        stream: the handle of the CUDA stream that is to use it; None: the current one of x's library.

    Returns:
        An uninitialised array; a NumPy one where x's library has mutable arrays of no kind (JAX).

    Raises:
        UnsupportedTypeError: x is such an array on a GPU, or has no dtype that its library makes arrays of.
    """
    if hasattr(x, "new_empty"):  # torch
        with _on(stream, x):
            return x.new_empty(shape)
    library = _namespace(x)
    try:
        with _by_cupy(stream, x, library):
            return library.empty(shape, dtype=x.dtype)
    except (AttributeError, TypeError) as error:  # all that DLPack asks for is there, and no more need be
        raise UnsupportedTypeError(
            f"no new array can be made like a {type(x).__name__} ({error}): pass out= for the result"
        ) from None


def _namespace(x: Any) -> Any:
    namespace = x.__array_namespace__() if hasattr(x, "__array_namespace__") else None
    library = _library(type(x).__module__)
    if _JAX & {library, _library(getattr(namespace, "__name__", None))}:  # or what passes its arrays on
        if x.__dlpack_device__()[0] != _HOST:
            raise UnsupportedTypeError(
                "the result for an array of JAX on a GPU needs out=, an array of a library whose arrays can "
                "be written (torch, CuPy): JAX's cannot"
            )
        return np
    if namespace is not None:
        return namespace
    module = sys.modules.get(library)  # CuPy
    return module if hasattr(module, "empty") else np


def _library(module: object) -> str:
    """Of a module's name, which anybody may have set to something else."""
    return module.partition(".")[0] if isinstance(module, str) else ""


@contextlib.contextmanager
def _by_cupy(stream: int | None, x: Any, library: Any) -> Iterator[None]:
    """The same of CuPy, which makes arrays on its current device, whatever they resemble."""
    cupy = sys.modules.get("cupy")
    if cupy is None or library is not cupy:
        yield
        return
    with x.device, contextlib.nullcontext() if stream is None else cupy.cuda.ExternalStream(stream):
        yield


def _on(stream: int | None, x: Any) -> AbstractContextManager[Any]:
    """What torch allocates on a stream goes, once it is given back, to work that comes behind that one."""
    if stream is None or not getattr(x, "is_cuda", False):
        return contextlib.nullcontext()
    cuda = sys.modules["torch"].cuda  # x is torch's
    default = stream <= 1  # two handles of CUDA's default stream
    own = cuda.default_stream(x.device) if default else cuda.ExternalStream(stream, device=x.device)
    on: AbstractContextManager[Any] = cuda.stream(own)
    return on
