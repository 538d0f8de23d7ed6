"""The arithmetic of the CUDA reductions, compiled for the host: the bits of the host's own reductions.

It is the text that the kernels are made of: who reads what, packs of 16 bytes, the fold. But a GPU converts
float16 by instructions of its own.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from codec_samples import storage
from compiled import shared_object
from numpy.typing import NDArray
from on_device import wait_for
from test_reduce import BITWISE, CASES, DTYPES, FLOATS, INTEGERS, OPS, assert_same_bits, sample

from gpucomm import _core

Array = NDArray[Any]

ROOT = Path(__file__).parent.parent
SOURCES = [1, 2, 3, 4, 5, 6, 8, 9, 64]  # every specialised number, full and partial batches, the most


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source, flags = ROOT / "tests" / "cuda_programs" / "fold.cpp", ["-O1", "-fno-strict-aliasing"]
    target = shared_object(tmp_path_factory, "fold.so", [source], [*flags, f"-I{ROOT / 'src' / 'cpp'}"])
    loaded = ctypes.CDLL(str(target))
    loaded.cuda_fold.restype = ctypes.c_size_t
    return loaded


def pointers(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def fold(
    library: ctypes.CDLL,
    case: tuple[str, str],
    sources: Sequence[Array],
    destinations: Sequence[Array],
    divisor: int = 1,
    threads: int = 7,
) -> int:
    """Returns how many elements were moved in packs."""
    dtype, op = DTYPES.index(case[0]), [*OPS, *BITWISE, "premul_sum"].index(case[1])
    ends = (pointers(sources), len(sources), pointers(destinations), len(destinations))
    return int(
        library.cuda_fold(
            dtype, op, divisor, *ends, ctypes.c_size_t(len(sources[0])), ctypes.c_size_t(threads)
        )
    )


def placed(array: Array, start: int) -> Array:
    """A copy that begins `start` elements behind a multiple of 64 bytes."""
    room = np.empty(array.nbytes + 64 + start * array.itemsize, np.uint8)
    begin = -room.ctypes.data % 64 + start * array.itemsize
    copy = room[begin : begin + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_same_bits_as_the_host(library: ctypes.CDLL, case: tuple[str, str]) -> None:
    dtype, op = case
    rng = np.random.default_rng([DTYPES.index(dtype), [*OPS, *BITWISE].index(op)])
    for count, size, start in itertools.product(SOURCES, [0, 1, 15, 1000], [0, 1, 3]):
        if count == 1 and op != "mean":  # what nothing divides is copied, by no kernel
            continue
        divisor = max(count, 2) if op == "mean" else 1
        arrays = [placed(sample(dtype, size, rng), start) for _ in range(count)]
        result = placed(np.zeros(size, storage(dtype)), start)
        packed = fold(library, case, arrays, [result], divisor)
        assert_same_bits(result, _core.reduce(dtype, op, arrays, divisor))
        per_pack = 16 // result.itemsize
        assert packed == max(0, size - -start % per_pack) // per_pack * per_pack


def test_arrays_of_more_than_4_gib(library: ctypes.CDLL) -> None:
    """Only the ends are touched."""
    x = np.zeros((1 << 32) + 64, np.uint8)
    x[:64] = x[-16:] = 1
    library.cuda_double_last_pack(
        DTYPES.index("uint8"), ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(len(x) // 16 * 16)
    )
    assert (set(x[:64]), set(x[-16:])) == ({1}, {2})


@pytest.mark.parametrize("case", [case for case in CASES if case[1] in ("sum", "min", "bxor")], ids="-".join)
def test_pointers_of_different_alignment(library: ctypes.CDLL, case: tuple[str, str]) -> None:
    rng = np.random.default_rng(8)
    for starts in ([0, 1, 0], [0, 0, 1], [1, 0, 0]):
        arrays = [placed(sample(case[0], 999, rng), start) for start in starts[:2]]
        result = placed(np.zeros(999, storage(case[0])), starts[2])
        assert fold(library, case, arrays, [result]) == 0
        assert_same_bits(result, _core.reduce(*case, arrays))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_any_divisor(library: ctypes.CDLL, dtype: str) -> None:
    rng = np.random.default_rng(4)
    for count, divisor in itertools.product([1, 2, 3, 4], [1, 2, 3, 200, 70_000]):
        arrays = [placed(sample(dtype, 500, rng), 0) for _ in range(count)]
        if count > 1 or divisor > 1:
            result = np.zeros(500, storage(dtype))
            fold(library, (dtype, "mean"), arrays, [result], divisor)
            assert_same_bits(result, _core.reduce(dtype, "mean", arrays, divisor))


@pytest.mark.parametrize("threads", [1, 2, 33, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_several_destinations_which_may_be_sources(library: ctypes.CDLL, dtype: str, threads: int) -> None:
    rng = np.random.default_rng(9)
    for count in [2, 3, 8]:
        arrays = [placed(sample(dtype, 1003, rng), 1) for _ in range(count)]
        more = placed(np.zeros(1003, storage(dtype)), 1)
        expected = _core.reduce(dtype, "sum", arrays)
        fold(library, (dtype, "sum"), arrays, [*arrays, more], threads=threads)
        for array in [*arrays, more]:
            assert_same_bits(array, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_premultiplied_sum_is_a_sum(library: ctypes.CDLL, dtype: str) -> None:
    arrays = [sample(dtype, 100, np.random.default_rng(10)) for _ in range(3)]
    result = np.zeros(100, storage(dtype))
    fold(library, (dtype, "premul_sum"), arrays, [result])
    assert_same_bits(result, _core.reduce(dtype, "sum", arrays))


@pytest.mark.parametrize("dtype", FLOATS)
def test_scaling(library: ctypes.CDLL, dtype: str) -> None:
    rng = np.random.default_rng(11)
    for size, starts, threads in itertools.product([0, 1, 15, 1000], [(0, 0), (1, 1), (0, 1)], [1, 7, 5000]):
        x = placed(sample(dtype, size, rng), starts[0])
        out = placed(np.zeros(size, storage(dtype)), starts[1])
        for factor in (0.3, -2.0, 1e30):
            ends = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data)
            sizes = ctypes.c_size_t(size), ctypes.c_size_t(threads)
            library.cuda_scale(DTYPES.index(dtype), ctypes.c_double(factor), *ends, *sizes)
            assert_same_bits(out, _core.scale(dtype, x, factor))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_differences(library: ctypes.CDLL, dtype: str) -> None:
    rng = np.random.default_rng(12)
    device = _core.HostDevice()
    for size, starts, threads in itertools.product([0, 1, 15, 1000], [(0, 0), (1, 1), (0, 1)], [1, 7, 5000]):
        x = placed(sample(dtype, size, rng), starts[0])
        out = placed(sample(dtype, size, rng), starts[1])
        expected = out.copy()
        for times in (1, 3):
            ends = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data)
            sizes = ctypes.c_size_t(size), ctypes.c_size_t(threads)
            library.cuda_difference(DTYPES.index(dtype), times, *ends, *sizes)
            device.difference(dtype, x.ctypes.data, expected.ctypes.data, times, size)
            event = device.make_event()
            device.record(event)
            wait_for(device, event)
            device.end_event(event)
            assert out.tobytes() == expected.tobytes()
