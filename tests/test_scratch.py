"""What a communicator holds for its calls is bounded, however long they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ALGORITHMS, pairs

import gpucomm
from gpucomm import _core

MOST = 16 << 20
COUNT = 1 << 24  # elements: 64 MiB

pytestmark = pytest.mark.processes


def resident(kind: str) -> int:
    """Bytes of this process's memory of that kind (proc(5))."""
    found = re.search(rf"^Rss{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) << 10


def one_call(comm: Any, collective: str, long: np.ndarray, other: np.ndarray, **how: Any) -> None:
    part = long[comm.rank * (COUNT // comm.world) :][: COUNT // comm.world]
    if collective == "barrier":
        comm.barrier(**how)
    elif collective in ("all_reduce", "reduce", "broadcast"):
        getattr(comm, collective)(long, **how)
    elif collective in ("all_gather", "gather"):
        getattr(comm, collective)(part, out=other if comm.rank == 0 or collective == "all_gather" else None, **how)
    elif collective == "scatter":
        comm.scatter(other if comm.rank == 0 else None, out=part, **how)
    else:
        getattr(comm, collective)(long, out=other if collective == "all_to_all" else other[: part.size], **how)


def held_after(comm: Any, calls: list[tuple[str, str, str | None]]) -> list[tuple[str, int, int]]:
    """Private bytes by which each kind of call has grown this process, and what it maps of all ranks' slots."""
    long, other = np.ones(COUNT, np.float32), np.ones(COUNT, np.float32)
    comm.barrier()
    held = []
    for collective, algorithm, codec in calls:
        before = resident("Anon")
        for _ in range(2):
            long.fill(1)
            one_call(comm, collective, long, other, algorithm=algorithm, **({"codec": codec} if codec else {}))
        held.append((f"{collective} by {algorithm}", resident("Anon") - before, resident("Shmem")))
    return held


@pytest.mark.parametrize("world", [2, 4])
def test_long_messages_take_no_more_scratch(world):
    print(ALGORITHMS, _core)
    with gpucomm.local(world) as ranks:
        for rank in ranks.run(held_after, [(c, a, None) for c, a in pairs()]+[(c, a, "int8") for c, a in pairs(coded=True)]):
            for row in rank: print(row[0], row[1]>>10, row[2]>>10)
    assert 0
