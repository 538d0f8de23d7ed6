"""Collectives on arrays of devices over NCCL, by a communicator: a library of the tests' own stands in."""

from __future__ import annotations

import signal

import device_ranks
import jobs
import nccl_library
import nccl_ranks
import pytest
import rank_processes
from conftest import pairs
from rank_processes import kill_one, told_at_the_end
from test_device_processes import (  # noqa: F401
    test_blocks_of_sizes_that_only_two_ranks_know,
    test_emulated_links_are_refused,
    test_lists_of_arrays,
    test_many_calls_that_nobody_waits_for,
    test_premultiplied_sums,
    test_streams_that_wait_for_calls_in_another_order,
    test_what_a_stream_gets_after_an_asynchronous_call_is_not_waited_for,
    test_work_waits_by_the_stream_and_synchronizes_by_the_host,
)

import gpucomm

pytestmark = pytest.mark.processes

NATIVE = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the ranks' environment says."""
    return nccl_library.environment(tmp_path_factory)


@pytest.fixture(scope="module", params=[3])
def world(request, told):
    with gpucomm.local(request.param, env=told) as world:
        world.run(nccl_ranks.connect)
        yield world


@pytest.mark.parametrize(("collective", "algorithm"), [*pairs(), *((c, "native") for c in NATIVE)])
def test_every_algorithm(world, collective, algorithm):
    assert world.run(device_ranks.every_case, collective, algorithm, 50) == [[]] * world.ranks


@pytest.mark.parametrize("codec", ["int8", "mpc"])
@pytest.mark.parametrize(("collective", "algorithm"), pairs(coded=True))
def test_the_same_bits_as_in_host_memory(world, collective, algorithm, codec):
    how = {"algorithm": algorithm, "codec": codec, "segments": 2}
    same = world.run(device_ranks.as_on_the_host, collective, "float32", 60_000, 50, **how)
    assert same == [True] * world.ranks


def test_the_largest_magnitude_of_all_ranks(world):
    how = {"algorithm": "coded_ring", "codec": "fixed:1e-2", "segments": 2}
    assert all(world.run(device_ranks.as_on_the_host, "all_reduce", "float32", 60_000, 50, **how))


def test_a_long_broadcast_leaves_its_root_once(world):
    """By the model of typical links; a short one takes few messages."""
    short, long = world.run(nccl_ranks.broadcasts)[0]
    others = world.ranks - 1
    assert 0 <= short - 1000 * others < 1000 and 0 <= long - 16_000_000 < 1000  # what the host tells


def test_premultiplied_sums_by_nccl_itself(world):
    """Of whole numbers, which its own order of sums does not round."""
    expected = sum(2 * (rank + 1) for rank in range(world.ranks))
    assert world.run(nccl_ranks.premultiplied) == [[expected] * 5] * world.ranks


def test_what_a_codec_loses(world):
    assert world.run(device_ranks.errors_as_on_the_host, "int8") == [True] * world.ranks


@pytest.mark.parametrize(("most", "coded"), [(0.5, True), (0.02, True), (1e-9, False)])
def test_bounded_errors(world, most, coded):
    first, *others = world.run(device_ranks.bounded, most, 60_000, "mean", 50)
    assert others == [first] * (world.ranks - 1)
    assert first[3] and (first[0] is not None) == coded


def test_the_call_is_nccls(world):
    for calls in world.run(nccl_ranks.calls, "all_reduce", "native"):
        assert calls == ["ncclAllReduce"]
    for calls in world.run(nccl_ranks.calls, "all_reduce", "direct"):
        rounds = calls.count("ncclGroupEnd")
        assert rounds and calls.count("ncclSend") == calls.count("ncclRecv") == 2 * (world.ranks - 1)


def test_the_host_does_not_wait_for_the_device(told):
    with gpucomm.local(2, env=told) as world:
        world.run(nccl_ranks.connect)
        assert world.run(device_ranks.early, 60_000) == [(True, [8.0] * 10)] * 2


def test_work_that_is_late_is_waited_for_by_close(world):
    total, ranks = sum(range(1, world.ranks + 1)), world.run(nccl_ranks.closed_while_busy)
    assert [summed for summed, _ in ranks] == [[total] * 5] * world.ranks
    assert [moved for _, moved in ranks[:2]] == [[7.0] * 5] * 2


def test_groups(world):
    assert world.run(nccl_ranks.in_groups) == [[0.0] * 5] * world.ranks


def test_a_world_of_one_needs_no_nccl(told):
    with gpucomm.local(1, env={**told, "GPUCOMM_NCCL_LIBRARY": "/nowhere"}) as world:
        assert world.run(nccl_ranks.without_a_library)[0][0] == "nothing"


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (device_ranks.wrong_count, "MismatchError", " float64, on a device over NCCL"),
        (device_ranks.host_and_device, "MismatchError", "on a device over NCCL"),
        (device_ranks.wrong_blocks, "MismatchError", "counts and out_counts do not fit"),
        (device_ranks.another_collective, "MismatchError", "all_reduce #4 (sum of 60 float64"),
        (nccl_ranks.native_and_ring, "MismatchError", "algorithm native, 1 segment"),
        (device_ranks.absent, "CollectiveTimeoutError", "missing: 0"),
        (device_ranks.closed, "PeerLostError", "rank 0 has closed its communicator"),
        (device_ranks.another_device, "UnavailableError", "over NCCL all calls of a communicator are on one"),
        (nccl_ranks.hanging, "CollectiveTimeoutError", "timed out after 0.5 s"),
        (nccl_ranks.broken, "PeerLostError", "remote process exited or there was a network error"),
        (nccl_ranks.found_at_the_next_call, "PeerLostError", "what it had enqueued failed: remote"),
        (nccl_ranks.late, "CollectiveTimeoutError", "waited 0.3 s for what NCCL has enqueued"),
        (nccl_ranks.aborted, "ClosedError", "called abort()"),
    ],
)
def test_faults(world, fault, kind, text):
    device_ranks.check_fault(world, fault, kind, text)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (nccl_ranks.native_on_the_host, "InvalidArgumentError", "these are in host memory"),
        (nccl_ranks.native_all_to_all, "UnavailableError", "NCCL 2.18 has no all_to_all"),
        (nccl_ranks.native_codec, "InvalidArgumentError", "'native' takes no codec"),
        (nccl_ranks.native_int16, "UnsupportedTypeError", "NCCL has no sum of 16-bit integers"),
        (nccl_ranks.native_counts, "InvalidArgumentError", "'native' takes no counts"),
    ],
)
def test_what_nccl_has_not_is_refused_before_the_call(world, call, kind, text):
    for name, message, _ in world.run(device_ranks.in_a_group, call):
        assert name == kind and text in message
    assert world.run(device_ranks.in_a_group, device_ranks.one_call)[0][0] == "nothing"


def test_native_is_refused_where_ranks_share_memory(told):
    with gpucomm.local(2, env={**told, "GPUCOMM_DEVICE_TRANSPORT": "auto"}) as world:
        for name, text, _ in world.run(device_ranks.in_a_group, nccl_ranks.native_int16):
            assert name == "InvalidArgumentError" and "GPUCOMM_DEVICE_TRANSPORT=nccl asks for NCCL" in text


def test_a_missing_library_is_told_on_every_rank(told):
    with gpucomm.local(2, env={**told, "GPUCOMM_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}) as world:
        for name, text, _ in world.run(nccl_ranks.without_a_library):
            assert name == "UnavailableError"
            assert "calls on device arrays go over NCCL: NCCL cannot be loaded: /nowhere/libnccl.so.2" in text


START = """
import sys
import numpy as np
import gpucomm, nccl_library
from on_device import HostKit
from rank_processes import keep_calling, leave
nccl_library.own()
comm = gpucomm.init(timeout=20)
"""

ENDLESS = (
    START
    + """
kit = HostKit(100)
x = kit.array(np.ones({count}, np.float32))
keep_calling(comm, lambda: (comm.all_reduce(x, op="max", algorithm="{algorithm}", async_op=True), x), {wait})
"""
)


@pytest.mark.parametrize(("algorithm", "count", "wait"), [("ring", 1 << 20, False), ("native", 3, True)])
def test_a_killed_rank_is_named(ranks, told, algorithm, count, wait):
    ranks += rank_processes.start(ENDLESS.format(algorithm=algorithm, count=count, wait=wait), [told] * 3)
    kill_one(ranks)


ENQUEUED = (
    START
    + """
kit = HostKit({slow} if comm.rank == 1 else 0)
for _ in range(8):
    work = comm.all_reduce(kit.array(np.ones(3)), algorithm="native", async_op=True)
    work.wait()
print("enqueued", flush=True)
try:
    {waits}
except gpucomm.errors.Error as error:
    leave(error, comm)
"""
)


@pytest.mark.parametrize("waits", ["work.synchronize(timeout=60)", "comm.close()"])
def test_a_rank_that_is_killed_after_all_is_enqueued(ranks, told, waits):
    ranks += rank_processes.start(ENQUEUED.format(slow=nccl_ranks.SLOW_US, waits=waits), [told] * 3)
    for process in ranks:
        assert process.stdout.readline() == "enqueued\n"
    ranks[1].send_signal(signal.SIGKILL)
    for process in (ranks[0], ranks[2]):
        kind, text, closed = told_at_the_end(process)
        assert kind == "PeerLostError" and "rank 1 is gone" in text and closed
        assert "waits for what NCCL has enqueued" in text


LAST_WORDS = (
    START
    + """
import os
kit = HostKit(20_000)
x = kit.array(np.full(100_000, comm.rank, np.float32))
work = comm.broadcast(x, 1, algorithm="{algorithm}", async_op=True)
if comm.rank:
    work.wait()
else:
    print(work.synchronize().values.tolist() == [1] * 100_000, flush=True)
comm.close()
os._exit(0)
"""
)


@pytest.mark.parametrize("algorithm", ["binomial_tree", "native"])
def test_who_has_sent_stays_until_it_is_read(ranks, told, algorithm):
    ranks += rank_processes.start(LAST_WORDS.format(algorithm=algorithm), [told] * 2)
    out, err = ranks[0].communicate(timeout=20)
    assert out == "True\n", err


def test_ranks_that_go_different_ways_are_told(ranks, told):
    script = ENDLESS.format(algorithm="ring", count=3, wait=True)
    ranks += rank_processes.start(script, [told, {**told, "GPUCOMM_DEVICE_TRANSPORT": "arena"}])
    for process in ranks:
        kind, text, closed = told_at_the_end(process)
        assert kind == "MismatchError" and "on a device over NCCL, algorithm" in text and closed


def test_ranks_that_share_no_memory_need_not_ask(told, tmp_path):
    auto = {name: value for name, value in told.items() if name != "GPUCOMM_DEVICE_TRANSPORT"}
    ended = jobs.run(jobs.find("forks"), "0,0,1", 3, tmp_path, "on_devices", **auto)
    assert [report.get("on_devices") for report in ended.reports] == [[]] * 3, ended.output


def test_arenas_between_nodes_are_refused(told, tmp_path):
    arena = {**told, "GPUCOMM_DEVICE_TRANSPORT": "arena"}
    ended = jobs.run(jobs.find("forks"), "3x1", 3, tmp_path, "refused_on_devices", **arena)
    for report in ended.reports:
        kind, text, _ = report["refused_on_devices"]
        assert kind == "UnavailableError"
        assert "GPUCOMM_DEVICE_TRANSPORT=arena needs ranks that share memory" in text
