"""Asynchronous collectives, above all of objects, where a process forks or ends."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest
import rank_processes
from ranks import PROMPT_S

import gpucomm
from gpucomm import Communicator, _core, ending, object_work
from gpucomm.errors import ClosedError


def ended(ranks, body):
    """What two ranks that run this with a communicator said, and the seconds until each of them had ended."""
    code = "import os, sys, gpucomm\ncomm = gpucomm.init(timeout=30)\n" + textwrap.dedent(body)
    began = time.monotonic()
    ranks += rank_processes.start(code, [{}, {}])
    said = [rank.communicate(timeout=60) for rank in ranks]
    assert time.monotonic() - began < 2 * PROMPT_S, said
    return [(rank.returncode, out, err) for rank, (out, err) in zip(ranks, said, strict=True)]


@pytest.mark.processes
def test_a_forked_child_is_refused_and_its_parent_goes_on(ranks):
    body = """
        first = comm.gather_objects(comm.rank, async_op=True)
        assert first.wait() == [0, 1]
        under_way = comm.gather_objects(2, async_op=True) if comm.rank == 0 else first
        child = os.fork()
        if not child:
            calls = [
                lambda: comm.gather_objects(3, async_op=True).wait(),
                lambda: comm.broadcast_object(3, async_op=True).wait(),
            ]
            for call in calls + [under_way.wait] * (comm.rank == 0):
                try:
                    call()
                except gpucomm.errors.ClosedError as error:
                    assert f"does not survive fork(): start ranks with" in str(error)
                    assert f"(rank {comm.rank} of 2)" in str(error)
                else:
                    os._exit(1)
            assert first.wait() == [0, 1]  # which is known
            comm.close()
            sys.exit(0)  # with the handlers of an end
        assert os.waitpid(child, 0)[1] == 0
        under_way = under_way if comm.rank == 0 else comm.gather_objects(2, async_op=True)
        print(under_way.wait(), comm.gather_objects(comm.rank, async_op=True).wait())
    """
    for code, out, err in ended(ranks, body):
        assert (code, out) == (0, "[2, 2] [0, 1]\n"), err


@pytest.mark.processes
def test_a_rank_that_fails_with_a_call_under_way_ends_at_once(ranks):
    body = """
        comm.gather_objects(1, async_op=True).wait()
        if comm.rank == 0:
            work = comm.gather_objects(2, async_op=True)
            raise ValueError("boom")
        try:
            comm.barrier()
        except gpucomm.errors.PeerLostError as error:
            print(error)
    """
    (code, _, err), (other_code, other_out, other_err) = ended(ranks, body)
    assert code == 1 and "ValueError: boom" in err and "Fatal" not in err
    assert other_code == 0 and "rank 0 has closed its communicator" in other_out, other_err


@pytest.mark.processes
def test_collectives_under_way_at_a_good_end_still_end_well(ranks):
    """And no longer than the others take; where an error ends the process, at once."""
    body = """
        import time
        import numpy as np
        x = np.full(1 << 22, comm.rank, np.float32)
        comm.all_reduce(x)
        for _ in range(3):
            comm.broadcast(x, 0, async_op=True) if comm.rank == 0 else time.sleep(0.2)
        if comm.rank:
            works = [comm.broadcast(x.copy(), 0, async_op=True) for _ in range(3)]
            print([float(work.wait()[-1]) for work in works])
            comm.barrier(async_op=True)
            raise ValueError("boom")
    """
    (code, out, err), (other_code, other_out, other_err) = ended(ranks, body)
    assert (code, out) == (0, ""), err
    assert other_code == 1 and other_out == "[1.0, 1.0, 1.0]\n" and "ValueError: boom" in other_err


@pytest.mark.processes
def test_what_is_under_way_at_a_good_end_still_ends_well(ranks):
    body = """
        comm.gather_objects(1, async_op=True).wait()
        if comm.rank == 0:
            for number in range(3):
                comm.gather_objects(number, async_op=True)
            print("issued", flush=True)
        else:
            works = [comm.gather_objects(number, async_op=True) for number in range(2)]
            input()
            works.append(comm.gather_objects(2, async_op=True))
            print([work.wait() for work in works])
    """
    code = "import gpucomm\ncomm = gpucomm.init(timeout=30)\n" + textwrap.dedent(body)
    ranks += rank_processes.start(code, [{}, {}])
    assert ranks[0].stdout.readline() == "issued\n"
    with pytest.raises(subprocess.TimeoutExpired):
        ranks[0].wait(0.5)
    out, err = ranks[1].communicate("go on\n", timeout=60)
    assert out == "[[0, 0], [1, 1], [2, 2]]\n", err
    assert ranks[0].wait(60) == ranks[1].returncode == 0, ranks[0].stderr.read()


def side_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("gpucomm-waiter")]


def test_a_communicator_that_nobody_holds_leaves_no_thread():
    gc.collect()
    before = len(side_threads())
    comm = Communicator("local", 0, 1, region=_core.Region(1))
    assert comm.gather_objects(1, async_op=True).wait() == [1]
    assert len(side_threads()) == before + 1
    side = weakref.ref(comm._side)
    gc.disable()  # it must not take that
    try:
        del comm
        deadline = time.monotonic() + 10
        while (side() or len(side_threads()) > before) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert side() is None and len(side_threads()) == before
    finally:
        gc.enable()


def test_what_is_issued_behind_the_end_is_refused():
    comm = Communicator("local", 0, 1, region=_core.Region(1))
    side = object_work.side_of(comm, None)
    side.close()
    side.close()
    with pytest.raises(ClosedError, match=r"this communicator is closed \(rank 0 of 1\)"):
        comm.gather_objects(1, async_op=True)


def test_whatever_a_call_raises_is_raised_where_it_is_waited_for():
    def fail(_):
        raise KeyboardInterrupt

    with gpucomm.Communicator("local", 0, 1, region=_core.Region(1)) as comm:
        work = object_work.side_of(comm, None).start(fail)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                work.wait(10)
        assert comm.gather_objects(1, async_op=True).wait() == [1]


class Ending:
    """A communicator with a call under way until it is looked at, whose close fails."""

    def __init__(self, interrupts):
        self.closed, self._interrupts = False, interrupts

    @property
    def _busy(self):
        if self._interrupts:
            raise KeyboardInterrupt
        return False

    def close(self):
        self.closed = True
        raise ClosedError("rank 1 was gone")


@pytest.mark.parametrize("interrupts", [False, True])
def test_an_error_at_the_end_of_the_process_is_logged(interrupts, caplog):
    comm = Ending(interrupts)
    with pytest.raises(KeyboardInterrupt) if interrupts else contextlib.nullcontext():
        ending.close_at_exit(comm, comm.close)
    assert comm.closed and caplog.messages == ["rank 1 was gone"]


def test_errors_of_before_do_not_end_an_interactive_session(monkeypatch):
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.setattr(sys, "last_value", ValueError("of before"), raising=False)
    assert ending.ended_by_error()
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert not ending.ended_by_error()
