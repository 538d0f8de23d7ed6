"""Hooks on a user's modules, on behalf of an optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gpucomm.errors import InvalidArgumentError

__all__ = ["ModuleHook", "OutsideDdp", "remove_all"]


def remove_all(hooks: list[Any]) -> None:
    """Removes hooks, or handles of hooks, and forgets them."""
    while hooks:
        hooks.pop().remove()


class ModuleHook:
    """A hook that stays behind where its module is pickled or copied."""

    def __reduce__(self) -> tuple[Any, ...]:
        # There: a call that takes anything, does nothing, and needs no gpucomm.
        return getattr, (contextlib.nullcontext(), "__exit__")


class OutsideDdp(ModuleHook):
    """Refuses forward passes by which DDP would average gradients that an optimizer averages.

    DDP may come after the optimizer: frameworks wrap models late.

    Args:
        rank: which rank this is, for the text.
    """

    def __init__(self, rank: str) -> None:
        self._rank = rank
        # Not on import: it loads torch._dynamo, which takes seconds, and which an optimizer has loaded.
        torch.compiler.assume_constant_result(_look_for_ddp)

    def __call__(self, module: Any, inputs: Sequence[Any]) -> None:
        """As torch calls it, before each forward pass of the module.

        Raises:
            InvalidArgumentError: the pass is one of those; while a model is compiled torch makes an error of
                its own of it.
        """
        if torch.is_grad_enabled():  # else no gradients come of it, and DDP averages none
            _look_for_ddp(module, self._rank)


def _look_for_ddp(module: Any, rank: str) -> None:
    """Raises where DDP has the module; run, not compiled, while what calls it is being compiled."""
    ddp = DistributedDataParallel._get_active_ddp_module()
    if ddp is not None and any(inside is module for inside in ddp.modules()):
        where = "runs inside a DistributedDataParallel"
    elif any(isinstance(inside, DistributedDataParallel) for inside in module.modules()):
        where = "has a DistributedDataParallel inside by now"
    else:
        return
    raise InvalidArgumentError(
        f"[optim] the model {where}, which averages the same gradients in its own buckets: call "
        f"gpucomm.optim.ddp.use in place of this wrapper, or leave the model out of DDP ({rank})"
    )
