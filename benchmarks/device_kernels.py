"""Kernels, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from device_turns import RESULT, ROTATED, SLOT, Row, Section, Turns

# bytes an element
CODED = {"bf16": 2.0, "fp16": 2.0, "fp8_e4m3": 1.0, "int8": 1.0, "int4": 0.5, "zfp:8": 1.0}


def kernels(turns: Turns) -> Iterator[Section]:
    """Folds, sums of squares and codings, one by one."""
    for dtype, width in (("float32", 4), ("bfloat16", 2)):
        yield f"folds of {dtype}", _folds(turns, dtype, width)
    yield "sums of squares", _squares(turns)
    for spec, width in CODED.items():
        yield f"codings of {spec}", _codings(turns, spec, 4 * turns.count, int(turns.count * width))
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


def _codings(turns: Turns, spec: str, dense: int, coded: int) -> Iterator[Row]:
    device, n = turns.place.device, turns.count

    def encode(at: list[int]) -> None:
        device.encode(spec, "float32", at[0], n, at[SLOT])

    def decode(at: list[int], adds: bool = False) -> None:
        device.decode(spec, "float32", at[SLOT], at[RESULT], n, adds)

    yield turns.row(f"encode {spec}", dense + coded, encode)
    for turn in range(ROTATED):
        encode(turns.addresses(turn))
    yield turns.row(f"decode {spec}", dense + coded, decode)
    yield turns.row(f"decode {spec} and add", 2 * dense + coded, lambda at: decode(at, True))

    def fused(at: list[int]) -> None:
        device.decode_add_encode(spec, "float32", at[SLOT], at[0], n, at[RESULT])

    yield turns.row(f"decode {spec}, add and encode", dense + 2 * coded, fused)


def _int8_of_torch(turns: Turns) -> Iterator[Row]:
    for name, encode in turns.place.int8_of_torch([arrays[0] for arrays in turns.sets]):
        yield turns.row(f"encode int8, {name}", 5 * turns.count, lambda at, run=encode: run(at[0]))
