"""What a rank's coded messages have lost, by parameter, to be sent with the next ones."""

from __future__ import annotations

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
        self._slots: tuple[Slot, ...] = ()  # in the window
        self._window = self._zeros(0)

    def _zeros(self, *shape: int) -> Any:
        return torch.zeros(shape, device=self._device)

    def window(self, slots: tuple[Slot, ...]) -> Any:
        """Returns the residuals of some parameters, flat and laid out as their message, to read and write.

        Other parameters keep theirs.
        """
        if slots != self._slots:
            self._move_to(slots)
        return self._window

    def _move_to(self, slots: tuple[Slot, ...]) -> None:
        left = {slot.name for slot in self._slots} - {slot.name for slot in slots}
        for name in left:
            self._held[name] = self._held[name].clone()
        grid = self._zeros(self._world, sum(slot.columns for slot in slots))
        begin = 0
        for slot in slots:
            view = grid[:, begin : begin + slot.columns]
            begin += slot.columns
            if slot.name in self._held:
                view.copy_(self._held[slot.name])
                used_here(self._held[slot.name])
            self._held[slot.name] = view
        self._slots, self._window = slots, grid.view(-1)

    def keep(self) -> None:
        """Remembers what the window holds, until :meth:`settle`."""
        for slot in self._slots:
            if slot.name not in self._before:
                self._before[slot.name] = self._held[slot.name].clone()

    def settle(self, used: bool) -> None:
        """Goes on with what was written since :meth:`keep`, or, if that is not used, with what was held."""
        for name, held in self._before.items() if not used else ():
            self._held[name].copy_(held)
            used_here(held)
        self._before = {}

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
        if slot in self._slots:
            self._held[slot.name].copy_(held)
        else:
            self._held[slot.name] = held

    def drop(self) -> None:
        """Forgets all residuals."""
        self._held, self._before, self._slots, self._window = {}, {}, (), self._zeros(0)


def add_residual(x: Any, window: Any) -> None:
    """Adds a residual to what is about to be sent, and leaves in it what x's dtype can not hold of the sum.

    Args:
        x: a floating tensor of shape [n].
        window: float32, shape [n].
    """
    if x.dtype == window.dtype:
        x += window
        window.zero_()
        return
    window += x
    limit = torch.finfo(x.dtype).max
    x.copy_(window.clamp(-limit, limit))
    window -= x
