"""Training on a GPU: the tests of the host once more, between ranks that are threads on one GPU."""

# ruff: noqa: F401  pytest collects what is imported

import copy

import pytest
import test_ddp_hook
import test_optim_layerwise
import torch
import training
from test_exchange_coded import (
    test_a_scaler_skips_the_step_and_training_goes_on,
    test_ranks_stay_the_same_to_the_bit,
    test_the_sum_of_many_steps_is_exact_up_to_what_is_held,
)
from test_optim import (
    test_a_rank_without_a_batch_takes_part_by_synchronize,
    test_accumulation,
    test_parameters_of_the_optimizer_alone_and_of_the_model_alone,
    test_several_optimizers_of_one_model,
    test_step_refuses_gradients_that_are_local,
    test_trains_as_one_process_does,
    test_unused_parameters,
)
from test_optim_rounds import (
    spy,
    test_gradients_leave_while_backward_still_runs,
    test_training_goes_on_after_a_backward_that_failed_half_way,
)
from test_optim_torch import (
    test_an_overflow_on_one_rank_makes_all_skip,
    test_clipping_sees_the_global_gradient,
    test_half_and_single_precision_in_one_model,
    test_lbfgs_decides_by_the_global_loss,
    test_schedulers,
)
from training import ADAMW, MLP, SGD, assert_same, here, loss_of, on_ranks, train, weights

from gpucomm.optim import DistributedOptimizer, LayerwiseBSP

test_ddp_trains_as_one_process_does = test_ddp_hook.test_dense_trains_as_one_process_does
test_ddp_with_codecs = test_ddp_hook.test_codecs_train_the_ranks_alike
test_ddp_skips_with_a_scaler = test_ddp_hook.test_an_overflow_on_one_rank_makes_all_skip
test_layerwise_trains_as_one_process_does = test_optim_layerwise.test_trains_as_one_process_does
test_layerwise_gradients_do_not_add_up = (
    test_optim_layerwise.test_gradients_of_several_backwards_do_not_add_up
)
test_layerwise_weights_read_elsewhere = (
    test_optim_layerwise.test_weights_that_are_read_outside_their_own_forward
)

# What torch warns of on a GPU has never been seen here.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    monkeypatch.setattr(training, "DEVICE", "cuda")


@pytest.mark.parametrize("exchange", ["dense", "int8"])
def test_as_on_the_host(monkeypatch, exchange):
    on_gpu = on_ranks(2, lambda comm: train(comm, exchange=exchange, merge="200B"))
    monkeypatch.setattr(training, "DEVICE", "cpu")
    assert_same(on_gpu, train(None), atol=1e-5 if exchange == "dense" else 0.02)


def test_forward_and_backward_on_streams_of_their_own():
    """Each step runs on a stream that knows nothing of the last one but what it waits for."""

    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, merge="200B", exchange="bf16")
        streams = [torch.cuda.Stream() for _ in range(4)]
        before = torch.cuda.current_stream()
        for step, stream in enumerate(streams):
            stream.wait_stream(before)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(10**6 * (comm.rank + 1))
                opt.zero_grad()
                loss_of(model, comm, step).backward()
                opt.step()
            before = stream
        torch.cuda.current_stream().wait_stream(before)
        return weights(model)

    assert_same(on_ranks(2, body), train(None), atol=0.02)


def test_losses_fall():
    def body(comm, make):
        model = here(MLP)
        opt = make(ADAMW(model.parameters()), model, comm)
        losses = []
        for _ in range(40):
            opt.zero_grad()
            loss = loss_of(model, comm, 0)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        return losses[-1] < 0.9 * losses[0]

    for make in (DistributedOptimizer, LayerwiseBSP):
        assert on_ranks(2, body, make) == [True, True]


def test_residuals_are_saved_on_the_host_and_come_back():
    def body(comm):
        def wrapped(module):
            how = {"exchange": "int4", "algorithm": "coded_ring"}
            return DistributedOptimizer(SGD(module.parameters()), module, comm, **how)

        model = here(MLP)
        opt = wrapped(model)
        loss_of(model, comm, 0).backward()
        opt.step()
        state = copy.deepcopy(opt.state_dict())
        residuals = state["gpucomm"]["state"]["residuals"]
        assert {held.device.type for held in residuals.values()} == {"cpu"}
        assert any(held.any() for held in residuals.values())
        other = wrapped(copy.deepcopy(model))
        other.load_state_dict(state)
        again = other.state_dict()["gpucomm"]["state"]["residuals"]
        assert all(torch.equal(again[name], held) for name, held in residuals.items())

    on_ranks(2, body)


def test_two_devices_in_one_model():
    """Parameters on the host and on the GPU travel in buckets of their own."""

    def body(comm):
        model = torch.nn.Sequential(copy.deepcopy(MLP[:3]), here(MLP[3:]))
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, merge="one")
        assert [bucket[0][0] for bucket in opt.buckets] == ["1", "0"]
        for step in range(4):
            opt.zero_grad()
            out = model[1](here(model[0](training.share(comm, training.INPUTS[step]).cpu())))
            (out - training.share(comm, training.TARGETS[step])).square().mean().backward()
            opt.step()
        return torch.cat([weights(part) for part in model])

    assert_same(on_ranks(2, body), train(None), atol=1e-5)
