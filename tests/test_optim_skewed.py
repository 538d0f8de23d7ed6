"""Ranks that do different things with their optimizers, and what else changes gradients on their way."""

import numpy as np
import pytest
import torch
from conftest import pairs
from ranks import outcomes_of, run_ranks
from training import MLP, SGD, assert_same, go_on, here, loss_of, on_ranks, weights

from gpucomm.errors import ClosedError, MismatchError
from gpucomm.exchange import Dense
from gpucomm.optim import DistributedOptimizer, LayerwiseBSP


def test_buckets_of_two_optimizers_do_not_mix():
    """Two of one size, which one rank uses in another order."""

    def body(comm):
        models = [here(MLP) for _ in range(2)]
        _kept = [DistributedOptimizer(SGD(model.parameters()), model, comm) for model in models]
        for model in models if comm.rank else reversed(models):
            loss_of(model, comm, 0).backward()

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError | ClosedError)
        assert "bucket 0 in round 0 of optimizer 1" in str(error) and "of optimizer 2" in str(error)


def test_weights_of_two_optimizers_do_not_mix():
    def body(comm):
        models = [here(MLP) for _ in range(2)]
        opts = [LayerwiseBSP(SGD(model.parameters()), model, comm) for model in models]
        for model in models:
            loss_of(model, comm, 0).backward()
        for opt in opts if comm.rank else reversed(opts):
            opt.step()
        for step in range(1, 3):  # the root, which only sends weights, hears of it in what comes back
            for model in models:
                loss_of(model, comm, step).backward()
            for opt in opts:
                opt.step()

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError | ClosedError)
        assert "bucket 0 in round 0 of optimizer 1" in str(error) and "of optimizer 2" in str(error)


def test_optimizers_with_communicators_of_their_own_may_be_used_in_any_order():
    def body(comm):
        models = [here(MLP) for _ in range(2)]
        opts = [SGD(model.parameters()) for model in models]
        if comm:
            pairs_of = zip(opts, models, strict=True)
            opts = [DistributedOptimizer(opt, model, comm.split(0)) for opt, model in pairs_of]
        for step in range(3):
            losses = [loss_of(model, comm, step) for model in models]
            total = losses[0] + losses[1] if comm and comm.rank else losses[1] + losses[0]
            for opt in opts:
                opt.zero_grad()
            total.backward()
            for opt in opts:
                opt.step()
        return torch.cat([weights(model) for model in models])

    assert_same(on_ranks(2, body), body(None))


def test_a_round_that_one_rank_alone_gives_up_is_found():
    """Rank 1's backward fails once some buckets have left, and it goes on with the next step."""

    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, merge="per_tensor")
        if comm.rank:
            fails = model[0].weight.register_hook(lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                loss_of(model, comm, 0).backward()
            fails.remove()
            opt.zero_grad()
        for step in range(2):
            loss_of(model, comm, step).backward()
            opt.step()

    for error in outcomes_of(2, body):
        assert isinstance(error, MismatchError | ClosedError)
        assert "in round 1 of optimizer 1" in str(error) and "in round 0 of optimizer 1" in str(error)


def halve(parameter):
    parameter.grad.mul_(0.5)


@pytest.mark.parametrize("merge", ["per_tensor", "25MB"])
def test_hooks_that_come_after_wrapping_change_the_gradient_before_it_leaves(merge):
    def body(comm=None):
        model = here(MLP)
        opt = SGD(model.parameters())
        if comm:
            opt = DistributedOptimizer(opt, model, comm, merge=merge)
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(halve)
        go_on(model, opt, comm, range(4))
        return weights(model)

    assert_same(on_ranks(2, body), body())


@pytest.mark.parametrize(("collective", "algorithm"), pairs("all_reduce"))
def test_a_mean_of_float16_that_fits_is_finite(collective, algorithm):
    """Whatever partial sums there are on its way."""

    def body(comm):
        x = np.full(1000, 30_000, np.float16)
        Dense(comm, algorithm=algorithm).start(x, []).wait()
        y = torch.full((1000,), 30_000, dtype=torch.bfloat16)
        Dense(comm, algorithm=algorithm).start(y, []).wait()
        return x.tolist(), y.tolist()

    for half, brain in run_ranks(4, body):
        assert half == [30_000] * 1000 and set(brain) == {29_952}
