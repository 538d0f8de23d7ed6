"""What every codec promises, whatever its name: a new one is tested by being registered."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from codec_samples import CODECS, FLOATS, Array, codec_for, narrow, storage, usable, widen
from hypothesis import given, settings
from hypothesis import strategies as st

import gpucomm
from gpucomm import _core, errors

TAKEN = [(spec, dtype) for spec in CODECS for dtype in FLOATS if _core.Codec(spec).takes(dtype)]


def counts(codec: _core.Codec) -> list[int]:
    block = codec.traits["block"]
    return sorted({0, 1, 2, 3, 31, block - 1, block, block + 1, 5 * block + 3, 1023, 1024, 1025, 5003})


def sample(dtype: str, count: int, seed: int = 0) -> Array:
    """Values of many sizes: each run of 64 has its own, one run is all zero, one below 1e-30."""
    rng = np.random.default_rng([count, seed])
    scales = rng.choice(
        [1.0, 1.0, 3.0, 1e-3, 1e-6, 0.0, 1e-31 if dtype != "float16" else 1e-7], count // 64 + 1
    )
    return narrow(dtype, np.clip(rng.standard_normal(count) * np.repeat(scales, 64)[:count], -5, 5))


def coded(codec: _core.Codec, x: Array, dtype: str) -> Array:
    return codec.encode(x, dtype=dtype)


def decoded(codec: _core.Codec, stream: Array, count: int, dtype: str) -> Array:
    out = np.full(count, 77, storage(dtype))
    codec.decode(stream, out, dtype=dtype)
    return out


def bounds(codec: _core.Codec, x: Array, dtype: str) -> Array:
    """The bound of each element of x, float64."""
    block = 1 if codec.traits["bound"] == "element" else codec.traits["block"]
    wide = np.abs(x)
    tops = np.maximum.reduceat(wide, np.arange(0, len(wide), block)) if len(wide) else wide
    return np.repeat([codec.bound(float(top), dtype) for top in tops], block)[: len(wide)]


@pytest.mark.parametrize(("spec", "dtype"), TAKEN)
def test_the_error_is_within_the_bound_and_as_reported(level: str, spec: str, dtype: str) -> None:
    for count in counts(_core.Codec(spec)):
        x = sample(dtype, count)
        codec = codec_for(spec, x, dtype)
        stream = coded(codec, x, dtype)
        result = decoded(codec, stream, count, dtype)
        lost = np.abs(widen(dtype, result) - widen(dtype, x))
        assert np.all(lost <= bounds(codec, widen(dtype, x), dtype))
        max_abs, sum_sq = codec.error(x, dtype=dtype)
        assert max_abs == lost.max(initial=0.0)
        assert sum_sq == pytest.approx(float((lost**2).sum()), rel=1e-9)
        assert codec.traits["lossy"] or result.tobytes() == x.tobytes()


@pytest.mark.parametrize(("spec", "dtype"), TAKEN)
def test_every_simd_level_gives_the_same_bytes(spec: str, dtype: str) -> None:
    before = _core.simd_level()
    x = sample(dtype, 5003)
    codec = codec_for(spec, x, dtype)
    seen = set()
    for name in _core.simd_levels():
        _core.set_simd_level(name)
        stream = coded(codec, x, dtype)
        seen.add((stream.tobytes(), decoded(codec, stream, len(x), dtype).tobytes()))
    _core.set_simd_level(before)
    assert len(seen) == 1


@pytest.mark.parametrize(("spec", "dtype"), TAKEN)
def test_sizes(spec: str, dtype: str) -> None:
    codec = usable(spec)
    for count in counts(codec):
        size = len(coded(codec, sample(dtype, count), dtype))
        most = codec.max_bytes(count, dtype)
        assert size == most if codec.traits["fixed_size"] else size <= most
    assert codec.max_bytes(1 << 33, dtype) > codec.max_bytes(1 << 32, dtype) > 1 << 28


@pytest.mark.parametrize(("spec", "dtype"), TAKEN)
def test_decode_add_adds_what_decode_gives_and_rounds_once(level: str, spec: str, dtype: str) -> None:
    for count in counts(_core.Codec(spec)):
        x, start = sample(dtype, count), sample(dtype, count, seed=1)
        codec = codec_for(spec, x, dtype)
        stream = coded(codec, x, dtype)
        wide = "float64" if dtype == "float64" else "float32"
        # a lossy stream says nothing of its dtype: it can be decoded in float32, before any rounding
        kind = wide if codec.traits["lossy"] and codec.takes(wide) else dtype
        unrounded = widen(kind, decoded(codec, stream, count, kind))
        expected = widen(dtype, start).astype(wide) + unrounded.astype(wide)
        codec.decode_add(stream, start, dtype=dtype)
        np.testing.assert_array_equal(widen(dtype, start), widen(dtype, narrow(dtype, expected)))


@pytest.mark.parametrize(("spec", "dtype"), TAKEN)
def test_no_pointer_needs_alignment(level: str, spec: str, dtype: str) -> None:
    x = sample(dtype, 1500)
    codec = codec_for(spec, x, dtype)
    expected = coded(codec, x, dtype)
    most = codec.max_bytes(len(x), dtype)

    def odd(nbytes: int, kind: np.dtype | str = np.uint8) -> Array:
        return np.zeros(nbytes + 1, np.uint8)[1:].view(kind)

    source, out = odd(x.nbytes, x.dtype), odd(most)
    source[:] = x
    out = out[: codec.encode_to(source, out, dtype=dtype)]
    np.testing.assert_array_equal(out, expected)
    back, total = odd(x.nbytes, x.dtype), odd(x.nbytes, x.dtype)
    codec.decode(out, back, dtype=dtype)
    assert back.tobytes() == decoded(codec, expected, len(x), dtype).tobytes()
    codec.decode_add(out, total, dtype=dtype)
    np.testing.assert_array_equal(widen(dtype, total), widen(dtype, back))


@pytest.mark.parametrize(("spec", "dtype"), TAKEN)
def test_nothing_is_written_beyond_the_end(level: str, spec: str, dtype: str) -> None:
    for count in counts(_core.Codec(spec)):
        x = sample(dtype, count)
        codec = codec_for(spec, x, dtype)
        most = codec.max_bytes(count, dtype)
        out = np.full(most + 64, 0xA5, np.uint8)
        size = codec.encode_to(x, out[:most], dtype=dtype)
        assert np.all(out[most:] == 0xA5)
        back = np.full(x.nbytes + 64, 0xA5, np.uint8)
        codec.decode(out[:size], back[: x.nbytes].view(x.dtype), dtype=dtype)
        assert np.all(back[x.nbytes :] == 0xA5)


@pytest.mark.parametrize("spec", CODECS)
def test_nan_and_inf_survive_or_are_refused_by_index(level: str, spec: str) -> None:
    codec = usable(spec)
    kept = {"nan": codec.traits["keeps_nan"], "inf": codec.traits["keeps_infinity"]}
    kept["-inf"] = kept["inf"]
    for (name, keeps), at, count in itertools.product(kept.items(), [0, 5, 130, 2047], [2048, 2100]):
        finite = sample("float32", count)
        finite[at] = 0
        x = finite.copy()
        x[at] = float(name)
        if not keeps:
            with pytest.raises(errors.InvalidArgumentError, match=f"element {at}, which is {name}: "):
                codec.encode(x)
            continue
        result = decoded(codec, codec.encode(x), count, "float32")
        np.testing.assert_array_equal(result[at], x[at])
        result[at] = 0
        assert np.all(np.abs(widen("float32", result) - finite) <= bounds(codec, finite, "float32"))


@pytest.mark.parametrize("spec", CODECS)
def test_the_ends_of_the_range(level: str, spec: str) -> None:
    """Up to the largest float32 and down to the least: within the bound, and no Inf where there is one."""
    rng = np.random.default_rng(5)
    for exponent in [-149, -140, -127, -126, -110, -98, 60, 100, 119, 120, 126, 127]:
        x = np.ldexp(rng.uniform(-2, 2, 700), exponent).astype(np.float32)
        x[[0, 150]] = np.ldexp([1, -1], exponent)
        x[300] = np.finfo(np.float32).max if exponent == 127 else 0
        try:
            codec = codec_for(spec, x, "float32")
        except errors.InvalidArgumentError:  # an absolute bound has no width for these
            assert _core.Codec(spec).traits["needs_maximum"] and exponent > 15
            continue
        lost = np.abs(
            widen("float32", decoded(codec, codec.encode(x), len(x), "float32")) - widen("float32", x)
        )
        assert np.all(lost <= bounds(codec, widen("float32", x), "float32"))


@pytest.mark.parametrize("spec", CODECS)
def test_zeros_stay_zero(spec: str) -> None:
    codec = usable(spec)
    for count in counts(codec):
        assert not decoded(codec, codec.encode(np.zeros(count, np.float32)), count, "float32").any()


@pytest.mark.parametrize("spec", CODECS)
def test_a_stream_of_another_length_is_refused(spec: str) -> None:
    codec = usable(spec)
    stream = codec.encode(sample("float32", 1000))
    out = np.empty(1000, np.float32)
    for wrong in [stream[:-1], stream[:1], stream[:0], np.concatenate([stream, stream[:1]])]:
        with pytest.raises(errors.InvalidArgumentError, match=rf"codec {codec.spec}"):
            codec.decode(wrong, out)
        with pytest.raises(errors.InvalidArgumentError, match=rf"codec {codec.spec}"):
            codec.decode_add(wrong, out)


@pytest.mark.parametrize("spec", CODECS)
@settings(max_examples=60, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(1, 255)), min_size=1), wild=st.booleans()
)
def test_a_damaged_stream_raises_or_gives_values(spec: str, flips: list[tuple[int, int]], wild: bool) -> None:
    codec = usable(spec)
    x = sample("float32", 600)
    stream = codec.encode(x)
    for at, mask in flips:
        stream[at % len(stream)] ^= mask
    if wild:
        stream = np.random.default_rng(flips[0][0]).integers(0, 256, len(stream), dtype=np.uint8)
    out = np.full(616, 77, np.float32)
    try:
        codec.decode(stream, out[:600])
    except errors.InvalidArgumentError as error:
        assert "damaged" in str(error)
    assert np.all(out[600:] == 77)


@pytest.mark.parametrize("spec", CODECS)
def test_the_spec_makes_the_same_codec(spec: str) -> None:
    codec = usable(spec)
    again = _core.Codec(codec.spec)
    assert again.spec == codec.spec
    x = sample("float32", 300)
    np.testing.assert_array_equal(again.encode(x), codec.encode(x))


@pytest.mark.parametrize("spec", CODECS)
def test_other_dtypes_are_refused_by_lossy_codecs(spec: str) -> None:
    codec = usable(spec)
    for dtype in ["int32", "bool", "complex64", "float64"]:
        if not codec.takes(dtype):
            with pytest.raises(errors.UnsupportedTypeError, match=f"codec .* takes .*, not {dtype}"):
                codec.encode(np.zeros(3, dtype))
    assert not (codec.traits["lossy"] and codec.takes("int32"))


@pytest.mark.parametrize("spec", CODECS)
def test_additive_and_agreed_are_refused_elsewhere(spec: str) -> None:
    codec = usable(spec)
    stream = codec.encode(np.ones(10, np.float32))
    if not codec.traits["additive"]:
        with pytest.raises(errors.InvalidArgumentError, match="is not additive"):
            codec.add(stream, stream.copy())
    with pytest.raises(errors.InvalidArgumentError, match="needs no agreed maximum"):
        codec.agreed(1.0, 2)


def test_unknown_codecs_and_arguments() -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"unknown codec 'zip'; known: .*bf16, .*identity"):
        _core.Codec("zip:3")
    with pytest.raises(errors.InvalidArgumentError, match=r"unknown codec 'é\\ud800'; known: "):
        gpucomm.codecs.encode(np.ones(3), "é\ud800")
    for name, about in _core.codecs().items():
        with pytest.raises(
            errors.InvalidArgumentError, match=f"codec '{name}:nonsense' has a wrong argument"
        ):
            _core.Codec(f"{name}:nonsense")
        assert about["examples"]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "bool", "float64"])
def test_identity_adds_as_a_reduction_does(dtype: str) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, 256, 800, dtype=np.uint8).view(dtype) for _ in range(2))
    if dtype == "float64":
        a, b = rng.standard_normal((2, 100))
    expected = _core.reduce(dtype, "sum", [a, b])
    codec = _core.Codec("identity")
    codec.decode_add(codec.encode(b), a)
    assert a.tobytes() == expected.tobytes()


def test_identity_moves_what_it_cannot_add() -> None:
    codec = _core.Codec("identity")
    x = np.ones(3, np.complex64)
    np.testing.assert_array_equal(decoded(codec, codec.encode(x), 3, "complex64"), x)
    with pytest.raises(errors.UnsupportedTypeError, match="complex64 are only moved"):
        codec.decode_add(codec.encode(x), x)


@pytest.mark.parametrize(("spec", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_casts_are_those_of_reductions(level: str, spec: str, dtype: str) -> None:
    """Any bits at all, against NumPy's rounding; every NaN becomes the canonical one."""
    bits = np.random.default_rng(4).integers(0, 1 << 32, 100_003, dtype=np.uint32)
    x = bits.view(np.float32)
    codec = _core.Codec(spec)
    got = codec.encode(x).view(np.uint16)
    with np.errstate(all="ignore"):
        expected = narrow(dtype, x).view(np.uint16)
    expected[np.isnan(x)] = {"float16": 0x7E00, "bfloat16": 0x7FC0}[dtype]
    np.testing.assert_array_equal(got, expected)
    back = decoded(codec, got.view(np.uint8), len(x), "float32")
    np.testing.assert_array_equal(back.astype(np.float64), widen(dtype, got.view(storage(dtype))))
    assert np.all(back.view(np.uint32)[np.isnan(back)] == 0x7FC00000)


def test_the_public_functions() -> None:
    assert list(gpucomm.codecs.names()) == sorted(_core.codecs())
    x = sample("float32", 600).reshape(20, 30)
    for general in CODECS:
        spec = gpucomm.codecs.agreed(general, float(np.abs(x).max()), 4)
        back = gpucomm.codecs.decode(gpucomm.codecs.encode(x, spec), x, spec)
        assert back.shape == x.shape
        assert back.dtype == x.dtype
        tops = bounds(codec_for(spec, x, "float32"), widen("float32", x).ravel(), "float32")
        assert np.all(np.abs(back - x).ravel() <= tops)


def test_arguments_of_other_kinds_are_sentences() -> None:
    x = np.ones(4, np.float32)
    for call in (
        lambda: gpucomm.codecs.encode(x, None),
        lambda: gpucomm.codecs.agreed(8, 1.0, 2),
        lambda: gpucomm.codecs.decode(x, x, 8),
    ):
        with pytest.raises(errors.InvalidArgumentError, match=r'codec must be a spec such as "int8", got'):
            call()
    with pytest.raises(errors.UnsupportedTypeError, match="like must be an array, got list"):
        gpucomm.codecs.decode(gpucomm.codecs.encode(x, "int8"), [1.0], "int8")
