"""Overflows beside which an optimizer steps all the same: what encodings lost of a gradient is sent once."""

import pytest
import torch
from ranks import outcomes_of
from test_ddp_hook import CODED, on_ddp_ranks, wrap
from training import MLP, SGD, here, loss_of

from gpucomm.errors import MismatchError
from gpucomm.optim import DistributedOptimizer, ddp

STEPS = 30


class Two(torch.nn.Module):
    """Its parameters' gradients are what it is called with."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(8, 64)) for _ in range(2))

    def forward(self, to_a, to_b):
        return (self.a * to_a).sum() + (self.b * to_b).sum()


def ways(model, comm, store, hooked):
    """What wraps optimizers, the model to call, and what tells the residuals."""
    how = {"exchange": "int4", "algorithm": CODED}
    if hooked:
        wrapped = wrap(model, comm, store)
        hook = ddp.use(wrapped, comm, **how)
        return (lambda opt: opt), wrapped, hook.state_dict
    opts = []

    def wrap_optimizer(opt):
        opts.append(DistributedOptimizer(opt, model, comm, **how))
        return opts[-1]

    return wrap_optimizer, model, lambda: opts[0].state_dict()["gpucomm"]["state"]


def scaled(optimizers):
    """Steps as GradScaler lets them."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=10**6, backoff_factor=1 - 1e-9)

    def step(loss):
        scaler.scale(loss).backward()
        for opt in optimizers:
            scaler.step(opt)
        scaler.update()

    return step


def cleaned(optimizers, model):
    """Takes what is not finite for zeros, and steps."""

    def step(loss):
        loss.backward()
        for p in model.parameters():
            torch.nan_to_num_(p.grad, nan=0.0, posinf=0.0, neginf=0.0)
        for opt in optimizers:
            opt.step()

    return step


CASES = {  # whether DDP's hook, what trains a, whether all gradients are cleared, how steps are made
    "a trained by nothing, its gradient kept": (False, None, False, "scaled"),
    "the same with the hook": (True, None, False, "scaled"),
    "two optimizers, one of which skips": (True, SGD, True, "scaled"),
    "cleaned": (False, "one", True, "cleaned"),
    "cleaned with the hook": (True, "one", True, "cleaned"),
    "one optimizer, which skips": (False, "one", True, "scaled"),
    "one that looks itself, with the hook": (True, "fused", True, "scaled"),
    "one that looks itself": (False, "fused", True, "scaled"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_lost_is_sent_once(case):
    hooked, trains_a, clears, how = CASES[case]

    def body(comm, store):
        model = Two()
        wrap_optimizer, called, residuals = ways(model, comm, store, hooked)
        together = trains_a in ("one", "fused")
        fused = {"fused": True} if trains_a == "fused" else {}
        params = [model.b, model.a] if together else [model.b]
        opts = [wrap_optimizer(torch.optim.SGD(params, lr=1.0, **fused))]
        if trains_a is SGD:
            opts.append(torch.optim.SGD([model.a], lr=1.0))
        step = scaled(opts) if how == "scaled" else cleaned(opts, model)
        total = torch.zeros(8, 64)
        for number in range(STEPS):
            (model if clears else opts[0]).zero_grad()
            random = torch.Generator().manual_seed(10 * number + comm.rank)
            to_a, to_b = (torch.randn(8, 64, generator=random) for _ in range(2))
            broken = number % 3 == 1
            if broken and comm.rank == 1:
                to_a[0, 0] = float("inf")
            step(called(to_a, to_b))
            if not (broken and together and how == "scaled"):  # else the step was skipped
                total += to_b
        held = residuals()["residuals"]["b"].reshape(8, 64)
        means = [comm.all_reduce(x.clone(), op="mean", algorithm="direct") for x in (total, held)]
        return (means[0] - means[1] + model.b.detach()).abs().max().item(), means[1].abs().max().item()

    for off, held in on_ddp_ranks(2, body):
        assert off < 1e-4 < held


def test_a_rank_with_one_backward_more_is_found():
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        for step in range(6):
            opt.zero_grad()
            for _ in range(2 if (comm.rank, step) == (0, 2) else 1):
                loss_of(model, comm, step).backward()
            opt.step()

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError), error
        assert "in round 3 of optimizer 1 after 2 steps" in str(error)
        assert "in round 3 of optimizer 1 after 3 steps" in str(error)
