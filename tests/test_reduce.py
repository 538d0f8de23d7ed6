"""The host reductions against NumPy, bit for bit, at every SIMD level."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from codec_samples import storage
from numpy.typing import NDArray

from gpucomm import _core

pytestmark = pytest.mark.usefixtures("level")

Array = NDArray[Any]

HALVES = {"float16": 0x7E00, "bfloat16": 0x7FC0}  # with their canonical NaN
FLOATS = ["float64", "float32", *HALVES]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8"]
DTYPES = [*FLOATS, *INTEGERS, "bool"]
OPS = ["sum", "mean", "min", "max", "prod"]
BITWISE = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
CASES = [case for case in itertools.product(DTYPES, OPS) if case != ("bool", "mean")]
CASES += itertools.product([*INTEGERS, "bool"], BITWISE)


def assert_same_bits(result: Array, expected: Array) -> None:
    assert result.dtype == expected.dtype
    bits = f"uint{8 * expected.itemsize}"
    np.testing.assert_array_equal(result.view(bits), expected.view(bits))


def sample(dtype: str, count: int, rng: np.random.Generator) -> Array:
    """Numbers of the usual size next to any bits at all: NaNs of any payload, infinities, denormals, -0."""
    kind = storage(dtype)
    wild = rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind)
    if dtype not in FLOATS:
        return wild
    usual = narrow(dtype, rng.standard_normal(count) * 3)
    special = narrow(dtype, rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-7, 65519.0], count))
    return np.choose(rng.integers(0, 4, count), [usual, usual, wild, special]).astype(kind, copy=False)


def widen(dtype: str, array: Array) -> Array:
    """What is folded: halves as float32, all else as it is."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if dtype == "float16" else array


def narrow(dtype: str, array: Array) -> Array:
    """Rounds to `dtype`, to nearest and ties to even; every NaN becomes the canonical one."""
    if dtype == "bfloat16":
        wide = array.astype(np.float32).view(np.uint32).astype(np.uint64)
        rounded = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(array), np.uint16(HALVES[dtype]), rounded)
    with np.errstate(all="ignore"):
        narrowed = array.astype(dtype)
    return np.where(np.isnan(array), np.array(np.nan, dtype), narrowed) if dtype in FLOATS else narrowed


def combine(a: Array, b: Array, op: str) -> Array:
    """One step of the fold. min and max: -0 is below +0, and NaN where either is; sum of bool is "or"."""
    if op in BITWISE:
        return np.asarray(BITWISE[op](a, b))
    if op not in ("min", "max"):
        return a * b if op == "prod" else a + b
    if a.dtype.kind != "f":
        return np.minimum(a, b) if op == "min" else np.maximum(a, b)
    a_is_lower = (a < b) | ((a == b) & np.signbit(a))
    chosen = np.where(a_is_lower == (op == "min"), a, b)
    return np.where(np.isnan(a) | np.isnan(b), np.array(np.nan, a.dtype), chosen)


def divide(array: Array, divisor: int) -> Array:  # integers: towards zero
    if array.dtype.kind == "f":
        return np.asarray(array / array.dtype.type(divisor))
    wide = array.astype(np.int64)
    return ((wide - np.fmod(wide, divisor)) // divisor).astype(array.dtype)


def oracle(dtype: str, op: str, sources: list[Array], divisor: int = 1) -> Array:
    if len(sources) == 1 and divisor == 1:
        return sources[0]
    wide = [widen(dtype, source) for source in sources]
    with np.errstate(all="ignore"):
        folded = wide[0]
        for source in wide[1:]:
            folded = combine(folded, source, op)
        return narrow(dtype, folded if divisor == 1 else divide(folded, divisor))


@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_equals_a_left_fold_in_numpy(dtype: str, op: str) -> None:
    rng = np.random.default_rng([DTYPES.index(dtype), [*OPS, *BITWISE].index(op)])
    for sources, count in itertools.product([1, 2, 3, 5, 9], [0, 1, 7, 64, 1000, 4097]):
        divisor = sources if op == "mean" else 1
        arrays = [sample(dtype, count, rng) for _ in range(sources)]
        assert_same_bits(_core.reduce(dtype, op, arrays, divisor), oracle(dtype, op, arrays, divisor))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_a_mean_of_any_divisor(dtype: str) -> None:
    rng = np.random.default_rng(3)
    for sources, divisor in itertools.product([1, 2, 4], [1, 2, 3, 200, 70_000]):
        arrays = [sample(dtype, 1000, rng) for _ in range(sources)]
        assert_same_bits(_core.reduce(dtype, "mean", arrays, divisor), oracle(dtype, "mean", arrays, divisor))


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_survives_the_way_to_float32_and_back(dtype: str) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    arrays = [patterns.view(storage(dtype)), narrow(dtype, np.full(65536, -0.0))]
    expected = np.where(np.isnan(widen(dtype, arrays[0])), np.uint16(HALVES[dtype]), patterns)
    assert_same_bits(_core.reduce(dtype, "sum", arrays).view(np.uint16), expected)


@pytest.mark.parametrize(("op", "divisor"), [("sum", 1), ("prod", 1), ("mean", 2), ("mean", 7)])
@pytest.mark.parametrize("dtype", HALVES)
def test_halves_round_once_to_nearest_even(dtype: str, op: str, divisor: int) -> None:
    every = np.arange(65536, dtype=np.uint16).view(storage(dtype))
    for shift, sources in itertools.product([1, 77, 1024, 12345, 31744, 40000], [2, 3]):
        arrays = [np.roll(every, shift * source) for source in range(sources)]
        assert_same_bits(_core.reduce(dtype, op, arrays, divisor), oracle(dtype, op, arrays, divisor))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_wins_and_is_canonical(dtype: str) -> None:
    wild = {"float64": 0xFFF0_0000_0000_0001, "float32": 0xFF80_0001, "float16": 0xFC01, "bfloat16": 0xFF81}
    nan = np.full(40, wild[dtype], f"uint{8 * storage(dtype).itemsize}").view(storage(dtype))
    one = narrow(dtype, np.ones(40))
    for op, order in itertools.product(OPS, [[nan, one], [one, nan], [one, nan, one], [nan, nan]]):
        assert_same_bits(_core.reduce(dtype, op, order), narrow(dtype, np.full(40, np.nan)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_minus_zero_is_below_zero(dtype: str) -> None:
    zero, minus = narrow(dtype, np.full(40, 0.0)), narrow(dtype, np.full(40, -0.0))
    for order in [[zero, minus], [minus, zero], [minus, zero, minus]]:
        assert_same_bits(_core.reduce(dtype, "min", order), minus)
        assert_same_bits(_core.reduce(dtype, "max", order), zero)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(dtype: str) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    top, one = np.full(100, most, dtype), np.ones(100, dtype)
    assert_same_bits(_core.reduce(dtype, "sum", [top, one]), np.full(100, least, dtype))
    assert_same_bits(_core.reduce(dtype, "prod", [top, top]), one)
    assert_same_bits(_core.reduce(dtype, "mean", [top, one], 2), divide(np.full(100, least, dtype), 2))


def test_any_byte_but_zero_is_true() -> None:
    a = np.array([0, 0, 2, 255, 128] * 20, np.uint8).view(bool)
    b = np.array([0, 4, 0, 1, 16] * 20, np.uint8).view(bool)
    for arrays in [[a, b], [a, b, a], [a, b, a, b, b]]:
        assert _core.reduce("bool", "sum", arrays).view(np.uint8).tolist() == [0, 1, 1, 1, 1] * 20
        assert _core.reduce("bool", "prod", arrays).view(np.uint8).tolist() == [0, 0, 0, 1, 1] * 20
        assert _core.reduce("bool", "bor", arrays).view(np.uint8).tolist() == [0, 1, 1, 1, 1] * 20
        assert _core.reduce("bool", "band", arrays).view(np.uint8).tolist() == [0, 0, 0, 1, 1] * 20
    assert _core.reduce("bool", "bxor", [a, b]).view(np.uint8).tolist() == [0, 1, 1, 0, 0] * 20


@pytest.mark.parametrize("dtype", FLOATS)
def test_scaling_rounds_once(dtype: str) -> None:
    rng = np.random.default_rng(6)
    for factor, count in itertools.product([0.1, -3.0, 1e-4, 0.0, 1e30], [0, 1, 7, 4097]):
        x = sample(dtype, count, rng)
        wide = widen(dtype, x)
        with np.errstate(all="ignore"):
            expected = narrow(dtype, wide * wide.dtype.type(factor))
        found = _core.scale(dtype, x, factor)
        assert_same_bits(narrow(dtype, widen(dtype, found)), expected)


@pytest.mark.parametrize("op", BITWISE)
@pytest.mark.parametrize("dtype", FLOATS)
def test_bitwise_operations_on_floats_are_refused(dtype: str, op: str) -> None:
    with pytest.raises(TypeError, match=f"'{op}' is not defined for {dtype}"):
        _core.reduce(dtype, op, [np.ones(2, storage(dtype))] * 2)


@pytest.mark.parametrize("sources", [1, 2, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_destination_may_be_a_source_and_start_anywhere(dtype: str, sources: int) -> None:
    rng = np.random.default_rng(5)
    for own, start in itertools.product(range(sources), [0, 1, 3]):
        wholes = [sample(dtype, 1320, rng) for _ in range(sources)]
        arrays = [whole[start:1312] for whole in wholes]
        expected = wholes[own].copy()
        expected[start:1312] = oracle(dtype, "sum", arrays)
        _core.reduce(dtype, "sum", arrays, out=arrays[own])
        assert_same_bits(wholes[own], expected)


@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_a_second_destination_gets_the_same_and_may_be_a_source(dtype: str, op: str) -> None:
    rng = np.random.default_rng(11)
    for sources in [1, 2, 4]:
        arrays = [sample(dtype, 1037, rng) for _ in range(sources)]
        divisor = 3 if op == "mean" else 1
        expected = _core.reduce(dtype, op, arrays, divisor)
        mine = [array.copy() for array in arrays]
        twin = mine[-1] if sources > 1 else np.empty_like(mine[0])
        _core.reduce(dtype, op, mine, divisor, out=mine[0], twin=twin)
        assert_same_bits(mine[0], expected)
        assert_same_bits(twin, expected)


def test_an_unknown_level_names_the_known(level: str) -> None:
    with pytest.raises(ValueError, match=f"'v9'.*known: {', '.join(_core.simd_levels())}"):
        _core.set_simd_level("v9")
    assert _core.simd_level() == level


@pytest.mark.processes
@pytest.mark.parametrize(("wanted", "code"), [("", 0), (_core.simd_levels()[0], 0), ("v9", 1)])
def test_the_environment_forces_the_level(wanted: str, code: int) -> None:
    script = "from gpucomm import _core; print(_core.simd_level())"
    env = {**os.environ, "GPUCOMM_SIMD": wanted}
    run = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert run.returncode == code
    assert run.stdout.strip() == ("" if code else wanted or _core.simd_levels()[-1])
    assert ("GPUCOMM_SIMD" in run.stderr) == bool(code)


@pytest.mark.parametrize("copy", [_core.copy_by_loop, _core.copy_non_temporal])
@pytest.mark.parametrize("shift", [0, 1, 16, 31, 63])
def test_copies_write_what_they_should_and_no_more(copy: Callable[..., bool | None], shift: int) -> None:
    rng = np.random.default_rng(shift)
    source = rng.integers(0, 256, 8192 + 64, dtype=np.uint8)
    for nbytes in [*range(32, 420), 4096, 5000, 8191]:
        for start in (0, 7):
            target = np.full(nbytes + 128, 0xA5, np.uint8)
            if copy(target[shift : shift + nbytes], source[start : start + nbytes]) is False:
                pytest.skip("no AVX2")
            np.testing.assert_array_equal(target[shift : shift + nbytes], source[start : start + nbytes])
            assert np.all(target[:shift] == 0xA5) and np.all(target[shift + nbytes :] == 0xA5)
