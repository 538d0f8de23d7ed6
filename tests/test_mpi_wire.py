"""The wire of MPI over an MPI of the tests' own (fake_mpi.cpp), which has all ranks in this process."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from compiled import shared_object
from ranks import PROMPT_S
from test_served_wire import both, exchange

from gpucomm import Communicator, _core, errors

DATA, CONTROL, MESSAGES = range(3)  # tags of context 0
HANDLES = {4: "int", 8: "void*"}  # MPICH's and Open MPI's


class Fake:
    """The library, and communicators over it."""

    def __init__(self, path, handle_bytes):
        self.path, self.handle_bytes = str(path), handle_bytes
        self.library = ctypes.CDLL(self.path)
        self.library.fake_reset()

    def wire(self, rank):
        return _core.mpi_wire(self.path, handle_bytes=self.handle_bytes, communicator=rank, byte=1)

    def comm(self, rank, world=2, wire=None, context=0, **how):
        wire = wire or self.wire(rank)
        nodes = list(range(world))
        return Communicator("mpi", rank, world, wire=wire, nodes=nodes, context=context, timeout=20, **how)

    def comms(self, world=2, wires=None, context=0):
        return [self.comm(rank, world, wires and wires[rank], context) for rank in range(world)]

    def fail(self, call, code=0, peer=-1):
        self.library.fake_fail(call.encode(), code, peer)

    def hold(self, tag, on=True):
        self.library.fake_hold(tag, on)


@pytest.fixture(params=HANDLES, ids=HANDLES.get)
def mpi(request, tmp_path_factory):
    source = Path(__file__).parent / "fake_mpi.cpp"
    path = shared_object(tmp_path_factory, "fake_mpi.so", [source], [f"-DHANDLE={HANDLES[request.param]}"])
    mpi = Fake(path, request.param)
    yield mpi
    assert mpi.library.fake_misused() == 0


def test_messages_arrive_and_leave_nothing(mpi):
    """Requests of what has ended, and of what nobody waits for any more, are used again."""
    wires = [mpi.wire(rank) for rank in range(2)]
    for context in range(100):
        first, second = mpi.comms(2, wires, context)
        for count in (0, 1, 100_000):
            exchange(first, second, count)
        both([first.close, second.close])
    assert mpi.library.fake_open() == 0
    assert mpi.library.fake_slots() < 100


def test_as_many_requests_as_there_are_peers(mpi):
    """More than one block of them: each has a place of its own."""
    with mpi.comm(0, 200):
        assert mpi.library.fake_open() == mpi.library.fake_slots() == 2 * 199


def test_who_sends_runs_not_far_ahead_of_a_receiver_that_does_not_come(mpi):
    first, _second = mpi.comms()
    for _ in range(3):
        first.send(np.ones(1), 1)
    said = r"on rank 0 of 2: rank 1 \(not heard of\) has not called recv"
    with pytest.raises(errors.CollectiveTimeoutError, match=said):
        first.send(np.ones(1), 1, timeout=0.1)


def sends(comm):
    for _ in range(4):
        comm.send(np.ones(1), 1)


@pytest.mark.parametrize(
    ("call", "use"),
    [
        ("MPI_Isend", sends),
        ("MPI_Issend", sends),
        ("MPI_Irecv", lambda comm: comm.recv(np.ones(1), 1)),
        ("MPI_Test", lambda comm: comm.recv(np.ones(1), 1)),
    ],
)
def test_what_mpi_says_of_a_call_is_told_on_all_ranks(mpi, call, use):
    """By the ranks of the group, which MPI has other numbers for."""
    wires = [mpi.wire(number) for number in (5, 3)]
    first, second = (mpi.comm(rank, 2, wires[rank], wire_ranks=[5, 3]) for rank in range(2))
    mpi.fail(call, 16)
    with pytest.raises(
        errors.PeerLostError, match=rf"^the connection to rank 1 has failed: {call}: fault 16$"
    ):
        use(first)
    mpi.fail(call)
    if call != "MPI_Isend":  # by which it is told
        with pytest.raises(errors.PeerLostError, match=rf"^rank 0 reports: the .*: {call}: fault 16"):
            second.barrier()


def test_a_fault_is_told_to_all_whom_it_still_reaches(mpi):
    first, _, third = mpi.comms(3)
    mpi.fail("MPI_Isend", 16, peer=1)
    first.abort()
    with pytest.raises(errors.ClosedError, match=r"rank 0 of 3 called abort\(\)"):
        third.barrier()


def test_the_first_fault_stays(mpi):
    first, second, third = mpi.comms(3)
    first.abort()
    second.abort()
    for _ in range(2):
        with pytest.raises(errors.ClosedError, match=r"rank 0 of 3 called abort\(\)"):
            third.barrier()


def test_who_aborts_or_closes_waits_a_while_until_that_is_on_its_way(mpi):
    """It may end then, and MPI sends nothing any more."""
    first, _ = mpi.comms()
    mpi.hold(CONTROL)
    closing = threading.Thread(target=first.close, daemon=True)
    closing.start()
    closing.join(0.4)
    assert closing.is_alive()
    mpi.hold(CONTROL, False)
    closing.join(PROMPT_S)
    assert not closing.is_alive()
    other = mpi.comm(0, context=1)
    mpi.hold(4 + CONTROL)
    begin = time.monotonic()
    other.abort()
    assert 0.15 < time.monotonic() - begin < PROMPT_S


def test_a_call_ends_when_what_it_sends_has_left(mpi):
    """MPI reads it until then, so that it could not be sent any more by who closes and ends."""
    first, second = mpi.comms()
    mpi.hold(DATA)
    got, how = np.zeros(3), {"algorithm": "direct", "segments": 1, "async_op": True}
    works = [comm.broadcast(x, **how) for comm, x in ((first, np.full(3, 7.0)), (second, got))]
    deadline = time.monotonic() + 0.05  # rank 0 looks many times
    while time.monotonic() < deadline:
        assert not works[0].done()
    mpi.hold(DATA, False)
    for work in works:
        work.wait()
    assert (got == 7).all()


def test_memory_that_mpi_may_still_use_is_not_given_back(mpi):
    wires = [mpi.wire(rank) for rank in range(2)]
    mpi.library.fake_cancels(False)
    for context in range(2):
        first, second = mpi.comms(2, wires, context)
        exchange(first, second, 10)
        for tag in (DATA, CONTROL, MESSAGES):
            mpi.hold(4 * context + tag)
        first.send(np.ones(1), 1, async_op=True)
        both([first.abort, second.abort])
    assert mpi.library.fake_open() > 0


def test_what_has_come_is_not_cancelled(mpi):
    """A message that is not the one expected."""
    first, second = mpi.comms()
    first.send(np.ones(3), 1)
    with pytest.raises(errors.MismatchError):
        second.recv(np.ones(4), 0)
    for comm in (first, second):
        comm.close()


@pytest.mark.parametrize("call", ["MPI_Isend", "MPI_Test", "MPI_Cancel"])
def test_who_closes_is_not_told_of_a_wire_that_fails(mpi, call):
    first, second = mpi.comms()
    exchange(first, second, 10)
    mpi.fail(call, 16)
    with contextlib.suppress(errors.Error):
        first.close()
    assert first.closed


def test_what_is_no_mpi_is_refused(mpi):
    with pytest.raises(errors.UnavailableError, match="have 2 bytes, expected 4 or 8"):
        _core.mpi_wire(mpi.path, handle_bytes=2, communicator=0, byte=1)
    with pytest.raises(errors.UnavailableError, match=r"MPI_Isend was not found in the MPI that .*_core"):
        _core.mpi_wire(_core.__file__, handle_bytes=4, communicator=0, byte=1)
    with pytest.raises(errors.UnavailableError, match=r"/nowhere\.so is not loaded: "):
        _core.mpi_wire("/nowhere.so", handle_bytes=4, communicator=0, byte=1)
