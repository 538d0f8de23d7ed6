"""What the ranks of tests/test_nccl_calls.py run, beside what device_ranks.py has for all processes."""

from __future__ import annotations

import time
from typing import Any

import nccl_library
import numpy as np
from device_ranks import met, own
from on_device import HostKit, finish, sleep, stream_of
from ranks import PROMPT_S

SLOW_US = 1_500_000  # a device whose work takes about so long


def connect(comm: Any) -> None:
    """Before all others."""
    nccl_library.own()


def calls(comm: Any, collective: str, algorithm: str) -> list[str]:
    """Those of NCCL that a call makes."""
    library = nccl_library.own()
    x = np.ones(60 * comm.world, np.float32)
    comm.barrier()
    library.fake_reset()
    getattr(comm, collective)(own(50).array(x), algorithm=algorithm, async_op=True).synchronize()
    return library.fake_calls().decode().split()


def broadcasts(comm: Any) -> list[int]:
    """Bytes that rank 0 sends of a short and of a long array."""
    found = []
    for count in (1000, 16_000_000):
        x = own(50).array(np.full(count, comm.rank, np.uint8))
        before = comm.stats()["bytes_sent"]
        comm.broadcast(x, 0, async_op=True).synchronize()
        assert not x.values.any()
        found.append(comm.stats()["bytes_sent"] - before)
    return found


def premultiplied(comm: Any) -> list[float]:
    with stream_of(own(50)) as stream:
        x = own(50).array(np.full(5, comm.rank + 1.0, np.float32))
        work = comm.all_reduce(
            x, op="premul_sum", scale=2.0, algorithm="native", stream=stream, async_op=True
        )
        work.synchronize()
        return list(own(50).host(x).tolist())


def native_on_the_host(comm: Any) -> None:
    comm.all_reduce(np.ones(3), algorithm="native")


def native_all_to_all(comm: Any) -> None:
    x, out = (own(50).array(np.ones(comm.world)) for _ in range(2))
    comm.all_to_all(x, out=out, algorithm="native")


def native_codec(comm: Any) -> None:
    comm.all_reduce(own(50).array(np.ones(3, np.float32)), algorithm="native", codec="int8")


def native_int16(comm: Any) -> None:
    comm.all_reduce(own(50).array(np.ones(3, np.int16)), algorithm="native")


def native_counts(comm: Any) -> None:
    counts = list(range(1, comm.world + 1))
    x, out = (own(50).array(np.ones(n)) for n in (comm.rank + 1, sum(counts)))
    comm.all_gather(x, out=out, counts=counts, algorithm="native")


def native_and_ring(comm: Any) -> None:
    comm.all_reduce(own(50).array(np.ones(3, np.float32)), algorithm="ring" if comm.rank else "native")


def hanging(comm: Any) -> None:
    """One rank never comes in NCCL."""
    library = nccl_library.own()
    if comm.rank == 0:
        library.fake_hang(0)
    try:
        comm.all_reduce(own(50).array(np.ones(3)), timeout=0.5)
    finally:
        library.fake_reset()


def broken(comm: Any) -> None:
    """NCCL finds a fault in what is done, on one rank; the others learn it."""
    x = own(50).array(np.ones(3))
    comm.all_reduce(x, async_op=True).synchronize()
    work = comm.all_reduce(x, async_op=True)
    while not work.done():
        time.sleep(1e-3)
    library = nccl_library.own()
    if comm.rank == 0:
        library.fake_fail(0, 6)
    try:
        work.synchronize()
        assert comm.rank, "success before NCCL says so"
        comm.all_reduce(x, async_op=True).synchronize()
    finally:
        library.fake_reset()


def found_at_the_next_call(comm: Any) -> None:
    x = own(50).array(np.ones(3))
    comm.all_reduce(x, async_op=True).synchronize()
    library = nccl_library.own()
    if comm.rank == 0:
        library.fake_fail(0, 6)
    try:
        comm.all_reduce(x)
    finally:
        library.fake_reset()


def late(comm: Any) -> None:
    """What is enqueued does not end: a rank's device is slow."""
    gpu = HostKit(SLOW_US if comm.rank == 0 else 0)
    for _ in range(8):  # the first pauses may be short
        work = comm.all_reduce(gpu.array(np.ones(3)), async_op=True)
        work.wait()
    work.synchronize(timeout=0.3)


def aborted(comm: Any) -> None:
    gpu = HostKit(SLOW_US if comm.rank == 0 else 0)
    works = [comm.all_reduce(gpu.array(np.ones(3)), async_op=True) for _ in range(8)]
    for work in works:
        work.wait()
    if comm.rank == 1:
        begin = time.monotonic()
        comm.abort()
        assert time.monotonic() - begin < PROMPT_S
    works[-1].synchronize()


def closed_while_busy(comm: Any) -> tuple[list[float], list[float]]:
    """What a call and a message bring that waited for other work on the device when the group was closed."""
    gpu = HostKit()
    x, y = gpu.array(np.full(5, comm.rank + 1.0)), gpu.array(np.full(5, 7.0 if comm.rank == 0 else 0.0))
    with comm.subset(range(comm.world)) as group, stream_of(gpu) as stream:
        sleep(gpu.device, stream, 3)
        group.all_reduce(x, stream=stream)
        if comm.rank == 0:
            group.send(y, 1, stream=stream)
        elif comm.rank == 1:
            group.recv(y, 0, stream=stream)
        group.close()
        finish(gpu.device, stream)
        return gpu.host(x).tolist(), gpu.host(y).tolist()


def in_groups(comm: Any) -> list[float]:
    """Of each group's sums: two groups side by side, again and again."""
    sums = []
    for n in range(5):
        with comm.split((comm.rank + n) % 2) as group, stream_of(own(50)) as stream:
            x = own(50).array(np.full(5, comm.rank, np.float32))
            group.all_reduce(x, async_op=True, algorithm="native", stream=stream).synchronize()
            expected = sum(r for r in range(comm.world) if (r + n) % 2 == (comm.rank + n) % 2)
            sums.append(float(x.values[0]) - expected)
    return sums


def without_a_library(comm: Any) -> tuple[str, str, float]:
    return met(lambda: comm.all_reduce(own(50).array(np.ones(3))))
