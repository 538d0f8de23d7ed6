"""Checks of torch's parallelism on a process group, for group_program.py."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = [
    "SGD",
    "ddp",
    "differences",
    "fsdp",
    "joined",
    "model",
    "on_gloo",
    "sharded",
    "tensors",
    "trained",
    "weights",
]


def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def trained(wrap, rank, make=SGD, steps=5):
    """The model after some steps on batches that differ between the ranks."""
    net = wrap(model())
    optimizer = make(net.parameters())
    batches = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(16, 64, generator=batches)
        nn.functional.cross_entropy(net(x), x[:, :10].argmax(1)).backward()
        optimizer.step()
    return net


def weights(net):
    whole = (p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters())
    return torch.cat([p.detach().reshape(-1) for p in whole])


def on_gloo(rank):
    """What DDP over Gloo gives."""
    gloo = dist.new_group(backend="gloo")
    return weights(trained(partial(DistributedDataParallel, process_group=gloo), rank))


def differences(what, result, reference, atol=2e-6):
    """Nothing where the weights are another run's within rounding, and the same bits on all ranks."""
    wrong = [] if torch.allclose(result, reference, rtol=0, atol=atol) else [f"{what} trains something else"]
    everyone = [torch.empty_like(result) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, result)
    return wrong + ([] if all(torch.equal(w, result) for w in everyone) else [f"{what}: ranks differ"])


def hooked(state, hook):
    def wrap(net):
        net = DistributedDataParallel(net)
        net.register_comm_hook(state, hook)
        return net

    return wrap


def joined(rank, world):
    """DDP that divides by those that have batches left: of a message for that only C++ has the handle."""

    def train(net):
        batches = torch.Generator().manual_seed(rank)
        with net.join(divide_by_initial_world_size=False):
            for _ in range(2 + rank):
                net(torch.randn(4, 64, generator=batches)).sum().backward()
                with torch.no_grad():
                    for param in net.parameters():
                        param -= 1e-3 * param.grad
                        param.grad = None
        return weights(net)

    reference = train(DistributedDataParallel(model(), process_group=dist.new_group(backend="gloo")))
    return differences("DDP that joins", train(DistributedDataParallel(model())), reference)


def ddp(rank, world):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer

    reference, wrong = on_gloo(rank), []
    for options in (
        {},
        {"bucket_cap_mb": 0.05},
        {"static_graph": True, "gradient_as_bucket_view": True},
        {"find_unused_parameters": True, "bucket_cap_mb": 0.05},
    ):
        net = trained(partial(DistributedDataParallel, **options), rank)
        wrong += differences(f"DDP {options}", weights(net), reference)
    half = weights(trained(hooked(None, fp16_compress_hook), rank))
    wrong += differences("DDP with the fp16 hook", half, reference, atol=5e-3)
    powers = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
    powered = weights(trained(hooked(powers, powerSGD_hook.powerSGD_hook), rank))
    wrong += differences("DDP with PowerSGD", powered, reference, atol=1.0)
    zero = partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.SGD, lr=0.1, momentum=0.9)
    return wrong + differences("ZeRO", weights(trained(DistributedDataParallel, rank, zero)), reference)


def sharded(mesh, net):
    from torch.distributed.fsdp import fully_shard

    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def fsdp(rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel

    reference = on_gloo(rank)
    flat = init_device_mesh("cpu", (world,), mesh_dim_names=("all",))
    wrong = differences("FSDP2", weights(trained(partial(sharded, flat), rank)), reference)
    hybrid = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copies", "shards"))
    wrong += differences("HSDP", weights(trained(partial(sharded, hybrid), rank)), reference)
    first = partial(FullyShardedDataParallel, device_id=torch.device("cpu"), use_orig_params=True)
    net = trained(first, rank)
    with FullyShardedDataParallel.summon_full_params(net):
        return wrong + differences("FSDP1", weights(net), reference)


def tensors(rank, world):
    """DTensor and a mesh of two dimensions."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    a, b = (torch.randn(8, 8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    product = distribute_tensor(a, mesh, [Shard(0)]) @ distribute_tensor(b, mesh, [Replicate()])
    wrong = [] if torch.allclose(product.full_tensor(), a @ b, atol=1e-5) else ["rows times a whole"]
    product = distribute_tensor(a, mesh, [Shard(1)]) @ distribute_tensor(b, mesh, [Shard(0)])
    wrong += [] if torch.allclose(product.full_tensor(), a @ b, atol=1e-5) else ["columns times rows"]
    turned = distribute_tensor(a, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])
    wrong += [] if torch.equal(turned.to_local(), a.chunk(world, 1)[rank]) else ["redistribute"]
    grid = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("a", "b"))
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=grid.get_group("b"))
    return wrong + ([] if x.item() == 2 * (rank // 2 * 2) + 1 else ["a dimension of a mesh"])


def functional(rank, world):
    from torch.distributed import _functional_collectives as f

    group, ramp = dist.group.WORLD, torch.arange(4.0 * world)
    x, total = ramp + rank, ramp * world + sum(range(world))
    two = torch.cat([torch.arange(2.0) + r for r in range(world)])
    four = torch.cat([torch.arange(4.0) + 4 * rank + r for r in range(world)])
    results = {
        "all_reduce": (f.all_reduce(x, "sum", group), total),
        "all_gather": (f.all_gather_tensor(x[:2], 0, group), two),
        "reduce_scatter": (f.reduce_scatter_tensor(x, "avg", 0, group), total.chunk(world)[rank] / world),
        "broadcast": (f.broadcast(x, 1, group), ramp + 1),
        "all_to_all": (f.all_to_all_single(x, None, None, group), four),
    }
    several = f.all_reduce_coalesced([x, x * 2], "sum", group)
    results |= {f"coalesced {i}": (several[i], total * (i + 1)) for i in (0, 1)}
    done = {
        name: torch.equal(f.wait_tensor(result), expected) for name, (result, expected) in results.items()
    }
    return [name for name, right in done.items() if not right]
