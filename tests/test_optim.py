"""DistributedOptimizer: several ranks train as one process would with the whole batch, bit for bit alike."""

import time
from functools import partial

import pytest
import torch
from ranks import PROMPT_S
from torch import nn
from training import (
    ADAMW,
    INPUTS,
    MLP,
    SGD,
    TARGETS,
    assert_same,
    here,
    loss_of,
    on_ranks,
    seeded,
    train,
    weights,
    wrap,
)

from gpucomm.errors import InvalidArgumentError, MismatchError, UnsupportedTypeError
from gpucomm.optim import DistributedOptimizer, LayerwiseBSP


@pytest.mark.parametrize("make", [SGD, ADAMW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("merge", ["per_tensor", "one", "200B"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_trains_as_one_process_does(world, merge, make):
    results = on_ranks(world, partial(train, make=make, merge=merge))
    assert_same(results, train(None, make=make), atol=1e-5)


def test_rank_0_gives_its_parameters_and_buffers():
    def body(comm):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2).bfloat16())
        model[2].weight.requires_grad_(False)
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.fill_(comm.rank + 1)
        DistributedOptimizer(SGD([model[0].weight]), model, comm)
        return [
            tensor.float().sub(1).abs().max().item() for tensor in [*model.parameters(), *model.buffers()]
        ]

    assert on_ranks(3, body) == [[0.0] * 9] * 3


def test_buckets_follow_the_merge_policy_per_dtype():
    def body(comm, merge):
        model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2).bfloat16(), "c": nn.Linear(2, 2)})
        model["c"].bias.requires_grad_(False)
        return DistributedOptimizer(SGD(model.parameters()), model, comm, merge=merge).buckets

    assert on_ranks(2, body, "one")[0] == [["b.bias", "b.weight"], ["c.weight", "a.bias", "a.weight"]]
    assert on_ranks(1, body, "per_tensor")[0] == [
        ["c.weight"],
        ["b.bias"],
        ["b.weight"],
        ["a.bias"],
        ["a.weight"],
    ]


@pytest.mark.parametrize("quiet", [True, False], ids=["no_sync", "synchronised"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulation(quiet, set_to_none):
    def body(comm):
        model = here(MLP)
        opt = wrap(SGD(model.parameters()), model, comm, merge="200B")
        for step in range(0, 6, 3):
            opt.zero_grad(set_to_none)
            for part in range(3):
                if comm is not None and quiet and part < 2:
                    with opt.no_sync():
                        loss_of(model, comm, step + part).backward()
                else:
                    loss_of(model, comm, step + part).backward()
            opt.step()
        opt.zero_grad(set_to_none)
        assert all(p.grad is None if set_to_none else not p.grad.any() for p in model.parameters())
        if comm is not None and comm.world > 1:
            assert opt.stats()["rounds"] == (2 if quiet else 6)
        return weights(model)

    assert_same(on_ranks(2, body), body(None))


@pytest.mark.parametrize("world", [1, 2])
def test_step_refuses_gradients_that_are_local(world):
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        with opt.no_sync():
            loss_of(model, comm, 0).backward()
        opt.add_param_group({"params": [nn.Parameter(here(torch.zeros(1)))]})
        with pytest.raises(InvalidArgumentError, match=rf"no_sync.*rank {comm.rank} of {world}"):
            opt.step()
        opt.synchronize()
        opt.step()
        return weights(model)

    assert_same(on_ranks(world, body), train(None, steps=1))


def test_a_rank_without_a_batch_takes_part_by_synchronize():
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        if comm.rank == 0:
            (2 * loss_of(model, None, 0)).backward()
        else:
            opt.synchronize()
        opt.step()
        return weights(model)

    assert_same(on_ranks(2, body), train(None, steps=1))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.never, self.some, self.always = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x, some):
        return self.always(x) + self.some(x) if some else self.always(x)


@pytest.mark.parametrize("merge", ["per_tensor", "one"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_unused_parameters(merge, set_to_none):
    template = seeded(Branches)

    def body(comm):
        model = here(template)
        opt = wrap(ADAMW(model.parameters(), weight_decay=0.5), model, comm, merge=merge)
        for step in range(3):
            opt.zero_grad(set_to_none)
            for rank in (
                range(3) if comm is None else [comm.rank]
            ):  # only rank 1 uses the branch, and not at first
                output = model(here(INPUTS[step].chunk(3)[rank]), some=rank == 1 and step > 0)
                loss = (output - here(TARGETS[step].chunk(3)[rank])).square().mean()
                (loss / 3 if comm is None else loss).backward()
            assert model.never.weight.grad is None
            assert (model.some.weight.grad is None) == (step == 0)
            opt.step()
        return weights(model)

    assert_same(on_ranks(3, body), body(None), atol=1e-5)


def test_tied_and_frozen_parameters():
    template = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
    template[2].weight = template[0].weight
    template[3].bias.requires_grad_(False)
    assert_same(on_ranks(2, partial(train, template=template, merge="per_tensor")), train(None, template))


def test_who_unfreezes_what_is_not_exchanged_tells_the_others():
    def body(comm):
        model = here(MLP)
        model.odd = nn.Parameter(torch.ones(2, dtype=torch.complex64), requires_grad=False)
        opt = wrap(SGD(model[:3].parameters()), model, comm)
        model.odd.requires_grad_(comm.rank == 1)
        model[0].weight.requires_grad_(False)  # so that all plan anew
        begin = time.monotonic()
        with pytest.raises(UnsupportedTypeError if comm.rank else MismatchError, match="complex64"):
            opt.zero_grad()
        return time.monotonic() - begin < PROMPT_S

    assert on_ranks(2, body) == [True] * 2


def test_unfreezing_needs_zero_grad():
    def body(comm):
        model = here(MLP)
        model[0].requires_grad_(False)
        opt = wrap(SGD(model.parameters()), model, comm)
        for step in range(3):
            opt.zero_grad()
            if step == 0 and comm is not None:
                model[0].requires_grad_(True)
                loss_of(model, comm, 0).backward()
                with pytest.raises(InvalidArgumentError, match=r"'0\.weight' was frozen, but"):
                    opt.step()
                model[0].requires_grad_(False)
                opt.zero_grad()
            model[0].requires_grad_(step > 0)
            opt.zero_grad()
            loss_of(model, comm, step).backward()
            opt.step()
        return weights(model)

    assert_same(on_ranks(2, body), body(None))


def test_parameters_of_the_optimizer_alone_and_of_the_model_alone():
    def body(comm):
        model, scale = here(MLP), nn.Parameter(here(torch.ones(())))
        opt = wrap(SGD([*model[:3].parameters(), scale]), model, comm)
        for step in range(3):
            opt.zero_grad()
            model[4].zero_grad()
            (scale * loss_of(model, comm, step)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            opt.step()
        return torch.cat([weights(model), scale.detach().double().reshape(1).cpu()])

    assert_same(on_ranks(2, body), body(None))


def test_several_optimizers_of_one_model():
    def body(comm):
        model = here(MLP)
        first = wrap(SGD([p for p in model.parameters() if p.ndim == 2]), model, comm)
        second = wrap(ADAMW([p for p in model.parameters() if p.ndim == 1]), model, comm)
        for step in range(3):
            model.zero_grad()
            loss_of(model, comm, step).backward()
            first.step()
            second.step()
        if comm is not None:
            assert first.buckets == [["4.weight", "2.weight", "0.weight"]]
            assert second.buckets == [["4.bias", "2.bias", "0.bias"]]
        return weights(model)

    assert_same(on_ranks(2, body), body(None))


def test_wrapping_again_retires_the_older_wrapper():
    def body(comm):
        model = here(MLP)
        old, new = (DistributedOptimizer(SGD(model.parameters()), model, comm) for _ in range(2))
        loss_of(model, comm, 0).backward()
        with pytest.raises(InvalidArgumentError, match="use the newer"):
            old.step()
        new.step()
        return weights(model)

    assert_same(on_ranks(2, body), train(None, steps=1))


@pytest.mark.parametrize(
    ("wrap", "bad", "text"),
    [
        (DistributedOptimizer, {"merge": "25MBit"}, "merge must be"),
        (DistributedOptimizer, {"exchange": "int9"}, "rank 1 differs"),
        (DistributedOptimizer, {"algorithm": "rign"}, "rank 1 differs"),
        (LayerwiseBSP, {"algorithm": "rign"}, "rign"),
        (LayerwiseBSP, {"root": 2}, "root must be"),
    ],
)
def test_a_bad_argument_of_one_rank_is_told_to_all(wrap, bad, text):
    def body(comm):
        model = here(MLP)
        optimizer, begin = SGD(model.parameters()), time.monotonic()
        with pytest.raises((InvalidArgumentError, MismatchError), match=text) as caught:
            wrap(optimizer, model, comm, **(bad if comm.rank == 1 else {}))
        assert "rank 1" in str(caught.value) and time.monotonic() - begin < PROMPT_S

    on_ranks(2, body)


def conv():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.Conv2d(4, 3, (1, 2)), nn.Flatten()
    )


def test_gradients_keep_the_strides_of_their_parameters():
    template = seeded(conv).to(memory_format=torch.channels_last)
    template[1].bias = nn.Parameter(torch.linspace(0, 1, 8)[::2])  # strides with gaps

    def body(comm):
        model = here(template)
        model[1].bias = nn.Parameter(torch.linspace(0, 1, 8)[::2])
        opt = wrap(SGD(model.parameters()), model, comm)
        for step in range(3):
            opt.zero_grad()
            loss_of(model, comm, step).backward()
            assert model[2].weight.grad.stride() == model[2].weight.stride()
            opt.step()
        return weights(model)

    assert_same(on_ranks(2, body), body(None))
