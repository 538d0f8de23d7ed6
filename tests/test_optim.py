"""DistributedOptimizer: several ranks train as one process would with the whole batch, bit for bit alike."""

import copy
import io
import pickle
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import gpucomm
from gpucomm import exchange
from gpucomm.errors import Error, InvalidArgumentError, MismatchError, RankFailedError, UnsupportedTypeError
from gpucomm.optim import DistributedOptimizer

BATCH = 24  # divisible by 2, 3 and 4
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=0.01)


@pytest.fixture(autouse=True)
def one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def seeded(make, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


MLP = seeded(mlp)  # ranks are threads, which share torch's generator: they copy one model
INPUTS = torch.randn(8, BATCH, 6, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randn(8, BATCH, 3, generator=torch.Generator().manual_seed(2))


def on_ranks(world, fn, *args):
    with gpucomm.local(world, threads=True, timeout=20) as ranks:
        return ranks.run(fn, *args)


def share(comm, tensor):
    return tensor if comm is None else tensor.chunk(comm.world)[comm.rank]


def loss_of(model, comm, step):
    return (model(share(comm, INPUTS[step])) - share(comm, TARGETS[step])).square().mean()


def wrap(optimizer, model, comm, **options):
    return optimizer if comm is None else DistributedOptimizer(optimizer, model, comm, **options)


def weights(model):
    return torch.cat([param.detach().reshape(-1).double() for param in model.parameters()])


def train(comm, template=MLP, make=SGD, steps=4, loss=loss_of, **options):
    """Trains a copy of the template; comm None is the single process, with the whole batch."""
    model = copy.deepcopy(template)
    opt = wrap(make(model.parameters()), model, comm, **options)
    for step in range(steps):
        opt.zero_grad()
        loss(model, comm, step).backward()
        opt.step()
    return weights(model)


def assert_same(results, expected, atol=1e-6):
    for result in results:
        assert torch.equal(result, results[0]), "the ranks differ"
    torch.testing.assert_close(results[0], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("make", [SGD, ADAMW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("merge", ["per_tensor", "one", "200B"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_trains_as_one_process_does(world, merge, make):
    results = on_ranks(world, partial(train, make=make, merge=merge))
    assert_same(results, train(None, make=make), atol=1e-5)


@pytest.mark.processes
def test_trains_as_one_process_does_over_processes():
    with gpucomm.local(2, timeout=60) as ranks:
        results = ranks.run(train_in_process)
    assert results[0] == results[1]
    np.testing.assert_allclose(results[0], train(None).numpy(), rtol=0, atol=1e-6)


def train_in_process(comm):
    torch.set_num_threads(1)
    return train(comm, merge="200B").tolist()


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


class Spy(exchange.Dense):
    """Tells when buckets leave and which are waited for, and keeps a state."""

    name = "spy"

    def __init__(self, comm, **options):
        super().__init__(comm, **options)
        self.log, self.waited, self.state = [], [], {}

    def start(self, buffer, parts):
        work, names = super().start(buffer, parts), [part.name for part in parts]
        self.log.append(names)

        def wait(timeout=None):
            self.waited.append(names)
            return work.wait(timeout)

        return SimpleNamespace(wait=wait, done=work.done)

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


@pytest.fixture
def spy(monkeypatch):
    monkeypatch.setitem(exchange.base._exchanges, "spy", Spy)


def test_gradients_leave_while_backward_still_runs(spy):
    def body(comm):
        model = copy.deepcopy(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, merge="per_tensor", exchange="spy")
        log = opt._exchange.log
        model[0].weight.register_hook(lambda _: log.append("the last gradient"))
        loss_of(model, comm, 0).backward()
        return log

    for log in on_ranks(2, body):
        assert log[:4] == [["4.bias"], ["4.weight"], ["2.bias"], ["2.weight"]]
        assert log[-1] == ["0.weight"]
        assert "the last gradient" in log[4:-1]


@pytest.mark.parametrize("quiet", [True, False], ids=["no_sync", "synchronised"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulation(quiet, set_to_none):
    def body(comm):
        model = copy.deepcopy(MLP)
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
        model = copy.deepcopy(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        with opt.no_sync():
            loss_of(model, comm, 0).backward()
        with pytest.raises(InvalidArgumentError, match=rf"no_sync.*rank {comm.rank} of {world}"):
            opt.step()
        opt.synchronize()
        opt.step()
        return weights(model)

    assert_same(on_ranks(world, body), train(None, steps=1))


def test_a_rank_without_a_batch_takes_part_by_synchronize():
    def body(comm):
        model = copy.deepcopy(MLP)
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
        model = copy.deepcopy(template)
        opt = wrap(ADAMW(model.parameters(), weight_decay=0.5), model, comm, merge=merge)
        for step in range(3):
            opt.zero_grad(set_to_none)
            for rank in (
                range(3) if comm is None else [comm.rank]
            ):  # only rank 1 uses the branch, and not at first
                output = model(INPUTS[step].chunk(3)[rank], some=rank == 1 and step > 0)
                loss = (output - TARGETS[step].chunk(3)[rank]).square().mean()
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


def test_unfreezing_needs_zero_grad():
    def body(comm):
        model = copy.deepcopy(MLP)
        model[0].requires_grad_(False)
        opt = wrap(SGD(model.parameters()), model, comm)
        for step in range(3):
            opt.zero_grad()
            if step == 0 and comm is not None:
                model[0].requires_grad_(True)
                loss_of(model, comm, 0).backward()
                with pytest.raises(InvalidArgumentError, match=r"'0\.weight' was unfrozen"):
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
        model, scale = copy.deepcopy(MLP), nn.Parameter(torch.ones(()))
        opt = wrap(SGD([*model[:3].parameters(), scale]), model, comm)
        for step in range(3):
            opt.zero_grad()
            model[4].zero_grad()
            (scale * loss_of(model, comm, step)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            opt.step()
        return torch.cat([weights(model), scale.detach().double().reshape(1)])

    assert_same(on_ranks(2, body), body(None))


def test_several_optimizers_of_one_model():
    def body(comm):
        model = copy.deepcopy(MLP)
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
        model = copy.deepcopy(MLP)
        old, new = (DistributedOptimizer(SGD(model.parameters()), model, comm) for _ in range(2))
        loss_of(model, comm, 0).backward()
        with pytest.raises(InvalidArgumentError, match="use the newer"):
            old.step()
        new.step()
        return weights(model)

    assert_same(on_ranks(2, body), train(None, steps=1))


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
        model = copy.deepcopy(MLP)
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
        model = copy.deepcopy(MLP)
        opt = wrap(torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn=search), model, comm)

        def closure():
            opt.zero_grad()
            loss = loss_of(model, comm, 0)
            loss.backward()
            return loss

        losses = [opt.step(closure).detach().double() for _ in range(2)]
        return torch.cat([weights(model), torch.stack(losses)])

    assert_same(on_ranks(4, body), body(None), atol=1e-4)


def test_a_closure_must_make_global_gradients():
    def body(comm):
        model = copy.deepcopy(MLP)
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
        model = copy.deepcopy(MLP)
        opt = wrap(torch.optim.AdamW(model.parameters(), 0.01, fused=fused), model, comm, merge="200B")
        assert getattr(opt, "_step_supports_amp_scaling", False) == fused
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
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
        model = copy.deepcopy(MLP)
        opt = wrap(SGD(model.parameters()), model, comm, merge="per_tensor")
        norms = []
        for step in range(3):
            opt.zero_grad()
            loss_of(model, comm, step).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).double())
            opt.step()
        return torch.cat([weights(model), torch.stack(norms)])

    assert_same(on_ranks(3, body), body(None))


def test_checkpoints_are_exchangeable_with_a_plain_optimizer():
    def go_on(comm, model, opt, steps):
        for step in steps:
            opt.zero_grad()
            loss_of(model, comm, step).backward()
            opt.step()

    def body(comm):
        model = copy.deepcopy(MLP)
        opt = wrap(ADAMW(model.parameters()), model, comm)
        go_on(comm, model, opt, range(2))
        saved = copy.deepcopy([model.state_dict(), opt.state_dict()])
        assert comm is None or saved[1]["gpucomm"] == {"merge": "25MB", "exchange": "dense", "state": {}}
        results = []
        for state in [saved[1], {k: v for k, v in saved[1].items() if k != "gpucomm"}]:
            model.load_state_dict(saved[0])
            opt = wrap(ADAMW(model.parameters()), model, comm)
            opt.load_state_dict(copy.deepcopy(state))  # torch keeps the tensors that it is given
            go_on(comm, model, opt, range(2, 4))
            results.append(weights(model))
        assert torch.equal(*results)
        plain = ADAMW(copy.deepcopy(MLP).parameters())
        plain.load_state_dict(saved[1])
        assert plain.state_dict()["state"][0]["step"] == 2
        return results[0]

    assert_same(on_ranks(2, body), body(None), atol=1e-5)


def test_the_state_of_an_exchange_is_saved_and_loaded(spy):
    def body(comm):
        model = copy.deepcopy(MLP)
        one, other, dense = (
            DistributedOptimizer(SGD(model.parameters()), model, comm, exchange=name)
            for name in ("spy", "spy", "dense")
        )
        one._exchange.state = {"0.weight": comm.rank}
        saved = copy.deepcopy(one.state_dict())
        other.load_state_dict(saved)
        dense.load_state_dict(saved)  # left aside: it is another exchange's
        assert other._exchange.state == {"0.weight": comm.rank}
        with pytest.raises(InvalidArgumentError, match=r"dense.*keeps no state.*0\.weight"):
            dense._exchange.load_state_dict({"0.weight": 1})

    on_ranks(2, body)


def test_add_param_group_takes_the_new_parameters_from_rank_0():
    template = seeded(lambda: nn.Linear(3, 3), 5)

    def body(comm):
        model = copy.deepcopy(MLP)
        opt = wrap(SGD(model.parameters()), model, comm)
        for step in range(4):
            if step == 2:
                model.append(copy.deepcopy(template))
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


def conv():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.Conv2d(4, 3, (1, 2)), nn.Flatten()
    )


def test_gradients_keep_the_strides_of_their_parameters():
    template = seeded(conv).to(memory_format=torch.channels_last)
    template[1].bias = nn.Parameter(torch.linspace(0, 1, 8)[::2])  # strides with gaps

    def body(comm):
        model = copy.deepcopy(template)
        model[1].bias = nn.Parameter(torch.linspace(0, 1, 8)[::2])
        opt = wrap(SGD(model.parameters()), model, comm)
        for step in range(3):
            opt.zero_grad()
            loss_of(model, comm, step).backward()
            assert model[2].weight.grad.stride() == model[2].weight.stride()
            opt.step()
        return weights(model)

    assert_same(on_ranks(2, body), body(None))


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


class Fault(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ZeroDivisionError("a fault of the user's")


def test_training_goes_on_after_a_backward_that_failed_half_way():
    def body(comm):
        model = copy.deepcopy(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, merge="per_tensor")
        with pytest.raises(ZeroDivisionError):
            model[4](Fault.apply(model[:4](share(comm, INPUTS[0])))).sum().backward()
        with pytest.raises(InvalidArgumentError, match=r"failed half-way.*zero_grad"):
            opt.step()
        with pytest.raises(InvalidArgumentError, match=r"an earlier backward\(\) ended in an exception"):
            loss_of(model, comm, 0).backward()
        opt.zero_grad()
        loss_of(model, comm, 0).backward()
        opt.step()
        return weights(model)

    assert_same(on_ranks(2, body), train(None, steps=1))


def test_zero_grad_waits_for_what_a_failed_backward_has_sent(spy):
    def body(comm):
        model = copy.deepcopy(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, merge="per_tensor", exchange="spy")
        with pytest.raises(ZeroDivisionError):
            model[4](Fault.apply(model[:4](share(comm, INPUTS[0])))).sum().backward()
        assert (opt._exchange.log, opt._exchange.waited) == ([["4.bias"], ["4.weight"]], [])
        opt.zero_grad()
        return opt._exchange.waited

    assert on_ranks(2, body) == [[["4.bias"], ["4.weight"]]] * 2


def test_a_failed_backward_that_had_sent_nothing_needs_no_care():
    def body(comm):
        model = copy.deepcopy(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, merge="one")
        with pytest.raises(ZeroDivisionError):
            model[4](Fault.apply(model[:4](share(comm, INPUTS[0])))).sum().backward()
        model.zero_grad()
        loss_of(model, comm, 0).backward()
        opt.step()
        return weights(model)

    assert_same(on_ranks(2, body), train(None, steps=1))


def test_a_fault_of_a_collective_surfaces_from_backward():
    def body(comm):
        model = copy.deepcopy(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, merge="per_tensor")
        with pytest.raises(Error) as error:
            if comm.rank == 1:
                comm.all_reduce(np.zeros(7))
            else:
                loss_of(model, comm, 0).backward()
        opt.zero_grad()
        with pytest.raises(Error):
            loss_of(model, comm, 0).backward()
        return type(error.value)

    assert on_ranks(2, body) == [MismatchError, MismatchError]


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (
            lambda: nn.Linear(6, 4),
            "rank 2 differs: rank 2 has 2 parameters of 28 elements in 1 buckets and rank 0",
        ),
        (lambda: nn.Linear(6, 3).double(), "rank 2 differs"),
        (lambda: nn.Linear(6, 3).requires_grad_(False), "0 buckets"),
    ],
)
def test_different_models_are_found_at_wrapping(odd, text):
    def body(comm):
        model = odd() if comm.rank == 2 else nn.Linear(6, 3)
        with pytest.raises(MismatchError, match=text):
            DistributedOptimizer(SGD(model.parameters()), model, comm)

    on_ranks(4, body)


def test_different_settings_are_found_at_wrapping():
    def body(comm):
        model = copy.deepcopy(MLP)
        with pytest.raises(MismatchError, match="rank 1 differs"):
            DistributedOptimizer(
                SGD(model.parameters()), model, comm, algorithm=["ring", "direct"][comm.rank]
            )

    on_ranks(2, body)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"merge": "many"}, r"per_tensor.*'many'"),
        ({"exchange": "sparse"}, r"one of dense.*'sparse'"),
        ({"algorithm": "teleport"}, "teleport"),
        ({"model": "MLP"}, "torch.nn.Module, got str"),
        ({"optimizer": "SGD"}, "torch.optim.Optimizer, got str"),
    ],
)
@pytest.mark.parametrize("world", [1, 2])
def test_bad_arguments_are_refused_at_wrapping(world, change, text):
    def body(comm):
        model = copy.deepcopy(MLP)
        arguments = {"optimizer": SGD(model.parameters()), "model": model, "comm": comm} | change
        with pytest.raises(InvalidArgumentError, match=text):
            DistributedOptimizer(**arguments)

    on_ranks(world, body)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_gradients_that_cannot_be_exchanged_are_refused():
    def body(comm):
        embedding = nn.Embedding(4, 2, sparse=True)
        opt = DistributedOptimizer(SGD(embedding.parameters()), embedding, comm)
        with pytest.raises(UnsupportedTypeError, match=r"'weight'.*sparse=False"):
            embedding(torch.tensor([1])).sum().backward()
        model = copy.deepcopy(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        with pytest.raises(InvalidArgumentError, match="carries a graph"):
            loss_of(model, comm, 0).backward(create_graph=True)
        model = nn.Linear(2, 2, dtype=torch.complex64)
        with pytest.raises(UnsupportedTypeError, match=r"'bias'.*complex64"):
            opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        del opt

    on_ranks(2, body)


def test_models_are_copied_and_saved_as_ever_but_the_wrapper_is_not():
    def body(comm):
        model = copy.deepcopy(MLP)
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
        model = copy.deepcopy(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        hooks = model[0].weight._post_accumulate_grad_hooks
        assert len(hooks) == 1
        del opt
        assert len(hooks) == 0

    on_ranks(2, body)


def test_stats_count_what_was_sent():
    def body(comm):
        model = copy.deepcopy(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, merge="one", algorithm="ring")
        for step in range(3):
            opt.zero_grad()
            loss_of(model, comm, step).backward()
            opt.step()
        return opt.stats()

    ranks = on_ranks(4, body)
    elements = sum(param.numel() for param in MLP.parameters()) + 6  # and a mark per parameter
    assert sum(stats["bytes_per_step"] for stats in ranks) == 2 * 3 * elements * 4
    for stats in ranks:
        assert stats["steps"] == stats["rounds"] == 3
        assert stats["exposed_s"] > 0
        assert stats["hooks_s"] > 0
    (alone,) = on_ranks(1, body)
    assert alone["steps"] == 3
    assert alone["bytes_per_step"] == 0


def test_a_rank_that_fails_does_not_leave_the_others_waiting():
    def body(comm):
        model = copy.deepcopy(MLP)
        DistributedOptimizer(SGD(model.parameters()), model, comm)
        if comm.rank == 1:
            raise KeyError("no batch")
        loss_of(model, comm, 0).backward()

    with pytest.raises(RankFailedError, match="no batch"):
        on_ranks(3, body)
