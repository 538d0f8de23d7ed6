"""Messages between two ranks whose arrays are on devices: those of host memory, in the order of streams."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from on_device import HostKit, Racing, finish, held, stream_of
from ranks import outcomes_of, run_ranks
from test_point_to_point import pattern

import gpucomm
from gpucomm import _core
from gpucomm.errors import (
    ClosedError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    UnavailableError,
)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize(("dtype", "count"), [("float32", 0), ("complex64", 7), ("uint8", 300_001)])
def test_a_message_arrives_and_its_sender_keeps_it(dtype, count, async_op, make_kit):
    """The sender's stream overwrites x as soon as it has been read."""
    kit = make_kit(2000)

    def body(comm):
        x = pattern(1, count, dtype=dtype)
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            array = racing.array(x if comm.rank else np.full_like(x, 3))
            options = {"stream": stream, "async_op": async_op}
            got = comm.send(array, 0, **options) if comm.rank else comm.recv(array, 1, **options)
            if async_op:
                got = got.wait()
            assert got is (None if comm.rank else array)
            return np.array_equal(racing.found(racing.read(array)), x)

    assert run_ranks(2, body) == [True] * 2


@pytest.mark.parametrize("waits", [True, False])
def test_a_message_to_oneself_is_waited_for_and_keeps_its_arrays(waits, make_kit):
    kit = make_kit(2000)

    def body(comm):
        for n in range(10):
            x, out = (kit.array(np.full(1000, value, np.float32)) for value in (n + 1, 0))
            work = comm.sendrecv(x, 0, out, 0, async_op=True)
            if waits:
                assert (kit.host(work.synchronize()) == n + 1).all()
            else:
                assert not work.done() or (kit.host(out) == n + 1).all()
            del x, out, work

    run_ranks(1, body)


def test_a_quick_sender_waits_for_a_slow_receiver(make_kit):
    """Its stream overwrites x at once, where it may."""
    slow, quick = make_kit(40_000), make_kit(0)

    def body(comm):
        kit, x = quick if comm.rank else slow, pattern(1, 1000)
        with stream_of(kit) as stream:
            racing, right = Racing(kit, stream), []
            for _ in range(3):
                array = racing.array(x if comm.rank else np.zeros_like(x))
                comm.send(array, 0, stream=stream) if comm.rank else comm.recv(array, 1, stream=stream)
                right.append(racing.read(array))
            return [np.array_equal(racing.found(reading), x) for reading in right]

    assert run_ranks(2, body) == [[True] * 3] * 2


def test_what_a_sendrecv_sends_does_not_wait_for_what_it_receives():
    """Rank 0's stream is late, so what rank 1 receives is, but not what rank 1 sends."""
    kit, issued, arrived = HostKit(), threading.Event(), threading.Event()

    def body(comm):
        to, source = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        x, out = (kit.array(values) for values in (pattern(comm.rank, 100), np.zeros(100, np.float32)))
        with stream_of(kit) as stream:
            if comm.rank == 0:
                with held(kit.device, stream):
                    work = comm.sendrecv(x, to, out, source, stream=stream, async_op=True)
                    issued.set()
                    assert arrived.wait(20)
                work.synchronize()
                return True
            assert issued.wait(20)
            comm.sendrecv(x, to, out, source, stream=stream)
            deadline = time.monotonic() + 20
            while comm.rank == 2 and not np.array_equal(out.values, pattern(source, 100)):
                assert time.monotonic() < deadline
                time.sleep(1e-3)
            arrived.set() if comm.rank == 2 else arrived.wait(20)
            finish(kit.device, stream)
            return np.array_equal(out.values, pattern(source, 100))

    assert run_ranks(3, body) == [True] * 3


@pytest.mark.parametrize("world", [2, 3])
def test_a_ring_of_sendrecv(world, make_kit):
    kit = make_kit(100)

    def body(comm):
        to, source = (comm.rank + 1) % world, (comm.rank - 1) % world
        with stream_of(kit) as stream:
            racing, right = Racing(kit, stream), []
            for k in range(4):
                x = racing.array(pattern(comm.rank, 5000, k))
                out = racing.array(np.zeros(5000, np.float32))
                assert comm.sendrecv(x, to, out, source, stream=stream) is out
                right.append((racing.read(out), pattern(source, 5000, k)))
            return all(np.array_equal(racing.found(got), expected) for got, expected in right)

    assert run_ranks(world, body) == [True] * world


def test_many_in_flight_between_all_pairs_keep_their_order(make_kit):
    """Every third message is one of host memory."""
    kit, sizes = make_kit(50), [0, 3, 300, 70_000, 1, 2000]

    def body(comm):
        with stream_of(kit) as stream:  # over NCCL one of all ranks would wait for itself
            others = [r for r in range(comm.world) if r != comm.rank]
            array = lambda k, x: x if k % 3 == 2 else kit.array(x)  # noqa: E731
            works, outs = [], {}
            for k, size in enumerate(sizes):
                for peer in others if k % 2 else reversed(others):
                    outs[peer, k] = array(k, np.zeros(size, np.int32))
                    works.append(comm.recv(outs[peer, k], peer, async_op=True, stream=stream))
            for k, size in enumerate(sizes):
                for peer in reversed(others) if k % 2 else others:
                    x = array(k, pattern(comm.rank, size, k, np.int32))
                    works.append(comm.send(x, peer, async_op=True, stream=stream))
            for work in reversed(works):
                work.synchronize()
            return [
                np.array_equal(out if k % 3 == 2 else kit.host(out), pattern(peer, sizes[k], k, np.int32))
                for (peer, k), out in outs.items()
            ]

    assert run_ranks(4, body) == [[True] * 18] * 4


def test_neither_a_message_nor_a_collective_waits_for_the_other(make_kit):
    kit = make_kit(50)

    def body(comm):
        with stream_of(kit) as stream:  # over NCCL one of all ranks would wait for itself
            peer = 1 - comm.rank
            out = kit.array(np.zeros(4))
            early = comm.recv(out, peer, async_op=True, stream=stream)
            x = kit.array(np.ones(1000))
            for _ in range(3):
                comm.all_reduce(x, op="max", async_op=True, stream=stream).synchronize()
            assert not early.done()
            comm.barrier()
            sent = kit.array(pattern(comm.rank, 4, dtype=np.float64))
            comm.send(sent, peer, async_op=True, stream=stream).synchronize()
            early.synchronize()
            return np.array_equal(kit.host(out), pattern(peer, 4, dtype=np.float64))

    assert run_ranks(2, body) == [True] * 2


def test_the_host_does_not_wait_for_the_device(make_kit):
    kit = make_kit(60_000)

    def body(comm):
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x = [racing.array(np.full(10, float(comm.rank))) for _ in range(8)][-1]
            event = kit.device.make_event()
            kit.device.record(event, stream)
            for _ in range(3):
                comm.recv(x, 0, stream=stream) if comm.rank else comm.send(x, 1, stream=stream)
            early = not kit.device.done(event)
            racing.finish()
            kit.device.end_event(event)
        return early, kit.host(x).tolist()

    assert run_ranks(2, body, timeout=60) == [(True, [0.0] * 10)] * 2


def test_between_two_devices(make_kit):
    kits = [make_kit(100, index) for index in range(2)]

    def body(comm):
        kit = kits[comm.rank]
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x, out = racing.array(pattern(comm.rank, 999)), racing.array(np.zeros(999, np.float32))
            comm.sendrecv(x, 1 - comm.rank, out, 1 - comm.rank, stream=stream)
            return np.array_equal(racing.found(racing.read(out)), pattern(1 - comm.rank, 999))

    assert run_ranks(2, body) == [True] * 2


def test_a_message_to_oneself(make_kit):
    kit = make_kit(100)

    def body(comm):
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x, out = racing.array(np.arange(3.0)), racing.array(np.zeros(3))
            comm.sendrecv(x, comm.rank, out, comm.rank, stream=stream)
            found = racing.found(racing.read(out)).tolist()
        with pytest.raises(InvalidArgumentError, match="must be on one device"):
            comm.sendrecv(x, comm.rank, np.zeros(3), comm.rank)
        return found

    assert run_ranks(2, body) == [[0, 1, 2]] * 2


def test_what_was_moved_is_counted(make_kit):
    kit = make_kit()

    def body(comm):
        with stream_of(kit) as stream:  # over NCCL one of all ranks would wait for itself
            before = comm.stats()
            x = kit.array(np.ones(1000, np.float32))
            comm.send(x, 1, stream=stream) if comm.rank == 0 else comm.recv(x, 0, stream=stream)
            comm.all_reduce(x, algorithm="ring", segments=1, stream=stream)
            comm.all_reduce(
                x, algorithm="coded_ring", codec="bf16", segments=1, async_op=True, stream=stream
            ).synchronize()
            after = comm.stats()
            return {
                key: after[key] - before[key] for key in ("bytes_sent", "device_calls", "encodes", "decodes")
            }

    first, second = run_ranks(2, body)
    ids = (0, 2 * 128)  # over NCCL: of the messages and of the collectives
    assert first["bytes_sent"] - second["bytes_sent"] - 4000 in ids
    assert second["bytes_sent"] >= 4000 + 2000  # of the ring all, of the coded one half
    assert first["device_calls"] == 2 and first["encodes"] == second["encodes"] == 2 <= first["decodes"]


@pytest.mark.parametrize("sends_host", [False, True])
def test_a_message_from_host_memory_to_a_device_is_refused(sends_host, make_kit):
    kit = make_kit()

    def body(comm):
        x = np.ones(5, np.float32)
        x = x if sends_host == (comm.rank == 0) else kit.array(x)
        comm.send(x, 1) if comm.rank == 0 else comm.recv(x, 0)
        comm.barrier()

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError)
        assert "5 float32 on a device" in str(error) and "two ends of a message differ" in str(error)


def test_a_mismatch_names_both_ends_and_touches_nothing(make_kit):
    kit = make_kit()

    def body(comm):
        x = kit.array(np.ones(3 + comm.rank))
        comm.send(x, 1) if comm.rank == 0 else comm.recv(x, 0)

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError)
        assert "sends 3 float64 on a device" in str(error) and "receives 4 float64 on a device" in str(error)
    assert kit.enqueued("copy") in (0, None)


@pytest.mark.parametrize("sending", [True, False])
def test_a_rank_that_does_not_come(sending, make_kit):
    kit = make_kit()

    def body(comm):
        if comm.rank == 0:
            assert ended.wait(20)
            return None
        x = kit.array(np.ones(3))
        try:
            return comm.send(x, 0, timeout=0.2) if sending else comm.recv(x, 0, timeout=0.2)
        finally:
            ended.set()

    ended = threading.Event()
    silent, error = outcomes_of(2, body)
    assert silent is None and isinstance(error, CollectiveTimeoutError)
    assert "3 float64 on a device" in str(error) and "has not called" in str(error)


def test_an_array_that_was_offered_is_not_read_after_a_fault(make_kit):
    kit = make_kit()
    region = _core.Region(2)
    left = gpucomm.Communicator("local", 0, 2, region=region)
    right = gpucomm.Communicator("local", 1, 2, region=region)
    work = left.send(kit.array(np.ones(3)), 1, async_op=True)
    left.close()
    with pytest.raises(ClosedError, match="closed before this call had finished"):
        work.wait()
    with pytest.raises((ClosedError, PeerLostError), match="closed"):
        right.recv(kit.array(np.ones(3)), 0, timeout=5.0)
    assert kit.enqueued("copy") in (0, None)


def test_after_close_the_device_touches_no_array(make_kit):
    """The receiver's has the message by then, and nothing reads the sender's any more."""
    kit, open_still = make_kit(20_000), []
    xs = [kit.array(pattern(rank, 1000)) for rank in range(2)]

    def body(comm):
        open_still.append(comm)  # its streams would be waited for where it ends
        with stream_of(kit) as stream:
            options = {"stream": stream, "async_op": True}
            work = comm.recv(xs[1], 0, **options) if comm.rank else comm.send(xs[0], 1, **options)
            work.wait()
            comm.barrier()
            comm.close()
            return np.array_equal(kit.host(xs[1]), pattern(0, 1000))

    assert run_ranks(2, body) == [True] * 2


def test_emulated_links_are_refused(make_kit):
    kit = make_kit()

    def body(comm):
        with pytest.raises(UnavailableError, match="no emulated links"):
            comm.send(kit.array(np.ones(2)), 1 - comm.rank)
        return comm.all_reduce(np.ones(1)).tolist()  # nothing has happened to the communicator

    assert run_ranks(2, body, links=_core.Links("switch", alpha=1e-5, beta=1e-9)) == [[2.0]] * 2
