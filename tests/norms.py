"""Sums of squares as norms are made of, in extended precision: what devices are held to, within rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from codec_samples import Array, narrow

__all__ = ["BLOCKS", "PART_ROWS", "lost", "norm_values", "squares", "within"]

BLOCKS = [1 << size for size in range(11)]
PART_ROWS = len(BLOCKS) + 1  # of float64: the sums, and the largest magnitude


def norm_values(dtype: str, count: int, seed: int) -> Array:
    """Magnitudes of many sizes, of both signs."""
    rng = np.random.default_rng([seed, count])
    return narrow(dtype, rng.standard_normal(count) * np.exp(2 * rng.standard_normal(count)))


def squares(wide: Array, block: int) -> Any:
    """Of an array that holds at every element the largest magnitude of its block."""
    count = len(wide)
    padded = np.zeros(-(-count // block) * block)
    padded[:count] = np.abs(wide)
    most = padded.reshape(-1, block).max(1, initial=0).astype(np.longdouble)
    sizes = np.minimum(block, count - block * np.arange(len(most)))
    return (most**2 * sizes).sum()


def lost(wide: Array, became: Array, times: int) -> Any:
    """Of times (became - wide), where that was finite."""
    finite = np.isfinite(wide)
    gone = became[finite].astype(np.longdouble) - wide[finite].astype(np.longdouble)
    return ((times * gone) ** 2).sum()


def within(found: float, exact: Any, count: int) -> bool:
    """Whether a sum of positive terms is off by no more than their rounding: count 2^-53 of it, and a few."""
    return bool(abs(np.longdouble(found) - exact) <= exact * (count + 8) * 2.0**-53)
