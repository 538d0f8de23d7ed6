"""What FSDP2's residuals hold through a backward: no part of it is lost, nor taken twice."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gpucomm.optim.fsdp.collectives import ReduceScatter
from gpucomm.optim.fsdp.handle import Handle
from gpucomm.optim.fsdp.residual import Residual, add_residual
from gpucomm.optim.fsdp.rounds import Round
from gpucomm.optim.fsdp.slots import Slot

A, B = Slot("a", (4, 3), 0, 2), Slot("b", (2, 2), 0, 2)


def backward(residual, slots, value):
    """One reduce-scatter that loses `value` of each element; returns what it has sent of zeros."""
    residual.lay_out(slots)
    residual.keep()
    owed, lost = residual.turn()
    x = torch.zeros_like(owed)
    add_residual(x, owed, lost)
    lost.fill_(value)
    return x


def held(residual, slot):
    return residual.get(slot).unique().tolist()


def test_they_are_float32_whatever_torchs_default_is():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        residual = Residual(2)
        backward(residual, (A, B), 1.0)
        residual.settle(True)
        residual.put(B, torch.ones(2, 2))
        assert residual.get(A).dtype == residual.get(B).dtype == torch.float32
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("used", [True, False])
def test_what_is_lost_is_owed_once_it_is_settled(used):
    residual, before = Residual(2), 0.0
    for value in (1.0, 2.0, 3.0):
        assert backward(residual, (A, B), value).unique().tolist() == [before]
        assert held(residual, A) == [before]  # as a checkpoint within the backward has it
        residual.settle(used)
        before = value if used else 0.0
        assert held(residual, A) == held(residual, B) == [before]


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("first", [(A, B), (A,), (B,)])
def test_a_backward_of_two_calls_is_settled_as_one(first, used):
    residual = Residual(2)
    backward(residual, (A, B), 1.0)
    residual.settle(True)
    backward(residual, first, 2.0)
    sent = backward(residual, (A, B), 3.0)
    assert sent.view(2, -1)[:, :6].unique().tolist() == [2.0 if A in first else 1.0]
    assert sent.view(2, -1)[:, 6:].unique().tolist() == [2.0 if B in first else 1.0]
    residual.settle(used)
    assert held(residual, A) == held(residual, B) == [3.0 if used else 1.0]


def test_no_memory_is_taken_once_there_are_two_windows():
    residual, places = Residual(2), set()
    for _ in range(6):
        residual.lay_out((A,))
        residual.keep()
        places.add(residual.turn()[1].data_ptr())
        residual.settle(True)
    assert len(places) == 2


def test_what_16_bits_cannot_hold_stays_owed():
    x, owed = torch.tensor([1.0, 64992.0], dtype=torch.float16), torch.tensor([1e-4, 1000.0])
    lost = torch.empty(2)
    add_residual(x, owed, lost)
    assert x.tolist() == [1.0, 65504.0]
    assert lost.tolist() == pytest.approx([1e-4, 488.0], rel=1e-3)
    assert owed.tolist() == pytest.approx([1e-4, 1000.0])


def test_what_was_paid_is_owed_again_where_its_gradients_are_thrown_away():
    residual = Residual(2)
    backward(residual, (A, B), 1.0)
    residual.settle(True)
    residual.keep()
    residual.turn()
    residual.clear()
    residual.settle(True)
    assert not residual.owes
    residual.discard()
    assert residual.owes
    assert held(residual, A) == [1.0]


def test_what_a_message_of_16_bits_without_a_codec_cannot_hold_stays_owed():
    lane = SimpleNamespace(comm=SimpleNamespace(reduce_scatter=lambda x, **how: None))
    residual = Residual(2)
    backward(residual, (A,), 1e-4)
    residual.settle(True)
    residual.keep()
    x = torch.ones(12, dtype=torch.float16)
    ReduceScatter(lane, None, residual, None)._send_all(x, residual, {}, coded=False)
    residual.settle(True)
    assert residual.owes
    assert held(residual, A) == pytest.approx([1e-4], rel=1e-2)


def test_what_copies_will_lose_needs_its_residual_although_auto_has_settled():
    comm = SimpleNamespace(_settled_without_codec=lambda *_: ("ring", 1))
    lane = SimpleNamespace(comm=comm, route=SimpleNamespace(chooses=True, spec="int4"))
    ends, goes_on = (ReduceScatter(lane, None, Residual(2), None, ends) for ends in (True, False))
    assert ends._settled(torch.ones(12)) == {"algorithm": "ring", "segments": 1}
    assert goes_on._settled(torch.ones(12)) is None


def handle_of(name):
    """The state of a model of one parameter, as rank 0 of 2 has it."""
    slot, residual = Slot(name, (4, 3), 0, 2), Residual(2)
    group = SimpleNamespace(slots={name: slot}, world=2, worth=0.5, divides_by_all=True)
    return Handle([group], [residual], Round([]), [], (0, 2)), residual, slot


def test_a_compiled_model_and_a_plain_one_exchange_residuals():
    (compiled, residual, slot), (plain, taken, _) = handle_of("0._orig_mod.weight"), handle_of("0.weight")
    residual.put(slot, torch.ones(4, 3))
    state = compiled.state_dict()
    assert list(state["residuals"]) == list(state["worth"]) == ["0.weight"]
    plain.load_state_dict(state)
    residual.drop()
    compiled.load_state_dict(plain.state_dict())
    assert torch.equal(residual.get(slot), torch.ones(4, 3))
    older = {name: {"0._orig_mod.weight": state[name]["0.weight"]} for name in ("residuals", "worth")}
    older["worth"]["0._orig_mod.weight"] = 1.0
    plain.load_state_dict({**state, **older})
    assert torch.equal(taken.get(Slot("0.weight", (4, 3), 0, 2)), 2 * torch.ones(4, 3))
