"""Collectives on arrays of devices between processes: chunks through memory that the devices share."""

from __future__ import annotations

from pathlib import Path

import device_ranks as ranks_do
import pytest
import rank_processes
from conftest import pairs
from rank_processes import kill_one, told_at_the_end

import gpucomm

pytestmark = pytest.mark.processes

PATH = str(Path(__file__).parent)


@pytest.fixture(scope="module")
def told():
    """What the ranks' environment says: the smallest arena of three; messages take many turns."""
    return {"PYTHONPATH": PATH, "GPUCOMM_ARENA_MIB": "1"}


@pytest.fixture(scope="module", params=[2, 3])
def world(request, told):
    with gpucomm.local(request.param, env=told) as world:
        yield world


@pytest.mark.parametrize(("collective", "algorithm"), pairs())
def test_every_algorithm(world, collective, algorithm):
    assert world.run(ranks_do.every_case, collective, algorithm, 50) == [[]] * world.ranks


@pytest.mark.parametrize("codec", ["int8", "bf16", "mpc", "zfp:8", "fixed:1e-2"])
@pytest.mark.parametrize(("collective", "algorithm"), pairs(coded=True))
def test_the_same_bits_as_in_host_memory(world, collective, algorithm, codec):
    same = world.run(
        ranks_do.as_on_the_host,
        *(collective, "float32", 60_000, 50),
        algorithm=algorithm,
        codec=codec,
        segments=12,
    )
    assert same == [True] * world.ranks


def test_coded_pieces_are_coded_in_the_messages(world):
    """Into the arena and out of it: copied is what is forwarded, x, and operands to where sums go."""
    kinds, hops = ["copy", "encode", "decode", "recode"], world.ranks - 1
    folds = dict(zip(kinds, [1 + 2, 2, 2, 2 * (hops - 1)], strict=True))
    gathers = dict(zip(kinds, [1 + 2 * (hops - 1), 2, 2 * world.ranks, 0], strict=True))
    assert world.run(ranks_do.enqueued, "reduce_scatter", "int8", kinds) == [folds] * world.ranks
    assert world.run(ranks_do.enqueued, "all_gather", "int8", kinds) == [gathers] * world.ranks


@pytest.mark.parametrize("codec", ["int8", "mpc"])
@pytest.mark.parametrize("counts", [[600_000, 9_000, 700], [9_000, 600_000, 800_000]])
def test_pieces_that_fit_in_the_arena_among_others_that_do_not(world, codec, counts):
    options = {"algorithm": "coded_ring", "codec": codec, "segments": 2}
    assert all(world.run(ranks_do.gathered_unevenly, counts, **options))


@pytest.mark.parametrize("algorithm", ["ring", "linear_pipeline", "direct"])
@pytest.mark.parametrize("op", ["mean", "max"])
def test_messages_larger_than_the_arena(world, algorithm, op):
    options = {"algorithm": algorithm, "op": op, "segments": 2}
    count = 2_000_003
    assert all(world.run(ranks_do.as_on_the_host, "all_reduce", "float16", count, 50, **options))


@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "reduce_scatter"])
def test_premultiplied_sums(world, collective):
    options = {"op": "premul_sum", "scale": 0.3, "algorithm": "direct", "segments": 1}
    assert all(world.run(ranks_do.as_on_the_host, collective, "float32", 60_000, 50, **options))


@pytest.mark.parametrize("count", [5000, 1_000_003])
@pytest.mark.parametrize(("most", "coded"), [(0.5, True), (0.02, True), (1e-9, False)])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_bounded_errors(world, most, coded, op, count):
    """A message within the arena and one beyond it."""
    first, *others = world.run(ranks_do.bounded, most, count, op, 50)
    assert others == [first] * (world.ranks - 1)
    assert first[3] and (first[0] is not None) == coded


def test_lists_of_arrays(world):
    assert world.run(ranks_do.lists, 50) == [[True] * 12] * world.ranks


def test_no_graph_takes_them(world):
    """The host waits for other processes."""
    assert all(
        "only calls of ranks that are threads" in said for said in world.run(ranks_do.refused_in_a_capture)
    )


def test_messages(world):
    assert world.run(ranks_do.messages, 50) == [[True] * 10] * world.ranks


def test_messages_of_both_kinds_that_cross(world):
    assert world.run(ranks_do.crossed)[:2] == [[2.0] * 5, [1.0] * 5]


def test_many_calls_that_nobody_waits_for(world):
    assert world.run(ranks_do.many, 50) == [[]] * world.ranks


def test_the_host_does_not_wait_for_the_device(told):
    with gpucomm.local(2, env=told) as world:
        assert world.run(ranks_do.early, 60_000) == [(True, [8.0] * 10)] * 2


def test_work_waits_by_the_stream_and_synchronizes_by_the_host(world):
    ones = [float(world.ranks)] * 5
    assert world.run(ranks_do.works) == [(ones, [3 * x for x in ones], True)] * world.ranks


def test_what_a_stream_gets_after_an_asynchronous_call_is_not_waited_for(world):
    assert world.run(ranks_do.later_work) == [True] * world.ranks


@pytest.mark.parametrize("messages", [False, True])
def test_after_close_the_device_touches_no_array(world, messages):
    assert world.run(ranks_do.after_close, messages) == [True] * world.ranks


def test_streams_that_wait_for_calls_in_another_order(world):
    assert world.run(ranks_do.waits_in_order, 300) == [True] * world.ranks


@pytest.mark.parametrize("messages", [False, True])
def test_work_that_does_not_end_in_time_closes_on_every_rank(world, messages):
    for said, closed in world.run(ranks_do.late_work, messages):
        assert "waited 0.5 s for what other ranks have enqueued on host device" in said and closed, said


def test_blocks_of_sizes_that_only_two_ranks_know(world):
    assert world.run(ranks_do.uneven) == [True] * world.ranks


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (ranks_do.wrong_count, "MismatchError", "sum of 3 float64"),
        (ranks_do.host_and_device, "MismatchError", "on a device"),
        (ranks_do.wrong_blocks, "MismatchError", "counts and out_counts do not fit"),
        (ranks_do.absent, "CollectiveTimeoutError", "missing: 0"),
        (ranks_do.closed, "PeerLostError", "rank 0 has closed its communicator"),
        (ranks_do.wrong_end, "MismatchError", "sends 3 float64 on a device"),
        (ranks_do.no_sender, "CollectiveTimeoutError", "has not called send for it"),
        (ranks_do.closed_sender, "PeerLostError", "rank 0 has closed its communicator"),
    ],
)
def test_faults(world, fault, kind, text):
    ranks_do.check_fault(world, fault, kind, text)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (ranks_do.another_device, "all calls of a communicator are on one device"),
        (ranks_do.another_device_for_messages, "all messages of a communicator are on"),
    ],
)
def test_two_devices_are_refused(world, fault, text):
    ranks_do.check_fault(world, fault, "UnavailableError", text)


def test_an_element_that_the_codec_cannot_carry_is_told_by_the_work(world):
    ranks_do.check_unfit(world)


def test_groups_that_end_leave_no_memory(world):
    for mapped, right in world.run(ranks_do.closings):
        assert all(right) and min(mapped[10:]) < 2 * max(mapped[:5]), mapped  # any may linger for a while


FAILING = """
import gc, os, sys
sys.path.insert(0, {path!r})
import numpy as np
import gpucomm
from on_device import HostKit
comm, kit = gpucomm.init(timeout=20), HostKit()
x = kit.array(np.ones(1000))
mapped = []
for _ in range(8):
    group = comm.split(0)
    try:
        group.all_reduce(x)
    except gpucomm.errors.UnavailableError:
        pass
    group.close()
    del group
    gc.collect()
    comm.barrier()
    mapped.append(open("/proc/self/maps").read().count("memfd:gpucomm-device"))
print(min(mapped[5:]) <= max(mapped[:3]), mapped, flush=True)  # any may linger for a while
comm.close()
"""


def test_a_rank_without_an_arena_keeps_none_of_the_others(ranks):
    """They give theirs back, though it never opened any."""
    ranks += rank_processes.start(FAILING.format(path=PATH), [{}, {"GPUCOMM_ARENA_MIB": "0"}])
    for process in ranks:
        out, err = process.communicate(timeout=60)
        assert out.startswith("True"), (out, err)


STATS = """
import sys, threading, time
sys.path.insert(0, {path!r})
import numpy as np
import gpucomm
from on_device import HostKit
comm, kit = gpucomm.init(timeout=20), HostKit()
x = kit.array(np.ones(1000))
comm.send(x, 1) if comm.rank == 0 else comm.recv(x, 0)
comm.barrier()
if comm.rank == 0:
    comm.send(x, 1)  # which nobody receives: close() waits for a while
    closing = threading.Thread(target=comm.close)
    closing.start()
    told = 0
    while closing.is_alive():  # two seconds
        comm.stats()
        told += closing.is_alive()
        time.sleep(0.01)
    print(told > 1, flush=True)
else:
    print(True, flush=True)
    sys.stdin.read()
"""


def test_who_closes_holds_up_no_other_thread(ranks):
    ranks += rank_processes.start(STATS.format(path=PATH), [{}] * 2)
    assert [process.stdout.readline() for process in ranks] == ["True\n"] * 2


def test_an_arena_that_is_too_small_is_refused():
    with gpucomm.local(2, env={"PYTHONPATH": PATH, "GPUCOMM_ARENA_MIB": "0"}) as world:
        for name, text, _ in world.run(ranks_do.in_a_group, ranks_do.one_call):
            assert name == "UnavailableError" and "an arena of 0 MiB on host device" in text


def test_emulated_links_are_refused(told):
    with gpucomm.local(2, env=told, links="switch:100Mbit") as world:
        for name, text, _ in world.run(ranks_do.in_a_group, ranks_do.one_call):
            assert name == "UnavailableError" and "no emulated links" in text


SCRIPT = """
import sys
sys.path.insert(0, {path!r})
import numpy as np
import gpucomm
from on_device import HostKit
from rank_processes import keep_calling
comm = gpucomm.init(timeout=20)
kit = HostKit(100)
x = kit.array(np.ones({count}, np.float32))
keep_calling(comm, lambda: (comm.all_reduce(x, op="max", algorithm="{algorithm}", async_op=True), x), {wait})
"""


@pytest.mark.parametrize(("algorithm", "count", "wait"), [("ring", 1 << 20, True), ("direct", 3, False)])
def test_a_killed_rank_is_named(ranks, algorithm, count, wait):
    script = SCRIPT.format(path=PATH, algorithm=algorithm, count=count, wait=wait)
    before = rank_processes.litter()
    ranks += rank_processes.start(script, [{"GPUCOMM_ARENA_MIB": "2"}] * 3)
    kill_one(ranks)
    assert not rank_processes.left_since(before)


STOPPED = """
import os, signal, sys, time
sys.path.insert(0, {path!r})
import numpy as np
import gpucomm
from on_device import HostKit
comm = gpucomm.init(timeout=20)
kit = HostKit(1500)
x = kit.array(np.ones(1000, np.float32))
comm.all_reduce(x, async_op=True, algorithm="ring", timeout=20).synchronize(20)
works = [comm.all_reduce(x, async_op=True, algorithm="ring", timeout=1) for _ in range(6)]
if comm.rank == 1:
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    for work in works:
        work.synchronize(1)
except gpucomm.errors.CollectiveTimeoutError as error:
    print(error, flush=True)
os._exit(0)
"""


def test_a_stopped_rank_is_named(ranks):
    """Where only what it has enqueued is still missing, too."""
    ranks += rank_processes.start(STOPPED.format(path=PATH), [{}] * 3)
    for survivor in (0, 2):
        out, err = ranks[survivor].communicate(timeout=60)
        assert f"1 (pid {ranks[1].pid}, stopped)" in out, err


LAST_WORDS = """
import os, sys
sys.path.insert(0, {path!r})
import numpy as np
import gpucomm
from on_device import HostKit, sleep
comm = gpucomm.init(timeout=20)
kit = HostKit(20_000)
x = kit.array(np.full(100_000, comm.rank, np.float32))
stream = kit.device.make_stream()
if comm.rank:
    sleep(kit.device, stream, {seconds})
work = comm.broadcast(x, 1, async_op=True, stream=stream)
if comm.rank:
    work.wait()
else:
    print(work.synchronize().values.tolist() == [1] * 100_000, flush=True)
comm.close()
os._exit(0)
"""


@pytest.mark.parametrize("seconds", [0, 4])
def test_who_has_sent_stays_until_it_is_read(ranks, seconds):
    script = LAST_WORDS.format(path=PATH, seconds=seconds)
    ranks += rank_processes.start(script, [{"GPUCOMM_ARENA_MIB": "1"}] * 2)
    out, err = ranks[0].communicate(timeout=20)
    assert out == "True\n", err


def test_arenas_of_unequal_size_are_refused(ranks):
    script = SCRIPT.format(path=PATH, algorithm="ring", count=3, wait=True)
    ranks += rank_processes.start(script, [{"GPUCOMM_ARENA_MIB": "2"}, {"GPUCOMM_ARENA_MIB": "1"}])
    for process in ranks:
        kind, text, closed = told_at_the_end(process)
        assert kind == "MismatchError" and "give all ranks the same GPUCOMM_ARENA_MIB" in text and closed
