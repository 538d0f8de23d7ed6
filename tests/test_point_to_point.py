"""Messages between two ranks: every order of issue, every size, beside collectives, and every fault."""

from __future__ import annotations

import gc
import sys
import threading
import time
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import outcomes_of, run_ranks

import gpucomm
from gpucomm import _core
from gpucomm.errors import (
    ClosedError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    UnsupportedTypeError,
)
from gpucomm.flight import first_difference
from gpucomm.links import parse_emulated

BEYOND_ALL_SLOTS = 3 << 20  # bytes: more than the channel's slots hold
COUNTS = [0, 1, 127, 1 << 10, BEYOND_ALL_SLOTS // 4 + 3]


def pattern(rank, count, salt=0, dtype=np.float32):
    return ((np.arange(count) * 7 + rank * 31 + salt) % 251).astype(dtype)


@pytest.mark.parametrize("count", COUNTS)
def test_a_message_arrives_and_its_sender_keeps_it(count):
    def body(comm):
        if comm.rank == 1:
            x = pattern(1, count)
            assert comm.send(x, 0) is None
            return x
        out = np.full(count, -1, np.float32)
        assert comm.recv(out, 1) is out
        return out

    for got in run_ranks(2, body):
        np.testing.assert_array_equal(got, pattern(1, count))


@pytest.mark.parametrize(
    "x",
    [
        np.arange(6, dtype=np.complex128),
        np.array([True, False]),
        np.arange(12, dtype=np.uint64).reshape(3, 4),
        np.array(3.0),
    ],
    ids=lambda x: str(x.dtype),
)
def test_any_dtype_and_shape(x):
    def body(comm):
        if comm.rank:
            comm.send(x, 0)
            return x.tobytes()
        return comm.recv(np.zeros_like(x), 1).tobytes()

    assert run_ranks(2, body) == [x.tobytes()] * 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
def test_dtypes_that_numpy_lacks(dtype):
    torch = pytest.importorskip("torch")
    x = torch.arange(9, dtype=torch.float32).to(getattr(torch, dtype))

    def body(comm):
        if comm.rank:
            comm.send(x, 0)
            return None
        return comm.recv(torch.zeros_like(x), 1).view(torch.uint8).tolist()

    assert run_ranks(2, body)[0] == x.view(torch.uint8).tolist()


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("count", [5, BEYOND_ALL_SLOTS // 4])
def test_a_ring_of_sendrecv(world, count):
    def body(comm):
        out = np.empty(count, np.float32)
        to, source = (comm.rank + 1) % world, (comm.rank - 1) % world
        assert comm.sendrecv(pattern(comm.rank, count), to, out, source) is out
        np.testing.assert_array_equal(out, pattern(source, count))

    run_ranks(world, body)


def test_large_messages_head_to_head_lock_nothing_up():
    """Both ranks first send more than all slots hold, and only then receive."""

    def body(comm):
        peer = 1 - comm.rank
        sent = [comm.send(pattern(comm.rank, BEYOND_ALL_SLOTS, k), peer, async_op=True) for k in range(3)]
        outs = [np.empty(BEYOND_ALL_SLOTS, np.float32) for _ in range(3)]
        received = [comm.recv(out, peer, async_op=True) for out in outs]
        for k, work in enumerate(received):
            np.testing.assert_array_equal(work.wait(), pattern(peer, BEYOND_ALL_SLOTS, k))
        assert [work.wait() for work in sent] == [None] * 3

    run_ranks(2, body)


def test_many_in_flight_between_all_pairs_keep_their_order():
    sizes = [0, 3, 300, 70_000, 1, 2000]

    def body(comm):
        others = [r for r in range(comm.world) if r != comm.rank]
        works, outs = [], {}
        for k, size in enumerate(sizes):
            for peer in others if k % 2 else reversed(others):
                outs[peer, k] = np.empty(size, np.int32)
                works.append(comm.recv(outs[peer, k], peer, async_op=True))
        for k, size in enumerate(sizes):
            for peer in reversed(others) if k % 2 else others:
                works.append(comm.send(pattern(comm.rank, size, k, np.int32), peer, async_op=True))
        for work in reversed(works):
            work.wait()
        for (peer, k), out in outs.items():
            np.testing.assert_array_equal(out, pattern(peer, sizes[k], k, np.int32))

    run_ranks(4, body)


def test_neither_a_message_nor_a_collective_waits_for_the_other():
    """A receive stays open over collectives, and an asynchronous collective over messages."""

    def body(comm):
        peer = 1 - comm.rank
        out = np.empty(4)
        early = comm.recv(out, peer, async_op=True)
        for _ in range(3):
            assert comm.all_reduce(np.ones(100_000))[0] == 2
        assert not early.done()
        comm.barrier()
        x = np.full(200_000, 1.0)
        if comm.rank == 0:  # issued here now, over there only after the messages
            reduced = comm.all_reduce(x, async_op=True)
        big = np.empty(BEYOND_ALL_SLOTS)
        comm.send(pattern(comm.rank, 4, dtype=np.float64), peer)
        comm.sendrecv(pattern(comm.rank, BEYOND_ALL_SLOTS, dtype=np.float64), peer, big, peer)
        if comm.rank == 1:
            reduced = comm.all_reduce(x, async_op=True)
        assert reduced.wait()[0] == 2
        np.testing.assert_array_equal(early.wait(), pattern(peer, 4, dtype=np.float64))
        np.testing.assert_array_equal(big, pattern(peer, BEYOND_ALL_SLOTS, dtype=np.float64))

    run_ranks(2, body)


def test_threads_of_one_rank_send_and_receive_at_once():
    def body(comm):
        peer = 1 - comm.rank
        rounds = 50

        def receive():
            for k in range(rounds):
                np.testing.assert_array_equal(comm.recv(np.empty(3000), peer), pattern(peer, 3000, k))
            received.append(True)

        received: list[bool] = []
        thread = threading.Thread(target=receive)
        thread.start()
        for k in range(rounds):
            comm.send(pattern(comm.rank, 3000, k, np.float64), peer)
            comm.all_reduce(np.ones(2))
        thread.join(20)
        assert received

    run_ranks(2, body)


def test_a_message_to_oneself():
    def body(comm):
        out = np.zeros(3)
        assert comm.sendrecv(np.arange(3.0), comm.rank, out, comm.rank) is out
        assert comm.sendrecv(np.arange(3.0), comm.rank, out, comm.rank, async_op=True).wait() is out
        return out.tolist()

    assert run_ranks(1, body) == [[0, 1, 2]]
    assert run_ranks(2, body) == [[0, 1, 2]] * 2


def test_bad_arguments_are_sentences_and_send_nothing():
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    x = np.zeros(4)

    def body(comm):
        me, peer = comm.rank, 1 - comm.rank
        for call, error, sentence in [
            (lambda: comm.send(x, 2), InvalidArgumentError, r"to must be a rank in \[0, 2\), got 2 \(rank"),
            (lambda: comm.recv(x, -1), InvalidArgumentError, r"source must be .*, got -1 \(rank"),
            (lambda: comm.send(x, 1.5), InvalidArgumentError, r"to must be .*, got 1.5 \(rank"),
            (
                lambda: comm.send(x, np.array(1.5)),
                InvalidArgumentError,
                r"to must .*, got array\(1.5\) \(rank",
            ),
            (lambda: comm.send(x, [1]), InvalidArgumentError, r"^to must be .*, got \[1\] \(rank \d of 2\)$"),
            (lambda: comm.recv(x, "a"), InvalidArgumentError, r"source must be .*, got 'a' \(rank"),
            (lambda: comm.recv(x, None), InvalidArgumentError, r"source must be .*, got None \(rank"),
            (lambda: comm.send(x, 1 << 70), InvalidArgumentError, r"to must be .*, got 118\d+ \(rank"),
            (lambda: comm.sendrecv(x, 1 - me, x + 1, True), InvalidArgumentError, "source must .* got True"),
            (lambda: comm.send(x, me), InvalidArgumentError, f"to must be another rank, got {me}"),
            (lambda: comm.recv(x, me), InvalidArgumentError, "source must be another rank"),
            (lambda: comm.sendrecv(x, me, frozen.copy(), peer), InvalidArgumentError, "to must be another"),
            (lambda: comm.sendrecv(x, me, np.zeros(3), me), InvalidArgumentError, "out must hold 4 elements"),
            (lambda: comm.sendrecv(x, peer, x, peer), InvalidArgumentError, "apart, they overlap"),
            (lambda: comm.recv(frozen, peer), UnsupportedTypeError, "x is read-only: recv writes it"),
            (lambda: comm.send("text", peer), UnsupportedTypeError, "speaks DLPack"),
            (lambda: comm.send(x, peer, timeout=-1), InvalidArgumentError, "timeout must be a positive"),
        ]:
            with pytest.raises(error, match=sentence):
                call()
        comm.barrier()
        return comm.stats()["bytes_sent"]

    assert run_ranks(2, body) == [0, 0]


@pytest.mark.parametrize(
    ("there", "sentence"),
    [
        (np.zeros(10, np.float32), "sends 10 float32 .send #2 to rank 0., rank 0 of 2 receives 20 float32"),
        (np.zeros(20, np.int32), "sends 20 int32 .send #2 to rank 0., rank 0 of 2 receives 20 float32"),
        (np.zeros(300_000), "rank 1 sends 300000 float64 .*, rank 0 of 2 receives 20 float32"),
    ],
)
def test_a_mismatch_is_an_exception_on_both_ends(there, sentence):
    def body(comm):
        if comm.rank:
            comm.send(np.zeros(3), 0)
            comm.send(there, 0)
            comm.barrier()  # a short message has left before anyone looked at it
        else:
            comm.recv(np.zeros(3), 1)
            out = np.full(20, 5, np.float32)
            try:
                comm.recv(out, 1)
            finally:
                assert (out == 5).all() and comm.closed

    for outcome in outcomes_of(2, body):
        with pytest.raises(MismatchError, match=sentence):
            raise outcome


def test_a_timeout_names_the_peer_and_whether_it_came():
    def body(comm):
        if comm.rank:
            done.wait(10)
            return
        try:
            comm.recv(np.zeros(5), 1, timeout=0.2)
        finally:
            done.set()

    done = threading.Event()
    outcome, _ = outcomes_of(2, body)
    assert isinstance(outcome, CollectiveTimeoutError)
    assert "recv #1 from rank 1 (5 float64) timed out after 0.2 s on rank 0 of 2" in str(outcome)
    assert str(outcome).endswith("rank 1 has not called send for it")


def test_a_wait_that_expires_ends_the_communicator():
    def body(comm):
        if comm.rank:
            expired.wait(10)
            comm.recv(np.zeros(BEYOND_ALL_SLOTS), 0)
        work = comm.send(np.zeros(BEYOND_ALL_SLOTS), 1, async_op=True)
        try:
            work.wait(timeout=0.2)
        finally:
            expired.set()

    expired = threading.Event()
    for reports, outcome in zip(["", "rank 0 reports: "], outcomes_of(2, body), strict=True):
        with pytest.raises(CollectiveTimeoutError, match=rf"^{reports}send #1 to rank 1 .* timed out"):
            raise outcome


def test_a_message_outlives_its_sender():
    def body(comm):
        if comm.rank == 1:
            comm.send(np.arange(5.0), 0)
            comm.close()
            closed.set()
            return None
        assert closed.wait(10)
        got = comm.recv(np.empty(5), 1).tolist()
        with pytest.raises(PeerLostError, match=r"rank 1 has closed .* waits in recv #2 from rank 1"):
            comm.recv(np.empty(5), 1)
        return got

    closed = threading.Event()
    assert run_ranks(2, body)[0] == [0, 1, 2, 3, 4]


def test_a_fault_of_either_channel_closes_both_on_all_ranks():
    def body(comm):
        if comm.rank == 0:
            with pytest.raises(CollectiveTimeoutError):
                comm.recv(np.zeros(1), 1, timeout=0.2)
            with pytest.raises(ClosedError, match="after a fault: recv #1 from rank 1"):
                comm.all_reduce(np.ones(2))
            return
        work = comm.recv(np.zeros(2), 2 - comm.rank // 2, async_op=True)
        with pytest.raises(CollectiveTimeoutError, match="rank 0 reports: recv #1"):
            comm.all_reduce(np.ones(2), algorithm="ring")
        with pytest.raises((CollectiveTimeoutError, ClosedError), match="recv #1 from rank 1"):
            work.wait()

    run_ranks(3, body)


def test_abort_ends_every_wait_and_names_who_called_it():
    def body(comm):
        if comm.rank == 0:
            pending = comm.recv(np.zeros(1), 1, async_op=True)
            assert waiting.acquire(timeout=10) and waiting.acquire(timeout=10)
            comm.abort()
            comm.abort()
            with pytest.raises(ClosedError, match="rank 0 of 3 called abort"):
                pending.wait()
        else:
            waiting.release()
            with pytest.raises(ClosedError, match="rank 0 of 3 called abort"):
                comm.barrier() if comm.rank == 1 else comm.send(np.zeros(BEYOND_ALL_SLOTS), 0)
        with pytest.raises(ClosedError, match="rank 0 of 3 called abort"):
            comm.all_reduce(np.zeros(1), algorithm="ring")

    waiting = threading.Semaphore(0)
    run_ranks(3, body)


@pytest.mark.parametrize("spec", ["switch:800Mbit,latency=1ms", "chain:800Mbit,half"])
def test_messages_over_emulated_links(spec):
    """A message takes as long as the links say, shares their ports with collectives, outlives its sender."""

    def body(comm):
        peer, count = 1 - comm.rank, 250_000  # 10 ms on an idle link
        out = np.empty(count, np.float32)
        reduced = comm.all_reduce(np.ones(count, np.float32), algorithm="ring", segments=1, async_op=True)
        comm.sendrecv(pattern(comm.rank, count), peer, out, peer)
        np.testing.assert_array_equal(out, pattern(peer, count))
        assert reduced.wait()[0] == 2
        if comm.rank:
            comm.send(out, 0)
        else:
            comm.recv(out, 1)
            np.testing.assert_array_equal(out, pattern(0, count))

    run_ranks(2, body, **parse_emulated(spec).arguments(2))


@pytest.mark.timing
def test_messages_and_collectives_contend_for_one_port():
    def body(comm):
        x, out = np.ones(1 << 20, np.float32), np.empty(1 << 20, np.float32)
        comm.barrier()
        begin = time.monotonic()
        message = comm.recv(out, 0, async_op=True) if comm.rank else comm.send(x, 1, async_op=True)
        comm.broadcast(x, algorithm="binomial_tree", segments=1)
        message.wait()
        return time.monotonic() - begin

    alone = (1 << 22) * 8 / 400e6
    assert max(run_ranks(2, body, **parse_emulated("switch:400Mbit").arguments(2))) >= 2 * 0.95 * alone


def test_flight_log_tells_messages_from_collectives():
    def body(comm):
        comm.barrier()
        if comm.rank:
            comm.send(np.zeros(7, np.int8), 0)
        else:
            comm.recv(np.zeros(7, np.int8), 1)
        comm.barrier()
        return [row for row in comm.flight_log() if "peer" in row]

    for rows in run_ranks(2, body):
        assert [(r["rank"], r["op"], r["peer"], r["call"], r["state"]) for r in rows] == [
            (0, "recv", 1, "recv #1 from rank 1 (7 int8)", "done"),
            (1, "send", 0, "send #1 to rank 0 (7 int8)", "done"),
        ]
        assert first_difference(rows, 2).startswith("no difference")


def test_a_communicator_that_is_dropped_touches_no_memory():
    region = _core.Region(2)
    sender = gpucomm.Communicator("local", 0, 2, region=region)
    receiver = gpucomm.Communicator("local", 1, 2, region=region)
    out = np.zeros(1 << 20)
    work = receiver.recv(out, 0, async_op=True)
    del receiver
    gc.collect()
    assert not work.done()  # it keeps its communicator
    del work
    with pytest.raises(PeerLostError, match="rank 1 reports: closed its communicator with calls under way"):
        sender.send(np.ones(1 << 20), 1)
    assert not out.any()


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2), st.sampled_from([0, 1, 1025, 300_000]))),
    st.randoms(use_true_random=False),
)
def test_any_plan_of_messages_goes_through(plan, random):
    """Each rank issues its sends and receives in an order of its own, but for those of one pair."""
    seeds = [random.randrange(1 << 30) for _ in range(3)]

    def body(comm):
        own = Random(seeds[comm.rank])
        ends = [(k, s, (s + step) % 3, n) for k, (s, step, n) in enumerate(plan)]
        todo = [[e for e in ends if e[side] == comm.rank] for side in (1, 2)]
        works, outs = [], []
        while any(todo):
            k, s, d, n = own.choice([queue for queue in todo if queue]).pop(0)
            if s == comm.rank:
                works.append(comm.send(pattern(s, n, k), d, async_op=True))
            else:
                outs.append((np.empty(n, np.float32), s, n, k))
                works.append(comm.recv(outs[-1][0], s, async_op=True))
        own.shuffle(works)
        for work in works:
            work.wait()
        for out, s, n, k in outs:
            np.testing.assert_array_equal(out, pattern(s, n, k))

    run_ranks(3, body)


@pytest.mark.processes
def test_over_processes():
    def body(comm):
        world, big = comm.world, np.empty(BEYOND_ALL_SLOTS, np.float32)
        reduced = comm.all_reduce(np.ones(100_000), async_op=True)
        for step in range(1, world):
            to, source = (comm.rank + step) % world, (comm.rank - step) % world
            comm.sendrecv(pattern(comm.rank, BEYOND_ALL_SLOTS), to, big, source)
            np.testing.assert_array_equal(big, pattern(source, BEYOND_ALL_SLOTS))
        return float(reduced.wait()[0])

    cloudpickle = pytest.importorskip("cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with gpucomm.local(3) as world:
        assert world.run(body) == [3.0] * 3
