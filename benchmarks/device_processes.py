"""Collectives of ranks that are processes of one GPU: through memory that they share, and by NCCL."""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from device_turns import Row, Turns

import gpucomm
from gpucomm.errors import RankFailedError

ARENAS = {"GPUCOMM_DEVICE_TRANSPORT": "arena"}
NCCL = {"GPUCOMM_DEVICE_TRANSPORT": "nccl", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
CASES = [
    (2, ARENAS, ("direct", "ring", "linear_pipeline")),
    (4, ARENAS, ("direct", "ring", "linear_pipeline")),
    (2, NCCL, ("native", "direct", "ring")),
]


def processes(turns: Turns, kind: str) -> Iterator[Row]:
    """all_reduces; the GPU gives its processes turns. `kind`: that of the place; empty: none are wanted."""
    for world, way, algorithms in CASES if kind else []:
        path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**way, "PYTHONPATH": os.pathsep.join(path)}
        name = f"{world} processes, {way['GPUCOMM_DEVICE_TRANSPORT']}"
        try:
            with gpucomm.local(world, env=env, timeout=30) as ranks:
                for algorithm in algorithms:
                    times = ranks.run(seconds, kind, algorithm, turns.count, turns.repeats)
                    taken = statistics.median(map(max, zip(*times, strict=True)))
                    traffic = 2 * world * 4 * turns.count
                    yield Row.of(f"all_reduce {algorithm}, {name}", traffic, taken, turns.ceiling)
        except RankFailedError as error:
            print(f"{name}: {str(error).strip().splitlines()[-1]}")


@functools.cache
def place_of(kind: str) -> Any:
    """Of this process: all calls of a communicator are on one device."""
    import device_places

    return device_places.Cuda() if kind == "cuda" else device_places.Host()


def seconds(comm: gpucomm.Communicator, kind: str, algorithm: str, count: int, repeats: int) -> list[float]:
    """What each call takes until the device has done it; the first one is not counted."""
    place = place_of(kind)
    x, taken = place.floats(count), []
    for _ in range(repeats + 1):
        comm.barrier()
        begun = time.perf_counter()
        comm.all_reduce(x, "mean", algorithm=algorithm, async_op=True).synchronize()
        taken.append(time.perf_counter() - begun)
    return taken[1:]
