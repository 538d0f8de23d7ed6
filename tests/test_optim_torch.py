"""DistributedOptimizer among what PyTorch offers: schedulers, closures, scalers, clipping, checkpoints."""

import copy
import io
import pickle
import time
from functools import partial

import pytest
import torch
import training
from ranks import PROMPT_S
from torch import nn
from training import (
    ADAMW,
    INPUTS,
    MLP,
    SGD,
    TARGETS,
    assert_same,
    go_on,
    here,
    loss_of,
    on_ranks,
    seeded,
    share,
    train,
    weights,
    wrap,
)

from gpucomm.errors import InvalidArgumentError, MismatchError, UnsupportedTypeError
from gpucomm.optim import DistributedOptimizer


@pytest.mark.parametrize(
    "make_scheduler",
    [
        lambda opt: torch.optim.lr_scheduler.StepLR(opt, 2),
        lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=9),
        lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5),
        lambda opt: torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0),
    ],
    ids=["step", "one_cycle", "cosine", "plateau"],
)
def test_schedulers(make_scheduler):
    def body(comm):
        model = here(MLP)
        opt = wrap(SGD(model.parameters()), model, comm)
        scheduler = make_scheduler(opt)
        rates = []
        for step in range(4):
            opt.zero_grad()
            loss_of(model, comm, step).backward()
            opt.step()
            scheduler.step(*([1.0] if hasattr(scheduler, "patience") else []))
            rates.append(opt.param_groups[0]["lr"])
        return torch.cat([weights(model), torch.tensor(rates, dtype=torch.float64)])

    assert_same(on_ranks(2, body), body(None))


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_decides_by_the_global_loss(search):
    def body(comm):
        model = here(MLP)
        opt = wrap(torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn=search), model, comm)

        def closure():
            opt.zero_grad()
            loss = loss_of(model, comm, 0)
            loss.backward()
            return loss

        losses = [opt.step(closure).detach().double() for _ in range(2)]
        return torch.cat([weights(model), torch.stack(losses).cpu()])

    assert_same(on_ranks(4, body), body(None), atol=1e-4)


def test_the_loss_of_a_closure_is_not_rounded():
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)

        def closure(loss):
            opt.zero_grad()
            loss_of(model, comm, 0).backward()
            return loss

        assert opt.step(lambda: closure(3 + comm.rank)) == 3.5
        assert opt.step(lambda: closure(1 + 1e-12 * (1 + comm.rank))) == pytest.approx(1 + 1.5e-12, rel=1e-15)
        assert opt.step(lambda: closure(torch.tensor(3.0 + comm.rank))).dtype == torch.float32

    on_ranks(2, body)


def test_gradients_that_are_exchanged_by_hand():
    def body(comm):
        model = here(nn.ParameterList(torch.full((3,), n) for n in (1.0, 2.0)))
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        (model[0].sum() + 2 * model[1].sum()).backward()
        a, b = model
        a.grad, b.grad = b.grad, a.grad
        opt.synchronize()
        return a.grad.tolist(), b.grad.tolist()

    assert on_ranks(2, body) == [([2.0] * 3, [1.0] * 3)] * 2


def test_a_closure_must_make_global_gradients():
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)

        def closure():
            loss_of(model, comm, 0).backward()

        with opt.no_sync(), pytest.raises(InvalidArgumentError, match="no_sync"):
            opt.step(closure)
        assert opt.step(closure) is None

    on_ranks(2, body)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_an_overflow_on_one_rank_makes_all_skip(fused, clip):
    def body(comm):
        model = here(MLP)
        opt = wrap(torch.optim.AdamW(model.parameters(), 0.01, fused=fused), model, comm, merge="200B")
        assert getattr(opt, "_step_supports_amp_scaling", False) == fused
        scaler = torch.amp.GradScaler(training.DEVICE, init_scale=8.0)
        scales = []
        for step in range(4):
            opt.zero_grad()
            loss = loss_of(model, comm, step)
            overflow = step == 1 and (comm is None or comm.rank == 1)
            scaler.scale(loss * float("inf") if overflow else loss).backward()
            if clip:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(opt)
            scaler.update()
            scales.append(scaler.get_scale())
        assert scales == [8.0, 4.0, 4.0, 4.0]
        return weights(model)

    assert_same(on_ranks(2, body), body(None), atol=1e-5)


def test_clipping_sees_the_global_gradient():
    def body(comm):
        model = here(MLP)
        opt = wrap(SGD(model.parameters()), model, comm, merge="per_tensor")
        norms = []
        for step in range(3):
            opt.zero_grad()
            loss_of(model, comm, step).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).double())
            opt.step()
        return torch.cat([weights(model), torch.stack(norms).cpu()])

    assert_same(on_ranks(3, body), body(None))


def test_checkpoints_are_exchangeable_with_a_plain_optimizer():
    def body(comm):
        model = here(MLP)
        opt = wrap(ADAMW(model.parameters()), model, comm)
        go_on(model, opt, comm, range(2))
        saved = copy.deepcopy([model.state_dict(), opt.state_dict()])
        assert comm is None or saved[1]["gpucomm"] == {"merge": "25MB", "exchange": "dense", "state": {}}
        results = []
        for state in [saved[1], {k: v for k, v in saved[1].items() if k != "gpucomm"}]:
            model.load_state_dict(saved[0])
            opt = wrap(ADAMW(model.parameters()), model, comm)
            opt.load_state_dict(copy.deepcopy(state))  # torch keeps the tensors that it is given
            go_on(model, opt, comm, range(2, 4))
            results.append(weights(model))
        assert torch.equal(*results)
        plain = ADAMW(here(MLP).parameters())
        plain.load_state_dict(saved[1])
        assert plain.state_dict()["state"][0]["step"] == 2
        return results[0]

    assert_same(on_ranks(2, body), body(None), atol=1e-5)


def test_add_param_group_takes_the_new_parameters_from_rank_0():
    template = seeded(lambda: nn.Linear(3, 3), 5)

    def body(comm):
        model = here(MLP)
        opt = wrap(SGD(model.parameters()), model, comm)
        for step in range(4):
            if step == 2:
                model.append(here(template))
                with torch.no_grad():
                    model[5].weight += 0 if comm is None else comm.rank
                before = 0 if comm is None else comm.stats()["bytes_sent"]
                opt.add_param_group({"params": list(model[5].parameters()), "lr": 0.05})
                # Only the new ones travel: the old ones are the same everywhere already.
                assert comm is None or comm.stats()["bytes_sent"] - before < weights(MLP).numel() * 4
            opt.zero_grad()
            loss_of(model, comm, step).backward()
            opt.step()
        return weights(model)

    assert_same(on_ranks(2, body), body(None))


@pytest.mark.parametrize("world", [1, 2])
def test_a_refused_param_group_is_not_added(world):
    def body(comm):
        model = here(MLP)
        opt = wrap(SGD(model.parameters()), model, comm)
        with pytest.raises(UnsupportedTypeError, match="complex"):
            opt.add_param_group({"params": [nn.Parameter(torch.ones(3, dtype=torch.complex64))]})
        return len(opt.inner.param_groups)

    assert on_ranks(world, body) == [1] * world


def test_a_param_group_that_torch_refuses_on_one_rank_is_told_to_the_others():
    def body(comm):
        model = here(MLP)
        opt = wrap(SGD(model[:3].parameters()), model, comm)
        group = {"params": list(model[2 if comm.rank else 4].parameters())}
        begin = time.monotonic()
        with pytest.raises(ValueError if comm.rank else MismatchError, match="more than one parameter group"):
            opt.add_param_group(group)
        return len(opt.inner.param_groups), time.monotonic() - begin < PROMPT_S

    assert on_ranks(2, body) == [(1, True)] * 2


def test_half_and_single_precision_in_one_model():
    template = nn.Sequential(copy.deepcopy(MLP[0]), nn.Linear(8, 3).bfloat16())

    def loss(model, comm, step):
        output = model[1](model[0](share(comm, INPUTS[step])).bfloat16())
        return (output.float() - share(comm, TARGETS[step])).square().mean()

    assert_same(
        on_ranks(2, partial(train, template=template, loss=loss)), train(None, template, loss=loss), atol=0.02
    )


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_activations(reentrant):
    from torch.utils.checkpoint import checkpoint

    def loss(model, comm, step):
        hidden = share(comm, INPUTS[step]).clone().requires_grad_()
        for part in (model[:2], model[2:4], model[4:]):
            hidden = checkpoint(part, hidden, use_reentrant=reentrant)
        return (hidden - share(comm, TARGETS[step])).square().mean()

    assert_same(on_ranks(2, partial(train, loss=loss, merge="200B")), train(None))


def test_models_are_copied_and_saved_as_ever_but_the_wrapper_is_not():
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        loss_of(model, comm, 0).backward()
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        pickle.loads(pickle.dumps(model))
        loss_of(copy.deepcopy(model), None, 0).backward()  # the copy has no hooks: nothing is sent
        for spoil in (pickle.dumps, copy.deepcopy):
            with pytest.raises(UnsupportedTypeError, match="holds a communicator"):
                spoil(opt)
        assert repr(opt).startswith("DistributedOptimizer(SGD")
        assert opt.defaults["momentum"] == 0.9
        with pytest.raises(AttributeError):
            opt.no_such_thing
        return opt.stats()["rounds"]

    assert on_ranks(2, body) == [1, 1]


def test_a_discarded_wrapper_leaves_the_model_alone():
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        hooks = model[0].weight._post_accumulate_grad_hooks
        assert len(hooks) == 1
        del opt
        assert len(hooks) == 0

    on_ranks(2, body)
