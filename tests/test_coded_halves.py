"""Sums of 16-bit floats by two_shot: made in float32, and rounded once before they are coded again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from codec_samples import CODECS, narrow, storage, usable, widen
from ranks import run_ranks

from gpucomm import Communicator, _core

torch = pytest.importorskip("torch")

HALVES = ["float16", "bfloat16"]
CHUNK = 1280  # a multiple of every codec's block
LOSSY = [spec for spec in CODECS if _core.Codec(spec).traits["lossy"]]
PLAIN = [spec for spec in LOSSY if not _core.Codec(spec).traits["additive"]]


def contribution(dtype: str, rank: int, count: int) -> Any:
    """Bits, of numbers whose sums need more digits than they have themselves."""
    x = np.random.default_rng([rank, count]).standard_normal(count) + 1.0
    return narrow(dtype, np.clip(x, -7, 7))


def tensor(dtype: str, bits: Any) -> Any:
    """As torch has it: NumPy has no bfloat16."""
    return torch.from_numpy(bits.view(np.int16).copy()).view(getattr(torch, dtype))


def summed(dtype: str, world: int, collective: str = "all_reduce", **how: Any) -> list[Any]:
    """What each rank gets, as bits."""

    def body(comm: Communicator) -> Any:
        x = tensor(dtype, contribution(dtype, comm.rank, world * CHUNK))
        result = getattr(comm, collective)(x, algorithm="two_shot", **how)
        return result.view(torch.int16).numpy().view(storage(dtype)).copy()

    return run_ranks(world, body)


def parts_of(dtype: str, world: int, owner: int) -> list[Any]:
    """The contributions to a chunk, its owner's first, then in the order in which they are added."""
    part = slice(owner * CHUNK, (owner + 1) * CHUNK)
    return [contribution(dtype, (owner - i) % world, world * CHUNK)[part] for i in range(world)]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("spec", PLAIN)
@pytest.mark.parametrize(("world", "op"), [(2, "mean"), (3, "sum"), (7, "mean"), (8, "sum")])
def test_a_sum_is_rounded_once(spec: str, dtype: str, world: int, op: str) -> None:
    codec, results = usable(spec), summed(dtype, world, codec=spec, op=op)
    assert len({bits.tobytes() for bits in results}) == 1
    for owner in range(world):
        own, *others = parts_of(dtype, world, owner)
        total = widen(dtype, own).astype(np.float32)
        for part in others:
            codec.decode_add(codec.encode(part, dtype), total, "float32")
        total = total / np.float32(world) if op == "mean" and world > 2 else total
        rounded = narrow(dtype, total)
        if op == "mean" and world == 2:  # of one message: rounded, then halved
            rounded = narrow(dtype, widen(dtype, rounded) / 2)
        expected = np.zeros_like(own)
        codec.decode(codec.encode(rounded, dtype), expected, dtype)
        found = results[0][owner * CHUNK : (owner + 1) * CHUNK]
        assert found.tobytes() == expected.tobytes(), owner


@pytest.mark.parametrize(("dtype", "spec"), [("float16", "fp16"), ("bfloat16", "bf16")])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("segments", [1, 3])
def test_where_coding_loses_nothing_the_error_is_that_rounding(
    collective: str, dtype: str, spec: str, segments: int
) -> None:
    world = 8
    results = summed(dtype, world, collective, codec=spec, segments=segments)
    found = np.concatenate(results) if collective == "reduce_scatter" else results[0]
    exact = sum(widen(dtype, contribution(dtype, r, world * CHUNK)) for r in range(world))
    half_digit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    in_float32 = world * 2.0**-24 * 60  # sums of magnitudes are below 60
    limit = half_digit * 2.0 ** np.floor(np.log2(np.abs(exact) + in_float32)) + in_float32
    assert (np.abs(widen(dtype, found) - exact) <= limit).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("spec", LOSSY)
def test_the_error_is_that_of_two_codings_and_a_rounding(spec: str, dtype: str) -> None:
    """Against sums in float64."""
    world = 8
    codec = usable(spec, 7.0, world)
    found = widen(dtype, summed(dtype, world, codec=spec)[0])
    for owner in range(world):
        own, *others = parts_of(dtype, world, owner)
        exact, lost = widen(dtype, own), np.zeros(CHUNK)
        for part in others:
            decoded = np.zeros(CHUNK, np.float32)
            codec.decode(codec.encode(part, dtype), decoded, "float32")
            exact, lost = exact + widen(dtype, part), lost + np.abs(decoded - widen(dtype, part))
        if codec.traits["additive"]:  # its owner's is coded too
            lost += codec.bound(7.0, "float32")
        most = float((np.abs(exact) + lost).max())
        again = 0.0 if codec.traits["additive"] else codec.bound(most, dtype)
        once = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype] * most
        off = np.abs(found[owner * CHUNK : (owner + 1) * CHUNK] - exact)
        assert (off <= lost + once + again + 1e-5).all()


def test_a_mean_does_not_overflow_on_its_way() -> None:
    def body(comm: Communicator) -> Any:
        x = np.array([40_000, -40_000, 65_504], np.float16)
        return comm.all_reduce(x, "mean", codec="fp16", algorithm="two_shot").tolist()

    assert run_ranks(4, body) == [[40_000, -40_000, 65_504]] * 4


@pytest.mark.parametrize("dtype", HALVES)
def test_without_loss_elements_are_added_as_they_travel(dtype: str) -> None:
    """identity codes a dtype's own bits: each partial sum is rounded."""
    world = 4
    found = summed(dtype, world, codec="identity")[0]
    for owner in range(world):
        total, *others = parts_of(dtype, world, owner)
        for part in others:
            total = narrow(dtype, (widen(dtype, total) + widen(dtype, part)).astype(np.float32))
        assert found[owner * CHUNK : (owner + 1) * CHUNK].tobytes() == total.tobytes()
