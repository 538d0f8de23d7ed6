"""Memory stays what it is, however many calls are made."""

from __future__ import annotations

import os

import numpy as np
import pytest

import gpucomm

CALLS = 100_000


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def many_calls(comm: gpucomm.Communicator, calls: int) -> int:
    """Calls of all kinds, some under way at once; returns by how much this process has grown."""
    x, y, z = (np.ones(64, np.float32) for _ in range(3))
    peer = 1 - comm.rank

    def turn() -> None:
        works = [comm.all_reduce(z, "max", async_op=True), comm.recv(y, peer, async_op=True)]
        comm.send(x, peer)
        comm.broadcast(x, root=1)
        comm.all_reduce(x, op="max", algorithm="direct", segments=2)
        for work in works:
            work.wait()

    for _ in range(1000):
        turn()
    before = resident_bytes()
    for _ in range(calls // 5):
        turn()
    return resident_bytes() - before


@pytest.mark.processes
def test_a_hundred_thousand_calls_do_not_grow():
    with gpucomm.local(2) as world:
        assert max(world.run(many_calls, CALLS)) < 1 << 20
