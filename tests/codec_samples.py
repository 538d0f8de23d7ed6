"""Codecs of the registry, and elements for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpucomm import _core

__all__ = [
    "CODECS",
    "FLOATS",
    "codec_for",
    "golden_decoded",
    "golden_elements",
    "golden_path",
    "narrow",
    "storage",
    "usable",
    "widen",
]

Array = NDArray[Any]

CODECS = [spec for about in _core.codecs().values() for spec in about["examples"]]
FLOATS = ["float64", "float32", "float16", "bfloat16"]
WORLD = 4  # for codecs that agree on a maximum


def usable(spec: str, max_abs: float = 8.0, world: int = WORLD) -> _core.Codec:
    """The codec, with its maximum agreed where it needs one."""
    codec = _core.Codec(spec)
    return codec.agreed(max_abs, world) if codec.traits["needs_maximum"] else codec


def codec_for(spec: str, x: Array, dtype: str) -> _core.Codec:
    """The codec that can carry x, which is finite."""
    return usable(spec, float(np.abs(widen(dtype, x)).max(initial=0.0)))


def storage(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype that carries `dtype`: raw bits for bfloat16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def widen(dtype: str, x: Array) -> Array:
    """As float64, exactly."""
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def narrow(dtype: str, x: Array) -> Array:
    """Rounds finite numbers to `dtype`, to nearest and ties to even."""
    if dtype != "bfloat16":
        return x.astype(dtype)
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def golden_elements() -> Array:
    """300 float32 of many sizes up to 4, by integer arithmetic: the same bits everywhere."""
    i = np.arange(300, dtype=np.uint64)
    whole = (i * 2654435761 % (1 << 24)).astype(np.int64) - (1 << 23)
    return np.ldexp(whole, -21 - (i // 8 % 5 * 4).astype(np.int32)).astype(np.float32)


def golden_decoded(spec: str) -> Array:
    """What the golden bytes of a spec decode to, float32: committed, but for codecs that lose nothing."""
    if not _core.Codec(spec).traits["lossy"]:
        return golden_elements()
    return np.fromfile(golden_path(spec, "decoded"), "<f4")


def golden_path(spec: str, kind: str = "codecs") -> Path:
    """Where the coded bytes of a spec lie, or, of kind "decoded", the float32 that they decode to."""
    return Path(__file__).parent / "golden" / kind / f"{spec.replace(':', '_')}.bin"
