"""Making arrays of the caller's library."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["empty_like"]


def empty_like(x: Any, shape: tuple[int, ...]) -> Any:
    """A new array of x's library, dtype and device.

    Args:
        x: the array to resemble.
        shape: the new array's.

    Returns:
        An uninitialised array; a NumPy one where x's library has mutable arrays of no kind (JAX).
    """
    if hasattr(x, "new_empty"):  # torch
        return x.new_empty(shape)
    namespace = x.__array_namespace__() if hasattr(x, "__array_namespace__") else np
    if type(x).__module__.startswith("jax"):
        namespace = np
    return namespace.empty(shape, dtype=x.dtype)
