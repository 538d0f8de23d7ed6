"""Whether GPUs can be used here, and why not. Importing it calls nothing of CUDA."""

from __future__ import annotations

import functools
import importlib.util
import threading

from gpucomm import _core
from gpucomm.errors import UnavailableError

__all__ = ["device", "is_available", "is_built", "why_not"]

_opening = threading.Lock()


def is_built() -> bool:
    """Whether this build of gpucomm has the CUDA extension."""
    return importlib.util.find_spec("gpucomm._cuda") is not None


def is_available() -> bool:
    """Whether :func:`device` gives devices; where it does not, :func:`why_not` tells why."""
    return not why_not()


@functools.cache
def why_not() -> str:
    """Why GPUs cannot be used, asked once; empty where they can."""
    if not is_built():
        return "this build of gpucomm has no CUDA extension: no nvcc was found, or GPUCOMM_CUDA was OFF"
    try:
        from gpucomm import _cuda
    except ImportError as error:
        return f"gpucomm._cuda is there, but does not load: {error}"
    if _cuda.version != _core.version:
        return f"gpucomm._cuda is of version {_cuda.version}, gpucomm._core of {_core.version}: install anew"
    return _cuda.unavailable()


def device(index: int = 0) -> _core.Device:
    """Opens a GPU, once.

    Args:
        index: which of those that this process sees, counted from 0.

    Raises:
        UnavailableError: CUDA cannot be used here, or there is no such GPU.
    """
    with _opening:  # what is cached would else be made by each thread that comes while it is made
        return _opened(index)


@functools.cache
def _opened(index: int) -> _core.Device:
    if why := why_not():
        raise UnavailableError(f"cuda:{index} cannot be used: {why}")
    from gpucomm import _cuda

    return _core.add_gpu(index, _cuda.open_device(index))
