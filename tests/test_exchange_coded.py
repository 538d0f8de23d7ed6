"""Codecs as exchanges: nothing is lost for good, whatever the codec, the buckets and the world."""

import copy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import training
from ranks import outcomes_of
from torch import nn
from torch.nn.functional import cross_entropy
from training import (
    ADAMW,
    INPUTS,
    MLP,
    SGD,
    Fault,
    assert_same,
    go_on,
    here,
    loss_of,
    on_ranks,
    seeded,
    share,
    train,
    weights,
)

from gpucomm import _core, exchange
from gpucomm.errors import ClosedError, InvalidArgumentError, PeerLostError, UnsupportedTypeError
from gpucomm.exchange import Part
from gpucomm.exchange.residuals import Flat, Residuals
from gpucomm.optim import DistributedOptimizer

SPECS = [about["examples"][0] for about in _core.codecs().values()]
LOSSY = [spec for spec in SPECS if _core.Codec(spec).traits["lossy"]]
REFUSING = [spec for spec in LOSSY if not _core.Codec(spec).traits["keeps_infinity"]]
CODED = "coded_ring"  # in shared memory "auto" mostly sends elements as they are
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
PARTS = [Part("a", 0, 700), Part("b", 700, 400)]
ELEMENTS, MARKS = 1100, 2


def gradients(rank, step):
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(100 * step + rank))


def send(coded, gradient, used=(1, 1), parts=PARTS):
    """One bucket there and back; what is global of its gradients and its marks."""
    buffer = here(torch.cat([gradient, torch.tensor(used, dtype=gradient.dtype)]))
    coded.start(buffer, parts).wait()
    coded.end_round()
    return buffer[:ELEMENTS].cpu(), buffer[ELEMENTS:].cpu()


def held(coded):
    residuals = coded.state_dict()["residuals"]
    return torch.cat([residuals["a"], residuals["b"]])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("spec", LOSSY)
def test_the_sum_of_many_steps_is_exact_up_to_what_is_held(spec, dtype):
    def body(comm):
        coded = exchange.create(spec, comm, algorithm=CODED)
        results = []
        for step in range(5):
            result, marks = send(coded, gradients(comm.rank, step).to(dtype))
            results.append(result.double())
            assert (marks == 1).all()
        return sum(results), held(coded).double(), results[0]

    ranks = on_ranks(3, body)
    given = sum(gradients(rank, step).to(dtype).double() for rank in range(3) for step in range(5))
    lost = sum(residual for _, residual, _ in ranks)
    got = 3 * ranks[0][0]
    rounding = 0.0 if dtype is torch.float32 else 2 * 3 * 5 * torch.finfo(dtype).eps  # of the means
    torch.testing.assert_close(got + lost, given, rtol=0, atol=rounding + 2e-5)
    if (dtype, spec) != (torch.bfloat16, "bf16"):
        assert lost.abs().max() > 0
    for result in ranks:
        assert torch.equal(result[2], ranks[0][2])


@pytest.mark.parametrize("spec", SPECS)
def test_ranks_stay_the_same_to_the_bit(spec):
    for merge, algorithm in (("200B", CODED), ("one", "two_shot")):
        results = on_ranks(3, partial(train, exchange=spec, merge=merge, algorithm=algorithm))
        assert_same(results, train(None), atol=0.5 if spec == "zfp:4" else 0.1)  # which is mostly noise


def test_auto_may_leave_gradients_as_they_are():
    assert_same(on_ranks(3, partial(train, exchange="int8")), train(None), atol=0.02)


def test_without_error_feedback_int4_stalls(monkeypatch):
    """Coordinates far smaller than the largest of their block are never sent but by feedback."""
    target = torch.logspace(0, -4, 64)

    def distance(comm):
        model = nn.Linear(64, 1, bias=False)
        nn.init.zeros_(model.weight)
        noise = torch.linspace(-1, 1, 64) * (1 if comm.rank else -1)  # what the ranks differ in
        opt = DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), model, comm, exchange="int4", algorithm=CODED
        )
        for _ in range(400):
            opt.zero_grad()
            (0.5 * (model.weight - target - noise).square().sum()).backward()
            opt.step()
        return (model.weight.detach() - target).abs().max().item()

    with_feedback = on_ranks(2, distance)
    monkeypatch.setattr("gpucomm.exchange.residuals.Flat.accept", lambda self, unsent: None)
    without = on_ranks(2, distance)
    assert max(with_feedback) < 0.03
    assert min(without) > 5 * max(with_feedback)


@pytest.fixture
def digits(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "examples"))
    from digits.data import load, shares

    return load(), shares


def digits_learned(comm, digits, **options):
    (images, test), shares = digits
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)))
    opt = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model, comm, **options
    )
    for epoch in range(8):
        for batch in shares(images, epoch, 64, 7, comm.rank, comm.world):
            opt.zero_grad()
            cross_entropy(model(batch.pixels), batch.labels).backward()
            opt.step()
    outputs = model(test.pixels)
    accuracy = (outputs.argmax(1) == test.labels).float().mean().item()
    loss = cross_entropy(outputs, test.labels).item()
    return accuracy, loss, weights(model), opt.stats()["bytes_per_step"]


def test_digits_are_learned_as_well_as_dense(digits):
    (accuracy, dense, _, dense_bytes), *_ = on_ranks(2, partial(digits_learned, digits=digits))
    assert accuracy > 0.95
    for spec, most in (("bf16", 0.55), ("int8", 0.3), ("int4", 0.2)):
        ranks = on_ranks(2, partial(digits_learned, digits=digits, exchange=spec, algorithm=CODED))
        (_, loss, learned, sent), (_, _, other, _) = ranks
        assert torch.equal(learned, other)
        assert loss < dense + 0.01
        assert sent < most * dense_bytes


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38])
@pytest.mark.parametrize("spec", LOSSY)
def test_an_overflow_reaches_all_ranks_and_leaves_residuals_alone(spec, value, dtype):
    def body(comm):
        coded = exchange.create(spec, comm, algorithm=CODED)
        send(coded, gradients(comm.rank, 0).to(dtype))
        before = held(coded)
        spoilt = gradients(comm.rank, 1).to(dtype)
        if comm.rank == 1:
            spoilt[PARTS[1].offset + 5] = value
        result, marks = send(coded, spoilt)
        assert (marks == 1).all()
        assert torch.equal(held(coded), before) or (abs(value) < 1e39 and result.isfinite().all())
        after, _ = send(coded, gradients(comm.rank, 2).to(dtype))
        assert after.isfinite().all()
        return result

    ranks = on_ranks(3, body)
    for result in ranks:
        assert not result[700:].isfinite().all() or (value == 3e38 and spec not in REFUSING)
        if spec in REFUSING:
            assert result[:700].isfinite().all()
            assert result[700:].isnan().all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("spec", LOSSY)
def test_a_round_counts_as_a_whole(spec, dtype):
    """The gradients of rounds that are used, and no others, are in the results or held."""

    def body(comm):
        coded = exchange.create(spec, comm, algorithm=CODED)
        given, got = torch.zeros(ELEMENTS).double(), torch.zeros(ELEMENTS).double()
        for step in range(5):
            gradient = gradients(comm.rank, step).to(dtype)
            if (step, comm.rank) == (1, 1):
                gradient[PARTS[1].offset] = float("inf")
            buckets = [(gradient[part.offset :][: part.length].clone(), part) for part in PARTS]
            works = [coded.start(bucket, [part._replace(offset=0)]) for bucket, part in buckets]
            for work in works:
                work.wait()
            coded.end_round(used=step != 2)
            result = torch.cat([bucket for bucket, _ in buckets]).double()
            assert result.isfinite().all() == (step != 1)
            if step not in (1, 2):
                given += gradient.double()
                got += result
        return got, given, held(coded).double()

    ranks = on_ranks(3, body)
    given, lost = (sum(rank[place] for rank in ranks) for place in (1, 2))
    rounding = 0.0 if dtype is torch.float32 else 2 * 3 * 3 * torch.finfo(dtype).eps  # of the means
    torch.testing.assert_close(3 * ranks[0][0] + lost, given, rtol=0, atol=rounding + 2e-5)


def test_a_step_on_an_overflow_keeps_what_was_held_of_parameters_that_nobody_used():
    def body(comm):
        coded = exchange.create("int4", comm, algorithm=CODED)
        send(coded, gradients(comm.rank, 0))
        before = held(coded)
        spoilt = gradients(comm.rank, 1)
        spoilt[0], spoilt[700:] = float("inf"), 0.0
        result, _ = send(coded, spoilt, used=(1, 0))
        coded.stepped({"a", "b"})
        assert result[:700].isnan().all() and result[700:].any()
        assert torch.equal(held(coded), before)

    on_ranks(2, body)


@pytest.mark.parametrize("algorithm", [CODED, "two_shot"])
@pytest.mark.parametrize("eps", ["1e-05", "0.25"])
def test_what_no_width_of_fixed_holds_is_an_overflow(eps, algorithm):
    def body(comm):
        coded = exchange.create(f"fixed:{eps}", comm, algorithm=algorithm)
        step = 2 * _core.Codec(f"fixed:{eps}").bound(0.0)
        results = []
        for part in (0.3, 0.98, 1.01, 0.98):  # of what 32 bits hold when all ranks have it
            gradient = torch.full((ELEMENTS,), part * 2**31 * step / comm.world)
            gradient[: PARTS[1].offset] = 1.0
            results.append((send(coded, gradient)[0] / gradient).mean().item())
        return results

    for results in on_ranks(3, body):
        assert results[:2] + results[3:] == pytest.approx([1, 1, 1], rel=1e-3)
        assert np.isnan(results[2])


@pytest.mark.parametrize("spec", ["int8", "bf16", "fixed:0.001"])
def test_a_scaler_skips_the_step_and_training_goes_on(spec):
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(
            ADAMW(model.parameters()), model, comm, merge="200B", exchange=spec, algorithm=CODED
        )
        scaler = torch.amp.GradScaler(training.DEVICE, init_scale=8.0)
        scales = []
        for step in range(4):
            opt.zero_grad()
            loss = loss_of(model, comm, step)
            scaler.scale(loss * float("inf") if (step, comm.rank) == (1, 1) else loss).backward()
            before = weights(model)
            scaler.step(opt)
            scaler.update()
            assert torch.equal(before, weights(model)) == (step == 1)
            scales.append(scaler.get_scale())
        assert scales == [8.0, 4.0, 4.0, 4.0]
        return weights(model)

    results = on_ranks(2, body)
    assert torch.equal(*results)
    assert results[0].isfinite().all()


def test_a_step_that_is_not_made_leaves_all_residuals_alone():
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(
            SGD(model.parameters()), model, comm, merge="per_tensor", exchange="int4", algorithm=CODED
        )

        def residuals():
            return copy.deepcopy(opt.state_dict()["gpucomm"]["state"]["residuals"])

        loss_of(model, comm, 0).backward()
        before = residuals()
        assert all(residual.any() for residual in before.values())
        opt.step()
        opt.zero_grad()
        spoil = model[0].bias.register_hook(lambda grad: grad * (float("inf") if comm.rank else 1.0))
        loss_of(model, comm, 1).backward()
        assert not model[0].bias.grad.isfinite().any() and model[4].weight.grad.isfinite().all()
        spoil.remove()
        opt.zero_grad()
        overflown = residuals()
        with pytest.raises(ZeroDivisionError):
            model[4](Fault.apply(model[:4](share(comm, INPUTS[0])))).sum().backward()
        opt.zero_grad()
        failed = residuals()
        loss_of(model, comm, 2).backward()
        after = residuals()
        for name, residual in before.items():
            assert torch.equal(overflown[name], residual), name
            assert torch.equal(failed[name], residual), name
            assert not torch.equal(after[name], residual), name

    on_ranks(2, body)


@pytest.mark.parametrize("backwards", [1, 3])
@pytest.mark.parametrize("dtype", FLOATS[:2])
def test_gradients_that_are_thrown_away_leave_no_trace(backwards, dtype):
    """As where a bad batch is left out, or where another model's loss goes through this one."""

    def body(comm):
        trained = []
        for thrown_away in (0, backwards):
            model = here(MLP).to(dtype)
            opt = DistributedOptimizer(
                SGD(model.parameters()), model, comm, merge="200B", exchange="int8", algorithm=CODED
            )
            for step in range(4):
                for n in range(thrown_away):
                    (1000 * go(model, comm, step + n)).backward()
                    opt.zero_grad()
                    (1000 * go(model, comm, step + n)).backward()
                    (500 * go(model, comm, step + n)).backward()
                opt.zero_grad()
                go(model, comm, step).backward()
                go(model, comm, step + 1).backward()
                opt.step()
            trained.append(weights(model))
        assert torch.equal(*trained)

    def go(model, comm, step):
        return loss_of(lambda x: model(x.to(dtype)), comm, step)

    on_ranks(2, body)


@pytest.mark.parametrize("steps", [True, False])
def test_what_another_optimizer_trains_is_not_thrown_away(steps):
    """Whether or not it has stepped: its gradients are not cleared."""

    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(
            SGD(model[:3].parameters()), model, comm, merge="one", exchange="int4", algorithm=CODED
        )
        other = SGD(model[3:].parameters())

        def residuals():
            return opt.state_dict()["gpucomm"]["state"]["residuals"]

        for n in range(2):
            loss_of(model, comm, n).backward()
        made = residuals()
        if steps:
            other.step()
        opt.zero_grad()
        for name, residual in residuals().items():
            assert torch.equal(residual, made[name] if name.startswith("4") else torch.zeros_like(residual))

    on_ranks(2, body)


def test_who_goes_back_to_a_state_without_residuals_has_none():
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(
            SGD(model.parameters()), model, comm, exchange="int4", algorithm=CODED, save_residuals=False
        )
        go_on(model, opt, comm, range(2))
        at, state = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
        again = []
        for _ in range(2):
            model.load_state_dict(at)
            opt.load_state_dict(copy.deepcopy(state))
            go_on(model, opt, comm, range(2, 4))
            again.append(weights(model))
        assert torch.equal(*again)

    on_ranks(2, body)


def test_a_parameter_that_nobody_uses_gets_no_gradient_and_keeps_its_residual():
    template = seeded(lambda: nn.ModuleDict({"a": nn.Linear(6, 3), "b": nn.Linear(6, 3)}))

    def body(comm):
        model = here(template)
        opt = DistributedOptimizer(
            SGD(model.parameters()), model, comm, merge="one", exchange="int4", algorithm=CODED
        )
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(comm.rank))

        def step(*names):
            opt.zero_grad()
            sum((model[name](x).square().mean() for name in names), x.sum() * 0).backward()
            opt.step()
            return copy.deepcopy(opt.state_dict()["gpucomm"]["state"]["residuals"])

        with pytest.raises(RuntimeError):  # nothing that requires a gradient
            step()
        both = step("a", "b")
        only_a = step("a")
        assert model["b"].weight.grad is None
        assert torch.equal(only_a["b.weight"], both["b.weight"])
        assert both["b.weight"].any()
        assert not torch.equal(only_a["a.weight"], both["a.weight"])
        one_rank = step("a", "b") if comm.rank else step("a")
        assert model["b"].weight.grad is not None
        assert not torch.equal(one_rank["b.weight"], both["b.weight"])
        return weights(model)

    assert torch.equal(*on_ranks(2, body))


def test_residuals_of_those_that_stayed_are_not_old_ones_when_others_come_back():
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(
            SGD(model.parameters()), model, comm, merge="one", exchange="int4", algorithm=CODED
        )
        for step, frozen in enumerate((False, True, False)):
            model[4].bias.requires_grad_(not frozen)  # the first of its bucket
            opt.zero_grad()
            before = opt.state_dict()["gpucomm"]["state"]["residuals"]
            flat = opt._exchange._residuals.of(opt._reducer._buckets[0].parts, "cpu")
            for part in flat.parts if step else ():
                assert torch.equal(flat.part(part.name), before[part.name]), (step, part.name)
            loss_of(model, comm, step).backward()
            opt.step()

    on_ranks(2, body)


def test_residuals_stay_with_their_parameters_when_buckets_change():
    def body(comm):
        model = here(MLP)
        model[2].requires_grad_(False)
        opt = DistributedOptimizer(
            SGD(model.parameters()), model, comm, merge="one", exchange="int4", algorithm=CODED
        )
        loss_of(model, comm, 0).backward()
        before = opt.state_dict()["gpucomm"]["state"]["residuals"]
        opt.step()
        model[2].requires_grad_(True)
        model[4].requires_grad_(False)
        opt.zero_grad()
        assert opt.buckets == [["2.bias", "2.weight", "0.bias", "0.weight"]]
        flat = opt._exchange._residuals.of(opt._reducer._buckets[0].parts, "cpu")
        for part in flat.parts:
            expected = before.get(part.name, torch.zeros(part.length))
            assert torch.equal(flat.part(part.name), expected)
        loss_of(model, comm, 1).backward()
        after = opt.state_dict()["gpucomm"]["state"]["residuals"]
        assert after.keys() == before.keys() | {"2.bias", "2.weight"}
        assert torch.equal(after["4.weight"], before["4.weight"])  # frozen: kept
        assert not torch.equal(after["0.weight"], before["0.weight"])

    on_ranks(2, body)


def test_residuals_are_looked_for_one_by_one(monkeypatch):
    looked, part_of = [], Flat.part
    monkeypatch.setattr(Flat, "part", lambda flat, part: looked.append(part) or part_of(flat, part))
    residuals, names = Residuals("here", 0, 1), [str(number) for number in range(50)]
    for name in names:
        residuals.of([Part(name, 0, 2)], "cpu")
    residuals.of([Part(name, 2 * place, 2) for place, name in enumerate(names)], "cpu")
    assert len(looked) == 2 * len(names)  # where it was, and where it is


@pytest.mark.parametrize("merge", ["one", "200B"])
@pytest.mark.parametrize("world", [1, 3])
def test_training_resumes_to_the_bit(world, merge):
    def body(comm):
        options = {"exchange": "int4", "merge": merge, "algorithm": CODED}
        model = here(MLP)
        opt = DistributedOptimizer(ADAMW(model.parameters()), model, comm, **options)
        go_on(model, opt, comm, range(3))
        saved = copy.deepcopy([model.state_dict(), opt.state_dict()])
        go_on(model, opt, comm, range(3, 6))
        again = here(MLP)
        again.load_state_dict(saved[0])
        opt = DistributedOptimizer(ADAMW(again.parameters()), again, comm, **options)
        opt.load_state_dict(saved[1])
        assert_equal(opt.state_dict()["gpucomm"]["state"], saved[1]["gpucomm"]["state"])
        go_on(again, opt, comm, range(3, 6))
        assert torch.equal(weights(again), weights(model))

    on_ranks(world, body)


def test_a_compiled_model_and_a_plain_one_exchange_residuals():
    compiled_by = partial(torch.compile, backend="eager")
    compiled_by(MLP)  # imports what it needs, before there are threads

    def body(comm):
        options = {"exchange": "int4", "algorithm": CODED}

        def made(compiled):
            model = here(MLP)
            whole = compiled_by(model) if compiled else model
            opt = DistributedOptimizer(SGD(model.parameters()), whole, comm, **options)
            go_on(model, opt, comm, range(1))
            return opt, copy.deepcopy(opt.state_dict())

        (plain, of_plain), (compiled, of_compiled) = made(False), made(True)
        assert compiled.buckets == plain.buckets
        older = copy.deepcopy(of_plain)  # as saved before names were plain
        residuals = older["gpucomm"]["state"]["residuals"]
        older["gpucomm"]["state"]["residuals"] = {f"_orig_mod.{k}": v for k, v in residuals.items()}
        for opt, state in ((plain, of_compiled), (compiled, of_plain), (plain, older)):
            opt.load_state_dict(copy.deepcopy(state))
            assert_equal(opt.state_dict()["gpucomm"]["state"], of_plain["gpucomm"]["state"])

    on_ranks(2, body)


def test_residuals_of_no_parameter_are_refused():
    def body(comm):
        model = here(MLP)
        opt = DistributedOptimizer(SGD(model.parameters(), lr=0.1), model, comm, exchange="int4")
        state = opt.state_dict()
        state["param_groups"][0]["lr"] = 0.5
        state["gpucomm"]["state"]["residuals"] = {"0.bias": torch.zeros(8), "9.bias": torch.zeros(8)}
        with pytest.raises(
            InvalidArgumentError, match=rf"{comm.rank} of 2\] the state has .*of '9\.bias' \(1 "
        ):
            opt.load_state_dict(state)
        state["gpucomm"]["state"]["residuals"] = {"0.bias": torch.zeros(9)}
        with pytest.raises(InvalidArgumentError, match=r"of parameter '0\.bias' has 9 elements, but its gra"):
            opt.load_state_dict(state)
        assert opt.param_groups[0]["lr"] == 0.1

    on_ranks(2, body)


def test_residuals_of_parameters_that_another_optimizer_took_are_no_mistake():
    def body(comm):
        model = here(MLP)
        first = DistributedOptimizer(SGD(model.parameters()), model, comm, exchange="int4", algorithm=CODED)
        go_on(model, first, comm, range(1))
        DistributedOptimizer(SGD([model[0].weight]), model, comm)
        assert not any("0.weight" in bucket for bucket in first.buckets)
        first.load_state_dict(first.state_dict())
        return sorted(first.state_dict()["gpucomm"]["state"]["residuals"])

    assert "0.weight" in on_ranks(2, body)[0]


def assert_equal(a, b):
    a, b = dict(a), dict(b)
    torch.testing.assert_close(a.pop("residuals"), b.pop("residuals"), rtol=0, atol=0)
    assert a == b


def coded_states(world, spec="int4", steps=1):
    def body(comm):
        coded = exchange.create(spec, comm, algorithm=CODED)
        for step in range(steps):
            send(coded, gradients(comm.rank, step))
        return coded.state_dict()

    return on_ranks(world, body)


def test_another_world_is_told_what_to_do_and_gets_what_was_owed():
    states = coded_states(4)
    owed = sum(torch.cat(list(state["residuals"].values())) for state in states) / 4
    new = exchange.reshard(states[::-1], 2)
    assert [(state["rank"], state["world"]) for state in new] == [(0, 2), (1, 2)]

    def body(comm):
        coded = exchange.create("int8", comm, algorithm=CODED)
        with pytest.raises(InvalidArgumentError, match=r"rank 3 of 4.*every rank.*reshard\(states, 2\)"):
            coded.load_state_dict(states[3])
        with pytest.raises(InvalidArgumentError, match=f"rank {1 - comm.rank} of 2"):
            coded.load_state_dict(new[1 - comm.rank])
        coded.load_state_dict(new[comm.rank])
        paid = sum(send(coded, torch.zeros(ELEMENTS))[0] for _ in range(6))
        return paid, held(coded)

    ranks = on_ranks(2, body)
    left = (ranks[0][1] + ranks[1][1]) / 2
    assert owed.abs().max() > 0.1
    torch.testing.assert_close(ranks[0][0] + left, owed, rtol=0, atol=1e-6)


def test_reshard_takes_every_rank_once():
    states = coded_states(3)
    back = exchange.reshard(exchange.reshard(states, 5), 3)
    mean = sum(state["residuals"]["b"].double() for state in states) / 3
    for state in back:
        torch.testing.assert_close(state["residuals"]["b"].double(), mean, rtol=1e-6, atol=1e-9)
    for wrong, text in [
        (states[:2], "ranks 0, 1 of 3 ranks"),
        ([], "ranks none"),
        ([*states[:2], states[0]], "once each"),
        ([*states[:2], {}], "keeps residuals"),
        ([1], "keeps residuals"),
        (None, "keeps residuals"),
        ([{"rank": 0, "world": 1, "residuals": {"a": 5}}], "keeps residuals"),
        ([*states[:2], {**states[2], "residuals": {}}], "same parameters"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            exchange.reshard(wrong, 2)
    with pytest.raises(InvalidArgumentError, match="world must be a whole number"):
        exchange.reshard(states, 0)
    with pytest.raises(InvalidArgumentError, match="must be a subclass of Exchange with a name"):
        exchange.register(int)


def test_states_of_other_exchanges():
    def body(comm):
        model = here(MLP)
        opts = {
            name: DistributedOptimizer(ADAMW(model.parameters()), model, comm, exchange=name)
            for name in ("int4", "int8", "mpc", "dense")
        }
        coded = opts["int4"]._exchange
        coded.load_state_dict({"rank": comm.rank, "world": 2, "residuals": {"0.bias": torch.ones(8)}})
        saved = opts["int4"].state_dict()
        for opt in opts.values():
            opt.load_state_dict(copy.deepcopy(saved))
        assert_equal(opts["int8"].state_dict()["gpucomm"]["state"], saved["gpucomm"]["state"])
        for name in ("mpc", "dense"):
            assert opts[name].state_dict()["gpucomm"] == {"merge": "25MB", "exchange": name, "state": {}}
        opts["int8"].load_state_dict(opts["dense"].state_dict())  # there are none then
        assert opts["int8"].state_dict()["gpucomm"]["state"]["residuals"] == {}
        for wrong in (5, {"exchange": "int8"}, {"exchange": "int8", "state": 5}):
            with pytest.raises(InvalidArgumentError, match=rf"rank {comm.rank} of 2. the .* must be what"):
                opts["int8"].load_state_dict(opts["int8"].inner.state_dict() | {"gpucomm": wrong})
        with pytest.raises(InvalidArgumentError, match=r"mpc.*keeps no state"):
            opts["mpc"]._exchange.load_state_dict(saved["gpucomm"]["state"])
        with pytest.raises(InvalidArgumentError, match="the state must be what state_dict"):
            coded.load_state_dict({"rank": 0})
        coded.load_state_dict({})
        assert coded.state_dict()["residuals"] == {}
        coded.load_state_dict({"rank": comm.rank, "world": 2, "residuals": {"a": torch.ones(8)}})
        with pytest.raises(InvalidArgumentError, match=r"int4.*'a' has 8 elements.*has 700"):
            send(coded, gradients(comm.rank, 0))

    on_ranks(2, body)


def test_names():
    def body(comm):
        for spec in SPECS:
            assert exchange.create(spec, comm, algorithm=CODED).name == _core.Codec(spec).spec
        for wrong, text in [
            ("nonsense", r"one of .*dense.*, or a codec \(.*int8.*\), got 'nonsense'"),
            (8, "got 8"),
            ("zfp:1000", "zfp"),
            ("int8:3", "int8"),
        ]:
            with pytest.raises(InvalidArgumentError, match=text):
                exchange.create(wrong, comm)
        with pytest.raises(InvalidArgumentError, match="ring"):
            exchange.create("int8", comm, algorithm="ring")
        for name, about in _core.algorithms().items():
            if about["repeats"]:
                with pytest.raises(InvalidArgumentError, match=rf"{name}.*cannot tell an error"):
                    exchange.create("int8", comm, algorithm=name)
        model = nn.Linear(3, 3).double()
        with pytest.raises(UnsupportedTypeError, match=r"int8.*float64.*'bias'.*rank"):
            DistributedOptimizer(SGD(model.parameters()), model, comm, exchange="int8")
        with pytest.raises(UnsupportedTypeError, match=r"int8.*float64.*'a'.*rank"):
            exchange.create("int8", comm).start(gradients(0, 0).double(), PARTS)
        assert not comm.closed

    on_ranks(2, body)


def test_buckets_in_the_shared_heap():
    options = {"exchange": "int8", "algorithm": CODED, "merge": "per_tensor"}
    shared = outcomes_of(3, partial(train, **options))
    private = outcomes_of(3, partial(train, **options), heap_bytes=0)
    for result in [*shared, *private]:
        assert torch.equal(result, shared[0])


def test_one_message_more_where_marks_or_overflows_travel():
    def body(comm):
        counts = {}
        for spec in ("dense", "bf16", "int8"):
            coded = exchange.create(spec, comm)
            for name, marks in (("marks", 2), ("no marks", 0)):
                before = comm.stats()["calls"]
                coded.start(torch.ones(ELEMENTS + marks), PARTS).wait()
                counts[spec, name] = comm.stats()["calls"] - before
        return counts

    for counts in on_ranks(2, body):
        assert np.array(list(counts.values())).tolist() == [1, 1, 2, 1, 2, 2]


@pytest.mark.parametrize("spec", ["int8", "mpc"])
def test_a_fault_between_the_two_calls_of_a_bucket_is_told_by_its_own_name(spec, monkeypatch):
    class First:
        def wait(self, timeout=None):
            raise PeerLostError("rank 1 is gone")

    def faulty(x, *, codec=None, **how):
        if codec is None:
            raise ClosedError("closed after a fault: rank 1 is gone")
        return First()

    def body(comm):
        coded = exchange.create(spec, comm)
        monkeypatch.setattr(coded, "_comm", SimpleNamespace(all_reduce=faulty))
        with pytest.raises(PeerLostError):
            coded.start(torch.zeros(ELEMENTS + MARKS), PARTS)

    on_ranks(1, body)
