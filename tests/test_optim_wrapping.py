"""What an optimizer may be wrapped around, wrapping again, and what leaves it as it was."""

import copy
import sys
import threading
import warnings
from collections import Counter
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from training import (
    ADAMW,
    INPUTS,
    MLP,
    SGD,
    assert_same,
    go_on,
    here,
    loss_of,
    on_ranks,
    seeded,
    train,
    weights,
)

from gpucomm.errors import InvalidArgumentError, MismatchError, UnsupportedTypeError
from gpucomm.optim import DistributedOptimizer, LayerwiseBSP, ddp, distributed

CODED = {"exchange": "int4", "algorithm": "coded_ring"}


@pytest.fixture
def alone():
    """A group of torch's of one rank, in which every rank here may shard and replicate its own model."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def by_ddp():
    return nn.parallel.DistributedDataParallel(nn.Linear(6, 3))


def by_fsdp1(**options):
    from torch.distributed.fsdp import FullyShardedDataParallel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one rank, and that it is old
        return FullyShardedDataParallel(nn.Linear(6, 3), device_id=torch.device("cpu"), **options)


def in_a_model(make):
    return lambda: nn.Sequential(nn.Linear(6, 6), nn.Sequential(make()))


@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (by_ddp, InvalidArgumentError, r"model is a DistributedDataParallel.*ddp\.use"),
        (in_a_model(by_ddp), InvalidArgumentError, r"module '1\.0' is a DistributedDataParallel"),
        (by_fsdp1, UnsupportedTypeError, r"model is a FullyShardedDataParallel.*fsdp\.use"),
        (lambda: by_fsdp1(use_orig_params=True), UnsupportedTypeError, "is a FullyShardedDataParallel"),
        (in_a_model(by_fsdp1), UnsupportedTypeError, r"module '1\.0' is a FullyShardedDataParallel"),
        (lambda: by_fsdp1().module, UnsupportedTypeError, r"parameter '\S+' is a FlatParameter.*fsdp\.use"),
    ],
    ids=["ddp", "ddp inside", "fsdp1", "fsdp1 as it was", "fsdp1 inside", "inside of fsdp1"],
)
def test_models_that_communicate_themselves_are_refused(alone, wrap, make, error, text):
    models = [make(), make()]

    def body(comm):
        model = models[comm.rank]
        before = weights(model).clone()
        with pytest.raises(error, match=rf"{text}.*rank {comm.rank} of 2"):
            wrap(SGD(model.parameters()), model, comm)
        assert torch.equal(weights(model), before)

    on_ranks(2, body)


def test_what_ddp_wraps_is_taken(alone):
    def body(comm):
        inside = nn.parallel.DistributedDataParallel(here(MLP)).module
        opt = DistributedOptimizer(SGD(inside.parameters()), inside, comm)
        go_on(inside, opt, comm, range(4))
        return weights(inside)

    assert_same(on_ranks(2, body), train(None))


compiled = partial(torch.compile, backend="eager")


def in_ddp(model):
    return nn.parallel.DistributedDataParallel(model)


def test_a_copy_of_what_has_a_hook_has_none_and_may_be_given_one(alone):
    def body(comm):
        model = in_ddp(here(MLP))
        ddp.use(model, comm)
        copied = copy.deepcopy(model)
        hook = ddp.use(copied, comm)
        copied(here(INPUTS[0])).sum().backward()
        return hook.stats()["rounds"]

    assert on_ranks(1, body) == [1]


def with_ddp_inside(model):
    model[0] = in_ddp(model[0])
    return model


@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
@pytest.mark.parametrize(
    ("outer", "words"),
    [
        (in_ddp, "runs inside a Distr"),
        (lambda model: in_ddp(nn.Sequential(model)), "runs inside a Distr"),
        (with_ddp_inside, "has a Distr"),
    ],
    ids=["the model", "one around it", "one in it"],
)
def test_ddp_that_comes_later_is_refused_where_it_would_average(alone, wrap, outer, words):
    turns = threading.Lock()  # torch knows one active DDP in a process

    def body(comm):
        model = here(MLP)
        opt = wrap(SGD(model.parameters()), model, comm)
        copied, late = in_ddp(copy.deepcopy(model)), outer(model)
        with turns:
            with pytest.raises(InvalidArgumentError, match=rf"{words}.*rank {comm.rank} of 2"):
                late(here(INPUTS[0]))
            with torch.no_grad():
                late(here(INPUTS[0]))
            copied(here(INPUTS[0]))
            del opt
            late(here(INPUTS[0]))

    on_ranks(2, body)


@pytest.mark.parametrize(
    "outer",
    [
        lambda model: in_ddp(compiled(model)),
        lambda model: compiled(in_ddp(model)),
        lambda model: model.compile(backend="eager") or in_ddp(model),
    ],
    ids=["around a compiled one", "compiled itself", "around one compiled in place"],
)
def test_ddp_is_seen_where_models_are_compiled(alone, outer):
    compiled(here(MLP))  # imports what it needs, before there are threads
    torch._dynamo.reset()  # what others have compiled of such models: dynamo does not look at their hooks
    turns = threading.Lock()

    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        late = outer(model)
        with turns:
            with pytest.raises(Exception, match=rf"runs inside a Distr.*rank {comm.rank} of 2"):
                late(here(INPUTS[0]))
            with torch.no_grad():
                late(here(INPUTS[0]))
        comm.barrier()  # a hook that has gone is not asked for: the code is compiled once for all models
        del opt
        with turns:
            late(here(INPUTS[0]))

    on_ranks(2, body)


def new_memory(model):
    for param in model.parameters():
        param.grad.data = param.grad.data.clone()


@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
@pytest.mark.parametrize("lead_away", [new_memory, lambda model: model.double().float()])
def test_gradients_that_got_other_memory_are_averaged(wrap, lead_away):
    def body(comm):
        model = here(MLP)
        opt = wrap(SGD(model.parameters()), model, comm)
        for step in range(4):
            go_on(model, opt, comm, [step])
            getattr(opt, "synchronize" if wrap is LayerwiseBSP else "stats")()
            if step == 1:
                for param in model.parameters():  # what the root alone has kept
                    param.grad = torch.zeros_like(param) if param.grad is None else param.grad
                lead_away(model)
        return weights(model)

    assert_same(on_ranks(2, body), train(None))


IMAGES = seeded(lambda: nn.Conv2d(3, 4, 3))


def in_channels_last(model):
    model.to(memory_format=torch.channels_last)


def of_fewer(model):
    model.weight.data = model.weight.data[:, :2].clone()


@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
@pytest.mark.parametrize(
    ("convert", "channels", "said"),
    [
        (nn.Module.double, 3, r"torch\.float64 on cpu by now, but was torch\.float32 on cpu"),
        (of_fewer, 2, r"of shape \(4, 2, 3, 3\) by now, but was of shape \(4, 3, 3, 3\)"),
        (in_channels_last, 3, r"of strides \(27, 1, 9, 3\) by now, but was of strides \(27, 9, 3, 1\)"),
    ],
)
def test_a_model_that_was_converted_must_be_wrapped_anew(wrap, convert, channels, said):
    """Where only the order in memory has changed too: a fused optimizer would mix up its elements."""

    def body(comm):
        model = here(IMAGES)
        opt = wrap(SGD(model.parameters()), model, comm)
        model(torch.ones(1, 3, 5, 5)).sum().backward()
        opt.step()
        opt.zero_grad()
        getattr(opt, "synchronize" if wrap is LayerwiseBSP else "stats")()
        convert(model)
        with pytest.raises(
            InvalidArgumentError, match=rf"'weight' is {said} when it was wrapped: wrap it anew"
        ):
            model(torch.ones(1, channels, 5, 5, dtype=model.weight.dtype)).sum().backward()

    on_ranks(2, body)


def test_a_gradient_that_a_hook_has_taken_is_none():
    def train_without(comm):
        model = here(MLP)
        model[2].bias.register_post_accumulate_grad_hook(lambda param: setattr(param, "grad", None))
        opt = SGD(model.parameters())
        go_on(model, opt if comm is None else DistributedOptimizer(opt, model, comm), comm, range(3))
        return weights(model)

    assert_same(on_ranks(2, train_without), train_without(None))


def test_a_step_inside_backward_is_refused_as_that():
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        model[0].weight.register_post_accumulate_grad_hook(lambda param: opt.step())
        with pytest.raises(InvalidArgumentError, match=r"step\(\) inside backward\(\)"):
            loss_of(model, comm, 0).backward()

    on_ranks(2, body)


@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
def test_after_a_step_nobody_looks_for_ddp(wrap):
    def body(comm):
        model = here(MLP)
        opt = wrap(SGD(model.parameters()), model, comm)
        hooks = len(model._forward_pre_hooks)
        go_on(model, opt, comm, range(1))
        return hooks - len(model._forward_pre_hooks)

    assert on_ranks(2, body) == [1, 1]


def test_a_wrapped_model_compiles_whole():
    compiled(here(MLP))  # imports what it needs, before there are threads

    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        whole = compiled(model, fullgraph=True)
        go_on(whole, opt, comm, range(4))
        return weights(model)

    assert_same(on_ranks(2, body), train(None))


def test_fsdp1_is_not_loaded_to_tell(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.distributed.fsdp", raising=False)
    on_ranks(2, train)
    assert "torch.distributed.fsdp" not in sys.modules


@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
@pytest.mark.parametrize(
    "layer", [lambda: nn.LazyLinear(3), lambda: nn.LazyBatchNorm1d(affine=False)], ids=["weight", "buffer"]
)
def test_lazy_modules_must_have_run(wrap, layer):
    def body(comm):
        model = nn.Sequential(nn.Linear(6, 6), layer())
        optimizer = SGD(model.parameters())
        with pytest.raises(InvalidArgumentError, match=rf"'1' is a Lazy.*forward first.*rank {comm.rank} of"):
            wrap(optimizer, model, comm)
        model(torch.ones(2, 6))
        wrap(optimizer, model, comm)

    on_ranks(2, body)


@pytest.mark.parametrize("view", [torch.conj, lambda x: torch.conj(x).imag], ids=["conj", "neg"])
def test_views_of_conjugates_are_taken_from_rank_0(view):
    def body(comm):
        model = here(MLP)
        model.register_buffer("table", view(torch.full((1,), (comm.rank + 1) * (1 + 2j))))
        assert model.table.is_conj() or model.table.is_neg()
        DistributedOptimizer(SGD(model.parameters()), model, comm)
        return model.table.resolve_conj().resolve_neg()

    for table in on_ranks(2, body):
        assert torch.equal(table, view(torch.full((1,), 1 + 2j)))


@pytest.mark.parametrize("merge", ["per_tensor", "one"])
def test_wrapping_again_plans_once(monkeypatch, merge):
    planned = []

    def plan(members, policy):
        planned.append(len(members))
        return plan_buckets(members, policy)

    plan_buckets = distributed.plan_buckets
    monkeypatch.setattr(distributed, "plan_buckets", plan)

    def body(comm):
        model = nn.ParameterList([nn.Parameter(torch.zeros(3)) for _ in range(20)])
        old = DistributedOptimizer(SGD(model.parameters()), model, comm, merge=merge)
        rest = DistributedOptimizer(SGD(model[:15].parameters()), model, comm, merge=merge)
        assert old.buckets == plan_names(range(15, 20), merge)
        assert rest.buckets == plan_names(range(15), merge)

    on_ranks(2, body)
    assert sorted(planned) == sorted(2 * [20, 5, 15])


def plan_names(numbers, merge):
    names = [str(number) for number in reversed(numbers)]
    return [names] if merge == "one" else [[name] for name in names]


def stepped(comm):
    model = here(MLP)
    opt = DistributedOptimizer(ADAMW(model.parameters()), model, comm, **CODED)
    go_on(model, opt, comm, range(2))
    return model, opt


def assert_equal_states(got, expected):
    assert got["param_groups"] == expected["param_groups"]
    for kept, before in [
        (got["gpucomm"]["state"]["residuals"], expected["gpucomm"]["state"]["residuals"]),
        *((got["state"][index], expected["state"][index]) for index in expected["state"]),
    ]:
        assert kept.keys() == before.keys() and before
        assert all(torch.equal(kept[name], before[name]) for name in before)


def other_rank(state):
    state["gpucomm"]["state"]["rank"] = 1 - state["gpucomm"]["state"]["rank"]


def other_groups(state):
    state["param_groups"] *= 2


def no_groups(state):
    del state["param_groups"]


def no_tensors(state):
    state["gpucomm"]["state"]["residuals"] = {"0.weight": None}


@pytest.mark.parametrize("spoil", [other_rank, other_groups, no_groups, no_tensors])
def test_a_state_that_is_refused_changes_nothing(spoil):
    def body(comm):
        model, opt = stepped(comm)
        state = copy.deepcopy(opt.state_dict())
        go_on(model, opt, comm, [2])
        before = copy.deepcopy(opt.state_dict())
        state["param_groups"][0]["lr"] = 9.0
        spoil(state)
        with pytest.raises((InvalidArgumentError, ValueError, KeyError, AttributeError)):
            opt.load_state_dict(state)
        assert_equal_states(opt.state_dict(), before)

    on_ranks(2, body)


def test_another_ranks_state_is_loaded_without_its_residuals():
    def body(comm):
        _, opt = stepped(comm)
        state = copy.deepcopy(opt.state_dict())
        other_rank(state)
        state["param_groups"][0]["lr"] = 9.0
        state.pop("gpucomm")
        opt.load_state_dict(state)
        return opt.param_groups[0]["lr"]

    assert on_ranks(2, body) == [9.0, 9.0]


def in_place_of_another(opt, param):
    opt.param_groups[0]["params"][-1] = param


def beside_the_others(opt, param):
    opt.param_groups[0]["params"].append(param)


def in_a_group_of_the_inner(opt, param):
    opt.inner.add_param_group({"params": [param]})


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("put", [in_place_of_another, beside_the_others, in_a_group_of_the_inner])
def test_step_refuses_parameters_put_in_by_hand(world, put):
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        go_on(model, opt, comm, [0])
        put(opt, nn.Parameter(torch.ones(3, 5)))
        opt.zero_grad()
        loss_of(model, comm, 1).backward()
        before = weights(model)
        with pytest.raises(
            InvalidArgumentError, match=rf"shape \(3, 5\) in param_groups.*rank {comm.rank} of {world}"
        ):
            opt.step()
        assert torch.equal(weights(model), before)
        opt = DistributedOptimizer(opt.inner, model, comm)
        go_on(model, opt, comm, [1])

    on_ranks(world, body)


def ways_that_differ(comm, model):
    return {"algorithm": "linear_pipeline" if comm.rank else "binomial_tree"}


def a_buffer_that_does_not_travel(comm, model):
    model.register_buffer("table", torch.ones(1).expand(3))
    return {}


@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
@pytest.mark.parametrize("spoil", [ways_that_differ, a_buffer_that_does_not_travel])
def test_a_refused_wrapping_takes_no_parameters(wrap, spoil):
    def body(comm):
        model = here(MLP)
        opt = wrap(SGD(model.parameters()), model, comm)
        failed = wrap.__new__(wrap)
        with pytest.raises((MismatchError, UnsupportedTypeError), match=r"all ranks must wrap|share memory"):
            failed.__init__(SGD(model.parameters()), model, comm, **spoil(comm, model))
        go_on(model, opt, comm, range(4))
        getattr(opt, "synchronize" if wrap is LayerwiseBSP else "stats")()
        return weights(model)

    assert_same(on_ranks(2, body), train(None))


@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
@pytest.mark.parametrize("part", ["require_same_layout", "broadcast_tensors"])
def test_what_fails_half_way_leaves_parameters_to_the_next(monkeypatch, wrap, part):
    module, failing = sys.modules[wrap.__module__], {0, 1}
    call = getattr(module, part)

    def fail_once(comm, *args):
        if comm.rank in failing:
            failing.remove(comm.rank)
            raise ZeroDivisionError("a fault on the way")
        call(comm, *args)

    monkeypatch.setattr(module, part, fail_once)

    def body(comm):
        model = here(MLP)
        failed = wrap.__new__(wrap)
        with pytest.raises(ZeroDivisionError):
            failed.__init__(SGD(model.parameters()), model, comm)
        opt = wrap(SGD(model.parameters()), model, comm)
        del failed
        go_on(model, opt, comm, range(4))
        getattr(opt, "synchronize" if wrap is LayerwiseBSP else "stats")()
        return weights(model)

    assert_same(on_ranks(2, body), train(None))


@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
def test_hooks_of_a_step_run_once_on_every_rank(wrap):
    seen = []  # of all ranks
    everywhere = [
        register_optimizer_step_pre_hook(lambda *_: seen.append("any, before")),
        register_optimizer_step_post_hook(lambda *_: seen.append("any, after")),
    ]

    def body(comm):
        model = here(MLP)
        inner = SGD(model.parameters())
        inner.register_step_pre_hook(lambda *_: seen.append("inner, before"))
        inner.register_step_post_hook(lambda *_: seen.append("inner, after"))
        inner.register_state_dict_pre_hook(lambda given: seen.append("inner" if given is inner else given))
        opt = wrap(inner, model, comm)
        opt.register_step_pre_hook(lambda *_: seen.append("wrapper, before"))
        opt.register_step_post_hook(lambda *_: seen.append("wrapper, after"))
        go_on(model, opt, comm, range(3))
        opt.state_dict()

    try:
        on_ranks(2, body)
    finally:
        for handle in everywhere:
            handle.remove()
    kinds = [f"{who}, {when}" for who in ("any", "inner", "wrapper") for when in ("before", "after")]
    assert Counter(seen) == {**dict.fromkeys(kinds, 2 * 3), "inner": 2}


@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
def test_a_scheduler_made_before_wrapping_knows_of_the_steps(wrap):
    def body(comm):
        model = here(MLP)
        inner = SGD(model.parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
        opt = wrap(inner, model, comm)
        for step in range(2):
            go_on(model, opt, comm, [step])
            scheduler.step()  # warns where it has seen none, which is an error here
        return opt.param_groups[0]["lr"]

    assert on_ranks(2, body) == [0.025, 0.025]


@pytest.mark.parametrize("wrap", [DistributedOptimizer, partial(DistributedOptimizer, merge="one")])
def test_who_wraps_again_exchanges_what_only_the_model_has(wrap):
    """Else a norm over the model's parameters, as clipping takes it, would differ between the ranks."""

    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model[0].parameters()), model, comm)
        former, opt = opt, wrap(opt.inner, model, comm)
        assert sum(map(len, opt.buckets)) == 6 and not former.buckets
        loss_of(model, comm, 0).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        opt.step()
        return weights(model)

    assert torch.equal(*on_ranks(2, body))


def local_by_no_sync(model, comm):
    opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
    with opt.no_sync():
        loss_of(model, comm, 0).backward()
    return opt


def local_by_a_failed_backward(model, comm):
    opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
    hook = model[0].weight.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_of(model, comm, 0).backward()
    hook.remove()
    return opt


def local_but_on_the_root(model, comm):
    opt = LayerwiseBSP(SGD(model.parameters()), model, comm)
    loss_of(model, comm, 0).backward()
    return opt


@pytest.mark.parametrize("make", [local_by_no_sync, local_by_a_failed_backward, local_but_on_the_root])
@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
def test_who_wraps_again_hears_of_local_gradients(make, wrap):
    def body(comm):
        model = here(MLP)
        former = make(model, comm)
        opt = wrap(former.inner, model, comm)
        with pytest.raises(InvalidArgumentError, match="gradients of this rank alone"):
            opt.step()
        go_on(model, opt, comm, [0])
        opt.synchronize()  # the last weights of a LayerwiseBSP may be on their way
        return weights(model)

    assert torch.equal(*on_ranks(2, body))


def test_who_wraps_a_part_leaves_to_others_what_they_have():
    def body(comm):
        model = here(MLP)
        first = DistributedOptimizer(SGD(model[0].parameters()), model, comm)
        second = DistributedOptimizer(SGD(model[2].parameters()), model, comm)
        return first.buckets, second.buckets

    for first, second in on_ranks(2, body):
        assert sorted(name for bucket in first for name in bucket) == [
            "0.bias",
            "0.weight",
            "4.bias",
            "4.weight",
        ]
        assert sorted(name for bucket in second for name in bucket) == ["2.bias", "2.weight"]


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has no grad_dtype")
@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
@pytest.mark.parametrize(("dtype", "words"), [(torch.float32, "of torch.float32"), (None, "of any dtype")])
def test_gradients_of_another_dtype_than_their_parameter_are_refused(wrap, dtype, words):
    model = nn.Linear(3, 2, dtype=torch.bfloat16)
    model.weight.grad_dtype = dtype

    def body(comm):
        with pytest.raises(
            UnsupportedTypeError, match=f"'weight' is of torch.bfloat16 and its gradient {words}"
        ):
            wrap(torch.optim.SGD(model.parameters(), 0.1), model, comm)

    on_ranks(1, body)
