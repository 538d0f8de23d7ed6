"""What a communicator holds for its calls is bounded, however long they are."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOTED, pairs

import gpucomm

COUNT = 1 << 24  # elements: 64 MiB
MOST = 16 << 20  # bytes of a rank's own; and of all ranks' slots
PIECE = 256 << 10  # of what a peer lets this rank fold where it lies
OTHERS = 4 << 20  # programs, of some dozens of kinds of calls; Python

pytestmark = pytest.mark.processes


def resident(kind: str) -> int:
    """Bytes of this process's memory of that kind, as /proc has it."""
    ctypes.CDLL(None).malloc_trim(0)  # what is freed is nobody's
    found = re.search(rf"^Rss{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) << 10


def one_call(comm: Any, collective: str, long: np.ndarray, other: np.ndarray, **how: Any) -> None:
    share = COUNT // comm.world
    if collective in ("all_gather", "gather", "scatter"):
        x, out = long[:share], other
    elif collective in ("reduce_scatter", "all_to_all"):
        x, out = long, other[:share] if collective == "reduce_scatter" else other
    else:
        x, out = long, None
    if collective == "scatter":
        x, out = (out if comm.rank == 0 else None), x
    elif collective == "gather" and comm.rank:
        out = None
    root = {"root": 0} if collective in ROOTED else {}
    getattr(comm, collective)(x, **root, **({} if out is None else {"out": out}), **how)


def held(comm: Any, calls: list[tuple[str, dict[str, Any]]]) -> tuple[int, int]:
    """By how many bytes these calls grow this process, and how many of all ranks' slots it has touched."""
    long, other = np.ones(COUNT, np.float32), np.ones(COUNT, np.float32)
    before = resident("Anon")
    for collective, how in calls:
        one_call(comm, collective, long, other, **how)
        long.fill(1)
    return resident("Anon") - before, resident("Shmem")


def test_it_does_not_grow_with_the_message():
    world = 4
    calls = [(collective, {"algorithm": name}) for collective, name in pairs()]
    calls += [(collective, {"algorithm": name, "codec": "int8"}) for collective, name in pairs(coded=True)]
    with gpucomm.local(world) as ranks:
        for own, slots in ranks.run(held, calls):
            assert own < MOST + (world - 1) * PIECE + OTHERS and slots < MOST + OTHERS, (own, slots)
