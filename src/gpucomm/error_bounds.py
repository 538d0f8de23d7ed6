"""How far a coded sum can be from the exact one, by norms of what is summed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from gpucomm import _core

__all__ = ["ROUNDING", "Sizes", "bound_of", "folding"]

# A codec's bound is a multiple of the magnitude, the same in every octave and largest at one of these.
_ABOVE = 1.0 + 2**-23
_MANTISSAS = (1.0, _ABOVE, 1.25, 1.5, 1.75, 1.75 * _ABOVE, 1.984375 * _ABOVE, 2.0 - 2**-23)
# What storing a partial sum rounds, relative to it, and half of the least number above 0, which a product or
# quotient may be off by.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_LARGEST = {"float32": (2 - 2.0**-23) * 2.0**127, "float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127}
_LEAST = {"float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}


@dataclass(frozen=True)
class Sizes:
    """Of all ranks' x together, agreed: sums of norms, and of the largest magnitudes."""

    count: int
    dtype: str
    norm: float
    largest: float
    blocks: dict[int, float]  # as of Communicator._norms, by block size
    rounding: float  # of a quotient of two of these sums
    factor: float  # what a factor of x is rounded by at most
    folds: int  # how often what becomes a result is rounded at most


def bound_of(codec: _core.Codec, algorithm: str, world: int, sizes: Sizes) -> float:
    """What the error is at most, relative to the sum of norms.

    A coding of a partial sum loses at most `share` of the sum of its contributions' largest magnitudes, block
    by block; by Minkowski's inequality the norms of these add up. Rounded up: the norms are sums of floats.
    """
    up = 1 + sizes.rounding
    additive = codec.traits["additive"]
    found = _passes(algorithm, world, additive)
    least = up * found * codec.bound(0.0, sizes.dtype) * world * math.sqrt(sizes.count) / sizes.norm
    unit = ROUNDING[sizes.dtype]
    if codec.traits["bound"] == "absolute":
        growth = 2 * unit + unit**2  # what is rounded once decoded, and divided for a mean
        blocks = sizes.norm
    else:
        # A share holds one rounding; plans of few passes store more partial sums, and a mean is divided.
        share = max(codec.bound(m, sizes.dtype) / m for m in _MANTISSAS)
        more = 0 if additive else max(1, world + 1 - found)
        growth = math.expm1(found * math.log1p(share) + more * math.log1p(unit))  # (1 + share)^found ... - 1
        blocks = sizes.blocks[codec.traits["block"]]
    growth += sizes.factor * (1 + growth)
    if not math.isfinite(codec.bound(sizes.largest * (1 + growth) + least * sizes.norm, sizes.dtype)):
        return math.inf
    return up * growth * blocks / sizes.norm + least


def folding(sizes: Sizes) -> float:
    """What adding up, and a product or quotient, round at most, relative to the sum of norms."""
    if not sizes.folds or not sizes.norm:
        return 0.0
    least = sizes.folds * _LEAST[sizes.dtype] * math.sqrt(sizes.count) / sizes.norm
    largest = sizes.largest * (1 + sizes.rounding) * (1 + sizes.factor)
    largest *= (1 + ROUNDING[sizes.dtype]) ** sizes.folds
    if not largest <= _LARGEST[sizes.dtype]:  # NaN too
        return math.inf  # a sum, of a mean too, may leave the dtype: then nothing is promised
    return math.expm1(sizes.folds * math.log1p(ROUNDING[sizes.dtype]) + math.log1p(sizes.factor)) + least


@lru_cache
def _passes(algorithm: str, world: int, additive: bool) -> int:
    """Lossy passes on a contribution's way."""
    plans = _core.build_plans("all_reduce", algorithm, world, additive=additive)
    return int(_core.verify(plans).lossy_passes)
