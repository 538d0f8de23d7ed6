"""Arrays of asynchronous calls under way: who touches them is told so, and nothing is changed."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from ranks import run_ranks

from gpucomm.errors import InvalidArgumentError, MismatchError, UnsupportedTypeError


def test_what_a_call_under_way_will_write_besides_its_result_is_left_alone():
    """Where it tells what a codec loses, and arrays of a list until its wait()."""

    def body(comm):
        x, lost = np.ones(1 << 16, np.float32), np.zeros(1 << 16, np.float32)
        ys = [np.ones(5), np.ones(6)]
        if comm.rank == 1:
            started.wait(20)
        first = comm.all_reduce(x, codec="int8", algorithm="coded_ring", error=lost, async_op=True)
        second = comm.all_reduce(ys, algorithm="ring", async_op=True)
        if comm.rank == 0:
            for call in (
                lambda: comm.all_reduce(np.ones(1 << 16, np.float32), codec="int8", error=lost),
                lambda: comm.all_reduce(lost),
                lambda: comm.all_reduce(ys[1]),
            ):
                with pytest.raises(InvalidArgumentError, match=r"overlaps .* still under way.*rank 0 of 2"):
                    call()
            started.set()
        first.wait()
        while not second.done():
            time.sleep(0.001)
        with pytest.raises(InvalidArgumentError, match=r"collective on a list .* still under way"):
            comm.all_reduce(ys[1])
        second.wait()
        return comm.all_reduce(ys[1], algorithm="ring").tolist()

    started = threading.Event()
    assert run_ranks(2, body) == [[4.0] * 6] * 2


def test_objects_of_any_dtype_may_be_sent_while_a_call_is_under_way():
    sent = [np.array(["2026-01-01"], "M8[D]"), np.array(["ab"]), np.array(b"c"), np.arange(3, dtype=">i4")]
    sent += [np.zeros((0, 2)), np.array(3.0), np.array([""]), np.ones(4)[::2]]

    def body(comm):
        other, x = comm.split(0), np.ones(1 << 16)
        if comm.rank == 0:
            work = comm.all_reduce(x, algorithm="ring", async_op=True)
        got = other.broadcast_object(sent)
        if comm.rank == 1:  # only now, so that the call of rank 0 stays under way
            work = comm.all_reduce(x, algorithm="ring", async_op=True)
        work.wait()
        return [(a.dtype, a.tolist()) for a in got]

    assert run_ranks(2, body) == [[(a.dtype, a.tolist()) for a in sent]] * 2


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x[4::2],
        lambda x: x[::-3],
        lambda x: x.reshape(2, -1).T,
        lambda x: np.broadcast_to(x[:1], (5, 5)),
    ],
    ids=["whole", "strided", "backwards", "turned", "broadcast"],
)
def test_an_array_that_a_call_under_way_writes_is_no_object_to_send(view):
    def body(comm):
        other, x = comm.split(0), np.ones(1 << 16)
        if comm.rank == 0:
            work = comm.all_reduce(x, algorithm="ring", async_op=True)
        with pytest.raises((InvalidArgumentError, UnsupportedTypeError), match="under way"):
            other.broadcast_object({"x": view(x)})
        if comm.rank == 1:  # only now, so that the call of rank 0 stays under way
            work = comm.all_reduce(x, algorithm="ring", async_op=True)
        return work.wait()[0]

    assert run_ranks(2, body) == [2.0] * 2


def test_norms_of_an_array_that_a_call_under_way_writes_are_not_taken():
    """They would say which codec keeps the error of what is no longer there."""

    def body(comm):
        other, x = comm.split(0), np.ones(1 << 16, np.float32)
        if comm.rank == 0:
            work = comm.all_reduce(x, algorithm="ring", async_op=True)
            with pytest.raises(InvalidArgumentError, match=r"overlaps .* still under way.*rank 0 of 2"):
                other.all_reduce(x, max_rel_err=1e-2)
        else:
            with pytest.raises(MismatchError, match=r"rank 0's .*under way"):
                other.all_reduce(np.ones_like(x), max_rel_err=1e-2)
            work = comm.all_reduce(x, algorithm="ring", async_op=True)
        return work.wait()[0]

    assert run_ranks(2, body) == [2.0] * 2


def test_arrays_in_flight_are_left_alone():
    """Of any communicator of the process, until the call has ended; who only reads may do so together."""

    def body(comm):
        other = comm.split(0)
        x, apart, both = np.ones(4_000_000), np.ones(8), np.zeros((2, 8))
        if comm.rank == 0:  # rank 1 comes later, so these calls stay under way
            first = [
                comm.all_reduce(x, algorithm="ring", async_op=True),
                comm.recv(both[0], 1, async_op=True),
            ]
            for call in (
                lambda: comm.all_reduce(x[:5]),
                lambda: other.broadcast(x, 1),
                lambda: other.all_gather(x[3:7], out=np.zeros(8)),
                lambda: comm.send(x[9:], 1),
                lambda: comm.recv(x[9:], 1),
                lambda: comm.sendrecv(apart, 1, both, 1),
                lambda: other.send(both[0], 1),
                lambda: comm.all_reduce(x, "premul_sum", scale=100.0),
                lambda: comm.all_reduce(np.ones(8, np.float32), codec="int8", error=x[:4].view(np.float32)),
                lambda: comm.all_reduce([x[:5], x[5:9]]),
                lambda: comm.broadcast([apart, x[5:9]], 1),
            ):
                with pytest.raises(InvalidArgumentError, match=r"overlaps .* still under way.*rank 0 of 2"):
                    call()
            first += [comm.send(apart, 1, async_op=True) for _ in range(2)]
        else:
            for _ in range(2):
                comm.recv(np.zeros(8), 0)
            first = [comm.all_reduce(x, algorithm="ring", async_op=True), comm.send(apart, 0, async_op=True)]
        for work in first:
            work.wait()
        comm.all_reduce(x, algorithm="ring")  # the first has ended: its array is the caller's again
        other.close()
        return x[0], both[0, 0]

    assert run_ranks(2, body) == [(4.0, 1.0), (4.0, 0.0)]
