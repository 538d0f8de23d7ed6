"""Collectives on arrays of devices that pass through page-locked memory of the host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import device_ranks as ranks_do
import jobs
import pytest
import rank_processes
import staged_ranks
from conftest import pairs
from rank_processes import kill_one, told_at_the_end
from ranks import PROMPT_S
from test_device_processes import (  # noqa: F401
    test_after_close_the_device_touches_no_array,
    test_blocks_of_sizes_that_only_two_ranks_know,
    test_emulated_links_are_refused,
    test_every_algorithm,
    test_lists_of_arrays,
    test_many_calls_that_nobody_waits_for,
    test_messages,
    test_messages_of_both_kinds_that_cross,
    test_no_graph_takes_them,
    test_premultiplied_sums,
    test_streams_that_wait_for_calls_in_another_order,
    test_what_a_stream_gets_after_an_asynchronous_call_is_not_waited_for,
    test_work_waits_by_the_stream_and_synchronizes_by_the_host,
)

import gpucomm

pytestmark = pytest.mark.processes

PATH = str(Path(__file__).parent)
TOLD = {"PYTHONPATH": PATH, "GPUCOMM_DEVICE_TRANSPORT": "staged"}
UNSHARED = {"PYTHONPATH": PATH, "UNSHARED_DEVICE": "1"}
UNOPENED = {"PYTHONPATH": PATH, "UNOPENED_DEVICE": "1"}


@pytest.fixture(scope="module")
def told():
    """What the ranks' environment says."""
    return TOLD


@pytest.fixture(scope="module", params=[2, 3])
def world(request, told):
    with gpucomm.local(request.param, env=told) as world:
        yield world


@pytest.mark.parametrize("codec", ["int8", "fp8_e4m3", "bf16", "mpc", "zfp:8", "fixed:1e-2"])
@pytest.mark.parametrize(("collective", "algorithm"), pairs(coded=True))
def test_the_same_bits_as_in_host_memory(world, collective, algorithm, codec):
    how = {"algorithm": algorithm, "codec": codec, "segments": 2}
    same = world.run(ranks_do.as_on_the_host, collective, "float32", 60_000, 50, **how)
    assert same == [True] * world.ranks


# A slot holds 1 MiB, and there are two.
@pytest.mark.parametrize("algorithm", ["ring", "linear_pipeline", "direct"])
@pytest.mark.parametrize("op", ["mean", "max"])
def test_messages_larger_than_the_slots(world, algorithm, op):
    how = {"algorithm": algorithm, "op": op, "segments": 1}
    assert all(world.run(ranks_do.as_on_the_host, "all_reduce", "float32", 4_000_003, 50, **how))


@pytest.mark.parametrize("codec", ["mpc", "int8"])
def test_coded_messages_larger_than_the_slots(world, codec):
    how = {"algorithm": "coded_ring", "codec": codec, "segments": 1}
    count = 8_000_003 if codec == "int8" else 4_000_003
    assert all(world.run(ranks_do.as_on_the_host, "all_reduce", "float32", count, 50, **how))


@pytest.mark.parametrize("codec", ["int4", "fixed:1e-2"])
def test_what_a_codec_loses(world, codec):
    assert world.run(ranks_do.errors_as_on_the_host, codec) == [True] * world.ranks


def test_messages_are_counted_once(world):
    assert world.run(staged_ranks.sent) == [(4_000_004, 4_000_004)] * world.ranks


def test_a_slot_is_kept_until_the_device_has_read_it(world):
    assert world.run(staged_ranks.slow_copies) == [True] * world.ranks


def test_parts_of_uneven_sizes(world):
    assert world.run(staged_ranks.uneven_gathers) == [True] * world.ranks


def test_the_host_waits_for_a_busy_stream_but_not_with_async_op(world):
    went_on, waited = zip(*world.run(staged_ranks.slow_stream), strict=True)
    assert all(went_on) and waited[0]


def test_bytes_are_counted_once_and_coded_ones_as_they_are(world):
    p = world.ranks
    each = 2 * (p - 1) * 8_000_000
    for sent, received in world.run(staged_ranks.moved, None):
        assert (sent, received) == (each, each)
    for sent, received in world.run(staged_ranks.moved, "mpc"):
        assert 0 < sent < each / 10 and 0 < received < each / 10  # of zeros little is left


def test_measured_links_choose_the_algorithm_but_not_whether_to_code(world):
    """Ranks in a chain pass a broadcast on, for which rank 0 sends it once."""
    broadcast, coded = world.run(staged_ranks.chosen_by_links)[0]
    assert broadcast == 4_000_000
    assert 500_000 < coded < 2_200_000


def test_memory_does_not_grow_with_the_message(world):
    for first, *later in world.run(staged_ranks.memory):
        assert first < 40_000 and max(later) < 4_000


@pytest.mark.timing
def test_who_waits_for_a_device_looks_often():
    with gpucomm.local(2, env=TOLD) as world:
        assert max(world.run(staged_ranks.pace)) < 0.03  # 8 ms; 70 where each look comes after 20 ms


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (ranks_do.wrong_count, "MismatchError", "float64, on a device through host memory"),
        (ranks_do.host_and_device, "MismatchError", "on a device through host memory"),
        (ranks_do.wrong_blocks, "MismatchError", "counts and out_counts do not fit"),
        (ranks_do.another_collective, "MismatchError", "(sum of 60 float64"),
        (ranks_do.absent, "CollectiveTimeoutError", "missing: 0"),
        (ranks_do.closed, "PeerLostError", "rank 0 has closed its communicator"),
        (ranks_do.another_device, "UnavailableError", "all calls of a communicator are on one device"),
        (ranks_do.wrong_end, "MismatchError", "sends 3 float64 on a device"),
        (ranks_do.no_sender, "CollectiveTimeoutError", "has not called send for it"),
        (ranks_do.closed_sender, "PeerLostError", "rank 0 has closed its communicator"),
        (ranks_do.another_device_for_messages, "UnavailableError", "all messages of a communicator are on"),
        (staged_ranks.stuck, "CollectiveTimeoutError", "timed out after 0.5 s"),
        (staged_ranks.aborted, "ClosedError", "rank 1 of"),
    ],
)
def test_faults(world, fault, kind, text):
    ranks_do.check_fault(world, fault, kind, text)


@pytest.mark.parametrize("message", [False, True])
def test_a_fault_of_a_later_call_leaves_what_was_sent_before_to_a_device_that_is_late(world, message):
    assert all(all(found) for found in world.run(staged_ranks.before_a_fault, message))


def test_an_element_that_the_codec_cannot_carry_is_told_by_the_work(world):
    ranks_do.check_unfit(world)


THREADS = """
import gpucomm, staged_ranks
with gpucomm.local(3, threads=True) as world:
    assert world.run(staged_ranks.ways) == ["on a device through host memory"] * 3
    assert all(world.run(staged_ranks.uneven_gathers))
"""


def test_threads_too():
    command = [sys.executable, "-c", THREADS]
    done = subprocess.run(command, env={**os.environ, **TOLD}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_processes_whose_devices_share_nothing_stage_by_themselves():
    how = {"op": "premul_sum", "scale": 0.3, "algorithm": "direct", "segments": 1}  # asks early
    with gpucomm.local(3, env=UNSHARED) as world:
        assert all(world.run(ranks_do.as_on_the_host, "reduce", "float32", 60_000, 50, **how))
        assert world.run(ranks_do.every_case, "all_reduce", "direct", 50) == [[]] * 3
        assert world.run(staged_ranks.ways) == ["on a device through host memory"] * 3


def test_those_whose_devices_share_memory_use_it():
    with gpucomm.local(2, env={"PYTHONPATH": PATH}) as world:
        assert world.run(staged_ranks.ways) == ["on a device"] * 2


def test_arenas_that_are_asked_for_are_refused_where_devices_share_nothing():
    with gpucomm.local(2, env={**UNSHARED, "GPUCOMM_DEVICE_TRANSPORT": "arena"}) as world:
        for name, text, _ in world.run(ranks_do.in_a_group, ranks_do.one_call):
            assert name == "UnavailableError" and "host device shares no memory" in text


SCRIPT = """
import numpy as np
import gpucomm, staged_ranks
from on_device import HostKit
from rank_processes import keep_calling
comm = gpucomm.init(timeout=20)
kit = HostKit(100)
x = kit.array(np.ones({count}, np.float32))
def issue():
    return comm.all_reduce(x, op="max", algorithm="{algorithm}", async_op=True), x
keep_calling(comm, issue, {wait}, {most})
print(staged_ranks.ways(comm), flush=True)
"""


@pytest.mark.parametrize(("algorithm", "count", "wait"), [("ring", 1 << 20, False), ("direct", 3, True)])
def test_a_killed_rank_is_named(ranks, algorithm, count, wait):
    script = SCRIPT.format(algorithm=algorithm, count=count, wait=wait, most=-1)
    ranks += rank_processes.start(script, [TOLD] * 3)
    kill_one(ranks)


def test_messages_that_would_need_shared_memory_say_what_helps():
    with gpucomm.local(2, env=UNSHARED) as world:
        for name, text, _ in world.run(ranks_do.in_a_group, staged_ranks.one_message):
            assert name == "UnavailableError" and "GPUCOMM_DEVICE_TRANSPORT=staged takes them" in text


@pytest.mark.parametrize("apart", [UNSHARED, UNOPENED])
def test_one_device_that_shares_nothing_makes_all_stage(ranks, apart):
    script = SCRIPT.format(algorithm="ring", count=3, wait=True, most=6)
    ranks += rank_processes.start(script, [{"PYTHONPATH": PATH}, apart])
    for process in ranks:
        out, err = process.communicate(timeout=20)
        assert out.splitlines() == ["started", "on a device through host memory"], err


def test_ranks_that_go_different_ways_are_told(ranks):
    script = SCRIPT.format(algorithm="ring", count=3, wait=True, most=-1)
    ranks += rank_processes.start(script, [TOLD, {**TOLD, "GPUCOMM_DEVICE_TRANSPORT": "auto"}])
    for process in ranks:
        kind, text, closed = told_at_the_end(process)
        assert kind == "MismatchError" and closed
        assert "on a device through host memory" in text and "on how arrays on a device travel" in text


LAST_WORDS = """
import os
import numpy as np
import gpucomm
from on_device import HostKit
comm = gpucomm.init(timeout=20)
kit = HostKit(20_000)
x = kit.array(np.full(1_000_000, comm.rank, np.float32))
work = comm.broadcast(x, 1, async_op=True)
if comm.rank:
    work.wait()
else:
    print(bool((work.synchronize().values == 1).all()), flush=True)
comm.close()
os._exit(0)
"""


def test_who_has_sent_may_end(ranks):
    ranks += rank_processes.start(LAST_WORDS, [TOLD] * 2)
    out, err = ranks[0].communicate(timeout=20)
    assert out == "True\n", err


NO_NCCL = {"PYTHONPATH": PATH, "GPUCOMM_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}


@pytest.mark.parametrize(("launcher", "nodes", "count"), [("forks", "0,0,1", 3), ("mpich", "2x2", 4)])
def test_nodes_without_nccl_stage_by_themselves(launcher, nodes, count, tmp_path):
    ended = jobs.run(jobs.find(launcher), nodes, count, tmp_path, "staged_on_devices", **NO_NCCL)
    assert [report.get("staged_on_devices") for report in ended.reports] == [[]] * count, ended.output


def test_faults_between_nodes(tmp_path):
    ended = jobs.run(jobs.find("forks"), "3x1", 3, tmp_path, "wrong_on_devices", **NO_NCCL)
    for report in ended.reports:
        kind, text, seconds = report["wrong_on_devices"]
        assert kind == "MismatchError" and "on a device through host memory" in text
        assert seconds < PROMPT_S
