"""One rank of a small MPI job that times one collective; started by mpiexec, in an environment of its own.

python mpi_job.py '{"collective": ..., "count": ..., "dtype": ..., "least_s": ...}': rank 0 prints what came
out, as JSON.
"""

from __future__ import annotations

import gc
import json
import math
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_MOST_CALLS = 100_000


def bind(mpi: Any, collective: str, buffer: Any, part: Any) -> Callable[[], object]:
    """The call: root 0, op sum; in place but for reduce_scatter, as mpi4py's users would write it."""
    world, here = mpi.COMM_WORLD, mpi.IN_PLACE
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: world.Allreduce(here, buffer),
        "reduce": lambda: world.Reduce(here if world.rank == 0 else buffer, buffer, root=0),
        "broadcast": lambda: world.Bcast(buffer, 0),
        "all_gather": lambda: world.Allgather(here, buffer),
        "reduce_scatter": lambda: world.Reduce_scatter_block(buffer, part),
    }
    return calls[collective]


def slowest(mpi: Any, call: Callable[[], object], calls: int) -> float:
    """Seconds of so many calls on the slowest rank."""
    mpi.COMM_WORLD.Barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return float(mpi.COMM_WORLD.allreduce(time.perf_counter() - start, mpi.MAX))


def calls_of(mpi: Any, call: Callable[[], object], least_s: float) -> int:
    """How many calls last that long; also warms up."""
    calls = 1
    while True:
        spent = min(slowest(mpi, call, calls) for _ in range(2))
        wanted = min(_MOST_CALLS, math.ceil(calls * least_s / spent))
        if spent >= least_s / 2 or wanted <= calls:
            return wanted
        calls = min(wanted, calls * 32)


def main(job: dict[str, Any]) -> None:
    """Check the result once, then time."""
    from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]

    gc.disable()
    pattern = runpy.run_path(str(Path(__file__).with_name("pattern.py")))
    rank, ranks = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    buffer = np.empty(job["count"], job["dtype"])
    buffer.fill(0)
    share = buffer.size // ranks
    part = (
        buffer[rank * share :][:share] if job["collective"] == "all_gather" else np.empty(share, buffer.dtype)
    )
    part.fill(0)
    call = bind(MPI, job["collective"], buffer, part)
    pattern["fill"](job["collective"], buffer, part, rank)
    call()
    right = pattern["holds"](job["collective"], buffer, part, rank, ranks)
    correct = MPI.COMM_WORLD.allreduce(int(right), MPI.MIN)
    buffer.fill(0)
    calls = calls_of(MPI, call, job["least_s"])
    time_s = slowest(MPI, call, calls) / calls
    if rank == 0:
        version = MPI.Get_library_version()
        print(json.dumps({"time_s": time_s, "correct": bool(correct), "ranks": ranks, "version": version}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
