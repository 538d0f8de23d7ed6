"""The contract again, over processes: every algorithm on shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import pairs

import gpucomm

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", params=[2, 4])
def world(request):
    with gpucomm.local(request.param, env={"PYTHONPATH": str(Path(__file__).parent)}) as world:
        yield world


def contract(comm, collective, algorithm):
    """Which of the cases are wrong on this rank."""
    from reference import close
    from test_collectives import expect, inputs, run

    wrong = []
    for dtype in ("float32", "float16", "int64", "bool"):
        for count in (0, 1, 7, 1000, 65537):
            arrays = inputs(collective, dtype, comm.world, count)
            root = count % comm.world
            for async_op in (False, True):
                result = run(
                    comm, collective, arrays[comm.rank].copy(), root, algorithm=algorithm, async_op=async_op
                )
                if async_op and result is not None:
                    result = result.wait()
                expected = expect(collective, arrays, comm.rank, root, "sum")
                if expected is not None and not close(result, expected, "sum"):
                    wrong.append((dtype, count, async_op))
    return wrong


@pytest.mark.parametrize(("collective", "algorithm"), [*pairs(), ("all_reduce", "auto")])
def test_contract(world, collective, algorithm):
    assert world.run(contract, collective, algorithm) == [[]] * world.ranks


def uneven(comm):
    """Which collectives with uneven counts are wrong on this rank."""
    import numpy as np

    world, rank = comm.world, comm.rank
    counts = [5000 * r + 3 for r in range(world)]
    begin = sum(counts[:rank])
    whole = np.concatenate([np.full(n, r, np.float32) for r, n in enumerate(counts)])
    wrong = []
    for algorithm in ("ring", "direct"):
        gathered = comm.all_gather(whole[begin : begin + counts[rank]], counts=counts, algorithm=algorithm)
        reduced = comm.reduce_scatter(whole, counts=counts, algorithm=algorithm)
        wrong += [] if np.array_equal(gathered, whole) else ["all_gather"]
        wrong += [] if reduced.tolist() == [rank * world] * counts[rank] else ["reduce_scatter"]
    sent = [100 * rank + peer for peer in range(world)]
    received = comm.all_to_all(np.full(sum(sent), rank), counts=sent)
    expected = [100 * peer + rank for peer in range(world)]
    return wrong + ([] if np.bincount(received, minlength=world).tolist() == expected else ["all_to_all"])


def test_uneven_counts(world):
    assert world.run(uneven) == [[]] * world.ranks


def large(comm, algorithm):
    """Digests of a message larger than all slots together."""
    import hashlib

    import numpy as np

    x = np.random.default_rng(comm.rank).standard_normal(4_500_001).astype(np.float32)
    digests = []
    for _ in range(2):
        y = x.copy()
        comm.all_reduce(y, op="mean", algorithm=algorithm)
        digests.append(hashlib.blake2b(y).hexdigest())
    return digests


@pytest.mark.parametrize("algorithm", ["auto", "ring", "linear_pipeline", "direct"])
def test_large_messages_give_the_same_bits_everywhere_and_twice(world, algorithm):
    first, second = (set(digests) for digests in zip(*world.run(large, algorithm), strict=True))
    assert len(first) == len(second) == 1
    assert first == second or algorithm == "auto"  # which may try another one meanwhile


def many(comm, seed):
    """Thousands of calls of all sizes and directions, in an order without a pattern."""
    import numpy as np

    algorithms = ["bidirectional_exchange", "linear_pipeline", "binomial_tree", "direct"]
    choices = np.random.default_rng(seed).integers(0, 1 << 30, 6000)
    wrong = 0
    for choice in choices.tolist():
        count = (2, 200, 12_000, 100_000)[choice % 4] if choice % 97 else 900_000
        root = choice // 4 % comm.world
        algorithm = algorithms[choice // 64 % 4]
        x = np.full(count, comm.rank, np.float32)
        if choice // 16 % 4 == 0:
            comm.all_reduce(x, op="max", algorithm=algorithm)
            wrong += x[-1] != comm.world - 1
        elif choice // 16 % 4 == 1:
            comm.reduce(x, root, op="max", algorithm=algorithm)
            wrong += comm.rank == root and x[-1] != comm.world - 1
        else:
            comm.broadcast(x, root, algorithm=algorithm)
            wrong += x[-1] != root
    return wrong


def asymmetric(comm, turns):
    """One rank only sends, for longer than its ring remembers, then gets something: slots must come back."""
    import numpy as np

    x = np.zeros(16_384, np.float32)
    for turn in range(turns):
        for _ in range(17 + turn % 16):
            comm.broadcast(x, 0, algorithm="direct", segments=1)
        for _ in range(3):
            comm.broadcast(x, 0, algorithm="bidirectional_exchange", segments=1)


def test_slots_never_run_out(world):
    world.run(asymmetric, 600 // world.ranks)
    assert world.run(many, 5) == [0] * world.ranks
