"""Parameters that no exchange has, as they were frozen when the buckets were planned."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpucomm.errors import InvalidArgumentError
from gpucomm.optim.members import Member

__all__ = ["Frozen"]


class _Held:
    """The gradient of a parameter: which it is, and how often it was written."""

    def __init__(self, grad: Any) -> None:
        self._grad: Callable[[], Any] = weakref.ref(grad) if grad is not None else lambda: None
        self._version = grad._version if grad is not None else 0

    def is_still(self, grad: Any) -> bool:
        """Whether this is that one, and was not written since."""
        return grad is self._grad() and grad._version == self._version


def _counts(grad: Any) -> bool:
    return grad.layout is not torch.strided or bool(grad.any())


class Frozen:
    """Parameters that are frozen, and the gradients that they have.

    A gradient that one of them gets is of this rank alone, also where it is frozen again before step().

    Args:
        members: the frozen ones.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.note()

    def note(self) -> None:
        """Takes the gradients that they have now for old ones."""
        self._held = [_Held(param.grad) for _, param in self.members]

    def require_old_gradients(self, advice: str, place: str) -> None:
        """Checks that they have got no gradients since; zeros change nothing.

        Args:
            advice: what to do in place of that.
            place: which rank this is.

        Raises:
            InvalidArgumentError: one has.
        """
        for (name, param), held in zip(self.members, self._held, strict=True):
            grad = param.grad
            if grad is not None and not held.is_still(grad) and _counts(grad):
                raise InvalidArgumentError(
                    f"[optim] parameter {name!r} was frozen, but its gradient has changed: what a backward() "
                    f"has given it is of this rank alone, so {advice}; where you have written an old one, as "
                    f"clipping does, set it to None when you freeze the parameter ({place})"
                )
