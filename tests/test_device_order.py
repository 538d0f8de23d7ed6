"""What calls on device arrays enqueue, in how many pieces of work, and in which order."""

from __future__ import annotations

import functools
import gc
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOTED, pairs
from device_ranks import later_work
from on_device import HostKit, Racing, finish, held, sleep, stream_of
from ranks import TIMEOUT_S, run_ranks
from test_collectives import inputs
from test_device_collectives import call, has_result

from gpucomm.errors import PeerLostError

WORK = ("copy", "reduce", "encode", "decode", "recode")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_direct_all_reduce_is_one_piece_of_work(make_kit, elsewhere):
    world, kit = 4, make_kit()

    def body(comm):
        x = kit.array(np.ones(4096, np.float32))
        out = kit.array(np.zeros(4096, np.float32)) if elsewhere else x
        comm.all_reduce(x, out=out, algorithm="direct", async_op=True).synchronize()
        return set(kit.host(x).tolist()), set(kit.host(out).tolist())

    assert run_ranks(world, body) == [({1.0} if elsewhere else {4.0}, {4.0})] * world
    assert kit.enqueued("reduce") in (1, None) and kit.enqueued("copy") in (0, None)
    assert (kit.enqueued("wait") or 0) <= 2 * world + 1  # of the ranks' streams and the group's, at both ends


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("tells", [False, True])
def test_partial_sums_are_coded_again_in_one_pass(make_kit, collective, tells):
    world, segments, kit = 4, 2, make_kit()

    def body(comm):
        count = 4096 * comm.world
        x, error = kit.array(np.ones(count, np.float32)), kit.array(np.zeros(count, np.float32))
        how = {"codec": "int8", "algorithm": "coded_ring", "segments": segments, "async_op": True}
        if collective == "reduce_scatter":
            how["out"] = kit.array(np.zeros(count // comm.world, np.float32))
        getattr(comm, collective)(x, error=error if tells else None, **how).synchronize()
        return float(kit.host(how.get("out", x))[0])

    assert run_ranks(world, body) == [pytest.approx(world, rel=0.02)] * world
    hops = world - 1
    at_once = 0 if tells else segments * (hops - 1)  # of all ranks; the last sum is wanted
    assert kit.enqueued("recode") in (at_once, None)


def test_coded_pieces_are_read_where_they_were_encoded(make_kit):
    world, segments, kit = 4, 16, make_kit()

    def body(comm):
        part = kit.array(np.full(4096, comm.rank, np.float32))
        out = kit.array(np.zeros(4096 * world, np.float32))
        how = {"codec": "int8", "algorithm": "coded_ring", "segments": segments, "async_op": True}
        comm.all_gather(part, out=out, **how).synchronize()
        return kit.host(out)[::4096].tolist()

    assert run_ranks(world, body) == [pytest.approx([0, 1, 2, 3], rel=0.01)] * world
    assert kit.enqueued("copy") in (0, None)
    assert kit.enqueued("encode") in (segments, None)  # of all ranks at once
    assert kit.enqueued("decode") in (segments, None)


@pytest.mark.parametrize(
    ("collective", "algorithm", "codec", "counts"),
    [
        ("all_reduce", "ring", None, {"reduce": 3, "copy": 3}),
        ("all_reduce", "linear_pipeline", None, {"reduce": 6, "copy": 6}),  # in four segments
        ("all_gather", "direct", None, {"copy": 1}),
        ("all_to_all", "direct", None, {"copy": 1}),
        ("all_reduce", "coded_ring", "int8", {"encode": 2, "recode": 2, "decode": 2}),
        ("all_gather", "coded_ring", "mpc", {"encode": 1, "decode": 1}),
        ("all_reduce", "two_shot", "int8", {"encode": 2, "decode": 4}),
    ],
)
def test_a_step_of_all_ranks_of_a_device_is_one_piece_of_work(collective, algorithm, codec, counts):
    world, kit = 4, HostKit()

    def body(comm):
        x = np.full(4096, comm.rank, np.float32)
        options = {"algorithm": algorithm, "segments": 4 if algorithm == "linear_pipeline" else 1}
        if codec:
            options["codec"] = codec
        host = getattr(comm, collective)(x.copy(), **options)
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            array = racing.array(x)
            if collective != "all_reduce":
                options["out"] = racing.empty(host.size, x.dtype)
            racing.finish()
            comm.barrier()
            before = {kind: kit.enqueued(kind) for kind in WORK}
            comm.barrier()
            result = getattr(comm, collective)(array, stream=stream, async_op=True, **options).synchronize()
            comm.barrier()
            found = {kind: kit.enqueued(kind) - times for kind, times in before.items()}
            comm.barrier()
            return {kind: n for kind, n in found.items() if n}, np.array_equal(kit.host(result), host)

    assert run_ranks(world, body) == [(counts, True)] * world


def test_the_host_does_not_wait_for_the_device(make_kit):
    """All calls are enqueued while the first copies of each stream still hold everything up."""
    kit, calls = make_kit(60_000), 5

    def body(comm):
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x = [racing.array(np.ones(10, np.float32)) for _ in range(8)][-1]  # not all pause briefly
            event = kit.device.make_event()
            kit.device.record(event, stream)
            for _ in range(calls):
                comm.all_reduce(x, stream=stream)
            early = not kit.device.done(event)
            racing.finish()
            kit.device.end_event(event)
        return early, kit.host(x).tolist()

    for early, found in run_ranks(2, body, timeout=60):
        assert early and found == [2.0**calls] * 10


def test_work_waits_by_the_stream_and_synchronizes_by_the_host(make_kit):
    kit = make_kit(3000)

    def body(comm):
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            first = comm.all_reduce(racing.array(np.ones(5)), stream=stream, async_op=True)
            second = comm.all_reduce(racing.array(np.full(5, 3.0)), stream=stream, async_op=True)
            reading = racing.read(first.wait())  # the stream has waited: what is read is the result
            direct = kit.host(second.synchronize()).copy()  # the host has
            assert second.done()
            return racing.found(reading).tolist(), direct.tolist()

    assert run_ranks(2, body) == [([2.0] * 5, [6.0] * 5)] * 2


def test_calls_of_several_streams_keep_their_order(make_kit):
    """Scratch of the group and the arrays of one call are never those of the next one too soon."""
    kit = make_kit(100)

    def body(comm):
        with stream_of(kit) as a, stream_of(kit) as b:
            results = []
            racing = [Racing(kit, a), Racing(kit, b)]
            for i in range(10):
                r = racing[i % 2]
                x = r.array(np.full(5000, float(i), np.float32))
                results.append(
                    r.read(comm.all_reduce(x, algorithm="coded_ring", codec="bf16", stream=r.stream))
                )
            for r in racing:
                r.finish()
            return [float(kit.host(result)[-1]) for result in results]

    assert run_ranks(3, body) == [[3.0 * i for i in range(10)]] * 3


def test_device_and_host_arrays_of_one_communicator(make_kit):
    kit = make_kit(50)

    def body(comm):
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            found = []
            for i in range(4):
                x = np.full(3, float(i + comm.rank))
                found.append(comm.all_reduce(x.copy()).tolist())
                reading = racing.read(comm.all_reduce(racing.array(x), stream=stream))
                found.append(racing.found(reading).tolist())
        return found

    assert run_ranks(2, body) == [[[2.0 * i + 1] * 3 for i in range(4) for _ in range(2)]] * 2


@pytest.mark.parametrize(
    ("collective", "algorithm", "codec"),
    [(*pair, None) for pair in pairs()]
    + [(*pair, codec) for pair in pairs(coded=True) for codec in ("int8", "mpc")],
)
def test_a_device_for_each_rank(collective, algorithm, codec, make_kit):
    """Ordered by events alone, whichever stream is late."""
    kits = [make_kit(50, index) for index in range(3)]

    def body(comm):
        wrong, kit = [], kits[comm.rank]
        with stream_of(kit) as stream:
            for count, segments in [(3000, 1), (30_000, 5)]:
                arrays = inputs(collective, "float32", 3, count)
                options = {"algorithm": algorithm, "segments": segments, "codec": codec}
                options = {name: value for name, value in options.items() if value is not None}
                places = (1,) if collective in ROOTED else ()
                host = getattr(comm, collective)(arrays[comm.rank].copy(), *places, **options)
                racing = Racing(kit, stream)
                result = call(comm, racing, collective, arrays[comm.rank], 1, **options)
                reading = racing.read(result) if has_result(collective, comm.rank, 1) else None
                racing.finish()
                same = reading is None or np.array_equal(kit.host(reading), host)
                wrong += [] if same else [count]
        return wrong

    assert run_ranks(3, body) == [[]] * 3


def test_several_devices(make_kit):
    kits = [make_kit(50, index) for index in range(2)]

    def body(comm):
        kit = kits[comm.rank % 2]
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x = racing.array(np.full(1000, float(comm.rank), np.float32))
            reading = racing.read(comm.all_reduce(x, algorithm="ring", stream=stream))
            return racing.found(reading)[-1]

    assert run_ranks(3, body) == [3.0] * 3


def test_calls_stay_in_order_where_the_first_rank_changes_its_device():
    """The second call reads what the first, which is held up, writes."""
    kits = [HostKit(), HostKit()]
    xs = [kits[0].array(np.full(10, float(rank))) for rank in range(3)]
    moved = kits[1].array(np.full(10, 100.0))

    def body(comm):
        with stream_of(kits[0]) as slow, stream_of(kits[1]) as away, stream_of(kits[0]) as stream:
            sleep(kits[0].device, slow, 1)
            first = comm.all_reduce(xs[comm.rank], stream=slow, async_op=True)
            x, on = (xs[comm.rank], stream) if comm.rank else (moved, away)
            comm.all_reduce(x, stream=on, async_op=True).synchronize()
            first.synchronize()
            return x.values[-1]

    assert run_ranks(3, body) == [106.0] * 3


def test_a_stream_that_an_asynchronous_call_has_is_waited_for_by_another_rank():
    kit, barrier = HostKit(), threading.Barrier(2, timeout=TIMEOUT_S)
    x, y, values, found = kit.array(np.ones(10)), kit.array(np.zeros(10)), np.full(10, 2.0), np.zeros(10)

    def body(comm):
        if comm.rank == 0:
            work = comm.all_reduce(x, stream=stream, async_op=True)
            barrier.wait()
            return work.synchronize().values.tolist()
        barrier.wait()
        with held(kit.device, stream):
            kit.device.copy(kit.address(y), values.ctypes.data, values.nbytes, stream)
            comm.all_reduce(y, stream=stream)
            kit.device.copy(found.ctypes.data, kit.address(y), values.nbytes, stream)
            time.sleep(0.05)  # who does not wait for the stream reads before it writes
        finish(kit.device, stream)
        return found.tolist()

    with stream_of(kit) as stream:
        assert run_ranks(2, body) == [[3.0] * 10] * 2


def test_the_default_streams_of_two_devices_are_two():
    kits = [HostKit(), HostKit()]
    issued = threading.Barrier(2, timeout=TIMEOUT_S)
    xs = [kit.array(np.full(10, 1.0)) for kit in kits]

    def body(comm):
        device, x = kits[comm.rank].device, xs[comm.rank]
        with stream_of(kits[comm.rank]) as other, held(device, other) if comm.rank else nullcontext():
            event = device.make_event()
            device.record(event, other)
            device.wait(0, event)
            comm.all_reduce(x)  # enqueued
            issued.wait()
            time.sleep(0.05)  # who does not wait for rank 1's stream reads before it writes
            x.values[:] += comm.rank
            issued.wait()
        finish(device)
        device.end_event(event)
        return x.values[-1]

    assert run_ranks(2, body) == [3.0] * 2


def test_a_call_on_another_device_after_one_that_was_captured():
    kits = [HostKit(), HostKit()]
    barrier = threading.Barrier(2, timeout=TIMEOUT_S)

    def body(comm):
        x, y = (kit.array(np.full(10, 1.0)) for kit in kits)
        with stream_of(kits[0]) as stream, stream_of(kits[1]) as away:
            if comm.rank == 0:
                streams["one"] = stream
                kits[0].begin_capture(stream)
            barrier.wait()
            comm.all_reduce(x, stream=streams["one"])
            barrier.wait()
            if comm.rank == 0:
                kits[0].end_capture(stream)
            barrier.wait()
            comm.all_reduce(y, stream=away, async_op=True).synchronize()
            return y.values[-1]

    streams: dict[str, int] = {}
    assert run_ranks(2, body) == [2.0] * 2


def test_what_a_stream_gets_after_an_asynchronous_call_is_not_waited_for():
    assert run_ranks(2, later_work) == [True] * 2


def threads():
    gc.collect()  # communicators, and with them the streams of their group
    return len(list(Path("/proc/self/task").iterdir()))


def test_what_ranks_have_on_a_device_is_used_again_when_they_come_back():
    kits = [HostKit(), HostKit()]

    def body(comm):
        xs, counts = [kit.array(np.ones(5000, np.float32)) for kit in kits], []
        for turn in range(40):
            x = xs[(turn + comm.rank) % 2]
            comm.all_reduce(x, "mean", algorithm="coded_ring", codec="int8", async_op=True).synchronize()
            if turn in (3, 39):
                comm.barrier()
                counts.append(threads())
                comm.barrier()
        return counts

    for before, after in run_ranks(2, body):
        assert after <= before + 2


def test_who_has_closed_is_named(make_kit):
    kit, closed = make_kit(), threading.Event()

    def body(comm):
        x = kit.array(np.ones(10))
        comm.all_reduce(x, async_op=True).synchronize()
        if comm.rank == 1:
            comm.close()
            closed.set()
            return
        assert closed.wait(10)
        with pytest.raises(PeerLostError, match="rank 1 has closed"):
            comm.all_reduce(x)

    run_ranks(3, body)


class Told:
    """An array of a library that tells its stream as CuPy does; `asked`: by what it was asked for."""

    def __init__(self, array, stream, old=False):
        self.array, self.old, self.asked = array, old, []
        self.__cuda_array_interface__ = {"version": 3, "stream": stream}

    def __dlpack__(self, **options):
        if self.old and "max_version" in options:
            raise TypeError("of a time before DLPack 1.0")
        self.asked.append(options)
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


Told.__module__ = "cupy"


@pytest.mark.parametrize("old", [False, True])
def test_the_stream_is_that_of_the_array_interface(old):
    """The library is not asked to have CUDA's default stream wait too, as it would else."""
    kit = HostKit(3000)

    def body(comm):
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x = racing.array(np.full(5, comm.rank + 1.0))
            told = Told(x, stream, old)
            comm.all_reduce(told)
            assert told.asked and all(how["stream"] == -1 for how in told.asked)
            return racing.found(racing.read(x)).tolist()

    assert run_ranks(2, body) == [[3.0] * 5] * 2


def test_a_library_that_tells_no_stream_is_asked_for_the_usual_order():
    kit = HostKit()

    def body(comm):
        told = Told(kit.array(np.full(5, comm.rank + 1.0)), None)
        comm.all_reduce(told, async_op=True).synchronize()
        return {how.get("stream") for how in told.asked}

    assert run_ranks(2, body) == [{None}] * 2


def test_groups_have_streams_of_their_own(make_kit):
    kit = make_kit(50)

    def body(comm):
        group = comm.split(comm.rank % 2)
        x = kit.array(np.full(4, float(comm.rank)))
        group.all_reduce(x, async_op=True).synchronize()
        group.close()
        return kit.host(x).tolist()

    assert run_ranks(4, body) == [[2.0] * 4, [4.0] * 4] * 2


def test_scratch_is_bounded_and_grows_by_need(make_kit):
    kit = make_kit()

    def body(comm):
        for count in (100, 100_000, 1000, 300_000):
            x = kit.array(np.ones(count, np.float32))
            comm.all_reduce(x, algorithm="coded_ring", codec="bf16", async_op=True).synchronize()
            assert (kit.host(x) == 2).all()
        return True

    assert all(run_ranks(2, body))


def test_no_thread_is_left():
    def body(comm, kit):
        comm.all_reduce(kit.array(np.ones(2)), async_op=True).synchronize()

    run_ranks(2, functools.partial(body, kit=HostKit()))  # starts what stays, the progress thread
    before = threads()
    for _ in range(3):
        run_ranks(2, functools.partial(body, kit=HostKit()))
    deadline = time.monotonic() + 10
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threads() <= before
