"""What a rank's coded messages have lost, by parameter, to be sent with the next ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gpucomm.optim.fsdp.slots import Slot
from gpucomm.optim.streams import used_here

__all__ = ["Residual", "add_residual"]


class Residual:
    """The float32 residuals of a group's gradients, laid out as their reduce-scatter is.

    Args:
        world: how many ranks the gradients are scattered to.
        device: where the gradients are.
    """

    def __init__(self, world: int, device: Any = None) -> None:
        self._world, self._device = world, device
        self._held: dict[str, Any] = {}  # by name: [world, columns], most of them views of the window
        self._before: dict[str, Any] = {}  # as _held, at the beginning of the backward that runs
        self._last: dict[str, Any] = {}  # the same of the one that has ended, until the next begins
        self._slots: tuple[Slot, ...] = ()  # in the window
        self._window = self._zeros(0)
        self._spare: Any = None  # as large as the window; until settle what it was before this backward
        self.owes = False  # whether the window may hold anything but zeros

    def _zeros(self, *shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.float32, device=self._device)

    def lay_out(self, slots: tuple[Slot, ...]) -> None:
        """Lays the residuals of some parameters out as their message is; others keep theirs."""
        if slots == self._slots:
            return
        left = {slot.name for slot in self._slots} - {slot.name for slot in slots}
        for name in left:
            self._held[name] = self._held[name].clone()
        window = self._zeros(self._world * sum(slot.columns for slot in slots))
        for name, view in self._views(window, slots):
            if name in self._held:
                view.copy_(self._held[name])
                used_here(self._held[name])
            self._held[name] = view
        self._slots, self._window, self._spare = slots, window, None
        self.owes = True

    def _views(self, window: Any, slots: tuple[Slot, ...]) -> Iterator[tuple[str, Any]]:
        grid, begin = window.view(self._world, -1), 0
        for slot in slots:
            yield slot.name, grid[:, begin : begin + slot.columns]
            begin += slot.columns

    def keep(self) -> None:
        """Remembers what the window holds, until :meth:`settle`."""
        self._last = {}
        for slot in self._slots:
            self._before.setdefault(slot.name, self._held[slot.name])

    def turn(self) -> tuple[Any, Any]:
        """Returns the residuals laid out, flat: those that are owed, and where to write what is lost now.

        Both are the same where a part of them was written in this backward already; else the first is kept.
        """
        owed, self.owes = self._window, True
        fresh = [slot.name for slot in self._slots if self._before[slot.name] is self._held[slot.name]]
        if len(fresh) < len(self._slots):
            for name in fresh:
                self._before[name] = self._held[name].clone()
            return owed, owed
        self._window = torch.empty_like(owed) if self._spare is None else self._spare
        self._held.update(self._views(self._window, self._slots))
        self._spare = owed
        return owed, self._window

    def settle(self, used: bool) -> None:
        """Goes on with what was written since :meth:`keep`, or, if that is not used, with what was held."""
        self._last, self._before = self._before, {}
        if not used:
            self.discard()

    def discard(self) -> None:
        """Takes back what the last backward has changed: its gradients are thrown away."""
        self.owes |= bool(self._last)
        for name, held in self._last.items():
            self._held[name].copy_(held)
            used_here(held)
        self._last = {}

    def clear(self) -> None:
        """Owes nothing of what is laid out."""
        self._window.zero_()
        self.owes = False

    def clear_padding(self) -> None:
        """Forgets what was lost of the zeros that pad a message: no parameter has them."""
        for slot in self._slots:
            for rank, begin in slot.padding():
                self._held[slot.name][rank, begin:].zero_()

    def get(self, slot: Slot) -> Any:
        """Returns a copy of a parameter's residual on the host, shaped as its gradient; None: none yet."""
        held = self._before.get(slot.name, self._held.get(slot.name))
        if held is None:
            return None
        held = held.to("cpu", copy=True)
        if slot.dim == 0:
            return held.reshape(-1, *slot.shape[1:])[: slot.shape[0]]
        piece = list(slot.shape)
        piece[slot.dim] //= self._world
        return torch.cat([row.reshape(piece) for row in held], dim=slot.dim)

    def put(self, slot: Slot, residual: Any) -> None:
        """Takes a parameter's residual, in the shape of its gradient, in place of the present one."""
        held = self._zeros(self._world, slot.columns)
        if slot.dim == 0:
            held.view(-1)[: residual.numel()].copy_(residual.reshape(-1))
        else:
            for row, piece in zip(held, residual.chunk(self._world, slot.dim), strict=True):
                row.copy_(piece.reshape(-1))
        self.owes = True
        if slot in self._slots:
            self._held[slot.name].copy_(held)
        else:
            self._held[slot.name] = held

    def drop(self) -> None:
        """Forgets all residuals."""
        self._held, self._before, self._last = {}, {}, {}
        self._slots, self._window = (), self._zeros(0)
        self._spare = None


def add_residual(x: Any, owed: Any, lost: Any) -> None:
    """Adds a residual to what is about to be sent, and tells what x's dtype cannot hold of the sum.

    Args:
        x: a floating tensor of shape [n].
        owed: float32, shape [n].
        lost: float32, shape [n]: is written unless x has float32, which holds all; `owed` itself will do.
    """
    if x.dtype == owed.dtype:
        x += owed
        return
    torch.add(owed, x, out=lost)
    limit = torch.finfo(x.dtype).max
    x.copy_(lost.clamp(-limit, limit))
    lost -= x
