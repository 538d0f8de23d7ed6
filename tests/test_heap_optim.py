"""DistributedOptimizer's buckets in the shared heap: the same bits as in private memory."""

from __future__ import annotations

import copy

import pytest
import torch
from ranks import outcomes_of
from torch import nn
from training import SGD, seeded

from gpucomm.optim import DistributedOptimizer

MODEL = seeded(lambda: nn.Sequential(nn.Linear(600, 700), nn.Tanh(), nn.Linear(700, 300)))  # 2.5 MB
INPUTS = torch.randn(3, 9, 600, generator=torch.Generator().manual_seed(1))


def train(comm):
    # One algorithm: "auto" measures, and another order of adding gives other bits.
    model = copy.deepcopy(MODEL)
    optimizer = DistributedOptimizer(
        SGD(model.parameters()), model, comm, merge="per_tensor", algorithm="direct"
    )
    for inputs in INPUTS:
        optimizer.zero_grad()
        model(inputs.chunk(comm.world)[comm.rank]).square().mean().backward()
        optimizer.step()
    return optimizer.stats()["shared_buckets"], [param.detach().clone() for param in model.parameters()]


@pytest.mark.parametrize(("heap_bytes", "expected"), [(None, 4), (2 << 20, 3)])
def test_the_same_bits_wherever_buckets_lie(heap_bytes, expected):
    private = outcomes_of(3, train, heap_bytes=0)
    shared = outcomes_of(3, train, heap_bytes=heap_bytes)
    assert [buckets for buckets, _ in private] == [0] * 3
    assert [buckets for buckets, _ in shared] == [expected] * 3
    for (_, a), (_, b) in zip(private, shared, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
