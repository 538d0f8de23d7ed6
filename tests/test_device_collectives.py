"""Collectives on arrays of a device: the contract of those in host memory, in the order of streams."""

from __future__ import annotations

import functools
import gc
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOTED, pairs
from on_device import HostKit, Racing, stream_of
from ranks import outcomes_of, run_ranks
from reference import close
from test_collectives import expect, inputs

import gpucomm
from gpucomm import _core
from gpucomm.errors import (
    ClosedError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    MismatchError,
    UnavailableError,
    UnsupportedTypeError,
)

WORLDS = [1, 2, 3, 5]
FOLDS = ("all_reduce", "reduce", "reduce_scatter")


def call(comm, racing, collective, x, root, **options):
    """A call whose arrays only the stream fills; what is read after it, or None where there is nothing."""
    rows = {"all_gather": comm.world, "gather": comm.world, "reduce_scatter": 1, "scatter": 1}
    array = racing.array(x)
    if collective in rows:
        count = x.size * comm.world if rows[collective] > 1 else x.size // comm.world
        options["out"] = racing.empty(count, x.dtype)
        if collective == "gather" and comm.rank != root:
            del options["out"]
    elif collective == "all_to_all":
        options["out"] = racing.empty(x.size, x.dtype)
    places = (array, root) if collective in ROOTED else (array,)
    result = getattr(comm, collective)(*places, stream=racing.stream, **options)
    return result


def has_result(collective, rank, root):
    return rank == root or collective not in ("reduce", "gather")


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("collective", "algorithm"), pairs())
def test_every_algorithm(collective, algorithm, world, make_kit):
    kit = make_kit(50)

    def body(comm):
        wrong = []
        with stream_of(kit) as stream:
            for dtype, count, segments in [("float32", 1000, 1), ("int64", 7, 1), ("float32", 40000, 3)]:
                racing, root = Racing(kit, stream), count % world
                arrays = inputs(collective, dtype, world, count)
                result = call(
                    comm, racing, collective, arrays[comm.rank], root, algorithm=algorithm, segments=segments
                )
                reading = racing.read(result) if has_result(collective, comm.rank, root) else None
                racing.finish()
                expected = expect(collective, arrays, comm.rank, root, "sum")
                if expected is not None and not close(kit.host(reading), expected, "sum"):
                    wrong.append((dtype, count))
        return wrong

    assert run_ranks(world, body) == [[]] * world


@pytest.mark.parametrize("codec", ["int8", "fp8_e4m3", "bf16", "mpc", "zfp:8"])
@pytest.mark.parametrize(("collective", "algorithm"), pairs(coded=True))
def test_the_same_bits_as_in_host_memory(collective, algorithm, codec, make_kit):
    world, kit = 3, make_kit(50)

    def body(comm):
        arrays = inputs(collective, "float32", world, 3000)
        options = {"algorithm": algorithm, "codec": codec, "segments": 2}
        host = getattr(comm, collective)(arrays[comm.rank].copy(), **options)
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            reading = racing.read(call(comm, racing, collective, arrays[comm.rank], 0, **options))
            return np.array_equal(racing.found(reading), host)

    assert run_ranks(world, body) == [True] * world


@pytest.mark.parametrize("op", ["mean", "min", "prod"])
@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_ops(op, dtype, make_kit):
    world, kit = 4, make_kit(20)

    def body(comm):
        arrays = inputs("all_reduce", dtype, world, 333, op)
        host = comm.all_reduce(arrays[comm.rank].copy(), op=op, algorithm="direct", segments=1)
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            reading = racing.read(comm.all_reduce(racing.array(arrays[comm.rank]), op=op, stream=stream))
            return np.array_equal(racing.found(reading), host)

    assert run_ranks(world, body) == [True] * world


def test_bfloat16(make_kit):
    kit = make_kit()

    def body(comm):
        with stream_of(kit) as stream:
            racing = Racing(kit, stream, "bfloat16")
            reading = racing.read(comm.all_reduce(racing.array(np.full(9, 0x3F80, np.uint16)), stream=stream))
            return racing.found(reading).tolist()

    assert run_ranks(2, body) == [[0x4000] * 9] * 2  # 1 + 1 = 2


def test_a_direct_all_reduce_is_one_fold_a_rank_and_no_copy(make_kit):
    world, kit = 4, make_kit()

    def body(comm):
        x = kit.array(np.ones(4096, np.float32))
        comm.all_reduce(x, algorithm="direct", async_op=True).synchronize()
        return float(kit.host(x)[0])

    assert run_ranks(world, body) == [4.0] * world
    assert kit.enqueued("reduce") in (world, None) and kit.enqueued("copy") in (0, None)


def test_the_host_does_not_wait_for_the_device(make_kit):
    """All calls are enqueued while the first copy of each stream still holds everything up."""
    kit, calls = make_kit(60_000), 5

    def body(comm):
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x = racing.array(np.ones(10, np.float32))
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


def test_several_devices():
    kits = [HostKit(50), HostKit(50)]

    def body(comm):
        kit = kits[comm.rank % 2]
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x = racing.array(np.full(1000, float(comm.rank), np.float32))
            reading = racing.read(comm.all_reduce(x, algorithm="ring", stream=stream))
            return racing.found(reading)[-1]

    assert run_ranks(3, body) == [3.0] * 3


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


def test_mixed_arguments_and_ranks(make_kit):
    kit, other = make_kit(), make_kit()

    def arguments(comm):
        x = kit.array(np.ones(3, np.float32))
        with pytest.raises(InvalidArgumentError, match="x and out must be on one device"):
            comm.all_reduce(x, out=np.ones(3, np.float32))
        with pytest.raises(InvalidArgumentError, match="x and out must be on one device"):
            comm.all_reduce(x, out=other.array(np.ones(3, np.float32)))
        with pytest.raises(UnsupportedTypeError, match="takes arrays in host memory only"):
            comm.send(x, 1 - comm.rank)
        with pytest.raises(UnsupportedTypeError, match="scale is for arrays in host memory"):
            comm.all_reduce(x, op="premul_sum", scale=2.0)
        with pytest.raises(InvalidArgumentError, match="needs the largest magnitude of all ranks"):
            comm.all_reduce(x, codec="fixed:1e-3")
        with pytest.raises(InvalidArgumentError, match="error and max_rel_err are for arrays in host memory"):
            comm.all_reduce(x, codec="int8", error=np.ones(3, np.float32))
        return comm.all_reduce(np.ones(1)).tolist()  # nothing has happened to the communicator

    assert run_ranks(2, arguments) == [[2.0]] * 2

    def ranks(comm):
        comm.all_reduce(kit.array(np.ones(3)) if comm.rank else np.ones(3), algorithm="direct", segments=1)

    for error in outcomes_of(2, ranks, timeout=10):
        assert isinstance(error, MismatchError) and "on a device" in str(error)


def test_a_mismatch_names_both_calls_and_touches_nothing(make_kit):
    kit = make_kit()

    def body(comm):
        x = kit.array(np.ones(3 + comm.rank))
        comm.all_reduce(x)

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError) and "sum of 3" in str(error) and "sum of 4" in str(error)
    assert kit.enqueued("reduce") in (0, None)


def test_blocks_of_other_sizes_than_their_receiver_expects(make_kit):
    kit = make_kit()

    def body(comm):
        counts = [5 + comm.rank] * 2
        x, out = kit.array(np.ones(sum(counts))), kit.array(np.ones(sum(counts)))
        comm.all_to_all(x, counts=counts, out_counts=counts, out=out)

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError) and "counts and out_counts do not fit" in str(error)


def test_a_rank_that_does_not_come(make_kit):
    kit = make_kit()

    def body(comm):
        if comm.rank == 0:
            time.sleep(0.8)
            return None
        comm.all_reduce(kit.array(np.ones(3)), timeout=0.2)

    silent, error = outcomes_of(2, body)
    assert silent is None
    assert isinstance(error, CollectiveTimeoutError) and "missing: 0" in str(error)


def test_nothing_is_enqueued_for_a_rank_that_has_gone(make_kit):
    kit = make_kit()
    region = _core.Region(2)
    left = gpucomm.Communicator("local", 0, 2, region=region)
    right = gpucomm.Communicator("local", 1, 2, region=region)
    work = left.all_reduce(kit.array(np.ones(3)), async_op=True)
    left.close()
    with pytest.raises(ClosedError, match="closed before this call had finished"):
        work.wait()
    with pytest.raises(gpucomm.errors.Error, match="closed"):
        right.all_reduce(kit.array(np.ones(3)), timeout=5.0)
    assert kit.enqueued("reduce") in (0, None)


def test_what_a_codec_cannot_carry_is_reported():
    kit = HostKit()

    def body(comm):
        bad = kit.array(np.array([1.0, np.nan], np.float32))
        with pytest.raises(UnavailableError, match=r"host device: .*nan"):
            comm.all_reduce(bad, codec="int8", async_op=True).synchronize()
        with pytest.raises(UnavailableError, match="failed in earlier work"):
            comm.all_reduce(bad, codec="int8")

    run_ranks(2, body)


def test_emulated_links_are_refused(make_kit):
    region = _core.Region(1)
    comm = gpucomm.Communicator("local", 0, 1, region=region, links=None)
    kit = make_kit()
    x = kit.array(np.ones(2))
    comm.all_reduce(x, async_op=True).synchronize()
    comm.close()

    def body(comm):
        comm.all_reduce(kit.array(np.ones(2)))

    for error in outcomes_of(2, body, links=_core.Links("switch", alpha=1e-5, beta=1e-9)):
        assert isinstance(error, UnavailableError) and "no emulated links" in str(error)


def test_an_array_of_an_unknown_device():
    kit = HostKit()
    array = kit.array(np.ones(2))
    del kit
    with pytest.raises(UnsupportedTypeError, match="DLPack type 12"):
        run_ranks(1, lambda comm: comm.all_reduce(array))


def test_no_thread_is_left():
    def body(comm, kit):
        comm.all_reduce(kit.array(np.ones(2)), async_op=True).synchronize()

    def threads():
        gc.collect()  # communicators, and with them the streams of their group
        return len(list(Path("/proc/self/task").iterdir()))

    run_ranks(2, functools.partial(body, kit=HostKit()))  # starts what stays, the progress thread
    before = threads()
    for _ in range(3):
        run_ranks(2, functools.partial(body, kit=HostKit()))
    deadline = time.monotonic() + 10
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threads() <= before
