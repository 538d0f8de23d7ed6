"""The contract of the collectives: algorithm x transport x dtype x world x count, from the registries."""

from __future__ import annotations

import threading
import timeit

import numpy as np
import pytest
from conftest import ALGORITHMS, ROOTED, pairs
from ranks import run_ranks
from reference import DTYPES, OPS, close, defined, fold, values

from gpucomm.errors import UnsupportedTypeError

WORLDS = [1, 2, 3, 4, 5, 7, 8]


def counts(world: int) -> list[int]:
    return sorted({0, 1, world - 1, world, 7, 1000, 65537})


def run(comm, collective, x, root=0, **options):
    """One collective by name; the result, or None where this rank gets none."""
    if collective in ROOTED:
        result = getattr(comm, collective)(x, root, **options)
        return None if collective in ("reduce", "gather") and comm.rank != root else result
    return getattr(comm, collective)(x, **options)


def inputs(collective: str, dtype: str, world: int, count: int, op: str = "sum") -> list[np.ndarray]:
    each = count * world if collective in ("reduce_scatter", "scatter", "all_to_all") else count
    return [values(dtype, each, rank, op) for rank in range(world)]


def expect(collective: str, arrays: list[np.ndarray], rank: int, root: int, op: str) -> np.ndarray | None:
    world = len(arrays)
    if collective == "broadcast":
        return arrays[root]
    if collective == "all_gather":
        return np.concatenate(arrays)
    if collective == "gather":
        return np.concatenate(arrays) if rank == root else None
    if collective == "scatter":
        return np.split(arrays[root], world)[rank]
    if collective == "all_to_all":
        return np.concatenate([np.split(array, world)[rank] for array in arrays])
    result = fold(op, arrays)
    if collective == "reduce":
        return result if rank == root else None
    return np.split(result, world)[rank] if collective == "reduce_scatter" else result


def test_a_mean_of_integers_wraps_before_it_divides():
    results = run_ranks(2, lambda comm: comm.all_reduce(np.array([100, -100, 50], np.int8), "mean").tolist())
    assert results == [[-28, 28, 50]] * 2


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("collective", "algorithm"), pairs())
def test_dtypes_and_counts(collective, algorithm, world):
    def body(comm):
        wrong = []
        for dtype in DTYPES:
            for count in counts(world) if dtype == "float32" else [7, 1000]:
                arrays = inputs(collective, dtype, world, count)
                root = count % world
                result = run(comm, collective, arrays[comm.rank].copy(), root, algorithm=algorithm)
                expected = expect(collective, arrays, comm.rank, root, "sum")
                if expected is not None and not close(result, expected, "sum"):
                    wrong.append((dtype, count))
        return wrong

    assert run_ranks(world, body) == [[]] * world


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("collective", "algorithm"), pairs("all_reduce", "reduce", "reduce_scatter"))
def test_ops(collective, algorithm, op):
    world = 5

    def body(comm):
        wrong = []
        for dtype in DTYPES:
            if not defined(op, dtype):
                continue
            arrays = inputs(collective, dtype, world, 333, op)
            result = run(
                comm, collective, arrays[comm.rank].copy(), 2, op=op, algorithm=algorithm, segments=2
            )
            expected = expect(collective, arrays, comm.rank, 2, op)
            if expected is not None and not close(result, expected, op):
                wrong.append(dtype)
        return wrong

    assert run_ranks(world, body) == [[]] * world


@pytest.mark.parametrize(("collective", "algorithm"), pairs())
def test_every_root_and_segment_count(collective, algorithm):
    world = 4

    def body(comm):
        wrong = []
        for root in range(world if collective in ROOTED else 1):
            for segments in (1, 2, 5, 64):
                arrays = inputs(collective, "int32", world, 5000)
                result = run(
                    comm, collective, arrays[comm.rank].copy(), root, algorithm=algorithm, segments=segments
                )
                expected = expect(collective, arrays, comm.rank, root, "sum")
                if expected is not None and not close(result, expected, "sum"):
                    wrong.append((root, segments))
        return wrong

    assert run_ranks(world, body) == [[]] * world


@pytest.mark.parametrize(
    "algorithm",
    [name for name, a in ALGORITHMS.items() if "all_reduce" in a["collectives"] and not a["coded"]],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_all_ranks_have_the_same_bits_twice(algorithm, dtype):
    world = 5
    noise = [np.random.default_rng(rank).standard_normal(10_001).astype(dtype) for rank in range(world)]
    for rank in range(world):
        noise[rank][rank::997] = [np.nan, np.inf, -np.inf, -0.0, 0.0][rank]

    def body(comm):
        results = []
        for op in (op for op in OPS if defined(op, dtype)):
            for _ in range(2):
                results.append(
                    comm.all_reduce(noise[comm.rank].copy(), op=op, algorithm=algorithm, segments=3).tobytes()
                )
        assert results[::2] == results[1::2]
        return results

    with np.errstate(all="ignore"):
        results = run_ranks(world, body)
    assert all(result == results[0] for result in results)


def product(x: np.ndarray, factor: float) -> np.ndarray:
    """What a rank contributes: halves are multiplied in float32 and rounded once."""
    wide = x.astype(np.float32) if x.dtype == np.float16 else x
    return (wide * wide.dtype.type(factor)).astype(x.dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("collective", "algorithm"), pairs("all_reduce", "reduce", "reduce_scatter"))
@pytest.mark.parametrize("world", [1, 2, 5])
def test_a_premultiplied_sum_is_the_sum_of_products(collective, algorithm, world, dtype):
    noise = [np.random.default_rng(rank).standard_normal(1000).astype(dtype) for rank in range(world)]
    factors = [0.1, -3.0, 0.5, 1e-3, 7.7]

    def body(comm):
        x, factor = noise[comm.rank].copy(), factors[comm.rank]
        expected = run(comm, collective, product(x, factor), world - 1, algorithm=algorithm)
        kept = collective == "reduce_scatter" or (collective == "reduce" and comm.rank != world - 1)
        results = []
        if collective != "reduce_scatter":
            out = np.empty_like(x)
            result = run(
                comm, collective, x, world - 1, op="premul_sum", scale=factor, out=out, algorithm=algorithm
            )
            results.append(result)
            assert np.array_equal(x, noise[comm.rank]), "x is left as it is where out is given"
        results.append(
            run(comm, collective, x, world - 1, op="premul_sum", scale=factor, algorithm=algorithm)
        )
        assert np.array_equal(x, noise[comm.rank]) == kept
        return [
            (r is None) == (expected is None) and (r is None or r.tobytes() == expected.tobytes())
            for r in results
        ]

    assert all(all(outcome) for outcome in run_ranks(world, body))


@pytest.mark.parametrize("segments", [1, 2, 7, 100])
@pytest.mark.parametrize("root", [0, 2, 4])
def test_linear_pipeline_reduce_is_a_left_fold_in_chain_order(root, segments):
    world = 5
    noise = [np.random.default_rng(rank).standard_normal(4099).astype(np.float32) for rank in range(world)]
    chain = [(root + 1 + i) % world for i in range(world)]
    expected = noise[chain[0]].copy()
    for rank in chain[1:]:
        expected = expected + noise[rank]

    def body(comm):
        return comm.reduce(noise[comm.rank].copy(), root, algorithm="linear_pipeline", segments=segments)

    assert run_ranks(world, body)[root].tobytes() == expected.tobytes()


def test_inputs_survive_where_they_must():
    def body(comm):
        x = values("float32", 100, comm.rank)
        kept, out = x.copy(), np.empty_like(x)
        comm.all_reduce(x, out=out)
        comm.reduce(x, root=1, out=out)
        comm.all_gather(x)
        if comm.rank != 1:
            comm.reduce(x, root=1)
        else:
            comm.reduce(x.copy(), root=1)
        comm.reduce_scatter(np.concatenate([x] * 3))
        comm.gather(x, root=2)
        comm.scatter(x[:99], root=1)
        comm.all_to_all(x[:99])
        return np.array_equal(x, kept)

    assert run_ranks(3, body) == [True] * 3


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("count", [0, 1, 1000, 300_000])
def test_a_broadcast_into_other_memory(count, async_op):
    def body(comm):
        mine = values("float32", count, comm.rank)
        kept, out = mine.copy(), np.full(count, 7, np.float32)
        x = None if comm.rank == 2 else mine  # out tells as much
        got = comm.broadcast(x, 1, out=out, async_op=async_op, algorithm="linear_pipeline")
        if async_op:
            got = got.wait()
        assert got is out and np.array_equal(mine, kept)
        again = comm.broadcast(got, 1, out=got)  # in place after all
        assert again is got
        return np.array_equal(out, values("float32", count, 1))

    assert run_ranks(3, body) == [True] * 3


def test_a_broadcast_that_is_refused_writes_nothing():
    refused = threading.Event()

    def body(comm):
        out = np.zeros(4)
        with pytest.raises(ValueError, match="x must be an array on the root, rank 1, and elsewhere where"):
            comm.broadcast(None, 1, out=out if comm.rank == 1 else None)
        with pytest.raises(ValueError, match="out must hold 5 elements of float64, got 4"):
            comm.broadcast(np.ones(5), 1, out=out)
        with pytest.raises(ValueError, match="unknown algorithm 'rign'"):
            comm.broadcast(np.ones(4), 1, out=out, algorithm="rign")
        whole = np.zeros(6)
        with pytest.raises(ValueError, match="x and out overlap"):
            comm.broadcast(whole[:4], 1, out=whole[2:])
        if comm.rank == 1:
            assert refused.wait(20)
        work = comm.all_reduce(out, async_op=True, algorithm="ring")
        if comm.rank == 0:  # under way until the other rank joins
            with pytest.raises(ValueError, match="still under way"):
                comm.broadcast(np.ones(4), 1, out=out)
            refused.set()
        work.wait()
        return out.sum()

    assert run_ranks(2, body) == [0, 0]


def test_in_place_gather_and_scatter():
    def body(comm):
        whole = np.zeros((3, 4), np.float32)
        whole[comm.rank] = comm.rank + 1
        comm.all_gather(whole[comm.rank], out=whole, algorithm="ring")
        parts = np.ones(12, np.float32)
        comm.reduce_scatter(parts, out=parts[comm.rank * 4 : comm.rank * 4 + 4], algorithm="direct")
        return whole[:, 0].tolist(), parts[comm.rank * 4]

    assert run_ranks(3, body) == [([1, 2, 3], 3)] * 3


def test_shapes_follow_the_first_dimension():
    def body(comm):
        gathered = comm.all_gather(np.full((2, 3), comm.rank))
        zero_d = comm.all_gather(np.array(comm.rank))
        scattered = comm.reduce_scatter(np.ones((4, 3)))
        exchanged = comm.all_to_all(np.ones((4, 3)))
        return gathered.shape, zero_d.tolist(), scattered.shape, exchanged.shape

    assert run_ranks(2, body) == [((4, 3), [0, 1], (2, 3), (4, 3))] * 2


@pytest.mark.parametrize("algorithm", ["direct", "binomial_tree"])
@pytest.mark.parametrize("root", range(5))
def test_gather_and_scatter_in_place(algorithm, root):
    world = 5

    def body(comm):
        whole = np.zeros((world, 300), np.float32)
        mine = whole[comm.rank] if comm.rank == root else np.empty(300, np.float32)
        mine[:] = comm.rank + 1
        gathered = comm.gather(mine, root, out=whole if comm.rank == root else None, algorithm=algorithm)
        whole *= 10
        x = whole if comm.rank == root else None
        scattered = comm.scatter(x, root, out=mine, algorithm=algorithm, segments=2)
        assert scattered is mine and (gathered is whole if comm.rank == root else gathered is None)
        return whole[:, 0].tolist(), mine.tolist()

    results = run_ranks(world, body)
    assert results[root][0] == [10, 20, 30, 40, 50]
    assert [mine for _, mine in results] == [[10.0 * (rank + 1)] * 300 for rank in range(world)]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("segments", [1, 3])
def test_all_to_all_in_place(world, segments):
    def body(comm):
        wrong = []
        for each in (0, 1, 100, 40_000):
            arrays = inputs("all_to_all", "int32", world, each)
            x = arrays[comm.rank].copy()
            # Half of the ranks in place, half not: it is each one's own choice.
            out = x if comm.rank % 2 else np.empty_like(x)
            result = comm.all_to_all(x, out=out, segments=segments)
            if result is not out or not np.array_equal(out, expect("all_to_all", arrays, comm.rank, 0, "")):
                wrong.append(each)
        return wrong

    assert run_ranks(world, body) == [[]] * world


def test_asynchronous_calls_run_in_order_and_many_at_once():
    def body(comm):
        arrays = [np.full(1 + 1000 * i, comm.rank + i, np.float64) for i in range(20)]
        works = [
            comm.all_reduce(a, algorithm=["ring", "direct"][i % 2], async_op=True)
            for i, a in enumerate(arrays)
        ]
        comm.barrier()
        results = [work.wait(timeout=10) for work in works]
        assert all(work.done() and work.result is r for work, r in zip(works, results, strict=True))
        return [r[0] for r in results]

    assert run_ranks(3, body) == [[3 + 3 * i for i in range(20)]] * 3


def test_a_dropped_work_still_finishes():
    def body(comm):
        for _ in range(50):
            comm.all_reduce(np.ones(5000), async_op=True)
        x = np.full(10, 1.0)
        comm.all_reduce(x)
        return x[0]

    assert run_ranks(2, body) == [2.0] * 2


def test_auto_measures_once_and_agrees():
    def body(comm):
        x = np.ones(300_000, np.float32)
        comm.all_reduce(x)
        links = comm.links
        return x[0], (links.alpha, links.beta, links.lambda_)

    results = run_ranks(3, body)
    assert results == [results[0]] * 3 and results[0][0] == 3
    alpha, beta, latency = results[0][1]
    assert alpha > 0 and beta > 0 and latency >= 0  # what is left of a ping-pong: nothing, in a slow build


def test_large_messages_use_bounded_scratch():
    def body(comm):
        x = np.ones(12_000_000, np.float32)
        comm.reduce(x, root=0, algorithm="linear_pipeline", segments=1)
        return x[0]

    assert run_ranks(3, body)[0] == 3


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("segments", [1, 16])
@pytest.mark.parametrize("algorithm", ["direct", "ring", "bidirectional_exchange"])
@pytest.mark.parametrize("world", [2, 5])
def test_long_sums_go_back_in_the_memory_that_they_came_in(world, algorithm, segments, in_place):
    """Several MiB: more than all slots hold. Each call has other values, so that an old one would show."""
    count = (3 << 20) // 4 + 7
    ramp = np.arange(count, dtype=np.float32) % 1000

    def body(comm):
        wrong = []
        for call in range(3):
            x = ramp * (comm.rank + 1) + call
            out = x if in_place else np.empty_like(x)
            comm.all_reduce(x, "mean", out=out, algorithm=algorithm, segments=segments)
            expected = (ramp * (world * (world + 1) // 2) + call * world) / np.float32(world)
            wrong += [] if np.array_equal(out, expected) else [call]
        return wrong

    assert run_ranks(world, body) == [[]] * world


def test_by_rank_collectives_bound_their_scratch_too():
    def body(comm):
        x = np.full(1_500_000, comm.rank, np.float64)
        whole = comm.gather(x, algorithm="binomial_tree", segments=1)
        mine = comm.scatter(whole, out=np.empty_like(x), algorithm="binomial_tree", segments=1)
        blocks = np.repeat(np.arange(4.0) + 10 * comm.rank, 1_500_000)
        comm.all_to_all(blocks, out=blocks, segments=1)
        return mine[0] == mine[-1] == comm.rank and blocks[::1_500_000].tolist()

    assert run_ranks(4, body) == [[r, 10 + r, 20 + r, 30 + r] for r in range(4)]


def test_world_of_one_gives_the_same_results():
    def body(comm):
        x = np.arange(5.0)
        return [
            comm.all_reduce(x.copy(), op="mean").tolist(),
            comm.reduce(x.copy()).tolist(),
            comm.broadcast(x.copy()).tolist(),
            comm.all_gather(x).tolist(),
            comm.reduce_scatter(x).tolist(),
            comm.gather(x).tolist(),
            comm.scatter(x).tolist(),
            comm.all_to_all(x).tolist(),
            comm.all_to_all(x.copy(), out=x).tolist(),
            comm.all_reduce(x, out=np.empty(5), async_op=True).wait().tolist(),
        ]

    assert run_ranks(1, body) == [[[0, 1, 2, 3, 4]] * 10]


def test_stats_count_payload_bytes():
    def body(comm):
        before = comm.stats()
        comm.all_reduce(np.ones(1 << 16, np.float32), algorithm="ring", segments=1)
        after = comm.stats()
        return after["bytes_sent"] - before["bytes_sent"], after["calls"] - before["calls"]

    assert run_ranks(4, body) == [(2 * 3 * (1 << 18) // 4, 1)] * 4


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("op", ["sum", "prod", "band", "bor", "bxor"])
def test_unsigned_integers_wrap_as_signed_ones_do(dtype, op):
    given = [np.array([np.iinfo(dtype).max - r, 1 << r, 7], dtype) for r in range(3)]
    folds = {"sum": np.add, "prod": np.multiply, "band": np.bitwise_and}
    fold = {**folds, "bor": np.bitwise_or, "bxor": np.bitwise_xor}[op]

    def body(comm):
        whole = comm.reduce_scatter(np.tile(given[comm.rank], (3, 1)), op)
        packed, _ = comm.all_reduce([given[comm.rank].copy(), np.ones(2, dtype)], op)
        return comm.all_reduce(given[comm.rank].copy(), op), whole[0], packed

    for found in run_ranks(3, body):
        for result in found:
            assert result.dtype == dtype
            assert result.tolist() == fold.reduce(given, dtype=dtype).tolist()


@pytest.mark.parametrize("op", ["min", "max", "mean"])
def test_unsigned_integers_have_no_order_here(op):
    def body(comm):
        with pytest.raises(UnsupportedTypeError, match=f"op '{op}' is not defined for uint32"):
            comm.all_reduce(np.ones(3, np.uint32), op)

    run_ranks(1, body)


def test_a_barrier_may_be_asynchronous():
    def body(comm):
        if comm.rank == 0:
            work = comm.barrier(async_op=True)
            early = work.done()
            came.set()
            return early, work.wait(20)
        came.wait(20)
        return comm.barrier()

    came = threading.Event()
    assert run_ranks(2, body) == [(False, None), None]


def test_segments_may_be_left_open_by_name():
    def body(comm):
        return comm.all_reduce(np.ones(4), algorithm="ring", segments="auto").tolist()

    assert run_ranks(2, body) == [[2.0] * 4] * 2


@pytest.mark.timing
@pytest.mark.parametrize(
    ("collective", "how"),
    [
        ("all_reduce", {}),
        ("all_reduce", {"op": "premul_sum", "scale": 1, "timeout": 5}),
        ("broadcast", {}),
        ("reduce", {}),
        ("all_gather", {}),
        ("all_gather", {"counts": [4]}),
        ("reduce_scatter", {}),
    ],
)
def test_a_call_with_nobody_else_costs_about_a_microsecond(collective, how):
    def body(comm):
        x, call = np.ones(4, np.float32), getattr(comm, collective)
        return min(timeit.repeat(lambda: call(x, **how), number=2000, repeat=20)) / 2000

    assert run_ranks(1, body)[0] < 1.5e-6
