"""One exchange per backward: when buckets leave, and what happens where something fails."""

import copy
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ranks import PROMPT_S
from torch import nn
from training import INPUTS, MLP, SGD, Fault, assert_same, here, loss_of, on_ranks, share, train, weights

from gpucomm import exchange
from gpucomm.errors import Error, InvalidArgumentError, MismatchError, RankFailedError, UnsupportedTypeError
from gpucomm.optim import DistributedOptimizer, LayerwiseBSP


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
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, merge="per_tensor", exchange="spy")
        log = opt._exchange.log
        model[0].weight.register_hook(lambda _: log.append("the last gradient"))
        loss_of(model, comm, 0).backward()
        return log

    for log in on_ranks(2, body):
        assert log[:4] == [["4.bias"], ["4.weight"], ["2.bias"], ["2.weight"]]
        assert log[-1] == ["0.weight"]
        assert "the last gradient" in log[4:-1]


def test_the_state_of_an_exchange_is_saved_and_loaded(spy):
    def body(comm):
        model = here(MLP)
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


def test_the_checkpoint_of_one_rank_is_for_all_where_residuals_are_not_saved(spy):
    def body(comm):
        model = here(MLP)
        wrap = partial(DistributedOptimizer, SGD(model.parameters()), model, comm, exchange="spy")
        one, other = wrap(save_residuals=False), wrap(save_residuals=False)
        one._exchange.state = {"0.weight": comm.rank}
        saved = one.state_dict()
        assert saved["gpucomm"]["state"] == {}
        other.load_state_dict(saved)
        saved["gpucomm"]["state"] = {"0.weight": 0}  # of rank 0, which saved it
        other.load_state_dict(saved)
        assert other._exchange.state == {}

    on_ranks(2, body)


def test_stats_count_what_was_sent():
    def body(comm):
        model = here(MLP)
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


def test_training_goes_on_after_a_backward_that_failed_half_way():
    def body(comm):
        model = here(MLP)
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
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, merge="per_tensor", exchange="spy")
        with pytest.raises(ZeroDivisionError):
            model[4](Fault.apply(model[:4](share(comm, INPUTS[0])))).sum().backward()
        assert (opt._exchange.log, opt._exchange.waited) == ([["4.bias"], ["4.weight"]], [])
        opt.zero_grad()
        return opt._exchange.waited

    assert on_ranks(2, body) == [[["4.bias"], ["4.weight"]]] * 2


def test_a_failed_backward_that_had_sent_nothing_needs_no_care():
    def body(comm):
        model = here(MLP)
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
        model = here(MLP)
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


def test_a_rank_that_fails_does_not_leave_the_others_waiting():
    def body(comm):
        model = here(MLP)
        DistributedOptimizer(SGD(model.parameters()), model, comm)
        if comm.rank == 1:
            raise KeyError("no batch")
        loss_of(model, comm, 0).backward()

    with pytest.raises(RankFailedError, match="no batch"):
        on_ranks(3, body)


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (
            lambda: nn.Linear(6, 4),
            "rank 2 differs: rank 2 has 2 parameters of 28 elements in 1 buckets and rank 0",
        ),
        (lambda: nn.Linear(6, 3).double(), "rank 2 differs"),
        (lambda: nn.Linear(6, 3).requires_grad_(False), "0 buckets"),
        (lambda: nn.Linear(6, 3, device="meta"), "kind of device"),
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
        model = here(MLP)
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
        ({"comm": None}, "gpucomm.Communicator, got NoneType"),
    ],
)
@pytest.mark.parametrize("world", [1, 2])
def test_bad_arguments_are_refused_at_wrapping(world, change, text):
    def body(comm):
        model = here(MLP)
        arguments = {"optimizer": SGD(model.parameters()), "model": model, "comm": comm} | change
        with pytest.raises(InvalidArgumentError, match=text):
            DistributedOptimizer(**arguments)

    on_ranks(world, body)


@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
def test_the_others_are_told_of_what_one_cannot_wrap(wrap):
    def body(comm):
        model = here(MLP)
        error = InvalidArgumentError if comm.rank else MismatchError
        with pytest.raises(error, match=r"model must be a torch\.nn\.Module, got str"):
            wrap(SGD(model.parameters()), "MLP" if comm.rank else model, comm)

    began = time.monotonic()
    on_ranks(2, body)
    assert time.monotonic() - began < PROMPT_S


@pytest.mark.parametrize("wrap", [DistributedOptimizer, LayerwiseBSP])
def test_a_scripted_model_is_refused(wrap):
    def body(comm):
        with pytest.raises(InvalidArgumentError, match="model is a ScriptModule, which takes no hooks"):
            wrap(SGD(here(MLP).parameters()), torch.jit.ScriptModule(), comm)

    on_ranks(1, body)


def test_an_optimizer_is_wrapped_once():
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        for wrap in (DistributedOptimizer, LayerwiseBSP):
            with pytest.raises(InvalidArgumentError, match="is a DistributedOptimizer already"):
                wrap(opt, model, comm)

    on_ranks(2, body)


@pytest.mark.parametrize(
    ("buffer", "text"),
    [
        (torch.eye(3).to_sparse(), r"of shape \(3, 3\) is torch.sparse_coo"),
        (torch.ones(3, 1).expand(3, 4), r"of shape \(3, 4\) share memory.*contiguous"),
        (torch.ones(3, device="meta"), r"of shape \(3,\) and torch.float32 is on the meta device"),
    ],
    ids=["sparse", "expanded", "meta"],
)
def test_buffers_that_cannot_be_taken_from_rank_0_are_refused(buffer, text):
    def body(comm):
        model = here(MLP)
        model.register_buffer("table", buffer)
        for wrap in (DistributedOptimizer, LayerwiseBSP):
            with pytest.raises(UnsupportedTypeError, match=text):
                wrap(SGD(model.parameters()), model, comm)

    on_ranks(2, body)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_gradients_that_cannot_be_exchanged_are_refused():
    def body(comm):
        embedding = nn.Embedding(4, 2, sparse=True)
        opt = DistributedOptimizer(SGD(embedding.parameters()), embedding, comm)
        with pytest.raises(UnsupportedTypeError, match=r"'weight'.*sparse=False"):
            embedding(torch.tensor([1])).sum().backward()
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        with pytest.raises(InvalidArgumentError, match="carries a graph"):
            loss_of(model, comm, 0).backward(create_graph=True)
        model = nn.Linear(2, 2, dtype=torch.complex64)
        with pytest.raises(UnsupportedTypeError, match=r"'bias'.*complex64"):
            opt = DistributedOptimizer(SGD(model.parameters()), model, comm)
        del opt

    on_ranks(2, body)
