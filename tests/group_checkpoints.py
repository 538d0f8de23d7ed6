"""Checks of torch's distributed checkpoints on a process group, for group_program.py."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from group_training import SGD, model, sharded, trained, weights
from torch.nn.parallel import DistributedDataParallel

__all__ = ["checkpoint", "shards"]


@contextmanager
def common_folder(rank: int) -> Iterator[str]:
    """One folder of all ranks, while they use it."""
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    yield folder[0]
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


def checkpoint(rank, world):
    from torch.distributed import checkpoint

    net = trained(DistributedDataParallel, rank, steps=1)
    other = {"net": model().state_dict()}
    with common_folder(rank) as folder:
        checkpoint.save({"net": net.module.state_dict()}, checkpoint_id=folder)
        checkpoint.load(other, checkpoint_id=folder)
    loaded = torch.cat([p.reshape(-1) for p in other["net"].values()])
    return [] if torch.equal(weights(net), loaded) else ["what was loaded is not what was saved"]


def states(net, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    return dict(zip(("net", "optimizer"), get_state_dict(net, optimizer), strict=True))


def whole(net, optimizer):
    """The weights and their moments."""
    moments = (optimizer.state[p]["momentum_buffer"].full_tensor() for p in net.parameters())
    return torch.cat([weights(net), *(m.reshape(-1) for m in moments)])


def loaded(folder, mesh, group):
    """What a new model gets of a checkpoint."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import set_state_dict

    net = sharded(mesh, model())
    optimizer = SGD(net.parameters())
    state = states(net, optimizer)
    checkpoint.load(state, checkpoint_id=folder, process_group=group)
    set_state_dict(net, optimizer, model_state_dict=state["net"], optim_state_dict=state["optimizer"])
    return whole(net, optimizer)


def shards(rank, world):
    """FSDP2's shards, loaded by as many ranks as have saved them, and by two."""
    from torch.distributed import checkpoint
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    mesh = init_device_mesh("cpu", (world,))
    net = trained(partial(sharded, mesh), rank, steps=1)
    optimizer = SGD(net.parameters())
    optimizer.step()
    saved, pair, wrong = whole(net, optimizer), dist.new_group([0, 1]), []
    with common_folder(rank) as folder:
        checkpoint.save(states(net, optimizer), checkpoint_id=folder)
        files = len(list(Path(folder).glob("*.distcp")))
        wrong += [] if files == world else [f"{files} files"]
        wrong += (
            [] if torch.equal(loaded(folder, mesh, None), saved) else ["as many ranks load something else"]
        )
        if rank < 2:
            halves = loaded(folder, DeviceMesh.from_group(pair, "cpu"), pair)
            wrong += [] if torch.equal(halves, saved) else ["two ranks load something else"]
    return wrong
