"""After a fault the survivors go on: threads for breadth, killed and stopped processes for truth."""

from __future__ import annotations

import json
import signal
import threading

import numpy as np
import pytest
import rank_processes
from ranks import outcomes_of, run_ranks

import gpucomm
from gpucomm.errors import ClosedError, CollectiveTimeoutError, InvalidArgumentError, PeerLostError
from gpucomm.launch import groups, survivors
from gpucomm.links import parse_emulated


def works(comm, members) -> list:
    """What a sound communicator of these old ranks gives."""
    total = comm.all_reduce(np.ones(5000))[0]
    out = np.empty(2, np.int64)
    to, source = (comm.rank + 1) % comm.world, (comm.rank - 1) % comm.world
    comm.sendrecv(np.full(2, members[comm.rank]), to, out, source)
    assert out.tolist() == [members[source]] * 2
    return [comm.rank, comm.world, total]


def expected(members):
    return [[rank, len(members), float(len(members))] for rank in range(len(members))]


@pytest.mark.parametrize("world", [1, 2, 5])
def test_after_abort_all_go_on_in_a_new_communicator(world):
    def body(comm):
        if comm.rank == 0:
            comm.abort()
        else:
            with pytest.raises(ClosedError, match="abort"):
                comm.barrier()
        with comm.shrink() as new:
            assert comm.closed and not new.closed and new.timeout == comm.timeout
            return works(new, range(world))

    assert run_ranks(world, body) == expected(range(world))


def test_after_a_lost_rank_the_others_go_on_at_once_in_their_order():
    def body(comm):
        if comm.rank == 1:
            comm.close()
            return None
        with pytest.raises(PeerLostError):
            comm.all_reduce(np.ones(3), algorithm="ring")
        return works(comm.shrink(), [0, 2, 3])

    first, lost, *rest = run_ranks(4, body)
    assert lost is None and [first, *rest] == expected([0, 2, 3])


def test_again_and_again_until_one_is_left():
    def body(comm):
        worlds = []
        while True:
            worlds.append(comm.world)
            if comm.rank == comm.world - 1:
                comm.close()
                return worlds
            with pytest.raises(PeerLostError):
                comm.barrier()
            comm = comm.shrink()
            comm.all_reduce(np.ones(2), algorithm="ring")

    assert run_ranks(3, body) == [[3, 2, 1], [3, 2], [3]]


def test_a_rank_that_was_not_in_a_call_comes_too():
    def body(comm):
        if comm.rank == 0:
            comm.abort()
            aborted.set()
        pending = comm.recv(np.empty(3), 0, async_op=True) if comm.rank == 1 else None
        assert aborted.wait(10)
        new = comm.shrink()
        assert comm.closed
        if pending:
            with pytest.raises(ClosedError, match="abort"):
                pending.wait()
        return works(new, [0, 1, 2])

    aborted = threading.Event()
    assert run_ranks(3, body) in (expected(range(3)),)


def test_a_rank_that_comes_late_is_told_so():
    def body(comm):
        if comm.rank == 2:
            assert gone_on.wait(10)
            with pytest.raises(
                ClosedError, match=r"rank 2 came too late: ranks \[0, 1\] have gone on without"
            ):
                comm.shrink()
            return None
        if comm.rank == 0:
            comm.abort()
        with pytest.raises(ClosedError):
            comm.barrier()
        new = comm.shrink(timeout=1)
        gone_on.set()
        return works(new, [0, 1])

    gone_on = threading.Event()
    assert run_ranks(3, body) == [*expected([0, 1]), None]


def test_shrink_is_for_after_a_fault_and_once():
    def body(comm):
        with pytest.raises(InvalidArgumentError, match="this communicator has had none"):
            comm.shrink()
        comm.barrier()
        comm.abort()
        with pytest.raises(InvalidArgumentError, match="timeout"):
            comm.shrink(timeout=0)
        new = comm.shrink()
        with pytest.raises(InvalidArgumentError, match="was shrunk before"):
            comm.shrink()
        new.close()
        with pytest.raises(InvalidArgumentError, match="this communicator has had none"):
            new.shrink()

    run_ranks(1, body)


def test_who_has_closed_it_cannot_shrink_it():
    def body(comm):
        comm.abort()
        comm.close()
        with pytest.raises(ClosedError, match=r"shrink\(\) comes before close\(\)"):
            comm.shrink(timeout=1)

    run_ranks(1, body)


def test_a_member_that_does_not_meet_the_others_costs_an_attempt():
    """It is settled that it goes on, then it falls silent: the others begin again without it."""

    def body(comm):
        if comm.rank == 0:
            comm.abort()
        with pytest.raises(ClosedError):
            comm.barrier()
        if comm.rank == 2:
            assert comm._survivors(0, 10) == [0, 1, 2]
            done.wait(10)
            assert comm._survivors(1, 10) == [0, 1]
            return None
        try:
            return works(comm.shrink(timeout=1), [0, 1])
        finally:
            done.set()

    done = threading.Event()
    assert run_ranks(3, body) == [*expected([0, 1]), None]


def test_what_one_member_abandons_all_abandon():
    def body(comm):
        comm.abort()
        if comm.rank == 1:
            members = comm._survivors(0, 10)
            made = groups.join(comm, members, f"survivors {comm._identity:x} 0", 10, 0, lambda: None)
            assert not comm._keep(0, False)
            made.barrier()  # the others get through it, and learn only then
            vars(comm)["_attempt"] = 1
        return works(comm.shrink(), [0, 1, 2])

    assert run_ranks(3, body) == expected(range(3))


def test_what_one_member_keeps_all_keep(monkeypatch):
    """Rank 1 meets a fault when rank 0 has gone on: it shrinks the new communicator, as rank 0 will."""
    real, kept = survivors._make, threading.Event()

    def make(comm, members, attempt, timeout):
        made, error = real(comm, members, attempt, timeout)
        if comm.rank == 1 and len(members) == 3:
            assert kept.wait(10)
            made.abort()
            error = PeerLostError("rank 2 is gone")
        return made, error

    def body(comm):
        comm.abort()
        if comm.rank == 2:
            made, _ = make(comm, comm._survivors(0, 10), 0, 10)
            assert comm._keep(0, True)
            kept.set()
            made.close()
            return None
        new = comm.shrink()
        if comm.rank == 0:
            assert kept.wait(10)
            with pytest.raises((ClosedError, PeerLostError)):
                new.barrier()
            assert new.world == 3
            new = new.shrink()
        return works(new, [0, 1])

    monkeypatch.setattr(survivors, "_make", make)
    assert run_ranks(3, body) == [*expected([0, 1]), None]


def test_emulated_links_and_groups_are_kept():
    def body(comm):
        group = comm.split(comm.rank % 2)
        group.abort()
        new = group.shrink()
        assert new.transport == comm.transport and new.emulation.keys() == comm.emulation.keys()
        comm.barrier()
        return works(new, [comm.rank % 2, comm.rank % 2 + 2])[1:]

    assert run_ranks(4, body, **parse_emulated("switch:10Gbit").arguments(4)) == [[2, 2.0]] * 4


def test_init_returns_the_new_one():
    def body(comm):
        assert gpucomm.init() is comm
        comm.abort()
        new = comm.shrink()
        return gpucomm.init() is new

    with gpucomm.local(2, threads=True) as world:
        assert world.run(body) == [True, True]


def test_a_timeout_then_shrink():
    def body(comm):
        if comm.rank == 1:
            assert waiting.wait(10)
        else:
            with pytest.raises(CollectiveTimeoutError):
                comm.barrier(timeout=0.2)
            waiting.set()
        return works(comm.shrink(), [0, 1])

    waiting = threading.Event()
    assert outcomes_of(2, body) == expected([0, 1])


SCRIPT = """
import json, sys
import numpy as np
import gpucomm
comm = gpucomm.init(timeout=20)  # to start; then:
SOON = 3
rank, i = comm.rank, 0
def say(*what):
    print(json.dumps(what), flush=True)
while True:
    try:
        while comm.world == 4 or i < 20:
            comm.all_reduce(np.ones(100_000, np.float32), algorithm="ring", timeout=SOON)
            i += 1
            if i == 5:
                say("started")
        total = float(comm.all_reduce(np.ones(3), timeout=SOON)[0])
        say("sound", rank, comm.rank, comm.world, total, comm is gpucomm.init())
        break
    except gpucomm.errors.ClosedError as error:
        say("closed", str(error))
        break
    except gpucomm.errors.Error as error:
        i = 10
        try:
            comm = comm.shrink(timeout=SOON)
        except gpucomm.errors.Error as late:
            say("late", type(late).__name__, str(late))
            break
"""


@pytest.fixture
def four(ranks):
    ranks += rank_processes.start(SCRIPT, [{}] * 4)
    for process in ranks:
        assert process.stdout.readline() == '["started"]\n'
    return ranks


def last_words(process) -> list:
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


@pytest.mark.processes
@pytest.mark.parametrize("victims", [[0], [2], [0, 3], [0, 1, 2]], ids=str)
def test_survivors_of_killed_processes_go_on(four, victims):
    for victim in victims:
        four[victim].send_signal(signal.SIGKILL)
    others = [r for r in range(4) if r not in victims]
    for new, old in enumerate(others):
        assert last_words(four[old]) == ["sound", old, new, len(others), float(len(others)), True]


@pytest.mark.processes
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_process_is_left_behind_and_told_so(four, victim):
    four[victim].send_signal(signal.SIGSTOP)
    others = [r for r in range(4) if r != victim]
    for new, old in enumerate(others):
        assert last_words(four[old]) == ["sound", old, new, 3, 3.0, True]
    four[victim].send_signal(signal.SIGCONT)
    what, kind, text = last_words(four[victim])
    assert (what, kind) == ("late", "ClosedError")
    assert f"rank {victim} came too late: ranks {others} have gone on without it" in text
