"""What the tests of the optimizer train: one small model, and ranks as threads that copy it."""

import copy
import threading
from functools import partial

import torch
from torch import nn

import gpucomm
from gpucomm.optim import DistributedOptimizer

torch.set_num_threads(1)  # the ranks are threads already

DEVICE = "cpu"  # tests/gpu train the same on a GPU
BATCH = 24  # divisible by 2, 3 and 4
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=0.01)
_one_at_a_time = threading.Lock()  # ranks are threads, which share torch's generator


def seeded(make, seed=0):
    with _one_at_a_time, torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


MLP = seeded(mlp)
INPUTS = torch.randn(8, BATCH, 6, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randn(8, BATCH, 3, generator=torch.Generator().manual_seed(2))


def here(x):
    """A tensor, or a copy of a module, where these tests train."""
    return x.to(DEVICE) if isinstance(x, torch.Tensor) else copy.deepcopy(x).to(DEVICE)


def on_ranks(world, fn, *args):
    with gpucomm.local(world, threads=True, timeout=20) as ranks:
        return ranks.run(fn, *args)


def share(comm, tensor):
    return here(tensor if comm is None else tensor.chunk(comm.world)[comm.rank])


def loss_of(model, comm, step):
    return (model(share(comm, INPUTS[step])) - share(comm, TARGETS[step])).square().mean()


def wrap(optimizer, model, comm, **options):
    return optimizer if comm is None else DistributedOptimizer(optimizer, model, comm, **options)


def weights(model):
    return torch.cat([param.detach().reshape(-1).double() for param in model.parameters()]).cpu()


def train(comm, template=MLP, make=SGD, steps=4, loss=loss_of, **options):
    """Trains a copy of the template; comm None is the single process, with the whole batch."""
    model = here(template)
    opt = wrap(make(model.parameters()), model, comm, **options)
    go_on(model, opt, comm, range(steps), loss)
    return weights(model)


def go_on(model, opt, comm, steps, loss=loss_of):
    for step in steps:
        opt.zero_grad()
        loss(model, comm, step).backward()
        opt.step()


def assert_same(results, expected, atol=1e-6):
    for result in results:
        assert torch.equal(result, results[0]), "the ranks differ"
    torch.testing.assert_close(results[0], expected, rtol=0, atol=atol)


class Fault(torch.autograd.Function):
    """Passes on what it is given; its backward fails."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ZeroDivisionError("a fault of the user's")
