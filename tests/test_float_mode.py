"""The bits of a result do not go by how the thread that drives a call computes with floats."""

from __future__ import annotations

import ctypes
import platform
from typing import Any

import numpy as np
import pytest
from conftest import pairs
from ranks import run_ranks

from gpucomm import Communicator, codecs

UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}[platform.machine()]  # FE_UPWARD
libm = ctypes.CDLL("libm.so.6")


def change_mode(rank: int) -> None:
    """Of this thread, unlike the other ranks'."""
    torch = pytest.importorskip("torch")
    if rank == 0:
        libm.fesetround(UPWARD)
    if rank == 1:
        torch.set_flush_denormal(True)


def contribution(rank: int, dtype: str) -> np.ndarray[Any, Any]:
    """Ordinary numbers, and denormals of the dtype."""
    rng = np.random.default_rng(rank)
    tiny = float(np.finfo(dtype).smallest_normal) / 4
    return (rng.standard_normal(1000) * np.repeat([1, tiny], 500)).astype(dtype)


CASES: list[tuple[str, dict[str, Any]]] = [
    (dtype, {"algorithm": algorithm})
    for _, algorithm in pairs("all_reduce")
    for dtype in ("float16", "float32", "float64")
]
CASES += [
    ("float32", {"algorithm": algorithm, "codec": codec})
    for _, algorithm in pairs("all_reduce", coded=True)
    for codec in ("bf16", "fp8_e4m3", "int8", "zfp:8", "fixed:1e-3")
]
CASES += [
    ("float32", {"algorithm": "ring", "op": "mean"}),
    ("float32", {"algorithm": "ring", "op": "premul_sum", "scale": 0.3}),
]


@pytest.mark.parametrize(("dtype", "how"), CASES)
def test_an_all_reduce(dtype: str, how: dict[str, Any]) -> None:
    def body(comm: Communicator) -> Any:
        x = contribution(comm.rank, dtype)
        found = [comm.all_reduce(x.copy(), segments=1, **how)]
        change_mode(comm.rank)
        mode = libm.fegetround()
        found.append(comm.all_reduce(x.copy(), segments=1, **how))
        return [result.tobytes() for result in found], libm.fegetround() == mode

    for bits, kept in (results := run_ranks(3, body)):
        assert bits == 2 * results[0][0][:1]
        assert kept, "the caller's mode is the caller's"


def test_codecs() -> None:
    def body(comm: Communicator) -> Any:
        x = contribution(0, "float32")
        found = []
        for before in (True, False):
            specs = ("bf16", "int8", "zfp:8", "fp8_e5m2")
            found.append([codecs.decode(codecs.encode(x, spec), x, spec).tobytes() for spec in specs])
            if before:
                change_mode(comm.rank)
        return found[0] == found[1]

    assert run_ranks(2, body) == [True] * 2
