"""Which optimizer exchanges which parameter, so that none is exchanged twice."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from torch.utils.weak import WeakTensorKeyDictionary

from gpucomm.optim.members import Member

__all__ = ["Owner", "claim", "claimable", "trained"]


class Owner(Protocol):
    """An optimizer that exchanges gradients."""

    @property
    def param_groups(self) -> Any:
        """The groups of parameters that it trains, as torch keeps them."""

    def release(self, params: Collection[Any]) -> bool:
        """Makes it stop exchanging these parameters.

        Returns:
            Whether gradients that it has exchanged or was to exchange are of this rank alone.
        """


_owners: Any = WeakTensorKeyDictionary()  # parameter -> weak reference to its owner
_lock = threading.Lock()  # ranks may be threads


def trained(owner: Owner) -> set[int]:
    """Returns the ids of the parameters in an optimizer's groups."""
    return {id(param) for group in owner.param_groups for param in group["params"]}


def claimable(owner: Owner, members: Sequence[Member]) -> list[Member]:
    """Lists the parameters that are this optimizer's to exchange; takes none.

    One model may be trained by several optimizers. A parameter belongs to the optimizer that trains it, the
    newest of them; one that none trains belongs to the first whose model has it, or to who has taken all that
    this one trains.

    Args:
        owner: who asks.
        members: the parameters of its model and its groups.

    Returns:
        Those that are its own, in their order.
    """
    own = trained(owner)

    def is_own(param: Any) -> bool:
        other = _owner_of(param)
        return id(param) in own or other in (None, owner) or trained(other) <= own

    with _lock:
        return [member for member in members if is_own(member.param)]


def claim(owner: Owner, members: Sequence[Member]) -> bool:
    """Takes parameters from the optimizers that have them; once nothing can be refused any more.

    Args:
        owner: who takes them; it may be asked to release them from now on.
        members: of :func:`claimable`.

    Returns:
        Whether one that had some of them holds gradients that no exchange has seen.
    """
    taken: dict[int, tuple[Owner, list[Any]]] = {}
    with _lock:
        for _, param in members:
            other = _owner_of(param)
            if other is not None and other is not owner:
                taken.setdefault(id(other), (other, []))[1].append(param)
            _owners[param] = weakref.ref(owner)
    # All of one at once: it plans its buckets anew each time.
    return any([other.release(params) for other, params in taken.values()])


def _owner_of(param: Any) -> Owner | None:
    reference: Callable[[], Owner | None] | None = _owners.get(param)
    return reference() if reference is not None else None
