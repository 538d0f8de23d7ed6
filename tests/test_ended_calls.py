"""Calls in which ranks only send, and which are not the same: nothing comes that would show it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import outcomes_of, run_ranks

import gpucomm
from gpucomm import Communicator
from gpucomm.errors import Error, MismatchError
from gpucomm.links import parse_emulated

Call = Callable[[Communicator], Any]

WORLD = 2


def own_root(comm: Communicator) -> None:
    comm.broadcast(np.ones(2), root=comm.rank, algorithm="direct")


def own_root_of_a_list(comm: Communicator) -> None:
    comm.broadcast([np.ones(2), np.ones(3, np.float32)], root=comm.rank, algorithm="direct")


def own_root_of_parts(comm: Communicator) -> None:
    comm.scatter(np.ones((WORLD, 2)), root=comm.rank, algorithm="direct")


def own_collective(comm: Communicator) -> None:
    if comm.rank:
        comm.scatter(np.ones((WORLD, 2)), root=comm.rank, algorithm="direct")
    else:
        comm.broadcast(np.ones(2), root=comm.rank, algorithm="direct")


def look(comm: Communicator) -> None:
    """Ranks that have looked at the others' calls just before do not in the next one."""
    for root in range(comm.world):
        comm.broadcast(np.ones(2), root=root, algorithm="direct")


def closing(comm: Communicator, call: Call, made: threading.Barrier | None) -> tuple[str, bool]:
    """What close() says once all ranks have made the call, and whether it is closed then."""
    look(comm)
    said = ""
    try:
        call(comm)
    except MismatchError as error:  # a slow machine
        said = str(error)
    if made:
        made.wait(20)
    try:
        comm.close()
    except MismatchError as error:
        said = said or str(error)
    return said, comm.closed


@pytest.mark.parametrize("call", [own_root, own_root_of_a_list, own_root_of_parts, own_collective])
def test_close_says_so_on_every_rank(call: Call) -> None:
    made = threading.Barrier(WORLD)
    for said, closed in run_ranks(WORLD, lambda comm: closing(comm, call, made)):
        assert "the ranks do not make the same call" in said and "root 0" in said and "root 1" in said
        assert closed


@pytest.mark.parametrize("call", [own_root, own_root_of_a_list, own_root_of_parts, own_collective])
def test_who_comes_later_says_so_in_the_call(call: Call) -> None:
    """And the others in their next one."""
    first, second = threading.Event(), threading.Event()

    def body(comm: Communicator) -> str:
        if comm.rank:
            first.wait(20)
        else:
            call(comm)
            first.set(), second.wait(20)
        with pytest.raises(MismatchError, match=r"rank 1 of 2 calls .* root 1.* rank 0 .* root 0") as caught:
            call(comm)
        second.set()
        return str(caught.value)

    assert len(set(run_ranks(WORLD, body))) == 1


def test_the_last_to_close_says_so() -> None:
    """Who had closed before could not know."""
    first = threading.Event()

    def late_root(comm: Communicator) -> None:
        first.wait(20)
        own_root(comm)

    def body(comm: Communicator) -> tuple[str, bool]:
        said = closing(comm, late_root if comm.rank else own_root, None)
        first.set()
        return said

    (before, _), (after, _) = run_ranks(WORLD, body)
    assert not before and "root 0" in after and "root 1" in after


def test_who_has_only_sent_hears_of_the_others_mismatch() -> None:
    failed = threading.Event()

    def body(comm: Communicator) -> str:
        if comm.rank == 0:
            comm.broadcast(np.ones(2), root=0, algorithm="direct")
            failed.wait(20)
            assert comm.closed  # by another rank's fault
            with pytest.raises(MismatchError, match=r"2 float64.*3 float64|3 float64.*2 float64"):
                comm.close()
            return ""
        with pytest.raises(MismatchError):
            comm.broadcast(np.ones(3), root=0, algorithm="direct")
        failed.set()
        return ""

    run_ranks(WORLD, body)


def test_the_error_that_ends_a_with_block_counts() -> None:
    made = threading.Barrier(WORLD)

    def body(comm: Communicator) -> None:
        with comm:
            with contextlib.suppress(MismatchError):  # a slow machine
                look(comm), own_root(comm)
            made.wait(20)
            raise KeyError("the program's own")

    assert all(isinstance(outcome, KeyError) for outcome in outcomes_of(WORLD, body))


def test_calls_that_were_alike_close_in_silence() -> None:
    """As many as are remembered and more, of all kinds of ends; groups too."""

    def body(comm: Communicator) -> None:
        group = comm.split(comm.rank % 2)
        assert group
        for call in range(50):
            comm.broadcast(np.ones(2), root=call % comm.world)
            group.all_reduce(np.ones(3))
        comm.all_to_all(np.ones(comm.world), counts=[1] * comm.world, out_counts=[1] * comm.world)
        comm.broadcast(np.ones(2), root=1)
        group.close(), comm.close()

    run_ranks(4, body)


@pytest.mark.processes
def test_processes_too() -> None:
    with gpucomm.local(WORLD) as world:
        said = world.run(closed_by_processes)
    assert any("root 0" in text and "root 1" in text for text in said)


def closed_by_processes(comm: Communicator) -> str:
    group = comm.split(0)
    assert group
    try:
        own_root(group)
        group.close()
    except Error as error:
        return str(error)
    return ""


def test_what_is_passed_on_names_who_said_it_first() -> None:
    told = threading.Event()

    def body(comm: Communicator) -> str:
        if comm.rank == 1:
            comm._give_up("PeerLostError", "rank 2 reports: rank 3 is gone")
            told.set()
        told.wait(20)
        with pytest.raises(Error) as raised:
            comm.barrier()
        return str(raised.value)

    said = run_ranks(2, body)[0]
    assert "rank 2 reports: rank 3 is gone" in said and "rank 1 reports" not in said


def test_who_has_ended_a_call_may_close_before_its_message_arrives() -> None:
    """It takes longer than the other rank waits until it looks who is there."""

    def body(comm: Communicator) -> float:
        with comm:
            x = np.full(4, float(comm.rank == 0))
            return float(comm.broadcast(x, root=0, algorithm="direct")[0])

    links = parse_emulated("switch:1Gbit,latency=100ms").arguments(2)
    assert run_ranks(2, body, **links) == [1.0] * 2
