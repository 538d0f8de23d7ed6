"""What the ranks of tests/emulated/test_emulated_faults.py run: on rank 1 CUDA refuses something."""

from __future__ import annotations

from typing import Any

import numpy as np
import staged_ranks
from device_ranks import met, own
from on_emulated import EmulatedKit


def ways(comm: Any, function: str, error: int) -> str:
    """Which way calls go where a function fails from the first call on."""
    own(50)
    if comm.rank == 1:
        EmulatedKit.library.emulated_fail(function.encode(), error, 0)
    return staged_ranks.ways(comm)


def first_call(comm: Any, most_bytes: int) -> str:
    """What it says where no more memory can be had at once; the next communicator's is as always."""
    gpu = own(50)
    if comm.rank == 1:
        EmulatedKit.limit(most_bytes)
    with comm.subset(range(comm.world)) as group:
        _, said, _ = met(lambda: group.all_reduce(gpu.array(np.ones(3))))
    EmulatedKit.limit(1 << 30)
    x = gpu.array(np.ones(3))
    comm.all_reduce(x, async_op=True).synchronize()
    assert (gpu.host(x) == comm.world).all()
    return said
