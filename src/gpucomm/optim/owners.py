"""Which optimizer exchanges which parameter, so that none is exchanged twice."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch.utils.weak import WeakTensorKeyDictionary

from gpucomm.optim.members import Member

__all__ = ["Owner", "claim"]


class Owner(Protocol):
    """An optimizer that exchanges gradients."""

    def trains(self, param: Any) -> bool:
        """Tells whether the parameter is in one of its groups."""

    def release(self, param: Any) -> None:
        """Makes it stop exchanging the parameter."""


_owners: Any = WeakTensorKeyDictionary()  # parameter -> weak reference to its owner
_lock = threading.Lock()  # ranks may be threads


def claim(owner: Owner, members: Sequence[Member]) -> list[Member]:
    """Takes the parameters that are this optimizer's to exchange.

    One model may be trained by several optimizers. A parameter belongs to the optimizer that trains it, the
    newest of them; one that none trains belongs to the first whose model has it.

    Args:
        owner: who asks.
        members: the parameters of its model and its groups.

    Returns:
        Those that are its own, in their order.
    """
    return [member for member in members if _claim_one(owner, member)]


def _claim_one(owner: Owner, member: Member) -> bool:
    with _lock:
        reference: Callable[[], Owner | None] | None = _owners.get(member.param)
        other = reference() if reference is not None else None
        if other is not None and other is not owner:
            if not owner.trains(member.param):
                return False
            other.release(member.param)
        _owners[member.param] = weakref.ref(owner)
        return True
