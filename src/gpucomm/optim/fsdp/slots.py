"""How a parameter lies in the messages of its group."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Slot"]


@dataclass(frozen=True)
class Slot:
    """A parameter's place in its group's messages.

    Attributes:
        name: fully qualified.
        shape: of the whole gradient.
        dim: along which it is cut into one piece a rank.
        world: how many pieces; dimension 0 is padded to a multiple of it.
    """

    name: str
    shape: tuple[int, ...]
    dim: int
    world: int

    @property
    def columns(self) -> int:
        """Elements of one rank's piece, with its padding."""
        if self.dim > 0:
            return math.prod(self.shape) // self.world
        return math.ceil(self.shape[0] / self.world) * math.prod(self.shape[1:])

    def padding(self) -> Iterator[tuple[int, int]]:
        """Yields (rank, elements before the padding) of every piece that has some."""
        row = math.prod(self.shape[1:])
        for rank in range(self.world if self.dim == 0 else 0):
            filled = min(max(self.shape[0] * row - rank * self.columns, 0), self.columns)
            if filled < self.columns:
                yield rank, filled
