"""Ranks that are threads and call on one stream: the call runs on that stream itself."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
from on_device import HostKit, Racing, finish, held, sleep, stream_of
from ranks import TIMEOUT_S, run_ranks

from gpucomm.errors import Error

CODED = {"algorithm": "coded_ring", "codec": "bf16"}  # which has scratch


@pytest.mark.parametrize("how", [CODED, {"algorithm": "direct"}])
@pytest.mark.parametrize("order", ["aabbaob", "oaaob", "axaobxbo", "alobla"])
def test_calls_keep_their_order(how, order, make_kit):
    """On streams that all ranks share (a, b) or have each (o); asynchronous (x), of a list (l)."""
    kit, world = make_kit(100), 3

    def body(comm):
        with stream_of(kit) as own:
            streams = {"a": shared[0], "b": shared[1], "o": own, "x": shared[0], "l": shared[1]}
            racing = {name: Racing(kit, stream) for name, stream in streams.items()}
            readings = []
            for i, name in enumerate(order):
                at = racing[name]
                xs = [at.array(np.full(5000, float(i + j), np.float32)) for j in range(1 + (name == "l"))]
                x = xs if name == "l" else xs[0]
                work = comm.all_reduce(x, stream=at.stream, async_op=name == "x", **how)
                if name == "x":
                    work.wait()
                readings.append([at.read(each) for each in xs])
            for at in racing.values():
                at.finish()
            return [[float(kit.host(reading)[-1]) for reading in each] for each in readings]

    expected = [[3.0 * (i + j) for j in range(1 + (name == "l"))] for i, name in enumerate(order)]
    with stream_of(kit) as a, stream_of(kit) as b:
        shared = a, b
        assert run_ranks(world, body) == [expected] * world


def test_no_other_stream_has_to_wait():
    kit, calls = HostKit(), 4

    def body(comm):
        x = kit.array(np.ones(10))
        comm.all_reduce(x, stream=stream)
        comm.barrier()
        before = {kind: kit.enqueued(kind) for kind in ("wait", "record", "reduce")}
        comm.barrier()
        for _ in range(calls):
            comm.all_reduce(x, stream=stream)
        comm.barrier()
        found = {kind: kit.enqueued(kind) - times for kind, times in before.items()}
        comm.barrier()
        finish(kit.device, stream)
        return found

    with stream_of(kit) as stream:
        assert run_ranks(2, body)[0] == {"wait": calls, "record": calls, "reduce": calls}


@pytest.mark.parametrize("moves", [1, 3])
def test_calls_come_after_it_where_ranks_change_their_device(moves):
    """The second call reads what the first, which is held up, writes."""
    kits, world = [HostKit(), HostKit()], 3
    xs = [kits[0].array(np.full(10, float(rank))) for rank in range(world)]
    ys = [kits[1].array(np.zeros(10)) for _ in range(world)]

    def body(comm):
        with stream_of(kits[comm.rank < moves]) as own:
            comm.all_reduce(xs[comm.rank], stream=slow)
            y = ys[comm.rank] if comm.rank < moves else xs[comm.rank]
            comm.all_reduce(y, stream=own, async_op=True).synchronize()
            return xs[comm.rank].values[-1], y.values[-1]

    with stream_of(kits[0]) as slow:
        sleep(kits[0].device, slow, 1)
        sums = [3.0 * (world - moves)] * world
        firsts = [3.0 if rank < moves else sums[0] for rank in range(world)]
        assert run_ranks(world, body) == list(zip(firsts, sums, strict=True))


def test_a_group_ends_after_its_calls():
    """Who closes waits for them: the arrays may go then."""
    kit = HostKit()
    xs = [kit.array(np.ones(10)) for _ in range(2)]

    def body(comm):
        with comm.subset(range(comm.world)) as group:
            group.all_reduce(xs[comm.rank], stream=stream)
        return xs[comm.rank].values[-1]

    with stream_of(kit) as stream, contextlib.ExitStack() as busy:
        busy.enter_context(held(kit.device, stream))
        threading.Timer(0.2, busy.close).start()
        assert run_ranks(2, body) == [2.0, 2.0]
        finish(kit.device, stream)


def test_an_asynchronous_call_leaves_the_stream_alone():
    """It comes after a call that is held up, which the stream has nothing to do with."""
    kit = HostKit()
    xs = [kit.array(np.ones(10)) for _ in range(2)]

    def body(comm):
        comm.all_reduce(xs[comm.rank], stream=slow)
        work = comm.all_reduce(xs[comm.rank], stream=stream, async_op=True)
        comm.barrier()
        finish(kit.device, stream)
        early = not work.done()
        comm.barrier()
        busy.close()
        work.synchronize()
        return early, xs[comm.rank].values[-1]

    with stream_of(kit) as slow, stream_of(kit) as stream, contextlib.ExitStack() as busy:
        busy.enter_context(held(kit.device, slow))
        assert run_ranks(2, body) == [(True, 4.0)] * 2


def test_a_call_beside_an_open_capture_of_the_stream(make_kit):
    kit, barrier = make_kit(), threading.Barrier(2, timeout=TIMEOUT_S)
    xs = [kit.array(np.ones(10, np.float32)) for _ in range(2)]

    def body(comm):
        comm.all_reduce(xs[comm.rank], stream=stream)
        if comm.rank == 0:
            finish(kit.device, stream)
            kit.begin_capture(stream)
        barrier.wait()
        comm.all_reduce(xs[comm.rank], stream=stream)
        try:
            with pytest.raises(Error, match="an earlier call of this communicator is in a capture"):
                comm.all_reduce(xs[comm.rank], stream=other)
        finally:
            barrier.wait()
            if comm.rank == 0:
                graphs.append(kit.end_capture(stream))

    graphs: list[Any] = []
    with stream_of(kit) as stream, stream_of(kit) as other:
        run_ranks(2, body)
