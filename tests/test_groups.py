"""Groups of ranks: each a communicator of its own, over threads and over processes."""

from __future__ import annotations

import copy
import threading
import time

import numpy as np
import pytest
from ranks import PROMPT_S, run_ranks

import gpucomm
from gpucomm import Communicator
from gpucomm.errors import (
    ClosedError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
)
from gpucomm.launch import groups


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
    before = dict(groups._regions)
    assert run_ranks(world, odd_and_even) == expected(world)
    assert groups._regions == before  # nothing keeps the memory of a group but its members


def test_a_split_that_fails_over_threads_keeps_no_memory(monkeypatch):
    before, there, join = dict(groups._regions), threading.Event(), groups.join

    def join_or_fail(comm, *args):
        if comm.rank == 1:
            there.wait(20)
            raise RuntimeError("no memory, say")
        made = join(comm, *args)
        there.set()
        return made

    def body(comm):
        with pytest.raises(ClosedError if comm.rank == 0 else RuntimeError):
            comm.split(0)

    monkeypatch.setattr(groups, "join", join_or_fail)
    run_ranks(2, body)
    assert groups._regions == before


@pytest.mark.processes
def test_split_over_processes():
    with gpucomm.local(4) as world:
        assert world.run(odd_and_even) == expected(4)
        assert world.run(odd_and_even) == expected(4)


def test_subset_keeps_the_order_given():
    def body(comm):
        group = comm.subset([3, 0, 1])
        return group and group.all_gather(np.array([comm.rank])).tolist()

    found = run_ranks(4, body)
    assert found[:2] == [[3, 0, 1]] * 2 and not found[2] and found[3] == [3, 0, 1]


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
        return group and group.all_gather(np.array([comm.rank])).tolist()

    found = run_ranks(3, body)
    assert found[0] == found[2] == [2, 0] and not found[1]


@pytest.mark.parametrize("make", ["split", "subset", "split_nodes"])
def test_a_split_waits_no_longer_than_it_says(make):
    ended = threading.Event()
    given = {"split": (0,), "subset": ([0, 1],), "split_nodes": ()}[make]

    def body(comm):
        groups = getattr(comm, make)(*given, timeout=5)
        assert all(g.timeout == comm.timeout for g in (groups if make == "split_nodes" else [groups]))
        if comm.rank == 1:
            assert ended.wait(10)
            return
        begin = time.monotonic()
        try:
            with pytest.raises(CollectiveTimeoutError, match=r"timed out after 0\.2 s on rank 0 of 2"):
                getattr(comm, make)(*given, timeout=0.2)
        finally:
            ended.set()
        assert time.monotonic() - begin < PROMPT_S

    run_ranks(2, body)


def test_ranks_may_stay_apart():
    def body(comm):
        group = comm.split(None if comm.rank == 0 else 7)
        return group.world if group else None

    assert run_ranks(3, body) == [None, 2, 2]


def test_who_is_not_in_a_group_is_told_so():
    """In each use of it, on that rank alone; the same lines otherwise run on all."""

    def body(comm):
        for make, why in (
            (lambda: comm.subset([2, 0]), "rank 1 of 3 is not in the group of ranks 2, 0, and so has no {}"),
            (lambda: comm.split(None if comm.rank == 1 else 0), "rank 1 of 3 is not in any group .* no {}"),
        ):
            with make() as group:
                x = np.ones(3, np.float32)
                if comm.rank != 1:
                    assert isinstance(group, Communicator) and group.all_reduce(x)[0] == 2
                    continue
                assert isinstance(group, gpucomm.NonMember) and not group
                assert not hasattr(group, "__array__") and "is not in" in repr(copy.copy(group))
                for use, name in (
                    (lambda: group.all_reduce(x), "all_reduce"),  # noqa: B023
                    (lambda: group.rank, "rank"),
                    (lambda: gpucomm.probe.measure(group), "world"),
                ):
                    with pytest.raises(InvalidArgumentError, match=why.format(name)):
                        use()
            group.close()
        assert comm.all_reduce(np.ones(1))[0] == 3

    run_ranks(3, body)


def test_bad_groups_are_sentences():
    def body(comm):
        for call, sentence in [
            (lambda: comm.split(-1), r"color must be .*, got -1 \(rank"),
            (lambda: comm.split("a"), "color must be .*, got 'a'"),
            (lambda: comm.split(1 << 70), r"color must be .* to 2\^63 - 1, or None, got 118"),
            (lambda: comm.split(0, 1.5), "key must be a whole number of 64 bits, got 1.5"),
            (lambda: comm.split(0, 1 << 63), "key must be a whole number of 64 bits, got 922"),
            (
                lambda: comm.subset([0, 0]),
                r"distinct whole .* \[0, 2\), no bools, at least one, got \[0, 0\]",
            ),
            (lambda: comm.subset([0.0]), r"must be distinct whole numbers in .*, got \[0.0\]"),
            (lambda: comm.subset([False, True]), r"no bools, at least one, got \[False, True\]"),
            (lambda: comm.subset([2]), r"got \[2\]"),
            (lambda: comm.subset([]), r"got \[\]"),
            (lambda: comm.subset("ab"), "got 'ab'"),
            (lambda: comm.subset(None), "got None"),
            (lambda: comm.subset(np.array(0)), r"got array\(0\)"),
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


def test_threads_that_split_at_once_get_groups_of_their_own():
    def body(comm):
        def split():
            for _ in range(10):
                with comm.split(0, timeout=5) as group:
                    found.append(group.all_gather(np.array([comm.rank])).tolist())

        found = []
        threads = [threading.Thread(target=split, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return found

    assert run_ranks(2, body) == [[[0, 1]] * 30] * 2
