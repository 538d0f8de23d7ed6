"""torch.distributed, DDP and FSDP2 on a GPU: alone, as threads, and as two processes of one GPU."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import training
from test_optim_streams import Group
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training import MLP, SGD, assert_same, here, loss_of, on_ranks, train, weights

import gpucomm
from gpucomm.errors import RankFailedError, UnavailableError, UnsupportedTypeError
from gpucomm.optim import ddp, fsdp
from gpucomm.optim.fsdp.collectives import AllGather, Lane
from gpucomm.optim.fsdp.meter import Meter
from gpucomm.optim.fsdp.route import Route
from gpucomm.optim.process_group.messages import Messages

# What torch warns of on a GPU has never been seen here.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    monkeypatch.setattr(training, "DEVICE", "cuda")


@pytest.fixture
def alone(tmp_path):
    """torch.distributed over gpucomm with one rank, whose communicator it gives."""

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gpucomm", store=store, rank=0, world_size=1)
    yield dist.group.WORLD.communicator
    dist.destroy_process_group()


def steps(model, opt, comm=None):
    for step in range(4):
        opt.zero_grad()
        loss_of(model, comm, step).backward()
        opt.step()


@pytest.mark.parametrize("exchange", [None, "dense", "int8"])
def test_ddp_alone(alone, exchange):
    model = DistributedDataParallel(here(MLP))
    if exchange:
        ddp.use(model, alone, exchange=exchange, algorithm="coded_ring" if exchange == "int8" else "auto")
    steps(model, SGD(model.parameters()))
    assert_same([weights(model)], train(None), atol=0.02 if exchange == "int8" else 1e-5)


def test_fsdp2_alone(alone):
    model = fully_shard(here(MLP), mesh=init_device_mesh("cuda", (1,)))
    try:
        fsdp.use(model, alone, "dense", "int8")
    except UnavailableError as error:
        pytest.skip(str(error))
    steps(model, SGD(model.parameters()))
    whole = torch.cat([p.to_local().detach().reshape(-1).double() for p in model.parameters()]).cpu()
    assert_same([whole], train(None), atol=1e-5)


class Passing(Group, Messages):
    pass


def test_messages_of_the_group_between_threads():
    """Both directions at once, into tensors in place and with gaps, which the waiting stream has then."""

    def body(comm):
        group, other = Passing(comm), 1 - comm.rank
        mine = torch.arange(200_000.0, device="cuda").reshape(500, 400)
        got = [torch.empty(500, 400, device="cuda"), torch.empty(400, 500, device="cuda").t()]
        for x in got:
            torch.cuda._sleep(10**7)
            works = [group.send([mine + comm.rank], other), group.recv([x], other)]
            for work in works:
                work.wait()
        return [bool((x == mine + other).all()) for x in got]

    assert on_ranks(2, body) == [[True] * 2] * 2


def test_messages_by_tag_and_from_any_rank_are_refused(alone):
    x = torch.ones(1, device="cuda")
    with pytest.raises(UnsupportedTypeError, match=r"send of tensors on a GPU has no tags, got tag 3"):
        dist.group.WORLD.send([x], 0, 3)
    with pytest.raises(UnsupportedTypeError, match=r"recv from any rank goes by Gloo.*cuda:0"):
        dist.group.WORLD.recv_anysource([x])


def test_the_group_between_threads():
    """Handles and futures, tensors in place and with gaps: after wait() the current stream has the result."""

    def body(comm):
        group, results = Group(comm), []
        for make in (lambda x: x, lambda x: x.t()):
            for wait in (lambda work: work.wait(), lambda work: work.get_future().wait()):
                x = make(torch.zeros(500, 400, device="cuda"))
                torch.cuda._sleep(10**7)
                x += comm.rank + 1.0
                wait(group.allreduce([x]))
                results.append(x.clone())
        out = torch.empty(8, device="cuda")
        group.all_gather_single(out, torch.full((4,), comm.rank + 1.0, device="cuda")).wait()
        assert out.tolist() == [1.0] * 4 + [2.0] * 4
        return [bool((x == 3).all()) for x in results]

    assert on_ranks(2, body) == [[True] * 4] * 2


def test_fsdp2s_gather_between_threads():
    def body(comm):
        gather = AllGather(Lane(comm, Meter(comm), Route(None, "auto")), SimpleNamespace(place=0))
        aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):
            torch.cuda._sleep(10**7)
            out = gather.allocate((8,), dtype=torch.float32, device="cuda")
            mine = out.narrow(0, 4 * comm.rank, 4).fill_(comm.rank + 1.0)
            pending = gather(output_tensor=out, input_tensor=mine, group=None)
        pending.wait()
        return out.tolist()

    assert on_ranks(2, body) == [[1.0] * 4 + [2.0] * 4] * 2


def sharded(comm, how):
    """FSDP2 of two processes on one GPU; this rank's weights at the end, and its losses."""
    from gpucomm.reproduce.compressed_collectives.transformer import join_torch

    join_torch(comm)
    torch.zeros(1, device="cuda")  # else the mesh would give each rank a GPU
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6)).cuda()
    mesh = init_device_mesh("cuda", (comm.world,))
    for module in (model[2], model[4], model):
        fully_shard(module, mesh=mesh)
    if how:
        fsdp.use(model, comm, *how, algorithm="auto" if how == ("dense", "dense") else "coded_ring")
    opt, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(5):
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step + 10 * comm.rank)).cuda()
        opt.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return torch.cat([p.to_local().detach().reshape(-1) for p in model.parameters()]).cpu(), losses


@pytest.mark.processes
def test_fsdp2_between_processes():
    try:
        with gpucomm.local(2, timeout=60) as ranks:
            dense, coded = (ranks.run(sharded, how) for how in (("dense", "dense"), ("zfp:16", "int8")))
    except RankFailedError as error:
        if "UnavailableError" in str(error):  # CUDA shares no memory here, or torch has other parts
            pytest.skip(str(error))
        raise
    for exact, near in zip(dense, coded, strict=True):
        torch.testing.assert_close(near[0], exact[0], rtol=0, atol=0.02)
        assert exact[1][-1] < exact[1][0]
        assert near[1][-1] < near[1][0]
