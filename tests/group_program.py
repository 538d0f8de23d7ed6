"""What the ranks of a job do in process groups: group_program.py FOLDER CHECK...; see job_program.py.

A check returns a list of what was wrong.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from group_checkpoints import checkpoint, shards  # noqa: F401
from group_collectives import all_reduces, layouts, many_sparse, moves, reduce_scatters  # noqa: F401
from group_rooted import halves, rooted, silence  # noqa: F401
from group_training import ddp, differences, fsdp, functional, joined, on_gloo, tensors, trained, weights  # noqa: F401
from jobs import leave
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from gpucomm import errors
from gpucomm.optim.process_group import Options


def own(rank, world):
    """What goes by the communicator: each call is one of its own, or more."""
    group, x = dist.new_group(), torch.ones(world)
    y, parts = torch.empty(world * world), [torch.empty(world) for _ in range(world)]
    calls = {
        "broadcast": lambda: dist.broadcast(x, 0, group=group),
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "all_gather": lambda: dist.all_gather(parts, x, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(y, x, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(x, y, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(parts[0], x, group=group),
        "barrier": lambda: dist.barrier(group=group),
    }
    wrong = []
    for name, call in calls.items():
        before = group.communicator.stats()["calls"]
        call()
        wrong += [] if group.communicator.stats()["calls"] > before else [name]
    return wrong


def inside(rank, world):
    """Objects, calls with roots, and what goes by the Gloo group inside."""
    every = [None] * world
    dist.all_gather_object(every, {"rank": rank, "long": "x" * 1000 * rank})
    wrong = [] if [e["rank"] for e in every] == list(range(world)) else ["all_gather_object"]
    told, got = [rank], [None]
    dist.broadcast_object_list(told, 1)
    dist.scatter_object_list(got, list(range(world)) if rank == 0 else None)
    wrong += [] if told == [1] and got == [rank] else ["objects"]
    x = torch.full((3,), float(rank))
    dist.reduce(x, 0)
    wrong += [] if rank or x[0] == sum(range(world)) else ["reduce"]
    outs = [torch.empty(1) for _ in range(world)] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)]), outs)
    part, y = torch.empty(1), torch.empty(1)
    dist.scatter(part, outs)
    sending = dist.P2POp(dist.isend, part, (rank + 1) % world)
    for work in dist.batch_isend_irecv([sending, dist.P2POp(dist.irecv, y, (rank - 1) % world)]):
        work.wait()
    return wrong + ([] if part == rank and y == (rank - 1) % world else ["gather, scatter, send, recv"])


def handles(rank, world):
    """What a Work offers, and futures."""
    x = torch.ones(10)
    work = dist.all_reduce(x, async_op=True)
    wrong = [] if work.wait(timedelta(seconds=20)) and work.is_completed() and work.is_success() else ["wait"]
    wrong += [] if work.exception() is None and work.result()[0] is x else ["result"]
    chained = dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()[0] * 2)
    wrong += [] if torch.equal(chained.wait(), torch.full((10,), 2.0 * world**2)) else ["future"]

    def another(future):
        y = future.value()[0].clone()
        for _ in range(2):
            dist.all_reduce(y, async_op=True).get_future().wait()
        return y

    future = dist.all_reduce(torch.ones(5), async_op=True).get_future().then(another)
    wrong += [] if future.wait()[0] == world**3 else ["a callback that waits for futures"]
    dist.barrier() if rank % 2 else dist.barrier(async_op=True).wait()
    polled = dist.barrier(async_op=True)
    deadline = time.monotonic() + 20
    while not polled.is_completed() and time.monotonic() < deadline:
        time.sleep(0.001)
    return wrong + ([] if polled.is_success() else ["barrier"])


def callbacks(rank, world):
    """What a callback issues is refused where other calls were issued since: ranks' orders might differ."""
    group = dist.new_group()
    if rank:
        dist.barrier()
    first = dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future()
    later = first.then(lambda future: None if rank else dist.all_reduce(future.value()[0], group=group))
    second = dist.all_reduce(torch.ones(4), group=group, async_op=True)
    if rank:
        with contextlib.suppress(errors.Error):  # as rank 0 has refused a call
            second.wait()
        return []
    dist.barrier()  # then both end
    try:
        later.wait()
    except RuntimeError as error:  # torch's own
        text = "all_reduce: it is issued by a callback of the future of call #1 of this group, when call #2"
        return [] if text in str(error) else [str(error)]
    return ["a call in another order is issued"]


def coalesced(rank, world):
    wrong = []
    for device in (None, torch.device("cpu")):
        a, b = torch.ones(2), torch.ones(3, 2).t()
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            dist.all_reduce(a)
            dist.all_reduce(b)
        manager.wait()
        wrong += [] if a[0] == world == b[1, 2] else [f"all_reduce, device {device}"]
        outs, sums = [torch.empty(world), torch.empty(2 * world)], [torch.empty(1), torch.empty(2)]
        with dist._coalescing_manager(device=device):
            dist.all_gather_into_tensor(outs[0], torch.tensor([float(rank)]))
            dist.all_gather_into_tensor(outs[1], torch.tensor([1.0, float(rank)]))
        wrong += [] if outs[0].tolist() == list(range(world)) == outs[1][1::2].tolist() else ["all_gather"]
        with dist._coalescing_manager(device=device):
            dist.reduce_scatter_tensor(sums[0], torch.arange(1.0 * world))
            dist.reduce_scatter_tensor(sums[1], torch.ones(2 * world))
        wrong += [] if sums[0] == rank * world and sums[1].tolist() == [world] * 2 else ["reduce_scatter"]
    before = dist.group.WORLD.communicator.stats()["calls"]
    lists = [[torch.empty(count, dtype=torch.uint16) for count in (3, 2)] for _ in range(world)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch wants another name
        mine = [torch.tensor(values).to(torch.uint16) for values in ([rank] * 3, [rank, 7])]
        dist.all_gather_coalesced(lists, mine)
    found = [[x.tolist() for x in xs] for xs in lists]
    wrong += [] if found == [[[r] * 3, [r, 7]] for r in range(world)] else ["all_gather_coalesced"]
    wrong += [] if dist.group.WORLD.communicator.stats()["calls"] == before + 2 else ["not by gpucomm"]
    return wrong


def patience(rank, world):
    """A group's timeout as torch's functions set it later, as frameworks do after their first step."""
    wrong = []
    for change in (
        dist.ProcessGroup.set_timeout,
        lambda group, t: distributed_c10d._set_pg_timeout(t, group),
    ):
        for call in (lambda group: dist.all_reduce(torch.ones(1), group=group), dist.barrier):
            group = dist.new_group([0, world - 1])
            if rank not in (0, world - 1):
                continue
            change(group, timedelta(seconds=0.2))
            if rank == 0:
                begin = time.monotonic()
                try:
                    call(group)
                    wrong.append(f"{call} without the other rank")
                except errors.CollectiveTimeoutError:
                    wrong += [] if time.monotonic() - begin < 10 else ["as long as the group's first timeout"]
        dist.barrier()
    return wrong


def options(rank, world):
    """Codecs carry what they can, and only that."""
    int8 = {"codec": "int8", "algorithm": "two_shot"}  # "auto" would find that in memory coding does not pay
    how = Options(all_reduce=int8, all_gather=int8, reduce_scatter=int8 | {"codec": "bf16"})
    coded, plain = dist.new_group(pg_options=how), dist.new_group()
    calls = {
        "all_reduce": (0.3, lambda x, g: dist.all_reduce(x, group=g)),
        "all_gather": (0.3, lambda x, g: dist.all_gather_into_tensor(x.new_empty(world * len(x)), x, g)),
        "reduce_scatter": (
            0.55,
            lambda x, g: dist.reduce_scatter_tensor(x.new_empty(len(x) // world), x, group=g),
        ),
    }

    def sent(call, x, group):
        call(x.clone(), group)  # the first one measures
        before = group.communicator.stats()["bytes_sent"]
        call(x.clone(), group)
        total = torch.tensor(group.communicator.stats()["bytes_sent"] - before)
        dist.all_reduce(total)
        return total.item()

    noise = torch.randn(100_000, generator=torch.Generator().manual_seed(rank))
    wrong = []
    for name, (most, call) in calls.items():
        for x, allowed in ((noise, (0.1, most)), (torch.arange(100_000) * 1000, (0.6, 1.7))):
            share = sent(call, x, coded) / sent(call, x, plain)
            wrong += (
                []
                if allowed[0] < share < allowed[1]
                else [f"{name} of {x.dtype} sends {share:.2f} of the bytes"]
            )
    pairs = [torch.view_as_complex(noise.reshape(-1, 2)).clone() for _ in range(2)]
    dist.all_reduce(pairs[0], group=plain)
    dist.all_reduce(pairs[1], group=coded)  # torch makes floats of it
    error = ((pairs[0] - pairs[1]).norm() / pairs[0].norm()).item()
    wrong += [] if 0 < error < 0.03 else [f"an error of {error} in complex numbers"]
    exact, lossy, largest = noise.clone(), noise.clone(), noise.clone()
    dist.all_reduce(exact, group=plain)
    dist.all_reduce(lossy, group=coded)
    error = ((exact - lossy).norm() / exact.norm()).item()
    wrong += [] if 0 < error < 0.03 else [f"an error of {error}"]
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=coded)
    dist.all_reduce(noise, dist.ReduceOp.MAX, group=plain)
    wrong += [] if torch.equal(largest, noise) else ["max is not exact"]
    net = trained(partial(DistributedDataParallel, process_group=coded), rank)
    return wrong + differences("DDP with int8", weights(net), on_gloo(rank), atol=0.02)


def last_call(comm):
    """Its text in the flight log, and the algorithm, segments and codec by which it went."""
    text = [row["call"] for row in comm.flight_log() if row["rank"] == comm.rank][-1]
    codec, algorithm, segments = re.search(r"(?:codec (\w+), )?algorithm (\w+), (\d+) segment", text).groups()
    return text, {"algorithm": algorithm, "segments": int(segments), "codec": codec}


def choices(rank, world):
    """What was named for a collective has run, and of the others "auto" has chosen."""
    named = {
        "all_reduce": {"algorithm": "ring", "segments": 3},
        "all_gather": {"algorithm": "coded_ring", "segments": 1, "codec": "int8"},
        "reduce_scatter": {"algorithm": "two_shot", "segments": 2, "codec": "bf16"},
        "broadcast": {"algorithm": "binomial_tree", "segments": 2},
    }
    x, parts = torch.ones(world * 500), [torch.empty(world * 500) for _ in range(world)]
    calls = {
        "all_reduce": lambda group: dist.all_reduce(x, group=group),
        "all_gather": lambda group: dist.all_gather(parts, x, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter_tensor(x.new_empty(500), x, group=group),
        "broadcast": lambda group: dist.broadcast(x, 0, group=group),
        "all_to_all": lambda group: dist.all_to_all_single(parts[0], x, group=group),
    }
    wrong = []
    for how in (named, {name: named[name] for name in ("all_gather", "broadcast")}, {}):
        group = dist.new_group(pg_options=Options(**how))
        for name, call in calls.items():
            call(group)
            text, taken = last_call(group.communicator)
            learnt = [row for row in group.communicator.tuning() if row["collective"] == name]
            if name in how:
                right = taken == {"codec": None} | how[name] and not learnt
            else:
                offered = [c["algorithm"] for row in learnt for c in row["candidates"]]
                right = taken["algorithm"] in offered and taken["codec"] is None
            wrong += [] if right and text.startswith(name) else [f"{text}, of options {how.get(name)}"]
    return wrong


def refusals(rank, world):
    """Sentences, on every rank, after which the group goes on."""
    wrong = []

    def refused(kind, words, call):
        try:
            call()
        except kind as error:
            if words not in str(error):
                wrong.append(f"says {error}")
        else:
            wrong.append(f"nothing about {words!r}")

    x, everyone = torch.ones(4), list(range(world))
    kind = errors.UnsupportedTypeError
    unsigned, small = x.to(torch.uint16), x.to(torch.float8_e4m3fn)
    refused(kind, "'max' is not defined for uint16", lambda: dist.all_reduce(unsigned, dist.ReduceOp.MAX))
    refused(kind, "not defined for torch.float8_e4m3fn", lambda: dist.all_reduce(small))
    refused(kind, "'band'", lambda: dist.all_reduce(x, dist.ReduceOp.BAND))
    refused(kind, "cannot be read", lambda: dist.all_reduce(x.to("meta")))
    kind = errors.InvalidArgumentError
    group = dist.group.WORLD
    refused(kind, "cut as [1, 1]", lambda: group.all_to_all_single(x, x.clone(), [1, 1], [1, 1]))
    refused(kind, f"(rank {rank} of {world})", lambda: group.all_to_all_single(x, x.clone(), [1], [1]))
    refused(kind, "got dict", lambda: dist.new_group(everyone, pg_options={"codec": "int8"}))
    refused(kind, f"dst must be a rank in [0, {world}), got {world}", lambda: dist.isend(x, world))
    refused(kind, f"src must be a rank in [0, {world}), got -3", lambda: dist.recv(x, -3))
    own = Options(all_reduce={"codec": "int4"}) if rank else Options()
    said = (
        f"rank 0 the options none, rank 1 the options all_reduce={{'codec': 'int4'}} (rank {rank} of {world})"
    )
    refused(errors.MismatchError, said, lambda: dist.new_group(everyone, pg_options=own))
    dist.all_reduce(x)
    wrong += [] if x[0] == world else ["the group does not go on"]
    pair = dist.new_group([0, 1])
    if rank < 2:  # the other rank hears of it
        cuts = [2, 2] if rank else [1]
        kind = errors.MismatchError if rank else errors.InvalidArgumentError
        refused(kind, "cut as [1]", lambda: pair.all_to_all_single(x, x.clone(), cuts, cuts).wait())
    return wrong


def orders(rank, world):
    """Two new groups' first calls, not waited for and in another order on each rank; then a message."""
    groups = [dist.new_group(backend="gpucomm") for _ in range(2)]
    xs = [torch.full((3,), float(rank)) for _ in groups]
    turn = [0, 1] if rank % 2 else [1, 0]
    began = time.monotonic()
    works = [dist.all_reduce(xs[i], group=groups[i], async_op=True) for i in turn]
    issued = time.monotonic() - began
    for work in works:
        work.wait()
    wrong = [x for x in xs if not (x == sum(range(world))).all()]
    return wrong + [f"issued after {issued:.1f} s"] * (issued > 5)


def again(rank, world):
    """A group of few ranks that disagree, and a second initialisation in the same store."""
    half, wrong = dist.new_group(list(range(world - 1))), []
    if rank < world - 1:
        x, comm = torch.ones(3), half.communicator
        dist.all_reduce(x, group=half)
        wrong += [] if x[0] == world - 1 == comm.world else ["a subgroup"]
        try:
            dist.all_reduce(torch.ones(3 + (rank == 0)), group=half)
            wrong += ["a mismatch goes unnoticed"]
        except errors.MismatchError:
            pass
        dist.destroy_process_group(half)
        wrong += [] if comm.closed else ["a destroyed group is open"]
    comm = dist.group.WORLD.communicator
    dist.barrier()
    dist.destroy_process_group()
    wrong += [] if comm.closed else ["the destroyed world is open"]
    dist.init_process_group("cpu:gpucomm", timeout=timedelta(seconds=30))
    x = torch.ones(3)
    dist.all_reduce(x)
    wrong += [] if x[0] == world else ["a second init"]
    return wrong + ([] if dist.group.WORLD.communicator.timeout == 30 else ["the timeout"])


def place(rank, world):
    comm = dist.group.WORLD.communicator
    return [comm.transport, list(comm.nodes), os.listdir("/dev/shm")]


def emulated(rank, world):
    """The transport and the nodes of the job, and of its first and last rank, which are on two nodes."""
    pair = dist.new_group([0, world - 1])
    found = []
    for group in (dist.group.WORLD, pair if rank != 1 else None):
        if group:
            x = torch.ones(1000)
            dist.all_reduce(x, group=group)
            found += [group.communicator.transport, list(group.communicator.nodes)]
    return found


def main(folder, *checks):
    torch.set_num_threads(1)
    tempfile.tempdir = folder  # where a check that fails leaves nothing behind for good
    warnings.simplefilter("ignore")
    dist.init_process_group("gpucomm", timeout=timedelta(seconds=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    report = {}
    for check in checks:
        begin = time.monotonic()
        report[check] = globals()[check](rank, world)
        report[check + " seconds"] = round(time.monotonic() - begin, 2)
        leave(Path(folder, f"{rank}.json"), report)


if __name__ == "__main__":
    main(*sys.argv[1:])
