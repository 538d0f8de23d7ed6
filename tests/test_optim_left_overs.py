"""No optimizer steps on what is of one rank alone, whatever has made it so; what would make it so is told."""

from __future__ import annotations

import subprocess
import threading
import time
from typing import Any

import jobs
import pytest
import torch
from ranks import PROMPT_S
from torch import nn
from training import MLP, SGD, here, loss_of, on_ranks, weights

from gpucomm.errors import ClosedError, InvalidArgumentError, MismatchError, UnsupportedTypeError
from gpucomm.optim import DistributedOptimizer, LayerwiseBSP


def refused(opt: Any, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        opt.step()


@pytest.mark.parametrize("wrapper", [DistributedOptimizer, LayerwiseBSP])
def test_what_a_fault_has_left(wrapper):
    """Neither that optimizer nor one around the survivors' steps on it."""

    def body(comm):
        model = here(MLP)
        opt = wrapper(SGD(model.parameters()), model, comm)
        all_three.wait(20)
        if comm.rank == 2:
            comm.abort()
        all_three.wait(20)  # else who only sends may be through before
        if comm.rank == 2:
            return []
        with pytest.raises(ClosedError):
            loss_of(model, comm, 0).backward()
        before = weights(model)
        refused(opt, "gradients of this rank alone")
        assert (weights(model) == before).all()
        both.wait(20)
        comm = comm.shrink(1)
        opt = wrapper(SGD(model.parameters()), model, comm)
        refused(opt, "gradients of this rank alone")
        opt.zero_grad()
        loss_of(model, comm, 0).backward()
        opt.step()
        if wrapper is LayerwiseBSP:
            opt.synchronize()
        return weights(model).tolist()

    both, all_three = threading.Barrier(2), threading.Barrier(3)
    first, second, _ = on_ranks(3, body)
    assert first == second


def test_what_a_synchronize_that_failed_has_left():
    def body(comm):
        model = nn.ModuleList([nn.Embedding(5, 3), nn.Linear(3, 1, bias=False)])
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, merge="per_tensor")
        opt.zero_grad()
        model[1].weight.grad = torch.ones(1, 3)
        model[0].weight.grad = torch.ones(5, 3).to_sparse()
        with pytest.raises(UnsupportedTypeError, match="sparse"):
            opt.synchronize()
        refused(opt, "gradients of this rank alone")

    on_ranks(2, body)


@pytest.mark.parametrize("merge", ["one", "per_tensor"])
def test_gradients_in_the_place_of_others(merge):
    """By hand, and by a backward() that adds to them."""

    def body(comm):
        params = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
        model = nn.ParameterList(params)
        opt = DistributedOptimizer(SGD(params), model, comm, merge=merge)
        loss = sum((place + 1) * param.sum() for place, param in enumerate(params))
        loss.backward(retain_graph=True)
        found = []
        for add in (opt.synchronize, loss.backward):
            given = [param.grad for param in params]
            for place, param in enumerate(params):
                param.grad = given[(place + 1) % 3]
            add()
            found.append([param.grad[0].item() for param in params])
        return found

    assert on_ranks(2, body) == [[[2, 3, 1], [4, 3, 5]]] * 2


@pytest.mark.parametrize("wrapper", [DistributedOptimizer, LayerwiseBSP])
def test_frozen_ones_that_were_trained_for_a_while(wrapper):
    def body(comm):
        model = here(MLP)
        model[0].requires_grad_(False)
        opt = wrapper(SGD(model.parameters()), model, comm)
        opt.zero_grad()
        model[0].requires_grad_(True)
        loss_of(model, comm, 0).backward()
        model[0].requires_grad_(False)
        refused(opt, "'0.weight' was frozen, but its gradient has changed: what a backward")
        opt.zero_grad(set_to_none=False)
        loss_of(model, comm, 0).backward()
        opt.step()

    on_ranks(2, body)


@pytest.mark.parametrize("wrapper", [DistributedOptimizer, LayerwiseBSP])
def test_an_old_gradient_of_a_frozen_one_that_is_added_to(wrapper):
    def body(comm):
        model = here(MLP)
        model[0].requires_grad_(False)
        model[0].weight.grad = torch.ones_like(model[0].weight)
        opt = wrapper(SGD(model.parameters()), model, comm)
        loss_of(model, comm, 0).backward()
        opt.step()
        model[0].weight.requires_grad_(True)
        loss_of(model, comm, 0).backward()  # into the tensor that is there
        model[0].weight.requires_grad_(False)
        refused(opt, "'0.weight' was frozen, but its gradient has changed: what a backward")

    on_ranks(2, body)


@pytest.mark.parametrize("wrapper", [DistributedOptimizer, LayerwiseBSP])
@pytest.mark.parametrize(
    "buffers",
    [
        ({"a": torch.ones(2)}, {"a": torch.ones(1, dtype=torch.int64)}),
        ({"a": torch.ones(2), "b": torch.zeros(2)}, {"b": torch.zeros(2), "a": torch.ones(2)}),
    ],
)
def test_buffers_that_differ_are_told(wrapper, buffers):
    def body(comm):
        model = here(MLP)
        for name, buffer in buffers[comm.rank].items():
            model.register_buffer(name, buffer)
        with pytest.raises(MismatchError, match=r"buffers \(names, shapes, dtypes\)"):
            wrapper(SGD(model.parameters()), model, comm)

    on_ranks(2, body)


def test_groups_that_differ_are_told():
    def body(comm):
        model = here(MLP)
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
        with pytest.raises(MismatchError, match="group"):
            DistributedOptimizer(SGD(groups[:: -1 if comm.rank else 1]), model, comm)

    on_ranks(2, body)


FAILS_IN_BACKWARD = """
import sys, time
import torch, torch.distributed
from torch.nn.parallel import DistributedDataParallel
import gpucomm
from gpucomm.optim import ddp

def fail(gradient):
    raise ValueError("no gradient")

torch.distributed.init_process_group("gloo")
comm = gpucomm.init(timeout=60)
layers = torch.nn.Sequential(*[torch.nn.Linear(99, 99) for _ in range(4)])
model = DistributedDataParallel(layers, bucket_cap_mb=0.01)
ddp.use(model, comm)
for _ in range(2):  # in whose second forward DDP plans its buckets anew, together
    model(torch.ones(2, 99)).sum().backward()
if comm.rank:
    model.module[0].weight.register_hook(fail)
else:
    time.sleep(30)
model(torch.ones(2, 99)).sum().backward()
"""


@pytest.mark.processes
def test_a_rank_that_fails_in_ddp_does_not_wait_for_the_others(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(FAILS_IN_BACKWARD)
    began = time.monotonic()
    command = [*jobs.find("forks").command(2, []), script]
    done = subprocess.run(command, env=jobs.environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "ValueError: no gradient" in done.stderr, done.stderr
    assert "terminate" not in done.stderr
    assert time.monotonic() - began < 20 + PROMPT_S
