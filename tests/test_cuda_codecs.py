"""The CUDA codecs' programs, run by loops on the host, against the host's codecs: the same bits."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from codec_samples import CODECS, Array, narrow, storage, usable, widen
from cuda_codec_programs import DTYPES as ALL_DTYPES
from cuda_codec_programs import HEADER, Programs, build, guards_hold, placed, slot_of

from gpucomm import _core, errors

DTYPES = ["float32", "float16", "bfloat16"]
ADDED = {*DTYPES, "float64", "int8", "int16", "int32", "int64", "uint8", "bool"}
SPECS = [spec for spec in CODECS if spec.split(":")[0] not in ("identity", "mpc")]
SPECS += ["zfp:2.25", "zfp:2.5", "zfp:9.75", "zfp:31.75"]
CASES = [(spec, dtype) for spec in SPECS for dtype in DTYPES]
COUNTS = [*range(6), 31, *range(63, 67), *range(127, 131), *range(255, 258), *range(511, 516), 1279, 6000]
SEEDS = [0, 7]  # lanes in order; in another random order in each phase


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory)


def sample(dtype: str, count: int, seed: int = 0) -> Array:
    """Values of many sizes up to 5: runs of 16 with a size each, zeros and denormals among them."""
    rng = np.random.default_rng([count, seed])
    sizes = [1.0, 3.0, 1e-3, 1e-6, 0.0, 1e-38, 1e-44] if dtype != "float16" else [1.0, 3.0, 1e-3, 0.0, 1e-7]
    scales = np.repeat(rng.choice(sizes, count // 16 + 1), 16)[:count]
    x = np.clip(rng.standard_normal(count) * scales, -5, 5)
    x[rng.random(count) < 0.05] = -0.0
    return narrow(dtype, x)


def host_decode(codec: _core.Codec, stream: Array, start: Array, dtype: str, adds: bool) -> Array:
    out = start.copy()
    (codec.decode_add if adds else codec.decode)(stream, out, dtype=dtype)
    return out


def same(a: Array, b: Array) -> None:
    np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("spec", "dtype"), CASES)
def test_the_bits_of_the_host(library: Path, spec: str, dtype: str, seed: int) -> None:
    codec = usable(spec, 16.0)
    programs = Programs(library, codec, dtype, seed)
    for count in COUNTS:
        for shift in [0, 1, 3] if count < 600 else [0]:
            x, own = sample(dtype, count), sample(dtype, count, seed=1)
            stream = codec.encode(x, dtype=dtype)
            same(programs.encode(x, shift), stream)
            for adds in [False, True]:
                back = programs.decode(stream, own, shift, adds=int(adds))
                same(back, host_decode(codec, stream, own, dtype, adds))
            total = codec.encode(host_decode(codec, stream, own, dtype, True), dtype=dtype)
            same(programs.fused(stream, own, shift), total)
            assert programs.status == 0


@pytest.mark.parametrize(("spec", "dtype"), CASES)
def test_means_divide_what_was_rounded(library: Path, spec: str, dtype: str) -> None:
    codec = usable(spec, 16.0)
    x, own = sample(dtype, 700), sample(dtype, 700, seed=1)
    stream = codec.encode(x, dtype=dtype)
    for divisor, adds in itertools.product([1, 2, 3, 7], [False, True]):
        expected = host_decode(codec, stream, own, dtype, adds)
        if divisor > 1:
            expected = _core.reduce(dtype, "sum", [expected], divisor=divisor)
        back = Programs(library, codec, dtype).decode(stream, own, adds=int(adds), divisor=divisor)
        same(back, expected)


def ends(dtype: str) -> list[Array]:
    """The ends of the range: each array is what one message holds."""
    top = {"float32": np.finfo(np.float32).max, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}[dtype]
    rng = np.random.default_rng(3)
    arrays = [rng.uniform(-2, 2, 300) * 2.0**e for e in [-149, -140, -127, -126, -110, -98, -24, -14, 0, 3]]
    if dtype != "float16":
        arrays += [rng.uniform(-1, 1, 300) * 2.0**e for e in [60, 100, 119, 120, 126, 127]]
    arrays += [
        np.full(300, top),
        np.where(rng.random(300) < 0.1, top, -top),
        np.where(rng.random(300) < 0.1, top, 1e-3),
    ]
    return [narrow(dtype, np.clip(x, -top, top)) for x in arrays]


@pytest.mark.parametrize(("spec", "dtype"), CASES)
def test_the_ends_of_the_range(library: Path, spec: str, dtype: str) -> None:
    for x in ends(dtype):
        codec = _core.Codec(spec)
        if codec.traits["needs_maximum"]:
            try:
                codec = usable(spec, float(np.abs(widen(dtype, x)).max()))
            except errors.InvalidArgumentError:  # no width for these
                continue
        programs = Programs(library, codec, dtype)
        stream = codec.encode(x, dtype=dtype)
        same(programs.encode(x), stream)
        for adds in [False, True]:
            same(programs.decode(stream, x, adds=int(adds)), host_decode(codec, stream, x, dtype, adds))
        assert programs.status == 0


def any_bits(dtype: str) -> list[Array]:
    """NaN of any payload, Inf, and elements beyond what was agreed."""
    kind = np.dtype("uint32" if dtype == "float32" else "uint16")
    rng = np.random.default_rng(9)
    nan, infinity, quiet = {
        "float32": (0x7F800001, 0x7F800000, 0xFFC00000),
        "float16": (0x7C01, 0x7C00, 0xFE00),
        "bfloat16": (0x7F81, 0x7F80, 0xFFC0),
    }[dtype]
    arrays = [rng.integers(0, 1 << (8 * kind.itemsize), 1000, dtype=kind).view(storage(dtype))]
    for at, special in [(0, nan), (131, infinity), (255, quiet), (511, infinity), (512, nan), (777, quiet)]:
        arrays.append(sample(dtype, 778))
        arrays[-1].view(kind)[at] = special
        arrays[-1].view(kind)[min(at + 2, 777)] = infinity
    return arrays


def coded_or_refused(programs: Programs, x: Array, run: Callable[[], Array]) -> Array | None:
    """Looks whether run() gives the host's code of x, which is returned, or refuses the host's element."""
    try:
        stream = programs.codec.encode(x, dtype=programs.dtype)
    except errors.InvalidArgumentError as error:
        programs.status = 0
        run()
        host = str(error).split("element ")[1]
        assert f"element {host.split(',')[0]} of a piece, which is " in programs.text()
        assert host.split(": ")[1] in programs.text()
        return None
    same(run(), stream)
    return stream


@pytest.mark.parametrize(("spec", "dtype"), CASES)
def test_any_bits_are_coded_or_refused_as_on_the_host(library: Path, spec: str, dtype: str) -> None:
    codec = usable(spec)
    programs = Programs(library, codec, dtype, 5)
    for x in any_bits(dtype):
        finite = codec.encode(sample(dtype, len(x)), dtype=dtype)
        coded = coded_or_refused(programs, x, functools.partial(programs.encode, x))
        for stream in [finite] if coded is None else [finite, coded]:
            for own, adds in [(x, False), (x, True), (x[::-1].copy(), True)]:
                expected = host_decode(codec, stream, own, dtype, adds)
                same(programs.decode(stream, own, adds=int(adds)), expected)
                mean = _core.reduce(dtype, "sum", [expected], divisor=3)
                same(programs.decode(stream, own, adds=int(adds), divisor=3), mean)
                if adds:
                    fused = functools.partial(programs.fused, stream, own)
                    coded_or_refused(programs, expected, fused)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("spec", SPECS)
def test_any_bytes_decode_as_on_the_host_or_are_damaged(library: Path, spec: str, seed: int) -> None:
    codec = usable(spec)
    for count in [1, 5, 127, 300, 1025]:
        programs = Programs(library, codec, "float32", seed)
        rng = np.random.default_rng([count, seed])
        stream = rng.integers(0, 256, codec.max_bytes(count), dtype=np.uint8)
        start = sample("float32", count)
        for adds in [False, True]:
            back = programs.decode(stream, start, adds=int(adds))
            try:
                same(back, host_decode(codec, stream, start, "float32", adds))
            except errors.InvalidArgumentError as error:
                near = str(error).split(" are ")[1]
                assert f"are {near} of the piece" in programs.text()


@pytest.mark.parametrize("rate", [8, 16, 32])
def test_every_exponent_of_zfp(library: Path, rate: int) -> None:
    """Each with any bits behind it, and the largest integer, with which the last exponents overflow."""
    codec = _core.Codec(f"zfp:{rate}")
    programs = Programs(library, codec, "float32")
    rng = np.random.default_rng(rate)
    fields = np.tile(np.arange(256, dtype=np.uint32), 40)
    words = rng.integers(0, 1 << 32, (len(fields), rate // 8), dtype=np.uint32)
    words[:2560] = 0xFFFFFFFF
    words[2560:5120] = [
        3 << 9,
        *[0] * (rate // 8 - 1),
    ]  # the first coefficient's highest bit: -2^31 four times
    words[:, 0] = (words[:, 0] & 0xFFFFFE00) | fields << 1 | 1
    stream, start = words.view(np.uint8).reshape(-1), sample("float32", 4 * len(fields))
    for adds in [False, True]:
        expected = host_decode(codec, stream, start, "float32", adds)
        same(programs.decode(stream, start, adds=int(adds)), expected)
    assert programs.status == 0
    finite = np.isfinite(expected)
    start[~finite] = 0  # so that its sums are those of the others
    expected = host_decode(codec, stream, start, "float32", True)
    assert np.isfinite(expected).all()
    same(programs.fused(stream, start), codec.encode(expected))


@pytest.mark.parametrize("rate", [2.25, 8, 16, 32])
def test_blocks_of_zfp_with_few_bits_in_many_planes(library: Path, rate: float) -> None:
    """Smooth ones, of which a coefficient or two code all; and their largest magnitudes from end to end."""
    codec = _core.Codec(f"zfp:{rate}")
    programs = Programs(library, codec, "float32")
    rng = np.random.default_rng(4)
    walk = np.cumsum(rng.standard_normal(4000)) * 1e-4 + 1
    shapes = [walk, np.full(4000, 0.7), np.resize([1, -1], 4000), np.resize([0, 0, 0, 1.5], 4000), walk**9]
    sizes = np.repeat(2.0 ** rng.uniform(-149, 127, 1000), 4)
    for x in [shape * size for shape in shapes for size in [1.0, sizes]]:
        x = np.clip(x, -3e38, 3e38).astype(np.float32)
        stream = codec.encode(x)
        same(programs.encode(x), stream)
        same(programs.decode(stream, x), host_decode(codec, stream, x, "float32", False))
        total = host_decode(codec, stream, x * np.float32(0.125), "float32", True)
        same(programs.fused(stream, x * np.float32(0.125)), codec.encode(total))
    assert programs.status == 0


def test_words_of_zfp_are_nearly_all_coded_the_quick_way(library: Path) -> None:
    """The other way gives the same bits, but takes its time."""
    count = ctypes.CDLL(str(library)).count_zfp_words
    rng = np.random.default_rng(8)
    normal = rng.standard_normal((50_000, 4)).astype(np.float32)
    sparse = normal * (rng.integers(0, 9, normal.shape) == 0)
    walk = np.cumsum(rng.standard_normal(normal.size) * 1e-3).reshape(normal.shape)
    constant = np.repeat(normal[:, :1], 4, axis=1)
    wave = np.sin(np.arange(normal.size) * 0.01).reshape(normal.shape)
    nearly_one = np.full((10, 4), 0.99999)
    for x in [normal, normal**5, sparse, walk, constant, wave, nearly_one]:
        found, blocks = (ctypes.c_uint64 * 2)(), np.ascontiguousarray(x, np.float32)
        ends = [ctypes.byref(found, 8 * i) for i in range(2)]
        count(blocks.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(len(blocks)), *ends)
        assert found[0] == len(blocks) >= found[1] >= 0.9999 * len(blocks)


@pytest.mark.parametrize("field", [32, 253])
def test_all_words_of_zfp_are_decoded_as_the_format_says(library: Path, field: int) -> None:
    """With the ends of the exponents that are decoded quickly."""
    found = (ctypes.c_uint64 * 2)()
    ends = [ctypes.byref(found, 8 * i) for i in range(2)]
    ctypes.CDLL(str(library)).decode_all_zfp_words(ctypes.c_uint32(field << 1 | 1), *ends)
    assert found[0] > 2**21 and found[1] == 0


@pytest.mark.parametrize("spec", SPECS)
def test_a_message_of_another_size_is_refused(library: Path, spec: str) -> None:
    codec = usable(spec)
    x = sample("float32", 300)
    stream = codec.encode(x)
    for wrong in [stream[:-1], stream[:0]]:
        programs = Programs(library, codec, "float32")
        same(programs.decode(wrong, x), x)
        assert f"says that it has {len(wrong)} bytes" in programs.text()
        programs.fused(wrong, x)
        assert f"says that it has {len(wrong)} bytes" in programs.text()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("spec", [spec for spec in CODECS if _core.Codec(spec).traits["additive"]])
@pytest.mark.parametrize("top", [0.1, 8.0, 3000.0])
def test_coded_sums(library: Path, spec: str, top: float, seed: int) -> None:
    codec = usable(spec, top)
    for count in [0, 1, 3, 127, 128, 512, 515, 3000]:
        rng = np.random.default_rng(count)
        a, b = (rng.uniform(-top, top, count).astype(np.float32) for _ in range(2))
        stream, into = codec.encode(a), codec.encode(b)
        programs = Programs(library, codec, "float32", seed)
        got = programs.add(stream, into, count)
        codec.add(stream, into)
        same(got, into)
        assert programs.status == 0


@pytest.mark.parametrize("spec", ["fixed:0.25:8:1", "fixed:0.25:16:3", "fixed:0.25:32:4"])
def test_up_to_the_limit_and_no_further(library: Path, spec: str) -> None:
    codec = _core.Codec(spec)
    width, world = map(int, spec.split(":")[2:])
    most = np.float32(((1 << (width - 1)) - 1) // world)
    most = np.nextafter(most, np.float32(0)) if width == 32 else most
    x = np.array([0.5 * most, -0.5 * most, 0.5], np.float32)
    programs = Programs(library, codec, "float32")
    same(programs.encode(x), codec.encode(x))
    assert programs.status == 0
    x[1] = -np.nextafter(most, np.float32(np.inf)) if width == 32 else -0.5 * (most + 1)
    with pytest.raises(errors.InvalidArgumentError, match="element 1"):
        codec.encode(x)
    programs.encode(x)
    assert "element 1 of a piece" in programs.text()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("spec", "dtype"), [case for case in CASES if case[0] not in ("bf16", "fp16", "fp8_e5m2")]
)
def test_a_tile_reports_only_its_first_bad_element(library: Path, spec: str, dtype: str, seed: int) -> None:
    """A report goes to the host's memory, and all of an array may be bad."""
    programs = Programs(library, usable(spec), dtype, seed)
    for count, tiles in [(1, 1), (127, 1), (512, 4), (1000, 8)]:
        for first in {0, 1, count // 2, count - 1} & set(range(count)):
            x = sample(dtype, count)
            x[first:] = narrow(dtype, np.full(count - first, np.inf))
            programs.status = 0
            programs.encode(x)
            assert f"element {first} of a piece, which is inf" in programs.text()
            assert programs.reports == tiles - first // 128
            programs.fused(programs.codec.encode(sample(dtype, count), dtype=dtype), x)
            assert programs.reports == tiles - first // 128


def test_statuses_are_sentences(library: Path) -> None:
    programs = Programs(library, usable("int8"), "float32")
    assert programs.text() == ""
    x = sample("float32", 300)
    x[[140, 141]] = [-np.inf, np.nan]
    programs.encode(x)
    assert (
        programs.text()
        == "a codec cannot carry element 140 of a piece, which is -inf: it has no code for Inf"
    )
    programs = Programs(library, usable("fixed:0.25", 8.0), "float32")
    x[[140, 141]] = [7.0, 1000.0]
    programs.encode(x)
    assert programs.text().endswith(
        "element 141 of a piece, which is about 1000: it is beyond the agreed largest magnitude"
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_identity(library: Path, dtype: str, seed: int) -> None:
    """Any bits; sums and means as those of reductions."""
    codec = _core.Codec("identity")
    programs = Programs(library, codec, dtype, seed)
    for count, shift in [(0, 0), (1, 0), (1, 1), (5, 1), (127, 3), (513, 0), (513, 1), (6000, 0)]:
        rng = np.random.default_rng(count)
        kind = storage(dtype)
        x, own = (rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8) for _ in range(2))
        if dtype == "bool":
            x, own = x % 2, own % 2
        x, own = x.view(kind), own.view(kind)
        stream = codec.encode(x, dtype=dtype)
        same(programs.encode(x, shift), stream)
        same(programs.decode(stream, own, shift), x)
        if dtype in ADDED:
            total = host_decode(codec, stream, own, dtype, True)
            same(programs.decode(stream, own, shift, adds=1), total)
            same(programs.fused(stream, own, shift), codec.encode(total, dtype=dtype))
        assert programs.status == 0


@pytest.mark.parametrize("dtype", sorted(ADDED - {"bool"}))
def test_means_of_identity(library: Path, dtype: str) -> None:
    codec = _core.Codec("identity")
    kind = storage(dtype)
    x, own = np.random.default_rng(1).integers(0, 256, (2, 300 * kind.itemsize), dtype=np.uint8).view(kind)
    stream = codec.encode(x, dtype=dtype)
    for adds in [False, True]:
        total = host_decode(codec, stream, own, dtype, adds)
        expected = _core.reduce(dtype, "sum", [total], divisor=3)
        back = Programs(library, codec, dtype).decode(stream, own, adds=int(adds), divisor=3)
        same(back, expected)


MPC = [(spec, dtype) for spec in ["mpc", "mpc:3", "mpc:31", "mpc:32"] for dtype in ["float32", "float64"]]


def smooth(dtype: str, count: int) -> list[Array]:
    """Elements that shrink, that do not, that are all the same, and of any bits."""
    rng = np.random.default_rng(count)
    walk = np.cumsum(rng.integers(-3, 4, count)) * 2.0**-10 + 3
    bits = rng.integers(0, 256, count * np.dtype(dtype).itemsize, dtype=np.uint8).view(dtype)
    mixed = np.where(np.arange(count) // 300 % 2, walk, rng.standard_normal(count))
    return [walk.astype(dtype), mixed.astype(dtype), np.full(count, -1.5, dtype), bits]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("spec", "dtype"), MPC)
def test_mpc(library: Path, spec: str, dtype: str, seed: int) -> None:
    codec = _core.Codec(spec)
    programs = Programs(library, codec, dtype, seed)
    for count in [0, 1, 2, 31, 32, 33, 63, 65, 300, 4095, 4097, 8191, 8192, 8193, 8255, 20000, 33000]:
        for x in smooth(dtype, count):
            own = sample(dtype, count, seed=1)
            stream = codec.encode(x)
            same(programs.encode(x, count % 2), stream)
            same(programs.decode(stream, own, count % 2), x)
            total = host_decode(codec, stream, own, dtype, True)
            same(programs.decode(stream, own, adds=1), total)
            same(programs.fused(stream, own, count % 2), codec.encode(total))
            mean = _core.reduce(dtype, "sum", [total], divisor=3) if count else total
            same(programs.decode(stream, own, adds=1, divisor=3), mean)
    assert programs.status == 0


def test_more_rounds_of_mpc_than_a_thread_block_has_threads(library: Path) -> None:
    codec, count = _core.Codec("mpc"), 258 * 4096 + 1
    x = np.arange(count, dtype=np.float64) // 4096
    same(Programs(library, codec, "float64").encode(x), codec.encode(x))


@pytest.mark.parametrize(("spec", "dtype"), MPC)
def test_damaged_messages_of_mpc(library: Path, spec: str, dtype: str) -> None:
    codec = _core.Codec(spec)
    rng = np.random.default_rng(8)
    seen = {False: 0, True: 0}
    for x in smooth(dtype, 9000)[:3]:
        stream = codec.encode(x)
        for trial in range(12):
            damaged = stream.copy()
            damaged[rng.integers(0, min(len(stream), 600), 1 + trial % 3)] ^= rng.integers(
                1, 256, dtype=np.uint8
            )
            damaged = damaged[: len(stream) - (trial % 4 == 0)]
            programs = Programs(library, codec, dtype)
            back = programs.decode(damaged, x)
            try:
                expected = host_decode(codec, damaged, x, dtype, False)
            except errors.InvalidArgumentError:
                expected = None
            assert (programs.status != 0) == (expected is None)
            programs.fused(damaged, x)  # whatever it makes, it is within its slot
            assert (programs.status != 0) == (expected is None)
            seen[expected is None] += 1
            if expected is not None:
                same(back, expected)
            else:
                assert "damaged near element" in programs.text()
    assert seen[True] > 5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_round_of_mpc_that_claims_all_words(library: Path, dtype: str) -> None:
    """More than a thread block has memory for."""
    codec = _core.Codec("mpc")
    stream = codec.encode(smooth(dtype, 100_000)[0])
    table = 8 * ((100_000 * np.dtype(dtype).itemsize - 1) // (32 << 10))
    stream[:8].view(np.uint64)[0] = (len(stream) - table) // np.dtype(dtype).itemsize
    programs = Programs(library, codec, dtype)
    programs.decode(stream, np.zeros(100_000, dtype))
    assert "damaged near element" in programs.text()


def test_a_round_of_mpc_that_ends_behind_its_message(library: Path) -> None:
    """And behind its slot, had it all the words that a round can have."""
    codec, round_words = _core.Codec("mpc"), 8192
    x = np.random.default_rng(5).integers(0, 2**32, 3 * round_words, dtype=np.uint32)
    x[2 * round_words :] = 1
    stream = codec.encode(x.view(np.float32))
    assert 17_000 * 4 < len(stream) < x.nbytes
    stream[:16].view(np.uint64)[:] = 17_000, 17_000 + round_words * 33 // 32
    programs = Programs(library, codec, "float32")
    programs.decode(stream, np.zeros(len(x), np.float32))
    assert "damaged near element" in programs.text()


def test_a_message_of_mpc_that_ends_within_its_table(library: Path) -> None:
    """The rounds that the rest of the table tells of lie behind the slot."""
    codec, count = _core.Codec("mpc"), 100_000
    stream = codec.encode(smooth("float32", count)[0])
    slot = slot_of(stream, codec.max_bytes(count, "float32"))
    slot[: 3 * HEADER].view(np.uint64)[:] = 8, count, count + 8192
    programs = Programs(library, codec, "float32")
    programs.call("decode", placed(np.zeros(count, np.float32), 0), slot, divisor=1)
    assert "damaged near element" in programs.text()


@pytest.mark.parametrize("rate", [8, 4])
def test_what_lies_behind_the_last_block_of_zfp_is_not_coded_again(library: Path, rate: int) -> None:
    """A sum is as wide as the message: bits that fill up its last word are zeros."""
    codec = _core.Codec(f"zfp:{rate}")
    stream = codec.encode(np.ones(1, np.float32))
    damaged = stream.copy()
    damaged[4 * rate // 8 :] = 0xA5
    own = np.ones(1, np.float32)
    programs = Programs(library, codec, "float32")
    same(programs.fused(damaged, own), programs.fused(stream, own))
    assert programs.status == 0


def test_a_slot_that_claims_too_much(library: Path) -> None:
    """A size beyond all that the piece can have is never followed."""
    x = sample("float32", 300)
    for spec in ["int8", "zfp:8", "fixed:0.25", "identity", "mpc"]:
        codec = usable(spec)
        programs = Programs(library, codec, "float32")
        slot = slot_of(codec.encode(x), programs.room(300))
        slot[:HEADER].view(np.uint64)[0] = 1 << 62
        programs.call("decode", placed(x, 0), slot, divisor=1)
        assert "a coded message says that it has" in programs.text()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("dtype", "to"), list(itertools.product(DTYPES, DTYPES)))
def test_conversions(library: Path, dtype: str, to: str, seed: int) -> None:
    convert = ctypes.CDLL(str(library)).convert_floats
    convert.restype = ctypes.c_ulonglong
    for count, shifts in itertools.product(COUNTS, [(0, 0), (1, 0), (0, 1)]):
        x = placed(sample(dtype, count), shifts[0])
        y = placed(np.zeros(count, storage(to)), shifts[1])
        before, ends = x.tobytes(), [ctypes.c_void_p(z.ctypes.data) for z in (x, y)]
        codes = ALL_DTYPES.index(dtype), ALL_DTYPES.index(to)
        assert convert(codes[0], ends[0], codes[1], ends[1], ctypes.c_uint64(count), seed) == 0
        assert guards_hold(x) and guards_hold(y) and x.tobytes() == before
        same(y, narrow(to, widen(dtype, x)))


@pytest.mark.parametrize("seed", SEEDS)
def test_copies(library: Path, seed: int) -> None:
    copy = ctypes.CDLL(str(library)).copy_bytes_of
    copy.restype = ctypes.c_ulonglong
    for count, a, b in itertools.product([0, 1, 15, 16, 31, 100, 70_001], [0, 1, 2, 4, 8, 15], [0, 1, 4, 8]):
        x = placed(np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8), a)
        y = placed(np.zeros(count, np.uint8), b)
        ends = [ctypes.c_void_p(z.ctypes.data) for z in (x, y)]
        assert copy(*ends, ctypes.c_uint64(count), seed) == 0
        assert guards_hold(y) and x.tobytes() == y.tobytes()
