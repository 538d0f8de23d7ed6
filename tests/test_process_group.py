"""torch.distributed over gpucomm: processes as of torchrun, in one memory and as if on several nodes."""

from __future__ import annotations

import threading
import time
import weakref
from datetime import timedelta
from functools import partial
from pathlib import Path

import jobs
import pytest
import rank_processes
import torch
import torch.distributed as dist
from once import once
from torch import nn
from training import on_ranks

from gpucomm.errors import (
    CollectiveTimeoutError,
    Error,
    InvalidArgumentError,
    PeerLostError,
    UnavailableError,
    UnsupportedTypeError,
)
from gpucomm.launch import store
from gpucomm.optim.process_group import Options, futures, group
from gpucomm.optim.process_group.work import Work

pytestmark = pytest.mark.processes

PROGRAM = str(Path(__file__).parent / "group_program.py")
LOADED = " ".join(f"torch.distributed.{name}" for name in ("fsdp", "checkpoint", "tensor.parallel"))
COLLECTIVES = [
    "all_reduces",
    "layouts",
    "moves",
    "reduce_scatters",
    "rooted",
    "halves",
    "silence",
    "handles",
    "callbacks",
    "coalesced",
    "many_sparse",
    "patience",
]
PARALLELISM = [
    "ddp",
    "joined",
    "fsdp",
    "tensors",
    "functional",
    "own",
    "inside",
    "checkpoint",
    "shards",
    "options",
    "choices",
    "refusals",
    "orders",
    "again",
]
BETWEEN = ["layouts", "moves", "rooted", "handles", "again"]  # of the checks for several nodes


def run(folder, ranks, checks, **env):
    command = [*jobs.find("forks").command(ranks, []), PROGRAM, str(folder), *checks]
    code, output, _ = jobs.wait_for(command, jobs.environment(TORCH_RANKS_LOAD=LOADED, **env), 110)
    assert code == 0, output
    return jobs.reports(folder, ranks)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The reports of four ranks of one node."""
    make = partial(run, ranks=4, checks=[*COLLECTIVES, *PARALLELISM, "place"])
    return once(tmp_path_factory, "together", make)


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """The reports of four ranks on two nodes, as far as gpucomm is concerned."""
    told = {"GPUCOMM_TRANSPORT": "c10d", "GPUCOMM_NODES": "2x2"}
    return once(tmp_path_factory, "apart", partial(run, ranks=4, checks=[*BETWEEN, "place"], **told))


@pytest.mark.parametrize("check", COLLECTIVES + PARALLELISM)
def test_on_one_node(together, check):
    assert [report[check] for report in together] == [[]] * 4


@pytest.mark.parametrize("check", BETWEEN)
def test_on_two_nodes(apart, check):
    assert [report[check] for report in apart] == [[]] * 4


def test_where_the_ranks_are(together, apart):
    for reports, expected in ((together, ["shm", [0] * 4]), (apart, ["c10d", [0, 0, 1, 1]])):
        assert all(report["place"][:2] == expected for report in reports)
        assert not [name for report in reports for name in report["place"][2] if "gpucomm" in name]


def test_emulated_links_of_the_job_and_of_a_part(tmp_path):
    reports = run(tmp_path, 3, ["emulated"], GPUCOMM_LINKS="nodes:100Mbit,of=2+1")
    of_job, of_pair = ["emulated(shm)", [0, 0, 1]], ["emulated(shm)", [0, 1]]
    assert [report["emulated"] for report in reports] == [of_job + of_pair, of_job, of_job + of_pair]


FAULT = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torch import nn
import gpucomm.optim.process_group

torch.set_num_threads(1)
rank, world = int(os.environ["GPUCOMM_RANK"]), int(os.environ["GPUCOMM_WORLD"])
store = dist.FileStore(os.environ["STORE"], world)
dist.init_process_group("gpucomm", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=20))
net = nn.parallel.DistributedDataParallel(nn.Linear(64, 64), bucket_cap_mb=0.001)
for step in range(3):
    net(torch.randn(8, 64)).sum().backward()
if rank == world - 1:
    print("fault", flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
for attempt in ("backward", "again", "all_reduce", "future"):
    try:
        if attempt == "all_reduce":
            dist.all_reduce(torch.ones(4))
        elif attempt == "future":
            dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()
        else:
            net(torch.randn(8, 64)).sum().backward()
        print(attempt, "nothing", flush=True)
    except Exception as error:
        print(attempt, type(error).__name__, str(error).replace(chr(10), " "), flush=True)
print(f"{time.monotonic() - begin:.2f} s", flush=True)
"""


def test_a_killed_rank_is_named_in_backward(ranks, tmp_path):
    env = {"STORE": str(tmp_path / "store"), "GLOO_SOCKET_IFNAME": "lo"}
    ranks += rank_processes.start(FAULT, [env] * 3)
    assert ranks[2].stdout.readline() == "fault\n"
    ranks[2].stdin.close()
    for process in ranks[:2]:
        output, errors = process.communicate(timeout=40)
        lines = output.splitlines()
        assert process.returncode == 0, errors
        assert lines[0].startswith("backward RuntimeError") and "rank 2 is gone" in lines[0], lines
        assert lines[1].startswith("again") and "closed" in lines[1]
        assert lines[2].startswith("all_reduce ClosedError")
        assert float(lines[-1].split()[0]) < 15


def test_a_timeout_counts_beside_a_future_that_waits():
    ended = threading.Event()

    def body(comm):
        x = torch.ones(3)
        if comm.rank == 1:
            assert ended.wait(20)
            with pytest.raises(Error):
                comm.all_reduce(x)
            return
        work = Work([comm.all_reduce(x, algorithm="ring", async_op=True)], [x])
        future = work.get_future()
        try:
            while not work._waiting.locked():
                time.sleep(0.001)
            with pytest.raises(CollectiveTimeoutError, match="missing: 1"):
                work.wait(timedelta(seconds=0.3))
            assert comm.closed
        finally:
            ended.set()
        with pytest.raises(RuntimeError, match="CollectiveTimeoutError"):  # torch's own
            future.wait()

    on_ranks(2, body)


def test_a_task_that_raises_costs_no_thread(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda told: None)
    pool, done = futures._Pool(), threading.Event()
    pool.submit(lambda: 1 / 0)
    pool.drain(5)
    pool.submit(done.set)
    assert done.wait(5)


def test_a_future_without_a_thread_is_a_sentence_and_may_be_asked_for_again(monkeypatch, threadless):
    monkeypatch.setattr("gpucomm.optim.process_group.work.pool", futures._Pool())
    go_on, x = threading.Event(), torch.ones(3)
    work = Work([go_on], [x])
    threadless.add(threading.get_ident())
    with pytest.raises(UnavailableError, match=r"start new thread \(ulimit -u"):
        work.get_future()
    threadless.clear()
    future = work.get_future()
    go_on.set()
    assert future.wait()[0] is x


def test_who_does_not_come_is_named():
    seat = store.Seat(0, [0, 1, 2], 3, 0.2)
    with pytest.raises(CollectiveTimeoutError, match=r"0\.2 s .* for ranks \[1, 2\]"):
        store.communicator_of(seat, dist.HashStore(), "none", False)


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (
            "own_store",
            PeerLostError,
            "^rank 0 of 1: the store of its process group does not answer.*no route",
        ),
        ("gloo_group", UnavailableError, "^rank 0 of 1 could not meet the other ranks .*: no route"),
    ],
)
def test_what_torch_says_of_ranks_that_do_not_meet_names_the_rank(monkeypatch, call, kind, said):
    def fail(*_):
        raise RuntimeError("no route")

    monkeypatch.setattr(group, call, fail)
    with pytest.raises(kind, match=said):
        group.ProcessGroup(store.Seat(0, [0], 1, 5), dist.HashStore(), Options())


@pytest.fixture
def alone():
    dist.init_process_group("gpucomm", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_world_of_one(alone):
    x = torch.ones(3)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    out = torch.zeros(3)
    alone._allgather_base(out, x).wait()
    net = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    net(torch.ones(2, 4)).sum().backward()
    assert torch.equal(out, torch.ones(3)) and alone.communicator.world == 1
    assert dist.get_backend() == "gpucomm" and alone.name() == "gpucomm"


def test_forms_without_options(alone):
    """As torch's Join and RPC call a group, and as pg.allreduce(x) reads."""
    x = torch.full((3,), 2.0)
    for work in (
        alone.allreduce(x),
        alone.allreduce(x, dist.ReduceOp.SUM),
        alone.broadcast(x, 0),
        alone.barrier(),
    ):
        assert work.wait()
    out = torch.zeros(3)
    alone.allgather([out], x).wait()
    assert torch.equal(out, x)


def test_a_coalescing_that_has_failed_keeps_no_later_tensors(alone):
    failing = dist._coalescing_manager(device=torch.device("cpu"))
    with pytest.raises(ZeroDivisionError), failing:
        raise ZeroDivisionError("a fault of the user's")
    kept = []
    for _ in range(60):
        x = torch.ones(1000)
        assert dist.broadcast(x, 0, async_op=True).wait()
        kept.append(weakref.ref(x))
    del x
    assert sum(ref() is not None for ref in kept) <= 1


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda group, x: dist.isend(x, 0), "send"),
        (lambda group, x: dist.irecv(x, 0), "recv"),
        (lambda group, x: dist.irecv(x), "recv from any rank"),
        (lambda group, x: group.allreduce([x.to_sparse()]), "a sparse all_reduce"),
        (lambda group, x: group.reduce([x.to_sparse()]), "a sparse reduce"),
    ],
)
def test_what_the_end_of_a_coalescing_would_not_wait_for_is_refused(alone, call, what):
    said = rf"^{what} goes by the Gloo group inside, .* outside a coalescing .* rank 0 of 1\)"
    with (
        pytest.raises(UnsupportedTypeError, match=said),
        dist._coalescing_manager(device=torch.device("cpu")),
    ):
        call(alone, torch.ones(3))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (
            {"all_reduce": {"codecs": "int8"}},
            "all_reduce has no option 'codecs', it takes algorithm, codec, segments",
        ),
        ({"all_reduce": "int8"}, r"all_reduce must be a dict such as \{'codec': 'int8'\}, got 'int8'"),
        ({"broadcast": {"codec": "int8"}}, "broadcast has no option 'codec'"),
        ({"all_gather": {"codec": "int9"}}, "int9"),
        ({"all_gather": {"codec": 8}}, "all_gather: a codec must be a spec such as 'int8', got 8"),
        ({"all_reduce": {"segments": -1}}, "all_reduce: segments must be from 1 to 4096, .* got -1"),
        ({"broadcast": {"segments": 5000}}, "broadcast: segments must be from 1 to 4096, .* got 5000"),
        (
            {"all_reduce": {"algorithm": "two_shot"}},
            "without a codec has no algorithm 'two_shot', it has auto, .*ring",
        ),
        ({"all_reduce": {"algorithm": "ring", "codec": "int8"}}, "with codec 'int8' has no .* two_shot"),
        ({"timeout": 5}, "timeout must be a datetime.timedelta, .* got 5"),
    ],
)
def test_options_are_checked_when_they_are_made(choices, words):
    with pytest.raises(InvalidArgumentError, match=words):
        Options(**choices)


def test_options_are_what_a_mesh_takes():
    made = Options(all_reduce={"segments": "auto"}, timeout=timedelta(seconds=7))
    assert isinstance(made, torch._C._distributed_c10d.Backend.Options)
    assert (made.backend, made._timeout) == ("gpucomm", timedelta(seconds=7))


def test_torchcomms_is_refused(monkeypatch):
    monkeypatch.setattr(dist.distributed_c10d, "_use_torchcomms_enabled", lambda: True)
    with pytest.raises(UnavailableError, match="unset TORCH_DISTRIBUTED_USE_TORCHCOMMS"):
        group.register()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("GPUCOMM_TRANSPORT", "mpi", "GPUCOMM_TRANSPORT='mpi' must be shm, c10d or unset"),
        ("GPUCOMM_NODES", "3x2", "3x2"),
    ],
)
def test_broken_variables(monkeypatch, name, value, words):
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidArgumentError, match=words):
        store.communicator_of(store.Seat(0, [0], 1, 5), dist.HashStore(), "none", False)
