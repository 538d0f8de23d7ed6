"""Memory stays what it is, however many calls are made."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import pairs

import gpucomm

pytestmark = pytest.mark.processes

CALLS = 30_000
WINDOWS = 3  # a leak grows in each; Python's tables double now and then


@pytest.fixture(scope="module")
def world():
    with gpucomm.local(2) as world:
        yield world


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


def test_thousands_of_calls_do_not_grow(world):
    assert max(world.run(many_calls, CALLS)) < 1 << 19


def calls_of_other_sizes(comm: gpucomm.Communicator, calls: int) -> int:
    x = np.ones(1 << 15, np.float32)
    before = resident_bytes()
    for call in range(calls):
        comm.all_reduce(x[call:], algorithm="ring", segments=4096)
    return resident_bytes() - before


def test_long_plans_are_not_all_remembered(world):
    assert max(world.run(calls_of_other_sizes, 160)) < 300 << 20


class MallInfo(ctypes.Structure):
    """What glibc says of malloc's memory, of all threads."""

    _fields_ = [(f"field{n}", ctypes.c_size_t) for n in range(10)]  # 4: in mappings of their own, 7: in use


def held() -> tuple[int, int]:
    """Bytes that malloc has given out, and blocks that Python has: far finer than resident pages."""
    gc.collect()
    info = ctypes.CDLL(None).mallinfo2
    info.restype = MallInfo
    found = info()
    return found.field4 + found.field7, sys.getallocatedblocks()


class Arrays:
    """What the calls below are of; those of a rank."""

    def __init__(self, comm: gpucomm.Communicator) -> None:
        self.x, self.y, self.both, self.long = (np.ones(n, np.float32) for n in (64, 64, 128, 40_000))
        self.several = [np.ones(count, np.float32) for count in (3, 500, 0)]
        self.uneven = self.x[: 3 + comm.rank]
        self.shared = gpucomm.empty(40_000, comm=comm)
        self.shared[:] = 1


COLLECTIVES: dict[str, Callable[..., Any]] = {
    "all_reduce": lambda comm, of, **k: comm.all_reduce(of.x, "max", **k),
    "reduce": lambda comm, of, **k: comm.reduce(of.x, root=1, op="max", **k),
    "broadcast": lambda comm, of, **k: comm.broadcast(of.x, root=1, **k),
    "all_gather": lambda comm, of, **k: comm.all_gather(of.x, **k),
    "reduce_scatter": lambda comm, of, **k: comm.reduce_scatter(of.both, **k),
    "all_to_all": lambda comm, of, **k: comm.all_to_all(of.both, **k),
    "gather": lambda comm, of, **k: comm.gather(of.x, **k),
    "scatter": lambda comm, of, **k: comm.scatter(of.both, **k),
    "barrier": lambda comm, of, **k: comm.barrier(**k),
    "all_reduce of a list": lambda comm, of, **k: comm.all_reduce(of.several, "max", **k),
    "broadcast of a list": lambda comm, of, **k: comm.broadcast(of.several, **k),
    "all_gather of a list": lambda comm, of, **k: comm.all_gather(of.several, **k),
    "uneven all_gather": lambda comm, of, **k: comm.all_gather(of.uneven, counts=[3, 4], **k),
    "all_reduce of a shared array": lambda comm, of, **k: comm.all_reduce(of.shared, "max", **k),
    "coded all_reduce": lambda comm, of, **k: comm.all_reduce(
        of.long, "mean", codec="int8", algorithm="coded_ring", **k
    ),
    "coded all_gather": lambda comm, of, **k: comm.all_gather(
        of.long, codec="mpc", algorithm="coded_ring", **k
    ),
}


def messages(comm: gpucomm.Communicator, of: Arrays) -> None:
    first, then = (comm.send, comm.recv) if comm.rank else (comm.recv, comm.send)
    first(of.x, 1 - comm.rank)
    then(of.x, 1 - comm.rank)


def asynchronous_messages(comm: gpucomm.Communicator, of: Arrays) -> None:
    peer = 1 - comm.rank
    works = [comm.send(of.x, peer, async_op=True), comm.recv(of.y, peer, async_op=True)]
    for work in works:
        work.wait()


OTHERS: dict[str, Callable[..., Any]] = {
    "send and recv": messages,
    "asynchronous send and recv": asynchronous_messages,
    "sendrecv": lambda comm, of: comm.sendrecv(of.x, 1 - comm.rank, of.y, 1 - comm.rank),
    "broadcast_object": lambda comm, of: comm.broadcast_object({"a": [1, "x", of.x]}),
    "gather_objects": lambda comm, of: comm.gather_objects((comm.rank, "x", 2.5)),
    "empty": lambda comm, of: gpucomm.empty(1000, comm=comm),
    "split": lambda comm, of: comm.split(0).close(),
}


def growth(comm: gpucomm.Communicator, kind: str, asynchronous: bool, calls: int) -> list[float]:
    """By how many bytes, and Python blocks, each call of this kind grows the process."""
    call, of, seen = {**COLLECTIVES, **OTHERS}[kind], Arrays(comm), []
    for _ in range(1 + WINDOWS):
        for _ in range(calls):
            if asynchronous:
                call(comm, of, async_op=True).wait()
            else:
                call(comm, of)
        seen.append(held())
    grown = np.diff(seen, axis=0) / calls
    return np.median(grown, axis=0).tolist()


def test_all_collectives_are_here():
    assert {collective for collective, _ in pairs()} <= set(COLLECTIVES)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33 to count memory")
@pytest.mark.parametrize(
    ("kind", "asynchronous"),
    [*((kind, way) for kind in COLLECTIVES for way in (False, True)), *((kind, False) for kind in OTHERS)],
)
def test_no_kind_of_call_grows(world, kind, asynchronous):
    # Python's own tables have grown for the last time after some 150 of split.
    for size_bytes, blocks in world.run(growth, kind, asynchronous, 150 if kind == "split" else 500):
        # Half of the least that a call can leave: malloc gives 32 bytes.
        assert size_bytes < 16 and blocks < 0.5, (size_bytes, blocks)
