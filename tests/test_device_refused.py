"""Calls on device arrays that are refused or fail, and what is left of them."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from on_device import HostKit, Racing, held, stream_of, wait_for
from ranks import TIMEOUT_S, outcomes_of, run_ranks

import gpucomm
from gpucomm import _core
from gpucomm.errors import (
    ClosedError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    MismatchError,
    UnavailableError,
    UnsupportedTypeError,
)


def test_a_mismatch_has_not_multiplied(make_kit):
    kit = make_kit()

    def body(comm):
        with stream_of(kit) as stream:
            racing = Racing(kit, stream)
            x = racing.array(np.ones(100, np.float32))
            how = {"algorithm": "ring" if comm.rank else "direct", "stream": stream}
            with pytest.raises(MismatchError, match="do not make the same call"):
                comm.all_reduce(x, "premul_sum", scale=3.0, async_op=True, **how).synchronize()
            racing.finish()
            return set(kit.host(x).tolist())

    assert run_ranks(2, body) == [{1.0}] * 2


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("spec", ["int8", "int4", "fp8_e4m3", "zfp:16"])
def test_an_element_that_a_codec_cannot_carry_ends_its_communicator_alone(make_kit, spec, devices):
    """On all ranks; others on the same devices go on."""
    kits = [make_kit(index=i) for i in range(devices)]

    def body(comm, value):
        kit, x = kits[comm.rank % devices], np.ones(3000, np.float32)
        x[1234] = value if comm.rank == 1 else 1
        work = comm.all_reduce(kit.array(x), codec=spec, async_op=True)
        if value == 1:
            return bool(abs(kit.host(work.synchronize()) - 2).max() < 0.02)
        with pytest.raises(InvalidArgumentError, match=r"cannot carry element \d+.*inf"):
            work.synchronize()
        with pytest.raises(ClosedError, match=r"after a fault: .*cannot carry"):
            comm.all_reduce(kit.array(x))
        return kit.device.failure()

    assert run_ranks(2, lambda comm: body(comm, np.inf)) == [""] * 2
    assert run_ranks(2, lambda comm: body(comm, 1)) == [True] * 2


def test_an_element_that_a_codec_cannot_carry_is_told_where_the_ranks_have_moved_on():
    """To another device, while the call is under way."""
    kits, moved = [HostKit(), HostKit()], threading.Barrier(2, timeout=TIMEOUT_S)
    xs = [kits[0].array(np.full(3000, np.inf, np.float32)) for _ in range(2)]

    def body(comm):
        with stream_of(kits[0]) as stream:
            with held(kits[0].device, stream):
                work = comm.all_reduce(xs[comm.rank], codec="int8", async_op=True, stream=stream)
                comm.all_reduce(kits[1].array(np.ones(3)), async_op=True)
                moved.wait()
            with pytest.raises(InvalidArgumentError, match="cannot carry"):
                work.synchronize()

    run_ranks(2, body)


def test_an_element_that_a_codec_cannot_carry_is_told_by_close_at_the_latest(make_kit):
    kit = make_kit()

    def body(comm):
        group, x = comm.subset(range(comm.world)), kit.array(np.full(3000, np.inf, np.float32))
        work = group.all_reduce(x, codec="int8", async_op=True)
        work.wait()  # until both have come
        with pytest.raises(InvalidArgumentError, match="cannot carry"):
            group.close()
        group.close()
        for late in (work.synchronize, lambda: group.all_reduce(x)):
            with pytest.raises(ClosedError):
                late()

    run_ranks(2, body)


def to_next(comm, x):
    return comm.recv(x, 0) if comm.rank else comm.send(x, 1)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda comm, x: comm.all_reduce(x), r"rank 0 of 2 calls .*, but host device withholds it"),
        (to_next, r"rank 1 receives on .* rank 0 sends from host device, and host device withholds it"),
    ],
)
def test_memory_that_other_devices_cannot_use_is_refused(call, text):
    kits = [HostKit(), HostKit()]
    kits[0].device.withhold()

    def body(comm):
        with pytest.raises(UnavailableError, match=text):
            call(comm, kits[comm.rank].array(np.ones(3)))

    run_ranks(2, body)


def test_a_stream_of_another_device_is_refused_before_other_ranks_hear_of_the_call():
    kits = [HostKit(), HostKit()]

    def body(comm):
        x = kits[0].array(np.ones(3))
        with stream_of(kits[1]) as away:
            if comm.rank:
                with pytest.raises(InvalidArgumentError, match="the stream is one of another host device"):
                    comm.all_reduce(x, stream=away)
            return comm.all_reduce(x, async_op=True).synchronize().values.tolist()

    assert run_ranks(2, body) == [[2.0] * 3] * 2


def test_an_array_at_an_odd_address_is_refused():
    """On the host it is taken; a GPU would be lost to the process."""
    memory = np.arange(13, dtype=np.uint8)
    odd = memory[1:].view(np.float32)

    def body(comm):
        x = HostKit().array(odd)
        with pytest.raises(
            UnsupportedTypeError, match="x begins at an address that is no multiple of 4 bytes"
        ):
            comm.all_reduce(x)
        return comm.all_gather(odd).tobytes() == memory[1:].tobytes()

    assert run_ranks(1, body) == [True]


def test_mixed_arguments_and_ranks(make_kit):
    kit, other = make_kit(), HostKit()

    def arguments(comm):
        x = kit.array(np.ones(3, np.float32))
        with pytest.raises(InvalidArgumentError, match="x and out must be on one device"):
            comm.all_reduce(x, out=np.ones(3, np.float32))
        with pytest.raises(InvalidArgumentError, match="x and out must be on one device"):
            comm.all_reduce(x, out=other.array(np.ones(3, np.float32)))
        with pytest.raises(InvalidArgumentError, match="x and error must be on one device"):
            comm.all_reduce(x, codec="int8", error=np.ones(3, np.float32))
        with pytest.raises(InvalidArgumentError, match="x and out must be on one device"):
            comm.all_reduce(x, out=np.ones(3, np.float32), max_rel_err=0.1)
        return comm.all_reduce(np.ones(1)).tolist()  # nothing has happened to the communicator

    assert run_ranks(2, arguments) == [[2.0]] * 2

    def ranks(comm):
        comm.all_reduce(kit.array(np.ones(3)) if comm.rank else np.ones(3), algorithm="direct", segments=1)

    for error in outcomes_of(2, ranks, timeout=10):
        assert isinstance(error, MismatchError) and "on a device" in str(error)


def test_the_stream_of_a_thread_is_refused(make_kit):
    """Handle 2, which means another one in each thread, and it is not the caller's that enqueues."""
    kit = make_kit()

    def body(comm):
        x, y = (kit.array(np.ones(3, np.float32)) for _ in range(2))
        for call in (
            lambda: comm.all_reduce(x, stream=2),
            lambda: comm.all_reduce([x, y], "premul_sum", scale=0.5, stream=2),
            lambda: comm.all_reduce(x, max_rel_err=0.1, stream=2),
            lambda: comm.sendrecv(x, comm.rank, y, comm.rank, stream=2),
            lambda: comm.send(x, 1 - comm.rank, stream=2),
        ):
            with pytest.raises(InvalidArgumentError, match="stream 2 is CUDA's default stream"):
                call()
        return kit.host(comm.all_reduce(x, async_op=True).synchronize()).tolist()

    assert run_ranks(2, body) == [[2.0] * 3] * 2


def test_a_mismatch_names_both_calls_and_touches_nothing(make_kit):
    kit = make_kit()

    def body(comm):
        x = kit.array(np.ones(3 + comm.rank))
        comm.all_reduce(x)

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError) and "sum of 3" in str(error) and "sum of 4" in str(error)
    assert kit.enqueued("reduce") in (0, None)


def test_blocks_of_other_sizes_than_their_receiver_expects(make_kit):
    kit = make_kit()

    def body(comm):
        counts = [5 + comm.rank] * 2
        x, out = kit.array(np.ones(sum(counts))), kit.array(np.ones(sum(counts)))
        comm.all_to_all(x, counts=counts, out_counts=counts, out=out)

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError) and "counts and out_counts do not fit" in str(error)
        assert str(error).endswith("which sends 6") or str(error).endswith("which sends 5")


def test_a_mismatch_before_a_call_names_the_call_to_come(make_kit):
    """The ranks agree on their largest magnitude first."""
    kit = make_kit()

    def body(comm):
        x = kit.array(np.ones(300, np.float32))
        comm.all_reduce(x, codec="fixed:1e-2", algorithm="coded_ring") if comm.rank else comm.all_reduce(x)

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError)
        assert "the preparation of all_reduce #1 (sum of 300 float32, on a device, codec fixed" in str(error)


def test_a_rank_that_does_not_come(make_kit):
    kit = make_kit()

    def body(comm):
        if comm.rank == 0:
            assert ended.wait(20)
            return None
        try:
            comm.all_reduce(kit.array(np.ones(3)), timeout=0.2)
        finally:
            ended.set()

    ended = threading.Event()
    silent, error = outcomes_of(2, body)
    assert silent is None
    assert isinstance(error, CollectiveTimeoutError) and "missing: 0" in str(error)


def test_nothing_is_enqueued_for_a_rank_that_has_gone(make_kit):
    kit = make_kit()
    region = _core.Region(2)
    left = gpucomm.Communicator("local", 0, 2, region=region)
    right = gpucomm.Communicator("local", 1, 2, region=region)
    work = left.all_reduce(kit.array(np.ones(3)), async_op=True)
    left.close()
    with pytest.raises(ClosedError, match="closed before this call had finished"):
        work.wait()
    with pytest.raises(gpucomm.errors.Error, match="closed"):
        right.all_reduce(kit.array(np.ones(3)), timeout=5.0)
    assert kit.enqueued("reduce") in (0, None)


def test_after_close_the_device_touches_no_array(make_kit):
    """Who closes may give the arrays back, whose memory is used for something else then."""
    kit, open_still = make_kit(20_000), []

    def body(comm):
        open_still.append(comm)  # its streams would be waited for where it ends
        x = kit.array(np.full(1000, comm.rank + 1.0))
        comm.all_reduce(x, async_op=True, algorithm="ring", segments=1)
        comm.barrier()  # behind the call, which is enqueued then
        comm.close()
        return set(kit.host(x).tolist())

    assert run_ranks(2, body) == [{3.0}] * 2


def test_what_is_late_keeps_what_it_uses():
    """Neither close() nor the end of the ranks' group waits for it to the end."""
    kit = HostKit()
    xs = [kit.array(np.full(1000, rank + 1.0, np.float32)) for rank in range(2)]
    stream, event = kit.device.make_stream(), kit.device.make_event()

    def body(comm):
        options = {"codec": "bf16", "algorithm": "coded_ring", "segments": 1}
        comm.all_reduce(xs[comm.rank], stream=stream, async_op=True, **options).wait()

    with held(kit.device, stream):
        run_ranks(2, body)
        gc.collect()
        kit.device.record(event, stream)
        assert not kit.device.done(event)
    wait_for(kit.device, event)
    assert [set(kit.host(x).tolist()) for x in xs] == [{3.0}] * 2
    kit.device.end_event(event), kit.device.end_stream(stream)


def test_emulated_links_are_refused(make_kit):
    region = _core.Region(1)
    comm = gpucomm.Communicator("local", 0, 1, region=region, links=None)
    kit = make_kit()
    x = kit.array(np.ones(2))
    comm.all_reduce(x, async_op=True).synchronize()
    comm.close()

    def body(comm):
        comm.all_reduce(kit.array(np.ones(2)))

    for error in outcomes_of(2, body, links=_core.Links("switch", alpha=1e-5, beta=1e-9)):
        assert isinstance(error, UnavailableError) and "no emulated links" in str(error)


def test_an_array_of_an_unknown_device():
    kit = HostKit()
    array = kit.array(np.ones(2))
    del kit
    with pytest.raises(UnsupportedTypeError, match="DLPack type 12"):
        run_ranks(1, lambda comm: comm.all_reduce(array))
