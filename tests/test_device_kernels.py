"""What a device computes has the bits of the host's own functions: folds, and codings of every codec."""

from __future__ import annotations

import numpy as np
import on_device
import pytest
from codec_samples import CODECS, narrow, storage, usable
from norms import BLOCKS, PART_ROWS, lost, norm_values, squares, within
from reference import DTYPES, OPS, defined, values
from test_reduce import sample, widen

from gpucomm import _core


def finish(kit):
    on_device.finish(kit.device)
    assert kit.device.failure() == ""


@pytest.mark.parametrize("sources", [1, 2, 3, 8, 11])
@pytest.mark.parametrize("op", OPS)
def test_folds(make_kit, op, sources):
    """Into two destinations, one of which is a source."""
    kit = make_kit()
    for dtype in DTYPES:
        if not defined(op, dtype):
            continue
        for count in (0, 1, 255, 10_003):
            arrays = [values(dtype, count, rank, op) for rank in range(sources)]
            there = [kit.array(array, dtype) for array in arrays]
            out = kit.array(np.zeros_like(arrays[0]), dtype)
            divisor, fold = (sources, "sum") if op == "mean" else (1, op)
            expected = _core.reduce(dtype, fold, arrays, divisor)
            places = [kit.address(array) for array in there]
            kit.device.reduce(dtype, fold, [kit.address(out), places[0]], places, count, divisor)
            finish(kit)
            for found in (out, there[0]):
                assert kit.host(found).tobytes() == expected.tobytes(), (dtype, count)


def test_copies_side_by_side(make_kit):
    """From and to every alignment, more than a kernel takes, and nothing beside what is copied."""
    kit, rng = make_kit(), np.random.default_rng(3)
    sizes = [0, 1, 15, 16, 17, 4095, 4096, 100_003]
    cases = [(size, a, b) for size in sizes for a, b in ((0, 0), (5, 5), (0, 8), (4, 12), (2, 4), (3, 8))]
    cases += [(1000, 0, 0)] * 30
    froms = [rng.integers(0, 256, size + a, dtype=np.uint8) for size, a, _ in cases]
    there = [kit.array(x) for x in froms]
    out = [kit.array(np.full(size + b + 20, 7, np.uint8)) for size, _, b in cases]
    kit.device.copy_all(
        [
            (kit.address(y) + b, kit.address(x) + a, size)
            for (size, a, b), x, y in zip(cases, there, out, strict=True)
        ]
    )
    finish(kit)
    for (size, a, b), x, y in zip(cases, froms, out, strict=True):
        found = kit.host(y)
        assert found[b : b + size].tobytes() == x[a:].tobytes()
        assert (found[:b] == 7).all() and (found[b + size :] == 7).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sums_of_squares(make_kit, dtype):
    """Within rounding, from every alignment, and added to what is there; of what was lost too."""
    kit = make_kit()
    for count, shift in [(1, 0), (1000, 1), (10_003, 2), (1 << 16, 0)]:
        x, became = norm_values(dtype, count + shift, 1), norm_values(dtype, count + shift, 2)
        there, other = kit.array(x.copy(), dtype), kit.array(became.copy(), dtype)
        parts, gone = (kit.array(np.zeros((_core.norm_parts, PART_ROWS))) for _ in range(2))
        begin = x.itemsize * shift
        for _ in range(2):
            place = kit.address(there) + begin, count, kit.address(parts)
            kit.device.add_squares(dtype, *place, sum(BLOCKS))
        place = kit.address(there) + begin, count, kit.address(gone)
        kit.device.add_squares(dtype, *place, 1, kit.address(other) + begin, 3)
        finish(kit)
        wide, found = widen(dtype, x)[shift:], kit.host(parts)
        for block, total in zip(BLOCKS, found.sum(0), strict=False):
            assert within(total, 2 * squares(wide, block), count + _core.norm_parts), block
        assert found[:, -1].max() == np.abs(wide).max()
        exact = lost(wide, widen(dtype, became)[shift:], 3)
        assert within(kit.host(gone)[:, 0].sum(), exact, count + _core.norm_parts)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_scaling(make_kit, dtype):
    """In place and elsewhere, from every alignment."""
    kit = make_kit()
    for count, shift in [(1, 0), (255, 1), (10_003, 2)]:
        x = sample(dtype, count + shift, np.random.default_rng(count))
        there, out = kit.array(x.copy(), dtype), kit.array(np.zeros_like(x), dtype)
        begin = x.itemsize * shift
        kit.device.scale(dtype, kit.address(out) + begin, kit.address(there) + begin, count, 0.3)
        kit.device.scale(dtype, kit.address(there), kit.address(there), count, -7.0)
        finish(kit)
        expected = np.zeros_like(x)
        expected[shift:] = _core.scale(dtype, x[shift:].copy(), 0.3)
        assert kit.host(out).tobytes() == expected.tobytes()
        expected = x.copy()
        expected[:count] = _core.scale(dtype, x[:count].copy(), -7.0)
        assert kit.host(there).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_differences(make_kit, dtype):
    """What is no finite number is 0, what is too large for a half its largest."""
    kit, rng = make_kit(), np.random.default_rng(3)
    for count, times in [(1, 1), (10_003, 3)]:
        x, y = (sample(dtype, count, rng) for _ in range(2))
        dense, error = kit.array(x, dtype), kit.array(y.copy(), dtype)
        kit.device.difference(dtype, kit.address(dense), kit.address(error), times, count)
        finish(kit)
        with np.errstate(all="ignore"):
            exact = np.float32(times) * (widen(dtype, x) - widen(dtype, y))
        exact = np.where(np.isfinite(exact), exact, np.float32(0))
        limit = {"float16": np.float32(65504), "bfloat16": np.uint32(0x7F7F0000).view(np.float32)}.get(dtype)
        exact = exact if limit is None else np.clip(exact, -limit, limit)
        assert kit.host(error).tobytes() == narrow(dtype, exact).tobytes()


def rounded(dtype: str, x: np.ndarray) -> np.ndarray:
    """With NaN as the canonical one."""
    with np.errstate(over="ignore"):
        result = narrow(dtype, np.where(np.isnan(x), 0, x).astype(np.float32))
    result[np.isnan(x)] = {"bfloat16": 0x7FC0}.get(dtype, np.nan)
    return result


@pytest.mark.parametrize("to", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_conversions(make_kit, dtype, to):
    """From every alignment; Inf stays or comes about, NaN is the canonical one, -0 keeps its sign."""
    kit, rng = make_kit(), np.random.default_rng(5)
    for count, shift in [(1, 0), (255, 1), (10_003, 2)]:
        given = rng.standard_normal(count + shift) * 2.0 ** rng.integers(-40, 40, count + shift)
        with np.errstate(over="ignore"):
            x = narrow(dtype, given)
        x[::7] = narrow(dtype, np.full(x[::7].shape, -0.0))
        x[1::7] = {"bfloat16": 0x7F80}.get(dtype, np.inf)
        x[2::7] = {"bfloat16": 0x7FC0}.get(dtype, np.nan)
        there, out = kit.array(x.copy(), dtype), kit.array(np.zeros(count + shift, storage(to)), to)
        ends = kit.address(there) + x.itemsize * shift, kit.address(out) + storage(to).itemsize * shift
        kit.device.convert(dtype, ends[0], to, ends[1], count)
        finish(kit)
        assert kit.host(out)[shift:].tobytes() == rounded(to, widen(dtype, x)[shift:]).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half(make_kit, dtype):
    """Folded with another one, for which GPUs have instructions of their own."""
    kit, halves = make_kit(), np.arange(1 << 16, dtype=np.uint16)
    arrays = [x.view(storage(dtype)) for x in (halves, np.random.default_rng(1).permutation(halves))]
    there = [kit.array(x.copy(), dtype) for x in arrays]
    for op in ("sum", "prod", "min", "max"):
        out = kit.array(np.zeros_like(arrays[0]), dtype)
        places = [kit.address(x) for x in there]
        kit.device.reduce(dtype, op, [kit.address(out)], places, len(halves), 1)
        finish(kit)
        assert kit.host(out).tobytes() == _core.reduce(dtype, op, arrays, 1).tobytes(), op


@pytest.mark.parametrize(
    ("dtype", "spec", "apart"), [("float16", "fp16", 1 << 13), ("bfloat16", "bf16", 1 << 16)]
)
def test_roundings_to_every_half(make_kit, dtype, spec, apart):
    """Of each itself, of what is beside it, and beside the middle to the next one."""
    kit, halves = make_kit(), np.arange(1 << 16, dtype=np.uint16).view(storage(dtype))
    beside = np.array([0, 1, -1, apart // 2 - 1, apart // 2, apart // 2 + 1], np.int64)
    bits = widen(dtype, halves).view(np.uint32).astype(np.int64)[:, None] + beside
    x = (bits & 0xFFFFFFFF).astype(np.uint32).ravel().view(np.float32)
    there, out = kit.array(x, "float32"), kit.array(np.zeros(len(x), storage(dtype)), dtype)
    codec = _core.Codec(spec)
    slot = kit.array(np.zeros(8 + codec.max_bytes(len(x), "float32"), np.uint8))
    kit.device.convert("float32", kit.address(there), dtype, kit.address(out), len(x))
    kit.device.encode(spec, "float32", kit.address(there), len(x), kit.address(slot))
    finish(kit)
    assert kit.host(out).tobytes() == rounded(dtype, x).tobytes()
    coded = codec.encode(x, "float32")
    assert kit.host(slot)[8 : 8 + coded.size].tobytes() == coded.tobytes()


def elements(dtype: str, count: int) -> np.ndarray:
    x = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    return narrow(dtype, np.clip(x, -7, 7))


def message(kit, slot) -> bytes:
    """The coded bytes, without the header, which tells how many there are."""
    found = kit.host(slot)
    return found[8:][: int(found[:8].copy().view(np.uint64)[0])].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("spec", CODECS)
def test_codings(make_kit, spec, dtype):
    kit, codec = make_kit(), usable(spec)
    if not codec.takes(dtype):
        pytest.skip(f"{spec} does not take {dtype}")
    for count, shift in [(1, 0), (127, 1), (129, 3), (4096, 0), (10_003, 2)]:
        x = elements(dtype, count + shift)
        coded = codec.encode(x[shift:].copy(), dtype)
        there = kit.array(x, dtype)
        slot = kit.array(np.zeros(8 + codec.max_bytes(count, dtype), np.uint8))
        back, sum_of = (kit.array(x[:count].copy(), dtype) for _ in range(2))
        begin = kit.address(there) + storage(dtype).itemsize * shift
        kit.device.encode(codec.spec, dtype, begin, count, kit.address(slot))
        kit.device.decode(codec.spec, dtype, kit.address(slot), kit.address(back), count)
        kit.device.decode(codec.spec, dtype, kit.address(slot), kit.address(sum_of), count, True)
        fused = kit.array(np.zeros(8 + codec.max_bytes(count, dtype), np.uint8))
        kit.device.recode(codec.spec, dtype, kit.address(slot), begin, count, kit.address(fused))
        finish(kit)
        assert message(kit, slot) == coded.tobytes()
        decoded, added = np.zeros_like(x[:count]), x[:count].copy()
        codec.decode(coded, decoded, dtype)
        codec.decode_add(coded, added, dtype)
        assert kit.host(back).tobytes() == decoded.tobytes()
        assert kit.host(sum_of).tobytes() == added.tobytes()
        own = x[shift:].copy()
        codec.decode_add(coded, own, dtype)
        assert message(kit, fused) == codec.encode(own, dtype).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spec", [spec for spec in CODECS if not usable(spec).traits["fixed_size"]])
def test_codings_of_many_sizes(make_kit, spec, dtype):
    """Of much to leave out, of nothing, and of little, up to a few rounds of mpc."""
    kit, codec = make_kit(), usable(spec)
    rng = np.random.default_rng(9)
    for count in (1, 9000, 70_001):
        walk = np.cumsum(rng.integers(-3, 4, count)).astype(dtype)
        noise = rng.integers(0, 256, count * walk.itemsize, dtype=np.uint8).view(dtype)
        for x in (walk, noise, np.zeros(count, dtype), rng.standard_normal(count).astype(dtype)):
            coded, own = codec.encode(x), walk / 8
            there = kit.array(x)
            slot, fused = (kit.array(np.zeros(8 + codec.max_bytes(count, dtype), np.uint8)) for _ in range(2))
            back, mean_of, operand = (kit.array(own.copy()) for _ in range(3))
            kit.device.encode(codec.spec, dtype, kit.address(there), count, kit.address(slot))
            kit.device.decode(codec.spec, dtype, kit.address(slot), kit.address(back), count)
            kit.device.decode(codec.spec, dtype, kit.address(slot), kit.address(mean_of), count, True, 3)
            places = kit.address(slot), kit.address(operand), count, kit.address(fused)
            kit.device.recode(codec.spec, dtype, *places)
            finish(kit)
            assert message(kit, slot) == coded.tobytes()
            assert kit.host(back).tobytes() == x.tobytes()
            codec.decode_add(coded, own, dtype)
            assert message(kit, fused) == codec.encode(own, dtype).tobytes()
            mean = _core.reduce(dtype, "sum", [own], divisor=3)
            assert kit.host(mean_of).tobytes() == mean.tobytes()


def shapes(count: int) -> list[np.ndarray]:
    """Smooth ones, some with all in one element of four, each as it is and of all magnitudes."""
    rng = np.random.default_rng(6)
    walk = np.cumsum(rng.standard_normal(count)) * 1e-3 + 1
    like = [walk, np.full(count, 0.7), np.resize([1, -1], count), np.resize([0, 0, 0, 1.5], count), walk**9]
    sizes = np.repeat(2.0 ** rng.uniform(-149, 120, count // 4 + 1), 4)[:count]
    return [(x * size).astype(np.float32) for x in like for size in (1.0, sizes)]


ANY = [spec for spec in CODECS if usable(spec).traits["lossy"] and not usable(spec).traits["additive"]]


@pytest.mark.parametrize("spec", [*ANY, "zfp:2.25", "zfp:31.75"])
def test_codings_of_all_magnitudes(make_kit, spec):
    kit, codec, count = make_kit(), _core.Codec(spec), 3001
    room = 8 + codec.max_bytes(count, "float32")
    for x in shapes(count):
        coded, own, back = codec.encode(x), x[::-1].copy(), np.zeros_like(x)
        there, operand, out = (kit.array(y.copy()) for y in (x, own, back))
        slot, fused = (kit.array(np.zeros(room, np.uint8)) for _ in range(2))
        kit.device.encode(spec, "float32", kit.address(there), count, kit.address(slot))
        kit.device.decode(spec, "float32", kit.address(slot), kit.address(out), count)
        kit.device.recode(spec, "float32", kit.address(slot), kit.address(operand), count, kit.address(fused))
        finish(kit)
        assert message(kit, slot) == coded.tobytes()
        codec.decode(coded, back)
        assert kit.host(out).tobytes() == back.tobytes()
        codec.decode_add(coded, own)
        assert message(kit, fused) == codec.encode(own).tobytes()


@pytest.mark.parametrize("rate", ["2.25", "8", "16"])
def test_any_bits_as_zfp(make_kit, rate):
    """What no encoder writes, too: every exponent, and blocks that seem to be empty."""
    kit, codec, count = make_kit(), _core.Codec(f"zfp:{rate}"), 40_004
    bits = np.random.default_rng(2).integers(0, 256, codec.max_bytes(count), dtype=np.uint8)
    out, back = kit.array(np.zeros(count, np.float32)), np.zeros(count, np.float32)
    slot = kit.array(np.concatenate([np.array([bits.size], np.uint64).view(np.uint8), bits]))
    kit.device.decode(codec.spec, "float32", kit.address(slot), kit.address(out), count)
    finish(kit)
    codec.decode(bits, back)
    assert kit.host(out).tobytes() == back.tobytes()


@pytest.mark.parametrize("spec", [spec for spec in CODECS if usable(spec).traits["additive"]])
def test_sums_of_what_is_coded(make_kit, spec):
    kit, codec = make_kit(), usable(spec)
    for count in (1, 130, 5000):
        rng = np.random.default_rng(count)
        slots = []
        for _ in range(2):
            coded = codec.encode(rng.uniform(-2, 2, count).astype(np.float32))
            header = np.array([coded.size], np.uint64).view(np.uint8)
            slots.append(kit.array(np.concatenate([header, coded])))
        into = kit.host(slots[1])[8:].copy()
        codec.add(kit.host(slots[0])[8:].copy(), into)
        kit.device.add_coded(codec.spec, "float32", kit.address(slots[0]), kit.address(slots[1]), count)
        finish(kit)
        assert kit.host(slots[1])[8:].tobytes() == into.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("spec", [spec for spec in CODECS if usable(spec).traits["keeps_nan"]])
def test_codings_of_what_is_not_finite(make_kit, spec, dtype):
    """It comes back as it does on the host, by itself and added to numbers."""
    kit, codec, count = make_kit(), usable(spec), 1000
    if not codec.takes(dtype):
        pytest.skip(f"{spec} does not take {dtype}")
    x, own = elements(dtype, count), elements(dtype, count)
    x[::7] = {"bfloat16": 0x7FC0}.get(dtype, np.nan)
    if codec.traits["keeps_infinity"]:
        x[1::7] = {"bfloat16": 0x7F80}.get(dtype, np.inf)
    there, back, sum_of = (kit.array(y.copy(), dtype) for y in (x, own, own))
    slot = kit.array(np.zeros(8 + codec.max_bytes(count, dtype), np.uint8))
    kit.device.encode(codec.spec, dtype, kit.address(there), count, kit.address(slot))
    kit.device.decode(codec.spec, dtype, kit.address(slot), kit.address(back), count)
    kit.device.decode(codec.spec, dtype, kit.address(slot), kit.address(sum_of), count, True)
    finish(kit)
    coded, decoded = codec.encode(x, dtype), np.zeros_like(x)
    codec.decode(coded, decoded, dtype)
    codec.decode_add(coded, own, dtype)
    assert kit.host(slot)[8 : 8 + coded.size].tobytes() == coded.tobytes()
    assert kit.host(back).tobytes() == decoded.tobytes()
    assert kit.host(sum_of).tobytes() == own.tobytes()
