"""What a collective must give: NumPy oracles, and inputs that make exact comparison possible."""

from __future__ import annotations

import numpy as np

DTYPES = ["float64", "float32", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"]
OPS = ["sum", "mean", "min", "max", "prod", "band", "bor", "bxor"]
PERIOD = 960  # of the values
BITWISE = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


def defined(op: str, dtype: str) -> bool:
    """Whether the op can be applied to arrays of that dtype."""
    return not (op in BITWISE and "float" in dtype) and (op, dtype) != ("mean", "bool")


def values(dtype: str, count: int, rank: int, op: str = "sum") -> np.ndarray:
    """Small whole numbers that differ by rank and place: every fold of them is exact in every dtype."""
    i = np.arange(PERIOD)
    if dtype == "bool":
        once = (i + rank) % 3 == 0
    elif op == "prod":
        once = np.where((i + rank) % 4 == 0, 2, 1).astype(dtype)
    else:
        once = ((i * 7 + rank * 3) % 5).astype(dtype)
    out = np.empty((-(-count // PERIOD), PERIOD), dtype)
    out[:] = once
    return out.reshape(-1)[:count]


def fold(op: str, arrays: list[np.ndarray]) -> np.ndarray:
    """The exact result of folding the ranks' arrays."""
    dtype = arrays[0].dtype
    if op in BITWISE:
        return BITWISE[op].reduce(arrays)
    if dtype.kind == "b":
        return np.logical_or.reduce(arrays) if op in ("sum", "max") else np.logical_and.reduce(arrays)
    stack = np.stack(arrays).astype(np.float64 if dtype.kind == "f" else np.int64)
    if op == "mean":
        total = stack.sum(axis=0)
        mean = total / len(arrays) if dtype.kind == "f" else np.trunc(total / len(arrays))
        return mean.astype(dtype)
    functions = {"sum": np.sum, "min": np.min, "max": np.max, "prod": np.prod}
    return functions[op](stack, axis=0).astype(dtype)


def close(result: np.ndarray, expected: np.ndarray, op: str) -> bool:
    """Equal; only a mean of floats may differ, by its one rounding."""
    if op == "mean" and result.dtype.kind == "f":
        return bool(np.allclose(result, expected, rtol=2 * np.finfo(result.dtype).eps, atol=0))
    return bool(np.array_equal(result, expected))
