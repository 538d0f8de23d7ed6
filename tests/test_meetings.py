"""What becomes of ranks that meet in a new communicator, of a split or of survivors, where one does not."""

from __future__ import annotations

import json
import threading

import pytest
import rank_processes
from ranks import PROMPT_S, run_ranks

import gpucomm
from gpucomm.errors import ClosedError, InvalidArgumentError, UnavailableError
from gpucomm.launch import groups, patience

# Rank `victim` does `what` where it would meet the others.
SCRIPT = """
import json, os, signal, time
import gpucomm
from gpucomm.launch import groups
comm = gpucomm.init(timeout=20)
comm.barrier()
def join(*given):
    {what}
    return real(*given)
real = groups.join
if comm.rank == {victim}:
    groups.join = join
def call(what):
    begin = time.monotonic()
    try:
        said = ["made", what().world]
    except (gpucomm.errors.Error, KeyboardInterrupt) as error:
        said = [type(error).__name__, str(error)]
    print(json.dumps([*said, time.monotonic() - begin, comm.closed]), flush=True)
{calls}
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def told(ranks, what, calls, victim=1):
    """What three ranks say of each call: a class and its text or "made" and its size; closed or not."""
    ranks += rank_processes.start(SCRIPT.format(what=what, calls=calls, victim=victim), [{}] * 3)
    said = [[json.loads(line) for line in rank.communicate(timeout=60)[0].splitlines()] for rank in ranks]
    assert all(seconds < PROMPT_S for lines in said for _, _, seconds, _ in lines), said
    return [[line[:2] + line[3:] for line in lines] for lines in said]


@pytest.mark.processes
def test_the_steps_of_a_split_share_its_timeout(ranks):
    """Rank 1 comes late to the first, and does not come to the second."""
    calls = "time.sleep(2 * (comm.rank == 1))\ncall(lambda: comm.split(0, timeout=3))"
    first, late, last = told(ranks, "time.sleep(5); os._exit(0)", calls)
    assert late == [] and all(kind == "CollectiveTimeoutError" for ((kind, _, _),) in (first, last))


def test_time_is_counted_down_to_a_second(monkeypatch):
    now = iter([100.0, 100.25, 102.5, 110.0])
    monkeypatch.setattr(patience.time, "monotonic", lambda: next(now))
    left = patience.counting_down(3.0)
    assert [left(), left(), left()] == [2.75, 1.0, 1.0]
    monkeypatch.undo()
    assert patience.counting_down(0.2, since=0.0)() == 0.2


@pytest.mark.processes
@pytest.mark.parametrize("make", ["comm.split(0)", "comm.subset([0, 1])", "comm.subset([1, 0])"])
def test_a_rank_that_is_killed_in_a_split_is_named_at_once(ranks, make):
    """By those that are not in its group too; and the survivors go on."""
    calls = f"call(lambda: {make} or comm)\ngroups.join = real\ncall(comm.shrink)"
    first, killed, last = told(ranks, KILL, calls)
    assert killed == []
    for (kind, text, closed), shrunk in (first, last):
        assert (kind, closed) == ("PeerLostError", True) and "rank 1 is gone (pid" in text
        assert shrunk == ["made", 2, True]


@pytest.mark.processes
def test_a_split_that_is_interrupted_ends_on_every_rank(ranks):
    calls = "call(lambda: comm.split(0))\ngroups.join = real\ncall(comm.shrink)"
    first, second, last = told(ranks, "raise KeyboardInterrupt", calls)
    for (kind, text, closed), _ in (first, last):
        assert (kind, closed) == ("ClosedError", True)
        assert "rank 1 reports: split/subset: ended by KeyboardInterrupt (rank 1 of 3)" in text
    assert second[0] == ["KeyboardInterrupt", "", True]
    assert all(shrunk == ["made", 3, True] for _, shrunk in (first, second, last))


SHRINK = """
if comm.rank == 2:
    comm.abort()
while not comm.closed:
    time.sleep(0.01)
call(comm.shrink)
"""


@pytest.mark.processes
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_while_survivors_meet_is_left_behind_at_once(ranks, victim):
    """The one that makes their memory, and another."""
    said = told(ranks, KILL, SHRINK, victim)
    assert said.pop(victim) == []
    assert said == [[["made", 2, True]]] * 2


@pytest.mark.processes
def test_who_is_interrupted_while_survivors_meet_may_call_again(ranks):
    again = "\ngroups.join = real\ncall(comm.shrink)"
    first, second, last = told(
        ranks, "raise KeyboardInterrupt", SHRINK + f"if comm.rank == 1:{again}".replace("\n", "\n    ")
    )
    assert first == last == [["made", 3, True]]
    assert second == [["KeyboardInterrupt", "", True], ["made", 3, True]]


def test_who_is_interrupted_when_they_have_met_finds_what_was_made(monkeypatch):
    """Rank 1, by a handler that raises behind the last call of the meeting."""
    real, interrupted = groups.forget, threading.Event()

    def forget(name):
        real(name)
        if name.startswith("survivors") and threading.current_thread() is mine and not interrupted.is_set():
            interrupted.set()
            assert kept.wait(10)
            raise KeyboardInterrupt

    def body(comm):
        nonlocal mine
        if comm.rank == 1:
            mine = threading.current_thread()
        comm.barrier()
        if comm.rank == 0:
            comm.abort()
        while not comm.closed:
            pass
        if comm.rank == 1:
            with pytest.raises(KeyboardInterrupt):
                comm.shrink()
        new = comm.shrink()
        if comm.rank == 0:
            kept.set()
        with pytest.raises(InvalidArgumentError, match="was shrunk before"):
            comm.shrink()
        new.barrier()
        return new.world

    mine, kept = None, threading.Event()
    monkeypatch.setattr(groups, "forget", forget)
    assert run_ranks(3, body) == [3] * 3


def test_of_threads_that_shrink_at_once_one_makes_it():
    def shrunk(comm, found):
        try:
            found.append(comm.shrink().world)
        except InvalidArgumentError as error:
            found.append("was shrunk before" in str(error))

    def body(comm):
        comm.abort()
        found: list = []
        threads = [threading.Thread(target=shrunk, args=(comm, found)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(found)

    assert run_ranks(2, body) == [[True, True, 2]] * 2


def test_a_split_that_fails_on_one_rank_ends_on_all(monkeypatch):
    """Else this rank's next call would be taken for that in which the others wait for it."""
    real = gpucomm._core.Region

    def region(world, *heap_bytes):
        if world == 1:
            raise UnavailableError("no memory for a region")
        return real(world, *heap_bytes)

    def body(comm):
        with pytest.raises(UnavailableError, match="no memory for a region"):
            comm.split(min(comm.rank, 1))
        with pytest.raises(ClosedError, match=r"after a fault: .*no memory"):
            comm.barrier()

    monkeypatch.setattr(gpucomm._core, "Region", region)
    run_ranks(3, body)
