"""The contract of the collectives: algorithm x transport x dtype x world x count, from the registries."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import ALGORITHMS, pairs
from ranks import run_ranks
from reference import DTYPES, OPS, close, fold, values

WORLDS = [1, 2, 3, 4, 5, 7, 8]


def counts(world: int) -> list[int]:
    return sorted({0, 1, world - 1, world, 7, 1000, 65537})


def run(comm, collective, x, root=0, **options):
    """One collective by name; the result, or None where this rank gets none."""
    if collective in ("broadcast",):
        return comm.broadcast(x, root, **options)
    if collective == "reduce":
        result = comm.reduce(x, root, **options)
        return result if comm.rank == root else None
    return getattr(comm, collective)(x, **options)


def inputs(collective: str, dtype: str, world: int, count: int, op: str = "sum") -> list[np.ndarray]:
    each = count * world if collective == "reduce_scatter" else count
    return [values(dtype, each, rank, op) for rank in range(world)]


def expect(collective: str, arrays: list[np.ndarray], rank: int, root: int, op: str) -> np.ndarray | None:
    world = len(arrays)
    if collective == "broadcast":
        return arrays[root]
    if collective == "all_gather":
        return np.concatenate(arrays)
    result = fold(op, arrays)
    if collective == "reduce":
        return result if rank == root else None
    return np.split(result, world)[rank] if collective == "reduce_scatter" else result


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
            if op == "mean" and dtype == "bool":
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
        for root in range(world if collective in ("broadcast", "reduce") else 1):
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
    "algorithm", [name for name, a in ALGORITHMS.items() if "all_reduce" in a["collectives"]]
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_all_ranks_have_the_same_bits_twice(algorithm, dtype):
    world = 5
    noise = [np.random.default_rng(rank).standard_normal(10_001).astype(dtype) for rank in range(world)]
    for rank in range(world):
        noise[rank][rank::997] = [np.nan, np.inf, -np.inf, -0.0, 0.0][rank]

    def body(comm):
        results = []
        for op in OPS:
            for _ in range(2):
                results.append(
                    comm.all_reduce(noise[comm.rank].copy(), op=op, algorithm=algorithm, segments=3).tobytes()
                )
        assert results[::2] == results[1::2]
        return results

    with np.errstate(all="ignore"):
        results = run_ranks(world, body)
    assert all(result == results[0] for result in results)


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
        return np.array_equal(x, kept)

    assert run_ranks(3, body) == [True] * 3


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
        return gathered.shape, zero_d.tolist(), scattered.shape

    assert run_ranks(2, body) == [((4, 3), [0, 1], (2, 3))] * 2


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
    assert results == [results[0]] * 3 and results[0][0] == 3 and all(v > 0 for v in results[0][1])


def test_large_messages_use_bounded_scratch():
    def body(comm):
        x = np.ones(12_000_000, np.float32)
        comm.reduce(x, root=0, algorithm="linear_pipeline", segments=1)
        return x[0]

    assert run_ranks(3, body)[0] == 3


def test_world_of_one_gives_the_same_results():
    def body(comm):
        x = np.arange(5.0)
        return [
            comm.all_reduce(x.copy(), op="mean").tolist(),
            comm.reduce(x.copy()).tolist(),
            comm.broadcast(x.copy()).tolist(),
            comm.all_gather(x).tolist(),
            comm.reduce_scatter(x).tolist(),
            comm.all_reduce(x, out=np.empty(5), async_op=True).wait().tolist(),
        ]

    assert run_ranks(1, body) == [[[0, 1, 2, 3, 4]] * 6]


def test_stats_count_payload_bytes():
    def body(comm):
        before = comm.stats()
        comm.all_reduce(np.ones(1 << 16, np.float32), algorithm="ring", segments=1)
        after = comm.stats()
        return after["bytes_sent"] - before["bytes_sent"], after["calls"] - before["calls"]

    assert run_ranks(4, body) == [(2 * 3 * (1 << 18) // 4, 1)] * 4
