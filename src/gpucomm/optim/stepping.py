"""Tells an exchange which parameters are stepped though some gradients of the round were not finite."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from gpucomm.exchange import Exchange

__all__ = ["Stepping"]


class Stepping:
    """Listens to every optimizer, as long as its exchange wants to hear.

    Args:
        exchange: whose rounds they are.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._names: Mapping[int, str] = {}
        self._stop: Callable[[], Any] = _nothing

    def listen(self, names: Mapping[int, str]) -> None:
        """Called where a round has ended.

        Args:
            names: of the parameters, by their ids.
        """
        self._stop()
        if self._exchange.follows_steps:
            self._names = names
            handle = register_optimizer_step_post_hook(_Hook(self))
            self._stop = weakref.finalize(self, handle.remove)

    def hear(self, optimizer: Any) -> None:
        """Takes what an optimizer has stepped; one that has looked at a GradScaler's word itself may not."""
        skipped = getattr(optimizer, "found_inf", None)
        if skipped is not None and bool(skipped):
            return
        stepped = (id(param) for group in optimizer.param_groups for param in group["params"])
        self._exchange.stepped({self._names[number] for number in stepped if number in self._names})


class _Hook:
    """Weak: a discarded optimizer or model must not be kept."""

    def __init__(self, stepping: Stepping) -> None:
        self._stepping = weakref.ref(stepping)

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if stepping := self._stepping():
            stepping.hear(optimizer)


def _nothing() -> None:
    pass
