"""Known whole numbers as the ranks' arrays, and the check of what came out of a collective.

uint16 arrays hold the bits of bfloat16, which NumPy lacks.

Imports nothing of gpucomm: peers with an environment of their own run this file too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LARGEST", "fill", "holds", "numbers", "stored"]

Array = npt.NDArray[Any]
LARGEST = 3  # of a rank's numbers
_BLOCK = 1 << 16  # elements at a time, which the caches hold


def numbers(first: int, count: int, ranks: list[int]) -> Array:
    """Whole numbers from 0 to 3 that look random, so that no two places are alike; their sum over ranks.

    Small, so that the sum is exact in every dtype (int8 up to 42 ranks, of at most 64).
    """
    total = np.zeros(count, np.uint8)
    places = np.arange(count, dtype=np.uint32)
    for rank in ranks:
        mixed = places + np.uint32((first + 104729 * rank) % (1 << 32))
        mixed *= np.uint32(0x9E3779B1)
        mixed ^= mixed >> np.uint32(15)
        mixed *= np.uint32(0x85EBCA77)
        total += (mixed >> np.uint32(30)).astype(np.uint8)
    return total


def stored(values: Array, dtype: npt.DTypeLike) -> Array:
    """Numbers as they lie in an array of this dtype; of bfloat16 exact up to 256 if they are whole."""
    if dtype == np.uint16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def fill(collective: str, buffer: Array, part: Array, rank: int) -> None:
    """Gives this rank's numbers to what it contributes; the rest of the buffer is 0."""
    buffer.fill(0)
    part.fill(0)
    if collective == "scatter" and rank:
        return  # the root has all
    gathered = collective in ("all_gather", "gather")
    first, given = (rank * part.size, part) if gathered else (0, buffer)
    for start in range(0, given.size, _BLOCK):
        block = given[start : start + _BLOCK]
        block[...] = stored(numbers(first + start, block.size, [rank]), block.dtype)


def holds(
    collective: str, buffer: Array, part: Array, rank: int, ranks: int, within: float | None = None
) -> bool:
    """Whether this rank's result is the expected one: of sums bit for bit, or of means `within` so much.

    The expected result is the same on every rank, so ranks whose bits are all right are also identical.
    """
    everyone, size = list(range(ranks)), part.size
    right: Callable[[Array, int, list[int]], bool] = _equal if within is None else partial(_near, within)
    if collective in ("reduce", "gather") and rank:
        return True  # only the root has a result
    if collective in ("all_gather", "gather"):
        return all(right(buffer[r * size :][:size], r * size, [r]) for r in everyone)
    if collective == "all_to_all":
        return all(right(buffer[r * size :][:size], rank * size, [r]) for r in everyone)
    if collective in ("reduce_scatter", "scatter"):
        return right(part, rank * size, everyone if collective == "reduce_scatter" else [0])
    return right(buffer, 0, [0] if collective == "broadcast" else everyone)


def _equal(result: Array, first: int, ranks: list[int]) -> bool:
    """Whether the result, which starts at this index, has the bits of the sum of these ranks' numbers."""
    for start in range(0, result.size, _BLOCK):
        block = result[start : start + _BLOCK]
        expected = stored(numbers(first + start, block.size, ranks), block.dtype)
        if not np.array_equal(block.view(np.uint8), expected.view(np.uint8)):
            return False
    return True


def _near(within: float, result: Array, first: int, ranks: list[int]) -> bool:
    """Whether the result, which starts at this index, is so near to the mean of these ranks' numbers."""
    for start in range(0, result.size, _BLOCK):
        block = result[start : start + _BLOCK]
        if block.dtype == np.uint16:
            block = (block.astype(np.uint32) << 16).view(np.float32)
        expected = numbers(first + start, block.size, ranks) / len(ranks)
        if not (np.abs(block.astype(np.float64) - expected) <= within).all():
            return False
    return True
