"""Checks of reduce, gather and scatter in process groups; see group_program.py."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
from group_collectives import COMPLEX, FLOATS, INTEGERS, OPS, UNUSUAL, folded, given, reductions, same

from gpucomm import errors


def rooted(rank, world):
    """Values of every dtype, from and to every root, of tensors of any strides; and what is told where."""
    wrong = []

    def check(what, result, expected):
        if len(result) != len(expected) or not all(map(same, result, expected)):
            wrong.append(f"{what}: {result} not {expected}")

    for (dtype, op), root in itertools.product(reductions(), (0, world - 1)):
        inputs = [given(r, dtype, (7, 3)) for r in range(world)]
        x = inputs[rank].clone().t()
        dist.reduce(x, root, OPS[op])
        check(f"reduce {dtype} {op}", [x.t()], [folded(op, inputs) if rank == root else inputs[rank]])
    for dtype, count in itertools.product(
        [*FLOATS, *INTEGERS, torch.bool, *COMPLEX, *UNUSUAL], (0, 1, 12, 5000)
    ):
        root = count % world
        everyone = [given(r, dtype, (count, 2)) for r in range(world)]
        outs = [torch.empty(2, count, dtype=dtype).t() for _ in range(world)]
        dist.gather(everyone[rank], outs if rank == root else None, root)
        check(f"gather {dtype}", outs if rank == root else everyone, everyone)
        out = torch.empty(count, 2, dtype=dtype)
        work = dist.scatter(out, everyone if rank == root else None, root, async_op=True)
        work.wait()
        check(f"scatter {dtype}", [out], [everyone[rank]])
    pair = dist.new_group([1, 2])
    if rank in (1, 2):
        x = torch.full((3,), float(rank))
        dist.reduce(x, 2, group=pair)
        check("reduce in a group", [x], [torch.full((3,), 3.0 if rank == 2 else 1.0)])
    return wrong + _told(rank, world)


def _told(rank, world):
    """What Gloo did with silence, or by ending the process."""
    wrong = []
    calls = {
        "another dtype": lambda x: dist.reduce(x.double() if rank else x, 0, group=group),
        "another size": lambda x: dist.reduce(x[: 4 + rank], 0, group=group),
        "another call": lambda x: (dist.reduce if rank else dist.all_reduce)(x, group=group, **to),
        "another root": lambda x: dist.reduce(x, rank % 2, group=group),
        "uneven": lambda x: dist.gather(x[: 4 + rank], [x[:4].clone() for _ in lists], group=group),
        "another scatter": lambda x: dist.scatter(x[: 4 + rank], [x[:4].clone() for _ in lists], group=group),
    }
    lists, groups = range(0 if rank else world), []
    for what, call in calls.items():
        group, to = dist.new_group(), {"dst": 0} if rank else {}
        groups.append(group)
        try:
            call(torch.ones(8))
            dist.barrier(group=group)  # a rank that needs nothing of the others has not looked at them yet
        except errors.MismatchError:
            pass
        except errors.Error as error:
            wrong.append(f"{what}: {error!r}")
        else:
            wrong.append(f"{what}: nothing")
        wrong += _still_open(group, what, rank, world)
    with ThreadPoolExecutor(len(groups)) as pool:  # between nodes each has seconds for what is under way
        list(pool.map(lambda group: group.shutdown(), groups))
    return wrong


def _still_open(group, what, rank, world):
    """What a closed group takes."""
    x = torch.ones(3)
    calls = {
        "reduce": lambda: dist.reduce(x, 0, group=group),
        "send": lambda: dist.send(x, (rank + 1) % world, group=group),
        "recv": lambda: dist.recv(x, group=group),
        "sparse": lambda: dist.all_reduce(x.to_sparse(), group=group),
    }
    wrong = []
    for name, call in calls.items():
        try:
            call()
            wrong.append(f"{name} after {what}: nothing")
        except errors.ClosedError:
            pass
    return wrong


def silence(rank, world):
    """A wait for Gloo that fails closes the group, on every rank."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        try:
            dist.recv(torch.ones(3), 1, group=group, tag=5)
            return ["nothing"]
        except RuntimeError as error:
            words = (
                f"recv by the Gloo group inside failed on rank 0 of {world}, and the process group is closed"
            )
            wrong = [] if words in str(error) else [f"says {error}"]
    else:
        wrong = []
        _until_closed(group.communicator)
    return wrong + _still_open(group, "silence", rank, world)


def _until_closed(comm):
    deadline = time.monotonic() + 20
    while not comm.closed and time.monotonic() < deadline:
        time.sleep(0.01)


def halves(rank, world):
    """A mean whose sum no half can hold."""
    wrong = []
    for dtype in (torch.float16, torch.complex32):
        x, parts = torch.full((3,), 40000.0, dtype=dtype), torch.full((world,), 40000.0, dtype=dtype)
        y, part = x.clone(), torch.zeros(1, dtype=dtype)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        dist.reduce(y, 0, dist.ReduceOp.AVG)
        dist.reduce_scatter_tensor(part, parts, dist.ReduceOp.AVG)
        for name, mean in (("all_reduce", x), ("reduce", y), ("reduce_scatter", part)):
            exact = torch.full(mean.shape, 40000.0, dtype=torch.complex64)
            close = torch.allclose(mean.to(torch.complex64), exact, rtol=1e-3)
            wrong += [] if close else [f"{name} of {dtype}: {mean}"]
    return wrong
