"""Tells an exchange which parameters are stepped: what becomes of the gradients of its rounds."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from gpucomm.exchange import Exchange

__all__ = ["Stepping", "names_in"]


class Stepping:
    """Listens to every optimizer, if its exchange wants to hear.

    Args:
        exchange: whose rounds they are.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._names: Mapping[int, str] = {}
        if exchange.follows_steps:
            # Weak: a discarded optimizer or model must not be kept.
            _listening[id(self)] = weakref.ref(self)
            weakref.finalize(self, _listening.pop, id(self), None)

    def round_ended(self, names: Mapping[int, str]) -> None:
        """Called where a round has ended.

        Args:
            names: of the parameters, by their ids.
        """
        self._names = names

    def hear(self, optimizer: Any) -> None:
        """Takes what an optimizer has stepped; one that has looked at a GradScaler's word itself may not."""
        skipped = getattr(optimizer, "found_inf", None)
        if skipped is not None and bool(skipped):
            return
        if names := names_in(optimizer.param_groups, self._names):
            self._exchange.stepped(names)


def names_in(groups: Iterable[Mapping[str, Any]], names: Mapping[int, str]) -> set[str]:
    """Returns the names of an optimizer's parameters, by their ids; those without one are left out."""
    ids = (id(param) for group in groups for param in group["params"])
    return {names[number] for number in ids if number in names}


_listening: dict[int, weakref.ref[Stepping]] = {}


def _tell_all(optimizer: Any, args: Any, kwargs: Any) -> None:
    for one in list(_listening.values()):
        if stepping := one():
            stepping.hear(optimizer)


# Once: hooks that come and go would disturb threads that step meanwhile.
register_optimizer_step_post_hook(_tell_all)
