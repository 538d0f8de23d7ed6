"""What single codecs promise: their bytes, their errors, and who else reads them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import zfpy
from codec_samples import (
    CODECS,
    FLOATS,
    Array,
    golden_decoded,
    golden_elements,
    golden_path,
    narrow,
    storage,
    usable,
)

from gpucomm import _core, errors

# What is lossy says nothing of its elements' dtype; the others code the golden elements' own, float32.
READ = [
    (spec, dtype)
    for spec in CODECS
    for dtype in FLOATS
    if _core.Codec(spec).takes(dtype) and (_core.Codec(spec).traits["lossy"] or dtype == "float32")
]


def decoded(codec: _core.Codec, stream: Array, like: Array) -> Array:
    out = np.empty_like(like)
    codec.decode(stream, out)
    return out


@pytest.mark.parametrize("spec", CODECS)
def test_the_bytes_are_those_committed(spec: str) -> None:
    assert golden_path(spec).exists(), "write it with python tests/golden/codecs.py, and commit it"
    assert usable(spec).encode(golden_elements()).tobytes() == golden_path(spec).read_bytes()


@pytest.mark.parametrize(("spec", "dtype"), READ)
def test_the_committed_bytes_are_read_as_committed(level: str, spec: str, dtype: str) -> None:
    out = np.full(len(golden_elements()), 77, storage(dtype))
    usable(spec).decode(np.fromfile(golden_path(spec), np.uint8), out, dtype=dtype)
    assert out.tobytes() == narrow(dtype, golden_decoded(spec)).tobytes()


def test_no_golden_file_is_left_over() -> None:
    lossy = [spec for spec in CODECS if _core.Codec(spec).traits["lossy"]]
    for kind, specs in (("codecs", CODECS), ("decoded", lossy)):
        files = set(golden_path("zfp:8", kind).parent.iterdir())
        assert files == {golden_path(spec, kind) for spec in specs}


# zfp


@pytest.mark.parametrize("rate", [2.25, 3, 4, 7, 8, 12, 15, 16, 17.25, 24, 32])
def test_zfp_writes_what_zfp_writes_and_reads_it_alike(rate: float) -> None:
    codec = _core.Codec(f"zfp:{rate}")
    for count, scale in itertools.product([1, 2, 3, 4, 5, 255, 257, 3000], [1.0, 1e-3, 1e20, 1e-25]):
        x = (np.random.default_rng(count).standard_normal(count) * scale).astype(np.float32)
        x[40:52] = 0
        theirs = zfpy.compress_numpy(x, rate=rate, write_header=False)
        stream = codec.encode(x)
        assert stream.tobytes() == theirs
        read = zfpy._decompress(stream.tobytes(), zfpy.type_float, x.shape, rate=rate)
        assert decoded(codec, stream, x).tobytes() == read.tobytes()


def test_zfp_reads_any_bits_alike() -> None:
    rng = np.random.default_rng(0)
    for rate in (4, 8, 16, 29):
        codec = _core.Codec(f"zfp:{rate}")
        like = np.empty(4000, np.float32)
        stream = rng.integers(0, 256, codec.max_bytes(len(like)), dtype=np.uint8)
        stream[:2], stream[2:8] = 0xFF, 0x55  # the largest exponent, and large coefficients
        theirs = zfpy._decompress(stream.tobytes(), zfpy.type_float, like.shape, rate=rate)
        ours = decoded(codec, stream, like)
        beyond, usual = np.isinf(theirs), np.abs(ours) > 2.0**-98
        usual &= ~beyond
        np.testing.assert_array_equal(ours[usual], theirs[usual])
        assert np.all(np.abs(ours[beyond]) == np.finfo(np.float32).max)
        assert usual.sum() > 1000
        assert beyond.any()


def test_zfp_codes_tiny_blocks_which_zfp_scales_by_infinity() -> None:
    x = np.array([3e-31, -1e-31, 2e-31, 0, 1e-33, 1e-34, 0, 0], np.float32)
    stream = _core.Codec("zfp:32").encode(x)
    np.testing.assert_allclose(decoded(_core.Codec("zfp:32"), stream, x), x, atol=1e-38)
    np.testing.assert_allclose(
        zfpy._decompress(stream.tobytes(), zfpy.type_float, x.shape, rate=32), x, atol=1e-38
    )


# int8, int4, fp8


@pytest.mark.parametrize(
    ("spec", "least", "most"),
    [("int8", 5.5e-3, 7.5e-3), ("int4", 0.11, 0.13), ("fp8_e4m3", 0.02, 0.03), ("fp8_e5m2", 0.045, 0.06)],
)
def test_relative_error_on_gaussian_data(spec: str, least: float, most: float) -> None:
    """int4: the largest of 128 is about 2.75 sigma, so a step 0.39 sigma, and its RMS 0.39 / sqrt(12)."""
    x = np.random.default_rng(1).standard_normal(1 << 16).astype(np.float32) * np.float32(1e-3)
    _, sum_sq = _core.Codec(spec).error(x)
    assert least < np.sqrt(sum_sq) / np.linalg.norm(x) < most


@pytest.mark.parametrize(("spec", "levels"), [("int8", 127), ("int4", 7)])
def test_integers_whose_step_is_a_power_of_two_are_exact(spec: str, levels: int) -> None:
    x = np.random.default_rng(2).integers(-levels, levels + 1, 1000).astype(np.float32) * np.float32(2**-20)
    x[::100] = levels * 2.0**-20  # in every block
    assert decoded(_core.Codec(spec), _core.Codec(spec).encode(x), x).tobytes() == (x + 0).tobytes()


@pytest.mark.parametrize(
    ("spec", "bits", "bias", "top"), [("fp8_e4m3", 3, 7, 448.0), ("fp8_e5m2", 2, 15, 57344.0)]
)
def test_fp8_rounds_to_nearest_even(spec: str, bits: int, bias: int, top: float) -> None:
    """Every number of the format, each midpoint between two of them, and what lies beside it."""
    codes = np.arange(128)
    exponent, fraction = codes >> bits, codes & (1 << bits) - 1
    normal = (1 << bits) + fraction
    grid = np.where(
        exponent > 0, np.ldexp(normal, exponent - bias - bits), np.ldexp(fraction, 1 - bias - bits)
    )
    grid = grid[grid <= top]
    middles = (grid[1:] + grid[:-1]) / 2
    x = np.concatenate([grid, middles, np.nextafter(middles, 0, dtype=np.float32), middles * (1 + 2.0**-20)])
    rows = np.zeros((len(x), 128), np.float32)  # a block each, whose scale is 1
    rows[:, 0], rows[:, 1], rows[:, 2] = top, x, -x
    evens_first = np.concatenate([grid[::2], grid[1::2]])
    expected = evens_first[np.argmin(np.abs(rows[:, 1:2] - evens_first), axis=1)].astype(np.float32)
    got = decoded(_core.Codec(spec), _core.Codec(spec).encode(rows), rows)
    np.testing.assert_array_equal(got[:, 1], expected)
    np.testing.assert_array_equal(got[:, 2], -expected)


@pytest.mark.parametrize(("spec", "offset"), [("int8", 1000), ("int4", 500), ("fp8_e4m3", 1000)])
def test_a_damaged_scale_is_found(spec: str, offset: int) -> None:
    stream = _core.Codec(spec).encode(np.ones(1000, np.float32))
    stream[offset + 2 : offset + 4] = 0xFF
    with pytest.raises(errors.InvalidArgumentError, match="are damaged near element"):
        decoded(_core.Codec(spec), stream, np.empty(1000, np.float32))


# fixed


def coded_sum(codec: _core.Codec, streams: list[Array]) -> Array:
    total = streams[0].copy()
    for stream in streams[1:]:
        codec.add(stream, total)
    return total


@pytest.mark.parametrize("eps", [0.5, 1e-2, 1e-3, 1e-6])
def test_fixed_adds_coded_in_any_order(eps: float) -> None:
    world = 5
    ranks = np.random.default_rng(3).standard_normal((world, 3001)).astype(np.float32)
    codec = _core.Codec(f"fixed:{eps}").agreed(float(np.abs(ranks).max()), world)
    streams = [codec.encode(x) for x in ranks]
    total = coded_sum(codec, streams)
    for order in itertools.islice(itertools.permutations(range(world)), 0, 120, 17):
        np.testing.assert_array_equal(coded_sum(codec, [streams[r] for r in order]), total)
    exact = ranks.astype(np.float64).sum(axis=0)
    lost = decoded(codec, total, ranks[0]) - exact
    assert np.abs(lost).max() <= world * codec.bound(0) + np.abs(exact).max() * 2.0**-24
    assert codec.bound(0) <= eps < 2 * codec.bound(0) + 1e-30
    if eps < 0.1:  # uniform and independent: steps well below the data
        assert np.sqrt(np.mean(lost**2)) == pytest.approx(codec.bound(0) * np.sqrt(world / 3), rel=0.05)


def test_fixed_multiples_of_the_step_are_exact() -> None:
    x = np.random.default_rng(4).integers(-30000, 30000, 999).astype(np.float32) * np.float32(0.25)
    codec = _core.Codec("fixed:0.125").agreed(7500, 1)
    np.testing.assert_array_equal(decoded(codec, codec.encode(x), x), x)


@pytest.mark.parametrize(
    ("max_abs", "world", "width"),
    [
        (127, 1, 8),
        (128, 1, 16),
        (63, 2, 8),
        (64, 2, 16),
        (15.9, 8, 16),
        (32767, 1, 16),
        (4096, 8, 32),
        (0, 9, 8),
    ],
)
def test_fixed_takes_the_least_width_that_holds_the_sum(max_abs: float, world: int, width: int) -> None:
    codec = _core.Codec("fixed:0.5").agreed(max_abs, world)  # steps of 1
    assert codec.spec == f"fixed:0.5:{width}:{world}"
    for sign in (1, -1):
        x = np.full(600, sign * np.floor(max_abs), np.float32)
        total = coded_sum(codec, [codec.encode(x)] * world)
        np.testing.assert_array_equal(decoded(codec, total, x), x * world)


def test_fixed_refuses_what_it_cannot_hold() -> None:
    fixed = _core.Codec("fixed:0.5")
    assert fixed.max_bytes(10) == 40
    with pytest.raises(errors.InvalidArgumentError, match="must agree on the largest magnitude"):
        fixed.encode(np.zeros(3, np.float32))
    with pytest.raises(errors.InvalidArgumentError, match="more than 32 bits; use a larger EPS"):
        fixed.agreed(1e9, 3)
    for wrong, world in [(np.inf, 2), (np.nan, 2), (-1.0, 2), (1.0, 0)]:
        with pytest.raises(errors.InvalidArgumentError, match="cannot agree on"):
            fixed.agreed(wrong, world)
    x = np.zeros(3000, np.float32)
    x[2500] = -128
    with pytest.raises(errors.InvalidArgumentError, match="element 2500, which is -128: it is beyond"):
        fixed.agreed(100, 1).encode(x)


@pytest.mark.parametrize("argument", ["0", "-1", "nan", "1e99", "1:9:2", "1:8", "1:", "1:8:0", ""])
def test_fixed_arguments(argument: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="has a wrong argument; write fixed:EPS"):
        _core.Codec(f"fixed:{argument}")


# mpc


def test_mpc_shrinks_what_is_smooth_and_never_grows() -> None:
    rng = np.random.default_rng(5)
    smooth = np.sin(np.arange(10_000) / 50).astype(np.float32)
    triples = np.stack([smooth, 100 + smooth, smooth / 1000], axis=1).ravel()
    codec = _core.Codec("mpc")
    assert len(codec.encode(smooth)) < 0.75 * smooth.nbytes
    assert len(_core.Codec("mpc:3").encode(triples)) < 0.95 * len(codec.encode(triples))
    assert len(codec.encode(np.zeros(10_000))) < 0.02 * 80_000
    for dtype in (np.float32, np.float64):
        noise = rng.integers(0, 256, 80_000, dtype=np.uint8).view(dtype)
        assert len(codec.encode(noise)) == noise.nbytes
        assert decoded(codec, codec.encode(noise), noise).tobytes() == noise.tobytes()


def test_rounds_of_mpc_are_coded_apart() -> None:
    """32 KiB at a time: what one becomes depends on it alone."""
    x = np.cumsum(np.random.default_rng(6).integers(-3, 4, 20_000)).astype(np.float32)
    codec = _core.Codec("mpc:3")
    parts = [codec.encode(x[begin : begin + 8192]).tobytes() for begin in (0, 8192, 16384)]
    words = [len(part) // 4 for part in parts]
    table = np.cumsum(words)[:2].astype("<u8").tobytes()
    assert codec.encode(x).tobytes() == table + b"".join(parts)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mpc_keeps_every_bit(dtype: str) -> None:
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1e-40, 1.0]
    x = np.resize(np.array(special, dtype), 777)
    codec = _core.Codec("mpc")
    assert len(codec.encode(x)) < x.nbytes
    assert decoded(codec, codec.encode(x), x).tobytes() == x.tobytes()


def test_a_damaged_table_of_mpc_is_found() -> None:
    x = np.arange(20_000, dtype=np.float32)
    codec = _core.Codec("mpc")
    stream = codec.encode(x)
    stream[0] ^= 1
    with pytest.raises(errors.InvalidArgumentError, match="are damaged"):
        codec.decode(stream, np.empty_like(x))


# the ends of ranges


@pytest.mark.parametrize("spec", ["int8", "int4", "fp8_e4m3", "fp8_e5m2", "zfp:8"])
def test_what_decodes_beyond_float16_is_held_at_its_largest(spec: str) -> None:
    x = np.random.default_rng(7).uniform(60_000, 65_504, 2048).astype(np.float16)
    codec, out = _core.Codec(spec), np.empty(2048, np.float16)
    codec.decode(codec.encode(x), out)
    assert out.max() == np.finfo(np.float16).max
    assert codec.error(x)[0] == np.abs(out.astype(np.float64) - x).max()


def test_a_float_beyond_32_bits_is_refused_though_the_limit_is_no_float() -> None:
    codec = _core.Codec("fixed:0.5:32:1")  # in steps of 1, of which 2^31 - 1 fit
    largest = np.array([2.0**31 - 128], np.float32)
    out = np.empty_like(largest)
    codec.decode(codec.encode(largest), out)
    assert out == largest
    with pytest.raises(errors.InvalidArgumentError, match="beyond the agreed largest magnitude"):
        codec.encode(np.array([2.0**31], np.float32))
