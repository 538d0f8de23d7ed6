"""What the ranks of tests/test_staged.py run, beside what device_ranks.py has for all processes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from device_ranks import met, own
from on_device import HostKit, sleep, stream_of

from gpucomm import _core


def uneven_gathers(comm: Any) -> bool:
    """Parts of many sizes, of which the longest takes several slots, and one is empty."""
    counts = [700_001 * (rank % 2) + 5 * (rank // 2) for rank in range(comm.world)]
    x = np.full(counts[comm.rank], comm.rank + 1, np.float32)
    out = own(50).array(np.zeros(sum(counts), np.float32))
    work = comm.all_gather(own(50).array(x), out=out, counts=counts, algorithm="ring", async_op=True)
    work.synchronize()
    return bool((out.values == np.repeat(np.arange(comm.world) + 1, counts)).all())


def moved(comm: Any, codec: str | None) -> tuple[int, int]:
    """Bytes that a call of 8 MB sends and receives."""
    x = own(50).array(np.zeros(1_000_000 * comm.world, np.float64))
    algorithm = "coded_ring" if codec else "ring"
    before = comm.stats()
    comm.all_reduce(x, algorithm=algorithm, codec=codec, segments=4, async_op=True).synchronize()
    after = comm.stats()
    return tuple(after[key] - before[key] for key in ("bytes_sent", "bytes_received"))


def sent(comm: Any) -> tuple[int, int]:
    """Bytes that a message of 4 MB around the ring sends and receives."""
    to, source = (comm.rank + 1) % comm.world, (comm.rank - 1) % comm.world
    before = comm.stats()
    x, out = (own(50).array(np.ones(1_000_001, np.float32)) for _ in range(2))
    comm.sendrecv(x, to, out, source, async_op=True).synchronize()
    after = comm.stats()
    return tuple(after[key] - before[key] for key in ("bytes_sent", "bytes_received"))


def slow_copies(comm: Any) -> bool:
    """Whether a message of many parts arrives where the device takes its time to copy each."""
    kit, values = HostKit(10_000), np.arange(5 << 18, dtype=np.float32)
    to, source = (comm.rank + 1) % comm.world, (comm.rank - 1) % comm.world
    x, out = kit.array(values + comm.rank), kit.array(np.zeros_like(values))
    with comm.subset(range(comm.world)) as group:
        group.sendrecv(x, to, out, source, async_op=True).synchronize()
    return bool((out.values == values + source).all())


def chosen_by_links(comm: Any) -> list[int]:
    """Bytes that rank 0 sends on links of 125 MB/s: of 4 MB from it to all, and of an exchange in int8."""
    x, found = own(50).array(np.ones(1_000_000, np.float32)), []
    with comm.subset(range(comm.world)) as group:
        group.set_links(_core.Links(alpha=5e-5, beta=8e-9))
        for call in (lambda: group.broadcast(x, 0), lambda: group.all_reduce(x, codec="int8")):
            before = group.stats()["bytes_sent"]
            call()
            found.append(group.stats()["bytes_sent"] - before)
    return found


def one_message(comm: Any) -> None:
    x, out = (own(50).array(np.ones(3)) for _ in range(2))
    comm.sendrecv(x, 1 - comm.rank, out, 1 - comm.rank, timeout=10)


def memory(comm: Any) -> list[int]:
    """KiB that each of some calls adds to what is resident, the last of which are larger than the first."""
    found = []
    for mib in (16, 16, 16, 64, 64):
        x = own(50).array(np.ones(mib << 18, np.float32))
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")  # forget it
        before = resident()["VmRSS"]
        comm.all_reduce(x, algorithm="ring", async_op=True).synchronize()
        found.append(resident()["VmHWM"] - before)
    return found


def resident() -> dict[str, int]:
    with open("/proc/self/status") as status:
        return {line.split(":")[0]: int(line.split()[1]) for line in status if line.startswith("Vm")}


def pace(comm: Any) -> float:
    """Seconds of a call on a device whose work takes half a millisecond at a time."""
    x, calls = own(1000).array(np.ones(10)), 20
    begin = time.monotonic()
    for _ in range(calls):
        comm.all_reduce(x, async_op=True).synchronize()
    return (time.monotonic() - begin) / calls


def ways(comm: Any) -> str:
    """Which way calls go, by the words of a mismatch that only rank 0 makes, in a group of its own."""
    with comm.subset(range(comm.world)) as group:
        x = own(50).array(np.ones(3))
        group.all_reduce(x)
        comm.barrier()  # else what rank 0 does below may end this call on a rank whose device is late
        _, text, _ = met(lambda: group.all_reduce(own(50).array(np.ones(3 + (comm.rank == 0)))))
    return text.split("float64, ")[1].split(", algorithm")[0]


def slow_stream(comm: Any) -> tuple[bool, bool]:
    """A call whose stream is busy: whether the host goes on with async_op, and waits without."""
    slow = HostKit(400_000 if comm.rank == 0 else 0)
    with comm.subset(range(comm.world)) as group, stream_of(slow) as stream:
        x = slow.array(np.ones(5))
        for _ in range(6):  # not all pauses are short
            slow.device.copy(slow.address(x), slow.address(x), 8, stream)
        event = slow.device.make_event()
        slow.device.record(event, stream)
        work = group.all_reduce(x, stream=stream, async_op=True)
        went_on = comm.rank != 0 or not slow.device.done(event)
        work.wait()
        waited = slow.device.done(event)
        work.synchronize()
        slow.device.end_event(event)
        assert (x.values == comm.world).all()
    return went_on, waited


def stuck(comm: Any) -> None:
    """The stream of one rank holds the call up for longer than its timeout."""
    gpu = HostKit(3_000_000) if comm.rank == 0 else HostKit(0)
    with stream_of(gpu) as stream:
        x = gpu.array(np.ones(3))
        for _ in range(4):
            gpu.device.copy(gpu.address(x), gpu.address(x), 8, stream)
        comm.all_reduce(x, stream=stream, timeout=0.5)


def aborted(comm: Any) -> None:
    if comm.rank == 1:
        time.sleep(0.3)
        comm.abort()
    comm.all_reduce(own(50).array(np.ones(3)), timeout=20)


def before_a_fault(comm: Any, message: bool) -> list[bool]:
    """Whether what rank 0 sends before its next call times out comes to rank 1, whose device takes longer."""
    kit, found = HostKit(0), []
    with comm.subset([0, 1]) as group, stream_of(kit) as stream:
        if comm.rank > 1:
            return found
        x = kit.array(np.full((2 << 18) + 5, group.rank, np.float32))  # the last few find the slots in use
        group.barrier()
        if group.rank == 1:
            sleep(kit.device, stream, 1)
        how = {"stream": stream, "async_op": True}
        if message:
            work = group.recv(x, 0, **how) if group.rank else group.send(x, 1, **how)
        else:
            work = group.broadcast(x, 0, algorithm="linear_pipeline", segments=1, **how)
        if group.rank == 0:
            work.synchronize()
            found.append(met(lambda: group.barrier(timeout=0.2))[0] == "CollectiveTimeoutError")
        work.synchronize()
        found.append(bool((x.values == 0).all()))
    return found
