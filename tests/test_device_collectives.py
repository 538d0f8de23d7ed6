"""Collectives on arrays of a device: the contract of those in host memory, in the order of streams."""

from __future__ import annotations

import functools
import gc
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ALGORITHMS, ROOTED, pairs
from on_device import HostKit, Racing, sleep, stream_of, wait_for
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
WORK = ("copy", "reduce", "encode", "decode", "recode")


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


@pytest.mark.parametrize(
    ("codec", "segments"),
    [(codec, 2) for codec in ("int8", "fp8_e4m3", "bf16", "mpc", "zfp:8", "fixed:1e-2")]
    + [("int8", 20), ("fixed:1e-2", 20)],  # slots are used more than once
)
@pytest.mark.parametrize(("collective", "algorithm"), pairs(coded=True))
def test_the_same_bits_as_in_host_memory(collective, algorithm, codec, segments, make_kit):
    world, kit = 3, make_kit(50)

    def body(comm):
        arrays = inputs(collective, "float32", world, 1500 * segments)
        options = {"algorithm": algorithm, "codec": codec, "segments": segments}
        host = getattr(comm, collective)(arrays[comm.rank].copy(), **options)
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            reading = racing.read(call(comm, racing, collective, arrays[comm.rank], 0, **options))
            return np.array_equal(racing.found(reading), host)

    assert run_ranks(world, body) == [True] * world


TELLS = [
    (collective, algorithm)
    for collective, algorithm in pairs("all_reduce", "reduce_scatter", coded=True)
    if not ALGORITHMS[algorithm]["repeats"]
]


@pytest.mark.parametrize("codec", ["int4", "fp8_e4m3", "mpc", "fixed:1e-2"])
@pytest.mark.parametrize(
    ("op", "dtype"), [("sum", "float32"), ("mean", "float16"), ("premul_sum", "float32")]
)
@pytest.mark.parametrize(("collective", "algorithm"), TELLS)
def test_the_same_errors_as_in_host_memory(collective, algorithm, op, dtype, codec, make_kit):
    """And the same results; what was in the array of errors before is overwritten, NaN too."""
    world, kit = 3, make_kit(50)
    dtype = "float32" if codec == "mpc" else dtype

    def body(comm):
        options = {"algorithm": algorithm, "codec": codec, "segments": 2, "op": op}
        if op == "premul_sum":
            options["scale"] = 0.4 + comm.rank
        x = (np.random.default_rng(comm.rank).standard_normal(3000) * 3).astype(dtype)
        lost = np.full_like(x, np.nan)
        host = getattr(comm, collective)(x.copy(), error=lost, **options)
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            error = racing.array(np.full_like(x, np.nan))
            result = call(comm, racing, collective, x, 0, error=error, **options)
            readings = racing.read(result), racing.read(error)
            found = [racing.found(reading) for reading in readings]
        return np.array_equal(found[0], host), np.array_equal(found[1], lost), bool(lost.any())

    for same, same_error, loses in run_ranks(world, body):
        assert same and same_error and loses == (codec != "mpc")


@pytest.mark.parametrize("count", [4096, 4097, 300_001])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_largest_magnitude_wherever_it_is(dtype, count, make_kit):
    """Coded as if it were smaller it would not fit: the device would have failed."""
    kit = make_kit(20)

    def body(comm):
        same = []
        for place in (0, count // 2, count - 1):
            x = (np.random.default_rng(place).standard_normal(count)).astype(dtype)
            x[place] = -30_000 if comm.rank else 7
            host = comm.all_reduce(x.copy(), codec="fixed:1e-2", algorithm="coded_ring", segments=1)
            with stream_of(kit) as stream:
                racing = Racing(kit, stream)
                y = comm.all_reduce(racing.array(x), codec="fixed:1e-2", stream=stream)
                same.append(np.array_equal(racing.found(racing.read(y)), host))
        return same

    assert run_ranks(2, body) == [[True] * 3] * 2


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


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "reduce_scatter"])
def test_premultiplied_sums_of_several_streams(collective, dtype, out, make_kit):
    """The products lie in x, in out or in scratch of the communicator, which calls take in their turn."""
    world, kit = 3, make_kit(50)

    def body(comm):
        arrays = [inputs(collective, dtype, world, 999 * (n + 1))[comm.rank] for n in range(4)]
        factors = [0.3 * (comm.rank + n + 1) for n in range(4)]
        host = [
            getattr(comm, collective)(
                x.copy(), op="premul_sum", scale=factor, algorithm="direct", segments=1
            ).copy()
            for x, factor in zip(arrays, factors, strict=True)
        ]
        with stream_of(kit) as a, stream_of(kit) as b:
            racing, works = [Racing(kit, a), Racing(kit, b)], []
            for n, (x, factor) in enumerate(zip(arrays, factors, strict=True)):
                r = racing[n % 2]
                array, options = r.array(x), {"op": "premul_sum", "scale": factor, "stream": r.stream}
                if collective == "reduce_scatter":
                    options["out"] = r.empty(x.size // world, x.dtype)
                elif out and (collective == "all_reduce" or comm.rank == 0):
                    options["out"] = r.empty(x.size, x.dtype)
                works.append((r, getattr(comm, collective)(array, async_op=True, **options), array))
            readings = [
                (r, r.read(result), None if result is array else r.read(array))
                for r, result, array in [(r, work.wait(), array) for r, work, array in works]
            ]
            found = [
                (r.found(result), None if array is None else r.found(array)) for r, result, array in readings
            ]
        expected = host if has_result(collective, comm.rank, 0) else arrays
        return [
            np.array_equal(result, right) and (array is None or np.array_equal(array, x))
            for (result, array), right, x in zip(found, expected, arrays, strict=True)
        ]

    assert run_ranks(world, body) == [[True] * 4] * world


LISTS = [("float32", 300), ("float32", 7), ("int64", 5), ("float32", 0), ("float32", 1000), ("int64", 3)]


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize(
    ("collective", "how"),
    [
        ("all_reduce", {}),
        ("all_reduce", {"codec": "bf16", "algorithm": "coded_ring"}),
        ("all_gather", {}),
        ("reduce", {"root": 0}),
        ("broadcast", {"root": 0}),
    ],
)
def test_lists_of_arrays(collective, how, world, make_kit):
    """Several lists under way on two streams; arrays that are only read stay as they are."""
    kit = make_kit(50)
    kinds = [one for one in LISTS if "codec" not in how or one[0] == "float32"]

    def body(comm):
        lists = [
            [inputs("all_reduce", dtype, world, count)[comm.rank] + n for dtype, count in kinds]
            for n in range(3)
        ]
        fixed = {"algorithm": "ring" if collective != "broadcast" else "binomial_tree", "segments": 1} | how
        fixed["algorithm"] = "binomial_tree" if collective == "reduce" else fixed["algorithm"]
        host = [getattr(comm, collective)([x.copy() for x in xs], **fixed) for xs in lists]
        before = comm.stats()["calls"]
        with stream_of(kit) as a, stream_of(kit) as b:
            racing, works = [Racing(kit, a), Racing(kit, b)], []
            for n, xs in enumerate(lists):
                r = racing[n % 2]
                arrays = [r.array(x) for x in xs]
                work = getattr(comm, collective)(arrays, async_op=True, stream=r.stream, **fixed)
                works.append((r, work, arrays))
            calls = comm.stats()["calls"] - before
            readings = [(r, [r.read(y) for y in work.wait()]) for r, work, _ in works]
            found = [[r.found(y) for y in ys] for r, ys in readings]
        same = [
            [np.array_equal(y, z) for y, z in zip(*pair, strict=True)]
            for pair in zip(found, host, strict=True)
        ]
        return calls, same

    for calls, same in run_ranks(world, body):
        assert calls == 3 * len({dtype for dtype, _ in kinds})
        assert all(all(one) for one in same)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce", "broadcast"])
def test_results_elsewhere(collective, make_kit):
    """Of a list, and of a single broadcast; what is sent stays as it is."""
    kit = make_kit(50)

    def body(comm):
        how = {"root": 1} if collective in ("reduce", "broadcast") else {}
        how |= {"algorithm": "ring" if collective.startswith("all") else "binomial_tree", "segments": 1}
        host = [np.arange(n, dtype=np.float32) + 100 * comm.rank for n in (6, 10, 300_000)]
        wanted = [getattr(comm, collective)(x.copy(), **how) for x in host]
        xs = [kit.array(x) for x in host]
        outs = [kit.array(np.zeros_like(y)) for y in wanted]
        gets = collective != "reduce" or comm.rank == 1
        with stream_of(kit) as stream:
            got = getattr(comm, collective)(xs, out=outs, async_op=True, stream=stream, **how).synchronize()
            assert got is (outs if gets else xs)
            if collective == "broadcast":
                alone = kit.array(np.zeros_like(wanted[1]))
                comm.broadcast(xs[1], out=alone, async_op=True, stream=stream, **how).synchronize()
                assert np.array_equal(kit.host(alone), wanted[1])
        assert all(np.array_equal(kit.host(x), y) for x, y in zip(xs, host, strict=True))
        return not gets or all(np.array_equal(kit.host(y), z) for y, z in zip(outs, wanted, strict=True))

    assert run_ranks(3, body) == [True] * 3


def test_lists_with_a_factor_that_are_mixed_and_large(make_kit):
    """A large array travels by itself, host memory apart from a device's; the host waits by synchronize."""
    kit = make_kit(50)

    def body(comm):
        sizes, before = (10, 300_000, 20, 5), comm.stats()["calls"]
        xs = [kit.array(np.full(n, comm.rank + 1.0, np.float32)) for n in sizes[:3]]
        xs.append(np.full(sizes[3], comm.rank + 1.0, np.float32))
        kwargs = {"op": "premul_sum", "scale": 2.0, "algorithm": "direct", "segments": 1}
        assert comm.all_reduce(xs, async_op=True, **kwargs).synchronize() is xs
        calls = comm.stats()["calls"] - before
        return calls, [float(x[-1]) for x in (*map(kit.host, xs[:3]), xs[3])]

    assert run_ranks(2, body) == [(3, [6.0] * 4)] * 2


def test_lists_that_differ_between_ranks(make_kit):
    kit = make_kit()

    def body(comm):
        counts = (5, 3) if comm.rank else (3, 5)
        comm.all_reduce([kit.array(np.ones(n)) for n in counts])

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError)


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
    assert (kit.enqueued("wait") or 0) <= world + 1  # of the ranks' streams and the group's


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
def test_a_device_for_each_rank(collective, algorithm, codec):
    """Ordered by events alone, whichever stream is late."""
    kits = [HostKit(50) for _ in range(3)]

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
                wrong += [count] if reading and not np.array_equal(kit.host(reading), host) else []
        return wrong

    assert run_ranks(3, body) == [[]] * 3


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


def test_a_mismatch_has_not_multiplied(make_kit):
    kit = make_kit()

    def body(comm):
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x = racing.array(np.ones(100, np.float32))
            how = {"algorithm": "ring" if comm.rank else "direct", "stream": stream}
            with pytest.raises(MismatchError, match="do not make the same call"):
                comm.all_reduce(x, "premul_sum", scale=3.0, async_op=True, **how).synchronize()
            racing.finish()
            return set(kit.host(x).tolist())

    assert run_ranks(2, body) == [{1.0}] * 2


def to_next(comm, x):
    return comm.recv(x, 0) if comm.rank else comm.send(x, 1)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda comm, x: comm.all_reduce(x), r"rank 0 of 2 calls .*, but host device withholds it"),
        (to_next, r"rank 1 receives on .* rank 0 sends from host device, and host device withholds it"),
    ],
)
def test_memory_that_other_devices_cannot_use_is_refused(call, text):
    kits = [HostKit(), HostKit()]
    kits[0].device.withhold()

    def body(comm):
        with pytest.raises(UnavailableError, match=text):
            call(comm, kits[comm.rank].array(np.ones(3)))

    run_ranks(2, body)


def test_a_stream_of_another_device_is_refused_before_other_ranks_hear_of_the_call():
    kits = [HostKit(), HostKit()]

    def body(comm):
        x = kits[0].array(np.ones(3))
        with stream_of(kits[1]) as away:
            if comm.rank:
                with pytest.raises(InvalidArgumentError, match="the stream is one of another host device"):
                    comm.all_reduce(x, stream=away)
            return comm.all_reduce(x, async_op=True).synchronize().values.tolist()

    assert run_ranks(2, body) == [[2.0] * 3] * 2


class Told:
    """An array of a library that tells its stream as CuPy does."""

    def __init__(self, array, stream):
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__
        self.__cuda_array_interface__ = {"version": 3, "stream": stream}


def test_the_stream_is_that_of_the_array_interface():
    kit = HostKit(3000)

    def body(comm):
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x = racing.array(np.full(5, comm.rank + 1.0))
            comm.all_reduce(Told(x, stream))
            return racing.found(racing.read(x)).tolist()

    assert run_ranks(2, body) == [[3.0] * 5] * 2


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
    kit, other = make_kit(), HostKit()

    def arguments(comm):
        x = kit.array(np.ones(3, np.float32))
        with pytest.raises(InvalidArgumentError, match="x and out must be on one device"):
            comm.all_reduce(x, out=np.ones(3, np.float32))
        with pytest.raises(InvalidArgumentError, match="x and out must be on one device"):
            comm.all_reduce(x, out=other.array(np.ones(3, np.float32)))
        with pytest.raises(InvalidArgumentError, match="x and error must be on one device"):
            comm.all_reduce(x, codec="int8", error=np.ones(3, np.float32))
        with pytest.raises(InvalidArgumentError, match="x and out must be on one device"):
            comm.all_reduce(x, out=np.ones(3, np.float32), max_rel_err=0.1)
        return comm.all_reduce(np.ones(1)).tolist()  # nothing has happened to the communicator

    assert run_ranks(2, arguments) == [[2.0]] * 2

    def ranks(comm):
        comm.all_reduce(kit.array(np.ones(3)) if comm.rank else np.ones(3), algorithm="direct", segments=1)

    for error in outcomes_of(2, ranks, timeout=10):
        assert isinstance(error, MismatchError) and "on a device" in str(error)


def test_the_stream_of_a_thread_is_refused(make_kit):
    """Handle 2, which means another one in each thread, and it is not the caller's that enqueues."""
    kit = make_kit()

    def body(comm):
        x, y = (kit.array(np.ones(3, np.float32)) for _ in range(2))
        for call in (
            lambda: comm.all_reduce(x, stream=2),
            lambda: comm.all_reduce([x, y], "premul_sum", scale=0.5, stream=2),
            lambda: comm.all_reduce(x, max_rel_err=0.1, stream=2),
            lambda: comm.sendrecv(x, comm.rank, y, comm.rank, stream=2),
            lambda: comm.send(x, 1 - comm.rank, stream=2),
        ):
            with pytest.raises(InvalidArgumentError, match="stream 2 is CUDA's default stream"):
                call()
        return kit.host(comm.all_reduce(x, async_op=True).synchronize()).tolist()

    assert run_ranks(2, body) == [[2.0] * 3] * 2


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
        assert str(error).endswith("which sends 6") or str(error).endswith("which sends 5")


def test_a_mismatch_before_a_call_names_the_call_to_come(make_kit):
    """The ranks agree on their largest magnitude first."""
    kit = make_kit()

    def body(comm):
        x = kit.array(np.ones(300, np.float32))
        comm.all_reduce(x, codec="fixed:1e-2", algorithm="coded_ring") if comm.rank else comm.all_reduce(x)

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError)
        assert "the preparation of all_reduce #1 (sum of 300 float32, on a device, codec fixed" in str(error)


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


def test_after_close_the_device_touches_no_array(make_kit):
    """Who closes may give the arrays back, whose memory is used for something else then."""
    kit, open_still = make_kit(20_000), []

    def body(comm):
        open_still.append(comm)  # its streams would be waited for where it ends
        x = kit.array(np.full(1000, comm.rank + 1.0))
        comm.all_reduce(x, async_op=True, algorithm="ring", segments=1)
        comm.barrier()  # behind the call, which is enqueued then
        comm.close()
        return set(kit.host(x).tolist())

    assert run_ranks(2, body) == [{3.0}] * 2


def test_what_is_late_keeps_what_it_uses():
    """Neither close() nor the end of the ranks' group waits for it to the end."""
    kit = HostKit()
    xs = [kit.array(np.full(1000, rank + 1.0, np.float32)) for rank in range(2)]
    stream, event = kit.device.make_stream(), kit.device.make_event()
    sleep(kit.device, stream, 5)
    kit.device.record(event, stream)

    def body(comm):
        options = {"codec": "bf16", "algorithm": "coded_ring", "segments": 1}
        comm.all_reduce(xs[comm.rank], stream=stream, async_op=True, **options).wait()

    run_ranks(2, body)
    gc.collect()
    assert not kit.device.done(event)
    kit.device.record(event, stream)
    wait_for(kit.device, event)
    assert [set(kit.host(x).tolist()) for x in xs] == [{3.0}] * 2
    kit.device.end_event(event), kit.device.end_stream(stream)


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
