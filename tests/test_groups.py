"""Groups of ranks: each a communicator of its own, over threads and over processes."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import run_ranks

import gpucomm
from gpucomm.errors import InvalidArgumentError, MismatchError, PeerLostError


def odd_and_even(comm):
    """Who is with whom after a split by parity, in reversed order, and that both levels still work."""
    group = comm.split(comm.rank % 2, key=-comm.rank)
    members = group.all_gather(np.array([comm.rank])).tolist()
    work = comm.all_reduce(np.ones(1000), async_op=True)
    inside = group.all_reduce(np.full(3, 1.0))[0]
    work.wait()
    with group:
        return group.rank, group.world, members, inside, work.result[0]


def expected(world):
    found = []
    for rank in range(world):
        members = [r for r in reversed(range(world)) if r % 2 == rank % 2]
        found.append((members.index(rank), len(members), members, float(len(members)), float(world)))
    return found


@pytest.mark.parametrize("world", [1, 2, 5, 8])
def test_split_over_threads(world):
    assert run_ranks(world, odd_and_even) == expected(world)


@pytest.mark.processes
def test_split_over_processes():
    with gpucomm.local(4) as world:
        assert world.run(odd_and_even) == expected(4)
        assert world.run(odd_and_even) == expected(4)


def test_subset_keeps_the_order_given():
    def body(comm):
        group = comm.subset([3, 0, 1])
        return None if group is None else group.all_gather(np.array([comm.rank])).tolist()

    assert run_ranks(4, body) == [[3, 0, 1], [3, 0, 1], None, [3, 0, 1]]


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([[0, 1], [1, 2], [1, 2]], r"rank 0 called subset\(\[0, 1\]\); rank 1, 2 called subset\(\[1, 2\]\)"),
        ([[0, 1], [1, 0], [0, 1]], r"rank 0, 2 called subset\(\[0, 1\]\); rank 1 called subset\(\[1, 0\]\)"),
        ([[0], [0], None], r"rank 0, 1 called subset\(\[0\]\); rank 2 called split"),
    ],
)
def test_subsets_that_are_not_asked_alike_are_refused_on_every_rank(calls, said):
    def body(comm):
        ranks = calls[comm.rank]
        with pytest.raises(MismatchError, match=rf"{said} \(rank {comm.rank} of 3\)"):
            comm.split(0) if ranks is None else comm.subset(ranks)
        group = comm.subset([2, 0])
        return None if group is None else group.all_gather(np.array([comm.rank])).tolist()

    assert run_ranks(3, body) == [[2, 0], None, [2, 0]]


def test_ranks_may_stay_apart():
    def body(comm):
        group = comm.split(None if comm.rank == 0 else 7)
        return group and group.world

    assert run_ranks(3, body) == [None, 2, 2]


def test_bad_groups_are_sentences():
    def body(comm):
        for call, sentence in [
            (lambda: comm.split(-1), r"color must be .*, got -1 \(rank"),
            (lambda: comm.split("a"), "color must be .*, got 'a'"),
            (lambda: comm.split(1 << 70), r"color must be .* to 2\^63 - 1, or None, got 118"),
            (lambda: comm.split(0, 1.5), "key must be a whole number of 64 bits, got 1.5"),
            (lambda: comm.split(0, 1 << 63), "key must be a whole number of 64 bits, got 922"),
            (lambda: comm.subset([0, 0]), r"distinct and in \[0, 2\), at least one, got \[0, 0\]"),
            (lambda: comm.subset([2]), r"got \[2\]"),
            (lambda: comm.subset([]), r"got \[\]"),
            (lambda: comm.subset("ab"), "got 'ab'"),
            (lambda: comm.subset(None), "got None"),
        ]:
            with pytest.raises(InvalidArgumentError, match=sentence):
                call()

    run_ranks(2, body)


def test_a_fault_in_a_group_leaves_its_parent_open():
    def body(comm):
        group = comm.split(0)
        if comm.rank == 1:
            group.close()
        else:
            with pytest.raises(PeerLostError, match="rank 1 has closed"):
                group.barrier()
        comm.barrier()
        return group.closed, comm.closed

    assert run_ranks(2, body) == [(True, False)] * 2
