"""Collectives of ranks that are processes of one GPU: through memory that they share, and by NCCL."""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from device_turns import Row, Section

import gpucomm
from gpucomm.errors import RankFailedError

ARENAS = {"GPUCOMM_DEVICE_TRANSPORT": "arena"}
NCCL = {"GPUCOMM_DEVICE_TRANSPORT": "nccl", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
Case = tuple[int, dict[str, str], tuple[str, ...]]  # ranks, their way, algorithms
CASES: list[Case] = [
    (2, ARENAS, ("direct", "ring", "linear_pipeline")),
    (4, ARENAS, ("direct", "ring", "linear_pipeline")),
    (2, NCCL, ("native", "direct", "ring")),
]


def processes(kind: str, count: int, repeats: int, ceiling: float) -> Iterator[Section]:
    """all_reduces of so many float32 on a kind of place; the GPU gives its processes turns."""
    for case in CASES:
        name = f"{case[0]} processes, {case[1]['GPUCOMM_DEVICE_TRANSPORT']}"
        yield name, _all_reduces(case, name, (kind, count, repeats), ceiling)


def _all_reduces(case: Case, name: str, what: tuple[str, int, int], ceiling: float) -> Iterator[Row]:
    world, way, algorithms = case
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**way, "PYTHONPATH": os.pathsep.join(path)}
    kind, count, _ = what
    with gpucomm.local(world, env=env, timeout=30) as ranks:
        if why := _unavailable(ranks, kind):
            print(f"{name}: {why}")
            return
        for algorithm in algorithms:
            times = ranks.run(seconds, algorithm, *what)
            taken = statistics.median(map(max, zip(*times, strict=True)))
            yield Row.of(f"all_reduce {algorithm}, {name}", 2 * world * 4 * count, taken, ceiling)


def _unavailable(ranks: Any, kind: str) -> str:
    """Why this machine has not this way between processes, which a small call tells; else it is empty."""
    try:
        ranks.run(seconds, "direct", kind, 256, 1)
    except RankFailedError as error:
        why = str(error).partition("\n")[0]
        if "UnavailableError" in why:
            return why
        raise
    return ""


@functools.cache
def place_of(kind: str) -> Any:
    """Of this process: all calls of a communicator are on one device."""
    import device_places

    return device_places.Cuda() if kind == "cuda" else device_places.Host()


def seconds(comm: gpucomm.Communicator, algorithm: str, kind: str, count: int, repeats: int) -> list[float]:
    """What each call takes until the device has done it; the first one is not counted."""
    place = place_of(kind)
    x, taken = place.floats(count), []
    for _ in range(repeats + 1):
        comm.barrier()
        begun = time.perf_counter()
        comm.all_reduce(x, "mean", algorithm=algorithm, async_op=True).synchronize()
        taken.append(time.perf_counter() - begun)
    return taken[1:]
