"""LayerwiseBSP and the models around it: tied weights, hooks, copies, several optimizers, wrapping again."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint
from training import DEVICE, INPUTS, MLP, SGD, assert_same, here, loss_of, on_ranks, seeded, share, weights

from gpucomm.errors import InvalidArgumentError
from gpucomm.optim import DistributedOptimizer, LayerwiseBSP


def layerwise(optimizer, model, comm, **options):
    return optimizer if comm is None else LayerwiseBSP(optimizer, model, comm, **options)


def train(comm, model, *opts, steps=range(4)):
    """Trains by these optimizers; comm None is the single process, with the whole batch."""
    for step in steps:
        for opt in opts:
            opt.zero_grad()
        loss_of(model, comm, step).backward()
        for opt in opts:
            opt.step()
    for opt in opts if comm is not None else ():
        opt.synchronize()
    return weights(model)


class Tied(nn.Module):
    """The layer that is registered first, and so holds the weights, is used last."""

    def __init__(self):
        super().__init__()
        self.head, self.body, self.out = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 3)
        self.body.weight = self.head.weight

    def forward(self, x):
        return self.out(self.head(self.body(x).tanh()))


class TiedToSilent(Tied):
    """One of those that hold the weights is never called: another reads them before."""

    def forward(self, x):
        return self.out(self.body(nn.functional.linear(x, self.head.weight).tanh()))


def pruned():
    return prune.l1_unstructured(nn.Linear(6, 6), "weight", amount=0.3)


def around(first):
    return nn.Sequential(first, nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize(
    "make",
    [
        Tied,
        TiedToSilent,
        lambda: around(pruned()),
        lambda: around(weight_norm(nn.Linear(6, 6))),
        lambda: around(spectral_norm(nn.Linear(6, 6))),
    ],
    ids=["tied", "tied_to_silent", "prune", "weight_norm", "spectral_norm"],
)
def test_weights_are_there_before_anything_reads_them(make):
    def body(comm):
        model = seeded(make).to(DEVICE)
        return train(comm, model, layerwise(SGD(model.parameters()), model, comm))

    assert_same(on_ranks(3, body), body(None))


def test_several_optimizers_on_one_model():
    def body(comm):
        model = here(MLP)
        first = layerwise(SGD([*model[0].parameters(), model[2].bias]), model, comm)
        second = layerwise(SGD([model[2].weight, *model[4].parameters()], lr=0.05), model, comm)
        return train(comm, model, first, second)

    assert_same(on_ranks(3, body), body(None))


def test_wrapping_again_replaces_the_wrapper():
    """Its weights, which are still on their way, are not lost though another rank gives them from now on."""

    def body(comm):
        model = here(MLP)
        old = layerwise(SGD(model.parameters()), model, comm)
        old.zero_grad()
        loss_of(model, comm, 0).backward()
        old.step()
        new = layerwise(SGD(model.parameters()), model, comm, **({} if comm is None else {"root": 1}))
        before = 0 if comm is None else comm.stats()["calls"]
        result = train(comm, model, new, steps=range(1, 4))
        if comm is None:
            return result
        assert comm.stats()["calls"] - before == 3 * (3 + 3)  # a reduce and a broadcast for each layer
        with pytest.raises(InvalidArgumentError, match=rf"wrapped again.*rank {comm.rank} of 2"):
            old.step()
        return result

    assert_same(on_ranks(2, body), body(None))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, where a model is cut
def test_compiled_models_are_cut_where_layers_wait():
    """And dynamo warns of nothing that it cannot trace, which would be an error here."""

    def body(comm):
        model = here(MLP)
        opt = layerwise(SGD(model.parameters()), model, comm)
        return train(comm, torch.compile(model, backend="eager"), opt)

    assert_same(on_ranks(2, body), body(None))


def test_wrapping_again_after_the_communicator_was_closed():
    def body(comm):
        model, part = here(MLP), comm.split(0)
        old = LayerwiseBSP(SGD(model.parameters()), model, part)
        loss_of(model, comm, 0).backward()
        old.step()
        comm.barrier()
        part.close()
        with torch.no_grad():  # whether the weights came or not
            for param, first in zip(model.parameters(), here(MLP).parameters(), strict=True):
                param.copy_(first)
        new = LayerwiseBSP(SGD(model.parameters()), model, comm, root=2)
        return train(comm, model, new)

    assert_same(on_ranks(3, body), train(None, model := here(MLP), SGD(model.parameters())))


@pytest.mark.parametrize(
    "kinds", [(DistributedOptimizer, LayerwiseBSP), (LayerwiseBSP, DistributedOptimizer)]
)
def test_one_wrapper_replaces_the_other(kinds):
    def body(comm):
        model = here(MLP)
        if comm is None:
            return train(comm, model, SGD(model.parameters()))
        old, new = (kind(SGD(model.parameters()), model, comm) for kind in kinds)
        result = train(comm, model, new)
        with pytest.raises(InvalidArgumentError, match=rf"wrapped again.*rank {comm.rank} of 2"):
            old.step()
        return result

    assert_same(on_ranks(2, body), body(None))


def test_a_group_of_another_optimizers_parameters_is_refused():
    def body(comm):
        model = here(MLP)
        first = LayerwiseBSP(SGD(model[0].parameters()), model, comm)
        second = LayerwiseBSP(SGD(model[2:].parameters()), model, comm)
        with pytest.raises(InvalidArgumentError, match=rf"another optimizer exchanges.*{comm.rank} of 2"):
            first.add_param_group({"params": model[2].parameters()})
        del second

    on_ranks(2, body)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_the_model_is_a_plain_one(duplicate):
    def body(comm):
        model = here(MLP)
        opt = LayerwiseBSP(SGD(model.parameters()), model, comm)
        train(comm, model, opt, steps=range(2))
        other = duplicate(model)
        expected = weights(other)
        assert b"gpucomm" not in pickle.dumps(other)
        before = comm.stats()["calls"]
        other.load_state_dict(other.state_dict())
        loss_of(other, comm, 0).backward()
        torch.optim.SGD(other.parameters(), lr=0.0).step()
        assert comm.stats()["calls"] == before
        assert torch.equal(weights(other), expected)
        return train(comm, model, opt, steps=range(2, 4))

    model = here(MLP)
    assert_same(on_ranks(2, body), train(None, model, SGD(model.parameters())))


def test_reentrant_checkpointing_that_visits_a_layer_twice_is_refused():
    def body(comm):
        model = here(MLP)
        opt = LayerwiseBSP(SGD(model.parameters()), model, comm)
        x = model[0](share(comm, INPUTS[0]))
        for _ in range(2):
            x = checkpoint(model[2], x, use_reentrant=True)
        model[4](x).square().mean().backward()
        with pytest.raises(InvalidArgumentError, match=rf"use_reentrant=False.*rank {comm.rank} of 2"):
            opt.step()

    on_ranks(2, body)
