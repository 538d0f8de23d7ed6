"""Exchanges as DDP's communication hook: the ranks stay alike, and faults become errors."""

import collections
import copy
import datetime
import itertools
import signal
import threading
from functools import partial

import pytest
import rank_processes
import torch
import torch.distributed as dist
import training
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import INPUTS, MLP, SGD, assert_same, go_on, here, loss_of, on_ranks, share, train, weights

from gpucomm.errors import InvalidArgumentError, MismatchError, UnavailableError, UnsupportedTypeError
from gpucomm.exchange import Dense, reshard
from gpucomm.optim import ddp

CODED = "coded_ring"
# Gloo's group waits for its last message where it is dropped, holding the GIL, for which the message may wait
# in turn: groups are dropped some tests later.
GROUPS = collections.deque(maxlen=32)


def wrap(model, comm, store, **options):
    """DDP over a Gloo group of its own, for ranks that are threads."""
    group = dist.ProcessGroup(comm.rank, comm.world)
    gloo = dist.ProcessGroupGloo(store, comm.rank, comm.world, datetime.timedelta(seconds=20))
    for device in {"cpu", training.DEVICE}:
        group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, gloo)
    # Autograd has one thread for a GPU, in which the ranks' threads would wait for each other.
    torch.autograd.set_multithreading_enabled(training.DEVICE == "cpu")
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    GROUPS.append(group)
    return DistributedDataParallel(model, process_group=group, **options)


def on_ddp_ranks(world, fn):
    return on_ranks(world, partial(fn, store=dist.HashStore()))


def ddp_train(comm, store, ddp_options=None, steps=4, **options):
    model = wrap(here(MLP), comm, store, **(ddp_options or {}))
    hook = ddp.use(model, comm, **options)
    opt = SGD(model.parameters())
    for step in range(steps):
        opt.zero_grad()
        loss_of(model, comm, step).backward()
        opt.step()
    return weights(model.module), hook.stats()


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(
    "ddp_options",
    [{}, {"bucket_cap_mb": 1e-4}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}],
    ids=["default", "small", "view", "unused"],
)
def test_dense_trains_as_one_process_does(world, ddp_options):
    ranks = on_ddp_ranks(world, partial(ddp_train, ddp_options=ddp_options))
    assert_same([result for result, _ in ranks], train(None), atol=1e-5)
    assert all(stats["rounds"] == 4 for _, stats in ranks)
    assert all((stats["bytes_per_step"] > 0) == (world > 1) for _, stats in ranks)


@pytest.mark.parametrize("cap", [25, 1e-4])
@pytest.mark.parametrize("spec", ["int8", "int4", "bf16", "mpc"])
@pytest.mark.parametrize("world", [1, 3])
def test_codecs_train_the_ranks_alike(world, spec, cap):
    body = partial(ddp_train, ddp_options={"bucket_cap_mb": cap}, exchange=spec, algorithm=CODED)
    ranks = on_ddp_ranks(world, body)
    assert_same([result for result, _ in ranks], train(None), atol=0.1 if spec == "int4" else 0.02)


def test_residuals_follow_their_parameters_and_resume_to_the_bit():
    def body(comm, store):
        def begin(name, module):
            # Elsewhere DDP cuts its buckets anew after the first step, and a codec's blocks with them.
            options = {"bucket_cap_mb": 1e-4, "find_unused_parameters": True}
            model = wrap(module, comm, dist.PrefixStore(name, store), **options)
            return model, ddp.use(model, comm, exchange="int4", algorithm=CODED), SGD(model.parameters())

        model, hook, opt = begin("first", here(MLP))
        go_on(model, opt, comm, range(3))
        saved = copy.deepcopy([model.module.state_dict(), opt.state_dict(), hook.state_dict()])
        assert saved[2]["residuals"].keys() == dict(MLP.named_parameters()).keys()
        go_on(model, opt, comm, range(3, 6))
        results = []
        for keep in (True, False):
            again = here(MLP)
            again.load_state_dict(saved[0])
            other, hook, opt = begin(f"again {keep}", again)
            opt.load_state_dict(copy.deepcopy(saved[1]))
            if keep:
                hook.load_state_dict(saved[2])
            go_on(other, opt, comm, range(3, 6))
            results.append(torch.equal(weights(other.module), weights(model.module)))
        return results

    assert on_ddp_ranks(2, body) == [[True, False]] * 2


def test_residuals_are_loaded_at_another_world_with_their_sum(tmp_path):
    options = {"bucket_cap_mb": 1e-4}  # several buckets, which DDP cuts anew after the first step

    def saving(comm, store):
        model = wrap(here(MLP), comm, store, **options)
        hook = ddp.use(model, comm, exchange="int4", algorithm=CODED)
        go_on(model, SGD(model.parameters()), comm, range(3))
        torch.save(hook.state_dict(), tmp_path / f"{comm.rank}.pt")

    def loading(comm, store):
        states = [torch.load(file) for file in tmp_path.iterdir()]
        model = wrap(here(MLP), comm, store, **options)
        hook = ddp.use(model, comm, exchange="int8", algorithm=CODED)
        with pytest.raises(InvalidArgumentError, match=r"of 3, .*every rank.*reshard\(states, 2\)"):
            hook.load_state_dict(states[0])
        hook.load_state_dict(reshard(states, comm.world)[comm.rank])
        paid = {name: torch.zeros(param.numel()) for name, param in model.module.named_parameters()}
        held = [hook.state_dict()["residuals"]]
        for _ in range(3):  # of gradients that are 0
            model.zero_grad()
            (model(share(comm, INPUTS[0])) * 0.0).sum().backward()
            for name, param in model.module.named_parameters():
                paid[name] += param.grad.reshape(-1).cpu()
        held.append(hook.state_dict()["residuals"])
        return states, held, paid

    on_ddp_ranks(3, saving)
    (states, before, paid), (_, other, _) = on_ddp_ranks(2, loading)
    assert len(states) == 3
    for name, param in MLP.named_parameters():
        owed = sum(state["residuals"][name].double() for state in states) / 3
        loaded, left = ((a[name].double() + b[name].double()) / 2 for a, b in zip(before, other, strict=True))
        assert owed.shape == (param.numel(),) and owed.abs().max() > 1e-3
        torch.testing.assert_close(loaded, owed, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(paid[name].double() + left, owed, rtol=0, atol=1e-6)


@pytest.mark.parametrize("exchange", ["dense", "int8"])
def test_no_sync_sends_nothing(exchange):
    def body(comm, store):
        model = wrap(here(MLP), comm, store)
        hook = ddp.use(model, comm, exchange=exchange)
        calls = comm.stats()["calls"]
        with model.no_sync():
            loss_of(model, comm, 0).backward()
        assert comm.stats()["calls"] == calls
        loss_of(model, comm, 1).backward()
        assert hook.stats()["rounds"] == 1
        assert hook.stats()["hooks_s"] > 0
        return torch.cat([param.grad.flatten() for param in model.parameters()])

    assert torch.equal(*on_ddp_ranks(2, body))


def test_an_overflow_on_one_rank_makes_all_skip():
    def body(comm, store):
        model = wrap(here(MLP), comm, store)
        ddp.use(model, comm, exchange="int8", algorithm=CODED)
        opt, scaler = SGD(model.parameters()), torch.amp.GradScaler(training.DEVICE, init_scale=8.0)
        scales = []
        for step in range(3):
            opt.zero_grad()
            loss = loss_of(model, comm, step)
            scaler.scale(loss * float("inf") if (step, comm.rank) == (1, 1) else loss).backward()
            scaler.step(opt)
            scaler.update()
            scales.append(scaler.get_scale())
        assert scales == [8.0, 4.0, 4.0]
        return weights(model.module)

    results = on_ddp_ranks(2, body)
    assert torch.equal(*results)
    assert results[0].isfinite().all()


def test_an_overflow_in_one_bucket_leaves_all_residuals_alone():
    def body(comm, store):
        model = wrap(here(MLP), comm, store, bucket_cap_mb=1e-4)
        hook = ddp.use(model, comm, exchange="int4", algorithm=CODED)
        states = []
        for step in range(4):
            model.zero_grad()
            spoilt = (step, comm.rank) == (2, 1)  # DDP has cut its buckets anew after the first step
            spoil = model.module[0].bias.register_hook(
                lambda grad, f=float("inf") if spoilt else 1.0: grad * f
            )
            loss_of(model, comm, step).backward()
            spoil.remove()
            assert model.module[4].weight.grad.isfinite().all()
            states.append(copy.deepcopy(hook.state_dict()["residuals"]))
        return [all(torch.equal(a[name], b[name]) for name in a) for a, b in itertools.pairwise(states)]

    assert on_ddp_ranks(2, body) == [[False, True, False]] * 2


def test_gradients_that_are_thrown_away_leave_no_trace_where_that_is_said():
    def body(comm, store):
        model = wrap(here(MLP), comm, store, find_unused_parameters=True)
        hook = ddp.use(model, comm, exchange="int4", algorithm=CODED)
        go_on(model, SGD(model.parameters()), comm, range(2))
        before = copy.deepcopy(hook.state_dict()["residuals"])
        for step in range(2):
            loss_of(model, comm, step).backward()
        made = hook.state_dict()["residuals"]
        hook.discard()
        for name, residual in hook.state_dict()["residuals"].items():
            assert torch.equal(residual, before[name]) and not torch.equal(residual, made[name])

    on_ddp_ranks(2, body)


def test_a_closed_communicator_is_an_error_in_backward():
    ready = threading.Barrier(2, timeout=20)

    def body(comm, store):
        model = wrap(here(MLP), comm, store)
        ddp.use(model, comm, exchange="int8")
        ready.wait()  # or the other one sees it in there
        comm.abort()
        with pytest.raises(Exception, match="abort"):
            loss_of(model, comm, 0).backward()

    on_ddp_ranks(2, body)


def test_buckets_of_two_models_do_not_mix():
    """Two of one size, which one rank uses in another order."""

    def body(comm, store):
        models = [wrap(here(MLP), comm, dist.PrefixStore(name, store)) for name in "ab"]
        _kept = [ddp.use(model, comm) for model in models]
        with pytest.raises(RuntimeError) as caught:
            for model in models if comm.rank else reversed(models):
                loss_of(model, comm, 0).backward()
        return str(caught.value)

    for text in on_ddp_ranks(2, body):
        assert "bucket 0 in round 0 of optimizer 1" in text and "of optimizer 2" in text


def test_what_settling_raises_arrives_too(monkeypatch):
    class Broken:
        def wait(self, timeout=None):
            raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(Dense, "start", lambda self, buffer, parts: Broken())

    def body(comm, store):
        model = wrap(here(MLP), comm, store)
        ddp.use(model, comm)
        with pytest.raises(RuntimeError, match="a fault of ours"):
            loss_of(model, comm, 0).backward()

    on_ddp_ranks(2, body)


def test_arguments():
    def body(comm, store):
        model = wrap(here(MLP), comm, store)
        with pytest.raises(InvalidArgumentError, match=r"DistributedDataParallel, got Sequential \(rank"):
            ddp.use(MLP, comm)
        with pytest.raises(InvalidArgumentError, match=r"one of dense, or a codec"):
            ddp.use(model, comm, exchange="nonsense")
        alone = comm.split(comm.rank)
        with pytest.raises(InvalidArgumentError, match=r"group has 2 ranks, but the communicator 1"):
            ddp.use(model, alone)
        alone.close()
        hook = ddp.use(model, comm)
        assert hook.state_dict() == {}
        with pytest.raises(InvalidArgumentError, match=r"can have no other hook: .* only be called once"):
            ddp.use(model, comm)
        table = wrap(nn.Sequential(nn.Embedding(9, 4, sparse=True)), comm, dist.PrefixStore("table", store))
        with pytest.raises(UnsupportedTypeError, match=r"module '0' are sparse.*rank \d of 2"):
            ddp.use(table, comm)
        with pytest.raises(InvalidArgumentError, match="keeps no state"):
            hook.load_state_dict({"residuals": {}})
        other = ddp.use(wrap(here(MLP), comm, dist.PrefixStore("other", store)), comm, exchange="int8")
        with pytest.raises(
            InvalidArgumentError, match=r"ddp, rank \d of 2\] the state has a residual of '9.bias'"
        ):
            other.load_state_dict({"residuals": {"9.bias": torch.zeros(3)}})

    on_ddp_ranks(2, body)


TRAINED_UNTIL_KILLED = """
import os, signal, sys
import torch
from torch.nn.parallel import DistributedDataParallel
import gpucomm
from gpucomm.optim import ddp

torch.distributed.init_process_group(
    "gloo", init_method="file://" + sys.stdin.readline().strip(),
    rank=int(os.environ["GPUCOMM_RANK"]), world_size=int(os.environ["GPUCOMM_WORLD"]))
comm = gpucomm.init(timeout=20)
model = DistributedDataParallel(torch.nn.Linear(500, 500))
ddp.use(model, comm, exchange="int8", algorithm="coded_ring")
for step in range(5):
    if step == 3 and comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        model(torch.ones(2, 500)).sum().backward()
    except RuntimeError as error:
        print("raised at", step, error, flush=True)
        os._exit(3)  # Gloo would wait for the other at the end
"""


def test_a_rank_without_a_thread_tells_the_others(threadless):
    def body(comm, store):
        model = wrap(here(MLP), comm, store)
        if comm.rank == 1:
            threadless.add(threading.get_ident())
        said = r"no thread to end calls on: can't start new thread \(ulimit -u\) \(rank 1 of 2\)"
        with pytest.raises(MismatchError if comm.rank == 0 else UnavailableError, match=said):
            ddp.use(model, comm)
            comm.barrier()

    on_ddp_ranks(2, body)


@pytest.mark.processes
def test_a_killed_rank_is_an_error_in_backward(ranks, tmp_path):
    ranks += rank_processes.start(TRAINED_UNTIL_KILLED, [{}, {}])
    for process in ranks:
        process.stdin.write(f"{tmp_path / 'store'}\n")
        process.stdin.flush()
    output, errors = ranks[0].communicate(timeout=60)
    assert ranks[0].returncode == 3, errors
    assert "raised at 3" in output
    assert "rank 1" in output
    assert ranks[1].wait(20) == -signal.SIGKILL
