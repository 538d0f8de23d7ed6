"""Messages of device arrays over NCCL: a library of the tests' own stands in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import device_ranks
import jobs
import nccl_library
import nccl_message_ranks as ranks_do
import nccl_ranks
import pytest
import rank_processes
import test_nccl_calls
from rank_processes import kill_one, told_at_the_end
from test_device_processes import test_messages, test_messages_of_both_kinds_that_cross  # noqa: F401

import gpucomm

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the ranks' environment says."""
    return nccl_library.environment(tmp_path_factory)


@pytest.fixture(scope="module", params=[2, 3])
def world(request, told):
    with gpucomm.local(request.param, env=told) as world:
        world.run(nccl_ranks.connect)
        yield world


THREADS = """
import sys
import nccl_library, pytest
nccl_library.own()
sys.exit(pytest.main(["test_device_messages.py", "-rf", "--tb=short"]))
"""


def test_all_that_holds_of_threads_by_themselves(told):
    """Which way messages go is read once in a process, so this is another one."""
    here = Path(__file__).parent
    ended = subprocess.run(
        [sys.executable, "-c", THREADS],
        env={**os.environ, **told},
        cwd=here,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ended.returncode == 0, ended.stdout
    assert " skipped" not in ended.stdout


def test_both_ways_at_once(world):
    assert all(all(right) for right in world.run(ranks_do.both_ways_at_once))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_in_orders_that_cross(world, seed):
    assert world.run(ranks_do.storm, seed) == [[]] * world.ranks


def test_an_answer_waits_for_no_message(world):
    assert world.run(ranks_do.behind_a_large_one)[:2] == [2.0, 1.0]


def test_the_host_does_not_wait_for_the_device(told):
    with gpucomm.local(2, env=told) as world:
        world.run(nccl_ranks.connect)
        assert world.run(ranks_do.early) == [True] * 2


def test_nccl_gets_each_end_once(world):
    for calls in world.run(ranks_do.moved):
        assert sorted(calls) == ["ncclGroupEnd", "ncclGroupEnd", "ncclRecv", "ncclSend"]


def test_messages_with_all_others_at_once_leave_room_on_the_device(world):
    """Each of them has 32 thread blocks, or as many of 32 as there are others, as a power of two."""
    for calls in world.run(ranks_do.first_ones):
        assert calls.count(f"maxCTAs={[32, 16][world.ranks - 2]}") == 2


def test_what_is_through_is_finalized(world):
    for calls in world.run(ranks_do.closed):
        assert calls == ["ncclCommFinalize"] * 2 * (world.ranks - 1)


def test_empty_messages_need_no_nccl(world):
    assert world.run(ranks_do.empty_ones) == [[]] * world.ranks


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (device_ranks.wrong_end, "MismatchError", "sends 3 float64 on a device over NCCL"),
        (ranks_do.unequal, "MismatchError", "receives 4 float64 on a device over NCCL"),
        (device_ranks.no_sender, "CollectiveTimeoutError", "has not called send for it"),
        (ranks_do.no_receiver, "CollectiveTimeoutError", "has not called recv for it"),
        (device_ranks.closed_sender, "PeerLostError", "rank 0 has closed its communicator"),
        (device_ranks.another_device_for_messages, "UnavailableError", "over NCCL all messages of a comm"),
        (ranks_do.hanging, "CollectiveTimeoutError", "timed out after 0.5 s"),
        (ranks_do.broken, "PeerLostError", "sending to rank 1: what it had enqueued failed: remote process"),
        (ranks_do.found_at_the_next_message, "PeerLostError", "an exchange of messages failed: remote"),
        (ranks_do.late, "CollectiveTimeoutError", "waited 0.3 s for what NCCL has enqueued"),
        (ranks_do.aborted, "ClosedError", "called abort()"),
        (ranks_do.refused_by_a_collective, "MismatchError", "do not make the same call"),
    ],
)
def test_faults(world, fault, kind, text):
    device_ranks.check_fault(world, fault, kind, text)


def test_who_closes_with_messages_under_way_does_not_wait_for_others(world):
    for rank, (name, text, _) in enumerate(world.run(device_ranks.in_a_group, ranks_do.closed_under_way)):
        assert name == ("ClosedError" if rank == 1 else "PeerLostError") and "closed" in text


def test_a_missing_library_is_told_on_every_rank(told):
    with gpucomm.local(2, env={**told, "GPUCOMM_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}) as world:
        for name, text, _ in world.run(ranks_do.without_a_library):
            assert name == "UnavailableError"
            assert "messages of device arrays go over NCCL: NCCL cannot be loaded: /nowhere" in text


@pytest.mark.timing
def test_what_nccl_has_done_is_soon_found(told):
    with gpucomm.local(2, env=told) as world:
        world.run(nccl_ranks.connect)
        assert all(max(seconds) < 40 * 8e-3 for seconds in world.run(ranks_do.seconds_of, 40))


START = test_nccl_calls.START + "import nccl_message_ranks as ranks_do\n"

ENDLESS = (
    START
    + """
kit = HostKit(100)
keep_calling(comm, lambda: ranks_do.around(comm, {count}, kit), {wait})
"""
)


@pytest.mark.parametrize(("count", "wait"), [(3, True), (1 << 20, False)])
def test_a_killed_rank_is_named(ranks, told, count, wait):
    ranks += rank_processes.start(ENDLESS.format(count=count, wait=wait), [told] * 3)
    kill_one(ranks)


ENQUEUED = (
    START
    + """
kit = HostKit({slow} if comm.rank == 1 else 0)
for _ in range(8):
    work, _ = ranks_do.around(comm, 3, kit)
    work.wait()
print("enqueued", flush=True)
try:
    work.synchronize(timeout=60)
except gpucomm.errors.Error as error:
    leave(error, comm)
"""
)


def test_a_rank_that_is_killed_after_all_is_enqueued(ranks, told):
    ranks += rank_processes.start(ENQUEUED.format(slow=nccl_ranks.SLOW_US), [told] * 2)
    for process in ranks:
        assert process.stdout.readline() == "enqueued\n"
    ranks[1].send_signal(signal.SIGKILL)
    kind, text, closed = told_at_the_end(ranks[0])
    assert kind == "PeerLostError" and "rank 1 is gone" in text and closed
    assert "waits for what NCCL has enqueued" in text


COMPLETED = (
    START
    + """
kit = HostKit(0)
ranks_do.around(comm, 3, kit)[0].synchronize()
if comm.rank == 0:
    nccl_library.own().fake_hang(0)
    try:
        comm.send(kit.array(np.ones(3)), 1, timeout=60)
    except gpucomm.errors.Error as error:
        leave(error, comm)
else:
    comm.recv(kit.array(np.ones(3)), 0)
    print("completed", flush=True)
    sys.stdin.read()
"""
)


def test_a_rank_that_is_killed_before_the_other_end_is_enqueued(ranks, told):
    ranks += rank_processes.start(COMPLETED, [told] * 2)
    assert ranks[1].stdout.readline() == "completed\n"
    ranks[1].send_signal(signal.SIGKILL)
    kind, text, closed = told_at_the_end(ranks[0])
    assert kind == "PeerLostError" and "rank 1 is gone" in text and closed


LAST_WORDS = (
    START
    + """
import os
kit = HostKit(20_000)
x = kit.array(np.full(100_000, comm.rank, np.float32))
if comm.rank:
    comm.send(x, 0)
else:
    print(comm.recv(x, 1, async_op=True).synchronize().values.tolist() == [1] * 100_000, flush=True)
comm.close()
os._exit(0)
"""
)


def test_who_has_sent_stays_until_it_is_received(ranks, told):
    ranks += rank_processes.start(LAST_WORDS, [told] * 2)
    out, err = ranks[0].communicate(timeout=20)
    assert out == "True\n", err


def test_ranks_that_go_different_ways_are_told(ranks, told):
    script = ENDLESS.format(count=3, wait=True)
    ranks += rank_processes.start(script, [told, {**told, "GPUCOMM_DEVICE_TRANSPORT": "arena"}])
    for process in ranks:
        kind, text, closed = told_at_the_end(process)
        assert kind == "MismatchError" and "3 float64 on a device over NCCL" in text and closed


def test_ranks_that_share_no_memory_need_not_ask(told, tmp_path):
    auto = {name: value for name, value in told.items() if name != "GPUCOMM_DEVICE_TRANSPORT"}
    ended = jobs.run(jobs.find("forks"), "0,0,1", 3, tmp_path, "messages_on_devices", **auto)
    assert [report.get("messages_on_devices") for report in ended.reports] == [[]] * 3, ended.output
