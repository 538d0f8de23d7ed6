"""What the ranks of tests/test_nccl_messages.py run, beside what device_ranks.py has for all processes."""

from __future__ import annotations

import time
from typing import Any

import nccl_library
import numpy as np
from device_ranks import met, own
from nccl_ranks import SLOW_US
from on_device import HostKit, Racing, finish, stream_of
from ranks import PROMPT_S


def calls() -> list[str]:
    """What this process has called of NCCL."""
    return nccl_library.own().fake_calls().decode().split()


def around(comm: Any, count: int, gpu: HostKit | None = None, **options: Any) -> tuple[Any, Any]:
    """A message from each rank to the next one: (the work, what arrives)."""
    gpu = gpu or own(50)
    out = gpu.array(np.full(count, -1.0))
    x = gpu.array(np.full(count, float(comm.rank)))
    to, source = (comm.rank + 1) % comm.world, (comm.rank - 1) % comm.world
    return comm.sendrecv(x, to, out, source, async_op=True, **options), out


def storm(comm: Any, seed: int) -> list[Any]:
    """Messages of all pairs in both directions, which every rank issues in an order of its own."""
    gpu, order = own(50), np.random.default_rng((seed, comm.rank))
    sizes = [7, 0, 3000, 1, 90_000, 40, 800, 0, 2, 5]
    halves = [(peer, way) for peer in range(comm.world) if peer != comm.rank for way in "<>"] * len(sizes)
    issued: dict[Any, int] = {}
    works, outs = [], {}
    for i in order.permutation(len(halves)):
        peer, way = halves[i]
        k = issued[peer, way] = issued.get((peer, way), -1) + 1
        if way == ">":
            x = gpu.array(np.full(sizes[k], comm.rank * 100.0 + k))
            works.append(comm.send(x, peer, async_op=True))
        else:
            outs[peer, k] = gpu.array(np.full(sizes[k], -1.0))
            works.append(comm.recv(outs[peer, k], peer, async_op=True))
    for i in order.permutation(len(works)):
        works[i].synchronize()
    return [(peer, k) for (peer, k), out in outs.items() if not (gpu.host(out) == peer * 100 + k).all()]


def both_ways_at_once(comm: Any) -> list[bool]:
    """Two ranks, each of which has its send before its receive, on streams that race with them."""
    gpu, right = own(50), []
    if comm.rank > 1:
        return [True]
    with stream_of(gpu) as stream:
        racing, peer = Racing(gpu, stream), 1 - comm.rank
        for k in range(5):
            x = racing.array(np.full(1000, comm.rank + k, np.float32))
            out = racing.array(np.zeros(1000, np.float32))
            sent = comm.send(x, peer, stream=stream, async_op=True)
            got = comm.recv(out, peer, stream=stream, async_op=True)
            sent.wait()
            reading = racing.read(got.wait())
            right.append(bool((racing.found(reading) == peer + k).all()))
    return right


def first_ones(comm: Any) -> list[str]:
    """What is called of NCCL for a rank's first send and its first receive."""
    group = comm.split(0)
    nccl_library.own().fake_reset()
    around(group, 10)[0].synchronize()
    found = calls()
    group.close()
    return found


def behind_a_large_one(comm: Any) -> float:
    """What the receiver answers is behind none of its own messages that nobody has received yet."""
    gpu, large = own(50), np.full(1 << 20, comm.rank + 1.0)
    there = gpu.array(np.full(3, comm.rank + 1.0))
    if comm.rank == 0:
        comm.send(there, 1)
        comm.recv(large, 1)
        finish(gpu.device)
    elif comm.rank == 1:
        work = comm.send(large, 0, async_op=True)
        comm.recv(there, 0, async_op=True).synchronize()
        work.wait()
        large = gpu.host(there)
    return float(large[0])


def early(comm: Any) -> bool:
    """Whether messages were enqueued before the first of the stream's work ended."""
    gpu = own(60_000)
    with stream_of(gpu) as stream:
        racing = Racing(gpu, stream)
        x = [racing.array(np.full(10, float(comm.rank))) for _ in range(8)][-1]
        event = gpu.device.make_event()
        gpu.device.record(event, stream)
        for _ in range(3):
            comm.recv(x, 0, stream=stream) if comm.rank else comm.send(x, 1, stream=stream)
        before = not gpu.device.done(event)
        racing.finish()
        gpu.device.end_event(event)
    return before and bool((gpu.host(x) == 0).all())


def closed(comm: Any) -> list[str]:
    """What NCCL is called for by the end of a group whose messages are through; in any order of its pairs."""
    library = nccl_library.own()
    library.fake_finalize_together()
    with comm.subset(range(comm.world)) as group:
        for peer in range(comm.world):
            if peer != comm.rank:
                x, out = (own(50).array(np.zeros(5)) for _ in range(2))
                group.sendrecv(x, peer, out, peer, async_op=True).synchronize()
        library.fake_reset()
    return calls()


def closed_under_way(comm: Any) -> None:
    """With a message that nobody sends; what is enqueued is not waited for."""
    gpu = HostKit(SLOW_US if comm.rank == 0 else 0)
    slow_works(comm, gpu)
    if comm.rank == 1:
        comm.recv(gpu.array(np.ones(3)), 0, async_op=True)
        nccl_library.own().fake_reset()
        begin = time.monotonic()
        comm.close()
        assert time.monotonic() - begin < PROMPT_S and "ncclCommAbort" in calls()
    comm.barrier()


def empty_ones(comm: Any) -> list[str]:
    """What NCCL is called for: nothing, where nothing is moved."""
    nccl_library.own().fake_reset()
    for _ in range(3):
        around(comm, 0)[0].synchronize()
    return calls()


def moved(comm: Any) -> list[str]:
    """What NCCL is called for by a message."""
    around(comm, 5)[0].synchronize()
    nccl_library.own().fake_reset()
    work, out = around(comm, 5)
    work.synchronize()
    assert (out.values == (comm.rank - 1) % comm.world).all()
    return calls()


def opened(comm: Any) -> None:
    """From here on NCCL would take the messages to and from rank 0."""
    for peer in range(1, comm.world):
        if comm.rank == 0:
            comm.recv(own(50).array(np.zeros(3)), peer, async_op=True).synchronize()
            comm.send(own(50).array(np.zeros(3)), peer, async_op=True).synchronize()
        elif comm.rank == peer:
            comm.send(own(50).array(np.zeros(3)), 0, async_op=True).synchronize()
            comm.recv(own(50).array(np.zeros(3)), 0, async_op=True).synchronize()
    nccl_library.own().fake_reset()


def unequal(comm: Any) -> None:
    """NCCL gets neither end."""
    opened(comm)
    try:
        if comm.rank == 0:
            comm.send(own(50).array(np.ones(3)), 1)
        elif comm.rank == 1:
            comm.recv(own(50).array(np.ones(4)), 0)
        else:
            comm.barrier()
    finally:
        assert not {"ncclSend", "ncclRecv"} & set(calls())


def no_receiver(comm: Any) -> None:
    """NCCL does not get what nobody receives."""
    opened(comm)
    if comm.rank:
        try:
            comm.send(own(50).array(np.ones(3)), 0, timeout=0.5)
        finally:
            assert "ncclSend" not in calls()


def hanging(comm: Any) -> None:
    """A sender never comes in NCCL."""
    library = nccl_library.own()
    if comm.rank == 0:
        library.fake_hang(0)
    try:
        around(comm, 3, timeout=0.5)[0].wait()
        comm.barrier()
    finally:
        library.fake_reset()


def broken(comm: Any) -> None:
    """NCCL finds a fault in what is done, on one rank; the others learn it."""
    around(comm, 3)[0].synchronize()
    work = around(comm, 3)[0]
    while not work.done():
        time.sleep(1e-3)
    library = nccl_library.own()
    if comm.rank == 0:
        library.fake_fail(0, 6)
    try:
        work.synchronize()
        assert comm.rank, "success before NCCL says so"
        around(comm, 3)[0].synchronize()
    finally:
        library.fake_reset()


def found_at_the_next_message(comm: Any) -> None:
    around(comm, 3)[0].synchronize()
    library = nccl_library.own()
    if comm.rank == 0:
        library.fake_fail(0, 6)
    try:
        around(comm, 3)[0].wait()
        comm.barrier()  # who was through with its own part is told here
    finally:
        library.fake_reset()


def slow_works(comm: Any, gpu: HostKit | None = None) -> list[Any]:
    """Enqueued messages that take long: one rank's device is slow."""
    gpu = gpu or HostKit(SLOW_US if comm.rank == 0 else 0)
    works = [around(comm, 3, gpu)[0] for _ in range(8)]  # the first pauses may be short
    for work in works:
        work.wait()
    return works


def seconds_of(comm: Any, n: int) -> tuple[float, float]:
    """Of n messages and of n calls, each of which is under way in NCCL for 3 ms."""
    library, x = nccl_library.own(), own(0).array(np.ones(3, np.float32))
    around(comm, 3, own(0))[0].wait()
    comm.all_reduce(x, algorithm="native")
    library.fake_pause(3)
    begin = time.monotonic()
    for _ in range(n):
        comm.recv(x, 0) if comm.rank else comm.send(x, 1)
    middle = time.monotonic()
    for _ in range(n):
        comm.all_reduce(x, algorithm="native")
    end = time.monotonic()
    library.fake_reset()
    return middle - begin, end - middle


def late(comm: Any) -> None:
    slow_works(comm)[-1].synchronize(timeout=0.3)


def aborted(comm: Any) -> None:
    works = slow_works(comm)
    if comm.rank == 1:
        begin = time.monotonic()
        comm.abort()
        assert time.monotonic() - begin < PROMPT_S
        assert "ncclCommAbort" in calls()
    works[-1].synchronize()


def refused_by_a_collective(comm: Any) -> None:
    """A fault of a collective ends the messages too, enqueued ones as well."""
    works = slow_works(comm)
    nccl_library.own().fake_reset()
    try:
        comm.all_reduce(np.ones(3 + comm.rank))
    finally:
        begin = time.monotonic()
        comm.close()
        assert time.monotonic() - begin < PROMPT_S and "ncclCommAbort" in calls()
        del works


def without_a_library(comm: Any) -> tuple[str, str, float]:
    return met(lambda: around(comm, 3)[0].wait())
