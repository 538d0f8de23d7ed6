"""The sums of squares of a GPU, compiled for the host: true within rounding, and the same in any order."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
from codec_samples import Array, storage, widen
from compiled import shared_object
from cuda_codec_programs import DTYPES, ROOT, guards_hold, placed
from norms import BLOCKS, PART_ROWS, lost, norm_values, squares, within

from gpucomm import _core

PARTS = _core.norm_parts
HALVES = ["float16", "bfloat16"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = ROOT / "tests" / "cuda_programs" / "norms.cpp"
    target = shared_object(tmp_path_factory, "norms.so", [source], ["-O2", f"-I{ROOT / 'src' / 'cpp'}"])
    loaded = ctypes.CDLL(str(target)).cuda_squares
    loaded.restype = ctypes.c_ulonglong
    return loaded


def parts_of(
    library: Any,
    dtype: str,
    x: Array,
    blocks: int,
    became: Array | None = None,
    times: int = 1,
    seed: int = 0,
    parts: Array | None = None,
) -> Array:
    parts = np.zeros((PARTS, PART_ROWS)) if parts is None else parts
    ends = [ctypes.c_void_p(y.ctypes.data if y is not None else None) for y in (x, became, parts)]
    size = ctypes.c_size_t(len(x))
    wrong = library(DTYPES.index(dtype), ends[0], size, blocks, ends[1], times, ends[2], seed)
    assert wrong == 0, "accesses outside the memory, or not aligned"
    assert guards_hold(x)
    return parts


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize("count", [0, 1, 3, 127, 1023, 1024, 1025, 5000, 70_003])
def test_sums_within_rounding(library: Any, count: int, dtype: str, shift: int) -> None:
    x = placed(norm_values(dtype, count, 1), shift)
    wide = widen(dtype, x)
    for blocks in (sum(BLOCKS), 1 + 4 + 128, 1):
        parts = parts_of(library, dtype, x, blocks)
        found = parts.sum(0)
        for block, sum_of in zip(BLOCKS, found, strict=False):
            assert within(sum_of, squares(wide, block) if blocks & block else 0, count + PARTS), block
        assert parts[:, -1].max() == np.abs(wide).max(initial=0)
        assert parts_of(library, dtype, x, blocks, seed=7).tobytes() == parts.tobytes()


def test_more_runs_than_parts(library: Any) -> None:
    count = 2 * PARTS * 1024 + 3 * 1024 + 5
    x = placed(norm_values("float32", count, 2), 0)
    parts = parts_of(library, "float32", x, 1 + 64 + 1024)
    for block in (1, 64, 1024):
        assert within(parts[:, BLOCKS.index(block)].sum(), squares(widen("float32", x), block), count)
    assert (parts[:, 0] > 0).all()


@pytest.mark.parametrize("shifts", [(0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_what_is_lost(library: Any, dtype: str, shifts: tuple[int, int]) -> None:
    for count, times in itertools.product([0, 5, 1024, 9000], [1, 3]):
        x = placed(norm_values(dtype, count, 3), shifts[0])
        became = placed(norm_values(dtype, count, 4), shifts[1])
        if count > 8:
            x[7], became[8] = (0x7F80, 0) if dtype == "bfloat16" else (np.inf, 0)
        parts = parts_of(library, dtype, x, 1, became, times)
        exact = lost(widen(dtype, x), widen(dtype, became), times)
        assert within(parts[:, 0].sum(), exact, count + PARTS)
        assert not parts[:, 1:].any()
        assert parts_of(library, dtype, x, 1, became, times, seed=5).tobytes() == parts.tobytes()


def test_they_are_added_to_what_is_there(library: Any) -> None:
    x = placed(np.ones(5000, np.float32), 0)
    parts = parts_of(library, "float32", x, 1)
    parts_of(library, "float32", placed(np.full(100, 2, np.float32), 0), 1, parts=parts)
    assert parts[:, 0].sum() == 5400
    assert parts[:, -1].max() == 2


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_what_is_no_number_shows(library: Any, dtype: str) -> None:
    nan, inf = (0x7FC0, 0x7F80) if dtype == "bfloat16" else (np.nan, np.inf)
    for value, expected in [(nan, np.nan), (inf, np.inf)]:
        x = placed(np.ones(3000, storage(dtype)), 0)
        x[2990] = value  # in a run that is not full
        parts = parts_of(library, dtype, x, sum(BLOCKS))
        assert np.array_equal(parts[:, :-1].sum(0), np.full(len(BLOCKS), expected), equal_nan=True)
        assert np.array_equal(parts[:, -1].max(), expected, equal_nan=True)


@pytest.mark.parametrize("values", [(np.nan, 1), (1, np.nan), (np.nan, np.inf), (np.nan, np.nan)])
def test_what_is_no_number_stays(library: Any, values: tuple[float, float]) -> None:
    parts = None
    for value in values:
        parts = parts_of(library, "float32", placed(np.full(3, value, np.float32), 0), 1, parts=parts)
    assert parts is not None and np.isnan(parts[0, -1])
