"""What the ranks of tests/test_device_processes.py run: each process has a host device of its own.

Where the environment has TEST_DEVICE=cuda, as in tests/gpu, that is the first GPU; where that names a file,
as in tests/emulated, it is one that this extension emulates.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from on_device import HostKit, Racing, finish, held, stream_of
from on_emulated import EmulatedKit, load
from on_gpu import CudaKit
from reference import close
from test_collectives import expect, inputs
from test_device_collectives import call, has_result

from gpucomm import errors


def kit_of(device: str) -> Any:
    if device not in ("", "cuda"):
        load(Path(device))
        return EmulatedKit
    return CudaKit if device else HostKit


# between processes all calls of a communicator are on one device
own = functools.cache(kit_of(os.environ.get("TEST_DEVICE", "")))


def refused_in_a_capture(comm: Any) -> str:
    """What a call says whose stream is being captured into a graph; the next one is as always."""
    gpu, said = own(50), ""
    x = gpu.array(np.ones(3))
    with stream_of(gpu) as stream:
        gpu.begin_capture(stream)
        try:
            comm.all_reduce(x, stream=stream)
        except errors.InvalidArgumentError as error:
            said = str(error)
        gpu.end_capture(stream)
    comm.all_reduce(x, async_op=True).synchronize()
    assert (gpu.host(x) == comm.world).all()
    return said


def every_case(comm: Any, collective: str, algorithm: str, deferred_us: int) -> list[Any]:
    """Which of the cases are wrong on this rank."""
    gpu, wrong = own(deferred_us), []
    with stream_of(gpu) as stream:
        for dtype, count, segments in [("float32", 0, 1), ("int64", 7, 1), ("float32", 150_000, 3)]:
            racing, root = Racing(gpu, stream), count % comm.world
            arrays = inputs(collective, dtype, comm.world, count)
            result = call(
                comm, racing, collective, arrays[comm.rank], root, algorithm=algorithm, segments=segments
            )
            reading = racing.read(result) if has_result(collective, comm.rank, root) else None
            racing.finish()
            found = None if reading is None else racing.found(reading)
            expected = expect(collective, arrays, comm.rank, root, "sum")
            if expected is not None and not close(found, expected, "sum"):
                wrong.append((dtype, count))
    return wrong


def as_on_the_host(
    comm: Any, collective: str, dtype: str, count: int, deferred_us: int, **options: Any
) -> bool:
    """Whether a call gives the bits that it gives in host memory."""
    gpu, x = own(deferred_us), inputs(collective, dtype, comm.world, count)[comm.rank]
    host = getattr(comm, collective)(x.copy(), **options)
    with stream_of(gpu) as stream:
        racing = Racing(gpu, stream)
        found = racing.found(racing.read(call(comm, racing, collective, x, 0, **options)))
    return bool(np.array_equal(found, host))


def errors_as_on_the_host(comm: Any, codec: str) -> bool:
    """Whether error= tells what it tells in host memory."""
    x = np.random.default_rng(comm.rank).standard_normal(60_000, np.float32)
    how = {"algorithm": "coded_ring", "codec": codec, "segments": 1}
    host = np.empty_like(x)
    comm.all_reduce(x.copy(), error=host, **how)
    with stream_of(own(50)) as stream:
        array, error = own(50).array(x), own(50).array(np.full_like(x, 7))
        comm.all_reduce(array, error=error, stream=stream, async_op=True, **how).synchronize()
        return bool(np.array_equal(own(50).host(error), host) and host.any())


def gathered_unevenly(comm: Any, counts: list[int], **options: Any) -> bool:
    """Whether an all_gather of these counts gives the bits that it gives in host memory."""
    gpu, counts = own(50), counts[: comm.world]
    x = np.random.default_rng(comm.rank).standard_normal(counts[comm.rank]).astype(np.float32)
    host = comm.all_gather(x.copy(), counts=counts, **options)
    with stream_of(gpu) as stream:
        racing = Racing(gpu, stream)
        out = racing.empty(sum(counts), np.float32)
        comm.all_gather(racing.array(x), out=out, counts=counts, stream=stream, **options)
        return bool(np.array_equal(racing.found(racing.read(out)), host))


def enqueued(comm: Any, collective: str, codec: str, kinds: list[str]) -> dict[str, int]:
    """What the device is given to do by a coded call in two segments, and by the copy that brings x."""
    gpu = own(50)
    with stream_of(gpu) as stream:
        racing = Racing(gpu, stream)
        x = np.ones(60_000 * comm.world, np.float32)
        before = [gpu.enqueued(kind) for kind in kinds]
        call(comm, racing, collective, x, 0, algorithm="coded_ring", codec=codec, segments=2)
        found = {kind: gpu.enqueued(kind) - n for kind, n in zip(kinds, before, strict=True)}
        racing.finish()
    return found


def bounded(comm: Any, most: float, count: int, op: str, deferred_us: int) -> tuple[Any, ...]:
    """What max_rel_err reports, and whether it is kept and the same on all ranks."""
    gpu = own(deferred_us)
    x = np.random.default_rng(comm.rank).standard_normal(count).astype(np.float32)
    with stream_of(gpu) as stream:
        racing = Racing(gpu, stream)
        report = comm.all_reduce(racing.array(x), op, max_rel_err=most, stream=stream)
        found = racing.found(racing.read(report.result))
    all_found, given = (comm.all_gather(y).reshape(comm.world, -1).astype(np.float64) for y in (found, x))
    exact, norms = given.sum(0), np.linalg.norm(given, axis=1).sum()
    if op == "mean":
        exact, norms = exact / comm.world, norms / comm.world
    error = np.linalg.norm(found - exact)
    kept = error <= report.error * norms and report.error <= report.bound
    kept &= report.bound <= most or (report.codec is None and most < 1e-6)  # adding up alone rounds more
    return report.codec, report.bound, report.error, bool(kept and (all_found == found).all())


def lists(comm: Any, deferred_us: int) -> list[bool]:
    """Whether lists of arrays give what they give in host memory; they share scratch with other calls."""
    gpu, right = own(deferred_us), []
    with stream_of(gpu) as stream:
        racing = Racing(gpu, stream)
        for collective, algorithm in [
            ("all_reduce", "ring"),
            ("all_gather", "ring"),
            ("broadcast", "direct"),
        ]:
            xs = [np.full(n, comm.rank + n, np.float32) for n in (3, 90_000, 0, 700)]
            host = getattr(comm, collective)([x.copy() for x in xs], algorithm=algorithm, segments=1)
            arrays = [racing.array(x) for x in xs]
            got = getattr(comm, collective)(arrays, algorithm=algorithm, segments=1, stream=stream)
            readings = [racing.read(y) for y in got]
            right += [np.array_equal(racing.found(y), z) for y, z in zip(readings, host, strict=True)]
    return right


def messages(comm: Any, deferred_us: int) -> list[bool]:
    """Whether messages around a ring arrive, larger than the arena too; between them those of host memory."""
    gpu, right = own(deferred_us), []
    to, source = (comm.rank + 1) % comm.world, (comm.rank - 1) % comm.world
    with stream_of(gpu) as stream:
        racing, host = Racing(gpu, stream), np.zeros(4)
        for k, count in enumerate((7, 0, 150_000, 1_000_001, 3)):
            x = racing.array(np.full(count, comm.rank + k, np.float32))
            out = racing.array(np.zeros(count, np.float32))
            comm.sendrecv(x, to, out, source, stream=stream)
            reading = racing.read(out)
            comm.sendrecv(np.full(4, float(comm.rank)), to, host, source)
            right.append(bool((host == source).all()))
            right.append(bool((racing.found(reading) == source + k).all()))
    return right


def crossed(comm: Any) -> list[float]:
    """One has sent from host memory before it receives, what the other receives only behind its own send."""
    gpu = own(50)
    x, y = np.full(5, comm.rank + 1.0), np.zeros(5)
    on_device, there = gpu.array(x.copy()), gpu.array(y.copy())
    if comm.rank == 0:
        comm.send(on_device, 1)
        comm.recv(y, 1)
        finish(gpu.device)
    elif comm.rank == 1:
        comm.send(x, 0)
        comm.recv(there, 0, async_op=True).synchronize()
        y = gpu.host(there)
    return y.tolist()


def many(comm: Any, deferred_us: int) -> list[Any]:
    """Calls of all sizes, kinds and roots on two streams, host memory between them; nothing waits."""
    gpu, kept = own(deferred_us), []
    choices = np.random.default_rng(7).integers(0, 1 << 30, 150).tolist()
    with stream_of(gpu) as a, stream_of(gpu) as b:
        racing = [Racing(gpu, a), Racing(gpu, b)]
        for n, choice in enumerate(choices):
            r, root = racing[n % 2], choice // 8 % comm.world
            x = np.full((3, 200, 30_000, 90_000)[choice % 4], comm.rank + n, np.float32)
            if n % 10 == 9:
                kept.append((None, comm.all_reduce(x, op="max"), comm.world - 1 + n))
            elif choice // 4 % 2:
                algorithm = ("ring", "direct", "linear_pipeline")[choice // 512 % 3]
                y = comm.all_reduce(r.array(x), op="max", algorithm=algorithm, stream=r.stream)
                kept.append((r, r.read(y), comm.world - 1 + n))
            else:
                y = comm.broadcast(r.array(x), root, algorithm="binomial_tree", stream=r.stream)
                kept.append((r, r.read(y), root + n))
        kept = [(r.found(y) if r else y, expected) for r, y, expected in kept]
    return [(n, expected) for n, (found, expected) in enumerate(kept) if not (found == expected).all()]


def early(comm: Any, deferred_us: int) -> tuple[bool, list[float]]:
    """Whether all calls were enqueued before the first of the stream's work ended, and what they gave."""
    gpu, calls = own(deferred_us), 3
    # The first call makes memory and loads kernels, for which a GPU may wait until its streams are idle.
    comm.all_reduce(gpu.array(np.ones(10, np.float32)), async_op=True).synchronize()
    with stream_of(gpu) as stream:
        racing = Racing(gpu, stream)
        x = [racing.array(np.ones(10, np.float32)) for _ in range(8)][-1]  # not all their pauses are short
        event = gpu.device.make_event()
        gpu.device.record(event, stream)
        for _ in range(calls):
            comm.all_reduce(x, stream=stream)
        before = not gpu.device.done(event)
        racing.finish()
        gpu.device.end_event(event)
    return before, gpu.host(x).tolist()


def works(comm: Any) -> tuple[list[float], list[float], bool]:
    """By the stream, and by the host."""
    gpu = own(50)
    with stream_of(gpu) as stream:
        racing = Racing(gpu, stream)
        first = comm.all_reduce(racing.array(np.ones(5)), stream=stream, async_op=True)
        second = comm.all_reduce(racing.array(np.full(5, 3.0)), stream=stream, async_op=True)
        reading = racing.read(first.wait())
        direct = gpu.host(second.synchronize()).copy()
        done = second.done()
        found = racing.found(reading)
    return found.tolist(), direct.tolist(), done


def uneven(comm: Any) -> bool:
    """all_to_all whose blocks only their two ranks know."""
    gpu, rank = own(50), comm.rank
    sent = [1000 * rank + 10 * peer for peer in range(comm.world)]
    received = [1000 * peer + 10 * rank for peer in range(comm.world)]
    out = gpu.array(np.zeros(sum(received), np.float32))
    x = gpu.array(np.full(sum(sent), rank, np.float32))
    comm.all_to_all(x, counts=sent, out_counts=received, out=out, async_op=True).synchronize()
    return bool((gpu.host(out) == np.repeat(np.arange(comm.world), received)).all())


def met(fault: Any) -> tuple[str, str, float]:
    """The error that a call meets, and after how many seconds."""
    begin = time.monotonic()
    try:
        fault()
    except errors.Error as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "nothing", "", time.monotonic() - begin


def one_call(comm: Any) -> None:
    comm.all_reduce(own(50).array(np.ones(3)))


def wrong_count(comm: Any) -> None:
    comm.all_reduce(own(50).array(np.ones(3 + (comm.rank > 0))))


def host_and_device(comm: Any) -> None:
    x = np.ones(3)
    comm.all_reduce(x if comm.rank else own(50).array(x), algorithm="direct", segments=1)


def wrong_blocks(comm: Any) -> None:
    n = [5 if comm.rank == 0 else 6] * comm.world
    x, out = own(50).array(np.ones(sum(n))), own(50).array(np.ones(sum(n)))
    comm.all_to_all(x, counts=n, out_counts=n, out=out)


def another_collective(comm: Any) -> None:
    x = own(50).array(np.ones(60))
    for _ in range(3):
        comm.all_reduce(x)
    comm.broadcast(x) if comm.rank else comm.all_reduce(x)


def absent(comm: Any) -> None:
    if comm.rank:  # the parent's barrier holds rank 0 meanwhile
        comm.all_reduce(own(50).array(np.ones(3)), timeout=0.5)


def closed(comm: Any) -> None:
    if comm.rank:
        comm.all_reduce(own(50).array(np.ones(3)), timeout=10)


def another_device(comm: Any) -> None:
    gpus = [own(50), own(51)]
    for gpu in gpus:
        comm.all_reduce(gpu.array(np.ones(3)), timeout=10)


def wrong_end(comm: Any) -> None:
    x = np.ones(3)
    if comm.rank == 0:
        there = own(50).array(x)
        comm.send(there, 1)
        comm.barrier()
    elif comm.rank == 1:
        comm.recv(x, 0)
    else:
        comm.barrier()


def no_sender(comm: Any) -> None:
    if comm.rank:  # the parent's barrier holds rank 0 meanwhile
        comm.recv(own(50).array(np.ones(3)), 0, timeout=0.5)


def closed_sender(comm: Any) -> None:
    if comm.rank:
        comm.recv(own(50).array(np.ones(3)), 0, timeout=10)


def another_device_for_messages(comm: Any) -> None:
    to, source = (comm.rank + 1) % comm.world, (comm.rank - 1) % comm.world
    for gpu in (own(50), own(51)):
        comm.sendrecv(gpu.array(np.ones(3)), to, gpu.array(np.ones(3)), source, timeout=10)


def in_a_group(comm: Any, fault: Any) -> tuple[str, str, float]:
    """Of a communicator of its own; the parent stays whole."""
    with comm.subset(range(comm.world)) as group:
        found = met(lambda: fault(group))
        if fault not in (closed, closed_sender):
            comm.barrier()
    comm.barrier()
    return found


def unfit(comm: Any) -> None:
    """An element that int8 cannot carry, on one rank's device."""
    x = np.ones(3000, np.float32)
    x[7] = np.nan if comm.rank == 0 else 1
    comm.all_reduce(own(50).array(x), codec="int8", async_op=True).synchronize()


def check_unfit(world: Any) -> None:
    """What comes of it is told by its work; on the same devices another communicator goes on."""
    name, message, _ = world.run(in_a_group, unfit)[0]
    assert name == "InvalidArgumentError" and "NaN" in message
    assert all(done for *_, done in world.run(works)), "the parent has suffered"


def check_fault(world: Any, fault: Any, kind: str, text: str) -> None:
    """What the parent asserts: every rank that calls at all is told so, soon, and goes on."""
    found = world.run(in_a_group, fault)
    silent = fault.__name__ in ("absent", "closed", "no_sender", "no_receiver", "closed_sender")
    for name, message, seconds in found[1:] if silent else found:
        assert name == kind and text in message
        assert seconds < 8
    assert world.run(works)[0][2], "the parent has suffered"


def closings(comm: Any) -> tuple[list[int], list[bool]]:
    """How much memory of devices is mapped after each of some groups that were used and closed."""
    gpu, mapped, right = own(50), [], []
    for _ in range(20):
        group = comm.split(0)
        x = gpu.array(np.ones(100))
        group.all_reduce(x, async_op=True).synchronize()
        right.append(bool((gpu.host(x) == comm.world).all()))
        out = gpu.array(np.zeros(3))
        if comm.world == 2 or comm.rank < 2:  # of three ranks one sends nothing
            peer = 1 - comm.rank
            group.sendrecv(
                gpu.array(np.full(3, float(comm.rank))), peer, out, peer, async_op=True
            ).synchronize()
            right.append(bool((gpu.host(out) == peer).all()))
        group.close()
        del group
        comm.barrier()
        mapped.append(Path("/proc/self/maps").read_text().count("memfd:gpucomm-device"))
    return mapped, right


def later_work(comm: Any) -> bool:
    """Whether an asynchronous call ends though what its stream gets before the others come does not."""
    kit = HostKit()
    x = kit.array(np.ones(10))
    with comm.subset(range(comm.world)) as group, stream_of(kit) as stream:
        group.all_reduce(x, "max", async_op=True, stream=stream).synchronize()
        if comm.rank:
            comm.barrier()
            group.all_reduce(x, async_op=True, stream=stream).synchronize()
            return bool((x.values == comm.world).all())
        work = group.all_reduce(x, async_op=True, stream=stream)
        with held(kit.device, stream):
            comm.barrier()
            deadline = time.monotonic() + 10
            while not work.done() and time.monotonic() < deadline:
                time.sleep(0.001)
            early = work.done()
        work.synchronize()
        return early and bool((x.values == comm.world).all())


def after_close(comm: Any, messages: bool) -> bool:
    """Whether what rank 0 sends is there when close() returns, though the streams were busy."""
    kit, group = HostKit(), comm.subset(range(comm.world))
    x = kit.array(np.full(1000, float(comm.rank)))
    with stream_of(kit) as stream, contextlib.ExitStack() as busy:
        if comm.rank:
            busy.enter_context(held(kit.device, stream))
        how = {"async_op": True, "stream": stream}
        if not messages:
            works = [group.broadcast(x, 0, algorithm="direct", **how)]
        elif comm.rank:
            works = [group.recv(x, 0, **how)]
        else:
            works = [group.send(x, rank, **how) for rank in range(1, comm.world)]
        for work in works:
            work.wait()
        threading.Timer(0.1, busy.close).start()
        group.close()
        return bool((x.values == 0).all())


def waits_in_order(comm: Any, calls: int) -> bool:
    """Whether all ends where one rank's stream waits for a call earlier than the other's."""
    kit = HostKit()
    x, y, z = (kit.array(np.ones(10)) for _ in range(3))
    peer = comm.rank ^ 1
    with comm.subset(range(comm.world)) as group, stream_of(kit) as stream:
        for _ in range(calls):
            work = group.all_reduce(x, "max", async_op=True, stream=stream, timeout=20)
            if comm.rank == 1:
                work.wait()
            if peer < comm.world:
                group.sendrecv(y, peer, z, peer, stream=stream, timeout=20)
            work.wait()
        group.all_reduce(x, async_op=True, stream=stream).synchronize(20)
    return bool((x.values == comm.world).all())


def late_work(comm: Any, messages: bool) -> tuple[str, bool]:
    """What a rank is told that waits for the work of one whose stream is held, and whether that closes."""
    kit, said = HostKit(), ""
    x = kit.array(np.ones(10))
    with comm.subset(range(comm.world)) as group, stream_of(kit) as stream:

        def begin() -> Any:
            if not messages:
                return group.all_reduce(x, async_op=True, stream=stream)
            if comm.rank != 1:
                return group.recv(x, 1, async_op=True, stream=stream)
            others = [rank for rank in range(comm.world) if rank != 1]
            return [group.send(x, rank, async_op=True, stream=stream) for rank in others][-1]

        begin().synchronize()
        comm.barrier()  # else a rank that is late is still in that when the first gives up
        with held(kit.device, stream) if comm.rank == 1 else contextlib.nullcontext():
            work = begin()
            if comm.rank != 1:
                try:
                    work.synchronize(0.5)
                except errors.CollectiveTimeoutError as error:
                    said = str(error)
            comm.barrier()
        try:
            group.all_reduce(x, async_op=True, stream=stream).synchronize()
        except errors.Error as error:
            said = said or str(error)
        return said, group.closed
