"""Uneven counts: every rank has as much as it has."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import pairs
from ranks import run_ranks
from reference import close, fold, values

from gpucomm import _core

WORLDS = [1, 2, 3, 4, 5, 8]


def uneven(world: int, scale: int) -> list[int]:
    """Counts that differ, with nothing on some ranks."""
    return [(rank * 5 + 2) % 4 * scale for rank in range(world)]


def cut(x: np.ndarray, counts: list[int]) -> list[np.ndarray]:
    return np.split(x, np.cumsum(counts)[:-1])


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("collective", "algorithm"), pairs("all_gather", "gather"))
def test_gathering(collective, algorithm, world):
    def body(comm):
        wrong = []
        for scale in (1, 100, 30_000):
            for dtype in ("float32", "int8", "float64"):
                counts = uneven(world, scale)
                arrays = [values(dtype, n, rank) for rank, n in enumerate(counts)]
                root = {"root": scale % world} if collective == "gather" else {}
                call = getattr(comm, collective)
                for segments in (1, 3):
                    x = arrays[comm.rank]
                    work = call(
                        x,
                        **root,
                        counts=counts,
                        algorithm=algorithm,
                        segments=segments,
                        async_op=segments == 3,
                    )
                    result = work.wait() if segments == 3 else work
                    if root.get("root", comm.rank) != comm.rank:
                        assert result is None
                    elif not np.array_equal(result, np.concatenate(arrays)):
                        wrong.append((scale, dtype, segments))
        return wrong

    assert run_ranks(world, body) == [[]] * world


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("collective", "algorithm"), pairs("reduce_scatter"))
def test_reduce_scatter(collective, algorithm, world):
    def body(comm):
        wrong = []
        for scale in (1, 100, 30_000):
            for dtype, op in itertools.product(("float32", "int8", "float16"), ("sum", "mean", "max")):
                counts = uneven(world, scale)
                arrays = [values(dtype, sum(counts), rank) for rank in range(world)]
                expected = cut(fold(op, arrays), counts)[comm.rank]
                for segments in (1, 3):
                    result = comm.reduce_scatter(
                        arrays[comm.rank], op, counts=counts, algorithm=algorithm, segments=segments
                    )
                    if result.shape != expected.shape or not close(result, expected, op):
                        wrong.append((scale, dtype, op, segments))
        return wrong

    assert run_ranks(world, body) == [[]] * world


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("world", WORLDS)
def test_all_to_all(world, known):
    def body(comm):
        wrong = []
        for scale in (1, 100, 30_000):
            for dtype in ("float32", "int8", "complex128"):
                table = [[(3 * a + b) % 4 * scale for b in range(world)] for a in range(world)]
                arrays = [np.arange(sum(row)).astype(dtype) + rank for rank, row in enumerate(table)]
                received = [row[comm.rank] for row in table]
                expected = [cut(array, row)[comm.rank] for array, row in zip(arrays, table, strict=True)]
                for segments in (None, 2):
                    result = comm.all_to_all(
                        arrays[comm.rank],
                        counts=table[comm.rank],
                        out_counts=received if known else None,
                        segments=segments,
                    )
                    if not np.array_equal(result, np.concatenate(expected)):
                        wrong.append((scale, dtype, segments))
        return wrong

    assert run_ranks(world, body) == [[]] * world


def test_shapes_follow_the_first_dimension():
    def body(comm):
        gathered = comm.all_gather(np.full((comm.rank, 3), comm.rank), counts=[0, 1, 2])
        scattered = comm.reduce_scatter(np.ones((3, 2, 2)), counts=[0, 1, 2])
        exchanged = comm.all_to_all(np.full((3, 2), comm.rank), counts=[comm.rank, 1, 2 - comm.rank])
        return gathered[:, 0].tolist(), gathered.shape, scattered.shape, exchanged[:, 1].tolist()

    exchanged = [[1, 2, 2], [0, 1, 2], [0, 0, 1]]
    expected = [([1, 2, 2], (3, 3), (rank, 2, 2), exchanged[rank]) for rank in range(3)]
    assert run_ranks(3, body) == expected


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_in_place(algorithm):
    counts, begins = [3, 0, 2, 4], [0, 3, 3, 5]

    def body(comm):
        part = slice(begins[comm.rank], begins[comm.rank] + counts[comm.rank])
        whole = np.zeros((9, 50), np.float32)
        whole[part] = comm.rank + 1
        assert comm.all_gather(whole[part], out=whole, counts=counts, algorithm=algorithm) is whole
        sums = whole.copy()
        comm.reduce_scatter(sums, out=sums[part], counts=counts, algorithm=algorithm)
        return whole[:, 0].tolist(), sums[part].ravel().tolist()

    gathered = [1, 1, 1, 3, 3, 4, 4, 4, 4]
    for rank, (whole, part) in enumerate(run_ranks(4, body)):
        assert whole == gathered
        assert part == [4.0 * (rank + 1)] * counts[rank] * 50


def test_equal_counts_are_no_counts():
    def body(comm):
        counts = [2, 2] if comm.rank else None
        return comm.all_gather(np.full(2, comm.rank), counts=counts).tolist()

    assert run_ranks(2, body) == [[0, 0, 1, 1]] * 2


def test_calls_of_other_counts_are_other_programs():
    def body(comm):
        results = []
        for counts in ([1, 3], [3, 1], [1, 3], [2, 2]):
            results.append(comm.all_gather(np.full(counts[comm.rank], comm.rank), counts=counts).sum())
        return [int(r) for r in results]

    assert run_ranks(2, body) == [[3, 1, 3, 2]] * 2


def test_many_asynchronous_exchanges():
    def body(comm):
        works = []
        for i in range(20):
            counts = [i + comm.rank, 2 * i, 1]
            out_counts = [[i, 2 * i, 1][comm.rank] + peer * (comm.rank == 0) for peer in range(3)]
            x = np.full(sum(counts), comm.rank)
            works.append(comm.all_to_all(x, counts=counts, out_counts=out_counts, async_op=True))
        return [np.bincount(work.wait(), minlength=3).tolist() for work in works]

    results = run_ranks(3, body)
    assert results[0] == [[i, i + 1, i + 2] for i in range(20)]
    assert results[1] == [[2 * i] * 3 for i in range(20)] and results[2] == [[1, 1, 1]] * 20


def test_the_choice_does_not_depend_on_what_only_some_ranks_know():
    def body(comm):
        comm.set_links(_core.Links())
        n = 2_000_000 if comm.rank == 0 else 1
        counts = [n, 1]
        return comm.all_to_all(np.ones(sum(counts), np.float32), counts=counts).size

    assert run_ranks(2, body) == [2_000_001, 2]
