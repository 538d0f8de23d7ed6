"""LayerwiseBSP: one rank updates, and all train as one process would with the whole batch."""

import copy
import time
from functools import partial

import pytest
import torch
from ranks import PROMPT_S, outcomes_of
from torch import nn
from training import ADAMW, MLP, SGD, assert_same, here, loss_of, on_ranks, seeded, train, weights

import gpucomm
from gpucomm.errors import ClosedError, InvalidArgumentError, MismatchError, RankFailedError
from gpucomm.optim import LayerwiseBSP


def train_layerwise(comm, template=MLP, make=SGD, steps=4, **options):
    model = here(template)
    opt = LayerwiseBSP(make(model.parameters()), model, comm, **options)
    for step in range(steps):
        opt.zero_grad()
        loss_of(model, comm, step).backward()
        opt.step()
    opt.synchronize()
    return weights(model)


@pytest.mark.parametrize("algorithm", ["auto", "linear_pipeline", "binomial_tree", "bidirectional_exchange"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_trains_as_one_process_does(world, algorithm):
    results = on_ranks(world, partial(train_layerwise, algorithm=algorithm, root=world - 1))
    assert_same(results, train(None), atol=1e-6)


def test_only_the_root_has_optimizer_state():
    def body(comm):
        model = here(MLP)
        opt = LayerwiseBSP(ADAMW(model.parameters()), model, comm, root=1)
        schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
        for step in range(3):
            opt.zero_grad()
            loss_of(model, comm, step).backward()
            opt.step()
            schedule.step()
        opt.synchronize()
        assert opt.stats()["steps"] == 3
        return len(opt.state_dict()["state"]), weights(model)

    results = on_ranks(3, body)
    assert [states for states, _ in results] == [0, 6, 0]
    assert_same([final for _, final in results], results[1][1], atol=0)


def test_the_bits_do_not_depend_on_the_segments():
    runs = [
        on_ranks(3, partial(train_layerwise, algorithm="linear_pipeline", segments=m))[0] for m in (1, 2, 5)
    ]
    assert all(torch.equal(run, runs[0]) for run in runs)


def test_the_model_and_its_buffers_are_the_roots():
    def body(comm):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2).bfloat16())
        model[2].weight.requires_grad_(False)
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.fill_(comm.rank + 1)
        LayerwiseBSP(SGD([model[0].weight]), model, comm, root=2)
        return {tensor.float().max().item() for tensor in [*model.parameters(), *model.buffers()]}

    assert on_ranks(3, body) == [{3.0}] * 3


class Reads(nn.Module):
    """Reads the weights of a submodule without calling it, and those of another twice."""

    def __init__(self):
        super().__init__()
        self.first, self.silent = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return nn.functional.linear(self.first(self.first(x).tanh()), self.silent.weight)


def test_weights_that_are_read_outside_their_own_forward():
    template = seeded(Reads)
    assert_same(on_ranks(3, partial(train_layerwise, template=template)), train(None, template=template))


@pytest.mark.parametrize("parts", [lambda model: [model], lambda model: list(model)])
def test_state_dict_waits_for_the_weights(parts):
    """Of the whole model, and of its modules one by one."""

    def body(comm):
        model = here(MLP)
        opt = LayerwiseBSP(SGD(model.parameters()), model, comm)
        loss_of(model, comm, 0).backward()
        opt.step()
        states = [part.state_dict() for part in reversed(parts(model))]  # the first one comes last
        return torch.cat([x.reshape(-1).double() for state in reversed(states) for x in state.values()])

    with gpucomm.local(3, threads=True, timeout=20, links="switch:100Mbit,latency=5ms") as ranks:
        assert_same(ranks.run(body), train(None, steps=1))


@pytest.mark.parametrize("parts", [lambda model: [model], lambda model: list(model)])
def test_load_state_dict_waits_for_the_weights(parts):
    def body(comm):
        model = here(MLP)
        opt = LayerwiseBSP(SGD(model.parameters()), model, comm)
        loss_of(model, comm, 0).backward()
        opt.step()
        for part, saved in zip(parts(model), parts(MLP), strict=True):
            part.load_state_dict(saved.state_dict())
        opt.synchronize()
        return weights(model)

    with gpucomm.local(3, threads=True, timeout=20, links="switch:100Mbit,latency=5ms") as ranks:
        assert_same(ranks.run(body), weights(MLP), atol=0)


def test_a_state_is_taken_back():
    """Rates on all ranks; what Adam keeps on the root alone, so that training goes on to the bit."""

    def go_on(comm, model, opt, steps):
        for step in steps:
            opt.zero_grad()
            loss_of(model, comm, step).backward()
            opt.step()
        return copy.deepcopy(model.state_dict())

    def body(comm):
        model = here(MLP)
        opt = LayerwiseBSP(ADAMW(model.parameters()), model, comm, root=1)
        saved = go_on(comm, model, opt, range(2))
        opt.param_groups[0]["lr"] = 0.5
        state = comm.broadcast_object(copy.deepcopy(opt.state_dict()), root=1, pickle=True)
        expected = go_on(comm, model, opt, range(2, 4))
        model = here(MLP)
        model.load_state_dict(saved)
        again = LayerwiseBSP(ADAMW(model.parameters()), model, comm, root=1)
        again.load_state_dict(state)
        assert again.param_groups is again.inner.param_groups and again.param_groups[0]["lr"] == 0.5
        got = go_on(comm, model, again, range(2, 4))
        assert all(torch.equal(got[name], expected[name]) for name in expected)
        return len(again.inner.state)

    assert on_ranks(2, body) == [0, 6]


def test_a_group_of_parameters_that_the_model_had():
    def body(comm):
        model = here(MLP)
        opt = SGD(model[:4].parameters())
        opt = opt if comm is None else LayerwiseBSP(opt, model, comm)
        opt.add_param_group({"params": model[4].parameters(), "lr": 0.05})
        for step in range(3):
            model.zero_grad()
            loss_of(model, comm, step).backward()
            opt.step()
        if comm is not None:
            opt.synchronize()
        return weights(model)

    assert_same(on_ranks(2, body), body(None))


def test_a_group_of_new_parameters_is_refused():
    def body(comm):
        model = here(MLP)
        opt = LayerwiseBSP(SGD(model.parameters()), model, comm)
        new = [nn.Parameter(model[0].weight.new_zeros(shape)) for shape in [(3, 2), 3]]
        with pytest.raises(InvalidArgumentError, match=rf"of shape \(3, 2\) that was not .*{comm.rank} of 2"):
            opt.add_param_group({"params": new})
        assert len(opt.param_groups) == 1

    on_ranks(2, body)


def test_a_step_that_fails_on_the_root_is_told_to_who_wait_for_its_weights():
    def body(comm):
        model = here(MLP)
        opt = LayerwiseBSP(SGD(model.parameters()), model, comm)
        if comm.rank == 0:
            opt.inner.register_step_pre_hook(lambda *_: 1 / 0)
        loss_of(model, comm, 0).backward()
        begin = time.monotonic()
        with pytest.raises(ZeroDivisionError if comm.rank == 0 else MismatchError) as caught:
            opt.step()
            opt.synchronize()
        assert comm.rank == 0 or "LayerwiseBSP.step #" in str(caught.value)
        return time.monotonic() - begin

    assert max(on_ranks(2, body)) < PROMPT_S


def test_a_discarded_optimizer_leaves_the_model_alone():
    def body(comm):
        model = here(MLP)
        LayerwiseBSP(SGD(model.parameters()), model, comm)
        before = comm.stats()["calls"]
        loss_of(model, comm, 0).backward()
        model.state_dict()
        return comm.stats()["calls"] - before

    assert on_ranks(2, body) == [0, 0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"root": 2}, r"root must be in \[0, 2\), got 2"),
        ({"algorithm": "ring"}, "'ring' does not offer reduce"),
        ({"algorithm": "nope"}, "unknown algorithm 'nope'"),
        ({"segments": -1}, "segments must be None or from 1 to 4096, got -1"),
    ],
)
def test_bad_arguments_are_sentences(options, sentence):
    def body(comm):
        with pytest.raises(InvalidArgumentError, match=sentence):
            LayerwiseBSP(SGD(MLP.parameters()), MLP, comm, **options)

    on_ranks(2, body)


def test_the_ranks_must_wrap_alike():
    with pytest.raises(RankFailedError, match=r"MismatchError.*root=") as caught:
        on_ranks(2, lambda comm: train_layerwise(comm, root=comm.rank))
    assert isinstance(caught.value.__cause__, MismatchError)


def test_what_step_refuses():
    def body(comm):
        model = here(MLP)
        model[0].bias.requires_grad_(False)
        opt = LayerwiseBSP(SGD(model.parameters()), model, comm)
        with pytest.raises(InvalidArgumentError, match=rf"takes no closure \(rank {comm.rank} of 2\)"):
            opt.step(lambda: None)
        model[0].bias.requires_grad_(True)
        with pytest.raises(InvalidArgumentError, match=r"'0.bias' was unfrozen after wrapping"):
            opt.step()

    on_ranks(2, body)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_that_one_rank_refuses_is_told_to_the_others(rank):
    def body(comm):
        model = here(MLP)
        model[0].bias.requires_grad_(False)
        opt = LayerwiseBSP(SGD(model.parameters()), model, comm)
        model[0].bias.requires_grad_(comm.rank == rank)
        begin = time.monotonic()
        with pytest.raises(
            InvalidArgumentError if comm.rank == rank else MismatchError, match="unfrozen after"
        ):
            for step in range(2):
                loss_of(model, comm, step).backward()
                opt.step()
            opt.synchronize()
        assert time.monotonic() - begin < PROMPT_S
        while not comm.closed:  # who has refused waits for the others here, whom its end would tell too
            assert time.monotonic() - begin < 2 * PROMPT_S
            time.sleep(0.01)

    on_ranks(3, body)


@pytest.mark.parametrize("ranks", [[0], [1], [0, 2], [0, 1, 2]])
def test_what_is_frozen_after_wrapping_is_so_on_all_ranks(ranks):
    def body(comm):
        model = here(MLP)
        opt = LayerwiseBSP(SGD(model.parameters()), model, comm)
        model[0].bias.requires_grad_(comm.rank not in ranks)
        for step in range(2):
            loss_of(model, comm, step).backward()
            opt.step()
        opt.synchronize()
        return torch.equal(model[0].bias, MLP[0].bias)

    if len(ranks) == 3:
        assert on_ranks(3, body) == [True] * 3
    else:
        for outcome in outcomes_of(3, body):
            assert isinstance(outcome, MismatchError | ClosedError)
            assert all(f"{count} of its parameters not frozen" in str(outcome) for count in (1, 2))


def test_gradients_of_several_backwards_do_not_add_up():
    def body(comm):
        model = here(MLP)
        opt = LayerwiseBSP(SGD(model.parameters()), model, comm)
        for _ in range(2):
            loss_of(model, comm, 0).backward()
        with pytest.raises(InvalidArgumentError, match=rf"several backward.*rank {comm.rank} of 2"):
            opt.step()
        opt.zero_grad()
        for step in range(3):  # none is left over: step() clears them
            loss_of(model, comm, step).backward()
            opt.step()
        opt.synchronize()
        return weights(model)

    assert_same(on_ranks(2, body), train(None, steps=3))
