"""Codecs: arrays to fewer bytes and back. Collectives use them; here they can be tried alone."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpucomm import _core
from gpucomm.arrays import empty_like
from gpucomm.errors import InvalidArgumentError, UnsupportedTypeError

__all__ = ["agreed", "decode", "encode", "names"]


def names() -> dict[str, dict[str, Any]]:
    """Returns every codec by name.

    With its summary, how its spec is written (usage), examples of specs, and those among which an all_reduce
    with `max_rel_err` chooses (bounded).
    """
    return _core.codecs()


def agreed(codec: str, max_abs: float, world: int) -> str:
    """Makes a spec concrete whose codec must know the largest magnitude first ("fixed:EPS").

    Args:
        codec: the spec.
        max_abs: the largest magnitude of all elements to be coded, on all ranks.
        world: how many coded messages may be added.

    Returns:
        A spec for `encode` and `decode`; the same where the codec needs to know nothing.

    Raises:
        InvalidArgumentError: the codec is unknown, an argument is no number of its kind, or no width holds
            such sums.
    """
    made = _made(codec)
    if not isinstance(max_abs, numbers.Real):
        raise InvalidArgumentError(f"max_abs must be a number, got {max_abs!r}")
    if isinstance(world, bool) or not isinstance(world, (int, np.integer)) or not 1 <= world < 2**31:
        raise InvalidArgumentError(f"world must be a whole number of at least 1, got {world!r}")
    return made.agreed(max_abs, world).spec if made.traits["needs_maximum"] else made.spec


def encode(x: Any, codec: str) -> NDArray[np.uint8]:
    """Codes an array.

    Args:
        x: a contiguous array in host memory that speaks DLPack, of any shape and of a dtype that the codec
            takes: float32, float16 or bfloat16; "mpc" float32 or float64; "identity" any.
        codec: a spec such as "int8" or "zfp:8"; `names()` lists them.

    Returns:
        The coded bytes, shape [size_bytes]. They hold neither shape nor dtype.

    Raises:
        InvalidArgumentError: the codec is unknown, or cannot carry an element (which the text names).
        UnsupportedTypeError: it does not take the dtype, or x is no array.
    """
    return _made(codec).encode(x)


def decode(coded: NDArray[np.uint8], like: Any, codec: str) -> Any:
    """Decodes what `encode` gave.

    Args:
        coded: the bytes.
        like: an array of the shape, dtype and library of the result; its elements do not matter.
        codec: the spec that they were coded with.

    Returns:
        A new array like `like`.

    Raises:
        InvalidArgumentError: the codec is unknown, or the bytes cannot come from it and that shape.
        UnsupportedTypeError: the codec does not take the dtype, or `like` is no array.
    """
    made = _made(codec)
    if not hasattr(like, "shape") or not hasattr(like, "dtype"):
        raise UnsupportedTypeError(f"like must be an array, got {type(like).__name__}")
    out = empty_like(like, like.shape)
    made.decode(coded, out)
    return out


def _made(codec: str) -> _core.Codec:
    if not isinstance(codec, str):
        raise InvalidArgumentError(f'codec must be a spec such as "int8", got {_core.shown(codec)}')
    return _core.Codec(codec.encode(errors="backslashreplace").decode())  # any str may be asked for
