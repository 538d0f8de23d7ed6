"""Kernels, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from device_turns import RESULT, ROTATED, SLOT, Row, Section, Turns

from gpucomm import _core

# "fixed" as four ranks agree on it for elements up to 8: of 16 bits
CODED = ("bf16", "fp16", "fp8_e4m3", "int8", "int4", "zfp:8", "mpc", "fixed:0.001:16:4")


def kernels(turns: Turns) -> Iterator[Section]:
    """Folds, sums of squares and codings, one by one."""
    for dtype, width in (("float32", 4), ("bfloat16", 2)):
        yield f"folds of {dtype}", _folds(turns, dtype, width)
    yield "sums of squares", _squares(turns)
    for spec in CODED:
        yield f"codings of {spec}", _codings(turns, spec)
    yield "int8 of torch", _int8_of_torch(turns)


def _folds(turns: Turns, dtype: str, width: int) -> Iterator[Row]:
    count = 4 * turns.count // width

    def work(at: list[int], k: int) -> None:
        turns.place.device.reduce(dtype, "sum", [at[RESULT]], at[:k], count)

    for k in (2, 4, 8):
        yield turns.row(f"reduce {k} x {dtype}", (k + 1) * 4 * turns.count, partial(work, k=k))


def _squares(turns: Turns) -> Iterator[Row]:
    device, n, blocks = turns.place.device, turns.count, 1 + 4 + 128  # those of the codecs

    def norms(at: list[int]) -> None:
        device.add_squares("float32", at[0], n, at[SLOT], blocks)

    def losses(at: list[int]) -> None:
        device.add_squares("float32", at[0], n, at[SLOT], became=at[1])

    yield turns.row("norms of float32", 4 * n, norms)
    yield turns.row("losses of float32", 2 * 4 * n, losses)


def coded_bytes(spec: str, count: int) -> int:
    """Of such elements as the buffers hold; where the size varies, it is the host's of some of them."""
    some = min(count, 1 << 20)
    elements = np.random.default_rng(some).standard_normal(some).astype(np.float32)
    return len(_core.Codec(spec).encode(elements)) * count // some


def _codings(turns: Turns, spec: str) -> Iterator[Row]:
    device, n, codec = turns.place.device, turns.count, _core.Codec(spec)
    dense, coded = 4 * n, coded_bytes(spec, n)

    def encode(at: list[int]) -> None:
        device.encode(spec, "float32", at[0], n, at[SLOT])

    def decode(at: list[int], adds: bool = False) -> None:
        device.decode(spec, "float32", at[SLOT], at[RESULT], n, adds)

    def fused(at: list[int]) -> None:
        device.recode(spec, "float32", at[SLOT], at[0], n, at[RESULT])

    slots = [turns.addresses(turn)[SLOT] for turn in range(ROTATED)]

    def add(at: list[int]) -> None:  # to what another slot has: copies overwrite the results
        device.add_coded(spec, "float32", at[SLOT], slots[slots.index(at[SLOT]) - 1], n)

    yield turns.row(f"encode {spec}", dense + coded, encode)
    for turn in range(ROTATED):
        encode(turns.addresses(turn))
    yield turns.row(f"decode {spec}", dense + coded, decode)
    yield turns.row(f"decode {spec} and add", 2 * dense + coded, lambda at: decode(at, True))
    yield turns.row(f"decode {spec}, add and encode", dense + 2 * coded, fused)
    if codec.traits["additive"]:
        yield turns.row(f"add {spec}, coded", 3 * coded, add)


def _int8_of_torch(turns: Turns) -> Iterator[Row]:
    for name, encode in turns.place.int8_of_torch([arrays[0] for arrays in turns.sets]):
        yield turns.row(f"encode int8, {name}", 5 * turns.count, lambda at, run=encode: run(at[0]))
