"""premul_sum where x stays as it is: multiplied in parts, in scratch that does not grow with x."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

import gpucomm
from gpucomm.comm import Communicator
from gpucomm.errors import MismatchError

SCALES = (0.5, -2.0, 4.0)  # products and sums are exact
PARTS = (3 << 20, 5, (1 << 20) + 3)  # elements of the ranks' chunks: 16 MiB of float32 in all


def numbers(rank: int, count: int) -> np.ndarray:
    return np.random.default_rng(rank).integers(-99, 99, count).astype(np.float32)


def total(world: int, count: int) -> np.ndarray:
    return np.sum([SCALES[r] * numbers(r, count) for r in range(world)], 0)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("how", ["even", "uneven", "in place"])
def test_reduce_scatter_in_parts(how: str, asynchronous: bool) -> None:
    counts = (2 << 20,) * 3 if how == "even" else PARTS
    begins = np.cumsum((0, *counts))

    def body(comm: Communicator) -> list[bool]:
        x = numbers(comm.rank, sum(counts))
        own = slice(begins[comm.rank], begins[comm.rank + 1])
        options: dict[str, Any] = {"counts": None if how == "even" else counts}
        if how == "in place":
            options["out"] = x[own]
        found = comm.reduce_scatter(
            x, "premul_sum", scale=SCALES[comm.rank], async_op=asynchronous, **options
        )
        found = found.wait() if asynchronous else found
        given = numbers(comm.rank, sum(counts))
        if how == "in place":
            given[own] = found
        return [np.array_equal(found, total(3, sum(counts))[own]), np.array_equal(x, given)]

    assert run_ranks(3, body) == [[True, True]] * 3


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_reduce_in_parts(apart: bool, asynchronous: bool) -> None:
    count = (5 << 20) + 1

    def body(comm: Communicator) -> list[bool]:
        x, root = numbers(comm.rank, count), comm.rank == 1
        out = np.empty_like(x) if apart and root else None
        found = comm.reduce(x, 1, "premul_sum", scale=SCALES[comm.rank], out=out, async_op=asynchronous)
        found = found.wait() if asynchronous else found
        kept = np.array_equal(x, numbers(comm.rank, count))
        return [kept == (apart or not root), not root or np.array_equal(found, total(3, count))]

    assert run_ranks(3, body) == [[True, True]] * 3


def test_results_and_errors_of_parts_add_up() -> None:
    count = 6 << 20

    def body(comm: Communicator) -> tuple[np.ndarray, np.ndarray]:
        x, error = np.sin(np.arange(count, dtype=np.float32) + comm.rank), np.full(count, 7, np.float32)
        options: dict[str, Any] = {"scale": 3.0, "codec": "int8", "algorithm": "coded_ring", "error": error}
        return comm.reduce_scatter(x, "premul_sum", **options), error

    results = run_ranks(2, body)
    given = 3 * sum(np.sin(np.arange(count, dtype=np.float32) + r).astype(np.float64) for r in range(2))
    lost = sum(error.astype(np.float64) for _, error in results)
    assert 0 < np.abs(lost).max() < 0.1
    np.testing.assert_allclose(np.concatenate([part for part, _ in results]) + lost, given, atol=1e-5)


def test_calls_of_other_sizes_are_found_before_anything_is_written() -> None:
    def body(comm: Communicator) -> str:
        counts = ((3 << 20) - comm.rank, 3 << 20)
        out = np.zeros(counts[comm.rank], np.float32)
        with pytest.raises(MismatchError) as caught:
            comm.reduce_scatter(
                numbers(0, sum(counts)), "premul_sum", scale=2.0, out=out, counts=counts, timeout=10
            )
        assert not out.any()
        return str(caught.value)

    for text in run_ranks(2, body):
        assert "premul_sum of 6291456 float32" in text
        assert "premul_sum of 6291455 float32" in text


def grown(comm: Communicator) -> float:
    """By how many MiB the process grows beyond its arrays, of 96 MiB and more."""
    import resource

    x = np.ones(24 << 20, np.float32)
    out = np.ones(len(x) // comm.world, np.float32)
    comm.reduce_scatter(x, out=out)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    comm.reduce_scatter(x, "premul_sum", scale=2.0, out=out)
    comm.reduce(x, 0, "premul_sum", scale=2.0)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


@pytest.mark.processes
def test_no_memory_of_the_array_s_size() -> None:
    with gpucomm.local(2) as world:
        assert max(world.run(grown)) < 24
