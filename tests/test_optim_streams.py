"""What training puts on which stream of a GPU, by a record of streams: no GPU is needed, none is tested."""

import copy
from datetime import timedelta
from types import SimpleNamespace

import pytest
import recorded_streams
import torch
import torch.distributed as dist
from recorded_streams import Recorded, Stream, current_stream, stream, work
from test_ddp_hook import wrap as wrap_ddp
from training import MLP, SGD, assert_same, loss_of, on_ranks, train, weights

from gpucomm.errors import UnavailableError
from gpucomm.optim import DistributedOptimizer, LayerwiseBSP, ddp
from gpucomm.optim.buckets import Bucket
from gpucomm.optim.fsdp.collectives import AllGather, Lane
from gpucomm.optim.fsdp.meter import Meter
from gpucomm.optim.fsdp.rounds import Round
from gpucomm.optim.fsdp.route import Route
from gpucomm.optim.process_group import Options
from gpucomm.optim.process_group.collectives import Collectives
from gpucomm.optim.reducer import Reducer
from gpucomm.optim.streams import Beside


@pytest.fixture(autouse=True)
def streams(monkeypatch):
    recorded_streams.install(monkeypatch)


@pytest.fixture
def scattered(monkeypatch):
    """Gradients come on two streams by turns; every one is known to its bucket."""
    take, on_gradient = Bucket.take, Reducer.on_gradient

    def recording_take(bucket, slot):
        take(bucket, slot)
        vars(bucket).setdefault("written", []).append(work())

    def elsewhere(reducer, bucket, slot, *, last):
        pair = vars(reducer).setdefault("pair", (Stream(), Stream()))
        inner = pair[(bucket + slot) % 2]
        inner.wait_stream(current_stream())
        with stream(inner):
            on_gradient(reducer, bucket, slot, last=last)

    monkeypatch.setattr(Bucket, "take", recording_take)
    monkeypatch.setattr(Reducer, "on_gradient", elsewhere)


@pytest.mark.parametrize("exchange", ["dense", "int8"])
def test_a_bucket_comes_after_its_gradients_and_before_the_step(scattered, exchange):
    def body(comm):
        comm, model = Recorded(comm), copy.deepcopy(MLP)
        how = {"merge": "200B", "exchange": exchange, "algorithm": "auto"}
        opt = DistributedOptimizer(SGD(model.parameters()), model, comm, **how)
        assert not torch._C._is_multithreading_enabled()  # ranks that are threads share autograd's of a GPU
        before = len(comm.issued)
        loss_of(model, comm, 0).backward()
        sums = comm.since(before)
        behind = {itself: held for _, held, itself in sums}
        for bucket in opt._reducer._buckets:
            assert bucket.written
            assert any(set(bucket.written) <= held for held in behind.values())
        assert behind.keys() <= current_stream().held
        for backward in opt._reducer.pair:
            assert not behind.keys() & backward.held  # computing went on
        opt.step()
        return weights(model)

    assert_same(on_ranks(2, body), train(None, steps=1), atol=1e-6 if exchange == "dense" else 0.02)


def test_a_layers_weights_come_after_the_step_and_before_its_forward():
    def body(comm):
        comm, model = Recorded(comm), copy.deepcopy(MLP)
        opt = LayerwiseBSP(SGD(model.parameters()), model, comm)
        loss_of(model, comm, 0).backward()  # forward has gone through every layer
        before, stepped = len(comm.issued), work()
        opt.step()
        sent = comm.since(before)
        assert all(stepped in held for _, held, _ in sent)
        forward = current_stream()
        assert not {itself for _, _, itself in sent} & forward.held
        seen = []
        for layer in (model[0], model[2], model[4]):
            layer.register_forward_hook(
                lambda *_: seen.append({itself for _, _, itself in sent} & forward.held)
            )
        model(torch.zeros(1, 6))
        return comm.rank, [len(held) for held in seen]

    # The root's weights are its own: it waits for nothing.
    assert on_ranks(2, body) == [(0, [0, 0, 0]), (1, [1, 2, 3])]


def test_ddps_future_is_completed_on_the_stream_that_waits(monkeypatch):
    completed, made, store = [], [], dist.HashStore()
    begin, complete = torch.futures.Future.__init__, torch.futures.Future.set_result

    def on_host(future, *, devices=None):
        made.append(devices)
        begin(future)

    def completing(future, result):
        completed.append(set(current_stream().held))
        complete(future, result)

    monkeypatch.setattr(torch.futures.Future, "__init__", on_host)
    monkeypatch.setattr(torch.futures.Future, "set_result", completing)

    def body(comm):
        comm, model = Recorded(comm), wrap_ddp(copy.deepcopy(MLP), comm, store)
        ddp.use(model, comm)
        before = len(comm.issued)
        loss_of(model, comm, 0).backward()
        ((_, _, itself),) = comm.since(before)
        assert any(itself in held for held in completed)
        assert itself not in current_stream().held  # which the future makes wait, not we
        return True

    assert on_ranks(1, body) == [True]
    assert made == [[torch.device("cpu")]]


class Group(Collectives):
    def __init__(self, comm):
        super().__init__(comm.rank, comm.world)
        self._comm, self._choices = comm, Options().choices
        self._gloo = SimpleNamespace(options=SimpleNamespace(_timeout=timedelta(seconds=60)))


def test_the_stream_that_waits_is_the_one_that_calls_wait(monkeypatch):
    used = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, s: used.append(set(s.held)))

    def body(comm):
        comm = Recorded(comm)
        group, made, x = Group(comm), work(), torch.ones(3, 2).t()  # which travels as a copy
        handle = group.allreduce([x])
        ((_, held, itself),) = comm.issued
        assert made in held
        with stream(Stream()):
            handle.wait()
            assert itself in current_stream().held
        assert itself not in current_stream().held
        assert handle.is_completed()
        assert any(itself in held for held in used)  # the copy of the result
        return x.sum().item()

    assert on_ranks(2, body) == [12.0] * 2


def test_fsdp2_gathers_on_one_stream_and_waits_on_another():
    def body(comm):
        comm = Recorded(comm)
        gather = AllGather(Lane(comm, Meter(comm), Route(None, "auto")), SimpleNamespace(place=0))
        out = torch.zeros(4)
        with stream(Stream()):
            made = work()
            pending = gather(out, torch.full((2,), comm.rank + 1.0), None)
        ((_, held, itself),) = comm.issued
        assert made in held
        assert itself not in current_stream().held
        pending.wait()
        assert itself in current_stream().held
        return out.tolist()

    assert on_ranks(2, body) == [[1.0, 1.0, 2.0, 2.0]] * 2


@pytest.mark.parametrize("value", [1.0, float("inf")])
def test_fsdp2s_residuals_are_settled_after_what_its_streams_have_seen(value):
    backward, settled = Round([]), []
    backward._residuals.append(SimpleNamespace(settle=settled.append))
    with stream(Stream()):
        made = work()
        backward.look(torch.tensor([0.0, value]))
    assert made not in current_stream().held
    backward._end()
    assert made in current_stream().held
    assert settled == [value == 1.0]


def test_groups_take_tensors_of_gpus():
    assert dist.Backend.backend_capability["gpucomm"] == ["cpu", "cuda"]


def test_a_torch_that_does_not_tell_its_stream_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "Tensor", object)
    with pytest.raises(UnavailableError, match=r"2\.10 or later"):
        Beside().open(SimpleNamespace(is_cuda=True, device="cuda:0"))
