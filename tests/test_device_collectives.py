"""Collectives on arrays of a device: the contract of those in host memory, in the order of streams."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import ALGORITHMS, ROOTED, pairs
from on_device import Racing, stream_of
from ranks import outcomes_of, run_ranks
from reference import close
from test_collectives import expect, inputs

from gpucomm.errors import MismatchError

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


def test_more_coded_pieces_at_once_than_a_kernel_takes(make_kit):
    """Each of five ranks codes four for the others."""
    kit, arrays = make_kit(), inputs("all_reduce", "float32", 5, 3000)

    def body(comm):
        here, there = arrays[comm.rank].copy(), kit.array(arrays[comm.rank])
        how = {"codec": "int8", "algorithm": "two_shot"}
        comm.all_reduce(there, async_op=True, **how).synchronize()
        comm.all_reduce(here, **how)
        return kit.host(there).tobytes() == here.tobytes()

    assert run_ranks(5, body) == [True] * 5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_pieces_of_many_rounds_of_mpc_and_of_none(collective, dtype, make_kit):
    """In the same kernels, whose rows of thread blocks are as long as the longest."""
    counts, kit = [40_000, 9_000, 100, 0], make_kit(50)
    options = {"counts": counts, "algorithm": "coded_ring", "codec": "mpc"}

    def body(comm):
        rng, count = np.random.default_rng(comm.rank), sum(counts)
        steps = rng.integers(-3, 4, counts[comm.rank] if collective == "all_gather" else count)
        x = steps.cumsum().astype(dtype)
        host = getattr(comm, collective)(x.copy(), **options)
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            out = racing.empty(host.size, x.dtype)
            result = getattr(comm, collective)(racing.array(x), out=out, stream=stream, **options)
            return np.array_equal(racing.found(racing.read(result)), host)

    assert run_ranks(len(counts), body) == [True] * len(counts)


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
